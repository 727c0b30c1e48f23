"""Mask designs: where to look in order to estimate an `nll`.

The quantity is a weighted sum over all masks M of the target and all positions i in M,

    nll = sum of f(M, i) / (k C(m, k)),   k = |M|, m = target length, f(M, i) = -log p(x_i | all that M leaves visible)

and there are 2^m - 1 masks. A **design** draws a few of them at random, with weights. It is unbiased exactly when the
expected total weight on every pair (M, i) is 1 / (k C(m, k)) [eq:certificate]; the tests check that by enumeration.

A design here is a pure function from uniform random numbers to weighted masks: one `level` per row decides how many
positions are masked, one `key` per row and position decides which. Handing the same numbers to two sequences couples
their estimates; that is all there is to a coupled likelihood ratio.

Rows come in **replicates**: independent, identically distributed copies of the whole design, each of them unbiased.
Their spread is the only source of standard errors.
"""

import abc
import dataclasses
import functools
import math
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float64, Int
from torch import Tensor

from infodis.errors import InputError
from infodis.rng import Name, uniforms, uniforms_of

Levels = Float64[Tensor, "batch rows"]
Keys = Float64[Tensor, "batch rows length"]
WeightedMasks = tuple[Bool[Tensor, "batch rows length"], Float64[Tensor, "batch rows length"]]

LONGEST_ENUMERATION = 20
"""`Enumerate` lists 2^m - 1 masks; past this length that is more than a million."""

FEWEST_REPLICATES = 4
"""With fewer, a spread says nothing about a standard error on average [eq:stein]."""

FEW_ROWS = 8
"""From here to three times as many rows, pairs of replicates are drawn together."""

SMALLEST_STAGE = 72
"""Forward passes of a first stage at least: a pilot, and eight replicates of eight rows."""

FIRST_STAGE = 16
"""The most replicates whose spread decides how many more a requested standard error takes [eq:stein]."""


@dataclasses.dataclass(frozen=True)
class Layout:
    """How a budget of forward passes becomes replicates: `replicates` times `rows` masks each.

    Where rows are very few, `together` replicates are the parts of one larger plan, which varies less than that many
    small ones. They stand for replicates in standard errors, and take turns in the plan's sizes; controls are fitted
    across plans. What the parts of a plan have in common would make their spread too small; but parts complement each
    other, and differ in their sizes, so that it is rather too large.
    """

    replicates: int
    rows: int
    together: int = 1

    @property
    def plan(self) -> "Layout":
        """What is drawn from one stream, as a single replicate."""
        return Layout(1, self.rows * self.together)

    @property
    def turns(self) -> Int[Tensor, " rows"]:
        """The rows of a plan, replicate by replicate: of four rows in turn, two replicates have the outer and inner."""
        place = torch.arange(self.rows * self.together)
        forth, back = place % self.together, self.together - 1 - place % self.together
        return torch.where(place // self.together % 2 == 0, forth, back).argsort(stable=True)


@dataclasses.dataclass(frozen=True)
class MaskDesign(abc.ABC):
    """How masks and weights are drawn. Final subclasses are values: equal, printable, with their options as fields."""

    @property
    def telescoping(self) -> bool:
        """Whether the weights make whole chain rules, so that there is nothing left for a control to subtract."""
        return False

    def parts(self, length: int) -> tuple[int, ...]:
        """The sizes of the pieces of a target that are drawn independently: one, except for `Blocks`."""
        return (length,)

    def over(self, sizes: tuple[int, ...]) -> "MaskDesign":
        """The design for a target that lies in blocks of these sizes: the same, except for `Blocks` and `Auto`."""
        return self

    def exhaustive(self) -> "MaskDesign":
        """All masks of the same pieces."""
        return Enumerate()

    @abc.abstractmethod
    def layout(self, length: int, rows: int) -> Layout:
        """The replicates that `rows` forward passes pay for; `InputError` names the smallest legal budget."""

    def first_stage(self, length: int, rows: int) -> Layout:
        """About `rows` forward passes as replicates whose spread decides how many a requested standard error takes."""
        return self.layout(length, rows)

    def fewest_replicates(self, length: int, rows: int) -> Layout:
        """The same for training, where no spread is looked at: one replicate, if the design can make one of any size.

        Rows of a replicate complement each other: one large replicate varies less than the mean of small ones.
        """
        return Layout(replicates=1, rows=rows)

    @abc.abstractmethod
    def masks(self, levels: Levels, keys: Keys) -> WeightedMasks:
        """One replicate per batch entry, from its uniform numbers. Weights are zero where nothing is masked.

        A design of several `parts` finds the levels of all but the first among the keys, before those of its positions.
        """

    def pilot(self, length: int, rows: int) -> Bool[Tensor, "pilot length"]:
        """Masks to look at before choosing a design: none, except for `Auto`."""
        return torch.zeros(0, length, dtype=torch.bool)

    def choose_design(
        self, length: int, rows: int, surprisal: Float64[Tensor, "*all pilot length"], *, precision: float | None = None
    ) -> tuple["MaskDesign", int]:
        """The design to draw from, and the rows left to spend, given the surprisals that `pilot` asked for.

        `precision` is the standard error that was asked for, if one was.
        """
        return self, rows


def key_count(design: MaskDesign, length: int) -> int:
    """Keys of a row: one for every position, and one for the level of every piece but the first."""
    return length + len(design.parts(length)) - 1


def numbers(length: int, layout: Layout, generators: Sequence[torch.Generator]) -> tuple[Levels, Keys]:
    """The uniform numbers of some replicates, each from its own generator: levels, then keys position by position.

    The first positions of a longer target get the same keys as those of a shorter one. That couples unequal lengths.
    """
    return _levels_and_keys(
        torch.stack([uniforms(1 + length, layout.rows, generator=generator) for generator in generators])
    )


def numbers_of(length: int, layout: Layout, *, seed: int, paths: Sequence[tuple[Name, ...]]) -> tuple[Levels, Keys]:
    """The same for many replicates, each from the stream of its path."""
    return _levels_and_keys(uniforms_of(seed, paths, 1 + length, layout.rows))


def _levels_and_keys(drawn: Float64[Tensor, "batch places rows"]) -> tuple[Levels, Keys]:
    return drawn[:, 0], drawn[:, 1:].transpose(1, 2)


def _check(length: int, rows: int, *, smallest: int, design: str) -> None:
    if length < 1:
        raise InputError(f"A target must hold at least one position, got {length}.")
    if rows < smallest:
        raise InputError(
            f"A standard error needs two replicates. With a target of {length}, {design} needs {smallest} forward "
            f"passes for them; the budget is {rows}. Ask for evaluations={smallest} or more, or for another design."
        )


def _check_one(length: int, rows: int, *, smallest: int, design: str) -> None:
    if rows < smallest:
        raise InputError(
            f"With a target of {length}, {design} needs {smallest} forward passes; the budget is {rows}. Ask for "
            f"evaluations={smallest} or more, or for another design."
        )


def lowest(keys: Keys, sizes: Int[Tensor, "batch rows"]) -> Bool[Tensor, "batch rows length"]:
    """In each row the `size` positions with the smallest keys: a uniformly random set of that size."""
    return ranks(keys) < sizes.unsqueeze(-1)


def ranks(keys: Tensor) -> Int[Tensor, "..."]:
    """The place of every entry in the sorted order of its row."""
    order = keys.argsort(-1)
    places = torch.arange(keys.shape[-1]).expand_as(order)
    return torch.empty_like(order).scatter_(-1, order, places)


def _per_position(masked: Tensor, weight: Float64[Tensor, "batch rows"]) -> WeightedMasks:
    """Give every masked position of a row the same weight."""
    return masked, masked * weight.unsqueeze(-1)


def _single_rows(length: int, rows: int, design: str) -> Layout:
    """Every row a replicate of its own: for designs whose rows are independent."""
    _check(length, rows, smallest=2, design=design)
    return Layout(replicates=rows, rows=1)


def _few_replicates(length: int, rows: int, design: str) -> Layout:
    """Four replicates, more for large budgets: for designs whose rows help each other within a replicate.

    Replicates are all alike. Where four would leave rows of the budget over, a few more that leave fewer are taken.
    """
    _check(length, rows, smallest=2, design=design)
    fewest = min(rows, 4 if rows < 256 else 8 if rows < 1024 else 16)
    replicates = min(range(fewest, 2 * fewest), key=lambda count: rows % count)
    return Layout(replicates, rows // replicates)


def _many_replicates(length: int, rows: int, design: str) -> Layout:
    """As many replicates as rows in each, at most sixteen.

    Large replicates vary less, row for row, and are nearly normal; many of them know their spread better. Neither is
    worth having without the other.
    """
    _check(length, rows, smallest=FEWEST_REPLICATES, design=design)
    replicates = min(FIRST_STAGE, max(FEWEST_REPLICATES, math.isqrt(rows)))
    return Layout(replicates, rows // replicates)


@dataclasses.dataclass(frozen=True)
class TimeIntegral(MaskDesign):
    """The paper's baseline: level u ~ U(0, 1), every position masked with probability u, weight 1/u [eq:time-integral].

    Unbiased; its variance is infinite (it grows with the logarithm of the number of rows), so its standard error is
    not to be trusted. Rows with nothing masked cost no forward pass.

    >>> import infodis
    >>> from infodis.oracle import MarkovChain
    >>> chain = MarkovChain.random(order=1, vocab_size=3)
    >>> estimate = infodis.nll(chain, [0, 1, 2, 0, 1, 2, 0, 1], design=infodis.TimeIntegral())
    >>> abs(estimate.value + chain.log_prob([0, 1, 2, 0, 1, 2, 0, 1])) < 5 * estimate.standard_error
    True
    """

    def layout(self, length: int, rows: int) -> Layout:
        return _single_rows(length, rows, "TimeIntegral")

    def masks(self, levels: Levels, keys: Keys) -> WeightedMasks:
        masked = keys < levels.unsqueeze(-1)
        return _per_position(masked, 1 / (levels * levels.shape[-1]).clamp(min=torch.finfo(levels.dtype).tiny))


@dataclasses.dataclass(frozen=True)
class TimeFree(MaskDesign):
    """The paper's Theorem (time-free): size k with probability (1/k)/H_m, weight H_m [eq:time-free].

    Unbiased. k = m, everything masked, is drawn too: leaving it out is the bug of the paper's scripts.

    >>> import infodis
    >>> from infodis.oracle import MarkovChain
    >>> chain = MarkovChain.random(order=1, vocab_size=3)
    >>> estimate = infodis.nll(chain, [0, 1, 2, 0, 1, 2, 0, 1], design=infodis.TimeFree())
    >>> abs(estimate.value + chain.log_prob([0, 1, 2, 0, 1, 2, 0, 1])) < 5 * estimate.standard_error
    True
    """

    def layout(self, length: int, rows: int) -> Layout:
        return _single_rows(length, rows, "TimeFree")

    def masks(self, levels: Levels, keys: Keys) -> WeightedMasks:
        inverse = 1 / torch.arange(1, keys.shape[-1] + 1, dtype=torch.float64)
        harmonic = inverse.sum()
        cumulative = (inverse.cumsum(0) / harmonic)[:-1].contiguous()
        sizes = 1 + torch.searchsorted(cumulative, levels.contiguous(), right=True)
        return _per_position(lowest(keys, sizes), (harmonic / levels.shape[-1]).expand_as(levels))


@dataclasses.dataclass(frozen=True)
class UniformCount(MaskDesign):
    """Size k uniform on 1..m, weight m/k [eq:uniform-count]: RADD's k-DCE. Unbiased.

    >>> import infodis
    >>> from infodis.oracle import MarkovChain
    >>> chain = MarkovChain.random(order=1, vocab_size=3)
    >>> estimate = infodis.nll(chain, [0, 1, 2, 0, 1, 2, 0, 1], design=infodis.UniformCount())
    >>> abs(estimate.value + chain.log_prob([0, 1, 2, 0, 1, 2, 0, 1])) < 5 * estimate.standard_error
    True
    """

    def layout(self, length: int, rows: int) -> Layout:
        return _single_rows(length, rows, "UniformCount")

    def masks(self, levels: Levels, keys: Keys) -> WeightedMasks:
        return _uniform_count(levels, keys)


@dataclasses.dataclass(frozen=True)
class PowerCount(MaskDesign):
    """Size k with probability p(k) proportional to k^-power, weight 1 / (k p(k)) [eq:power-count]. Unbiased.

    `UniformCount` is power 0, `TimeFree` is power 1. A sum of k surprisals, less their means, grows with the square
    root of k: at power 1/2 small and large masks contribute equally to the spread, so that single rows have no long
    tails. That is what races need. Several rows of a replicate are stratified.

    >>> import infodis
    >>> from infodis.oracle import MarkovChain
    >>> chain = MarkovChain.random(order=1, vocab_size=3)
    >>> estimate = infodis.nll(chain, [0, 1, 2, 0, 1, 2, 0, 1], design=infodis.PowerCount())
    >>> abs(estimate.value + chain.log_prob([0, 1, 2, 0, 1, 2, 0, 1])) < 5 * estimate.standard_error
    True
    """

    power: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.power <= 1:
            raise InputError(f"PowerCount needs a power from 0 to 1, got {self.power}.")

    def layout(self, length: int, rows: int) -> Layout:
        return _single_rows(length, rows, "PowerCount")

    def masks(self, levels: Levels, keys: Keys) -> WeightedMasks:
        density = torch.arange(1, keys.shape[-1] + 1, dtype=torch.float64) ** -self.power
        sizes, weight = _stratified_sizes(levels, density)
        return _per_position(lowest(keys, sizes), weight)


def _stratified_sizes(levels: Levels, density: Float64[Tensor, " sizes"]) -> tuple[Int[Tensor, "batch rows"], Levels]:
    """Stratified sizes, one for every row, k with a probability proportional to its density; weights of these rows."""
    rows, share = levels.shape[-1], density / density.sum()
    strata = (torch.arange(rows) + levels) / rows
    sizes = 1 + torch.searchsorted(share.cumsum(0)[:-1].contiguous(), strata.contiguous(), right=True)
    return sizes, 1 / (rows * sizes * share[sizes - 1])


@dataclasses.dataclass(frozen=True)
class StratifiedCount(MaskDesign):
    """UniformCount with one level per stratum of [0, 1) and never a rounding: the honest form of LLaDA's sampler.

    >>> import infodis
    >>> from infodis.oracle import MarkovChain
    >>> chain = MarkovChain.random(order=1, vocab_size=3)
    >>> estimate = infodis.nll(chain, [0, 1, 2, 0, 1, 2, 0, 1], design=infodis.StratifiedCount())
    >>> abs(estimate.value + chain.log_prob([0, 1, 2, 0, 1, 2, 0, 1])) < 5 * estimate.standard_error
    True
    """

    def layout(self, length: int, rows: int) -> Layout:
        return _few_replicates(length, rows, "StratifiedCount")

    def first_stage(self, length: int, rows: int) -> Layout:
        return _many_replicates(length, rows, "StratifiedCount")

    def masks(self, levels: Levels, keys: Keys) -> WeightedMasks:
        rows = levels.shape[-1]
        return _uniform_count((torch.arange(rows) + levels) / rows, keys)


def _uniform_count(levels: Levels, keys: Keys) -> WeightedMasks:
    rows, length = keys.shape[-2:]
    sizes = (1 + (levels * length).long()).clamp(max=length)
    return _per_position(lowest(keys, sizes), length / (rows * sizes.double()))


@dataclasses.dataclass(frozen=True)
class Pairs(MaskDesign):
    """A mask and its complement (DiffuCoder, ESPO): size k uniform on 0..m, weights (m + 1) / (2 size) [eq:pairs].

    Unbiased. The complement of an empty mask is the full one, so that every size comes up equally often.

    >>> import infodis
    >>> from infodis.oracle import MarkovChain
    >>> chain = MarkovChain.random(order=1, vocab_size=3)
    >>> estimate = infodis.nll(chain, [0, 1, 2, 0, 1, 2, 0, 1], design=infodis.Pairs())
    >>> abs(estimate.value + chain.log_prob([0, 1, 2, 0, 1, 2, 0, 1])) < 5 * estimate.standard_error
    True
    """

    def layout(self, length: int, rows: int) -> Layout:
        _check(length, rows, smallest=4, design="Pairs")
        return Layout(replicates=rows // 2, rows=2)

    def fewest_replicates(self, length: int, rows: int) -> Layout:
        _check_one(length, rows, smallest=2, design="Pairs")
        return Layout(replicates=rows // 2, rows=2)

    def masks(self, levels: Levels, keys: Keys) -> WeightedMasks:
        length = keys.shape[-1]
        sizes = (levels[..., :1] * (length + 1)).long().clamp(max=length)
        one = lowest(keys[..., :1, :], sizes)
        masked = torch.cat([one, ~one], dim=-2)
        counts = torch.cat([sizes, length - sizes], dim=-1).clamp(min=1)
        return _per_position(masked, (length + 1) / (2 * counts.double()))


@dataclasses.dataclass(frozen=True)
class Tiled(MaskDesign):
    """Ours: sizes on a fixed schedule, and masks dealt from a deck so that positions and pairs are masked evenly.

    *Sizes.* Each replicate splits 1..m into groups of neighbouring sizes and gives every group a fixed number of rows,
    proportional to (1/k - 1/m + floor/m)^power: more rows for small masks, which cover little and vary much. With rows
    enough, every size is a group of its own, and the full mask, of which there is only one, gets one row. Within a
    group sizes are stratified. A row of size k in a group of g sizes and c rows has weight g / (c k) [eq:tiled], so
    that the total weight is m in every replicate, not only on average.

    *Masks.* Positions are dealt row after row from a shuffled deck. When it runs out, the next deck is dealt crosswise:
    positions that were masked together in one row are spread over the new deck, and a row that spans two decks never
    holds a position twice. So every position is masked equally often among rows of nearly equal size, and no pair of
    positions keeps meeting. The procedure treats all positions alike, so every mask of a size is equally likely:
    exactly unbiased.

    *Few rows.* Four replicates of two rows would have two groups of sizes each. Budgets of 8 to 23 rows, where targets
    are at least as long, are dealt as plans of twice the rows instead, whose halves stand for replicates (`Layout`).

    >>> import infodis
    >>> from infodis.oracle import MarkovChain
    >>> chain = MarkovChain.random(order=1, vocab_size=3)
    >>> estimate = infodis.nll(chain, [0, 1, 2, 0, 1, 2, 0, 1], design=infodis.Tiled())
    >>> abs(estimate.value + chain.log_prob([0, 1, 2, 0, 1, 2, 0, 1])) < 5 * estimate.standard_error
    True
    """

    power: float = 0.2
    floor: float = 0.3

    def __post_init__(self) -> None:
        if not (0 <= self.power <= 2 and 0 < self.floor < math.inf):
            raise InputError(f"Tiled needs 0 <= power <= 2 and floor > 0, got power={self.power}, floor={self.floor}.")

    def layout(self, length: int, rows: int) -> Layout:
        found = _few_replicates(length, rows, "Tiled")
        few = FEW_ROWS <= rows < 3 * FEW_ROWS and rows <= length and found.replicates % 2 == 0
        return dataclasses.replace(found, together=2) if few else found

    def first_stage(self, length: int, rows: int) -> Layout:
        return _many_replicates(length, rows, "Tiled")

    def weights(self, length: int, rows: int) -> Float64[Tensor, " sizes"]:
        """The weight of a masked position of a row with 1, 2, ... masked positions: it depends on nothing else."""
        schedule, sizes = _schedule(length, rows, self.power, self.floor), torch.arange(1, length + 1)
        group = torch.searchsorted((schedule.below + schedule.width).contiguous(), sizes)
        return schedule.width[group] / (schedule.rows[group] * sizes.double())

    def masks(self, levels: Levels, keys: Keys) -> WeightedMasks:
        rows, length = keys.shape[-2:]
        schedule = _schedule(length, rows, self.power, self.floor)
        within = ((schedule.place + levels) / schedule.rows * schedule.width).long()
        sizes = schedule.below + 1 + torch.minimum(within, schedule.width - 1)
        masked = _deal(keys, sizes)
        return _per_position(masked, schedule.width / (schedule.rows * sizes.double()))


@dataclasses.dataclass(frozen=True)
class Dealt(MaskDesign):
    """For training: more small masks than large ones, stratified, and masks dealt from a deck as `Tiled` deals them.

    Size k has a probability proportional to (1 - slope k / m) / k^power, and weight 1 / (k p(k)) [eq:dealt]. Unbiased.
    The default of `draw_plan`. With a few rows per sequence most of the error of a gradient is which tokens the small
    masks hit, with their large weights: so there are more small masks, and dealing covers all tokens before it takes
    one again. The slope was chosen by the error of gradients (`infodis bench gradient`). Where a standard error is
    wanted, or rows are many, `Tiled` is better: its weights add up to the same number in every replicate.

    >>> import infodis
    >>> from infodis.oracle import MarkovChain
    >>> chain = MarkovChain.random(order=1, vocab_size=3)
    >>> estimate = infodis.nll(chain, [0, 1, 2, 0, 1, 2, 0, 1], design=infodis.Dealt())
    >>> abs(estimate.value + chain.log_prob([0, 1, 2, 0, 1, 2, 0, 1])) < 5 * estimate.standard_error
    True
    """

    slope: float = 0.75
    power: float = 0.0

    def __post_init__(self) -> None:
        if not (0 <= self.slope < 1 and 0 <= self.power <= 1):
            raise InputError(
                f"Dealt needs 0 <= slope < 1 and 0 <= power <= 1, got slope={self.slope}, power={self.power}."
            )

    def layout(self, length: int, rows: int) -> Layout:
        return _few_replicates(length, rows, "Dealt")

    def first_stage(self, length: int, rows: int) -> Layout:
        return _many_replicates(length, rows, "Dealt")

    def masks(self, levels: Levels, keys: Keys) -> WeightedMasks:
        sizes = torch.arange(1, keys.shape[-1] + 1, dtype=torch.float64)
        drawn, weight = _stratified_sizes(levels, (1 - self.slope * sizes / len(sizes)) / sizes**self.power)
        return _per_position(_deal(keys, drawn), weight)


@dataclasses.dataclass(frozen=True, eq=False)
class _Schedule:
    """For every row of a replicate: its group of sizes (below, below + width], how many rows share it, its place."""

    below: Int[Tensor, " rows"]
    width: Int[Tensor, " rows"]
    rows: Int[Tensor, " rows"]
    place: Int[Tensor, " rows"]


@functools.lru_cache(maxsize=512)
def _schedule(length: int, rows: int, power: float, floor: float) -> _Schedule:
    sizes = torch.arange(1, length + 1, dtype=torch.float64)
    density = (1 / sizes - 1 / length + floor / length) ** power
    ideal = (rows - 1) * density[:-1] / density[:-1].sum()
    if length > 1 and bool((ideal >= 1).all()):
        counts = torch.cat([_apportion(ideal), torch.tensor([1])])
        tops = sizes.long()
    else:
        cumulative = (density.cumsum(0) / density.sum())[:-1].contiguous()
        middles = (torch.arange(rows, dtype=torch.float64) + 0.5) / rows
        chosen, counts = (1 + torch.searchsorted(cumulative, middles, right=True)).unique(return_counts=True)
        tops = torch.cat([(chosen[:-1] + chosen[1:]) // 2, torch.tensor([length])])
    bottoms = torch.cat([torch.tensor([0]), tops[:-1]])
    group = torch.arange(len(counts)).repeat_interleave(counts)
    place = torch.arange(rows) - (counts.cumsum(0) - counts)[group]
    return _Schedule(bottoms[group], (tops - bottoms)[group], counts[group], place)


def _apportion(ideal: Float64[Tensor, " sizes"]) -> Int[Tensor, " sizes"]:
    """Whole numbers with the same sum, by largest remainders: they fall where `ideal` falls."""
    counts = ideal.floor().long()
    left = round(float(ideal.sum())) - int(counts.sum())
    largest = (ideal - counts).argsort(descending=True, stable=True)[:left]
    return counts.index_add(0, largest, torch.ones_like(largest))


def _deal(keys: Keys, sizes: Int[Tensor, "batch rows"]) -> Bool[Tensor, "batch rows length"]:
    """Deal `sizes` positions to each row from decks of all positions, one deck after another (see `Tiled`)."""
    batch, rows, length = keys.shape
    ends = sizes.cumsum(-1)
    starts = ends - sizes
    masked = torch.zeros(batch, rows + 1, length, dtype=torch.bool)  # one more row takes what is dealt to nobody
    order = keys[:, 0]
    decks = -(-int(ends[:, -1].max()) // length)
    for deck in range(decks):
        place = ranks(order)
        row = torch.searchsorted(ends, place + deck * length, right=True)
        masked.scatter_(1, row.unsqueeze(1), True)
        if deck + 1 < decks:
            order = _cross(keys[:, deck + 1], place, row, starts, ends, boundary=(deck + 1) * length)
    return masked[:, :rows]


def _cross(
    key: Float64[Tensor, "batch length"],
    place: Int[Tensor, "batch length"],
    row: Int[Tensor, "batch length"],
    starts: Int[Tensor, "batch rows"],
    ends: Int[Tensor, "batch rows"],
    *,
    boundary: int,
) -> Float64[Tensor, "batch length"]:
    """Sort values for the next deck, given where the last one put every position and which row took it.

    Members of one row are ordered by `key` and spread evenly over the new deck. If a row crosses the boundary, the
    positions it already holds may not be among the first that it takes from the new deck.
    """
    rows, length = starts.shape[1], key.shape[-1]
    taken = row.clamp(max=rows - 1)
    first = (
        torch.where(row < rows, starts.gather(1, taken), ends[:, -1:]).clamp(min=boundary - length) - boundary + length
    )
    last = torch.where(row < rows, ends.gather(1, taken), boundary).clamp(max=boundary) - boundary + length
    order = (ranks(row + key) - first + key) / (last - first)
    crossing = torch.searchsorted(ends, torch.full_like(ends[:, :1], boundary), right=True).clamp(max=rows - 1)
    start, end = starts.gather(1, crossing), ends.gather(1, crossing)
    held = torch.where(start < boundary, boundary - start, 0)
    wanted = torch.where(start < boundary, end - boundary, 0)
    holding = place >= length - held
    front = ranks(order + 2.0 * holding) < wanted
    return order - 2.0 * front


@dataclasses.dataclass(frozen=True)
class Orders(MaskDesign):
    """Whole random reveal orders: one row per step, weight 1 on the token revealed next [eq:orders].

    The any-order chain rule. Each order takes m rows, all known in advance; all orders share the fully masked one.
    Unbiased, and exact when the conditionals come from one joint distribution. `antithetic` pairs each order with its
    reverse.

    >>> import infodis
    >>> from infodis.oracle import MarkovChain
    >>> chain = MarkovChain.random(order=1, vocab_size=3)
    >>> estimate = infodis.nll(chain, [0, 1, 2, 0], design=infodis.Orders())
    >>> abs(estimate.value + chain.log_prob([0, 1, 2, 0])) < 1e-9
    True
    """

    antithetic: bool = False

    @property
    def telescoping(self) -> bool:
        return True

    def layout(self, length: int, rows: int) -> Layout:
        _check(length, rows, smallest=self.smallest(length), design=repr(self))
        replicates = rows if length == 1 else (rows - 1) // self._each(length)
        return Layout(replicates, rows=(2 if self.antithetic else 1) * length)

    def first_stage(self, length: int, rows: int) -> Layout:
        return Layout(FEWEST_REPLICATES, rows=(2 if self.antithetic else 1) * length)

    def fewest_replicates(self, length: int, rows: int) -> Layout:
        _check_one(length, rows, smallest=max(1, self._each(length) + 1), design=repr(self))
        replicates = 1 if length == 1 else (rows - 1) // self._each(length)
        return Layout(replicates, rows=(2 if self.antithetic else 1) * length)

    def smallest(self, length: int) -> int:
        """The rows of two replicates: all orders share the fully masked row."""
        return max(2, 2 * self._each(length) + 1)

    def _each(self, length: int) -> int:
        return (2 if self.antithetic else 1) * (length - 1)

    def masks(self, levels: Levels, keys: Keys) -> WeightedMasks:
        length = keys.shape[-1]
        turn = ranks(keys[..., 0, :])
        turns = torch.stack([turn, length - 1 - turn], dim=-2) if self.antithetic else turn.unsqueeze(-2)
        step = torch.arange(length).unsqueeze(-1)
        masked = (turns.unsqueeze(-2) >= step).flatten(-3, -2)
        weight = (turns.unsqueeze(-2) == step).flatten(-3, -2).double() / turns.shape[-2]
        return masked, weight


@dataclasses.dataclass(frozen=True)
class Enumerate(MaskDesign):
    """All 2^m - 1 masks with their exact weights [eq:nll]: no variance at all. The right choice for short targets.

    >>> import infodis
    >>> from infodis.oracle import MarkovChain
    >>> chain = MarkovChain.random(order=1, vocab_size=3)
    >>> estimate = infodis.nll(chain, [0, 1, 2, 0], design=infodis.Enumerate())
    >>> abs(estimate.value + chain.log_prob([0, 1, 2, 0])) < 1e-9
    True
    """

    @property
    def telescoping(self) -> bool:
        return True

    def layout(self, length: int, rows: int) -> Layout:
        if length > LONGEST_ENUMERATION:
            raise InputError(f"Enumerate lists 2^m - 1 masks; m = {length} is past {LONGEST_ENUMERATION}. Use Tiled().")
        if rows < 2**length - 1:
            raise InputError(
                f"Enumerate with a target of {length} takes {2**length - 1} forward passes, the budget is {rows}. "
                f"Ask for evaluations={2**length - 1}, or for design=Tiled()."
            )
        return Layout(replicates=1, rows=2**length - 1)

    def first_stage(self, length: int, rows: int) -> Layout:
        return self.layout(length, max(rows, 2**length - 1) if length <= LONGEST_ENUMERATION else rows)

    def fewest_replicates(self, length: int, rows: int) -> Layout:
        return self.layout(length, rows)

    def masks(self, levels: Levels, keys: Keys) -> WeightedMasks:
        batch, _, length = keys.shape
        codes = torch.arange(1, 2**length).unsqueeze(-1)
        masked = (codes >> torch.arange(length)) & 1 == 1
        sizes = masked.sum(-1)
        ways = torch.tensor([math.comb(length, k) for k in range(length + 1)], dtype=torch.float64)
        return _per_position(masked.expand(batch, -1, -1), (1 / (sizes * ways[sizes])).expand(batch, -1))
