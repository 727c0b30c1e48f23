"""Groups of prompts and responses: windows of a text, and what may stand in place of the true continuation.

A row has an `id`. What is cut from one document has its name before a slash: such rows resemble each other.
"""

import dataclasses
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from infodis.errors import InputError
from infodis.models.tokenizers import Tokenizer, text8_style
from infodis.rng import stream

Row = dict[str, str]

SPARE = 64
"""Characters between windows, at least: room to look for the next word."""


@dataclasses.dataclass(frozen=True)
class WindowShape:
    """Tokens of a prompt and of the response to it."""

    prompt: int
    response: int

    @property
    def length(self) -> int:
        return self.prompt + self.response


def windows(text: str, count: int, shape: WindowShape, *, whole: bool = False) -> list[Row]:
    """Evenly spread, not overlapping, beginning with a word; if `whole`, it is the response that does, at its space.

    A prompt that ends within a word can be told from what does not belong to it by that word alone.
    """
    step = max(shape.length + SPARE, len(text) // count)
    rows = []
    for number, start in enumerate(range(0, len(text) - shape.length - SPARE, step)):
        space = text.find(" ", start + shape.prompt if whole else start, start + shape.prompt + SPARE)
        if space >= 0:
            begin = space - shape.prompt if whole else space + 1
            middle, end = begin + shape.prompt, begin + shape.length
            rows.append({"id": f"{number}", "prompt": text[begin:middle], "response": text[middle:end]})
    return enough(rows[:count], text, shape)


def enough(rows: list[Row], text: str, shape: WindowShape) -> list[Row]:
    """The rows, if there are two: with fewer there is nothing to compare."""
    if len(rows) < 2:
        raise InputError(
            f"A text of {len(text):,} characters ({text[:20]!r} ...) has {len(rows)} windows of {shape.length} tokens "
            "that begin with a word; at least 2 are needed. Take a longer one."
        )
    return rows


def shuffled(rows: Sequence[Row]) -> Iterator[Row]:
    """The same responses with their words in random order. Pieces of words at both ends stay where they are."""
    for row in rows:
        *words, last = row["response"].split()
        first = [] if row["response"].startswith(" ") else words[:1]
        words = words[len(first) :]
        order = torch.randperm(len(words), generator=stream(0, "words", row["id"])).tolist()
        mixed = " ".join([*first, *(words[n] for n in order), last])
        yield {**row, "response": row["response"].replace(row["response"].strip(), mixed)}


def elsewhere(rows: Sequence[Row]) -> Iterator[Row]:
    """The response of the next window after every prompt."""
    for row, other in zip(rows, [*rows[1:], *rows[:1]], strict=True):
        yield {**row, "response": other["response"]}


@dataclasses.dataclass(frozen=True)
class TextCutter:
    """How texts are cut to a shape: by tokens or, without a tokenizer, by characters."""

    shape: WindowShape
    tokenizer: Tokenizer | None = None

    def windows(self, text: str, count: int) -> list[Row]:
        """Evenly spread windows whose response begins with a word, or with a token."""
        return windows(text, count, self.shape, whole=True) if self.tokenizer is None else self._blocks(text, count)

    def end(self, text: str) -> str | None:
        """The end of a text, as long as a prompt; None if there is less of it."""
        tokens = self._tokens(text)
        return None if len(tokens) < self.shape.prompt else self._text(tokens[-self.shape.prompt :])

    def start(self, text: str) -> str | None:
        """The beginning of a text behind a space, as long as a response; None if there is less of it."""
        if len(self._tokens(text)) < self.shape.response:
            return None
        return self._text(self._tokens(f" {text}")[: self.shape.response])

    def drawn(self, text: str, count: int, length: int, *, generator: torch.Generator) -> list[tuple[int, str]]:
        """Windows of so many tokens at random places, which may overlap, with the place where each begins.

        Those that begin or end within a character are passed over: as text they would not read back.
        """
        tokens = self._tokens(text)
        places = len(tokens) - length + 1
        if places < 1:
            raise InputError(f"A text of {len(tokens):,} tokens has no window of {length}. Take a longer one.")
        order = torch.randperm(places, generator=generator).tolist()
        good = ((place, self._text(tokens[place : place + length])) for place in order)
        found = list(itertools.islice((one for one in good if self.count(one[1]) == length), count))
        if len(found) < count:
            raise InputError(
                f"{count} windows of {length} tokens are wanted; a text of {len(tokens):,} tokens has {len(found)} at "
                "different places. Take a longer one."
            )
        return found

    def cut(self, text: str, tokens: int) -> str:
        """The first tokens of a text."""
        return self._text(self._tokens(text)[:tokens])

    def fit(self, row: Row) -> Row:
        """The row, its end cut off where prompt and response together take more tokens than the shape has.

        Tokens at the joint may be others than those of the parts, and those of changed words are.
        """
        response = row["response"]
        while self.count(row["prompt"] + response) > self.shape.length:
            response = response[:-1]
        return {**row, "response": response}

    def count(self, text: str) -> int:
        """Tokens of a text."""
        return len(self._tokens(text))

    def pieces(self, text: str) -> Iterator[str]:
        """Parts of a text behind each other, each as long as a response and beginning with a word."""
        while (piece := self.start(text)) is not None:
            yield piece
            rest = text[len(piece) - 1 :]
            text = rest[rest.index(" ") + 1 :] if " " in rest else ""

    def _tokens(self, text: str) -> Any:
        return text if self.tokenizer is None else self.tokenizer.encode(text)

    def _text(self, tokens: Any) -> str:
        return "".join(tokens) if self.tokenizer is None else self.tokenizer.decode([int(one) for one in tokens])

    def _blocks(self, text: str, count: int) -> list[Row]:
        """Blocks of tokens that, as text, read back as they are: none begins or ends within a character."""
        assert self.tokenizer is not None
        tokens, length = self.tokenizer.encode(text), self.shape.length
        good = []
        for start in range(0, len(tokens) - length + 1, length):
            block = tokens[start : start + length]
            parts = self._text(block[: self.shape.prompt]), self._text(block[self.shape.prompt :])
            if np.array_equal(self.tokenizer.encode("".join(parts)), block):
                good.append({"id": f"{start // length}", "prompt": parts[0], "response": parts[1]})
        return evenly_spaced(enough(good, text, self.shape), count)


def continuations(records: Sequence[Mapping[str, Any]], field: str, cut: TextCutter) -> Iterator[Row]:
    """The end of the beginning and the start of a continuation, where both continuations are long enough.

    In the letters of text8.
    """
    for record in records:
        x, *both = (text8_style(record[name]) for name in ("x", "y_human", "y_llm"))
        prompt, started = cut.end(x), dict(zip(("y_human", "y_llm"), map(cut.start, both), strict=True))
        response = started[field]
        if prompt is not None and response is not None and None not in started.values():
            yield {"id": str(record["id"]), "prompt": prompt, "response": response}


def as_authors_drew(true: str, other: str, count: int, cut: TextCutter, *, seed: int) -> tuple[list[Row], list[Row]]:
    """Windows at random places of a text, and after their prompts random windows of another.

    They overlap: rows that begin in the same stretch of the first text are one document's.
    """
    shape = cut.shape
    windows = cut.drawn(true, count, shape.length, generator=stream(seed, "windows"))
    responses = cut.drawn(other, count, shape.response, generator=stream(seed, "responses"))
    rows, others = [], []
    for number, ((place, window), (_, response)) in enumerate(zip(windows, responses, strict=True)):
        prompt = cut.cut(window, shape.prompt)
        row = {"id": f"{place // shape.length}/{number}", "prompt": prompt}
        rows.append({**row, "response": window[len(prompt) :]})
        others.append({**row, "response": response})
    return rows, others


LEAST = 0.5
"""The share of a prompt's and of a response's tokens that a row of the authors must have, to be kept."""


def equally_long(
    records: Sequence[Mapping[str, str]], cut: TextCutter, style: Callable[[str], str]
) -> dict[str, list[Row]]:
    """How the dataset (y) and LLaMA (z) go on after a prompt (x), both cut to the tokens of the shorter."""
    found: dict[str, list[Row]] = {"y": [], "z": []}
    for record in records:
        prompt, texts = style(record["x"]), {field: style(record[field]) for field in found}
        length = min(cut.shape.response, *map(cut.count, texts.values()))
        before = cut.end(prompt) or prompt
        if cut.count(before) >= LEAST * cut.shape.prompt and length >= LEAST * cut.shape.response:
            for field, text in texts.items():
                found[field].append({"id": record["id"], "prompt": before, "response": cut.cut(text, length)})
    return found


def foreign(rows: Sequence[Row], documents: Mapping[str, str], cut: TextCutter) -> list[Row]:
    """Pieces of documents after the prompts of rows: the first piece of every document, then the second ones, ..."""
    pieces = {name: list(cut.pieces(text)) for name, text in documents.items()}
    most = max(map(len, pieces.values()), default=0)
    dealt = [(name, n, some[n]) for n in range(most) for name, some in pieces.items() if n < len(some)]
    return [
        {"id": f"{name}/{n}", "prompt": row["prompt"], "response": piece}
        for row, (name, n, piece) in zip(rows, dealt, strict=False)
    ]


def unit_of(name: str) -> str:
    """The document that a row was cut from, by its id; the row itself if it was not."""
    return name.partition("/")[0]


_IDEOGRAPH = re.compile("[\u3400-\u9fff]")
"""A syllable, which is a word by itself once it is in letters."""


def transliterate(text: str) -> str | None:
    """Any writing in the letters of text8; None if the package for that is not installed."""
    try:
        from anyascii import anyascii
    except ImportError:
        return None
    return text8_style(anyascii(_IDEOGRAPH.sub(r" \g<0> ", text)))


def evenly_spaced(rows: Sequence[Row], count: int) -> list[Row]:
    """At most `count` of them, evenly spread."""
    kept = min(count, len(rows))
    return [rows[n * len(rows) // kept] for n in range(kept)]
