"""`infodis.minimal_pairs`: pairs of sentences in, how often a model prefers the right one out.

found = infodis.minimal_pairs("text8-tiny", [("the cats are here", "the cats is here")])
found.accuracy("nll"), found.accuracy("pll"), found.by_phenomenon("nll"), found.to_pandas()
"""

import dataclasses
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, SupportsIndex, overload

from torch import nn

from infodis import notebook
from infodis.errors import InfodisError, InputError
from infodis.figures import Figure, bars
from infodis.item import Item
from infodis.models.model import Model
from infodis.predictor import Predictor
from infodis.quantities.accuracy import (
    PAIR_SCORES,
    Accuracy,
    AccuracySum,
    PairRequest,
    PairScore,
    PairScores,
    SentencePair,
)
from infodis.quantities.choose import Race, Sizes, sizes_of
from infodis.rng import check_seed
from infodis.scores import Read, check_lengths, reader_of, resolve_model, text_item
from infodis.terminal import printable

GOOD, BAD, BY = ("sentence_good", "good"), ("sentence_bad", "bad"), ("linguistics_term",)
"""Fields in which the sentences of a pair and what it tests are looked for: BLiMP's, and short ones."""

ALL = "all"
"""What all phenomena together are called in tables and pictures."""


@dataclasses.dataclass(frozen=True, eq=False)
class MinimalPair:
    """What a model says about one pair of sentences, of which the first is right."""

    good: str
    bad: str
    found: PairScores
    phenomenon: str | None = None
    """What the pair tests, if that is known."""

    @property
    def scores(self) -> dict[str, PairScore]:
        """By name: `nll`, `pll`, `pll_within_words`."""
        return self.found.by_name

    @property
    def evaluations(self) -> int:
        """Forward passes spent."""
        return self.found.evaluations

    def to_dict(self) -> dict[str, Any]:
        """Plain values: for every score whether it is right, and by how many nats."""
        numbers: dict[str, Any] = {}
        for name, one in self.scores.items():
            numbers |= {f"{name}_right": one.right, f"{name}_margin": one.margin}
            if name == "nll":
                numbers |= {"standard_error": one.standard_error, "decided": one.decided}
        phenomenon = {} if self.phenomenon is None else {"phenomenon": self.phenomenon}
        return {"good": self.good, "bad": self.bad, **phenomenon, **numbers, "evaluations": self.evaluations}


@dataclasses.dataclass(frozen=True, eq=False)
class MinimalPairs(Sequence[MinimalPair]):
    """Pairs of sentences as a model judges them, in their order: a sequence, a table, accuracies, a picture."""

    rows: tuple[MinimalPair, ...]
    model: str = ""
    index: Any = None
    """Of the DataFrame that the pairs came in."""

    @property
    def scores(self) -> tuple[str, ...]:
        """Names of the scores that pairs were judged by."""
        return tuple(self.rows[0].scores)

    def accuracy(self, score: str | None = None) -> Accuracy:
        """The share of pairs whose good sentence is likelier, by a score: by default the first that was asked for."""
        return _accuracy(self.rows, self._named(score))

    def by_phenomenon(self, score: str | None = None) -> dict[str, Accuracy]:
        """The same for every phenomenon, in the order in which they come; empty where pairs do not say it."""
        groups: dict[str, list[MinimalPair]] = {}
        for row in self.rows:
            if row.phenomenon is not None:
                groups.setdefault(row.phenomenon, []).append(row)
        return {group: _accuracy(rows, self._named(score)) for group, rows in groups.items()}

    def _named(self, score: str | None) -> str:
        if score is not None and score not in self.scores:
            raise InputError(f"{score} must be among the scores, which are {', '.join(self.scores)}.")
        return self.scores[0] if score is None else score

    @property
    def evaluations(self) -> int:
        """Forward passes spent."""
        return sum(row.evaluations for row in self.rows)

    def to_dicts(self) -> list[dict[str, Any]]:
        """One dictionary of plain values for each pair."""
        return [row.to_dict() for row in self.rows]

    def to_pandas(self) -> Any:
        """A DataFrame with a row for each pair."""
        return notebook.data_frame(self.to_dicts(), index=self.index)

    def plot(self, score: str | None = None) -> Figure:
        """Accuracies by phenomenon with their intervals, beside chance."""
        name = self._named(score)
        found = {**self.by_phenomenon(name), ALL: self.accuracy(name)}
        points = {group: (one.value, one.low, one.high) for group, one in found.items()}
        return bars(points, axis="accuracy", reference=0.5, name="pairs", title=f"Minimal pairs by {name}")

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, place: int) -> MinimalPair: ...
    @overload
    def __getitem__(self, place: slice) -> "MinimalPairs": ...
    def __getitem__(self, place: int | slice) -> "MinimalPair | MinimalPairs":
        if isinstance(place, slice):
            return MinimalPairs(self.rows[place], self.model, None if self.index is None else self.index[place])
        return self.rows[place]

    def __iter__(self) -> Iterator[MinimalPair]:
        return iter(self.rows)

    def __repr__(self) -> str:
        found = ", ".join(f"{name} {self.accuracy(name)}" for name in self.scores)
        under = f" under {self.model}" if self.model else ""
        return f"MinimalPairs({len(self)}{under}: accuracy by {found}, {self.evaluations} forward passes)"

    def _repr_html_(self) -> str:
        columns = {name: {**self.by_phenomenon(name), ALL: self.accuracy(name)} for name in self.scores}
        groups = next(iter(columns.values()))
        rows = [
            (
                notebook.text(group),
                f"{groups[group].pairs}",
                *(notebook.text(column[group]) for column in columns.values()),
            )
            for group in groups
        ]
        caption = f"accuracy on minimal pairs{f' under {self.model}' if self.model else ''}, with 95 % intervals"
        return notebook.table(("phenomenon", "pairs", *columns), rows, caption=caption)


def _accuracy(rows: Sequence[MinimalPair], score: str) -> Accuracy:
    total = AccuracySum()
    for row in rows:
        one = row.scores[score]
        total.add(one.right, p_value=one.p_value, decided=one.decided, tied=one.tied)
    return total.result()


def minimal_pairs(
    model: "str | Path | Model | Predictor | nn.Module",
    pairs: Any,
    *,
    good: str | None = None,
    bad: str | None = None,
    by: str | None = None,
    scores: Sequence[str] = PAIR_SCORES,
    tokenizer: Any = None,
    sizes: Sizes = None,
    alpha: float = 0.01,
    evaluations: int = 128,
    seed: SupportsIndex = 0,
    batch_size: int | None = None,
) -> MinimalPairs:
    """How often does a model find the right one of two sentences likelier, and how sure is that?

    Args:
        model: as for `infodis.score`.
        pairs: (good, bad) sentences; or rows with fields, as BLiMP has them, in dictionaries or a DataFrame. A field
            `prompt` is what both sentences come after.
        good, bad: the fields of the sentences, if they are not `sentence_good` and `sentence_bad`, or `good` and `bad`.
        by: the field that says what a pair tests; `linguistics_term` where there is one.
        scores: some of `nll` (a race on shared masks), `pll` and `pll_within_words` (exact, a forward pass a token).
        tokenizer: for a model that has none.
        sizes: what the nats of a sentence are divided by: `tokens`, `bytes`, or nothing.
        alpha, evaluations: of the race, as for `infodis.choose`, for each sentence.
        seed: the same seed gives the same masks for the same pair.
        batch_size: at most so many rows per call of the model. It changes no result.

    >>> found = minimal_pairs("text8-tiny", [("the cats are here", "the cats is here"), ("the end of", "end the of")])
    >>> found[1].scores["nll"].right, found.accuracy("pll").pairs
    (True, 2)
    """
    request = PairRequest(tuple(scores), Race(alpha=alpha, evaluations=evaluations, chance=0.0), check_seed(seed))
    predictor, words = resolve_model(model, tokenizer)
    request.check_predictor(predictor)
    rows, index = _rows(pairs)
    fields = _Fields((good,) if good else GOOD, (bad,) if bad else BAD, (by,) if by else BY, by is not None)
    begun = [_begun(place, row, fields, reader_of(predictor, words), sizes) for place, row in enumerate(rows)]
    for side in ("good", "bad"):
        check_lengths(predictor, [getattr(one.pair, side) for one in begun])
    found = _measured(request, predictor, [one.pair for one in begun], batch_size)
    made = (MinimalPair(*one.texts, what, one.phenomenon) for one, what in zip(begun, found, strict=True))
    return MinimalPairs(
        tuple(made), predictor.name if isinstance(predictor, Model) else type(predictor).__name__, index
    )


@dataclasses.dataclass(frozen=True)
class _Fields:
    """Where the parts of a pair are looked for."""

    good: tuple[str, ...]
    bad: tuple[str, ...]
    by: tuple[str, ...]
    must: bool
    """Whether every pair must say what it tests."""

    def texts(self, row: Any) -> tuple[Any, Any, str | None, Any]:
        """Good and bad sentence, phenomenon and prompt."""
        if isinstance(row, Mapping):
            phenomenon = _field(row, self.by, "what it tests") if self.must or _has(row, self.by) else None
            named = None if phenomenon is None or _missing(phenomenon) else str(phenomenon)
            sentences = (_field(row, names, "two sentences") for names in (self.good, self.bad))
            return (*sentences, named, row.get("prompt"))
        if isinstance(row, str) or not isinstance(row, Iterable) or len(both := list(row)) != 2:
            raise InputError(f"A pair must be a good and a bad sentence, got {printable(repr(row), 60)}. Give two.")
        return both[0], both[1], None, None


def _has(row: Mapping[Any, Any], names: Sequence[str]) -> bool:
    return any(name in row for name in names)


def _missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def _field(row: Mapping[Any, Any], names: Sequence[str], what: str) -> Any:
    """The first of some fields that a row has."""
    if not _has(row, names):
        found = ", ".join(map(str, row)) or "none"
        raise InputError(
            f"A pair must have {what}, here in the field {' or '.join(names)}, got {found}. Name the field: "
            "good=..., bad=..., by=..."
        )
    return next(row[name] for name in names if name in row)


@dataclasses.dataclass(frozen=True, eq=False)
class _Begun:
    """A pair that was read."""

    pair: SentencePair
    texts: tuple[str, str]
    phenomenon: str | None


def _rows(pairs: Any) -> tuple[list[Any], Any]:
    """One thing a pair, and the index of pandas if there is one."""
    pandas = sys.modules.get("pandas")  # if it is not loaded, nothing is of it
    frame = pandas is not None and isinstance(pairs, pandas.DataFrame)
    if not frame and (isinstance(pairs, str | bytes | Mapping) or not isinstance(pairs, Iterable)):
        raise InputError(f"Pairs must be a list of pairs or a DataFrame, got a {type(pairs).__name__}. Put it in one.")
    rows = pairs.to_dict("records") if frame else list(pairs)
    if not rows:
        raise InputError("There is nothing to compare: no pairs were given.")
    return rows, pairs.index if frame else None


def _begun(place: int, row: Any, fields: _Fields, read: Read, sizes: Sizes) -> _Begun:
    try:
        good, bad, phenomenon, prompt = fields.texts(row)
        items = [_item(text, None if _missing(prompt) else prompt, read) for text in (good, bad)]
        divided = sizes_of(sizes, items, [good, bad])
        return _Begun(SentencePair(items[0], items[1], (divided[0], divided[1])), (good, bad), phenomenon)
    except InputError as error:
        raise InputError(f"Pair {place}: {error}") from None


def _item(text: Any, prompt: Any, read: Read) -> Item:
    if not isinstance(text, str):
        raise InputError(f"A sentence must be a text, got {text!r}. Leave the pair out.")
    return text_item(text, prompt, read)[0]


def _measured(
    request: PairRequest, predictor: Predictor, pairs: Sequence[SentencePair], batch_size: int | None
) -> list[PairScores]:
    """All together; if that fails, an error that names the first pair that fails alone."""
    try:
        return request.measure(predictor, pairs, batch_size=batch_size)
    except InfodisError as error:
        for place, pair in enumerate(pairs):
            try:
                request.measure(predictor, [pair], batch_size=batch_size)
            except InfodisError as mine:
                raise type(mine)(f"Pair {place}: {mine}") from error
        raise
