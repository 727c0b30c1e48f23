"""Variances of designs whose rows are independent, from what rows of each size come to.

A row that masks k of m positions has the value w(k) S, where S is the sum of its surprisals; given its size, every mask
is equally likely. So two **moments** of a text for every size, the mean B(k) and the mean square A(k) of S, and two
facts of a design, a vector a and a matrix D, say what the variance is:

    variance = sum of a(k) A(k) - sum of B(j) D(j, k) B(k)

A budget only enters a and D. One set of rows of a text is therefore enough for all these designs at all budgets, and
there is no chance left in which sizes a design happened to draw. `Pairs` and `Tiled` deal their masks together and are
not among them; nor is anything with a control.
"""

import dataclasses
import math

import numpy as np
import torch
from jaxtyping import Bool, Float64
from torch import Tensor

from infodis.apps.bench.peers import LladaSampler, PaperSampler
from infodis.design import MaskDesign, StratifiedCount, TimeFree, TimeIntegral, UniformCount, ranks
from infodis.errors import InputError
from infodis.evaluate import ItemBatch, run
from infodis.item import Item
from infodis.predictor import Predictor
from infodis.rng import stream, uniforms
from infodis.testing import Tabulated

LOWEST = 1e-3
"""Level at which the time integral begins here. From 0 on its variance is infinite; code that trains such models
commonly begins at this level."""

LEAST, SMALL = 4, 24
"""Masks drawn of every size, and of size 1. Small masks have large weights: size k gets SMALL / k of them."""

NODES = 400
"""Of the quadrature over the logarithm of the level."""

Sizes = Float64[Tensor, " sizes"]


@dataclasses.dataclass(frozen=True, eq=False)
class Moments:
    """Mean and mean square of a row's sum of surprisals, for sizes 1..m."""

    mean: Sizes
    square: Sizes
    noise: Sizes
    """Variance of `mean` itself: zero where it is exact."""
    rows: int
    """Forward passes that it took."""

    @property
    def nll(self) -> float:
        """The sum of B(k) / k [eq:nll]."""
        return float((self.mean / torch.arange(1, len(self.mean) + 1)).sum())

    @staticmethod
    def exact(table: Tabulated) -> "Moments":
        """From all masks."""
        sums = table.table[1:].sum(-1)
        sizes = _popcount(len(table.table))[1:]
        count = torch.bincount(sizes)[1:]
        mean, square = (torch.bincount(sizes, weights=values)[1:] / count for values in (sums, sums.square()))
        return Moments(mean, square, torch.zeros_like(mean), len(sums))

    @staticmethod
    def independent(surprisal: Sizes) -> "Moments":
        """Of tokens that tell nothing about each other: whatever is masked, each costs what it costs."""
        length = len(surprisal)
        size = torch.arange(1, length + 1, dtype=torch.float64)
        total, squares = surprisal.sum(), surprisal.square().sum()
        both = size * (size - 1) / max(1, length * (length - 1))  # two positions are masked together
        return Moments(
            size / length * total,
            size / length * squares + both * (total.square() - squares),
            torch.zeros_like(size),
            rows=0,
        )

    @staticmethod
    def drawn(predictor: Predictor, item: Item, *, seed: int) -> "Moments":
        """From a few masks of every size; unbiased."""
        length = item.target.numel()
        counts = torch.tensor([max(LEAST, SMALL // size) for size in range(1, length)] + [1])
        sizes = torch.arange(1, length + 1).repeat_interleave(counts)
        masked = _random_masks(sizes, length, generator=stream(seed, item.key, "sizes"))
        asked = ItemBatch.of(predictor, [item]).surprisals(torch.zeros(len(sizes), dtype=torch.int64), masked)
        sums = run(asked).sum(-1)
        mean, square = (torch.bincount(sizes, weights=values)[1:] / counts for values in (sums, sums.square()))
        spread = (square - mean.square()) / (counts - 1).clamp(min=1)  # the full mask is only one: nothing is random
        return Moments(mean, square, spread.clamp(min=0), len(sizes))

    def variance(self, law: "Law") -> float:
        """Of a design's estimate. Products of noisy means would be too large by their noise, which is taken off."""
        squares = self.mean @ law.quadratic @ self.mean - (law.quadratic.diagonal() * self.noise).sum()
        return float(law.linear @ self.square - squares)


def _popcount(count: int) -> Tensor:
    codes = torch.arange(count)
    return sum(((codes >> bit) & 1 for bit in range(max(1, (count - 1).bit_length()))), torch.zeros_like(codes))


def _random_masks(sizes: Tensor, length: int, *, generator: torch.Generator) -> Bool[Tensor, "rows length"]:
    return ranks(uniforms(len(sizes), length, generator=generator)) < sizes.unsqueeze(-1)


@dataclasses.dataclass(frozen=True, eq=False)
class Law:
    """The vector a and the matrix D of a design at a budget."""

    linear: Sizes
    quadratic: Float64[Tensor, "sizes sizes"]

    def over(self, times: int) -> "Law":
        """Of the mean of so many independent copies."""
        return Law(self.linear / times, self.quadratic / times)


def law(design: MaskDesign, length: int, rows: int) -> Law:
    """How `rows` rows of a design weigh the moments of a target."""
    sizes = torch.arange(1, length + 1, dtype=torch.float64)
    harmonic = (1 / sizes).sum()
    if isinstance(design, TimeIntegral):
        return _integral(length).over(rows)
    if isinstance(design, TimeFree):
        return _single(1 / (sizes * harmonic), harmonic.expand(length)).over(rows)
    if isinstance(design, PaperSampler):
        chances = torch.where(sizes < length, 1 / sizes, 0.0)
        return _single(chances / chances.sum(), harmonic.expand(length)).over(rows)
    if isinstance(design, UniformCount):
        return _single(torch.full_like(sizes, 1 / length), length / sizes).over(rows)
    if isinstance(design, StratifiedCount):
        return _stratified(design, length, rows)
    if isinstance(design, LladaSampler):
        return _started(design, length).over(rows // design.batch)
    raise InputError(f"The rows of {design!r} are not independent given their sizes: it has to be run again and again.")


def _single(chances: Sizes, weights: Sizes) -> Law:
    """One row of size k with probability chances[k]."""
    expected = chances * weights
    return Law(expected * weights, torch.outer(expected, expected))


def _integral(length: int) -> Law:
    """One row of the time integral from `LOWEST` on: binomial sizes, integrated over the logarithm of the level."""
    sizes = torch.arange(1, length + 1, dtype=torch.float64)
    places, weights = (torch.from_numpy(part) for part in np.polynomial.legendre.leggauss(NODES))
    depth = -math.log(LOWEST) / 2
    level = torch.exp(-(places + 1) * depth).unsqueeze(-1)
    ways = math.lgamma(length + 1) - torch.lgamma(sizes + 1) - torch.lgamma(length - sizes + 1)
    rest = torch.where(sizes == length, 0.0, (length - sizes) * torch.log1p(-level))
    chance = torch.exp(ways + sizes * level.log() + rest)
    expected = (depth * weights).unsqueeze(-1) * chance  # d level / level
    total = expected.sum(0)
    return Law((1 - LOWEST) * (expected / level).sum(0), torch.outer(total, total))


def _stratified(design: StratifiedCount, length: int, rows: int) -> Law:
    """Rows are independent, each with the sizes that its stratum of [0, 1) holds."""
    layout = design.layout(length, rows)
    low = torch.arange(layout.rows, dtype=torch.float64).unsqueeze(-1) / layout.rows
    size = torch.arange(1, length + 1, dtype=torch.float64)
    shared = torch.minimum(low + 1 / layout.rows, size / length) - torch.maximum(low, (size - 1) / length)
    chances = shared.clamp(min=0) * layout.rows
    weights = length / (layout.rows * size)
    expected = chances * weights
    return Law((expected * weights).sum(0), expected.T @ expected).over(layout.replicates)


def _started(design: LladaSampler, length: int) -> Law:
    """A batch whose sizes follow from where it starts, each of the m starts being as likely."""
    levels = ((torch.arange(length, dtype=torch.float64) + 0.5) / length).unsqueeze(-1).expand(-1, design.batch)
    keys = torch.zeros(length, design.batch, length, dtype=torch.float64)
    masked, weight = design.masks(levels, keys)
    size, weights = masked.sum(-1) - 1, weight.amax(-1)
    expected = torch.zeros(length, length, dtype=torch.float64).scatter_add(1, size, weights)
    linear = torch.zeros(length, length, dtype=torch.float64).scatter_add(1, size, weights.square()).mean(0)
    apart = expected - expected.mean(0)
    return Law(linear, linear.diag() - apart.T @ apart / length)
