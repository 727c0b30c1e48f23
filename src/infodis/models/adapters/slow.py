"""Tokenizers that only transformers can read: models without a tokenizer.json."""

import contextlib
import dataclasses
import functools
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from infodis.errors import InputError
from infodis.models.data import Reading, Tokenizer

TEMPLATE_SECONDS = 1.0
"""For a chat template to write a conversation, which takes milliseconds."""

FILES = ("vocab.txt", "vocab.json", "spm.model", "sentencepiece.bpe.model", "spiece.model", "tokenizer_config.json")


@dataclasses.dataclass(frozen=True)
class SlowTokenizer(Tokenizer):
    """An `AutoTokenizer`, by the directory it came from."""

    directory: str
    trust_remote_code: bool = False
    kind: str = "AutoTokenizer"
    """The class of transformers that reads it."""

    @functools.cached_property
    def _tokenizer(self) -> Any:
        import transformers

        return getattr(transformers, self.kind).from_pretrained(
            self.directory, trust_remote_code=self.trust_remote_code, local_files_only=True
        )

    @functools.cached_property
    def vocab_size(self) -> int:
        return max(self._tokenizer.get_vocab().values(), default=-1) + 1

    def number(self, piece: str) -> int | None:
        """The token of a piece, such as a special token."""
        return self._tokenizer.get_vocab().get(piece)

    @property
    def mask_token(self) -> int | None:
        return self._tokenizer.mask_token_id

    @functools.cached_property
    def beyond_text(self) -> frozenset[int]:
        return frozenset(self._tokenizer.all_special_ids)

    def agrees_with(self, listed: dict[str, int]) -> bool:
        """Whether it numbers tokens as they are listed. (A type that expects other files may start an empty one.)"""
        mine = self._tokenizer.get_vocab()
        return all(mine.get(piece) == number for piece, number in listed.items())

    def encode(self, text: str) -> Int[np.ndarray, " tokens"]:
        return np.array(self._tokenizer.encode(text, add_special_tokens=False), dtype=np.int64)

    def read(self, text: str, *, prompt: str = "", special: bool = True) -> Reading:
        """Without offsets: the prompt is what its own tokens are, as far as the row begins with them."""
        found = self._tokenizer(prompt + text, add_special_tokens=special, return_special_tokens_mask=True)
        row = np.array(found["input_ids"], dtype=np.int64)
        own = np.flatnonzero(np.array(found["special_tokens_mask"], dtype=np.int64) == 0)
        alone = self.encode(prompt) if prompt else np.zeros(0, dtype=np.int64)
        same = 0
        while same < min(len(alone), len(own)) and row[own[same]] == alone[same]:
            same += 1
        return Reading(row, own[same:])

    def decode(self, tokens: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(tokens)))

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        return [str(piece) for piece in self._tokenizer.convert_ids_to_tokens(list(tokens))]

    def describe(self) -> dict[str, Any]:
        return {"kind": "transformers", "directory": self.directory}


def slow_tokenizer(
    directory: Path, *, trust_remote_code: bool = False, kind: str = "AutoTokenizer"
) -> tuple[Tokenizer | None, str | None]:
    """The tokenizer of a directory, if it has files for one; and why not, if transformers cannot read them."""
    if not any((directory / name).is_file() for name in FILES):
        return None, "it has no tokenizer: give tokens instead of text"
    made = SlowTokenizer(str(directory), trust_remote_code, kind)
    try:
        made.vocab_size  # noqa: B018 - whether it loads at all
    except Exception as error:  # whatever a tokenizer's own code raises: the model is usable without
        return None, f"its tokenizer cannot be loaded ({type(error).__name__}: {str(error).splitlines()[0]})"
    if not made.agrees_with(vocabulary(directory)):
        return None, "transformers makes a tokenizer of it that is not the one of its vocab.txt: give tokens, not text"
    return made, None


def vocabulary(directory: Path) -> dict[str, int]:
    """The lines of vocab.txt, if there is one: a token is numbered by its line."""
    path = directory / "vocab.txt"
    if not path.is_file():
        return {}
    # By line feeds only: a piece may be what others take for the end of a line.
    lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    return {piece: number for number, piece in enumerate(lines)}


def chat_prompt(directory: Path, prompt: str) -> str:
    """What a model sees when a user says `prompt`, up to where it would begin to answer."""
    return chat_text(directory, [{"role": "user", "content": prompt}], add_generation_prompt=True)


@functools.lru_cache(maxsize=4)
def check_chat(directory: Path) -> None:
    """Raise `InputError` unless there is a chat template that works."""
    chat_prompt(directory, "a")


def chat_text(directory: Path, messages: list[dict[str, str]], **how: bool) -> str:
    """A conversation as a model's template writes it. The template came with the model: it may fail, or never end."""
    tokenizer = chat_tokenizer(directory)
    try:
        with _deadline(TEMPLATE_SECONDS):
            return str(tokenizer.apply_chat_template(messages, tokenize=False, **how))
    except Exception as error:  # whatever a template raises
        reason = (str(error).strip().splitlines() or [""])[0]
        raise InputError(f"The chat template of {directory} fails: {type(error).__name__}: {reason}.") from error


@contextlib.contextmanager
def _deadline(seconds: float) -> Iterator[None]:
    """Raise `TimeoutError` in Python code that computes for longer, in any thread: a signal reaches the first only."""
    end = time.thread_time() + seconds

    def check(*_: Any) -> Any:
        if time.thread_time() > end:
            raise TimeoutError(f"it takes more than {seconds:g} seconds")
        return check

    before = sys.gettrace()
    sys.settrace(check)
    try:
        yield
    finally:
        sys.settrace(before)


@functools.lru_cache(maxsize=4)
def chat_tokenizer(directory: Path) -> Any:
    """The tokenizer of an instruct model, for its template alone."""
    try:
        import transformers
    except ImportError as error:
        raise InputError("Chat templates need transformers: pip install 'infodis[hf]'.") from error
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            directory, local_files_only=True, trust_remote_code=False
        )
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"The tokenizer of {directory} cannot be loaded: {error}") from error
    if not tokenizer.chat_template:
        raise InputError(f"{directory} has no chat template: it is not an instruct model. Leave the template out.")
    return tokenizer
