"""Models as people have them: one file a family, each saying how it is recognised and how it is read.

An adapter is a module with two functions: `recognises` tells by a `config.json` whether a model is of its family,
`load_model` turns the directory into a `LoadedModel`. `HONOURS` names the options about blocks and masks that it takes.
Families are tried in order; the first that recognises the configuration loads it. What no other family knows is loaded
as an autoregressive model if the user says that it is one.
"""

from pathlib import Path
from typing import Any

from infodis.errors import InfodisError, InputError
from infodis.models.adapters import (
    a2d,
    bd3lm,
    causal_lm,
    dream,
    fast_dllm,
    gidd,
    llada,
    llada2,
    llada_moe,
    masked_lm,
    mdlm,
    radd_sedd,
    sdar,
    udlm_duo,
)
from infodis.models.adapters.family import Family as Family
from infodis.models.adapters.family import LoadedModel as LoadedModel
from infodis.models.checkpoint import CONFIG, read_config
from infodis.models.options import ModelOptions

FAMILIES: tuple[Family, ...] = (
    radd_sedd,
    llada_moe,
    llada,
    dream,
    mdlm,
    udlm_duo,
    gidd,
    bd3lm,
    sdar,
    a2d,
    fast_dllm,
    llada2,
    causal_lm,
    masked_lm,
)


def load_model(directory: Path, options: ModelOptions) -> LoadedModel:
    """The model in a directory, by the first family that knows it."""
    config = read_config(directory)
    for family in FAMILIES:
        if family.recognises(config) or (family is causal_lm and options.causal):
            return _load(family, directory, config, options)
    keys = ", ".join(sorted(config)) or "none"
    raise InputError(f"No family of models recognises {directory / CONFIG}; its keys are {keys}.")


def _load(family: Family, directory: Path, config: dict[str, Any], options: ModelOptions) -> LoadedModel:
    """Files of a model are data: an error while they are read is reported as a mistake in them."""
    refused = [f"{name} = {value!r}" for name, value in options.wiring.items() if name not in family.HONOURS]
    if refused:
        raise InputError(
            f"{refused[0].split()[0]} must be an option that the model can honour, got {refused[0]} with {directory}, "
            f"whose family takes {' and '.join(family.HONOURS) or 'none of the kind'}. Leave it out."
        )
    try:
        return family.load_model(directory, config, options)
    except InfodisError:
        raise
    except Exception as error:
        reason = (str(error).strip().splitlines() or [""])[0]
        raise InputError(
            f"{directory} cannot be loaded: {type(error).__name__}: {reason}. Is something in its {CONFIG} of the "
            "wrong type or size?"
        ) from error
