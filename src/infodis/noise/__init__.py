"""Noise on tokens and on numbers: processes, schedules, and likelihoods from scores under them (I-MDSE, I-MMSE)."""
