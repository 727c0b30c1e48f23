"""How a model is loaded: one value that the command line builds and jobs and integrations carry to `load_with`."""

import dataclasses
from typing import TYPE_CHECKING, Any

from infodis.errors import InputError
from infodis.models.tokenizers import Tokenizer, as_tokenizer
from infodis.settings import option

if TYPE_CHECKING:
    import torch

DTYPES = ("float32", "bfloat16", "float16")


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

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise InputError(f"dtype is one of {', '.join(DTYPES)}; got {self.dtype!r}.")
        if self.batch_tokens is not None and self.batch_tokens < 1:
            raise InputError(f"batch_tokens must be at least 1, got {self.batch_tokens}.")

    @property
    def torch_dtype(self) -> "torch.dtype":
        import torch

        return getattr(torch, self.dtype)

    @property
    def named_tokenizer(self) -> Tokenizer | None:
        """The tokenizer that was asked for, read if it was given by its name."""
        return None if self.tokenizer is None else as_tokenizer(self.tokenizer)
