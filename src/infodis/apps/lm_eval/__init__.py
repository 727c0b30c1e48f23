"""infodis inside other people's programs: models for lm-evaluation-harness (`lm_eval`, extra `eval`)."""
