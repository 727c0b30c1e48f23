"""Rows of many sequences to batches: the only place where a predictor is asked.

Estimates are conversations that yield questions (rows of one length) and wait for answers. Many run side by side; their
rows are sorted by length and cut into batches, so that a few rows each of many sequences fill batches as well as many
rows of one. Which rows share a batch changes no mask, and no number beyond rounding.
"""

import bisect
import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence

import torch
from jaxtyping import Float64
from torch import Tensor

from infodis.errors import InputError, PredictorError
from infodis.observe import Conversation, Question, Result
from infodis.predictor import Predictor, RowPredictor, Rows, check_surprisal

PLAIN_ROWS = 256
"""Rows per call of a predictor that does not say how many tokens it wants at once."""


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
    halvings = Halvings()
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
        answers = answer([going[number][1] for number in numbers], batching, halvings)
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


class Halvings(dict[int, int]):
    """How often a predictor's batches were halved because they did not fit into memory: later ones start smaller."""

    def __missing__(self, predictor: int) -> int:
        return 0


@torch.no_grad()
def answer(
    questions: Sequence[Question], batching: Batching, halvings: Halvings
) -> list[Float64[Tensor, "rows target"]]:
    """Surprisals at the target positions of every question's rows."""
    order = sorted(range(len(questions)), key=lambda n: (id(questions[n].predictor), -questions[n].tokens.shape[1]))
    answers: dict[int, Tensor] = {}
    for _, members in itertools.groupby(order, key=lambda n: id(questions[n].predictor)):
        numbers = list(members)
        lines = _Lines([questions[n] for n in numbers])
        for span in _batches(lines, batching, halvings):
            _ask(lines, span, halvings)
        answers |= dict(zip(numbers, lines.answers, strict=True))
    return [answers[n] for n in range(len(questions))]


class _Lines:
    """The rows of some questions to one predictor, longest first, as if they were one long list; and their answers."""

    def __init__(self, questions: list[Question]) -> None:
        self.questions = questions
        self.answers = [torch.zeros(question.target.shape, dtype=torch.float64) for question in questions]
        self.predictor = questions[0].predictor
        self.lengths = torch.cat([torch.full((len(q.tokens),), q.tokens.shape[1]) for q in questions])
        self._ends = list(itertools.accumulate(len(question.tokens) for question in questions))

    def rows(self, span: range) -> Rows:
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

    def fill(self, span: range, surprisal: Float64[Tensor, "rows length"]) -> None:
        """Note the surprisals of some rows as answers to their questions."""
        for number, mine, its in self._parts(span):
            self.answers[number][its] = surprisal[mine].gather(1, self.questions[number].target[its])

    def _parts(self, span: range) -> Iterator[tuple[int, slice, slice]]:
        """For every question that a span touches: where its rows lie in the span, and in the question."""
        for number in range(bisect.bisect_right(self._ends, span.start), len(self.questions)):
            begin = self._ends[number] - len(self.questions[number].tokens)
            if begin >= span.stop:
                return
            first, last = max(begin, span.start), min(self._ends[number], span.stop)
            yield number, slice(first - span.start, last - span.start), slice(first - begin, last - begin)


def _batches(lines: _Lines, batching: Batching, halvings: Halvings) -> Iterator[range]:
    """Spans of rows that fit together."""
    predictor = lines.predictor
    tokens = predictor.tokens_at_once if isinstance(predictor, RowPredictor) else None
    pads = isinstance(predictor, RowPredictor) and predictor.pads
    start, total = 0, len(lines.lengths)
    while start < total:
        longest = int(lines.lengths[start])
        count = PLAIN_ROWS if tokens is None else tokens // longest
        count = max(1, (count if batching.rows is None else batching.rows) >> halvings[id(predictor)])
        stop = min(total, start + count)
        if not pads:
            stop = start + int((lines.lengths[start:stop] == longest).sum())
        yield range(start, stop)
        start = stop


def _ask(lines: _Lines, span: range, halvings: Halvings) -> None:
    """Answer the rows of a batch; in halves if it does not fit into memory."""
    try:
        lines.fill(span, _surprisal(lines.predictor, lines.rows(span)))
        return
    except torch.OutOfMemoryError:
        if len(span) == 1:
            length = int(lines.lengths[span.start])
            raise PredictorError(f"A row of {length} tokens does not fit into the memory of the device.") from None
    halvings[id(lines.predictor)] += 1
    middle = (span.start + span.stop) // 2
    _ask(lines, range(span.start, middle), halvings)
    _ask(lines, range(middle, span.stop), halvings)


def _surprisal(predictor: Predictor, rows: Rows) -> Float64[Tensor, "rows length"]:
    if not isinstance(predictor, RowPredictor):
        found = predictor.surprisal(rows.tokens, rows.hidden)
        check_surprisal(found, rows.hidden)
        return found.to("cpu", torch.float64)
    picked = predictor.surprisals(rows).to("cpu", torch.float64)
    full = torch.zeros(rows.wanted.shape, dtype=torch.float64)
    full[rows.wanted] = picked
    check_surprisal(full, rows.wanted)
    return full
