"""Likelihood of long texts: windows one after another, and what they add up to, with its errors."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Iterator

import torch
from jaxtyping import Int
from torch import Tensor

from infodis.control import Control, Neighbours
from infodis.design import Auto, MaskDesign
from infodis.errors import InputError
from infodis.estimate import Estimate, nll
from infodis.predictor import Predictor

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

    def cut(self, tokens: Int[Tensor, " tokens"]) -> Iterator[tuple[Int[Tensor, " window"], int]]:
        """Windows, and how many of their first tokens are context. Every token is a target once."""
        stride = self.stride or self.length
        yield tokens[: self.length], 0
        for start in range(stride, len(tokens) - (self.length - stride), stride):
            yield tokens[start : start + self.length], self.length - stride


@dataclasses.dataclass(frozen=True)
class Perplexity:
    """What a text costs under a model."""

    nats: float
    tokens: int
    windows: int
    evaluations: int
    monte_carlo_error: float
    """Of `nats`, from the masks drawn: what more forward rows would remove."""
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
    batch_size: int = 64,
    progress: Callable[[int, int], None] | None = None,
) -> Perplexity:
    """Score a long text window by window. `limit` scores only so many, evenly spread over the text."""
    if len(tokens) == 0:
        raise InputError("There is nothing to score: the text is empty.")
    cut = list(windows.cut(tokens))
    if limit is not None and limit < len(cut):
        if limit < 1:
            raise InputError(f"limit must be at least 1, got {limit}.")
        cut = [cut[n] for n in torch.linspace(0, len(cut) - 1, limit).long().tolist()]
    found: list[Estimate] = []
    for (context, _), together in itertools.groupby(cut, key=lambda each: (each[1], len(each[0]))):
        group = [window for window, _ in together]
        for start in range(0, len(group), TOGETHER):
            estimates = nll(
                predictor,
                torch.stack(group[start : start + TOGETHER]),
                context=range(context),
                evaluations=evaluations,
                design=design,
                control=control,
                seed=seed,
                batch_size=batch_size,
            )
            found += estimates if isinstance(estimates, list) else [estimates]
            if progress is not None:
                progress(len(found), len(cut))
    return _add(found, [len(window) - context for window, context in cut])


def _add(found: Iterable[Estimate], counts: list[int]) -> Perplexity:
    estimates = list(found)
    nats = torch.tensor([e.value for e in estimates], dtype=torch.float64)
    tokens = torch.tensor(counts, dtype=torch.float64)
    rate = float(nats.sum() / tokens.sum())
    spread = (nats - rate * tokens).square().sum()  # of a ratio of sums
    number = len(estimates)
    return Perplexity(
        nats=float(nats.sum()),
        tokens=int(tokens.sum()),
        windows=number,
        evaluations=sum(e.evaluations for e in estimates),
        monte_carlo_error=math.sqrt(sum(e.standard_error**2 for e in estimates)),
        sampling_error=None if number < 2 else math.sqrt(float(spread) * number / (number - 1)),
    )
