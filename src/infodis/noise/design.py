"""Where to look in order to integrate score entropies: how much noise, on which tokens, and what they turn into.

    -log p(x_0) = integral over total noise s of E[G(x_s, s)] ds  +  a term at the end,  G: the score entropy of a row

Noise that forgets what it hits (`Interpolating`) hits every token with probability 1 - e^-s. So the integral is a sum
over the number k of hits, and most of G is about tokens that were hit. Rows are drawn in three ways, and weighted as
draws from one mixture of them [eq:noise-design]:

- by hits: k and which tokens as a mask design draws masks, then the noise that so many hits speak for, s given k;
- clean: no hit, at noise so small that there would be none;
- late: at large noise, where hits say nothing about how much there was.

Weights are bounded functions of (k, s), and what comes out is nearly the mean surprisal of a hit token. So replicates
have no long tails, and a standard error from a few of them can be trusted. Of other noise (`General`) rows are drawn by
time alone.
"""

import dataclasses
import math

import torch
from jaxtyping import Bool, Float64, Int
from torch import Tensor

from infodis.design import Layout, Tiled, ranks
from infodis.errors import InputError
from infodis.noise.process import Interpolating, Process
from infodis.rng import Name, uniforms_of

Numbers = Float64[Tensor, "batch places rows"]
Totals = Float64[Tensor, "batch rows"]

SMALLEST = 3
"""Rows of a replicate: one of each kind."""

LARGEST_TOTAL = 30.0
"""Total noise at which nothing is left to tell: one token in 10^13 was not hit."""

LATE = 2.3
"""Total noise from which on some rows are drawn by noise alone: nine tokens of ten were hit."""

ONE_IN = 16
"""Of so many rows one is clean and one is late; at least one of each."""

GOLDEN = 0.6180339887498949
"""Multiples of it fill an interval evenly."""


@dataclasses.dataclass(frozen=True)
class Noise:
    """The noise that a model was made for, and how far it goes.

    `until` is the total noise that the model knows. Where the end is stationary but not a mask (uniform noise), the
    integral stops there and the divergence from the stationary distribution is added. Where it is the mask, all that is
    left is to hit the last tokens, and the integral goes on.
    """

    process: Process
    until: float = math.inf

    def __post_init__(self) -> None:
        if not self.until > 0:
            raise InputError(f"The noise that a model knows must be positive, got until={self.until}.")

    @property
    def end(self) -> float:
        """Where the integral ends."""
        return LARGEST_TOTAL if self._masks else min(self.until, LARGEST_TOTAL)

    @property
    def _masks(self) -> bool:
        return bool((self.process.stationary() == 0).any())

    def end_terms(self, tokens: Int[Tensor, "items target"]) -> Float64[Tensor, "items target"]:
        """KL(p_T(. | x_0) || stationary) of every token at the end; nothing if the integral has none."""
        if self._masks or self.until > LARGEST_TOTAL:
            return torch.zeros(tokens.shape, dtype=torch.float64)
        total = torch.full((len(tokens),), self.until, dtype=torch.float64)
        if isinstance(self.process, Interpolating):  # all tokens alike, and no table of tokens x states
            return self._divergence(tokens[:1, :1], total[:1]).expand(tokens.shape)
        return self._divergence(tokens, total)

    def _divergence(
        self, tokens: Int[Tensor, "rows length"], total: Float64[Tensor, " rows"]
    ) -> Float64[Tensor, "rows length"]:
        kernel = self.process.transition(tokens, total)
        return torch.where(kernel > 0, kernel * (kernel / self.process.stationary()).log(), 0.0).sum(-1)


def noise_of(predictor: object) -> Noise | None:
    """The noise of a model that has scores at any noise; None for one that predicts masked tokens."""
    found = getattr(predictor, "noise", None)
    return found if isinstance(found, Noise) else None  # networks call something else so


@dataclasses.dataclass(frozen=True, eq=False)
class NoisePlan:
    """Noised targets with their weights. The estimate is the sum of weight x score entropy [eq:i-mdse]."""

    states: Int[Tensor, "batch rows target"]
    totals: Totals
    weight: Totals
    hits: Bool[Tensor, "batch hit_rows target"]
    """Of the rows that were drawn by hits, which come first: the masks of a mask design."""
    hit_weight: Float64[Tensor, "batch hit_rows"]
    """What that design weights them with."""


@dataclasses.dataclass(frozen=True)
class NoiseDesign:
    """How noise is drawn for a model of noise: `hits` decides how many tokens are hit, and which."""

    noise: Noise
    hits: Tiled = Tiled(power=0.4)

    def __str__(self) -> str:
        process = type(self.noise.process).__name__
        return f"NoiseDesign({process}, until={self.noise.until:g}, hits={self.hits})"

    def layout(self, length: int, rows: int) -> Layout:
        """The replicates that `rows` forward passes pay for."""
        return self._large_enough(self.hits.layout(length, self._checked(length, rows)), rows)

    def first_stage(self, length: int, rows: int) -> Layout:
        """The same as a first stage towards a standard error."""
        return self._large_enough(self.hits.first_stage(length, self._checked(length, rows)), rows)

    def _checked(self, length: int, rows: int) -> int:
        if rows < 2 * SMALLEST:
            raise InputError(
                f"A standard error needs two replicates of {SMALLEST} noised rows, {2 * SMALLEST} forward passes; the "
                f"budget is {rows}. Ask for evaluations={2 * SMALLEST} or more."
            )
        return rows

    def _large_enough(self, layout: Layout, rows: int) -> Layout:
        if layout.rows >= SMALLEST:
            return Layout(layout.replicates, layout.rows)
        return Layout(rows // SMALLEST, rows // (rows // SMALLEST))

    def numbers(self, length: int, rows: int, *, seed: int, paths: list[tuple[Name, ...]]) -> Numbers:
        """The uniform numbers of some replicates: two for every row, then two for every position and row.

        The first positions of a longer target get the same numbers as those of a shorter one: that couples them.
        """
        return uniforms_of(seed, paths, 2 + 2 * length, rows)

    def draw(self, numbers: Numbers, clean: Int[Tensor, "batch target"]) -> NoisePlan:
        """One replicate per batch entry, from its uniform numbers, of the clean tokens of its target."""
        levels, spread = numbers[:, 0], numbers[:, 1]
        keys, others = (part.transpose(1, 2) for part in (numbers[:, 2::2], numbers[:, 3::2]))
        if isinstance(self.noise.process, Interpolating):
            return self._by_hits(self.noise.process, levels, spread, keys, others, clean)
        return self._by_time(levels, (ranks(keys.transpose(1, 2)).transpose(1, 2) + others) / keys.shape[1], clean)

    def _by_hits(
        self,
        process: Interpolating,
        levels: Totals,
        spread: Totals,
        keys: Float64[Tensor, "batch rows target"],
        others: Float64[Tensor, "batch rows target"],
        clean: Int[Tensor, "batch target"],
    ) -> NoisePlan:
        shape, length = _Shape.of(keys.shape[1], self.noise.end), keys.shape[2]
        hits, weight = self.hits.masks(levels[:, : shape.by_hits], keys[:, : shape.by_hits])
        count = hits.sum(-1)
        evenly = (GOLDEN * torch.arange(shape.by_hits) + spread[:, :1]) % 1
        early, late = (levels[:, part] for part in shape.others)
        totals = torch.cat([_given_hits(count, length, evenly), _clean(early, length), shape.late_totals(late)], dim=1)
        late_hits = keys[:, shape.others[1]] < -torch.expm1(-totals[:, shape.others[1]]).unsqueeze(-1)
        hit = torch.cat([hits, torch.zeros_like(keys[:, shape.others[0]], dtype=torch.bool), late_hits], dim=1)
        replaced = process.replace(totals.flatten().clamp(max=LARGEST_TOTAL), numbers=others.flatten(0, 1))
        states = torch.where(hit, replaced.view(hit.shape), clean.unsqueeze(1))
        table = self.hits.weights(length, shape.by_hits)
        return NoisePlan(states, totals, shape.weights(totals, hit.sum(-1), table), hits, weight.amax(-1))

    def _by_time(
        self, levels: Totals, others: Float64[Tensor, "batch rows target"], clean: Int[Tensor, "batch target"]
    ) -> NoisePlan:
        """Rows at stratified places u of [0, 1), s = u^4 / (1 - u): fourth moments stay finite.

        The numbers of one position lie in different strata in different rows (a Latin hypercube).
        """
        batch, rows, length = others.shape
        u = (torch.arange(rows) + levels) / rows
        totals = u**4 / (1 - u)
        slope = (4 * u**3 * (1 - u) + u**4) / (1 - u).square()
        weight = torch.where(totals < self.noise.end, slope / rows, 0.0)
        flat = totals.flatten().clamp(max=LARGEST_TOTAL)
        tokens = clean.unsqueeze(1).expand(-1, rows, -1).reshape(-1, length)
        states = self.noise.process.draw(tokens, flat, numbers=others.flatten(0, 1)).view(batch, rows, length)
        none = torch.zeros(batch, 0, length, dtype=torch.bool)
        return NoisePlan(states, totals, weight, none, torch.zeros(batch, 0, dtype=torch.float64))


@dataclasses.dataclass(frozen=True)
class _Shape:
    """How many rows of a replicate are drawn in which way."""

    by_hits: int
    clean: int
    late: int
    end: float

    @staticmethod
    def of(rows: int, end: float) -> "_Shape":
        few = max(1, rows // ONE_IN)
        late = few if end > LATE else 0
        return _Shape(rows - few - late, few, late, end)

    @property
    def others(self) -> tuple[slice, slice]:
        """The rows that are not drawn by hits: clean ones, late ones."""
        middle = self.by_hits + self.clean
        return slice(self.by_hits, middle), slice(middle, middle + self.late)

    def late_totals(self, levels: Totals) -> Totals:
        """Stratified, with density proportional to 1 / (1 + s)^2 between `LATE` and the end."""
        u = (torch.arange(self.late) + levels) / max(1, self.late) * self._late_range
        return (1 + LATE) / (1 - u) - 1

    @property
    def _late_range(self) -> float:
        return 1 - (1 + LATE) / (1 + self.end)

    def weights(self, totals: Totals, count: Int[Tensor, "batch rows"], table: Float64[Tensor, " sizes"]) -> Totals:
        """One over the density of rows at (k, s), by that of k given s, of all ways together [eq:noise-design]."""
        odds = torch.exp(-totals) / -torch.expm1(-totals)
        by_hits = odds / table[(count - 1).clamp(min=0)]
        density = torch.where(count > 0, by_hits, float(self.clean * len(table)))
        late = self.late * (1 + LATE) / (1 + totals).square() / self._late_range if self.late else 0.0
        density = density + torch.where(totals >= LATE, late, 0.0)
        return torch.where(totals < self.end, 1 / density, 0.0)


def _given_hits(count: Int[Tensor, "batch rows"], length: int, u: Totals) -> Totals:
    """Total noise given the number k of hits: 1 - e^-s has the law of the k-th smallest of `length` uniform numbers."""
    from scipy.special import betaincinv  # imported here: it takes longer than an estimate

    sizes = count.double()
    level = torch.from_numpy(betaincinv(sizes.numpy(), (length + 1 - sizes).numpy(), u.numpy()))
    return (-torch.log1p(-level)).clamp(min=torch.finfo(torch.float64).tiny)


def _clean(levels: Totals, length: int) -> Totals:
    """Stratified; the law of the first hit."""
    u = (torch.arange(levels.shape[1]) + levels) / max(1, levels.shape[1])
    return (-torch.log1p(-u) / length).clamp(min=torch.finfo(torch.float64).tiny)
