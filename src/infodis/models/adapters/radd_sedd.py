"""RADD and SEDD: recognised by our own `format`, or by `tokens` and a `model` table, as public ones are."""

from pathlib import Path
from typing import Any, cast

from infodis.errors import InputError
from infodis.models import checkpoint
from infodis.models.adapters.family import LoadedModel
from infodis.models.checkpoint import read_config
from infodis.models.nets.network import Network
from infodis.models.options import ModelOptions


def recognises(config: dict[str, Any]) -> bool:
    """See the head of this file."""
    return config.get("format") == checkpoint.FORMAT or ("tokens" in config and isinstance(config.get("model"), dict))


def load_model(directory: Path, config: dict[str, Any], options: ModelOptions) -> LoadedModel:
    """Read configuration, weights and tokenizer."""
    network, spec = checkpoint.load(directory)
    if spec.noise == "uniform":
        raise InputError(
            f"{directory} is a score network for uniform noise: without a mask it has no such conditionals. "
            "infodis.models.checkpoint.load gives the network, infodis.sampling.sample_uniform draws from it."
        )
    network.to(options.device, options.torch_dtype).requires_grad_(False)
    return LoadedModel(spec.network, cast(Network, network), spec.tokenizer, spec.length, spec.shape.positions or None)


def is_uniform(directory: Path) -> bool:
    """Whether a directory holds a score network for uniform noise: no conditionals, but it can be sampled from."""
    return recognises(read_config(directory)) and checkpoint.read_spec(directory).noise == "uniform"
