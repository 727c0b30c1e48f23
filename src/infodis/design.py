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
from typing import ClassVar

import torch
from jaxtyping import Bool, Float64, Int
from torch import Tensor

from infodis.errors import InputError
from infodis.rng import Name, stream, uniforms, uniforms_of

Levels = Float64[Tensor, "batch rows"]
Keys = Float64[Tensor, "batch rows length"]
WeightedMasks = tuple[Bool[Tensor, "batch rows length"], Float64[Tensor, "batch rows length"]]

LONGEST_ENUMERATION = 20
"""`Enumerate` lists 2^m - 1 masks; past this length that is more than a million."""

FEWEST_REPLICATES = 4
"""With fewer, a spread says nothing about a standard error on average [eq:stein]."""

FIRST_STAGE = 16
"""Replicates whose spread decides how many more a requested standard error takes [eq:stein]."""


@dataclasses.dataclass(frozen=True)
class Layout:
    """How a budget of forward rows becomes replicates: `replicates` times `rows` masks each."""

    replicates: int
    rows: int


@dataclasses.dataclass(frozen=True, eq=False)
class MaskPlan:
    """Weighted masks over the target, in replicates. The value of a replicate is the sum of weight x surprisal."""

    masked: Bool[Tensor, "rows length"]
    weight: Float64[Tensor, "rows length"]
    replicate: Int[Tensor, " rows"]

    @property
    def replicates(self) -> int:
        return int(self.replicate[-1]) + 1

    @property
    def evaluations(self) -> int:
        """Forward rows it takes: distinct masks; a row with nothing masked costs none."""
        return int(self.masked[self.masked.any(-1)].unique(dim=0).shape[0])


@dataclasses.dataclass(frozen=True)
class MaskDesign(abc.ABC):
    """How masks and weights are drawn. Final subclasses are values: equal, printable, with their options as fields."""

    telescoping: ClassVar[bool] = False
    """True if the weights make whole chain rules, so that there is nothing left for a control to subtract."""

    @abc.abstractmethod
    def layout(self, length: int, rows: int) -> Layout:
        """The replicates that `rows` forward rows pay for; `InputError` names the smallest legal budget."""

    def first_stage(self, length: int, rows: int) -> Layout:
        """About `rows` forward rows as replicates enough to learn their spread from, on the way to a standard error."""
        return self.layout(length, rows)

    @abc.abstractmethod
    def masks(self, levels: Levels, keys: Keys) -> WeightedMasks:
        """One replicate per batch entry, from its uniform numbers. Weights are zero where nothing is masked."""

    def draw(self, length: int, rows: int, *, generator: torch.Generator) -> MaskPlan:
        """Draw a whole plan from one generator.

        >>> from infodis.rng import stream
        >>> plan = Tiled().draw(6, 32, generator=stream(0, "example"))
        >>> plan.replicates, tuple(plan.masked.shape)
        (4, (32, 6))
        """
        layout = self.layout(length, rows)
        levels, keys = numbers(length, layout, [generator] * layout.replicates)
        masked, weight = self.masks(levels, keys)
        replicate = torch.arange(masked.shape[0]).repeat_interleave(masked.shape[1])
        return MaskPlan(masked.flatten(0, 1), weight.flatten(0, 1), replicate)

    def pilot(self, length: int, rows: int) -> Bool[Tensor, "pilot length"]:
        """Masks to look at before settling on a design: none, except for `Auto`."""
        return torch.zeros(0, length, dtype=torch.bool)

    def settle(
        self, length: int, rows: int, surprisal: Float64[Tensor, "pilot length"], *, precision: float | None = None
    ) -> tuple["MaskDesign", int]:
        """The design to draw from, and the rows left to spend, given the surprisals that `pilot` asked for.

        `precision` is the standard error that was asked for, if one was.
        """
        return self, rows


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
            f"A standard error needs two replicates. With a target of {length}, {design} needs {smallest} forward rows "
            f"for them; the budget is {rows}. Ask for evaluations={smallest} or more, or for another design."
        )


def _lowest(keys: Keys, sizes: Int[Tensor, "batch rows"]) -> Bool[Tensor, "batch rows length"]:
    """In each row the `size` positions with the smallest keys: a uniformly random set of that size."""
    return _rank(keys) < sizes.unsqueeze(-1)


def _rank(keys: Tensor) -> Int[Tensor, "..."]:
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
    """The same with replicates enough to learn their spread from."""
    _check(length, rows, smallest=FEWEST_REPLICATES, design=design)
    replicates = min(rows, FIRST_STAGE)
    return Layout(replicates, rows // replicates)


@dataclasses.dataclass(frozen=True)
class TimeIntegral(MaskDesign):
    """The paper's baseline: level u ~ U(0, 1), every position masked with probability u, weight 1/u [eq:time-integral].

    Unbiased; its variance is infinite (it grows with the logarithm of the number of rows), so its standard error is
    not to be trusted. Rows with nothing masked cost no forward pass.
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
    """

    def layout(self, length: int, rows: int) -> Layout:
        return _single_rows(length, rows, "TimeFree")

    def masks(self, levels: Levels, keys: Keys) -> WeightedMasks:
        inverse = 1 / torch.arange(1, keys.shape[-1] + 1, dtype=torch.float64)
        harmonic = inverse.sum()
        cumulative = (inverse.cumsum(0) / harmonic)[:-1].contiguous()
        sizes = 1 + torch.searchsorted(cumulative, levels.contiguous(), right=True)
        return _per_position(_lowest(keys, sizes), (harmonic / levels.shape[-1]).expand_as(levels))


@dataclasses.dataclass(frozen=True)
class UniformCount(MaskDesign):
    """Size k uniform on 1..m, weight m/k [eq:uniform-count]: RADD's k-DCE. Unbiased."""

    def layout(self, length: int, rows: int) -> Layout:
        return _single_rows(length, rows, "UniformCount")

    def masks(self, levels: Levels, keys: Keys) -> WeightedMasks:
        return _uniform_count(levels, keys)


@dataclasses.dataclass(frozen=True)
class StratifiedCount(MaskDesign):
    """UniformCount with one level per stratum of [0, 1) and never a rounding: the honest form of LLaDA's sampler."""

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
    return _per_position(_lowest(keys, sizes), length / (rows * sizes.double()))


@dataclasses.dataclass(frozen=True)
class Pairs(MaskDesign):
    """A mask and its complement (DiffuCoder, ESPO): size k uniform on 0..m, weights (m + 1) / (2 size) [eq:pairs].

    Unbiased. The complement of an empty mask is the full one, so that every size comes up equally often.
    """

    def layout(self, length: int, rows: int) -> Layout:
        _check(length, rows, smallest=4, design="Pairs")
        return Layout(replicates=rows // 2, rows=2)

    def masks(self, levels: Levels, keys: Keys) -> WeightedMasks:
        length = keys.shape[-1]
        sizes = (levels[..., :1] * (length + 1)).long().clamp(max=length)
        one = _lowest(keys[..., :1, :], sizes)
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
    """

    power: float = 0.2
    floor: float = 0.3

    def __post_init__(self) -> None:
        if not (0 <= self.power <= 2 and 0 < self.floor < math.inf):
            raise InputError(f"Tiled needs 0 <= power <= 2 and floor > 0, got power={self.power}, floor={self.floor}.")

    def layout(self, length: int, rows: int) -> Layout:
        return _few_replicates(length, rows, "Tiled")

    def first_stage(self, length: int, rows: int) -> Layout:
        return _many_replicates(length, rows, "Tiled")

    def masks(self, levels: Levels, keys: Keys) -> WeightedMasks:
        rows, length = keys.shape[-2:]
        schedule = _schedule(length, rows, self.power, self.floor)
        within = ((schedule.place + levels) / schedule.rows * schedule.width).long()
        sizes = schedule.below + 1 + torch.minimum(within, schedule.width - 1)
        masked = _deal(keys, sizes)
        return _per_position(masked, schedule.width / (schedule.rows * sizes.double()))


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
        place = _rank(order)
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
    order = (_rank(row + key) - first + key) / (last - first)
    crossing = torch.searchsorted(ends, torch.full_like(ends[:, :1], boundary), right=True).clamp(max=rows - 1)
    start, end = starts.gather(1, crossing), ends.gather(1, crossing)
    held = torch.where(start < boundary, boundary - start, 0)
    wanted = torch.where(start < boundary, end - boundary, 0)
    holding = place >= length - held
    front = _rank(order + 2.0 * holding) < wanted
    return order - 2.0 * front


@dataclasses.dataclass(frozen=True)
class Orders(MaskDesign):
    """Whole random reveal orders: one row per step, weight 1 on the token revealed next [eq:orders].

    The any-order chain rule. Each order takes m rows, all known in advance; all orders share the fully masked one.
    Unbiased, and exact when the conditionals come from one joint distribution. `antithetic` pairs each order with its
    reverse.
    """

    antithetic: bool = False
    telescoping: ClassVar[bool] = True

    def layout(self, length: int, rows: int) -> Layout:
        _check(length, rows, smallest=self.smallest(length), design=repr(self))
        replicates = rows if length == 1 else (rows - 1) // self._each(length)
        return Layout(replicates, rows=(2 if self.antithetic else 1) * length)

    def first_stage(self, length: int, rows: int) -> Layout:
        return Layout(FEWEST_REPLICATES, rows=(2 if self.antithetic else 1) * length)

    def smallest(self, length: int) -> int:
        """The rows of two replicates: all orders share the fully masked row."""
        return max(2, 2 * self._each(length) + 1)

    def _each(self, length: int) -> int:
        return (2 if self.antithetic else 1) * (length - 1)

    def masks(self, levels: Levels, keys: Keys) -> WeightedMasks:
        length = keys.shape[-1]
        turn = _rank(keys[..., 0, :])
        turns = torch.stack([turn, length - 1 - turn], dim=-2) if self.antithetic else turn.unsqueeze(-2)
        step = torch.arange(length).unsqueeze(-1)
        masked = (turns.unsqueeze(-2) >= step).flatten(-3, -2)
        weight = (turns.unsqueeze(-2) == step).flatten(-3, -2).double() / turns.shape[-2]
        return masked, weight


@dataclasses.dataclass(frozen=True)
class Enumerate(MaskDesign):
    """All 2^m - 1 masks with their exact weights [eq:nll]: no variance at all. The right choice for short targets."""

    telescoping: ClassVar[bool] = True

    def layout(self, length: int, rows: int) -> Layout:
        if length > LONGEST_ENUMERATION:
            raise InputError(f"Enumerate lists 2^m - 1 masks; m = {length} is past {LONGEST_ENUMERATION}. Use Tiled().")
        if rows < 2**length - 1:
            raise InputError(
                f"Enumerate with a target of {length} takes {2**length - 1} forward rows, the budget is {rows}. "
                f"Ask for evaluations={2**length - 1}, or for design=Tiled()."
            )
        return Layout(replicates=1, rows=2**length - 1)

    def first_stage(self, length: int, rows: int) -> Layout:
        return self.layout(length, max(rows, 2**length - 1) if length <= LONGEST_ENUMERATION else rows)

    def masks(self, levels: Levels, keys: Keys) -> WeightedMasks:
        batch, _, length = keys.shape
        codes = torch.arange(1, 2**length).unsqueeze(-1)
        masked = (codes >> torch.arange(length)) & 1 == 1
        sizes = masked.sum(-1)
        ways = torch.tensor([math.comb(length, k) for k in range(length + 1)], dtype=torch.float64)
        return _per_position(masked.expand(batch, -1, -1), (1 / (sizes * ways[sizes])).expand(batch, -1))


LEAVES = 7
"""Positions that a pilot star reveals, one at a time; three where rows are few."""

NEGLIGIBLE = 1e-4
"""Nats squared: where `Orders` is predicted to vary less, nothing better is looked for."""


@dataclasses.dataclass(frozen=True)
class Auto(MaskDesign):
    """The default: `Enumerate` if it fits the budget, else `Tiled`, or `Orders` if a pilot finds that it varies less.

    `Orders` is exact when the conditionals of a predictor agree with each other, and poor when they do not. The pilot
    looks at **stars**: a mask, and the same mask with one of a few positions revealed. Revealing b changes the
    surprisal of a by some amount, revealing a changes that of b by another; if the conditionals agree, the two amounts
    are equal [eq:commutator]. The mean square of their difference predicts the variance of `Orders`; their own mean
    square, which is how much surprisals depend on what is visible, predicts that of `Tiled` [eq:auto]. Stars reveal
    neighbours and positions far apart in turn, of masks of all sizes.

    `Orders` is taken only if its predicted variance is below `margin` times that of `Tiled`: predictions are off by
    factors of two, and a wrong `Orders` costs more than a wrong `Tiled`. Orders come with their reverses where eight
    such pairs fit, which takes out of their variance what depends on the order of pairs alone.

    The pilot's masks are fixed, not drawn, and its rows do not enter the estimate: looking at them cannot bias it. They
    count towards the budget. Only where that leaves `Orders` less than two orders, the pilot comes on top, by at most
    four rows.
    """

    tiled: Tiled = Tiled()
    margin: float = 0.4

    def __post_init__(self) -> None:
        if not 0 < self.margin < math.inf:
            raise InputError(f"Auto needs a positive margin, got {self.margin}.")

    def layout(self, length: int, rows: int) -> Layout:
        """Without a predictor to ask: `Enumerate` or `Tiled`."""
        return self._blind(length, rows).layout(length, rows)

    def first_stage(self, length: int, rows: int) -> Layout:
        return self._blind(length, rows).first_stage(length, rows)

    def masks(self, levels: Levels, keys: Keys) -> WeightedMasks:
        rows, length = keys.shape[-2:]
        return self._blind(length, rows if rows == 2**length - 1 else 0).masks(levels, keys)

    def _blind(self, length: int, rows: int) -> MaskDesign:
        return Enumerate() if length <= LONGEST_ENUMERATION and 2**length - 1 <= rows else self.tiled

    def pilot(self, length: int, rows: int) -> Bool[Tensor, "pilot length"]:
        smallest = Orders().smallest(length)
        if length < 4 or rows < smallest or isinstance(self._blind(length, rows), Enumerate):
            return torch.zeros(0, length, dtype=torch.bool)
        leaves = LEAVES if length >= 12 and rows >= max(64, smallest + LEAVES + 1) else 3
        stars = max(1, min(4, rows // (12 * (1 + leaves)), (rows - smallest) // (1 + leaves)))
        return _stars(length, stars, leaves)[0].flatten(0, 1)

    def settle(
        self, length: int, rows: int, surprisal: Float64[Tensor, "pilot length"], *, precision: float | None = None
    ) -> tuple[MaskDesign, int]:
        spent = surprisal.shape[0]
        if spent == 0:
            return self._blind(length, rows), rows
        left = max(rows - spent, Orders().smallest(length))
        difference, change, spread = _disagreement(length, surprisal)
        pairs = 0 if precision is not None else (left - 1) // (2 * (length - 1))
        orders = Orders(antithetic=pairs >= 8)  # a few pairs leave too many rows over
        each = length / 4 * difference * (0.75 if orders.antithetic else 2.0)
        predicted = each / (pairs if orders.antithetic else (left - 1) // (length - 1))
        typical = length / left * max(length * change * (0.12 + 0.5 * length / left), spread / 4)  # [eq:auto]
        enough = precision is None or each <= precision**2  # so that the fewest replicates will do
        if enough and (predicted <= NEGLIGIBLE or predicted < self.margin * typical):  # false if one is not a number
            return orders, left
        return self.tiled, max(rows - spent, 2)


@functools.lru_cache(maxsize=64)
def _stars(
    length: int, count: int, leaves: int
) -> tuple[Bool[Tensor, "stars rows length"], Int[Tensor, "stars leaves"]]:
    """Fixed masks for a pilot: stars of a mask and `leaves` masks with one position revealed, and these positions.

    Every other star reveals neighbours; the others reveal positions spread over the target.
    """
    place = (torch.arange(count) + 0.5).unsqueeze(-1) / count
    near = (place * (length - leaves + 1)).long() + torch.arange(leaves)
    far = ((torch.arange(leaves) + place) * length / leaves).long().clamp(max=length - 1)
    revealed = torch.where(torch.arange(count).unsqueeze(-1) % 2 == 0, near, far)
    keys = uniforms(count, length, generator=stream(0, "pilot", length))
    turn = _rank(keys.scatter(1, revealed, -1.0))
    shares = torch.tensor([0.5, 0.4, 0.8, 0.6])[:count].unsqueeze(-1)
    base = (turn < (shares * length).round().clamp(min=leaves)).unsqueeze(1)
    return torch.cat([base, base & (revealed.unsqueeze(-1) != torch.arange(length))], dim=1), revealed


def _disagreement(length: int, surprisal: Float64[Tensor, "pilot length"]) -> tuple[float, float, float]:
    """What a pilot saw: mean squares of commutators and of the changes that they are differences of [eq:commutator].

    And the variance of surprisals within a row: a pilot may meet places where nothing changes. The change of a by b is
    f(M, a) - f(M - b, a); the commutator is the change of a by b less that of b by a.
    """
    leaves = LEAVES if length >= 12 and surprisal.shape[0] % (1 + LEAVES) == 0 else 3
    rows = surprisal.unflatten(0, (-1, 1 + leaves))
    masks, revealed = _stars(length, rows.shape[0], leaves)
    revealed = revealed.unsqueeze(1).expand(-1, 1 + leaves, -1)
    at = rows.gather(2, revealed)
    changes = at[:, :1] - at[:, 1:]
    others = ~torch.eye(leaves, dtype=torch.bool)
    commutators = (changes - changes.transpose(1, 2))[:, others]
    inside = [row[mask] for row, mask in zip(rows[:, 0], masks[:, 0], strict=True)]
    spread = torch.stack([row.var() for row in inside]).mean()
    return float(commutators.square().mean()), float(changes[:, others].square().mean()), float(spread)


NAMED: dict[str, MaskDesign] = {
    "auto": Auto(),
    "tiled": Tiled(),
    "orders": Orders(),
    "enumerate": Enumerate(),
    "pairs": Pairs(),
    "stratified": StratifiedCount(),
    "uniform": UniformCount(),
    "time-free": TimeFree(),
    "time-integral": TimeIntegral(),
}
"""Designs as the command line calls them."""


def design_named(name: str) -> MaskDesign:
    """The design of that name, with its defaults."""
    if name not in NAMED:
        raise InputError(f"A design is one of {', '.join(NAMED)}; got {name!r}.")
    return NAMED[name]
