"""Configuration and weights in the Hugging Face layout: safetensors, perhaps in shards, by key name."""

from collections.abc import Callable, Iterator
from pathlib import Path, PurePath
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from infodis.errors import InputError
from infodis.files import read_json
from infodis.models.checkpoint import CONFIG as CONFIG
from infodis.models.checkpoint import check_sizes, set_weights, whole
from infodis.models.checkpoint import read_config as read_config
from infodis.models.options import ModelOptions

Weights = dict[str, Tensor]
"""Of a file, by their keys."""

INDEX, SINGLE, PICKLED = "model.safetensors.index.json", "model.safetensors", "pytorch_model.bin"


def shards(directory: Path) -> list[Path]:
    """The weight files of a model, every one of them there."""
    if (directory / INDEX).is_file():
        index = read_json(directory / INDEX)
        named = index.get("weight_map") if isinstance(index, dict) else None
        if not isinstance(named, dict) or not named or not all(isinstance(name, str) for name in named.values()):
            raise InputError(f"{directory / INDEX} is not an index of weights: weight_map must name a file for each.")
        paths = [within(directory, name, said_by=INDEX) for name in sorted(set(named.values()))]
        missing = [path.name for path in paths if not path.is_file()]
        if missing:
            raise InputError(f"{directory} lacks {', '.join(missing)}, which {INDEX} names. Download it again.")
        return paths
    if (directory / SINGLE).is_file():
        return [directory / SINGLE]
    if (directory / PICKLED).is_file():
        return [directory / PICKLED]
    raise InputError(f"{directory} holds no weights: neither {SINGLE} nor {INDEX}.")


def check_weights(directory: Path, config: dict[str, Any]) -> None:
    """All weight files are there, and hold enough for the sizes that the configuration says."""
    check_sizes(config, shards(directory), where=directory / CONFIG)


def tensors(directory: Path, options: ModelOptions) -> Iterator[tuple[Path, Weights]]:
    """The weights, file by file, so that not all are in memory twice."""
    for shard in shards(directory):
        try:
            if shard.suffix == ".bin":
                yield shard, torch.load(shard, map_location=options.device, weights_only=True)
            else:
                with whole(shard):
                    found = load_file(shard, device=str(options.device))
                yield shard, found
        except Exception as error:
            if shard.suffix != ".bin":
                raise
            raise InputError(
                f"{shard} is pickled and holds more than tensors ({type(error).__name__}); it is not loaded, since "
                "unpickling can run any code. Convert it where you trust it: torch.load it, then "
                "safetensors.torch.save_file the state dict as model.safetensors."
            ) from error


def fill(
    network: nn.Module,
    directory: Path,
    options: ModelOptions,
    rename: Callable[[str], str | None] = str,
    prepare: Callable[[Weights], Weights] = dict,
) -> None:
    """Give a network (on the meta device) its weights. `rename` maps a key of the file to a name here, None to skip.

    `prepare` is given the weights of each file before.
    """
    files = ((file, prepare(weights)) for file, weights in tensors(directory, options))
    set_weights(network, files, rename=rename, dtype=options.torch_dtype)
    network.eval().requires_grad_(False)


def within(directory: Path, name: str, *, said_by: str) -> Path:
    """A file of a model, by a name that one of its other files says: it must not lie elsewhere."""
    parts = PurePath(name).parts
    if not parts or PurePath(name).is_absolute() or ".." in parts or not name.isprintable():
        raise InputError(f"{directory / said_by} must name files of its own directory, it names {name!r}.")
    return directory / name


def needed(config: dict[str, Any], *names: str) -> list[Any]:
    """Values of a configuration that must be there."""
    missing = [name for name in names if config.get(name) is None]
    if missing:
        raise InputError(f"The config.json of this {config.get('model_type')} model lacks {', '.join(missing)}.")
    return [config[name] for name in names]
