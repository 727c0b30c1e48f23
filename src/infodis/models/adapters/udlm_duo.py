"""UDLM and Duo: recognised by `model_type` "udlm" or "duo".

SEDD's network (its keys have the prefix `backbone.`) under uniform noise over the whole vocabulary, mask and padding
included. It predicts clean tokens (the mean parametrisation), and is told the total noise of a log-linear schedule.
"""

from pathlib import Path
from typing import Any

import torch

from infodis.errors import InputError
from infodis.models.adapters.family import LoadedModel
from infodis.models.adapters.tokenizer import tokenizer_of
from infodis.models.adapters.weights import check_weights, fill, needed
from infodis.models.nets import MeanNetwork, NetworkShape, TimeInput
from infodis.models.options import ModelOptions
from infodis.noise.design import Noise
from infodis.noise.process import Uniform
from infodis.noise.schedule import LogLinear

HONOURS = ()
FAMILIES = ("udlm", "duo")


def recognises(config: dict[str, Any]) -> bool:
    """See the head of this file."""
    return str(config.get("model_type")).lower() in FAMILIES


def load_model(directory: Path, config: dict[str, Any], options: ModelOptions) -> LoadedModel:
    """Read configuration, weights and tokenizer."""
    if config.get("cfg") or config.get("causal"):
        raise InputError(
            f"{directory} must be a network of text alone that sees a whole row; it is "
            f"{'made for guidance by classes (cfg)' if config.get('cfg') else 'causal'}. Take another checkpoint."
        )
    columns, width, condition, blocks, heads = needed(
        config, "vocab_size", "hidden_dim", "cond_dim", "n_blocks", "n_heads"
    )
    shape = NetworkShape(width=width, blocks=blocks, heads=heads, condition=condition)
    check_weights(directory, config)
    noise = Noise(Uniform(columns), float(LogLinear().total(torch.tensor(1.0, dtype=torch.float64))))
    time = TimeInput("total" if config.get("time_conditioning", True) else "none", noise.until)
    with torch.device("meta"):
        network = MeanNetwork(Uniform(columns), shape, time)
    fill(network, directory, options, lambda key: key.removeprefix("backbone."))
    family = str(config["model_type"]).lower()
    return LoadedModel(family, network, tokenizer_of(directory), config.get("model_length"), limit=None, noise=noise)
