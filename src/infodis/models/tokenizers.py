"""Tokenizers: text to numbers and back."""

import abc
import dataclasses
import functools
import hashlib
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from infodis.errors import InputError

ALPHABETS = {"text8": "abcdefghijklmnopqrstuvwxyz ", "dna": "ACGT"}


@dataclasses.dataclass(frozen=True, eq=False)
class Encoding:
    """A text as a row of tokens, and which of them are its own: neither prompt nor special tokens."""

    tokens: Int[np.ndarray, " tokens"]
    target: Int[np.ndarray, " target"]
    words: Int[np.ndarray, " target"] | None = None
    """For every token of its own the number of the word that it is a piece of; None if that is not known."""


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

    def read(self, text: str, *, prompt: str = "", special: bool = True) -> Encoding:
        """A prompt and the text after it as one row, tokenised together, with the special tokens a model expects."""
        tokens = self.encode(prompt + text)
        return Encoding(tokens, np.arange(len(self.encode(prompt)) if prompt else 0, len(tokens)))

    def around(self) -> tuple[list[int], list[int]]:
        """The special tokens that `read` puts before and behind a text."""
        found = self.read("a") if self.specials else Encoding(np.zeros(0, np.int64), np.zeros(0, np.int64))
        tokens, own = found.tokens.tolist(), found.target
        return (tokens[: int(own[0])], tokens[int(own[-1]) + 1 :]) if len(own) else ([], [])

    @property
    def specials(self) -> bool:
        """Whether there are any special tokens."""
        return True

    @property
    def unknown_token(self) -> int | None:
        """The token that stands for whatever is not known; None if all is, or what is not is refused."""
        return None

    @property
    def beyond_text(self) -> frozenset[int]:
        """Tokens that stand for no piece of text: special ones, and the one for whatever is not known."""
        return frozenset()

    @abc.abstractmethod
    def describe(self) -> dict[str, Any]:
        """All there is to know, for config.json; see `tokenizer_from`."""


def _word_numbers(of_all: Sequence[int | None], own: Sequence[int]) -> Int[np.ndarray, " target"] | None:
    """The word of every token of a text's own, where all of them have one."""
    numbers = [of_all[place] for place in own]
    return None if None in numbers else np.array(numbers, dtype=np.int64)


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

    def read(self, text: str, *, prompt: str = "", special: bool = True) -> Encoding:
        """A word is what stands between spaces; a space is a word of its own."""
        found = super().read(text, prompt=prompt)
        space = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32) == ord(" ")
        return dataclasses.replace(found, words=np.cumsum(space | np.roll(space, 1)))

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

    def read(self, text: str, *, prompt: str = "", special: bool = True) -> Encoding:
        """Tokenised as one text. A token that reaches from the prompt into the text belongs to the text."""
        found = self._encoded(prompt + text, special=special)
        own = [
            place
            for place, ((_, end), added) in enumerate(zip(found.offsets, found.special_tokens_mask, strict=True))
            if not added and end > len(prompt)
        ]
        words = None if self._tokenizer.pre_tokenizer is None else _word_numbers(found.word_ids, own)
        return Encoding(np.array(found.ids, dtype=np.int64), np.array(own, dtype=np.int64), words)

    def number(self, piece: str) -> int | None:
        """The token of a piece, such as a special token."""
        found = self._tokenizer.token_to_id(piece)
        return None if found is None else int(found)

    @functools.cached_property
    def unknown_token(self) -> int | None:
        model = json.loads(self.definition)["model"]
        return model.get("unk_id") if model.get("unk_token") is None else self.number(model["unk_token"])

    @functools.cached_property
    def beyond_text(self) -> frozenset[int]:
        added = self._tokenizer.get_added_tokens_decoder()
        special = (number for number, token in added.items() if token.special)
        return frozenset({*special, self.unknown_token} - {None})

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


@dataclasses.dataclass(frozen=True)
class LibraryTokenizer(Tokenizer):
    """A tokenizer of transformers."""

    @property
    @abc.abstractmethod
    def library(self) -> Any:
        """The tokenizer itself."""

    @functools.cached_property
    def vocab_size(self) -> int:
        return max(self.library.get_vocab().values(), default=-1) + 1

    def number(self, piece: str) -> int | None:
        """The token of a piece, such as a special token."""
        return self.library.get_vocab().get(piece)

    @property
    def mask_token(self) -> int | None:
        return self.library.mask_token_id

    @functools.cached_property
    def unknown_token(self) -> int | None:
        """Some name the end of a text, which is no sign of the unknown."""
        found = self.library.unk_token_id
        return None if found == self.library.eos_token_id else found

    @functools.cached_property
    def beyond_text(self) -> frozenset[int]:
        return frozenset(self.library.all_special_ids)

    def agrees_with(self, listed: dict[str, int]) -> bool:
        """Whether it numbers tokens as they are listed. (A type that expects other files may start an empty one.)"""
        mine = self.library.get_vocab()
        return all(mine.get(piece) == number for piece, number in listed.items())

    def encode(self, text: str) -> Int[np.ndarray, " tokens"]:
        return np.array(self.library.encode(text, add_special_tokens=False), dtype=np.int64)

    def read(self, text: str, *, prompt: str = "", special: bool = True) -> Encoding:
        """Without offsets: the prompt is what its own tokens are, as far as the row begins with them."""
        found = self.library(prompt + text, add_special_tokens=special, return_special_tokens_mask=True)
        row = np.array(found["input_ids"], dtype=np.int64)
        own = np.flatnonzero(np.array(found["special_tokens_mask"], dtype=np.int64) == 0)
        alone = self.encode(prompt) if prompt else np.zeros(0, dtype=np.int64)
        same = 0
        while same < min(len(alone), len(own)) and row[own[same]] == alone[same]:
            same += 1
        own = own[same:]
        return Encoding(row, own, _word_numbers(found.word_ids(), own.tolist()) if found.is_fast else None)

    def decode(self, tokens: Sequence[int]) -> str:
        return str(self.library.decode(list(tokens)))

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        return [str(piece) for piece in self.library.convert_ids_to_tokens(list(tokens))]


@dataclasses.dataclass(frozen=True)
class GivenTokenizer(LibraryTokenizer):
    """A tokenizer of transformers that the user has made."""

    given: Any

    @property
    def library(self) -> Any:
        return self.given

    def describe(self) -> dict[str, Any]:
        words = json.dumps(sorted(self.given.get_vocab().items()))
        return {"kind": "transformers", "vocabulary": hashlib.sha256(words.encode()).hexdigest()}


def as_tokenizer(given: Any, *, base: Path = Path()) -> Tokenizer:
    """A tokenizer by its name or path, one of transformers, one of the tokenizers library, or one of ours.

    >>> as_tokenizer("dna").vocab_size
    4
    """
    if isinstance(given, Tokenizer):
        return given
    if isinstance(given, str | Path):
        return tokenizer_named(str(given), base=base)
    transformers, library = (sys.modules.get(name) for name in ("transformers", "tokenizers"))  # whose class it is of
    if library is not None and isinstance(given, library.Tokenizer):
        return Subwords(given.to_str())
    if transformers is not None and isinstance(given, transformers.PreTrainedTokenizerBase):
        return Subwords(given.backend_tokenizer.to_str()) if given.is_fast else GivenTokenizer(given)
    raise InputError(
        f"A tokenizer must be {', '.join(ALPHABETS)}, characters:<alphabet>, the path of a tokenizer.json, or a "
        f"tokenizer of transformers, got a {type(given).__name__}. Give one of these."
    )


def tokenizer_named(name: str, *, base: Path = Path()) -> Tokenizer:
    """`text8`, `dna`, `characters:<alphabet>`, or the path of a Hugging Face tokenizer.json."""
    if name in ALPHABETS:
        return Characters(ALPHABETS[name])
    if name.startswith("characters:"):
        return Characters(name.removeprefix("characters:"))
    path = base / name
    path = path / "tokenizer.json" if path.is_dir() else path
    if not path.is_file():
        raise InputError(
            f"A tokenizer is {', '.join(ALPHABETS)}, characters:<alphabet> or the path of a tokenizer.json; "
            f"got {name!r}, and there is no file {path}."
        )
    try:
        made = Subwords(path.read_text(encoding="utf-8"))
        made.vocab_size  # noqa: B018 - a bad file is reported here, where its name is known
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
