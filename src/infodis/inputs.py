"""Rows of a file to score: texts, prompts with responses, or tokens.

A row is an object with `text`, with `prompt` and `response`, or with `tokens` (and, if not all are the target, `target`
or `context` positions). In a plain text file every line that is not empty is a row.
"""

import dataclasses
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from infodis.data import opened_text
from infodis.errors import InputError
from infodis.item import Item
from infodis.model import Model, Row


@dataclasses.dataclass(frozen=True)
class Entry:
    """A row of a file as it was given."""

    where: str
    """For messages: the file and the line."""
    id: int | str
    """Its own `id`, or the number of its line."""
    fields: dict[str, Any]

    def row(self, model: Model, *, chat: bool = False) -> Row:
        """As the model reads it. `chat` puts the prompt into the model's chat template."""
        try:
            if "tokens" in self.fields:
                return self._tokens(model)
            return model.read(self._string("response", "text"), prompt=self._string("prompt", default=""), chat=chat)
        except InputError as error:
            raise InputError(f"{self.where}: {error}") from None

    def _string(self, *names: str, default: str | None = None) -> str:
        found = next((self.fields[name] for name in names if name in self.fields), default)
        if not isinstance(found, str):
            raise InputError(
                "a row needs text, or prompt and response, or tokens; "
                + (f"it has {', '.join(self.fields) or 'nothing'}." if found is None else f"{names[0]} is {found!r}.")
            )
        return found

    def _tokens(self, model: Model) -> Row:
        item = Item.read(self.fields["tokens"], target=self.fields.get("target"), context=self.fields.get("context"))
        item.check_vocabulary(vocab_size=model.vocab_size, mask_token=model.mask_token)
        return Row(item.tokens, item.target, item.context)


def entries(path: Path, *, limit: int | None = None) -> Iterator[Entry]:
    """The rows of a JSONL or text file, plain or .gz, one after another; at most `limit`."""
    is_json = path.name.removesuffix(".gz").endswith((".jsonl", ".json"))
    with opened_text(path) as file:
        lines = ((number, line) for number, line in enumerate(file, start=1) if line.strip())
        for number, line in itertools.islice(lines, limit):
            where = f"{path}, line {number}"
            fields = _object(line, where) if is_json else {"text": line.rstrip("\r\n")}
            yield Entry(where, fields.get("id", number), fields)


def _object(line: str, where: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except json.JSONDecodeError as error:
        raise InputError(f"{where}: not JSON ({error}).") from error
    if not isinstance(found, dict):
        raise InputError(f'{where}: expected an object like {{"text": ...}}, got {line.strip()[:60]}.')
    return found
