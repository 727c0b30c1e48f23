import dataclasses
import itertools
import math

import pytest
import torch

import infodis
from infodis.apps.bench.experiments import coupling
from infodis.control import Neighbours
from infodis.design import Enumerate, Orders, Pairs, StratifiedCount, Tiled, TimeFree, UniformCount
from infodis.errors import InputError
from infodis.estimate import Request
from infodis.item import Item
from infodis.oracle import MarkovChain, Table
from infodis.predictor import Counting, Tempered, from_function
from infodis.quantities.ratio import Comparison, Ratio, Side, compare, margin
from infodis.rng import stream
from infodis.testing import Perturbed, Tabulated

CHAIN = MarkovChain.random(order=2, vocab_size=4, temperature=0.3, seed=0)
X, Y, Z = CHAIN.sample(3, length=18, generator=stream(0, "ratio"))
PROMPT = range(8)
FAIR = from_function(lambda t: torch.full((*t.shape, 4), 0.25).log(), vocab_size=4, mask_token=4)


def exact(y, x) -> float:
    return CHAIN.log_prob(y, context=PROMPT) - CHAIN.log_prob(x, context=PROMPT)


def read(tokens) -> Item:
    return Item.read(tokens, context=PROMPT)


def repeated(
    tables: list[Tabulated], signs: list[int], request: Request, *, runs: int, coupled: bool = True
) -> list[Ratio]:
    """Independent runs of one comparison. Tables know only masks, so other context tokens do but name other numbers."""
    comparisons = []
    for run in range(runs):
        other = (run // 4 ** torch.arange(len(PROMPT))) % 4
        items = [read(torch.cat([other, table.item.tokens[len(PROMPT) :]])) for table in tables]
        sides = tuple(Side(*side) for side in zip(tables, items, signs, strict=True))
        comparisons.append(Comparison(sides, request, coupled))
    return compared(comparisons)


def compared(comparisons) -> list[Ratio]:
    found = compare(comparisons)
    assert all(isinstance(outcome, Ratio) for outcome in found)
    return found


@pytest.mark.parametrize(
    "design", [TimeFree(), UniformCount(), StratifiedCount(), Pairs(), Tiled(), Orders()], ids=repr
)
@pytest.mark.parametrize("short", [0, 3], ids=["equal lengths", "unequal lengths"])
def test_unbiased_against_exact(design, short):
    """150 runs; z beyond 4 is a false alarm once in 16,000."""
    above, below = (Tabulated.of(CHAIN, Item.read(t, context=PROMPT)) for t in (Y[: 18 - short], X))
    found = repeated([above, below], [1, -1], Request(design, Neighbours(), 40), runs=150)
    error = torch.tensor([r.value for r in found], dtype=torch.float64) - exact(Y[: 18 - short], X)
    assert abs(float(error.mean())) < 4 * float(error.std()) / math.sqrt(150) + 1e-9


@pytest.mark.slow
def test_coupling_lowers_the_variance_of_related_sequences():
    """Edited responses, 200 runs: below for every design; with a control and unequal lengths, where the gain is small,
    not above by more than three standard errors of the ratio of two variances (0.14 each).
    """
    related = itertools.takewhile(lambda c: c.pair.startswith("edited"), coupling(rows=48, runs=200, target=10))
    for found in related:
        if found.design != "TimeIntegral":  # whose variance is infinite
            small = found.pair == "edited, shorter" and found.control != "none"
            assert found.coupled < found.decoupled * (1.4 if small else 1.0), found
        assert abs(found.bias_z) < 4.5, found


def test_candidates_share_randomness_and_keep_their_order():
    found = infodis.log_ratio(CHAIN, [Y, Z, X], X, context=PROMPT, design=StratifiedCount(), evaluations=64)
    alone = infodis.log_ratio(CHAIN, Z, X, context=PROMPT, design=StratifiedCount(), evaluations=64)
    assert found[1].value == pytest.approx(alone.value, rel=1e-9)
    assert found[2].value == 0.0
    assert found[2].standard_error == 0.0
    assert torch.equal(found[0].denominator.replicates, found[1].denominator.replicates)


def test_candidates_ask_about_the_common_side_once():
    counting = Counting(CHAIN)
    found = infodis.log_ratio(counting, [Y, Z], X, context=PROMPT, design=Tiled(), evaluations=32)
    assert counting.rows == sum(f.numerator.evaluations for f in found) + found[0].denominator.evaluations


def test_sides_of_unequal_length_have_as_many_orders():
    noisy = Perturbed(CHAIN, scale=1.0)
    found = infodis.log_ratio(noisy, Y[:12], X, context=PROMPT, design=Orders(), evaluations=100)
    assert found.value == pytest.approx(found.denominator.value - found.numerator.value)


def test_two_predictors_on_one_text_against_exact():
    other = Tempered(CHAIN, temperature=1.5)
    coupled, apart = (
        infodis.log_ratio(CHAIN, Y, reference=other, context=PROMPT, design=Tiled(), evaluations=64, coupled=c)
        for c in (True, False)
    )
    truth = infodis.nll(other, Y, context=PROMPT, evaluations=2**10).value + CHAIN.log_prob(Y, context=PROMPT)
    for found in (coupled, apart):
        assert abs(found.value - truth) < 6 * found.standard_error + 1e-6
    assert coupled.standard_error < apart.standard_error


def test_exact_designs_give_exact_ratios():
    dna = Table.dna(1)
    y, x = dna.sequences[:2]
    found = infodis.log_ratio(dna, y, x, evaluations=255)
    assert found.value == pytest.approx(dna.log_prob(y) - dna.log_prob(x), rel=1e-9)
    assert (found.stopped, found.standard_error) == ("exact", 0.0)


def test_auto_falls_back_when_one_side_is_too_long():
    found = infodis.log_ratio(CHAIN, X, X[:12], context=PROMPT, evaluations=16)  # 4 against 10 target tokens
    assert abs(found.value - exact(X, X[:12])) < 8 * found.standard_error


def test_a_requested_standard_error_is_reached():
    noisy = Perturbed(CHAIN, scale=0.5)
    found = infodis.log_ratio(noisy, Y, X, context=PROMPT, standard_error=0.2)
    assert found.standard_error <= 0.2 or found.stopped == "cap reached"
    tight = infodis.log_ratio(noisy, Y, X, context=PROMPT, standard_error=1e-5, evaluations=300)
    assert tight.stopped == "cap reached"


def test_impossible_sides():
    table = Table(torch.tensor([[0, 0, 0], [1, 1, 1]]), torch.tensor([0.5, 0.5]))
    assert infodis.log_ratio(table, [0, 1, 0], [0, 0, 0]).value == -math.inf
    assert infodis.log_ratio(table, [0, 0, 0], [0, 1, 0]).value == math.inf
    with pytest.raises(InputError, match="Both sides"):
        infodis.log_ratio(table, [0, 1, 0], [1, 0, 1])


def test_a_comparison_without_an_answer_leaves_the_others_alone():
    table = Table(torch.tensor([[0, 0, 0], [1, 1, 1]]), torch.tensor([0.25, 0.75]))
    fine, other, zero = (Item.read(tokens) for tokens in ([0, 0, 0], [1, 1, 1], [0, 1, 0]))
    pairs = [(zero, zero), (other, fine), (zero, fine), (fine, zero)]
    undefined, finite, below, above = compare([Comparison(margin(table, *pair)) for pair in pairs])
    assert isinstance(undefined, InputError)
    assert "Both sides" in str(undefined)
    assert finite.value == pytest.approx(math.log(3))
    assert (below.value, above.value) == (-math.inf, math.inf)
    assert (below.standard_error, above.standard_error) == (0.0, 0.0)


def test_zeros_of_a_margin_are_undefined_only_if_they_meet():
    table = Table(torch.tensor([[0, 0, 0], [1, 1, 1]]), torch.tensor([0.25, 0.75]))
    fair = from_function(lambda t: torch.full((*t.shape, 2), 0.5).log(), vocab_size=2, mask_token=2)
    alike = Table(table.sequences, torch.tensor([0.5, 0.5]))
    fine, zero = Item.read([0, 0, 0]), Item.read([0, 1, 0])
    impossible, both = compare(
        [Comparison(margin(table, zero, fine, reference=reference)) for reference in (fair, alike)]
    )
    assert impossible.value == -math.inf
    assert isinstance(both, InputError)


def test_a_budget_too_small_for_one_leaves_the_others_alone():
    request = Request(Orders(), None, 16)  # two orders of 10 take 19 rows, two of 4 take 7
    short, long = (Comparison(margin(CHAIN, read(Y[:n]), read(X[:n])), request) for n in (12, 18))
    refused, found = compare([long, short])
    assert isinstance(refused, InputError)
    assert "Orders" in str(refused)
    assert found.value == pytest.approx(exact(Y[:12], X[:12]))


def test_identical_sides_are_exactly_equal():
    noisy = Perturbed(CHAIN, scale=0.5)
    requests = [Request(evaluations=32), Request(standard_error=0.1), Request(relative=0.1)]
    for found in compared([Comparison(margin(noisy, read(X), read(X)), request) for request in requests]):
        assert (found.value, found.standard_error) == (0.0, 0.0)
        assert found.stopped != "cap reached"


# Lengths of chosen and rejected: 4 to 10 target tokens each.
LENGTHS = [(18, 18), (18, 15), (12, 18), (16, 16)]
REFERENCE = MarkovChain.random(order=1, vocab_size=4, temperature=0.6, seed=3)


@pytest.mark.parametrize(("chosen", "rejected"), LENGTHS)
def test_margin_by_enumeration_against_exact(chosen, rejected):
    y, x = Y[:chosen], X[:rejected]
    sides = margin(CHAIN, read(y), read(x), reference=REFERENCE)
    found = Comparison(sides, Request(Enumerate(), None, 2**10), quantity="reward_margin").ratio()
    truth = exact(y, x) - (REFERENCE.log_prob(y, context=PROMPT) - REFERENCE.log_prob(x, context=PROMPT))
    assert found.value == pytest.approx(truth, abs=1e-9)
    assert (found.stopped, found.standard_error, found.quantity) == ("exact", 0.0, "reward_margin")
    assert [side.value for side in found.sides] == pytest.approx(
        [-model.log_prob(tokens, context=PROMPT) for model in (CHAIN, REFERENCE) for tokens in (y, x)]
    )
    with pytest.raises(InputError, match="read `sides`"):
        _ = found.numerator


def margins(design, *, coupled: bool, short: int) -> tuple[torch.Tensor, float]:
    """Errors of 100 margins of an edited sequence, and the mean of the variances that they claim."""
    edited = X.clone()
    edited[9::4] = (edited[9::4] + 1) % 4
    models, items = (CHAIN, Perturbed(CHAIN, scale=0.5)), (read(edited[: 18 - short]), read(X))
    tables = [Tabulated.of(model, item) for model in models for item in items]
    signs = [side.sign for side in margin(CHAIN, *items, reference=CHAIN)]
    found = repeated(tables, signs, Request(design, None, 40), runs=100, coupled=coupled)
    truth = -sum(sign * table.exact for sign, table in zip(signs, tables, strict=True))
    errors = torch.tensor([r.value for r in found], dtype=torch.float64) - truth
    return errors, sum(r.standard_error**2 for r in found) / len(found)


@pytest.mark.parametrize("short", [0, 3], ids=["equal lengths", "unequal lengths"])
@pytest.mark.parametrize("design", [StratifiedCount(), Tiled()], ids=repr)
def test_margins_are_unbiased_and_coupling_lowers_their_variance(design, short):
    """100 runs: z beyond 4 is a false alarm once in 16,000.

    The logarithm of a ratio of two equal variances has a standard error of sqrt(4 / 99) = 0.2; the gain must lie four
    of them below zero. The variance that the standard errors claim is held to the same bound.
    """
    (coupled, claimed), (apart, _) = (margins(design, coupled=c, short=short) for c in (True, False))
    for errors in (coupled, apart):
        assert abs(float(errors.mean())) < 4 * float(errors.std()) / math.sqrt(100)
    assert math.log(coupled.var() / apart.var()) < -4 * 0.2
    assert abs(math.log(claimed / coupled.var())) < 4 * 0.2


def test_sides_drawn_apart_are_independent():
    """Four equal sides drawn apart: their variances add up, within the bound of the test above."""
    table = Tabulated.of(Perturbed(CHAIN, scale=0.5), read(X))
    found = repeated([table] * 4, [1, -1, -1, 1], Request(Tiled(), None, 40), runs=100, coupled=False)
    total = torch.tensor([r.value for r in found], dtype=torch.float64).var()
    single = sum(torch.tensor([r.sides[n].value for r in found], dtype=torch.float64).var() for n in range(4))
    assert abs(math.log(total / single)) < 4 * 0.2


def test_a_margin_holds_the_policys_ratio():
    """The first two sides meet the same numbers as without a reference."""
    request = Request(Tiled(), Neighbours(), 48)
    alone, four = compared(
        [Comparison(margin(CHAIN, read(Y), read(X[:15]), reference=model), request) for model in (None, REFERENCE)]
    )
    for one, other in zip(alone.sides, four.sides[:2], strict=True):
        assert torch.equal(one.replicates, other.replicates)


@pytest.mark.parametrize("control", [None, Neighbours()], ids=repr)
@pytest.mark.parametrize(
    ("budget", "share"), [({"evaluations": 48}, 0.5), ({"standard_error": 0.9}, 0.5), ({"standard_error": 0.3}, 0.75)]
)
def test_many_at_a_time_equal_one_at_a_time(budget, share, control):
    """To rounding: in double precision, but for a control, which is fitted in single precision.

    They take at most a share of the calls; second stages of different sizes (0.3) are asked one after another.
    """
    policy, reference = Counting(Perturbed(FAIR, scale=0.7)), Perturbed(FAIR, scale=0.5)
    texts = CHAIN.sample(12, length=18, generator=stream(0, "many"))
    comparisons = []
    for n, (chosen, rejected) in enumerate(zip(texts, texts.roll(1, 0), strict=True)):
        sides = margin(policy, read(chosen[: 18 - n % 3]), read(rejected), reference=reference if n % 2 else None)
        comparisons.append(Comparison(sides, Request(Tiled(), control, **budget), coupled=n != 5))
    alone = [comparison.ratio() for comparison in comparisons]
    calls, rows = policy.calls, policy.rows
    together = compared(comparisons)
    assert policy.rows == 2 * rows
    assert policy.calls - calls < share * calls
    policy.calls = policy.rows = 0
    request = dataclasses.replace(comparisons[0].request, batch_size=7)
    sevens = compared([dataclasses.replace(comparison, request=request) for comparison in comparisons])
    assert policy.calls >= policy.rows / 7
    tolerance = 1e-9 if control is None else 1e-5
    for one, other, small in zip(alone, together, sevens, strict=True):
        assert torch.allclose(one.replicates, other.replicates, rtol=0, atol=tolerance)
        assert torch.allclose(other.replicates, small.replicates, rtol=0, atol=1e-9)
        assert (one.stopped, one.evaluations) == (other.stopped, other.evaluations)


def test_little_memory_changes_no_number(monkeypatch):
    texts = CHAIN.sample(6, length=18, generator=stream(0, "many"))
    comparisons = [Comparison(margin(CHAIN, read(y), read(X)), Request(Tiled(), None, 32)) for y in texts]
    roomy = compared(comparisons)
    monkeypatch.setattr(infodis.estimate, "CHUNK", 1000)
    monkeypatch.setattr(infodis.estimate, "WINDOW", 1000)
    for one, other in zip(roomy, compared(comparisons), strict=True):
        assert torch.allclose(one.replicates, other.replicates, rtol=0, atol=1e-9)


@pytest.mark.parametrize("asked", [{"standard_error": 0.2}, {"relative": 0.1}], ids=str)
def test_a_margin_stops_at_its_own_precision(asked):
    request = Request(Tiled(), None, **asked)
    sides = margin(CHAIN, read(Z), read(X), reference=REFERENCE)
    found = Comparison(sides, request).ratio()
    assert found.stopped == "standard error reached"
    assert found.standard_error <= asked.get("standard_error", asked.get("relative", 0) * abs(found.value))
    assert found.replicates.numel() > 8
    tight = Comparison(sides, dataclasses.replace(request, **dict.fromkeys(asked, 1e-4), evaluations=300)).ratio()
    assert tight.stopped == "cap reached"
    assert 150 < max(side.evaluations for side in tight.sides) <= 300


def test_nothing_to_compare():
    assert compare([]) == []
    with pytest.raises(InputError, match="subtracted"):
        Comparison((Side(CHAIN, read(X)),))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (lambda: infodis.log_ratio(CHAIN, Y), "give one"),
        (lambda: infodis.log_ratio(CHAIN, Y, X, reference=CHAIN), "give one"),
        (lambda: infodis.log_ratio(CHAIN, Y, torch.stack([X, X])), "one sequence"),
        (lambda: infodis.log_ratio(CHAIN, Y, [0, 9]), "0..3"),
        (lambda: infodis.log_ratio(FAIR, [0] * 16, [9] * 16), "0..3"),
        (lambda: infodis.log_ratio(FAIR, [0] * 16, [4] * 16), "mask token"),
    ],
)
def test_bad_input_is_a_clear_error(arguments, words):
    with pytest.raises(InputError, match=words):
        arguments()
