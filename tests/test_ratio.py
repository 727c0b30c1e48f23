import itertools
import math

import pytest
import torch

import infodis
from infodis.bench.experiments import coupling
from infodis.bench.problems import Perturbed, Tabulated
from infodis.control import Neighbours
from infodis.design import Orders, Pairs, StratifiedCount, Tiled, TimeFree, UniformCount
from infodis.errors import InputError
from infodis.estimate import Request
from infodis.item import Item
from infodis.oracle import MarkovChain, Table
from infodis.predictor import Counting, Tempered, from_function
from infodis.ratio import Pair
from infodis.rng import stream

CHAIN = MarkovChain.random(order=2, vocab_size=4, temperature=0.3, seed=0)
X, Y, Z = CHAIN.sample(3, length=18, generator=stream(0, "ratio"))
PROMPT = range(8)
FAIR = from_function(lambda t: torch.full((*t.shape, 4), 0.25).log(), vocab_size=4, mask_token=4)


def exact(y, x) -> float:
    return CHAIN.log_prob(y, context=PROMPT) - CHAIN.log_prob(x, context=PROMPT)


@pytest.mark.parametrize(
    "design", [TimeFree(), UniformCount(), StratifiedCount(), Pairs(), Tiled(), Orders()], ids=repr
)
@pytest.mark.parametrize("short", [0, 3], ids=["equal lengths", "unequal lengths"])
def test_unbiased_against_exact(design, short):
    """150 seeds; z beyond 4 is a false alarm once in 16,000."""
    above, below = (Tabulated.of(CHAIN, Item.read(t, context=PROMPT)) for t in (Y[: 18 - short], X))
    request = Request(design, Neighbours(), 40)
    found = [Pair(above, above.item, below, below.item, request, True, seed).ratio() for seed in range(150)]
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
