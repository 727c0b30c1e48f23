"""Programs built on the library: audits, reports, the experiments of the paper, lm-evaluation-harness, benchmarks."""
