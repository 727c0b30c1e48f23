"""Separation of two groups: against enumeration, closed forms and peers; intervals cover, p-values are uniform."""

import itertools
import math

import numpy
import pytest
import torch
from scipy import stats
from sklearn.metrics import roc_auc_score, roc_curve

from infodis.apps.audit import separation
from infodis.apps.audit.separation import (
    RankComparison,
    auroc,
    conformal_p,
    difference,
    effect_size,
    holm,
    roc,
    score_interval,
    separate,
    stronger,
)
from infodis.errors import InputError
from infodis.result import Interval
from infodis.rng import stream

SHARED = 0.8
"""Of the variance of a score: what rows of one prompt have in common."""


def normal(*shape: int, generator: torch.Generator) -> torch.Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def alone(rows: int, generator: torch.Generator):
    return *normal(2, rows, generator=generator), {}


def in_pairs(rows: int, generator: torch.Generator):
    common = math.sqrt(SHARED) * normal(rows, generator=generator)
    return *(common + math.sqrt(1 - SHARED) * normal(2, rows, generator=generator)), {"paired": True}


def in_mixed_clusters(rows: int, generator: torch.Generator):
    """Four rows a prompt, two of either group."""
    common = math.sqrt(SHARED) * normal(rows // 2, generator=generator).repeat(2)
    names = list(range(rows // 2)) * 2
    return *(common + math.sqrt(1 - SHARED) * normal(2, rows, generator=generator)), {"clusters": (names, names)}


def in_whole_clusters(rows: int, generator: torch.Generator):
    """Three rows a prompt, all of one group."""
    common = math.sqrt(SHARED) * normal(2, rows // 3, generator=generator).repeat(1, 3)
    names = [f"{side}{n}" for side in "ab" for n in list(range(rows // 3)) * 3]
    scores = common + math.sqrt(1 - SHARED) * normal(2, rows, generator=generator)
    return *scores, {"clusters": (names[:rows], names[rows:])}


SOURCES = [alone, in_pairs, in_mixed_clusters, in_whole_clusters]


def shift(area: float) -> float:
    """Between two standard normal groups of this AUROC."""
    return math.sqrt(2) * float(stats.norm.ppf(area))


def units_of(a: torch.Tensor, b: torch.Tensor, **units):
    return separation._units(a, b, **{"paired": False, "clusters": None, **units})


def covers(found: Interval, truth: float) -> bool:
    return found.low <= truth <= found.high


def bound(draws: int, level: float = 0.95, z: float = 4.0) -> float:
    """How far a share of draws may be from `level`: z = 4 is a false alarm once in 16,000."""
    return z * math.sqrt(level * (1 - level) / draws)


# values


def test_values_against_peers():
    """With and without ties."""
    for decimals in (0, 6):
        a, b, _ = alone(80, stream(decimals, "peers"))
        a, b = a.round(decimals=decimals), (b + 0.3).round(decimals=decimals)
        found = separate(a, b, score="x")
        labels, scores = [0] * 80 + [1] * 80, torch.cat([a, b]).numpy()
        assert found.auroc.value == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)
        peer = stats.mannwhitneyu(b.numpy(), a.numpy(), method="asymptotic")
        assert found.auroc.value == pytest.approx(peer.statistic / 6400, abs=1e-12)
        assert found.p_value == pytest.approx(peer.pvalue, abs=4 * math.sqrt(peer.pvalue / 9999) + 0.003)
        pooled = math.sqrt((float(a.var()) + float(b.var())) / 2)
        assert found.effect.value == pytest.approx((1 - 3 / 631) * float(b.mean() - a.mean()) / pooled, rel=1e-9)
        assert found.rows == (80, 80)


def test_variance_against_delong():
    a, b, _ = alone(30, stream(0, "delong"))
    b = b[:20] + 0.5
    wins = (b.unsqueeze(1) > a).double()
    truth = float(wins.mean(0).var() / 30 + wins.mean(1).var() / 20)
    assert RankComparison.of(a, b, units_of(a, b)).variance == pytest.approx(truth, rel=1e-12)
    paired = RankComparison.of(a[:20], b, units_of(a[:20], b, paired=True)).variance
    wins = wins[:, :20]
    assert paired == pytest.approx(float((wins.mean(0) + wins.mean(1)).var() / 20), rel=1e-12)


def test_pairs_and_singletons_are_clusters():
    a, b, _ = in_pairs(40, stream(0, "same"))
    rows = [[*range(40)], [*range(40, 80)]]
    assert auroc(a, b) == auroc(a, b, clusters=(rows[0], rows[1]))
    paired = separate(a, b, score="x", paired=True)
    clustered = separate(a, b, score="x", clusters=(rows[0], rows[0]))
    assert (paired.auroc, paired.effect, paired.tpr) == (clustered.auroc, clustered.effect, clustered.tpr)
    assert paired.p_value == pytest.approx(clustered.p_value, abs=0.02)
    assert (paired.clusters, clustered.clusters, clustered.pairs) == (None, 40, None)


def test_copies_of_rows_add_nothing():
    a, b, _ = alone(40, stream(1, "copies"))
    names = [str(n) for n in range(80)] * 3
    thrice = auroc(a.repeat(3), b.repeat(3), clusters=(names[:40] * 3, names[40:80] * 3))
    once = auroc(a, b)
    assert [thrice.low, thrice.high] == pytest.approx([once.low, once.high], abs=1e-9)
    naive = auroc(a.repeat(3), b.repeat(3))
    assert naive.high - naive.low < 0.6 * (once.high - once.low)  # negative control


# p-values


def exact_p(values: torch.Tensor, labellings: list[tuple[int, ...]], observed: tuple[int, ...]) -> float:
    """Over all labellings: those whose rank sum is as far from the mean as the observed one."""
    ranks = torch.from_numpy(stats.rankdata(values.numpy()))
    sums = torch.stack([ranks[list(one)].sum() for one in labellings])
    far = (sums - sums.mean()).abs()
    return float((far >= (ranks[list(observed)].sum() - sums.mean()).abs() - 1e-9).double().mean())


def close(found: float, truth: float) -> bool:
    return abs(found - truth) < 4.5 * math.sqrt(truth * (1 - truth) / 9999) + 1e-4


def test_p_values_against_enumeration():
    """All C(7, 3), all flips, all relabellings of clusters; a false alarm once in 150,000 each."""
    values = torch.tensor([1.0, 2.0, 2.0, 5.0, 4.0, 5.0, 7.0], dtype=torch.float64)
    every = list(itertools.combinations(range(7), 3))
    assert close(separate(values[:4], values[4:], score="x").p_value, exact_p(values, every, (4, 5, 6)))

    a, b, _ = in_pairs(6, stream(0, "tiny"))
    flips = [tuple(n + 6 * up for n, up in enumerate(ups)) for ups in itertools.product((0, 1), repeat=6)]
    found = separate(a, b + 0.5, score="x", paired=True)
    assert close(found.p_value, exact_p(torch.cat([a, b + 0.5]), flips, tuple(range(6, 12))))
    assert found.pairs is not None
    gaps = b + 0.5 - a
    signs = torch.tensor(list(itertools.product((-1.0, 1.0), repeat=6)), dtype=torch.float64)
    truth = float(((signs @ gaps).abs() >= gaps.sum().abs() - 1e-12).double().mean())
    assert close(found.pairs.p_value, truth)


def test_clustered_p_values_against_enumeration():
    """Clusters p, q have rows of both groups, r, s, t of one: labels within the former, and among the latter."""
    a, b, _ = alone(6, stream(3, "tiny"))
    b = b + 0.7
    names = (["p", "p", "q", "r", "r", "s"], ["p", "q", "q", "t", "t", "t"])
    cells: dict[str, list[int]] = {}
    for row, name in enumerate(names[0] + names[1]):
        cells.setdefault(name, []).append(row)
    within = [itertools.combinations(cells["p"], 1), itertools.combinations(cells["q"], 2)]
    labellings = [(*p, *q, *cells[one]) for p, q in itertools.product(*within) for one in "rst"]
    centred = torch.from_numpy(stats.rankdata(torch.cat([a, b]).numpy())) - 6.5
    sums = torch.stack([centred[list(one)].sum() for one in labellings])
    truth = float(((sums - sums.mean()).abs() >= (centred[6:].sum() - sums.mean()).abs() - 1e-9).double().mean())
    assert close(separate(a, b, score="x", clusters=names).p_value, truth)


def null_p(source, repetitions: int = 200, rows: int = 60, **changed) -> tuple[list[float], list[bool]]:
    p_values, covered = [], []
    for seed in range(repetitions):
        a, b, units = source(rows, stream(seed, "null", source.__name__))
        found = separate(a, b, score="x", seed=seed, permutations=499, **{**units, **changed})
        p_values.append(found.p_value)
        covered.append(covers(found.auroc, 0.5))
    return p_values, covered


def uniformity(p_values: list[float]) -> float:
    return float(stats.kstest(p_values, "uniform").pvalue)


@pytest.mark.parametrize("source", SOURCES, ids=lambda one: one.__name__)
def test_nothing_is_found_where_there_is_nothing(source):
    """200 repetitions with 60 + 60 rows. The test of uniformity has a false alarm in 100, with fixed seeds."""
    p_values, covered = null_p(source)
    assert uniformity(p_values) > 0.01
    assert abs(sum(covered) / 200 - 0.95) < bound(200, z=3)


def test_sign_flips_are_uniform():
    found = [
        separate(*in_pairs(30, stream(s, "flip"))[:2], score="x", paired=True, permutations=199, seed=s)
        for s in range(200)
    ]
    assert uniformity([one.pairs.p_value for one in found if one.pairs]) > 0.01
    assert abs(sum(covers(one.pairs.difference, 0) for one in found if one.pairs) / 200 - 0.95) < bound(200)


def test_ignoring_what_rows_share_is_caught():
    """Negative controls: pairs and clusters taken for independent rows."""
    p_values, covered = null_p(in_pairs, repetitions=80, paired=False)
    assert uniformity(p_values) < 1e-4
    assert sum(covered) == 80  # far too wide
    p_values, covered = null_p(in_whole_clusters, repetitions=80, clusters=None)
    assert uniformity(p_values) < 1e-4
    assert sum(covered) / 80 < 0.95 - bound(80)


@pytest.mark.parametrize(("source", "rows"), [(alone, 8), (in_whole_clusters, 24)], ids=["rows", "clusters"])
def test_forgetting_the_given_labelling_is_caught(source, rows):
    """With 9 permutations p <= 0.112 must happen at most in 11.2 % of repetitions; without the "+ 1" in 20 %."""
    found = []
    for seed in range(500):
        a, b, units = source(rows, stream(seed, "plus one"))
        found.append(separate(a, b, score="x", permutations=9, seed=seed, **units).p_value)
    right = sum(p <= 0.112 for p in found) / 500
    wrong = sum((10 * p - 1) / 9 <= 0.112 for p in found) / 500
    assert right < 0.112 + bound(500, 0.112)
    assert wrong > 0.112 + bound(500, 0.112)


# intervals


def coverage_of_auroc(source, area: float, rows: int, draws: int) -> float:
    hits = 0
    for seed in range(draws):
        a, b, units = source(rows, stream(seed, "coverage", rows, source.__name__))
        b = b + shift(area)
        hits += covers(RankComparison.of(a, b, units_of(a, b, **units)).interval(), area)
    return hits / draws


@pytest.mark.parametrize("area", [0.5, 0.8, 0.99])
@pytest.mark.parametrize("rows", [20, 50, 200])
def test_coverage_of_auroc(rows, area):
    """At least nominal, and at most 2 % too wide away from the end; a false alarm once in 16,000 each."""
    found = coverage_of_auroc(alone, area, rows, draws=150)
    assert found > 0.95 - bound(150)
    assert area == 0.99 or found < 0.97 + bound(150, 0.97, z=3)


@pytest.mark.slow
@pytest.mark.parametrize("source", SOURCES, ids=lambda one: one.__name__)
@pytest.mark.parametrize("area", [0.5, 0.8, 0.99])
@pytest.mark.parametrize("rows", [20, 50, 200])
def test_coverage_of_auroc_in_all_designs(rows, area, source):
    rows = rows // 6 * 6 if source in (in_mixed_clusters, in_whole_clusters) else rows
    found = coverage_of_auroc(source, area, rows, draws=500)
    print(f"{source.__name__}, {rows} + {rows} rows, AUROC {area}: {found:.3f}")
    assert found > 0.95 - bound(500)


def contaminated(rows: int, generator: torch.Generator):
    """Some positives are below all negatives, the others above: AUROC 0.99."""
    a, b = normal(2, rows, generator=generator)
    return a, torch.where(torch.rand(rows, generator=generator) < 0.01, b - 20, b + 20)


def wide(rows: int, generator: torch.Generator):
    """Positives spread three times as far: AUROC 0.99."""
    a, b = normal(2, rows, generator=generator)
    return a, 3 * b + math.sqrt(10) * float(stats.norm.ppf(0.99))


@pytest.mark.parametrize("source", [contaminated, wide])
@pytest.mark.parametrize("rows", [20, 50, 200])
def test_coverage_of_auroc_in_rough_shapes(rows, source):
    """Where 1 % of the rows carry all overlap no interval of 95 % is exact: 90 % is asked for (z = 4)."""
    draws, hits = 150, 0
    for seed in range(draws):
        a, b = source(rows, stream(seed, "rough", rows))
        hits += covers(auroc(a, b), 0.99)
    assert hits / draws > 0.9 - bound(draws, 0.9)


def test_a_percentile_bootstrap_is_caught():
    """Negative control, n = 20 and AUROC 0.99: it covers in three of four draws."""
    hits, draws = 0, 200
    for seed in range(draws):
        generator = stream(seed, "percentiles")
        a, b, _ = alone(20, generator)
        rows = torch.randint(20, (2, 400, 20), generator=generator)
        wins = (b[rows[0]] + shift(0.99)).unsqueeze(2) > a[rows[1]].unsqueeze(1)
        low, high = wins.double().mean((1, 2)).quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
        hits += low <= 0.99 <= high
    assert hits / draws < 0.85


def test_perfect_separation_is_a_proportion():
    """n of n: Wilson's interval. More rows, and clusters, count as they should."""
    z2 = stats.norm.ppf(0.975) ** 2
    a = torch.arange(20.0, dtype=torch.float64)
    found = auroc(a, a + 100)
    assert (found.value, found.high) == (1.0, 1.0)
    assert found.low == pytest.approx(20 / (20 + z2))
    assert auroc(a + 100, a).high == pytest.approx(1 - 20 / (20 + z2))
    names = ([n // 2 for n in range(20)], [10 + n // 2 for n in range(20)])
    assert auroc(a, a + 100, clusters=names).low == pytest.approx(10 / (10 + z2))


def test_all_scores_equal():
    same = torch.full((50,), 3.0, dtype=torch.float64)
    found = separate(same, same, score="x")
    assert found.auroc.value == 0.5
    assert 0.4 < found.auroc.low < 0.5 < found.auroc.high < 0.6
    assert found.p_value == 1.0
    assert (found.effect.value, found.effect.low, found.effect.high) == (0.0, -math.inf, math.inf)
    assert separate(same, same + 1, score="x").effect.value == math.inf
    assert found.tpr[0.05].value == 0.0


def test_wilson_is_a_special_case():
    found = score_interval(0.3, 0.3 * 0.7 / 40, rows=40, evidence=7.0)
    peer = stats.binomtest(12, 40).proportion_ci(method="wilson")
    assert (found.low, found.high) == pytest.approx((peer.low, peer.high))


def test_coverage_of_effects():
    for source, level in ((alone, 0.95), (in_pairs, 0.93)):
        hits = 0
        for seed in range(200):
            a, b, units = source(50, stream(seed, "effect"))
            hits += covers(effect_size(a, b + 0.8, units_of(a, b, **units)), 0.8)
        assert abs(hits / 200 - level) < 0.02 + bound(200)


def test_pairs_against_closed_forms():
    a = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0], dtype=torch.float64)
    b = torch.tensor([2.0, 2.0, 5.0, 7.0, 4.0], dtype=torch.float64)
    pairs = separate(a, b, score="x", paired=True).pairs
    assert pairs is not None
    assert (pairs.count, pairs.share.value, pairs.difference.value) == (5, 0.7, 1.0)
    assert pairs.standard_error == pytest.approx(math.sqrt(2.5 / 5))
    peer = stats.ttest_rel(b.numpy(), a.numpy()).confidence_interval()
    assert (pairs.difference.low, pairs.difference.high) == pytest.approx((peer.low, peer.high))
    wins = separate(a, a + torch.tensor([1.0, 1, 1, -1, 1]).double(), score="x", paired=True).pairs
    assert wins is not None
    wilson = stats.binomtest(4, 5).proportion_ci(method="wilson")
    assert (wins.share.low, wins.share.high) == pytest.approx((wilson.low, wilson.high))


# thresholds and curves


def test_thresholds_against_sorting():
    negatives = torch.arange(200.0, dtype=torch.float64)
    positives = torch.tensor([150.0, 190.0, 195.0, 197.0, 197.5, 199.5, 300.0, 300.0], dtype=torch.float64)
    found = separate(negatives, positives, score="x", rates=(0.01, 0.05, 0.012))
    assert found.threshold == {0.01: 197.0, 0.05: 189.0, 0.012: 197.0}
    assert found.achieved == {0.01: 0.01, 0.05: 0.05, 0.012: 0.01}
    assert [one.value for one in found.tpr.values()] == [4 / 8, 7 / 8, 4 / 8]
    tied = separate(negatives.div(50, rounding_mode="floor"), positives / 50, score="x", rates=(0.3,))
    assert tied.achieved == {0.3: 0.25}  # above 2 are the 50 that are 3


def test_one_percent_of_fifty_negatives_is_not_known():
    a, b, _ = alone(50, stream(0, "fifty"))
    found = separate(a, b + 8, score="x")
    assert found.achieved[0.01] == 0.0
    assert found.threshold[0.01] == float(a.max())
    assert (found.tpr[0.01].value, found.tpr[0.01].low, found.tpr[0.01].high) == (1.0, 0.0, 1.0)
    many, few, _ = alone(2000, stream(1, "fifty"))
    assert separate(many, few[:50] + 8, score="x").tpr[0.01].low > 0.9


def test_coverage_of_tpr():
    """At least nominal; taking the threshold for known (negative control) covers in fewer than 85 % of draws."""
    truth = float(stats.norm.sf(stats.norm.ppf(0.95) - shift(0.8)))
    hits = naive = 0
    for seed in range(300):
        a, b, _ = alone(200, stream(seed, "rates"))
        b = b + shift(0.8)
        found = separation._curve(a, b, torch.tensor([0.05], dtype=torch.float64), units_of(a, b)).intervals[0]
        hits += covers(found, truth)
        low, high = stats.binomtest(round(found.value * 200), 200).proportion_ci(method="wilson")
        naive += low <= truth <= high
    assert hits / 300 > 0.95 - bound(300)
    assert naive / 300 < 0.85


def test_curve_against_peer():
    for decimals in (1, 8):
        a, b, _ = alone(150, stream(decimals, "curve"))
        a, b = a.round(decimals=decimals), (b + 1).round(decimals=decimals)
        found = roc(a, b)
        labels, scores = [0] * 150 + [1] * 150, torch.cat([a, b]).numpy()
        fpr, tpr, _ = roc_curve(labels, scores, drop_intermediate=False)
        peer = {(round(x, 9), round(y, 9)) for x, y in zip(fpr, tpr, strict=True)}
        assert {(round(x, 9), round(y, 9)) for x, y in zip(found.fpr, found.tpr, strict=True)} <= peer
        for low, value, high in zip(found.low, found.tpr, found.high, strict=True):
            assert 0 <= low <= value <= high <= 1
        assert (found.fpr[0], found.fpr[-1], found.tpr[-1]) == (0.0, 1.0, 1.0)
        assert list(found.fpr) == sorted(set(found.fpr))
        assert numpy.trapezoid(found.tpr, found.fpr) == pytest.approx(roc_auc_score(labels, scores), abs=0.02)


def test_long_curves_are_thinned():
    a, b, _ = alone(5000, stream(0, "long"))
    found = roc(a, b + 1)
    assert 100 < len(found.fpr) <= 200
    assert found.fpr[1] == 1 / 5000
    assert numpy.trapezoid(found.tpr, found.fpr) == pytest.approx(auroc(a, b + 1).value, abs=0.01)


def test_band_is_that_of_the_rates():
    a, b, _ = alone(100, stream(5, "band"))
    curve, rates = roc(a, b + 1), separate(a, b + 1, score="x").tpr
    place = curve.fpr.index(0.05)
    assert Interval(curve.tpr[place], curve.low[place], curve.high[place]) == rates[0.05]


# several scores, single rows


def test_differences_of_scores():
    """Coverage with a shared signal; leaving the correlation out is wider; both at a half; a score against itself."""
    truth = 0.3 - 0.2
    hits = nothing = 0
    narrower = []
    for seed in range(150):
        generator = stream(seed, "difference")
        (a, b, _), noise = alone(60, generator), normal(2, 60, generator=generator)
        first = a, b + shift(0.8)
        other = 0.8 * a + 0.6 * noise[0], 0.8 * b + 0.6 * noise[1] + shift(0.7)
        found = difference(first, other)
        hits += covers(found, truth)
        apart = stronger(auroc(*first), auroc(*other))
        narrower.append((found.high - found.low) / (apart.high - apart.low))
        nothing += covers(difference((a, b), (other[0], 0.8 * b + 0.6 * noise[1])), 0)
    assert hits / 150 > 0.95 - bound(150)
    assert sum(narrower) / 150 < 0.8
    assert nothing / 150 > 0.95 - bound(150)
    itself = difference((a, b + 1), (-a, -b - 1))
    assert itself.value == 0
    assert itself.high - itself.low < 0.1


def test_difference_at_the_end_says_that_it_is_not_known():
    a = torch.arange(20.0, dtype=torch.float64)
    found = difference((a, a + 100), (a, a + 200))
    assert found.value == 0
    assert found.low < -0.1
    assert found.high > 0.1


def test_adjusted_p_values_against_peer():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []


def test_conformal_p_values_against_enumeration():
    """Whichever of n + 1 exchangeable rows is asked about: each rank once. Ties only raise p-values."""
    values = normal(9, generator=stream(0, "conformal"))
    rest = torch.stack([torch.cat([values[:n], values[n + 1 :]]) for n in range(9)])
    found = [float(conformal_p(rest[n], values[n : n + 1])[0]) for n in range(9)]
    assert sorted(found) == pytest.approx([k / 9 for k in range(1, 10)])
    ties = torch.tensor([1.0, 2.0, 2.0], dtype=torch.float64)
    assert conformal_p(ties, torch.tensor([0.0, 2.0, 3.0]).double()).tolist() == [1.0, 0.75, 0.25]


def test_false_discoveries_are_held():
    """80 non-members and 20 members of 100, 300 repetitions: the mean share of false ones is at most 0.2 (z = 4)."""
    shares = []
    for seed in range(300):
        generator = stream(seed, "discoveries")
        asked = normal(100, generator=generator) + 3 * (torch.arange(100) < 20)
        p_values = conformal_p(normal(200, generator=generator), asked)
        called = torch.from_numpy(stats.false_discovery_control(p_values.numpy())) <= 0.2
        shares.append(float(called[20:].sum()) / max(1, int(called.sum())))
    found = torch.tensor(shares, dtype=torch.float64)
    assert float(found.mean()) < 0.2 + 4 * float(found.std()) / math.sqrt(300)
    assert float(found.mean()) > 0.05


# behaviour


def test_same_seed_same_numbers_and_chunks_change_nothing(monkeypatch):
    a, b, _ = alone(40, stream(0, "again"))
    whole = separate(a, b + 0.4, score="x", seed=1)
    assert whole == separate(a, b + 0.4, score="x", seed=1)
    assert whole != separate(a, b + 0.4, score="x", seed=2)
    monkeypatch.setattr(separation, "CHUNK", 1000)
    assert whole == separate(a, b + 0.4, score="x", seed=1)
    monkeypatch.setattr(separation, "WORK", 8000)
    assert separate(a, b + 0.4, score="x", seed=1).permutations == 100


def test_mistakes_are_told():
    a, b, _ = alone(4, stream(0, "mistakes"))
    for arguments, options, words in (
        ((a[:1], b), {}, "the negatives have 1"),
        ((a, b * math.inf), {}, "must be finite"),
        ((a, b[:3]), {"paired": True}, "Pairs need as many rows"),
        ((a, b), {"paired": True, "clusters": ("abcd", "efgh")}, "not both"),
        ((a, b), {"clusters": ("abcd", "efg")}, "4 positives came with 3"),
        ((a, b), {"clusters": ("aaaa", "abcd")}, "All negatives are in one cluster"),
        ((a, b), {"rates": (1.0,)}, "between 0 and 1"),
    ):
        with pytest.raises(InputError, match=words):
            separate(*arguments, score="x", **options)
    with pytest.raises(InputError, match="reference is empty"):
        conformal_p(a[:0], b)
    with pytest.raises(InputError, match="NaN"):
        conformal_p(a, b * math.nan)
