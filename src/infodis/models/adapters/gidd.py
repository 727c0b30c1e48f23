"""GIDD: recognised by `model_type` "dit" with `p_uniform` and `timestep_cond_dim`.

SEDD's network, told the time t, that predicts clean tokens (the mean parametrisation) under a mixture of masks and
uniformly drawn tokens. The last token of the vocabulary is the mask. With `p_uniform` 0 it is a masked model that is
told the time: the share of masks in a row.
"""

from pathlib import Path
from typing import Any

import torch

from infodis.errors import InputError
from infodis.models.adapters.family import LoadedModel
from infodis.models.adapters.tokenizer import tokenizer_of
from infodis.models.adapters.weights import check_weights, fill, needed
from infodis.models.nets import MeanNetwork, NetworkShape, TimeInput
from infodis.models.nets.sedd import SEDD, TimedByMasks
from infodis.models.options import ModelOptions
from infodis.noise.design import Noise
from infodis.noise.process import Hybrid

HONOURS = ()


def recognises(config: dict[str, Any]) -> bool:
    """See the head of this file."""
    return config.get("model_type") == "dit" and "p_uniform" in config and "timestep_cond_dim" in config


def load_model(directory: Path, config: dict[str, Any], options: ModelOptions) -> LoadedModel:
    """Read configuration, weights and tokenizer."""
    columns, width, condition, blocks, heads = needed(
        config, "vocab_size", "hidden_size", "timestep_cond_dim", "num_hidden_layers", "num_attention_heads"
    )
    share, earliest = config["p_uniform"], config.get("t_eps", 1e-4)
    if not isinstance(share, int | float) or not 0 <= share < 1 or not 0 < earliest < 0.5:
        raise InputError(
            f"{directory}: p_uniform must lie in [0, 1) and t_eps in (0, 1/2), got {share} and {earliest}."
        )
    tokenizer = tokenizer_of(directory)
    shape = NetworkShape(width=width, blocks=blocks, heads=heads, condition=condition)
    check_weights(directory, config)
    noise = None if share == 0 else _noise(Hybrid(columns - 1, share), 1 - earliest)
    with torch.device("meta"):
        network: SEDD = (
            TimedByMasks(columns - 1, shape, told="level", last=1 - earliest)
            if noise is None
            else MeanNetwork(Hybrid(columns - 1, share), shape, TimeInput("time", noise.until))
        )
    fill(network, directory, options, lambda key: None if key.startswith("rotary_emb.") else key)
    return LoadedModel("gidd", network, tokenizer, config.get("max_seq_len"), config.get("max_seq_len"), noise=noise)


def _noise(process: Hybrid, latest: float) -> Noise:
    """Up to the last time that was trained."""
    weight = process.scale * (latest * (1 - latest)) ** 0.5
    return Noise(process, -torch.tensor((1 - latest) / (1 + weight), dtype=torch.float64).log().item())
