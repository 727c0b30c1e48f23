"""What a family of models must offer, and what it returns."""

import dataclasses
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from infodis.blocks import BlockLayout
from infodis.errors import InputError
from infodis.models.nets.network import Network
from infodis.models.options import ModelOptions
from infodis.models.tokenizers import Tokenizer
from infodis.noise.design import Noise


@dataclasses.dataclass(frozen=True, eq=False)
class LoadedModel:
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
    blocks: BlockLayout | None = None
    """How it cuts a row into blocks; None if it sees all of a row at once."""
    mask_rates: tuple[float, float] = (0.0, 1.0)
    """Shares of a row or block that were masked in training, where its authors say that others were not."""
    noise: Noise | None = None
    """Of a model of noise, whose network is a `NoiseNetwork`; None of one that predicts masked tokens."""

    def __post_init__(self) -> None:
        longest, last = range(1, 2**63), range(self.network.vocab_size + 1)
        for name, legal in (("length", longest), ("limit", longest), ("pad_token", last), ("begin_token", last)):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value not in legal):
                said = f"{name.replace('_', ' ')} must be a whole number from {legal[0]} to {legal[-1]}"
                raise InputError(f"A model's {said}, got {value!r}.")


@runtime_checkable
class Family(Protocol):
    """A module of this package."""

    @property
    def HONOURS(self) -> tuple[str, ...]:
        """Which of `options.WIRING` it takes. The others are refused before anything is loaded."""
        ...

    def recognises(self, config: dict[str, Any]) -> bool: ...
    def load_model(self, directory: Path, config: dict[str, Any], options: ModelOptions) -> LoadedModel: ...
