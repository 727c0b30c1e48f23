"""Token files: text tokenised once, then read window by window through a memory map, never whole."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from infodis.errors import InputError
from infodis.files import atomic_file, atomic_text
from infodis.models.text_files import PIECE, encoded_pieces
from infodis.models.tokenizers import Tokenizer


@dataclasses.dataclass(frozen=True, eq=False)
class TokenFile:
    """A long row of tokens on disk, of which windows are read."""

    path: Path
    tokens: np.ndarray

    def __len__(self) -> int:
        return len(self.tokens)

    def windows(self, starts: Int[Tensor, " rows"], length: int) -> Int[Tensor, "rows length"]:
        places = starts.numpy()[:, None] + np.arange(length)
        return torch.from_numpy(self.tokens[places].astype(np.int64))

    def spread(self, count: int, length: int) -> Int[Tensor, "rows length"]:
        """Up to `count` windows at fixed places, evenly spread over the file, none overlapping another."""
        whole = len(self) // length
        starts = torch.linspace(0, whole - 1, min(count, whole), dtype=torch.float64).long() * length
        return self.windows(starts, length)

    def random(
        self, count: int, length: int, *, aligned: bool, generator: torch.Generator
    ) -> Int[Tensor, "rows length"]:
        """Windows at random places; `aligned` ones start at multiples of their length."""
        step = length if aligned else 1
        places = (len(self) - length) // step + 1
        return self.windows(torch.randint(places, (count,), generator=generator) * step, length)


def open_tokens(source: Path, tokenizer: Tokenizer, *, cache: Path, length: int, field: str = "text") -> TokenFile:
    """A token file for `source`: text, JSONL (their `field`), either gzipped, or an .npy file of tokens.

    Text is tokenised once, piece by piece, into `cache`, which is used again while source and tokenizer are the same.
    """
    if not source.is_file():
        raise InputError(f"There is no data file {source}.")
    if source.suffix == ".npy":
        try:
            tokens = np.load(source, mmap_mode="r", allow_pickle=False)
        except (ValueError, EOFError) as error:
            raise InputError(f"{source} is not an .npy file of numbers: {error}.") from error
        _check_tokens(source, tokens, tokenizer.vocab_size)
    else:
        tokens = _tokenised(source, tokenizer, cache, field)
    if len(tokens) < length:
        raise InputError(f"{source} holds {len(tokens)} tokens, fewer than one window of {length}.")
    return TokenFile(source, tokens)


def _check_tokens(source: Path, tokens: np.ndarray, vocab_size: int) -> None:
    if tokens.ndim != 1 or not np.issubdtype(tokens.dtype, np.integer):
        raise InputError(f"{source} must hold one row of whole numbers, found {tokens.dtype} of shape {tokens.shape}.")
    for start in range(0, len(tokens), PIECE):
        piece = tokens[start : start + PIECE]
        if int(piece.max()) >= vocab_size or int(piece.min()) < 0:
            raise InputError(
                f"{source} holds token {int(piece.max())} or {int(piece.min())}; the vocabulary is 0..{vocab_size - 1}."
            )


def _tokenised(source: Path, tokenizer: Tokenizer, cache: Path, field: str) -> np.ndarray:
    cache.parent.mkdir(parents=True, exist_ok=True)
    note = cache.with_suffix(".json")
    stat = source.stat()
    dtype = "uint16" if tokenizer.vocab_size <= 2**16 else "uint32"
    about = {
        "source": str(source.resolve()),
        "size": stat.st_size,
        "modified": stat.st_mtime_ns,
        "field": field,
        "dtype": dtype,
        "tokenizer": tokenizer.describe(),
    }
    if not (cache.is_file() and _read_note(note) == {**about, "bytes": cache.stat().st_size}):
        note.unlink(missing_ok=True)
        with atomic_file(cache) as unfinished, unfinished.open("wb") as out:
            for _, tokens in encoded_pieces(source, tokenizer, field):
                out.write(tokens.astype(dtype).tobytes())
        atomic_text(note, json.dumps({**about, "bytes": cache.stat().st_size}))
    if cache.stat().st_size == 0:
        raise InputError(f"{source} holds no text.")
    return np.memmap(cache, dtype=dtype, mode="r")


def _read_note(note: Path) -> Any:
    """What a cache was made of; None if that is unknown, and then it is made again."""
    try:
        return json.loads(note.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
