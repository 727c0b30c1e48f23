"""Models that are ready to score: a network on its device with its tokenizer, found by `infodis.load`."""

import dataclasses
import hashlib
import json
from importlib import resources
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from infodis import checkpoint
from infodis.checkpoint import Spec
from infodis.data import Tokenizer
from infodis.errors import InputError
from infodis.predictor import LogConditionals, Masks, Predictor, Surprisals, Tokens

POINTER = "checkpoints.json"
"""In the directory of a training run: which of its checkpoints is the last and which the best."""


@dataclasses.dataclass(frozen=True, eq=False)
class Model(Predictor):
    """A predictor with a name, a tokenizer and a fingerprint of its weights."""

    name: str
    network: nn.Module
    spec: Spec
    device: torch.device
    vocab_size: int
    mask_token: int
    fingerprint: str

    @property
    def tokenizer(self) -> Tokenizer:
        if self.spec.tokenizer is None:
            raise InputError(f"{self.name} has no tokenizer. Give tokens instead of text.")
        return self.spec.tokenizer

    def encode(self, text: str) -> Tensor:
        """The tokens of a text, ready for `nll`."""
        return torch.from_numpy(self.tokenizer.encode(text))

    def decode(self, tokens: Tensor) -> str:
        return self.tokenizer.decode(tokens.tolist())

    @torch.no_grad()
    def log_conditionals(self, tokens: Tokens) -> LogConditionals:
        return self._predictor.log_conditionals(tokens.to(self.device))

    @torch.no_grad()
    def surprisal(self, tokens: Tokens, masked: Masks) -> Surprisals:
        return self._predictor.surprisal(tokens.to(self.device), masked.to(self.device))

    @property
    def _predictor(self) -> Predictor:
        """The network as what it also is: a module that answers like a predictor."""
        return cast(Predictor, self.network)


def load(spec: str | Path, *, device: str = "cpu", tokenizer: Tokenizer | None = None) -> Model:
    """A model by name: one that ships with infodis, or a directory (a checkpoint, or a training run: its best one).

    `tokenizer` is for checkpoints that come without one. A score network (SEDD) under absorbing noise is a predictor
    too: its scores, normalised, are conditionals.
    """
    directory, place = locate(spec), device_named(device)
    network, found = checkpoint.load(directory)
    if found.noise == "uniform":
        raise InputError(
            f"{directory} is a score network for uniform noise: without a mask it has no such conditionals. "
            "infodis.checkpoint.load gives the network, infodis.sampling.sample_uniform draws from it."
        )
    if tokenizer is not None:
        found = with_tokenizer(found, tokenizer, where=directory)
    return Model(
        name=str(spec),
        network=network.to(place),
        spec=found,
        device=place,
        vocab_size=found.vocab_size,
        mask_token=found.vocab_size,
        fingerprint=fingerprint(directory),
    )


def with_tokenizer(spec: Spec, tokenizer: Tokenizer, *, where: Path) -> Spec:
    """The spec of a checkpoint that came without a tokenizer, with the one that the user names."""
    if spec.tokenizer not in (None, tokenizer):
        raise InputError(f"{where} has a tokenizer of its own. Leave the other one out.")
    if tokenizer.vocab_size > spec.vocab_size:
        raise InputError(
            f"The tokenizer knows {tokenizer.vocab_size} tokens, {where} only {spec.vocab_size}. Name the right one."
        )
    return dataclasses.replace(spec, tokenizer=tokenizer)


def device_named(name: str) -> torch.device:
    """A device that is there; `auto` is a GPU if there is one."""
    chosen = ("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name
    try:
        device = torch.device(chosen)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"The device {name!r} cannot be used: {reason} Try auto or cpu.") from error
    return device


def shipped() -> list[str]:
    """Names of the models inside the package."""
    return sorted(path.parent.name for path in _shelf().glob(f"*/{checkpoint.CONFIG}"))


def _shelf() -> Path:
    return Path(str(resources.files("infodis") / "models"))


def locate(spec: str | Path) -> Path:
    """The directory that a name stands for: see `load`."""
    if str(spec) in shipped():
        return _shelf() / str(spec)
    path = Path(spec)
    if not path.is_dir():
        raise InputError(
            f"There is no model {str(spec)!r}. It must be the name of one that ships with infodis "
            f"({', '.join(shipped()) or 'none yet'}) or a directory: a checkpoint or a training run."
        )
    if (path / POINTER).is_file():
        return path / read_pointer(path)["best"]
    return path


def read_pointer(run: Path) -> dict[str, Any]:
    """What a training run says about its checkpoints."""
    try:
        found = json.loads((run / POINTER).read_text(encoding="utf-8"))
        missing = [key for key in ("last", "best", "step", "best_step") if key not in found]
    except (ValueError, TypeError) as error:
        raise InputError(f"{run / POINTER} is not what a training run writes: {error}.") from error
    if missing:
        raise InputError(f"{run / POINTER} is not what a training run writes: it lacks {', '.join(missing)}.")
    return found


def fingerprint(directory: Path) -> str:
    """A hash of config and weights: equal for equal models, wherever they lie."""
    digest = hashlib.blake2b(digest_size=16)
    for name in (checkpoint.CONFIG, checkpoint.WEIGHTS):
        with (directory / name).open("rb") as file:
            while piece := file.read(2**20):
                digest.update(piece)
    return digest.hexdigest()
