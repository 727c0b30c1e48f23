"""Measure estimators against exact answers: the numbers behind docs/benchmarks.md.

The problems are conditional likelihoods of an order-4 Markov chain over four letters, 16 tokens given 16 tokens, as in
the paper. A target of 16 has 65,535 masks: a predictor is asked about all of them once (`problems.Tabulated`), after
which the exact `nll` is known and thousands of runs of every estimator cost nothing but their own arithmetic.
"""
