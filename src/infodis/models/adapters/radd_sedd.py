"""RADD and SEDD: recognised by our own `format`, or by `tokens` and a `model` table, as public ones are.

SEDD of uniform noise is a model of noise: it has scores, and no conditionals of masked tokens.
"""

from pathlib import Path
from typing import Any, cast

import torch

from infodis.errors import InputError
from infodis.models import checkpoint
from infodis.models.adapters.family import LoadedModel
from infodis.models.checkpoint import read_config
from infodis.models.nets.network import Network
from infodis.models.options import ModelOptions
from infodis.noise.design import Noise
from infodis.noise.process import Uniform
from infodis.noise.schedule import Geometric, LogLinear, Schedule

HONOURS = ("block_origin",)


def recognises(config: dict[str, Any]) -> bool:
    """See the head of this file."""
    return config.get("format") == checkpoint.FORMAT or ("tokens" in config and isinstance(config.get("model"), dict))


def load_model(directory: Path, config: dict[str, Any], options: ModelOptions) -> LoadedModel:
    """Read configuration, weights and tokenizer."""
    network, spec = checkpoint.load(directory)
    size = spec.shape.block_size
    if options.block_origin is not None and size < 2:
        raise InputError(
            f"block_origin must be an option that the model can honour, got {options.block_origin!r} with {directory}, "
            "which has no blocks of several tokens. Leave it out."
        )
    network.to(options.device, options.torch_dtype).requires_grad_(False)
    return LoadedModel(
        spec.network,
        cast(Network, network),
        spec.tokenizer,
        spec.length,
        spec.shape.positions or None,
        blocks=options.block_layout(size) if size else None,
        noise=Noise(Uniform(spec.vocab_size), _last_noise(config)) if spec.noise == "uniform" else None,
    )


def _last_noise(config: dict[str, Any]) -> float:
    """The most noise that a score network has seen. Public configurations name their schedule; ours is log-linear."""
    told = config.get("noise")
    schedule: Schedule = LogLinear()
    if isinstance(told, dict) and told.get("type") == "geometric":
        schedule = Geometric(told.get("sigma_min", Geometric().low), told.get("sigma_max", Geometric().high))
    return float(schedule.total(torch.tensor(1.0, dtype=torch.float64)))


def is_uniform(directory: Path) -> bool:
    """Whether a directory holds a score network for uniform noise: no conditionals, but it can be sampled from."""
    return recognises(read_config(directory)) and checkpoint.read_spec(directory).noise == "uniform"
