"""What infodis raises when it is asked for something that cannot be done."""


class InfodisError(Exception):
    """Base of everything infodis raises on purpose; the command line prints it without a traceback."""


class InputError(InfodisError, ValueError):
    """The caller's input breaks a rule. The message says the rule, what was found and what to do."""


class PredictorError(InfodisError):
    """A predictor returned something that is not a table of log-probabilities."""
