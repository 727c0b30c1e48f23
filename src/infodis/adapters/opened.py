"""What an adapter is asked for, and what it gives."""

import dataclasses
from pathlib import Path
from typing import Any, Protocol

import torch

from infodis.data import Tokenizer
from infodis.nets.network import Network


@dataclasses.dataclass(frozen=True)
class Options:
    """How a model is wanted."""

    device: torch.device
    dtype: torch.dtype = torch.float32
    trust_remote_code: bool = False


@dataclasses.dataclass(frozen=True, eq=False)
class Opened:
    """A network, and what its directory says about it."""

    family: str
    network: Network
    tokenizer: Tokenizer | None
    length: int | None
    """Tokens in a row as it was trained: what long texts are cut into."""
    limit: int | None
    """The longest row that it takes; None if any."""
    pad_token: int = 0
    """What to put where nothing is."""
    begin_token: int | None = None
    """What stands before a text where the network says nothing about the first token."""
    notes: tuple[str, ...] = ()
    """What a user should know."""


class Family(Protocol):
    """A module of this package."""

    def recognises(self, config: dict[str, Any]) -> bool: ...
    def open_model(self, directory: Path, config: dict[str, Any], options: Options) -> Opened: ...
