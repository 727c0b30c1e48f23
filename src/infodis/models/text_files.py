"""Text files, plain or gzip, read and tokenised piece by piece."""

import contextlib
import gzip
import io
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from jaxtyping import Int

from infodis.errors import InputError
from infodis.models.tokenizers import Characters, Tokenizer

PIECE = 2**20
"""Characters read at a time."""


def encode_file(source: Path, tokenizer: Tokenizer, field: str = "text") -> Int[np.ndarray, " tokens"]:
    """All tokens of a file of text or JSONL, in memory."""
    if not source.is_file():
        raise InputError(f"There is no file {source}.")
    found = [tokens for _, tokens in encoded_pieces(source, tokenizer, field)]
    return np.concatenate(found) if found else np.zeros(0, dtype=np.int64)


def encoded_pieces(source: Path, tokenizer: Tokenizer, field: str = "text") -> Iterator[tuple[str, np.ndarray]]:
    """The texts of a file, piece by piece, and their tokens."""
    found = texts(source, field)
    if isinstance(tokenizer, Characters) and "\n" not in tokenizer.alphabet:
        found = _unlined(found, " " if " " in tokenizer.alphabet else "")
    for where, text in found:
        try:
            yield text, tokenizer.encode(text)
        except InputError as error:
            raise InputError(f"{where}: {error}") from error


def _unlined(found: Iterator[tuple[str, str]], between: str) -> Iterator[tuple[str, str]]:
    """Texts for an alphabet without a line end: line ends between words become `between`, those at the end go."""
    waiting = ""
    for where, text in found:
        whole = waiting + text
        kept = whole.rstrip("\n")
        waiting = whole[len(kept) :]
        yield where, re.sub("\n+", between, kept)


def texts(source: Path, field: str = "text") -> Iterator[tuple[str, str]]:
    """Where they are and what they are: the texts of a file.

    JSONL rows come one by one, each with a line end; plain text comes in pieces that end at a line or a word.
    """
    with opened_text(source) as file:
        if source.name.removesuffix(".gz").endswith((".jsonl", ".json")):
            yield from _json_texts(source, file, field)
        else:
            yield from _pieces(source, file)


@contextlib.contextmanager
def opened_text(source: Path) -> Iterator[io.TextIOBase]:
    """A text file, plain or gzip. Errors while it is read name the file."""
    if not source.is_file():
        raise InputError(f"There is no file {source}.")
    try:
        with io.TextIOWrapper(gzip.open(source) if source.suffix == ".gz" else source.open("rb"), "utf-8") as file:
            yield file
    except UnicodeDecodeError as error:
        raise InputError(f"{source} is not UTF-8 text: {error}.") from error
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise InputError(f"{source} is not a whole gzip file: {error}.") from error


def _json_texts(source: Path, file: io.TextIOBase, field: str) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(file, start=1):
        if not line.strip():
            continue
        where = f"{source}, line {number}"
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise InputError(f"{where}: not JSON ({error}).") from error
        if not isinstance(row, dict) or not isinstance(row.get(field), str):
            raise InputError(f"{where}: expected an object with a text field {field!r}.")
        yield where, row[field] + "\n"


def _pieces(source: Path, file: io.TextIOBase) -> Iterator[tuple[str, str]]:
    kept, start = "", 0
    while piece := file.read(PIECE):
        text = kept + piece
        cut = max(text.rfind("\n"), text.rfind(" ")) + 1 or len(text)
        kept = text[cut:]
        yield f"{source}, after {start:,} characters", text[:cut]
        start += cut
    if kept:
        yield f"{source}, after {start:,} characters", kept
