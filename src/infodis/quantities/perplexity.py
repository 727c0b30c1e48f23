"""Likelihood of long texts: windows one after another, and what they add up to, with its errors."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from infodis import notebook
from infodis.auto import Auto
from infodis.control import Control, Surrogate
from infodis.design import MaskDesign
from infodis.errors import InputError
from infodis.estimate import Request, estimate_items
from infodis.item import Item, TextReader, Tokens, as_sequence, list_sequences, text_reader
from infodis.predictor import Predictor
from infodis.result import Estimate, Measured, Rate, exp
from infodis.rng import check_seed, key

TOGETHER = 16
"""Windows handed to `nll` at a time: enough to fill batches, few enough to show progress."""


@dataclasses.dataclass(frozen=True)
class Windows:
    """How a long text is cut: `length` tokens at a time, each window `stride` further on.

    A window is scored given the tokens that it shares with the one before. `stride` = `length` means no context: every
    window is scored by itself.
    """

    length: int
    stride: int | None = None

    def __post_init__(self) -> None:
        if self.length < 1:
            raise InputError(f"A window holds at least one token, got {self.length}.")
        if self.stride is not None and not 1 <= self.stride <= self.length:
            raise InputError(f"The stride must lie in 1..{self.length} (the window's length), got {self.stride}.")

    def spans(self, tokens: int) -> "Spans":
        """Where the windows of a text of so many tokens lie. Every token is a target once."""
        stride = self.stride or self.length
        return Spans(self, range(0, max(1, tokens - (self.length - stride)), stride), tokens)


@dataclasses.dataclass(frozen=True)
class Spans:
    """The windows of a text, by number."""

    windows: Windows
    starts: range
    tokens: int

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, number: int) -> tuple[range, int]:
        """The positions of a window, and how many of the first of them are context."""
        start, length = self.starts[number], self.windows.length
        context = length - (self.windows.stride or length) if number else 0
        return range(start, min(start + length, self.tokens)), context


@dataclasses.dataclass(frozen=True)
class Perplexity:
    """What a text costs under a model."""

    nats: float
    tokens: int
    windows: int
    evaluations: int
    monte_carlo_error: float
    """Of `nats`, from the masks drawn: what more forward passes would remove."""
    sampling_error: float | None
    """Of `nats` as an estimate for more text of the same kind, from the spread of windows; None for a single window."""
    bytes: int | None = None
    """UTF-8 bytes of the text, if it was text and all of it was scored."""

    @property
    def bits_per_token(self) -> float:
        return self.nats / self.tokens / math.log(2)

    @property
    def bits_per_byte(self) -> float | None:
        return None if not self.bytes else self.nats / self.bytes / math.log(2)

    @property
    def perplexity(self) -> float:
        """The exponential of the nats per token."""
        return exp(self.nats / self.tokens)

    @property
    def perplexity_error(self) -> float:
        """Standard error of `perplexity`, from the masks drawn."""
        return self.perplexity * self.monte_carlo_error / self.tokens

    def __float__(self) -> float:
        return self.perplexity

    def _repr_html_(self) -> str:
        size = [] if self.bits_per_byte is None else [("bits per byte", f"{self.bits_per_byte:.4g}")]
        facts = [
            ("perplexity", f"<b>{notebook.text(Measured(self.perplexity, self.perplexity_error))}</b>"),
            ("bits per token", f"{self.bits_per_token:.4g}"),
            *size,
            ("tokens", f"{self.tokens}"),
            ("windows", f"{self.windows}"),
            ("forward passes", f"{self.evaluations}"),
        ]
        return notebook.facts(facts, caption="perplexity, ± the standard error of the masks")

    def __repr__(self) -> str:
        size = "" if self.bits_per_byte is None else f", bits_per_byte={self.bits_per_byte:.4f}"
        return (
            f"Perplexity({Measured(self.perplexity, self.perplexity_error)}, bits_per_token={self.bits_per_token:.4f}"
            f"{size}, tokens={self.tokens}, windows={self.windows}, evaluations={self.evaluations})"
        )

    def per_token(self, error: float) -> float:
        """An error in nats as bits per token."""
        return error / self.tokens / math.log(2)


def perplexity(
    predictor: Predictor,
    documents: Tokens,
    *,
    windows: Windows | None = None,
    limit: int | None = None,
    evaluations: int = 32,
    design: MaskDesign = Auto(),
    control: Control | None = Surrogate(),
    seed: int = 0,
    batch_size: int | None = None,
    around: tuple[Sequence[int], Sequence[int]] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Perplexity:
    """Score long texts window by window: perplexity, bits per token and per byte, with two errors.

    Args:
        predictor: a model (`infodis.load`) or any other `Predictor`.
        documents: a text, or the token ids of one; or a list of them. Windows do not reach from one into the next.
        windows: how documents are cut; by default into rows of the length that the model was trained with.
        limit: score only so many windows, evenly spread over the documents.
        evaluations: forward passes to spend on each window.
        design, control, seed, batch_size: as for `nll`.
        around: special tokens to put before and behind every window, as context; by default those of the model's
            tokenizer for text, and none for token ids.
        progress: called with the windows done and their number, from time to time.

    >>> import infodis
    >>> found = infodis.perplexity(infodis.load("text8-tiny"), ["the capital of france", "is paris"], evaluations=8)
    >>> 1 < found.perplexity < 27, found.bytes
    (True, 29)
    """
    rows = _tokenised(predictor, documents)
    if limit is not None and limit < 1:
        raise InputError(f"limit must be at least 1, got {limit}.")
    sides = _around(predictor, rows) if around is None else around
    cut = _default_windows(predictor, sides) if windows is None else windows
    places = list(_places(rows, cut))
    count = len(places) if limit is None else min(limit, len(places))
    chosen = torch.linspace(0, len(places) - 1, count, dtype=torch.float64).long().tolist()
    request = Request(design, control, evaluations, batch_size=batch_size)
    found: list[Estimate] = []
    for first in range(0, count, TOGETHER):
        some = [places[number] for number in chosen[first : first + TOGETHER]]
        items = [window_item(place.tokens, place.context, sides) for place in some]
        names = [place.name for place in some]
        found += estimate_items(predictor, items, request, seed=check_seed(seed), names=names)
        if progress is not None:
            progress(len(found), count)
    sizes = [row.bytes for row in rows]
    whole = count == len(places) and None not in sizes
    return dataclasses.replace(_add(found), bytes=sum(size or 0 for size in sizes) if whole else None)


@dataclasses.dataclass(frozen=True, eq=False)
class _Row:
    """A document as tokens, and its size in bytes if it was text."""

    tokens: Int[Tensor, " tokens"]
    bytes: int | None


@dataclasses.dataclass(frozen=True, eq=False)
class _Place:
    """A window: its tokens, how many of the first are context, and its name in the random streams."""

    tokens: Int[Tensor, " tokens"]
    context: int
    name: int


def _tokenised(predictor: Predictor, documents: Tokens) -> list[_Row]:
    """One row for every document."""
    given, single = list_sequences(documents)
    rows = []
    for number, one in enumerate(given):
        try:
            rows.append(_row(predictor, one))
        except InputError as error:
            raise error if single else InputError(f"Document {number}: {error}") from None
    return rows


def _row(predictor: Predictor, document: Any) -> _Row:
    if isinstance(document, str):
        row = _Row(text_reader(predictor).encode(document).long(), len(document.encode()))
        if not len(row.tokens):
            raise InputError("There is nothing to score: the text is empty. Leave it out.")
        return row
    return _Row(as_sequence(document), None)


def _around(predictor: Predictor, rows: Sequence[_Row]) -> tuple[Sequence[int], Sequence[int]]:
    text = all(row.bytes is not None for row in rows)
    return predictor.around() if text and isinstance(predictor, TextReader) else ((), ())


def _default_windows(predictor: Predictor, around: tuple[Sequence[int], Sequence[int]]) -> Windows:
    """As long as the rows that a model was trained with, special tokens included."""
    length = predictor.length if isinstance(predictor, TextReader) else None
    if length is None:
        raise InputError(
            f"A {type(predictor).__name__} does not say how long its rows are. Give windows=Windows(length=512), "
            "from infodis.quantities.perplexity."
        )
    return Windows(length - sum(len(part) for part in around))


def _places(rows: Sequence[_Row], windows: Windows) -> Iterator[_Place]:
    """All windows, named by number: equal ones must not share their masks, or their errors would add up."""
    for document, row in enumerate(rows):
        spans = windows.spans(len(row.tokens))
        for number in range(len(spans)):
            span, context = spans[number]
            name = key("window", number) if len(rows) == 1 else key("window", document, number)
            yield _Place(row.tokens[span.start : span.stop], context, name)


def window_item(
    window: Int[Tensor, " tokens"], context: int, around: tuple[Sequence[int], Sequence[int]] = ((), ())
) -> Item:
    """A window as a thing to score, given its first `context` tokens and the special tokens around it."""
    before, behind = (torch.tensor(part, dtype=torch.int64) for part in around)
    row = torch.cat([before, window, behind])
    first, last = len(before) + context, len(row) - len(behind)
    return Item.read(row, target=range(first, last), context=[*range(first), *range(last, len(row))])


def _add(estimates: list[Estimate]) -> Perplexity:
    nats, errors = (
        torch.tensor([getattr(e, name) for e in estimates], dtype=torch.float64) for name in ("value", "standard_error")
    )
    tokens = torch.tensor([e.target.numel() for e in estimates], dtype=torch.float64)
    rate, total = Rate.over(nats, tokens, errors.square()), float(tokens.sum())
    return Perplexity(
        nats=float(nats.sum()),
        tokens=int(total),
        windows=len(estimates),
        evaluations=sum(e.evaluations for e in estimates),
        monte_carlo_error=float(rate.monte_carlo_error) * total,
        sampling_error=None if rate.sampling_error is None else float(rate.sampling_error) * total,
    )
