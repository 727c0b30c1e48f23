"""Do a predictor's conditionals agree with each other? An audit, in nats.

If they come from one joint distribution, revealing two tokens costs the same in either order. The **circulation** of a
pair is the difference [eq:commutator]: for a learned network it is not zero. Three figures follow:

- circulations, by the distance of the two tokens and by the share of the target that is masked;
- the spread of order_nll over reveal orders, where circulations add up;
- the Jensen gap nll - mixture_nll, what that spread does to a likelihood.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import SupportsIndex

import torch
from jaxtyping import Bool, Float64, Int
from torch import Tensor

from infodis.design import ranks
from infodis.errors import InputError
from infodis.estimate import CHUNK, WINDOW, Request
from infodis.evaluate import Batching, Coroutine, ItemBatch, Observations, run_batched
from infodis.item import Item, Positions, Prompt, Tokens, check_items, read_items
from infodis.predictor import Predictor
from infodis.quantities.bounds import Bounds, Plan, bound_items
from infodis.quantities.orders import block_sizes
from infodis.result import Measured, sum_errors
from infodis.rng import check_seed, stream, uniforms

SHARES = 5
"""Bins of the share of the target that is masked, of equal width."""


@dataclasses.dataclass(frozen=True)
class Cell:
    """Circulations of pairs at some distances, with some share of the target masked; in nats."""

    distances: tuple[int, int]
    """The least and the largest."""
    shares: tuple[float, float]
    """More than the first, at most the second."""
    pairs: int
    root_mean_square: Measured
    mean_absolute: Measured


@dataclasses.dataclass(frozen=True, eq=False)
class Circulations:
    """Pairs of positions, and by how many nats revealing the left one first costs more."""

    distance: Int[Tensor, " pairs"]
    size: Int[Tensor, " pairs"]
    """Masked target positions before either is revealed."""
    target: Int[Tensor, " pairs"]
    """Target positions in all."""
    value: Float64[Tensor, " pairs"]
    """NaN where a probability of zero was met: there the difference is not defined."""
    weight: Float64[Tensor, " pairs"]
    """How much likelier the pair is in a random reveal order than it was here, where all cells were drawn alike."""

    @staticmethod
    def join(parts: Sequence["Circulations"]) -> "Circulations":
        names = [field.name for field in dataclasses.fields(Circulations)]
        return Circulations(**{name: torch.cat([getattr(part, name) for part in parts]) for name in names})

    @property
    def impossible(self) -> Bool[Tensor, " pairs"]:
        return self.value.isnan()

    def where(self, chosen: Bool[Tensor, " pairs"]) -> "Circulations":
        names = [field.name for field in dataclasses.fields(self)]
        return Circulations(**{name: getattr(self, name)[chosen] for name in names})

    @property
    def column(self) -> Int[Tensor, " pairs"]:
        """The bin of the distance: 1, 2, 3-4, 5-8, ..."""
        return _distance_bin(self.distance)

    @property
    def line(self) -> Int[Tensor, " pairs"]:
        """The bin of the share masked."""
        return _share_bin(self.size, self.target)


def _distance_bin(distance: Int[Tensor, "*any"]) -> Int[Tensor, "*any"]:
    """0 for 1, 1 for 2, 2 for 3-4, 3 for 5-8, ..."""
    return torch.bucketize(distance, 2 ** torch.arange(40))


def _share_bin(size: Int[Tensor, " any"], target: Int[Tensor, " any"]) -> Int[Tensor, " any"]:
    """Bin b holds shares above b / SHARES, up to (b + 1) / SHARES."""
    return (SHARES * size - 1) // target


@dataclasses.dataclass(frozen=True, eq=False)
class Consistency:
    """How far a predictor's conditionals are from those of one joint distribution, on some sequences.

    Circulations have the law of neighbours in a random reveal order: a size uniform on 2..m, a mask of that size and a
    pair in it uniform. Of a model of blocks, pairs and masks lie inside a block, whose size takes the place of m:
    tokens of different blocks have one order. Standard errors are about these sequences: they come from the pairs and
    orders drawn.
    """

    circulations: Circulations
    bounds: list[Bounds]
    evaluations: int
    """Forward passes spent, those of `bounds` included."""
    seed: int

    @functools.cached_property
    def possible(self) -> Circulations:
        return self.circulations.where(~self.circulations.impossible)

    @property
    def impossible(self) -> int:
        """Pairs left out of every figure, since a probability of zero was met."""
        return int(self.circulations.impossible.sum())

    @property
    def root_mean_square(self) -> Measured:
        """Of the circulation of a pair, in nats."""
        return _root(self.possible.weight * self.possible.value.square())

    @property
    def mean_absolute(self) -> Measured:
        """Of the circulation of a pair, in nats."""
        return _mean(self.possible.weight * self.possible.value.abs())

    @property
    def spread_per_token(self) -> Measured:
        """The standard deviation of order_nll over orders, over the size of the target; mean over sequences."""
        return _over_tokens([one.spread for one in self.bounds], self.bounds)

    @property
    def least_gap_per_token(self) -> Measured:
        """A lower bound of the Jensen gap over the size of the target; mean over sequences."""
        return _over_tokens([one.least_gap for one in self.bounds], self.bounds)

    @property
    def most_gap_per_token(self) -> Measured:
        """An upper bound of the Jensen gap over the size of the target; mean over sequences."""
        return _over_tokens([one.most_gap for one in self.bounds], self.bounds)

    @property
    def table(self) -> list[Cell]:
        """Circulations by distance and share masked; only cells that hold a pair."""
        found = self.possible
        places = sorted(set(zip(found.column.tolist(), found.line.tolist(), strict=True)))
        return [
            _cell(found.where((found.column == column) & (found.line == line)), column, line) for column, line in places
        ]

    def __repr__(self) -> str:
        figures = (
            ("root_mean_square", self.root_mean_square),
            ("mean_absolute", self.mean_absolute),
            ("spread_per_token", self.spread_per_token),
            ("least_gap_per_token", self.least_gap_per_token),
            ("most_gap_per_token", self.most_gap_per_token),
        )
        numbers = ", ".join(f"{name} = {one.value:.4g} +- {one.standard_error:.2g}" for name, one in figures)
        return (
            f"Consistency({numbers}, in nats; pairs={self.circulations.value.numel()}, impossible={self.impossible}, "
            f"sequences={len(self.bounds)}, evaluations={self.evaluations})"
        )


def _mean(values: Float64[Tensor, " draws"]) -> Measured:
    """As `Measured.mean`; infinitely uncertain from fewer than two draws."""
    return Measured.mean(values) if values.numel() > 1 else Measured(float(values.sum()), math.inf)


def _root(squares: Float64[Tensor, " draws"]) -> Measured:
    """The root of a mean, and its error to first order."""
    found = _mean(squares)
    root = math.sqrt(found.value)
    return Measured(root, found.standard_error / (2 * root) if root else found.standard_error)


def _over_tokens(figures: list[Measured], bounds: list[Bounds]) -> Measured:
    """The mean over sequences of a figure per token; equal sequences met equal orders, so their errors add up."""
    errors: dict[int, float] = {}
    for figure, one in zip(figures, bounds, strict=True):
        errors[one.item.key] = errors.get(one.item.key, 0.0) + figure.standard_error / one.tokens
    value = sum(figure.value / one.tokens for figure, one in zip(figures, bounds, strict=True)) / len(bounds)
    return Measured(value, sum_errors(list(errors.values())) / len(bounds))


def _cell(found: Circulations, column: int, line: int) -> Cell:
    largest = 2**column
    return Cell(
        (largest // 2 + 1, largest),
        (line / SHARES, (line + 1) / SHARES),
        found.value.numel(),
        _root(found.value.square()),
        _mean(found.value.abs()),
    )


def audit(
    predictor: Predictor,
    tokens: Tokens,
    *,
    prompt: Prompt = "",
    target: Positions | Sequence[Positions] | None = None,
    context: Positions | Sequence[Positions] | None = None,
    pairs: int = 64,
    orders: int = 32,
    particles: int = 8,
    seed: SupportsIndex = 0,
    batch_size: int | None = None,
) -> Consistency:
    """Measure how much a predictor's conditionals disagree on some sequences; all figures are zero for an oracle.

    Args:
        predictor: any `Predictor`.
        tokens: a text or a sequence of token ids, or many of any lengths.
        prompt, target, context: as for `nll`.
        pairs: circulations drawn for each sequence, spread evenly over distances and shares masked. Each takes at most
            three forward passes: a mask, and the mask without either position.
        orders, particles: as for `bounds`, which gives the spread and the Jensen gap.
        seed: the same seed gives the same pairs for the same sequence, whatever else is scored.
        batch_size: at most so many rows per call of the predictor. It changes no result.

    >>> from infodis import oracle
    >>> chain = oracle.MarkovChain.random(order=2, vocab_size=4, seed=1)
    >>> audit(chain, [0, 1, 2, 3, 0, 1, 2, 3, 0, 1], pairs=16).root_mean_square.value < 1e-9
    True
    """
    plan, number = Plan(orders, particles), check_seed(seed)
    items, _ = read_items(predictor, tokens, prompt=prompt, target=target, context=context)
    check_items(predictor, items)
    check_pairs(items, pairs)
    bounds = bound_items(predictor, items, plan, seed=number, batch_size=batch_size)
    return audit_items(predictor, items, bounds, pairs=pairs, seed=number, batch_size=batch_size)


def audit_items(
    predictor: Predictor,
    items: Sequence[Item],
    bounds: Sequence[Bounds],
    *,
    pairs: int,
    seed: int,
    batch_size: int | None = None,
) -> Consistency:
    """The audit of items whose bounds are known. Of equal items one is looked at; a single position makes no pair."""
    check_pairs(items, pairs)
    audited = list({item.key: item for item in items if max(block_sizes(predictor, item)) > 1}.values())
    if not audited:
        raise InputError(
            "An audit needs pairs of positions that can be revealed in either order; no block of this model holds two "
            "target tokens. An autoregressive model has one order only, and agrees with itself."
        )
    largest = max(3 * pairs * item.target.numel() for item in audited)
    batching = Batching(Request(batch_size=batch_size).batch_size, together=max(1, WINDOW // min(CHUNK, largest)))
    coroutines = (circulation_coroutine(predictor, item, pairs, seed=seed) for item in audited)
    found = list(run_batched(coroutines, batching))
    spent = sum(cost for _, cost in found) + sum({one.item.key: one.evaluations for one in bounds}.values())
    return Consistency(Circulations.join([part for part, _ in found]), list(bounds), spent, seed)


def check_pairs(items: Sequence[Item], pairs: int) -> None:
    """Raise `InputError` unless there are pairs to draw."""
    if isinstance(pairs, bool) or not hasattr(pairs, "__index__") or pairs < 2:
        raise InputError(f"pairs must be a whole number, at least 2 for a standard error, got {pairs!r}.")
    if all(item.target.numel() == 1 for item in items):
        raise InputError("An audit needs pairs of positions; every target holds a single one. Give a longer target.")


def circulation_coroutine(
    predictor: Predictor, item: Item, pairs: int, *, seed: int
) -> Coroutine[tuple[Circulations, int]]:
    """The coroutine that finds some circulations of one item, and the forward passes that they took."""
    batch, length = ItemBatch.of(predictor, [item]), item.target.numel()
    generator = stream(seed, item.key, "circulation")
    sizes = torch.tensor(block_sizes(predictor, item))
    blocks = torch.arange(len(sizes)).repeat_interleave(sizes)
    pair, size, weight = _draw_pairs(item, blocks, pairs, generator=generator)
    masked = _draw_masks(pair, size, blocks, generator=generator)
    values, seen = [], Observations.none(1, length)
    some = max(1, CHUNK // (3 * length))
    for mask, (left, right) in zip(masked.split(some), (p.unbind(1) for p in pair.split(some)), strict=True):
        rows = torch.stack([mask, _without(mask, left), _without(mask, right)], dim=1)
        old = seen.masked.shape[1]
        seen = yield from seen.extend(batch, rows.flatten(0, 1).unsqueeze(0))
        values.append(circulation(seen.surprisal[0, old:].unflatten(0, (-1, 3)), left, right))
        seen = Observations(seen.masked[:, :0], seen.surprisal[:, :0], seen.cost)
    distance = (item.target[pair[:, 1]] - item.target[pair[:, 0]]).abs()
    found = Circulations(distance, size, sizes[blocks[pair[:, 0]]], torch.cat(values), weight)
    return found, int(seen.cost[0])


def _without(masked: Bool[Tensor, "pairs target"], position: Int[Tensor, " pairs"]) -> Bool[Tensor, "pairs target"]:
    return masked.scatter(1, position.unsqueeze(1), False)


def circulation(
    surprisal: Float64[Tensor, "pairs three target"], left: Int[Tensor, " pairs"], right: Int[Tensor, " pairs"]
) -> Float64[Tensor, " pairs"]:
    """f(M, a) + f(M - a, b) - f(M, b) - f(M - b, a), from the surprisals under M, M - a and M - b [eq:commutator].

    NaN where a surprisal is infinite.
    """

    def at(row: int, position: Tensor) -> Tensor:
        return surprisal[:, row].gather(1, position.unsqueeze(1)).squeeze(1)

    first, second = at(0, left) + at(1, right), at(0, right) + at(2, left)
    return torch.where(first.isinf() | second.isinf(), math.nan, first - second)


def _draw_pairs(
    item: Item, blocks: Int[Tensor, " target"], count: int, *, generator: torch.Generator
) -> tuple[Int[Tensor, "pairs two"], Int[Tensor, " pairs"], Float64[Tensor, " pairs"]]:
    """Pairs of places in a block of the target and mask sizes, every cell of the table equally often; and weights.

    In a random reveal order pairs and sizes are uniform and independent. Here the bin of the distance and the bin of
    the share are uniform instead, so a weight is a product of two ratios.
    """
    places = torch.combinations(torch.arange(len(blocks)))
    places = places[blocks[places[:, 0]] == blocks[places[:, 1]]]
    columns = _distance_bin(item.target[places[:, 1]] - item.target[places[:, 0]])
    chosen, weight = _evenly(columns, count, generator=generator)
    pair = places[chosen]
    length = torch.bincount(blocks)[blocks[pair[:, 0]]]
    size = torch.zeros_like(length)
    for its in length.unique().tolist():
        here, sizes = length == its, torch.arange(2, its + 1)
        drawn, ratio = _evenly(_share_bin(sizes, torch.full_like(sizes, its)), int(here.sum()), generator=generator)
        size[here] = sizes[drawn]
        weight[here] *= ratio
    return pair, size, weight


def _evenly(
    bins: Int[Tensor, " things"], count: int, *, generator: torch.Generator
) -> tuple[Int[Tensor, " draws"], Float64[Tensor, " draws"]]:
    """Draw things so that every bin is equally likely; their numbers, and how much likelier uniform draws make them."""
    held = bins.unique(return_counts=True)[1]
    level, key = uniforms(2, count, generator=generator)
    chosen = (level * len(held)).long()
    first = held.cumsum(0) - held
    things = bins.argsort(stable=True)[first[chosen] + (key * held[chosen]).long()]
    return things, held[chosen].double() * len(held) / len(bins)


def _draw_masks(
    pair: Int[Tensor, "pairs two"],
    size: Int[Tensor, " pairs"],
    blocks: Int[Tensor, " target"],
    *,
    generator: torch.Generator,
) -> Bool[Tensor, "pairs target"]:
    """Uniform masks of given sizes, each within the block of a given pair, which it holds."""
    keys = uniforms(len(pair), len(blocks), generator=generator).scatter(1, pair, -1.0)
    return ranks(keys.where(blocks == blocks[pair[:, :1]], math.inf)) < size.unsqueeze(1)


def span_of(low: int, high: int) -> str:
    """A range of distances in words: 1, 2, 3-4, 5-8, ..."""
    return str(low) if low == high else f"{low}-{high}"
