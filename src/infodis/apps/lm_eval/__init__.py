"""infodis as a model of lm-evaluation-harness (extra `eval`)."""
