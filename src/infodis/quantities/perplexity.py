"""Likelihood of long texts: windows one after another, and what they add up to, with its errors."""

import dataclasses
import math
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from infodis.auto import Auto
from infodis.control import Control, Neighbours
from infodis.design import MaskDesign
from infodis.errors import InputError
from infodis.estimate import Request, estimate_items
from infodis.item import Item
from infodis.predictor import Predictor
from infodis.result import Estimate, Rate
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
    """Of `nats` as a stand-in for more text of the same kind, from the spread of windows; None for a single window."""

    @property
    def bits_per_token(self) -> float:
        return self.nats / self.tokens / math.log(2)

    @property
    def perplexity(self) -> float:
        return math.exp(self.nats / self.tokens)

    def per_token(self, error: float) -> float:
        """An error in nats as bits per token."""
        return error / self.tokens / math.log(2)


def perplexity(
    predictor: Predictor,
    tokens: Int[Tensor, " tokens"],
    *,
    windows: Windows,
    limit: int | None = None,
    evaluations: int = 32,
    design: MaskDesign = Auto(),
    control: Control | None = Neighbours(),
    seed: int = 0,
    batch_size: int | None = None,
    around: tuple[Sequence[int], Sequence[int]] = ((), ()),
    progress: Callable[[int, int], None] | None = None,
) -> Perplexity:
    """Score a long text window by window. `limit` scores only so many, evenly spread over the text.

    `around` holds special tokens to put before and behind every window, as context; see `Model.around`.
    """
    if len(tokens) == 0:
        raise InputError("There is nothing to score: the text is empty.")
    if limit is not None and limit < 1:
        raise InputError(f"limit must be at least 1, got {limit}.")
    spans = windows.spans(len(tokens))
    count = len(spans) if limit is None else min(limit, len(spans))
    chosen = torch.linspace(0, len(spans) - 1, count, dtype=torch.float64).long().tolist()
    request = Request(design, control, evaluations, batch_size=batch_size)
    found: list[Estimate] = []
    for first in range(0, count, TOGETHER):
        numbers = chosen[first : first + TOGETHER]
        places = [spans[number] for number in numbers]
        items = [window_item(tokens[span.start : span.stop], context, around) for span, context in places]
        # windows are named by number: equal ones must not share their masks, or their errors would add up
        names = [key("window", number) for number in numbers]
        found += estimate_items(predictor, items, request, seed=check_seed(seed), names=names)
        if progress is not None:
            progress(len(found), count)
    return _add(found)


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
