"""Networks on disk: a directory with `config.json` and `model.safetensors`.

Two layouts are read: our own, and that of the public RADD and SEDD checkpoints on the Hugging Face hub.
"""

import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from infodis.errors import InputError
from infodis.files import read_json
from infodis.models.nets import RADD, SEDD, NetworkShape
from infodis.models.nets.transformer import check_wholes
from infodis.models.tokenizers import Tokenizer, tokenizer_from

FORMAT = "infodis-1"
CONFIG, WEIGHTS = "config.json", "model.safetensors"
COMPUTED = "rotary_emb.inv_freq"
"""What public checkpoints carry and our networks compute."""


@dataclasses.dataclass(frozen=True)
class Spec:
    """What a network is, apart from its weights."""

    network: Literal["radd", "sedd"]
    vocab_size: int
    shape: NetworkShape
    length: int
    """Tokens it was trained on at a time."""
    noise: Literal["absorbing", "uniform"] = "absorbing"
    scaled: bool = True
    tokenizer: Tokenizer | None = None
    about: dict[str, Any] = dataclasses.field(default_factory=dict)
    """How it came to be: steps, seed, validation, versions."""

    def __post_init__(self) -> None:
        check_wholes(self, "vocab_size", "length")
        if min(self.vocab_size, self.length) < 1 or not isinstance(self.about, dict):
            raise InputError(f"A network needs a vocabulary, a length and a table `about` it, got {self}.")

    def build(self) -> nn.Module:
        """The network, its weights not yet set."""
        if self.network == "radd":
            return RADD(self.vocab_size, self.shape)
        return SEDD(self.vocab_size, self.shape, noise=self.noise, scaled=self.scaled)

    def to_json(self) -> dict[str, Any]:
        described = None if self.tokenizer is None else self.tokenizer.describe()
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {"format": FORMAT, **fields, "shape": dataclasses.asdict(self.shape), "tokenizer": described}

    @staticmethod
    def from_json(config: Any, *, where: Path) -> "Spec":
        keys = config if isinstance(config, dict) else {}
        try:
            if keys.get("format") == FORMAT:
                for name, legal in (("network", ("radd", "sedd")), ("noise", ("absorbing", "uniform"))):
                    if keys[name] not in legal:
                        raise InputError(f"{name} is one of {', '.join(legal)}; got {keys[name]!r}.")
                fields = {key: value for key, value in keys.items() if key != "format"}
                fields["shape"] = NetworkShape(**fields["shape"])
                fields["tokenizer"] = None if fields["tokenizer"] is None else tokenizer_from(fields["tokenizer"])
                return Spec(**fields)
            if "tokens" in keys and isinstance(keys.get("model"), dict):
                return _public_spec(keys)
        except InputError as error:
            raise InputError(f"{where}: {error}") from error
        except (KeyError, TypeError, AttributeError) as error:
            raise InputError(f"{where} lacks a key, has one too many, or one of another type: {error}.") from error
        raise InputError(
            f"{where} is neither an infodis checkpoint (format {FORMAT!r}) nor a public RADD or SEDD one "
            f"(with tokens and model.hidden_size); its keys are {', '.join(sorted(keys)) or 'none'}."
        )


def _public_spec(config: dict[str, Any]) -> Spec:
    """The configuration that ships with the public checkpoints: RADD's blocks are of type `ddit_wot`, without time."""
    model = config["model"]
    return Spec(
        network="radd" if "wot" in model.get("type", "") or "radd" in model.get("name", "") else "sedd",
        vocab_size=config["tokens"],
        shape=NetworkShape(
            width=model["hidden_size"],
            blocks=model["n_blocks"],
            heads=model["n_heads"],
            dropout=model.get("dropout", 0.0),
            condition=model.get("cond_dim", 128),
        ),
        length=model.get("length", 1024),
        noise="uniform" if config.get("graph", {}).get("type") == "uniform" else "absorbing",
        scaled=bool(model.get("scale_by_sigma", False)),
    )


def save(directory: Path, spec: Spec, weights: dict[str, Tensor]) -> None:
    """Write config and weights into an existing directory."""
    (directory / CONFIG).write_text(json.dumps(spec.to_json(), indent=2) + "\n", encoding="utf-8")
    save_file({name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}, directory / WEIGHTS)


def read_config(directory: Path) -> dict[str, Any]:
    """The configuration of a model."""
    path = directory / CONFIG
    if not path.is_file():
        raise InputError(f"{directory} is not a model: it has no {CONFIG}. A model must have one beside its weights.")
    found = read_json(path)
    if not isinstance(found, dict):
        raise InputError(f"{path} must hold an object, found {type(found).__name__}.")
    return found


def read_spec(directory: Path) -> Spec:
    """The spec of a checkpoint, without its weights."""
    return Spec.from_json(read_config(directory), where=directory / CONFIG)


def load(directory: Path) -> tuple[nn.Module, Spec]:
    """The network of a checkpoint, in float32 on the CPU, and its spec."""
    config = read_config(directory)
    spec = Spec.from_json(config, where=directory / CONFIG)
    check_sizes(config, [directory / WEIGHTS], where=directory / CONFIG)
    with torch.device("meta"):  # nothing takes memory before the weights are known to fit
        network = spec.build()
    set_weights(network, [(directory / WEIGHTS, read_weights(directory / WEIGHTS))])
    return network.eval(), spec


LAYERS = ("layers", "blocks", "n_layer", "depth")
SIZES = ("vocab", "hidden", "width", "dim", "d_model", "size", "heads", "position", "tokens", "labels")
"""What sizes are called in configurations: parts of their keys."""

FEW_LAYERS = 100
"""Always believed: networks may share weights among layers."""


def check_sizes(config: dict[str, Any], files: Sequence[Path], *, where: Path) -> None:
    """Refuse sizes that the weights cannot have before a network is made of them: that takes hours, or all memory.

    Every layer has a tensor of its own, or is one of few; and a size is at most the number of bytes.
    """
    there = [path for path in files if path.is_file()]
    tensors, size = sum(map(_tensors, there)), sum(path.stat().st_size for path in there)
    most = {LAYERS: max(FEW_LAYERS, tensors), SIZES: size}
    for key, value in _numbers(config):
        for names, limit in most.items():
            if there and value > limit and any(name in key.lower() for name in names):
                held = f"{tensors:,} tensors" if names == LAYERS else f"{size:,} bytes"
                raise InputError(f"{where} says {key} = {value:.6g}, too much for weights of {held}.")


def _numbers(config: dict[str, Any]) -> Iterator[tuple[str, float]]:
    for key, value in config.items():
        if isinstance(value, dict):
            yield from _numbers(value)
        elif isinstance(value, int | float):
            yield str(key), value


def _tensors(path: Path) -> int:
    """How many tensors a file holds, at most."""
    if path.suffix != ".safetensors":
        return path.stat().st_size // 2**10  # what pickles take for a tensor and its place in the archive
    with whole(path), safe_open(path, framework="pt") as file:
        return len(file.keys())


def read_weights(path: Path) -> dict[str, Tensor]:
    """Tensors of a safetensors file."""
    if not path.is_file():
        raise InputError(f"There are no weights {path}.")
    with whole(path):
        return load_file(path)


@contextlib.contextmanager
def whole(path: Path) -> Iterator[None]:
    """Tells what is wrong with a safetensors file as a mistake in it."""
    try:
        yield
    except SafetensorError as error:
        raise InputError(f"{path} cannot be read ({error}). It may be cut off: copy or download it again.") from error


def set_weights(
    network: nn.Module,
    files: Iterable[tuple[Path, dict[str, Tensor]]],
    *,
    rename: Callable[[str], str | None] = str,
    dtype: torch.dtype = torch.float32,
    assign: bool = True,
) -> None:
    """Give a network its weights, file by file: all must be there, have their shape, and be finite.

    `rename` maps a key of a file to a name here, None to skip it. `assign` takes tensors as they are, on their device.
    """
    expected, missing = network.state_dict(), set(network.state_dict())
    for file, weights in files:
        names = {key: name for key in weights if not key.endswith(COMPUTED) and (name := rename(key)) is not None}
        wrong = [f"{key} {fault}" for key, name in names.items() if (fault := _fault(weights[key], expected.get(name)))]
        if wrong:
            raise InputError(f"{file} does not fit the network: {'; '.join(wrong[:5])} ({len(wrong)} differences).")
        part = {name: weights[key].to(dtype) for key, name in names.items()}
        network.load_state_dict(part, strict=False, assign=assign)
        missing -= set(part)
    if missing:
        first = ", ".join([name for name in expected if name in missing][:5])
        raise InputError(f"{file.parent} lacks weights: {first} ({len(missing)} in all).")


def _fault(tensor: Tensor, expected: Tensor | None) -> str:
    """Why a tensor cannot be this weight of a network; empty if it can."""
    if expected is None:
        return "is not part of the network"
    if tensor.shape != expected.shape:
        return f"has shape {tuple(tensor.shape)}, expected {tuple(expected.shape)}"
    return "" if bool(tensor.isfinite().all()) else "holds NaN or inf"
