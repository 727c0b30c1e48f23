"""Rows of many sequences to batches: where `nll` asks a predictor.

Estimates are conversations that yield questions (rows of one length) and wait for answers. Many run side by side; their
rows are sorted by length and cut into batches, so that a few rows each of many sequences fill batches as well as many
rows of one. Which rows share a batch changes no mask, and no number beyond rounding.
"""

import bisect
import dataclasses
import itertools
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeGuard

import torch
from jaxtyping import Float64
from torch import Tensor

from infodis.device import fits
from infodis.errors import InputError, PredictorError
from infodis.observe import Conversation, Question, Result
from infodis.predictor import Predictor, RowPredictor, Rows, check_surprisal

PLAIN_ROWS = 256
"""Rows per call of a predictor that does not say how many tokens it wants at once."""

ROUND = 8
"""Widths of padded batches are multiples of this."""

AHEAD = 2
"""Batches that are asked for before the result of an earlier one is waited for."""


@dataclasses.dataclass(frozen=True)
class Batching:
    """How large a batch may be, and how many conversations are kept going at a time."""

    rows: int | None = None
    """At most so many; by default as many as the predictor wants."""
    together: int = 64

    def __post_init__(self) -> None:
        if min(self.rows or 1, self.together) < 1 or self.rows == 0:
            raise InputError(f"A batch must hold at least one row, got batch_size={self.rows}.")


def converse(conversations: Iterable[Conversation[Result]], batching: Batching) -> Iterator[Result]:
    """Run conversations side by side; their results, in order."""
    waiting = iter(conversations)
    going: dict[int, tuple[Conversation[Result], Question]] = {}
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
        answers = answer([going[number][1] for number in numbers], batching, limits)
        for number, found in zip(numbers, answers, strict=True):
            _resume(number, going.pop(number)[0], found, going, done)


def _resume(
    number: int,
    conversation: Conversation[Result],
    found: Tensor | None,
    going: dict[int, tuple[Conversation[Result], Question]],
    done: dict[int, Result],
) -> None:
    """Hand an answer over (or begin), and note the next question or the result."""
    try:
        question = next(conversation) if found is None else conversation.send(found)
    except StopIteration as stop:
        done[number] = stop.value
    else:
        going[number] = (conversation, question)


def run(conversation: Conversation[Result], batching: Batching = Batching()) -> Result:
    """The result of a single conversation."""
    return next(converse([conversation], batching))


class Limits(dict[int, int]):
    """The most tokens (rows x length) of a predictor's batch, where larger ones did not fit into memory."""

    def __missing__(self, predictor: int) -> int:
        return sys.maxsize


@torch.no_grad()
def answer(questions: Sequence[Question], batching: Batching, limits: Limits) -> list[Float64[Tensor, "rows target"]]:
    """Surprisals at the target positions of every question's rows."""
    order = sorted(range(len(questions)), key=lambda n: (id(questions[n].predictor), -questions[n].tokens.shape[1]))
    answers: dict[int, Tensor] = {}
    for _, members in itertools.groupby(order, key=lambda n: id(questions[n].predictor)):
        numbers = list(members)
        lines = _Lines([questions[n] for n in numbers])
        _fill(lines, batching, limits)
        answers |= dict(zip(numbers, lines.answers, strict=True))
    return [answers[n] for n in range(len(questions))]


class _Lines:
    """The rows of some questions to one predictor, longest first, as if they were one long list; and their answers."""

    def __init__(self, questions: list[Question]) -> None:
        self.questions = questions
        self.answers = [torch.zeros(question.target.shape, dtype=torch.float64) for question in questions]
        self.predictor = questions[0].predictor
        self.lengths = torch.cat([torch.full((len(q.tokens),), q.tokens.shape[1]) for q in questions])
        self.asked: dict[range, tuple[Rows, Tensor]] = {}
        """Batches whose surprisals may still be on their way from a device, the oldest first."""
        self._ends = list(itertools.accumulate(len(question.tokens) for question in questions))

    def ask(self, span: range) -> None:
        """Ask the predictor about some of the rows."""
        rows = self._rows(span)
        self.asked[span] = (rows, _surprisal(self.predictor, rows))

    def take(self, span: range) -> None:
        """Wait for the surprisals of some rows, and note them as answers to their questions."""
        surprisal = _checked(*self.asked.pop(span))
        for number, mine, its in self._parts(span):
            self.answers[number][its] = surprisal[mine].gather(1, self.questions[number].target[its])

    def _rows(self, span: range) -> Rows:
        """Some of the rows, padded to the longest of them."""
        shape = (len(span), int(self.lengths[span.start]))
        tokens = torch.zeros(shape, dtype=torch.int64)
        hidden, wanted = torch.zeros(shape, dtype=torch.bool), torch.zeros(shape, dtype=torch.bool)
        for number, mine, its in self._parts(span):
            question = self.questions[number]
            length = question.tokens.shape[1]
            tokens[mine, :length] = question.tokens[its]
            hidden[mine, :length] = question.hidden[its]
            wanted[mine] = wanted[mine].scatter(1, question.target[its], True)
        return Rows(tokens, hidden, wanted & hidden, self.lengths[span.start : span.stop])

    def _parts(self, span: range) -> Iterator[tuple[int, slice, slice]]:
        """For every question that a span touches: where its rows lie in the span, and in the question."""
        for number in range(bisect.bisect_right(self._ends, span.start), len(self.questions)):
            begin = self._ends[number] - len(self.questions[number].tokens)
            if begin >= span.stop:
                return
            first, last = max(begin, span.start), min(self._ends[number], span.stop)
            yield number, slice(first - span.start, last - span.start), slice(first - begin, last - begin)


def _fill(lines: _Lines, batching: Batching, limits: Limits) -> None:
    """Answer all rows, batch after batch: a device works on some while the answer of an earlier one is waited for.

    A device may run out of memory when it is asked, or not before its answer is waited for. Either way the rows of that
    batch go back to those that are left, to be asked in halves; others keep their answers.
    """
    left = [range(len(lines.lengths))]
    while left or lines.asked:
        if left and len(lines.asked) <= AHEAD:
            rest = left.pop()
            span, step = _span(lines, rest, batching, limits), lines.ask
            if span.stop < rest.stop:
                left.append(range(span.stop, rest.stop))
        else:
            span, step = next(iter(lines.asked)), lines.take
        if not fits(step, span):
            longest = int(lines.lengths[span.start])
            if len(span) == 1:
                raise PredictorError(f"A row of {longest} tokens does not fit into the memory of the device.")
            predictor = id(lines.predictor)
            limits[predictor] = min(limits[predictor], len(span) * longest // 2)
            left.append(span)


def _span(lines: _Lines, rest: range, batching: Batching, limits: Limits) -> range:
    """The rows of the next batch: as many of the rest as fit together."""
    start, predictor, longest = rest.start, lines.predictor, int(lines.lengths[rest.start])
    wanted, pads = PLAIN_ROWS, False
    if _takes_rows(predictor):
        wanted, pads = predictor.tokens_at_once // rounded(longest), predictor.pads
    count = max(1, min(wanted, limits[id(predictor)] // longest, batching.rows or wanted))
    stop = min(rest.stop, start + count)
    if not pads:
        stop = start + int((lines.lengths[start:stop] == longest).sum())
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


def _surprisal(predictor: Predictor, rows: Rows) -> Tensor:
    """At wanted places in one long row, or at all places of a predictor that only knows rows of one length."""
    if _takes_rows(predictor):
        return predictor.surprisals(rows)
    return predictor.surprisal(rows.tokens, rows.hidden)


def _checked(rows: Rows, found: Tensor) -> Float64[Tensor, "rows length"]:
    """Surprisals on the CPU, at their places, after checking that they are some."""
    if found.ndim == 2:
        check_surprisal(found, rows.hidden)
        return found.cpu().double()
    full = torch.zeros(rows.wanted.shape, dtype=torch.float64)
    full[rows.wanted] = found.cpu().double()
    check_surprisal(full, rows.wanted)
    return full
