"""Models that are ready to score: a network on its device with its tokenizer, found by `infodis.load`."""

import dataclasses
import hashlib
import json
from importlib import resources
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

from infodis import checkpoint
from infodis.checkpoint import Spec
from infodis.data import Tokenizer
from infodis.errors import InputError
from infodis.nets import RADD
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


def load(spec: str | Path, *, device: str = "cpu") -> Model:
    """A model by name: one that ships with infodis, or a directory (a checkpoint, or a training run: its best one)."""
    directory = locate(spec)
    network, found = checkpoint.load(directory)
    if not isinstance(network, RADD):
        raise InputError(
            f"{directory} is a score network (SEDD): it gives scores at a noise level, not conditionals. "
            "Load it with infodis.checkpoint.load."
        )
    place = torch.device(device)
    return Model(
        name=str(spec),
        network=network.to(place),
        spec=found,
        device=place,
        vocab_size=network.vocab_size,
        mask_token=network.mask_token,
        fingerprint=fingerprint(directory),
    )


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
        named = json.loads((path / POINTER).read_text(encoding="utf-8"))
        return path / (named.get("best") or named["last"])
    return path


def fingerprint(directory: Path) -> str:
    """A hash of config and weights: equal for equal models, wherever they lie."""
    digest = hashlib.blake2b(digest_size=16)
    for name in (checkpoint.CONFIG, checkpoint.WEIGHTS):
        with (directory / name).open("rb") as file:
            while piece := file.read(2**20):
                digest.update(piece)
    return digest.hexdigest()
