"""Text to tokens: tokenizers, and token files that are read by memory map, never whole."""

import abc
import contextlib
import dataclasses
import functools
import gzip
import io
import json
import re
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from infodis.errors import InputError
from infodis.files import atomic_file, atomic_text

PIECE = 2**20
"""Characters read at a time."""

ALPHABETS = {"text8": "abcdefghijklmnopqrstuvwxyz ", "dna": "ACGT"}


@dataclasses.dataclass(frozen=True, eq=False)
class Reading:
    """A text as a row of tokens, and which of them are its own: neither prompt nor special tokens."""

    tokens: Int[np.ndarray, " tokens"]
    target: Int[np.ndarray, " target"]


@dataclasses.dataclass(frozen=True)
class Tokenizer(abc.ABC):
    """Text to numbers and back."""

    @property
    @abc.abstractmethod
    def vocab_size(self) -> int:
        """Tokens are 0 .. vocab_size - 1."""

    @abc.abstractmethod
    def encode(self, text: str) -> Int[np.ndarray, " tokens"]:
        """The tokens of a text; `InputError` if it has none for some character."""

    @abc.abstractmethod
    def decode(self, tokens: Sequence[int]) -> str:
        """The text of some tokens."""

    @abc.abstractmethod
    def pieces(self, tokens: Sequence[int]) -> list[str]:
        """What each token looks like, for pictures and tables."""

    def read(self, text: str, *, prompt: str = "", special: bool = True) -> "Reading":
        """A prompt and the text after it as one row, tokenised together, with the special tokens a model expects."""
        tokens = self.encode(prompt + text)
        return Reading(tokens, np.arange(len(self.encode(prompt)) if prompt else 0, len(tokens)))

    def around(self) -> tuple[list[int], list[int]]:
        """The special tokens that `read` puts before and behind a text."""
        found = self.read("a") if self.specials else Reading(np.zeros(0, np.int64), np.zeros(0, np.int64))
        tokens, own = found.tokens.tolist(), found.target
        return (tokens[: int(own[0])], tokens[int(own[-1]) + 1 :]) if len(own) else ([], [])

    @property
    def specials(self) -> bool:
        """Whether there are any special tokens."""
        return True

    @property
    def beyond_text(self) -> frozenset[int]:
        """Tokens that stand for no piece of text: special ones, and the one for whatever is not known."""
        return frozenset()

    @abc.abstractmethod
    def describe(self) -> dict[str, Any]:
        """All there is to know, for config.json; see `tokenizer_from`."""


DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def text8_style(text: str) -> str:
    """A text in the letters of text8: a to z and single spaces, digits spelled out, all else dropped.

    >>> text8_style("In 1969, Apollo 11 landed.")
    'in one nine six nine apollo one one landed'
    """
    spelled = re.sub("[0-9]", lambda digit: f" {DIGITS[int(digit[0])]} ", text.lower())
    return re.sub("[^a-z]+", " ", spelled).strip()


@dataclasses.dataclass(frozen=True)
class Characters(Tokenizer):
    """One token per character of a fixed alphabet.

    >>> Characters("ACGT").encode("GATTACA").tolist()
    [2, 0, 3, 3, 0, 1, 0]
    """

    alphabet: str

    def __post_init__(self) -> None:
        if not self.alphabet or len(set(self.alphabet)) != len(self.alphabet):
            raise InputError(f"An alphabet must hold each character once and not be empty, got {self.alphabet!r}.")

    @property
    def vocab_size(self) -> int:
        return len(self.alphabet)

    def encode(self, text: str) -> Int[np.ndarray, " tokens"]:
        codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
        known, token = self._table
        place = np.searchsorted(known, codes)
        unknown = np.flatnonzero(known[place] != codes)
        if len(unknown):
            at = int(unknown[0])
            raise InputError(
                f"The alphabet is {self.alphabet!r}; the text holds {text[at]!r} at character {at} "
                f"({len(unknown)} such characters). Remove them, or use a tokenizer that knows them."
            )
        return token[place]

    @property
    def specials(self) -> bool:
        return False

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(self.pieces(tokens))

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        return [self.alphabet[token] if token < self.vocab_size else "\N{LIGHT SHADE}" for token in tokens]

    def describe(self) -> dict[str, Any]:
        return {"kind": "characters", "alphabet": self.alphabet}

    @functools.cached_property
    def _table(self) -> tuple[np.ndarray, np.ndarray]:
        """Sorted codes of the alphabet and their tokens; behind them a code beyond all characters, to end searches."""
        codes = np.array([*(ord(character) for character in self.alphabet), 2**32 - 1], dtype=np.uint32)
        order = np.argsort(codes)
        return codes[order], order.astype(np.int64)


@dataclasses.dataclass(frozen=True)
class Subwords(Tokenizer):
    """A Hugging Face `tokenizer.json`, kept as its text. It neither cuts nor pads, whatever the file says."""

    definition: str

    @functools.cached_property
    def vocab_size(self) -> int:
        """One past the largest id: numbers of tokens may have gaps."""
        return max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    def encode(self, text: str) -> Int[np.ndarray, " tokens"]:
        return np.array(self._encoded(text, special=False).ids, dtype=np.int64)

    def _encoded(self, text: str, *, special: bool) -> Any:
        try:
            return self._tokenizer.encode(text, add_special_tokens=special)
        except TypeError as error:  # half of a surrogate pair, as some JSON holds them
            raise InputError(f"The text is not Unicode: {error}.") from error

    def read(self, text: str, *, prompt: str = "", special: bool = True) -> Reading:
        """Tokenised as one text. A token that reaches from the prompt into the text belongs to the text."""
        found = self._encoded(prompt + text, special=special)
        own = [
            place
            for place, ((_, end), added) in enumerate(zip(found.offsets, found.special_tokens_mask, strict=True))
            if not added and end > len(prompt)
        ]
        return Reading(np.array(found.ids, dtype=np.int64), np.array(own, dtype=np.int64))

    def number(self, piece: str) -> int | None:
        """The token of a piece, such as a special token."""
        found = self._tokenizer.token_to_id(piece)
        return None if found is None else int(found)

    @functools.cached_property
    def beyond_text(self) -> frozenset[int]:
        added = self._tokenizer.get_added_tokens_decoder()
        model = json.loads(self.definition)["model"]
        unknown = model.get("unk_id") if model.get("unk_token") is None else self.number(model["unk_token"])
        return frozenset({*(number for number, token in added.items() if token.special), unknown} - {None})

    def decode(self, tokens: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=False))

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        return [self._tokenizer.id_to_token(token) or "\N{LIGHT SHADE}" for token in tokens]

    def describe(self) -> dict[str, Any]:
        return {"kind": "subwords", "definition": self.definition}

    @functools.cached_property
    def _tokenizer(self) -> Any:
        try:
            from tokenizers import Tokenizer as Library
        except ImportError as error:
            raise InputError("A tokenizer.json needs the tokenizers library: pip install 'infodis[train]'.") from error
        try:
            made = Library.from_str(self.definition)
        except Exception as error:  # the library raises nothing more special
            raise InputError(f"This is not a tokenizer.json that the tokenizers library reads: {error}.") from error
        made.no_truncation()
        made.no_padding()
        return made


def tokenizer_named(name: str, *, base: Path = Path()) -> Tokenizer:
    """`text8`, `dna`, `characters:<alphabet>`, or the path of a Hugging Face tokenizer.json."""
    if name in ALPHABETS:
        return Characters(ALPHABETS[name])
    if name.startswith("characters:"):
        return Characters(name.removeprefix("characters:"))
    path = base / name
    if not path.is_file():
        raise InputError(
            f"A tokenizer is {', '.join(ALPHABETS)}, characters:<alphabet> or the path of a tokenizer.json; "
            f"got {name!r}, and there is no file {path}."
        )
    try:
        made = Subwords(path.read_text(encoding="utf-8"))
        made.vocab_size  # noqa: B018 - a bad file is told here, where its name is known
    except (InputError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: {error}") from error
    return made


def tokenizer_from(description: dict[str, Any]) -> Tokenizer:
    """The inverse of `Tokenizer.describe`."""
    kinds = {"characters": ("alphabet", Characters), "subwords": ("definition", Subwords)}
    kind = description.get("kind") if isinstance(description, dict) else description
    if not isinstance(kind, str) or kind not in kinds:
        raise InputError(f"A tokenizer is of kind {' or '.join(kinds)}, got {kind!r}.")
    field, make = kinds[kind]
    if not isinstance(description.get(field), str):
        raise InputError(f"A tokenizer of kind {kind} needs its {field}, a text.")
    return make(description[field])


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
    """What a cache was made of; None if that cannot be told, and then it is made again."""
    try:
        return json.loads(note.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


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
    """A text file, plain or gzip. What goes wrong while it is read is told as a mistake in the file."""
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
