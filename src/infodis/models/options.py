"""How a model is loaded: one value that the command line builds and jobs and integrations carry to `load_with`."""

import dataclasses
from typing import TYPE_CHECKING, Any

from infodis.errors import InputError
from infodis.models.tokenizers import Tokenizer, as_tokenizer
from infodis.settings import option

if TYPE_CHECKING:
    import torch

    from infodis.blocks import BlockLayout

DTYPES = ("float32", "bfloat16", "float16")
ORIGINS = ("global", "response")
"""As `infodis.blocks` has them, which loads torch."""
WIRING = ("block_size", "block_origin", "mask_token", "causal")
"""Options that say what a model is where its files do not: each is for some families only."""


@dataclasses.dataclass(frozen=True)
class ModelOptions:
    """Every option of `load`. To add one, add a field here and read it where it matters."""

    tokenizer: Any = option(
        None, "For models that come without one: text8, dna, characters:<alphabet>, or a tokenizer.json.", kind=str
    )
    device: str = option("auto", "auto (a GPU if there is one), cpu, cuda, mps, ...")
    dtype: str = option("float32", "What the network computes in: float32, bfloat16 or float16.")
    autocast: bool = option(False, "Compute in bfloat16 where torch thinks it safe.")
    compile: bool = option(False, "Run the network through torch.compile.")
    batch_tokens: int | None = option(None, "Tokens of a batch, padding included. On a GPU found by a probe.", min=1)
    trust_remote_code: bool = option(False, "Run code that comes with the model.")
    block_size: int | None = option(
        None, "Tokens of a block, where a model's configuration does not say it; 0 if it sees a row at once.", min=0
    )
    block_origin: str | None = option(
        None, "Blocks are counted from: global, a row's first token (default), or response, the first scored one."
    )
    mask_token: int | None = option(
        None, "The number of the mask token, for models whose files do not say it or say a wrong one.", min=0
    )
    causal: bool = option(False, "Load an autoregressive model whose configuration does not say that it is one.")
    allow_unknown: bool = option(False, "Score texts of which more than a tenth is unknown to the tokenizer.")

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise InputError(f"dtype is one of {', '.join(DTYPES)}; got {self.dtype!r}.")
        if self.batch_tokens is not None and self.batch_tokens < 1:
            raise InputError(f"batch_tokens must be at least 1, got {self.batch_tokens}.")
        self._check_wiring()

    def _check_wiring(self) -> None:
        for name, least in (("block_size", 0), ("mask_token", 0)):
            number = getattr(self, name)
            if number is not None and (type(number) is not int or number < least):
                raise InputError(f"{name} must be a whole number and at least {least}, got {number!r}.")
        if self.block_origin not in (None, *ORIGINS):
            raise InputError(f"block_origin is one of {', '.join(ORIGINS)}; got {self.block_origin!r}.")
        if self.block_size == 0 and self.block_origin is not None:
            raise InputError(
                f"A model that sees a row at once (block_size 0) has no blocks to count, got block_origin "
                f"{self.block_origin!r}. Leave one of them out."
            )
        if type(self.causal) is not bool:
            raise InputError(f"causal is True or False, got {self.causal!r}.")
        beside = [name for name in WIRING if name != "causal" and getattr(self, name) is not None]
        if self.causal and beside:
            raise InputError(
                f"An autoregressive model (causal) has blocks of one token and no mask, got {beside[0]} too. Leave one "
                "of them out."
            )

    @property
    def torch_dtype(self) -> "torch.dtype":
        import torch

        return getattr(torch, self.dtype)

    @property
    def wiring(self) -> dict[str, Any]:
        """The options in `WIRING` that were given."""
        return {name: value for name in WIRING if (value := getattr(self, name)) is not None and value is not False}

    def block_layout(self, said: int | None = None) -> "BlockLayout":
        """The blocks of a model of blocks whose configuration says this size; what the user says comes first."""
        size = said if self.block_size is None else self.block_size
        if size == 0:
            raise InputError(
                "This model makes text block by block, got block_size 0, which is for models that see a row at once. "
                "Give the size that it was trained with."
            )
        if size is None:
            raise InputError(
                "This model makes text block by block, and its configuration does not say how long a block is. Give "
                "block_size=... (--block-size ...): its authors say which one it was trained with, often 4, 8, 16 or "
                "32."
            )
        from infodis.blocks import BlockLayout  # with torch, which the command line loads when it is needed

        return BlockLayout(size, self.block_origin or "global")

    @property
    def named_tokenizer(self) -> Tokenizer | None:
        """The tokenizer that was asked for, read if it was given by its name."""
        return None if self.tokenizer is None else as_tokenizer(self.tokenizer)
