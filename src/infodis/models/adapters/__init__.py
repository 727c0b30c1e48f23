"""Models as people have them: one file a family, each saying how it is recognised and how it is read.

An adapter is a module with two functions: `recognises` tells by a `config.json` whether a model is of its family,
`open_model` turns the directory into an `Opened` model. Families are tried in order; the first that recognises the
configuration opens it.
"""

from pathlib import Path
from typing import Any

from infodis.errors import InfodisError, InputError
from infodis.models.adapters import dream, llada, masked_lm, mdlm, own
from infodis.models.adapters.files import CONFIG, read_config
from infodis.models.adapters.opened import Family as Family
from infodis.models.adapters.opened import Opened as Opened
from infodis.models.adapters.opened import Options as Options

FAMILIES: tuple[Family, ...] = (own, llada, dream, mdlm, masked_lm)


def open_model(directory: Path, options: Options) -> Opened:
    """The model in a directory, by the first family that knows it."""
    config = read_config(directory)
    for family in FAMILIES:
        if family.recognises(config):
            return _opened(family, directory, config, options)
    keys = ", ".join(sorted(config)) or "none"
    raise InputError(f"No family of models recognises {directory / CONFIG}; its keys are {keys}.")


def _opened(family: Family, directory: Path, config: dict[str, Any], options: Options) -> Opened:
    """Files of a model are data: whatever they make code raise is told as a mistake in them."""
    try:
        return family.open_model(directory, config, options)
    except InfodisError:
        raise
    except Exception as error:
        reason = (str(error).strip().splitlines() or [""])[0]
        raise InputError(
            f"{directory} cannot be opened: {type(error).__name__}: {reason}. Is something in its {CONFIG} of the "
            "wrong type or size?"
        ) from error
