"""The tokenizer of a directory: its tokenizer.json, or what transformers makes of other files."""

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from infodis.errors import InputError
from infodis.files import read_json
from infodis.models.tokenizers import LibraryTokenizer, Tokenizer, tokenizer_named

FILES = ("vocab.txt", "vocab.json", "spm.model", "sentencepiece.bpe.model", "spiece.model", "tokenizer_config.json")


@dataclasses.dataclass(frozen=True)
class TransformersTokenizer(LibraryTokenizer):
    """An `AutoTokenizer`, by the directory it came from."""

    directory: str
    trust_remote_code: bool = False
    kind: str = "AutoTokenizer"
    """The class of transformers that reads it."""

    @functools.cached_property
    def library(self) -> Any:
        import transformers

        return getattr(transformers, self.kind).from_pretrained(
            self.directory, trust_remote_code=self.trust_remote_code, local_files_only=True
        )

    def describe(self) -> dict[str, Any]:
        return {"kind": "transformers", "directory": self.directory}


def transformers_tokenizer(
    directory: Path, *, trust_remote_code: bool = False, kind: str = "AutoTokenizer"
) -> tuple[Tokenizer | None, str | None]:
    """The tokenizer of a directory, if it has files for one; and why not, if transformers cannot read them."""
    if not any((directory / name).is_file() for name in FILES):
        return None, "it has no tokenizer: give tokens instead of text"
    made = TransformersTokenizer(str(directory), trust_remote_code, kind)
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


def tokenizer_of(directory: Path) -> Tokenizer | None:
    """The tokenizer.json of a model, if it has one."""
    if not (directory / "tokenizer.json").is_file():
        return None
    return tokenizer_named("tokenizer.json", base=directory)


def token_count(tokenizer: Tokenizer | None, columns: int) -> int:
    """How many columns stand for tokens; the rest pads the vocabulary to a round number."""
    return min(columns, tokenizer.vocab_size) if tokenizer is not None else columns


def special_token(directory: Path, tokenizer: Tokenizer | None, name: str) -> int | None:
    """The number of a special token that tokenizer_config.json names, such as bos_token."""
    path = directory / "tokenizer_config.json"
    number = getattr(tokenizer, "number", None)
    if not path.is_file() or number is None:
        return None
    said = read_json(path)
    if not isinstance(said, dict):
        raise InputError(f"{path} is not what transformers writes: it must hold an object.")
    content = said.get(name)
    text = content.get("content") if isinstance(content, dict) else content
    return number(text) if isinstance(text, str) else None


def begin_token(said: Sequence[Any], tokenizer: Tokenizer | None, columns: int) -> int | None:
    """The first of some tokens that can stand before a text.

    It must be a token, and stand for no text: a configuration may name one that nobody has thought of. What is not a
    number at all is a mistake, and told; a model may have several end tokens, of which none is taken.
    """
    for one in said:
        if one is not None and type(one) is not int and not isinstance(one, list):
            raise InputError(f"A begin or end token must be a number, config.json says {one!r}. Correct it.")
    beyond = range(columns) if tokenizer is None else {*tokenizer.beyond_text, *range(tokenizer.vocab_size, columns)}
    return next((one for one in said if type(one) is int and 0 <= one < columns and one in beyond), None)
