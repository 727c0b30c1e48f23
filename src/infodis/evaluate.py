"""Where a predictor is pending: queries of many estimates in shared batches, each distinct mask of an item once.

Whoever wants surprisals does not call a predictor. It is a **coroutine** that yields a `Query` (rows of one length) and
is resumed with their surprisals. `run_batched` keeps many coroutines going side by side and sorts their rows by length
into batches, so that a few rows each of many sequences fill batches as well as many rows of one. Which rows share a
batch changes no mask, and no number beyond rounding.
"""

import bisect
import contextlib
import contextvars
import dataclasses
import itertools
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import TypeGuard, TypeVar, cast

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int
from torch import Tensor

from infodis.blocks import blocks_of
from infodis.device import fits
from infodis.errors import InputError, PredictorError
from infodis.item import Item
from infodis.predictor import (
    CertaintyPredictor,
    NoisedRows,
    NoisePredictor,
    Predictor,
    RowPredictor,
    Rows,
    check_entropies,
    check_surprisal,
    gather_surprisal,
)
from infodis.reveal import Certainty

Masked = Bool[Tensor, "items rows target"]
Surprisal = Float64[Tensor, "items rows target"]
PerTarget = Float64[Tensor, "rows target"]
Result = TypeVar("Result")

PLAIN_ROWS = 256
"""Rows per call of a predictor that does not say how many tokens it wants at once."""

DISTRIBUTIONS = 2**24
"""Probabilities (rows x length x vocabulary) of a batch of such a predictor, where certainties are asked for."""

ROUND = 8
"""Widths of padded batches are multiples of this."""

AHEAD = 2
"""Batches that are submitted before the result of an earlier one is waited for."""


Passed = Callable[[int], None]
"""Is told how many forward passes were made."""

_passed: contextvars.ContextVar[Passed] = contextvars.ContextVar("passed", default=lambda count: None)


@contextlib.contextmanager
def counting_passes(passed: Passed) -> Iterator[None]:
    """Within this, `passed` is told the forward passes of every batch that is done: for progress. No number changes."""
    token = _passed.set(passed)
    try:
        yield
    finally:
        _passed.reset(token)


@dataclasses.dataclass(frozen=True, eq=False)
class Query:
    """Clean rows of one length, which of their positions are hidden, and the target positions to answer about.

    The answer holds surprisals; with `certainty` it has a second layer, how certain the predictor is at each position.
    Rows that are noised instead of masked (`noise`) are asked for their score entropies.
    """

    predictor: Predictor
    tokens: Int[Tensor, "rows length"]
    hidden: Bool[Tensor, "rows length"]
    target: Int[Tensor, "rows target"]
    certainty: Certainty | None = None
    noise: "Noising | None" = None


@dataclasses.dataclass(frozen=True, eq=False)
class Noising:
    """What noise has made of some rows, and how much of it there was."""

    noised: Int[Tensor, "rows length"]
    totals: Float64[Tensor, " rows"]


Coroutine = Generator[Query, Tensor, Result]
"""Yields queries, is sent their answers, returns a result."""


@dataclasses.dataclass(frozen=True, eq=False)
class ItemBatch:
    """Items of one length and one target size, and the predictor that knows about them."""

    predictor: Predictor
    tokens: Int[Tensor, "items length"]
    target: Int[Tensor, "items target"]
    hidden: Bool[Tensor, "items length"]

    @staticmethod
    def of(predictor: Predictor, items: list[Item]) -> "ItemBatch":
        tokens = torch.stack([item.clean for item in items])
        target = torch.stack([item.target for item in items])
        hidden = torch.zeros(tokens.shape, dtype=torch.bool)
        if not all(item.complete for item in items):
            hidden = torch.stack([item.hidden for item in items])
        return ItemBatch(predictor, tokens, target, hidden)

    def subset(self, items: Int[Tensor, " some"]) -> "ItemBatch":
        return dataclasses.replace(
            self, tokens=self.tokens[items], target=self.target[items], hidden=self.hidden[items]
        )

    @staticmethod
    def joined(batches: "list[ItemBatch]") -> "ItemBatch":
        parts = (torch.cat([getattr(batch, name) for batch in batches]) for name in ("tokens", "target", "hidden"))
        return ItemBatch(batches[0].predictor, *parts)

    def surprisals(self, item: Int[Tensor, " rows"], masked: Bool[Tensor, "rows target"]) -> "Coroutine[PerTarget]":
        """Surprisals at the target positions of single rows, zero where a position is not masked."""
        if len(item) == 0:
            return masked.double()
        found = yield self._query(item, masked)
        return torch.where(masked, found, 0.0)

    def certainties(
        self, item: Int[Tensor, " rows"], masked: Bool[Tensor, "rows target"], certainty: Certainty
    ) -> "Coroutine[tuple[PerTarget, PerTarget]]":
        """Surprisals likewise; and how certain the predictor is, where a position is masked."""
        surprisal, certain = yield self._query(item, masked, certainty)
        return torch.where(masked, surprisal, 0.0), certain

    def entropies(
        self,
        item: Int[Tensor, " rows"],
        states: Int[Tensor, "rows target"],
        totals: Float64[Tensor, " rows"],
        mask: int,
    ) -> "Coroutine[PerTarget]":
        """Score entropies at the target positions of single noised rows. Positions in neither set are at `mask`."""
        tokens, target, hidden = self.tokens[item], self.target[item], self.hidden[item]
        noised = torch.where(hidden, mask, tokens).scatter(1, target, states)
        return (yield Query(self.predictor, tokens, hidden, target, noise=Noising(noised, totals)))

    def _query(
        self, item: Int[Tensor, " rows"], masked: Bool[Tensor, "rows target"], certainty: Certainty | None = None
    ) -> Query:
        target = self.target[item]
        hidden = self.hidden[item].scatter(1, target, masked)
        return Query(self.predictor, self.tokens[item], hidden, target, certainty)


@dataclasses.dataclass(frozen=True, eq=False)
class Observations:
    """What is known about some items: masked rows with their surprisals, and how many forward passes each item cost."""

    masked: Masked
    surprisal: Surprisal
    cost: Int[Tensor, " items"]

    @staticmethod
    def none(items: int, target: int) -> "Observations":
        empty = torch.zeros(items, 0, target)
        return Observations(empty.bool(), empty.double(), torch.zeros(items, dtype=torch.int64))

    def subset(self, items: Int[Tensor, " some"]) -> "Observations":
        return Observations(self.masked[items], self.surprisal[items], self.cost[items])

    @staticmethod
    def joined(seen: "list[Observations]") -> "Observations":
        return Observations(*(torch.cat([getattr(one, f.name) for one in seen]) for f in dataclasses.fields(seen[0])))

    def extend(self, batch: ItemBatch, masked: Masked) -> "Coroutine[Observations]":
        """Add rows. A mask that an item has met before, here or in an earlier row, is not evaluated again."""
        items, old, target = self.masked.shape
        rows = torch.cat([self.masked, masked], dim=1)
        first, same_as = distinct(rows)
        fresh = first[(first % rows.shape[1] >= old) & rows.flatten(0, 1)[first].any(-1)]
        known = torch.cat([self.surprisal, torch.zeros(masked.shape, dtype=torch.float64)], dim=1).flatten(0, 1)
        item = fresh // rows.shape[1]
        known[fresh] = yield from batch.surprisals(item, rows.flatten(0, 1)[fresh])
        cost = self.cost + torch.bincount(item, minlength=items)
        return Observations(rows, known[first[same_as]].view(items, -1, target), cost)


def distinct(rows: Masked) -> tuple[Int[Tensor, " distinct"], Int[Tensor, " all"]]:
    """Where each distinct row of an item first stands among all rows, and for every row the number of its double."""
    items, count, target = rows.shape
    bits = np.packbits(rows.numpy().reshape(items * count, target), axis=1)
    words = -(-bits.shape[1] // 8)
    codes = np.zeros((items * count, 8 * words), dtype=np.uint8)
    codes[:, : bits.shape[1]] = bits
    columns = [np.repeat(np.arange(items), count), *codes.view(np.uint64).T]
    order = np.lexsort(columns[::-1])  # stable: the first occurrence comes first
    changed = np.zeros(items * count, dtype=bool)
    changed[:1] = True
    for column in columns:
        ordered = column[order]
        changed[1:] |= ordered[1:] != ordered[:-1]
    same_as = np.empty(items * count, dtype=np.int64)
    same_as[order] = np.cumsum(changed) - 1
    return torch.from_numpy(order[changed]), torch.from_numpy(same_as)


@dataclasses.dataclass(frozen=True)
class Batching:
    """How large a batch may be, and how many coroutines are kept going at a time."""

    rows: int | None = None
    """At most so many; by default as many as the predictor wants."""
    together: int = 64

    def __post_init__(self) -> None:
        if min(self.rows or 1, self.together) < 1 or self.rows == 0:
            raise InputError(f"A batch must hold at least one row, got batch_size={self.rows}.")


def run_batched(coroutines: Iterable[Coroutine[Result]], batching: Batching) -> Iterator[Result]:
    """Run coroutines side by side; their results, in order."""
    waiting = iter(coroutines)
    going: dict[int, tuple[Coroutine[Result], Query]] = {}
    done: dict[int, Result] = {}
    started = given = 0
    limits = Limits()
    while True:
        while len(going) < batching.together and (fresh := next(waiting, None)) is not None:
            _resume(started, fresh, None, going, done)
            started += 1
        while given in done:
            yield done.pop(given)
            given += 1
        if not going:
            if given == started:
                return
            continue
        numbers = list(going)
        answers = evaluate([going[number][1] for number in numbers], batching, limits)
        for number, found in zip(numbers, answers, strict=True):
            _resume(number, going.pop(number)[0], found, going, done)


def _resume(
    number: int,
    coroutine: Coroutine[Result],
    found: Tensor | None,
    going: dict[int, tuple[Coroutine[Result], Query]],
    done: dict[int, Result],
) -> None:
    """Hand an answer over (or begin), and note the next query or the result."""
    try:
        query = next(coroutine) if found is None else coroutine.send(found)
    except StopIteration as stop:
        done[number] = stop.value
    else:
        going[number] = (coroutine, query)


def run(coroutine: Coroutine[Result], batching: Batching = Batching()) -> Result:
    """The result of a single coroutine."""
    return next(run_batched([coroutine], batching))


class Limits(dict[int, int]):
    """The most tokens (rows x length) of a predictor's batch, where larger ones did not fit into memory."""

    def __missing__(self, predictor: int) -> int:
        return sys.maxsize


@torch.no_grad()
def evaluate(queries: Sequence[Query], batching: Batching, limits: Limits) -> list[Tensor]:
    """The answers of queries, for the target positions of their rows."""

    def kind(number: int) -> tuple[int, int, bool]:
        return id(queries[number].predictor), id(queries[number].certainty), queries[number].noise is None

    order = sorted(range(len(queries)), key=lambda n: (kind(n), -queries[n].tokens.shape[1]))
    answers: dict[int, Tensor] = {}
    for _, members in itertools.groupby(order, key=kind):
        numbers = list(members)
        rows = _QueryRows([queries[n] for n in numbers])
        _evaluate_rows(rows, batching, limits)
        answers |= dict(zip(numbers, rows.answers, strict=True))
    return [answers[n] for n in range(len(queries))]


class _QueryRows:
    """The rows of some queries of one kind, longest first, as if they were one long list; and their answers."""

    def __init__(self, queries: list[Query]) -> None:
        self.queries = queries
        self.predictor, self.certainty = queries[0].predictor, queries[0].certainty
        self.noised = queries[0].noise is not None
        layers = () if self.certainty is None else (2,)
        self.answers = [torch.zeros(*layers, *query.target.shape, dtype=torch.float64) for query in queries]
        self.blocks = blocks_of(self.predictor)
        self.lengths = torch.cat([torch.full((len(q.tokens),), q.tokens.shape[1]) for q in queries])
        self.pending: dict[range, tuple[Rows | NoisedRows, tuple[Tensor, ...]]] = {}
        """Batches whose answers may still be on their way from a device, the oldest first."""
        self._ends = list(itertools.accumulate(len(query.tokens) for query in queries))

    def submit(self, span: range) -> None:
        """Hand some of the rows to the predictor."""
        rows = self._noised_rows(span) if self.noised else self._rows(span)
        self.pending[span] = (rows, _answer(self.predictor, rows, self.certainty))

    def collect(self, span: range) -> None:
        """Wait for the answers about some rows, and note them as answers to their queries."""
        found = _checked(*self.pending.pop(span))
        for number, mine, its in self._parts(span):
            target = self.queries[number].target[its]
            part = found[..., mine, :]
            self.answers[number][..., its, :] = part.gather(-1, target.expand(*part.shape[:-2], *target.shape))
        _passed.get()(len(span))

    def _rows(self, span: range) -> Rows:
        """Some of the rows, padded to the longest of them."""
        shape = (len(span), int(self.lengths[span.start]))
        tokens = torch.zeros(shape, dtype=torch.int64)
        hidden, wanted = torch.zeros(shape, dtype=torch.bool), torch.zeros(shape, dtype=torch.bool)
        starts = torch.zeros(len(span), dtype=torch.int64)
        for number, mine, its in self._parts(span):
            query = self.queries[number]
            length = query.tokens.shape[1]
            tokens[mine, :length] = query.tokens[its]
            hidden[mine, :length] = query.hidden[its]
            wanted[mine] = wanted[mine].scatter(1, query.target[its], True)
            if self.blocks is not None:
                starts[mine] = self.blocks.starts(query.target[its])
        return Rows(tokens, hidden, wanted & hidden, self.lengths[span.start : span.stop], starts)

    def _noised_rows(self, span: range) -> NoisedRows:
        """The same of rows that are noised."""
        shape = (len(span), int(self.lengths[span.start]))
        tokens, noised = torch.zeros(shape, dtype=torch.int64), torch.zeros(shape, dtype=torch.int64)
        wanted, totals = torch.zeros(shape, dtype=torch.bool), torch.zeros(len(span), dtype=torch.float64)
        for number, mine, its in self._parts(span):
            query = self.queries[number]
            length = query.tokens.shape[1]
            tokens[mine, :length] = query.tokens[its]
            wanted[mine] = wanted[mine].scatter(1, query.target[its], True)
            if query.noise is not None:
                noised[mine, :length], totals[mine] = query.noise.noised[its], query.noise.totals[its]
        return NoisedRows(tokens, noised, wanted, self.lengths[span.start : span.stop], totals)

    def _parts(self, span: range) -> Iterator[tuple[int, slice, slice]]:
        """For every query that a span touches: where its rows lie in the span, and in the query."""
        for number in range(bisect.bisect_right(self._ends, span.start), len(self.queries)):
            begin = self._ends[number] - len(self.queries[number].tokens)
            if begin >= span.stop:
                return
            first, last = max(begin, span.start), min(self._ends[number], span.stop)
            yield number, slice(first - span.start, last - span.start), slice(first - begin, last - begin)


def _evaluate_rows(rows: _QueryRows, batching: Batching, limits: Limits) -> None:
    """Answer all rows, batch after batch: a device works on some while the answer of an earlier one is waited for.

    A device may run out of memory when a batch is submitted, or when its answer is collected. Either way the rows of
    that batch go back to those that are left, to be evaluated in halves; others keep their answers.
    """
    left = [range(len(rows.lengths))]
    while left or rows.pending:
        if left and len(rows.pending) <= AHEAD:
            rest = left.pop()
            span, step = _next_batch(rows, rest, batching, limits), rows.submit
            if span.stop < rest.stop:
                left.append(range(span.stop, rest.stop))
        else:
            span, step = next(iter(rows.pending)), rows.collect
        if not fits(step, span):
            longest = int(rows.lengths[span.start])
            if len(span) == 1:
                raise PredictorError(f"A row of {longest} tokens does not fit into the memory of the device.")
            predictor = id(rows.predictor)
            limits[predictor] = min(limits[predictor], len(span) * longest // 2)
            left.append(span)


def _next_batch(rows: _QueryRows, rest: range, batching: Batching, limits: Limits) -> range:
    """The rows of the next batch: as many of the rest as fit together."""
    start, predictor, longest = rest.start, rows.predictor, int(rows.lengths[rest.start])
    wanted, pads = PLAIN_ROWS, False
    if rows.noised:
        noisy = cast(NoisePredictor, predictor)
        wanted, pads = noisy.tokens_at_once // rounded(longest), noisy.pads
    elif _takes_rows(predictor) and (rows.certainty is None or _knows_certainty(predictor)):
        wanted, pads = predictor.tokens_at_once // rounded(longest), predictor.pads
    elif rows.certainty is not None:
        wanted = min(wanted, DISTRIBUTIONS // (longest * predictor.vocab_size))
    count = max(1, min(wanted, limits[id(predictor)] // longest, batching.rows or wanted))
    stop = min(rest.stop, start + count)
    if not pads:
        stop = start + int((rows.lengths[start:stop] == longest).sum())
    return range(start, stop)


def rounded(length: int) -> int:
    """A little more, so that few shapes are met: hardware likes round ones, and libraries keep memory for every one."""
    return -(-length // ROUND) * ROUND


def _takes_rows(predictor: Predictor) -> TypeGuard[RowPredictor]:
    """As isinstance, which takes longer than a small batch."""
    kind = type(predictor)
    if kind not in _KINDS:
        _KINDS[kind] = isinstance(predictor, RowPredictor)
    return _KINDS[kind]


_KINDS: dict[type, bool] = {}


def _knows_certainty(predictor: Predictor) -> TypeGuard[CertaintyPredictor]:
    return isinstance(predictor, CertaintyPredictor)


def _answer(predictor: Predictor, rows: Rows | NoisedRows, certainty: Certainty | None) -> tuple[Tensor, ...]:
    """Surprisals, and certainties if they are asked for; of noised rows, score entropies.

    At wanted places in one long row, or at all places of a predictor that only knows rows of one length.
    """
    if isinstance(rows, NoisedRows):
        return (cast(NoisePredictor, predictor).entropies(rows),)
    if certainty is None:
        if _takes_rows(predictor):
            return (predictor.surprisals(rows),)
        return (predictor.surprisal(rows.tokens, rows.hidden),)
    if _knows_certainty(predictor):
        return predictor.certainties(rows, certainty)
    if blocks_of(predictor) is not None:
        raise PredictorError(
            "A rule that looks at a block diffusion model needs its `certainties` of rows with a mask in every block; "
            f"{type(predictor).__name__} has only log_conditionals. Add the method (see CertaintyPredictor)."
        )
    found = predictor.log_conditionals(torch.where(rows.hidden, predictor.mask_token, rows.tokens))
    surprisal = gather_surprisal(found, rows.tokens, rows.hidden, vocab_size=predictor.vocab_size)
    return surprisal, certainty(found)


def _checked(rows: Rows | NoisedRows, found: tuple[Tensor, ...]) -> Float64[Tensor, "*layers rows length"]:
    """Answers on the CPU, at their places, after checking that the surprisals are some."""
    if isinstance(rows, NoisedRows):
        check_entropies(found[0])
        return _placed(rows, found[0])
    surprisal, *others = (_placed(rows, one) for one in found)
    check_surprisal(surprisal, rows.hidden if found[0].ndim == 2 else rows.wanted)
    return torch.stack([surprisal, *others]) if others else surprisal


def _placed(rows: Rows | NoisedRows, found: Tensor) -> Float64[Tensor, "..."]:
    if found.ndim == 2:
        return found.cpu().double()
    return torch.zeros(rows.wanted.shape, dtype=torch.float64).masked_scatter(rows.wanted, found.cpu().double())
