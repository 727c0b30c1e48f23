"""A row of a file that can be read, and what commands make of it."""

import dataclasses
import json
import math
import string
import sys
from collections.abc import Container, Sequence
from typing import Any

from infodis.errors import InputError
from infodis.item import Item
from infodis.jobs.inputs.reading import NOTHING, FieldValue, Reading, Scored, checked_text, listed, messages_of
from infodis.jobs.inputs.rejected import Refused, Rejected, excerpt_of, kind_of
from infodis.models.model import Model
from infodis.pairs import BAD, BY, GOOD
from infodis.terminal import printable

KEEP_ALL, PREFIX = "all", "input_"
"""The name that stands for every field to keep, and what is put before one that is taken."""


@dataclasses.dataclass(frozen=True, eq=False)
class Choices:
    """Some texts after one prompt, to choose from."""

    rows: list[Scored]
    answer: int | None
    """Which of them is right, counted from 0, if that is known."""


@dataclasses.dataclass(frozen=True)
class Entry:
    """A row of a file as it was given."""

    line: int
    """Its first line, or in Parquet its number, counted from 1."""
    id: int | str
    """Its own `id`, or else the number of its line."""
    fields: dict[str, Any]
    names: dict[str, str] = dataclasses.field(default_factory=dict)
    """What fields are called in this file, where that is something else."""
    keep: tuple[str, ...] = ()
    """Fields that its record carries along; `all` for every one."""

    def kept(self, taken: Container[str]) -> dict[str, Any]:
        """The fields to carry along. Where a record has a field of that name, it becomes `input_` and the name."""
        names = self.fields if KEEP_ALL in self.keep else self.keep
        id = self._called("id")
        return {
            _free_name(name, taken): json_value(self.fields[name])
            for name in names
            if name in self.fields and name != id
        }

    def record(self) -> dict[str, Any]:
        """As a JSON object."""
        return {"line": self.line, "id": self.id, "fields": self.fields}

    def rejected(self, field: str | None, reason: str) -> Rejected:
        """The row as one that is not scored."""
        shown = self.fields if field is None else self.fields.get(field, self.fields)
        return Rejected(self.line, self.id, field, reason, excerpt_of(shown))

    def has(self, name: str) -> bool:
        return self._called(name) in self.fields

    def row(self, model: Model, *, chat: bool = False) -> Item:
        """What to score, of any length that the model takes; `InputError` names the line of a row that cannot be."""
        any_length = model.loaded.limit or sys.maxsize
        try:
            return self.scored(model, Reading(chat=chat, max_length=any_length)).item
        except Refused as error:
            raise InputError(f"Line {self.line}, {error.field}: {error}") from None

    def scored(self, model: Model, reading: Reading = Reading()) -> Scored:
        """`tokens` with `target` and `context`; or `response`, or else `text`, after `prompt`.

        Or the last of some `messages`, after the others. Raises `Refused`.
        """
        if self.has("tokens") and self._part("tokens").value != "":  # an empty cell of a table is none
            return reading.positions(model, self._part("tokens"), self._part("target"), self._part("context"))
        if self._has_messages:
            return reading.last_message(model, self._part("messages"))
        name = "response" if self.has("response") else "text"
        if not self.has(name):
            raise self._lacking("text", "text, or prompt and response, or tokens, or messages")
        return reading.after(model, self._prompt("prompt"), self._string(name))

    @property
    def _has_messages(self) -> bool:
        """Whether a conversation is all that the row has."""
        return self.has("messages") and not (self.has("response") or self.has("text"))

    def texts(self) -> tuple[str, str]:
        """Prompt and response as they were given; an empty text for what was given as tokens, or not at all."""
        if self._has_messages:
            *before, last = messages_of(self._part("messages"))
            return "\n\n".join(f"{one['role']}: {one['content']}" for one in before), last["content"]
        found = (self._part(name).value for name in ("prompt", "response" if self.has("response") else "text"))
        prompt, response = (value if isinstance(value, str) else "" for value in found)
        return prompt, response

    def text(self) -> str:
        """`text` alone, of any length: a document. Raises `Refused`."""
        if not self.has("text"):
            raise self._lacking("text", "text")
        return checked_text(self._string("text"))

    def pair(self, model: Model, reading: Reading = Reading()) -> list[Scored]:
        """`chosen` and `rejected`, each after `prompt`; texts, or lists of tokens. Raises `Refused`."""
        prompt = self._prompt("prompt")
        for name in ("chosen", "rejected"):
            if not self.has(name):
                raise self._lacking(name, "chosen and rejected, and prompt if there is one")
        return [reading.after(model, prompt, self._text_or_tokens(name)) for name in ("chosen", "rejected")]

    def sentences(self, model: Model, reading: Reading = Reading()) -> list[Scored]:
        """`sentence_good` and `sentence_bad`, or `good` and `bad`, each after `prompt`. Raises `Refused`."""
        prompt = self._prompt("prompt")
        return [reading.after(model, prompt, self._text_or_tokens(name)) for name in self._sentence_fields()]

    def sentence_texts(self) -> list[str | None]:
        """The same as they were given; None for tokens."""
        found = (self._part(name).value for name in self._sentence_fields())
        return [value if isinstance(value, str) else None for value in found]

    def _sentence_fields(self) -> list[str]:
        return [self._first(names) for names in (GOOD, BAD)]

    def _first(self, names: Sequence[str]) -> str:
        """The first of some fields that the row has; if the first of them was given a name, that one."""
        wanted = names[:1] if names[0] in self.names else names
        found = next((name for name in wanted if self.has(name)), None)
        if found is None:
            needs = f"a good and a bad sentence, {GOOD[0]} and {BAD[0]}, or {GOOD[1]} and {BAD[1]}"
            raise self._lacking(names[0], needs)
        return found

    def phenomenon(self, *, must: bool = False) -> str | None:
        """What a pair tests, by its `linguistics_term`; None where it does not say it. Raises `Refused`."""
        name = BY[0]
        if not self.has(name):
            if must:
                raise self._lacking(name, f"{self._called(name)}, by which accuracies are told apart")
            return None
        value = self._part(name).value
        if isinstance(value, dict | list):
            raise Refused(self._called(name), f"It must be a name or a number; it is {kind_of(value)}.")
        return None if value is None else " ".join(str(value).split()) or None

    def variant(self) -> tuple[str, str, float | None]:
        """`mutant` and `mutated_sequence`, empty where there is none, and `DMS_score`. Raises `Refused`."""
        if not (self.has("mutant") or self.has("mutated_sequence")):
            raise self._lacking("mutant", "mutant (like A12G:K30R) or mutated_sequence")
        names = (self._string(name).value if self.has(name) else "" for name in ("mutant", "mutated_sequence"))
        mutant, sequence = (name.strip() for name in names)
        return mutant, sequence, self._number("DMS_score")

    def choices(self, model: Model, reading: Reading = Reading()) -> Choices:
        """A list of `choices`, each after `prompt`, `query` or `question`, of which `answer` or `label` is right."""
        prompt = self._prompt("prompt", "query", "question")
        if not self.has("choices"):
            raise self._lacking("choices", "choices, and prompt if there is one")
        part = self._part("choices")
        given = listed(part)
        if not isinstance(given, list):
            raise Refused(part.field, f"It must be a list of texts; it is {kind_of(given)}.")
        if len(given) < 2:
            raise Refused(part.field, f"There must be at least 2 choices; there are {len(given)}.")
        rows = [reading.after(model, prompt, _choice(part.field, number, one)) for number, one in enumerate(given)]
        return Choices(rows, self._answer(len(given)))

    def _called(self, name: str) -> str:
        return self.names.get(name, name)

    def _part(self, name: str) -> FieldValue:
        """None if the row has no such field."""
        return FieldValue(self._called(name), self.fields.get(self._called(name)))

    def _string(self, name: str) -> FieldValue:
        part = self._part(name)
        if not isinstance(part.value, str):
            raise Refused(part.field, f"It must be a text; it is {kind_of(part.value)}.")
        return part

    def _number(self, name: str) -> float | None:
        """A finite number, also as text; None where there is none."""
        part = self._part(name)
        if part.value is None or part.value == "":
            return None
        try:
            found = float(part.value)
        except (TypeError, ValueError):
            found = math.nan
        if isinstance(part.value, bool) or not math.isfinite(found):
            raise Refused(part.field, f"It must be a finite number; it is {printable(str(part.value), 40)!r}.")
        return found

    def _text_or_tokens(self, name: str) -> FieldValue:
        part = self._part(name)
        return part if isinstance(part.value, list) else self._string(name)

    def _prompt(self, *names: str) -> FieldValue:
        found = next((name for name in names if self.has(name)), None)
        return NOTHING if found is None else self._text_or_tokens(found)

    def _answer(self, choices: int) -> int | None:
        """A number from 0, also as text, or a letter from A; an empty text and null say that it is not known."""
        found = next((self._part(name) for name in ("answer", "label") if self.has(name)), NOTHING)
        value = found.value
        if value is None or value == "":
            return None
        number = _choice_number(value.strip()) if isinstance(value, str) else value
        if type(number) is not int or not 0 <= number < choices:
            letters = f", or its letter, from A to {string.ascii_uppercase[choices - 1]}" if choices <= 26 else ""
            given = f"; it is {printable(json.dumps(value), 40) if isinstance(value, int | str) else kind_of(value)}"
            raise Refused(found.field, f"It must be the number of a choice, from 0 to {choices - 1}{letters}{given}.")
        return number

    def _lacking(self, name: str, needs: str) -> Refused:
        found = ", ".join(printable(one, 40) for one in list(self.fields)[:10]) or "nothing"
        hint = f"If {name} is called something else, say so: --field {name}=NAME."
        if name in self.names:
            hint = f"Here {name} is called {self.names[name]}."
        return Refused(self._called(name), f"A row needs {needs}; this one has {found}. {hint}")


def _free_name(name: str, taken: Container[str]) -> str:
    """The name, with a prefix if it, or what stands behind prefixes of its own, is taken: different ones stay so."""
    bare = name = json_value(name)
    while bare.startswith(PREFIX):
        bare = bare.removeprefix(PREFIX)
    return PREFIX + name if name in taken or bare in taken else name


def json_value(value: Any, depth: int = 100) -> Any:
    """A value of a row as JSON can hold it: dates and their like as text; what is no number, or too deep, as null."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "replace").decode()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list | tuple):
        return [json_value(one, depth - 1) for one in value] if depth else None
    if isinstance(value, dict):
        return {json_value(str(name)): json_value(one, depth - 1) for name, one in value.items()} if depth else None
    return value if value is None or isinstance(value, int) else json_value(str(value))


def _choice_number(text: str) -> int | None:
    """From digits or a letter; None if it is neither."""
    if text.isascii() and text.isdecimal() and len(text) < 10:
        return int(text)
    return string.ascii_uppercase.index(text.upper()) if len(text) == 1 and text.isascii() and text.isalpha() else None


def _choice(field: str, number: int, value: Any) -> FieldValue:
    if not isinstance(value, str | list):
        raise Refused(field, f"Choice {number} must be a text; it is {kind_of(value)}.")
    return FieldValue(field, value)
