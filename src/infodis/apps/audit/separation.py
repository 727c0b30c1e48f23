"""How well a score tells two groups of rows apart, and how sure that is.

Scores are compared through their order: the **AUROC** is the chance that a random positive scores above a random
negative (ties count half), 0.5 where nothing separates them.

**What is drawn at random is a unit**: a row; a pair of rows (one prompt, two continuations); or a cluster of rows that
share a prompt. Rows of a unit resemble each other, so that they count for less than as many rows of their own: every
interval here is made of what each unit contributes, and labels are permuted only in ways that leave units as they are.

**Intervals** are not percentiles of a bootstrap: those shrink to a point when the groups separate perfectly, which says
nothing about the next row. Instead

- AUROC: the variance by placements (DeLong, summed by unit) inside a Wilson score interval, and next to it one imagined
  unit that behaves as badly as it can. With perfect separation it is what n successes of n say about a proportion.
- TPR at a given FPR: Wilson's interval at the threshold, joined (MOVER) with what the order of the negatives says about
  where the threshold is. If there are too few negatives for the rate, it begins at 0.
- Hedges' g and differences: first-order variance by unit, and Student's t.

Measured by `test_coverage_of_auroc_in_all_designs` (normal scores, n + n rows, n = 20, 50, 200, AUROC 0.5, 0.8, 0.99,
500 draws of each): the 95 % interval of AUROC covers in 94 to 98 % of draws of rows and 94 to 99.8 % of pairs and
clusters. At n = 20 and 0.99 the percentile bootstrap covers in three of four (`test_a_percentile_bootstrap_is_caught`).
Where 1 % of rows carry all overlap it is about 90 % (`test_coverage_of_auroc_in_rough_shapes`). TPR: at least nominal
(`test_coverage_of_tpr`).
"""

import dataclasses
import math
from collections.abc import Hashable, Sequence
from typing import Any

import numpy
import torch
from jaxtyping import Bool, Float64, Int
from torch import Tensor

from infodis.errors import InputError
from infodis.result import Interval, Measured
from infodis.rng import key, stream

LEVEL = 0.95
PERMUTATIONS = 9999
WORK = 2**25
"""Numbers that one permutation test may draw: beyond 3,355 rows permutations are fewer than `PERMUTATIONS`."""
CHUNK = 2**20
"""Numbers drawn at a time: bounds memory, changes no number."""
CURVE = 200
"""Points of a ROC curve."""

Negatives = Float64[Tensor, " negatives"]
Positives = Float64[Tensor, " positives"]
Values = Float64[Tensor, " values"]
Clusters = tuple[Sequence[Hashable], Sequence[Hashable]]


@dataclasses.dataclass(frozen=True)
class PairedDifferences:
    """What the differences within pairs say."""

    count: int
    share: Interval
    """Pairs in which the positive scores higher; ties count half."""
    difference: Interval
    """Mean of positive minus negative."""
    standard_error: float
    """Of the mean difference."""
    p_value: float
    """Of flipping the signs of differences: two-sided, on their sum."""


@dataclasses.dataclass(frozen=True)
class Separation:
    """What a score says about positives against negatives."""

    score: str
    rows: tuple[int, int]
    """Negatives and positives."""
    auroc: Interval
    tpr: dict[float, Interval]
    """By false positive rate: the share of positives above the threshold. From 0 on, if negatives are too few."""
    achieved: dict[float, float]
    """The share of negatives that really is above that threshold: the largest possible one up to the rate."""
    threshold: dict[float, float]
    effect: Interval
    """Difference of means in units of the pooled standard deviation (Hedges' g)."""
    p_value: float
    """Of permuting labels: two-sided, on the sum of ranks. Exact where relabellings are few, else never below
    1 / (1 + permutations)."""
    permutations: int
    pairs: PairedDifferences | None = None
    clusters: int | None = None


@dataclasses.dataclass(frozen=True)
class RocCurve:
    """A ROC curve, thinned, with a band that holds at each of its points, not for all at once."""

    fpr: tuple[float, ...]
    tpr: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    level: float = LEVEL


@dataclasses.dataclass(frozen=True, eq=False)
class SamplingUnits:
    """Which rows belong together. Units with negatives only, positives only and both are drawn separately."""

    negatives: Int[Tensor, " negatives"]
    positives: Int[Tensor, " positives"]
    kind: Int[Tensor, " units"]
    """1: negatives only, 2: positives only, 3: both."""

    @staticmethod
    def of(negatives: int, positives: int, *, paired: bool, clusters: Clusters | None) -> "SamplingUnits":
        if clusters is not None:
            names = {name: n for n, name in enumerate(dict.fromkeys([*clusters[0], *clusters[1]]))}
            first, second = (torch.tensor([names[name] for name in labels]) for labels in clusters)
        else:
            first = torch.arange(negatives)
            second = torch.arange(positives) + (0 if paired else negatives)
        kind = torch.zeros(int(torch.cat([first, second]).max()) + 1, dtype=torch.long)
        kind[first] += 1
        kind = torch.where(kind > 0, 1, 0)
        kind[second.unique()] += 2
        return SamplingUnits(first, second, kind)

    def sums(self, negatives: Negatives, positives: Positives) -> Values:
        """What the rows of every unit add up to."""
        total = torch.zeros(len(self.kind), dtype=torch.float64)
        return total.index_add(0, self.negatives, negatives).index_add(0, self.positives, positives)

    def covariance(self, one: Values, other: Values) -> float:
        """Of two sums over units, given what each unit contributes."""
        total = 0.0
        for kind in self.kind.unique():
            first, second = one[self.kind == kind], other[self.kind == kind]
            if len(first) > 1:
                first, second = first - first.mean(), second - second.mean()
            total += float((first * second).sum()) * len(first) / max(1, len(first) - 1)
        return total

    @property
    def effective(self) -> tuple[float, float]:
        """Rows of either group if those of a unit are taken for copies of each other (Kish): the fewest they can be."""
        return effective_count(self.negatives.bincount().double()), effective_count(self.positives.bincount().double())


def effective_count(share: Values) -> float:
    """How many equal shares are as uneven as these: (sum)^2 / sum of squares; 0 if all are 0."""
    squares = float(share.square().sum())
    return float(share.sum()) ** 2 / squares if squares > 0 else 0.0


@dataclasses.dataclass(frozen=True, eq=False)
class RankComparison:
    """The AUROC and what every unit contributes to its error."""

    value: float
    influence: Values
    variance: float
    evidence: float
    """How many units carry the overlap of the groups: few of them make the variance a guess."""
    rows: float
    """Variance is at most value (1 - value) / rows."""

    @staticmethod
    def of(negatives: Negatives, positives: Positives, units: SamplingUnits) -> "RankComparison":
        below, above = placements(positives, negatives), 1 - placements(negatives, positives)
        # `below`: how many positives are below a negative; `above`: how many negatives are above a positive
        value = 1 - float(above.mean())
        share = 1 / len(negatives), 1 / len(positives)
        influence = units.sums(share[0] * (1 - below - value), share[1] * (1 - above - value))
        wrong = (below, above) if value >= 0.5 else (1 - below, 1 - above)
        overlap = units.sums(share[0] * wrong[0], share[1] * wrong[1])
        variance = units.covariance(influence, influence)
        return RankComparison(value, influence, variance, effective_count(overlap), min(units.effective))

    def interval(self, inflation: float = 1.0) -> Interval:
        """`inflation`: how many times the variance is larger than rows that were independent would have it."""
        return score_interval(self.value, inflation * self.variance, rows=self.rows, evidence=self.evidence)


def placements(group: Float64[Tensor, " group"], values: Values) -> Values:
    """The share of a group below each value; ties count half."""
    ordered = group.sort().values
    twice = torch.searchsorted(ordered, values) + torch.searchsorted(ordered, values, right=True)
    return twice.double() / (2 * len(group))


def score_interval(value: float, variance: float, *, rows: float, evidence: float) -> Interval:
    """Wilson's interval for a mean of numbers in [0, 1], as of a proportion with an effective number of rows.

    No such mean varies more than the proportion of `rows` yes-or-no answers. The estimated variance counts for as many
    units as it rests on (`evidence`), and one more is imagined for which that worst case holds. So the interval neither
    shrinks to a point at 0 or 1 nor depends on the worst case where there is evidence.
    """
    worst = value * (1 - value) / rows
    ratio = variance / worst if worst > 0 else 0.0
    effective = rows * (evidence + 1) / (evidence * ratio + 1)
    z = quantile(None)
    shrink = 1 + z * z / effective
    centre = (value + z * z / (2 * effective)) / shrink
    half = z / shrink * math.sqrt(max(0.0, value * (1 - value)) / effective + (z / effective) ** 2 / 4)
    return Interval(value, max(0.0, min(value, centre - half)), min(1.0, max(value, centre + half)))


def quantile(freedom: float | None) -> float:
    """Half the width of a two-sided interval in standard errors: Student's t, or the normal distribution's."""
    from scipy.special import ndtri, stdtrit

    tail = (1 + LEVEL) / 2
    return float(ndtri(tail)) if freedom is None else float(stdtrit(freedom, tail))


def separate(
    negatives: Negatives,
    positives: Positives,
    *,
    score: str,
    paired: bool = False,
    clusters: Clusters | None = None,
    rates: tuple[float, ...] = (0.01, 0.05),
    permutations: int = PERMUTATIONS,
    seed: int = 0,
) -> Separation:
    """Compare the scores of two groups.

    `paired`: row n of one shares its prompt with row n of the other. `clusters`: a name per row of either group; rows
    of equal name share a prompt, in whatever number and group.

    The p-value permutes labels as the units allow: freely; within pairs; with clusters, labels within those that have
    rows of both groups, and among the others as wholes. All are exact under "both groups are drawn from the same
    source"; permuting rows freely is not once rows of a cluster resemble each other.

    >>> low, high = torch.arange(50.0).double(), torch.arange(50.0).double() + 30
    >>> print(separate(low, high, score="nll").auroc)
    0.92 [0.86, 0.96]
    """
    units = _units(negatives, positives, paired=paired, clusters=clusters)
    for rate in rates:
        if not 0 < rate < 1:
            raise InputError(f"A false positive rate must lie between 0 and 1, got {rate}.")
    points = _curve(negatives, positives, torch.tensor(rates, dtype=torch.float64), units)
    draws = {"permutations": permutations, "seed": seed}
    p_value, tried = _rank_p(negatives, positives, units, paired=paired, **draws)
    return Separation(
        score,
        (len(negatives), len(positives)),
        RankComparison.of(negatives, positives, units).interval(),
        dict(zip(rates, points.intervals, strict=True)),
        dict(zip(rates, points.achieved.tolist(), strict=True)),
        dict(zip(rates, points.threshold.tolist(), strict=True)),
        effect_size(negatives, positives, units),
        p_value,
        tried,
        _paired_differences(positives - negatives, **draws) if paired else None,
        len(units.kind) if clusters is not None else None,
    )


def auroc(
    negatives: Negatives, positives: Positives, *, clusters: Clusters | None = None, inflation: float = 1.0
) -> Interval:
    """The AUROC alone, for scores that need not be independent: `inflation` is that of their variance."""
    units = _units(negatives, positives, paired=False, clusters=clusters)
    return RankComparison.of(negatives, positives, units).interval(inflation)


def _units(negatives: Negatives, positives: Positives, *, paired: bool, clusters: Clusters | None) -> SamplingUnits:
    sizes = {"negatives": len(negatives), "positives": len(positives)}
    for name, values in (("negatives", negatives), ("positives", positives)):
        if len(values) < 2:
            raise InputError(f"Each group needs at least two scored rows; the {name} have {len(values)}.")
        if not bool(values.isfinite().all()):
            raise InputError(f"Scores must be finite; the {name} hold some that are not. Leave those rows out.")
    if paired and clusters is not None:
        raise InputError("Rows are either paired or clustered, not both. Give pairs that share a prompt as clusters.")
    if paired and len(set(sizes.values())) > 1:
        raise InputError(f"Pairs need as many rows in one group as in the other, got {sizes}.")
    if clusters is not None:
        for (name, size), labels in zip(sizes.items(), clusters, strict=True):
            if len(labels) != size:
                raise InputError(f"Every row needs its cluster; {size} {name} came with {len(labels)} names.")
            if len(set(labels)) < 2:
                raise InputError(f"All {name} are in one cluster: nothing says how much clusters differ.")
    return SamplingUnits.of(*sizes.values(), paired=paired, clusters=clusters)


def effect_size(negatives: Negatives, positives: Positives, units: SamplingUnits) -> Interval:
    """Hedges' g; endless, and of endless width, where no group has any spread."""
    count = len(negatives) + len(positives)
    low, high = negatives - negatives.mean(), positives - positives.mean()
    variance = float(low.square().sum() + high.square().sum()) / (count - 2)
    difference = float(positives.mean() - negatives.mean())
    if variance == 0:
        return Interval(math.copysign(math.inf, difference) if difference else 0.0, -math.inf, math.inf)
    spread = math.sqrt(variance)
    g = (1 - 3 / (4 * count - 9)) * difference / spread
    bend = g / (2 * count)  # by how much more spread lessens g
    influence = units.sums(
        -low / spread / len(low) - bend * (low.square() / variance - 1),
        high / spread / len(high) - bend * (high.square() / variance - 1),
    )
    half = quantile(min(units.effective) - 1) * math.sqrt(units.covariance(influence, influence))
    return Interval(g, g - half, g + half)


def _paired_differences(differences: Values, permutations: int, seed: int) -> PairedDifferences:
    count = len(differences)
    wins = (differences.sign() + 1) / 2
    share = float(wins.mean())
    losses = 1 - wins if share >= 0.5 else wins
    mean = Measured.mean(differences)
    half = quantile(count - 1) * mean.standard_error
    return PairedDifferences(
        count,
        score_interval(share, float(wins.var(correction=0)) / count, rows=count, evidence=effective_count(losses)),
        Interval(mean.value, mean.value - half, mean.value + half),
        mean.standard_error,
        _permutation_p(differences, permutations=permutations, seed=seed)[0],
    )


def _permutation_p(
    first: Values, second: Negatives | None = None, *, permutations: int, seed: int
) -> tuple[float, int]:
    """Two-sided, on the sum of the first: of permuting centred values of two groups, or flipping signs of one.

    Where all relabellings are at most as many as permutations, all of them are tried. The sum is rounded, so that
    relabellings whose sums are equal stay so.
    """
    from scipy.stats import permutation_test

    samples = [first.numpy()] if second is None else [first.numpy(), second.numpy()]
    rows, scale = sum(map(len, samples)), max(float(abs(one).max()) for one in samples) or 1.0

    def statistic(*parts: Any, axis: int) -> Any:
        return numpy.abs(parts[0].sum(axis) / scale).round(9)

    found = permutation_test(
        samples,
        statistic,
        permutation_type="samples" if second is None else "independent",
        vectorized=True,
        n_resamples=min(permutations, max(1, WORK // rows)),
        batch=max(1, CHUNK // rows),
        alternative="greater",
        rng=numpy.random.default_rng(key(seed, "permutations", rows)),
    )
    return float(found.pvalue), len(found.null_distribution)


def _rank_p(
    negatives: Negatives, positives: Positives, units: SamplingUnits, *, paired: bool, permutations: int, seed: int
) -> tuple[float, int]:
    """The share of relabellings whose rank sum is as far from its mean as the given one, and how many were tried."""
    together = torch.cat([negatives, positives])
    ranks = placements(together, together) * len(together)
    ranks = ranks - ranks.mean()
    low, high = ranks[: len(negatives)], ranks[len(negatives) :]
    if paired:
        return _permutation_p(high - low, permutations=permutations, seed=seed)
    if len(units.kind) == len(ranks):
        return _permutation_p(high, low, permutations=permutations, seed=seed)
    return _clustered_p(*_exchangeable(low, high, units), permutations=permutations, seed=seed)


def _clustered_p(
    value: Values, block: Int[Tensor, " values"], label: Bool[Tensor, " values"], *, permutations: int, seed: int
) -> tuple[float, int]:
    """Of dealing labels anew within blocks. The given labelling is one of those that could have been: it counts."""
    shares = torch.zeros(int(block.max()) + 1, 3, dtype=torch.float64)
    shares.index_add_(0, block, torch.stack([torch.ones_like(value), label.double(), value], 1))
    mean = float((shares[:, 1] * shares[:, 2] / shares[:, 0].clamp(min=1)).sum())
    generator = stream(seed, "permutations", len(value))
    count, step = min(permutations, max(1, WORK // len(value))), max(1, CHUNK // len(value))
    sums = []
    for start in range(0, count, step):
        keys = torch.rand(min(step, count - start), len(value), generator=generator, dtype=torch.float64) + block
        order = torch.from_numpy(numpy.argsort(keys.numpy(), axis=1))  # four times as fast as torch's
        sums.append(value[order[:, label]].sum(1) - mean)
    observed, rounding = abs(float(value[label].sum()) - mean), 1e-12 * float(value.abs().sum())
    extreme = int((torch.cat(sums).abs() >= observed - rounding).sum())
    return (1 + extreme) / (1 + count), count


def _exchangeable(
    low: Negatives, high: Positives, units: SamplingUnits
) -> tuple[Values, Int[Tensor, " values"], Bool[Tensor, " values"]]:
    """Parts that labels may be dealt to, sorted by the block in which they may: value, block, label.

    Block 0 holds the units with rows of one group, as wholes; a unit with rows of both is a block of its rows.
    """
    whole = units.kind < 3
    loose_low, loose_high = ~whole[units.negatives], ~whole[units.positives]
    value = torch.cat([units.sums(low, high)[whole], low[loose_low], high[loose_high]])
    first = torch.zeros(int(whole.sum()), dtype=torch.long)
    block = torch.cat([first, units.negatives[loose_low] + 1, units.positives[loose_high] + 1])
    label = torch.cat([units.kind[whole] == 2, torch.zeros_like(low[loose_low]), torch.ones_like(high[loose_high])])
    order = block.argsort(stable=True)
    return value[order], block[order], label[order].bool()


@dataclasses.dataclass(frozen=True, eq=False)
class OperatingPoints:
    """True positive rates at false positive rates."""

    value: Values
    low: Values
    high: Values
    threshold: Values
    achieved: Values

    @property
    def intervals(self) -> list[Interval]:
        rows = torch.stack([self.value, self.low, self.high], 1).tolist()
        return [Interval(value, low, high) for value, low, high in rows]


def _curve(negatives: Negatives, positives: Positives, rates: Values, units: SamplingUnits) -> OperatingPoints:
    """The threshold is the lowest negative that at most a share `rate` of them exceeds.

    How many negatives exceed the threshold of the source is binomial: that gives two of them between which it lies, or
    none above it. Units of several negatives count as one negative. That positives and negatives of a unit go up and
    down together is left out: where they do, intervals are too wide.
    """
    ends = torch.tensor([math.inf], dtype=torch.float64)
    falling = torch.cat([ends, negatives.sort(descending=True).values, -ends])  # [k + 1]: what k negatives exceed
    allowed = (rates * len(negatives) + 1e-9).long()
    threshold = falling[allowed + 1]
    fewest, most = _exceeding(len(negatives), int(units.effective[0]), rates)
    ordered, size = positives.sort().values, len(positives)
    value = (size - torch.searchsorted(ordered, threshold, right=True)).double() / size
    least = (size - torch.searchsorted(ordered, falling[fewest])).double() / size
    greatest = (size - torch.searchsorted(ordered, falling[most + 1], right=True)).double() / size
    rows = units.effective[1]
    shares = [score_interval(p, p * (1 - p) / rows, rows=rows, evidence=1) for p in value.tolist()]
    wilson = torch.tensor([(one.low, one.high) for one in shares], dtype=torch.float64)
    angle = torch.stack([value, least, greatest, *wilson.T]).clamp(0, 1).sqrt().asin()  # no end passes 0 or 1
    low = angle[0] - torch.hypot(angle[0] - angle[1], angle[0] - angle[3])
    high = angle[0] + torch.hypot(angle[2] - angle[0], angle[4] - angle[0])
    low, high = low.clamp(min=0).sin().square(), high.clamp(max=math.pi / 2).sin().square()
    exceeding = len(negatives) - torch.searchsorted(negatives.sort().values, threshold, right=True)
    return OperatingPoints(value, low, high, threshold, exceeding.double() / len(negatives))


def _exceeding(count: int, effective: int, rates: Values) -> tuple[Int[Tensor, " values"], Int[Tensor, " values"]]:
    """Between how many of the negatives may exceed a threshold that a share `rate` of their source exceeds."""
    from scipy.stats import binom

    tails = (1 - LEVEL) / 2, (1 + LEVEL) / 2
    low, high = (torch.as_tensor(binom.ppf(tail, effective, rates.numpy())).long() for tail in tails)
    return low * count // effective, high * count // effective


def roc(
    negatives: Negatives, positives: Positives, *, paired: bool = False, clusters: Clusters | None = None
) -> RocCurve:
    """The ROC curve from (0, .) to (1, 1), thinned to about `CURVE` points, closer to each other at small rates.

    The band is made as the intervals of `Separation.tpr` are; nothing in it is random.
    """
    units = _units(negatives, positives, paired=paired, clusters=clusters)
    count = len(negatives)
    evenly = torch.linspace(0, count, CURVE // 2, dtype=torch.float64)
    closer = torch.linspace(0, math.log(count + 1), CURVE // 2, dtype=torch.float64).expm1()
    allowed = torch.cat([evenly, closer]).round().unique()[:-1]
    points = _curve(negatives, positives, allowed / count, units)
    kept = torch.cat([torch.ones(1, dtype=torch.bool), points.achieved.diff() > 0])  # ties make rates coincide
    fpr, tpr, low, high = (
        (*column[kept].tolist(), 1.0) for column in (points.achieved, points.value, points.low, points.high)
    )
    return RocCurve(fpr, tpr, low, high)


def difference(
    one: tuple[Float64[Tensor, " negatives"], Float64[Tensor, " positives"]],
    other: tuple[Float64[Tensor, " negatives"], Float64[Tensor, " positives"]],
    *,
    paired: bool = False,
    clusters: Clusters | None = None,
) -> Interval:
    """How much better one score separates than another on the same rows: |AUROC - 1/2| of one minus that of the other.

    Both are (negatives, positives), rows in the same order; what the scores have in common cancels.
    """
    units = _units(*one, paired=paired, clusters=clusters)
    _units(*other, paired=paired, clusters=clusters)
    first, second = (RankComparison.of(*scores, units) for scores in (one, other))
    spread = math.sqrt(first.variance * second.variance)
    correlation = units.covariance(first.influence, second.influence) / spread if spread > 0 else 0.0
    same_side = (first.value >= 0.5) == (second.value >= 0.5)
    return stronger(first.interval(), second.interval(), correlation=correlation if same_side else -correlation)


def stronger(one: Interval, other: Interval, *, correlation: float = 0.0) -> Interval:
    """|AUROC - 1/2| of one score minus that of another, from their intervals (MOVER: Zou and Donner 2008)."""
    first, second = _strength(one), _strength(other)
    value = first.value - second.value
    down = _joined(first.value - first.low, second.high - second.value, correlation)
    up = _joined(first.high - first.value, second.value - second.low, correlation)
    return Interval(value, value - down, value + up)


def _joined(one: float, other: float, correlation: float) -> float:
    return math.sqrt(max(0.0, one * one + other * other - 2 * correlation * one * other))


def _strength(auroc: Interval) -> Interval:
    ends = abs(auroc.low - 0.5), abs(auroc.high - 0.5)
    low = 0.0 if auroc.low <= 0.5 <= auroc.high else min(ends)
    return Interval(abs(auroc.value - 0.5), low, max(ends))


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values adjusted for their number: the chance of any false one among those called is held, however they depend.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    adjusted, least = [0.0] * len(p_values), 0.0
    for place, n in enumerate(sorted(range(len(p_values)), key=lambda n: p_values[n])):
        least = max(least, min(1.0, (len(p_values) - place) * p_values[n]))
        adjusted[n] = least
    return adjusted


def conformal_p(reference: Float64[Tensor, " reference"], scores: Values) -> Values:
    """The chance, for every row, that one more row of the reference's source scores as high.

    (1 + number of reference scores at least as high) / (reference rows + 1): exact, whatever the distribution.
    """
    if len(reference) == 0:
        raise InputError("A p-value needs rows to compare with; the reference is empty.")
    if bool(reference.isnan().any()) or bool(scores.isnan().any()):
        raise InputError("Scores must be numbers; some are NaN. Leave those rows out.")
    higher = len(reference) - torch.searchsorted(reference.sort().values, scores)
    return (1 + higher).double() / (len(reference) + 1)
