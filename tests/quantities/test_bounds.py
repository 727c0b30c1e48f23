"""Bounds against all 720 orders of a predictor whose conditionals disagree."""

import functools
import itertools
import json
import math

import pytest
import torch
import typer
from typer.testing import CliRunner

import infodis
from infodis.cli.bounds import bounds as command
from infodis.errors import InputError
from infodis.evaluate import Batching, run_batched
from infodis.item import Item
from infodis.oracle import HiddenMarkov, Independent, MarkovChain, Table
from infodis.predictor import Counting, from_function
from infodis.quantities.bounds import (
    Plan,
    average,
    bounds,
    bounds_coroutine,
    importance,
    tangent,
    tangent_point,
)
from infodis.rng import stream
from infodis.testing import Perturbed, Tabulated

CHAIN = MarkovChain.random(order=1, vocab_size=3, temperature=0.5, seed=0)
NOISY = Perturbed(CHAIN, scale=1.0)
X = CHAIN.sample(4, length=12, generator=stream(0, "bounds"))
ITEM = Item.read(X[0][:8], context=[0, 5])
TABLE = Tabulated.of(NOISY, ITEM)
RUNS = 200


def walk(table: torch.Tensor, order: tuple[int, ...]) -> float:
    """The chain rule along one order, step by step."""
    return sum(float(table[sum(2**i for i in order[step:]), order[step]]) for step in range(len(order)))


ORDERS = torch.tensor([walk(TABLE.table, order) for order in itertools.permutations(range(6))], dtype=torch.float64)
NLL = float(ORDERS.mean())
MIXTURE = -float(torch.logsumexp(-ORDERS, 0)) + math.log(720)


@functools.cache
def enumerated_importance(particles: int) -> float:
    """E -log of the mean of K likelihoods, for any K: E log S is the integral of (exp(-t) - E exp(-t S)) / t."""
    level = torch.linspace(-40, 40, 2_001, dtype=torch.float64)  # t = exp(level)
    relative = (MIXTURE - ORDERS).exp() / particles
    transform = torch.stack([torch.exp(-t * relative).mean() for t in level.exp()]) ** particles
    step = float(level[1] - level[0])
    return MIXTURE - step * float((torch.exp(-level.exp()) - transform).sum())


@functools.cache
def enumerated_tangent() -> float:
    """The expectation with halves of two orders, over all 720 x 720 pairs that may give psi."""
    first, second = (MIXTURE - ORDERS).exp().unsqueeze(0), (MIXTURE - ORDERS).exp().unsqueeze(1)
    mean = (first + second) / 2
    doubt = ((first - mean).square() + (second - mean).square()) / 2 / mean.square()  # variance / (2 mean^2)
    psi = mean * (1 + doubt)
    return MIXTURE + float((1 - psi.log() - 1 / psi).mean())


@pytest.fixture(scope="module")
def runs():
    """Bounds by seed, for a few plans that are too small to enumerate."""
    return {
        plan: list(run_batched((bounds_coroutine(NOISY, ITEM, plan, seed=seed) for seed in range(RUNS)), Batching()))
        for plan in (Plan(4, 2), Plan(12, 4))
    }


def score(values: list[float], truth: float) -> float:
    """How many standard errors the mean of independent values is from what it should be."""
    found = torch.tensor(values, dtype=torch.float64)
    return float((found.mean() - truth) / found.std()) * math.sqrt(len(values))


def test_the_two_ways_to_enumerate_agree():
    pairs = -torch.logaddexp(-ORDERS.unsqueeze(0), -ORDERS.unsqueeze(1)) + math.log(2)
    assert enumerated_importance(2) == pytest.approx(float(pairs.mean()), abs=1e-9)
    assert enumerated_importance(1) == pytest.approx(NLL, abs=1e-9)


def test_the_exact_bounds_are_in_order():
    truths = [enumerated_tangent(), MIXTURE, *(enumerated_importance(k) for k in (8, 4, 2)), NLL]
    assert truths == sorted(truths)
    assert min(b - a for a, b in itertools.pairwise(truths)) > 0.01  # so that mixing two of them up is seen


def test_estimates_against_enumeration(runs):
    """z beyond 4 is a false alarm once in 16,000; seeds are fixed, there are five cases."""
    small, large = runs.values()
    for found, particles in ((small, 2), (large, 4)):
        assert abs(score([one.nll.value for one in found], NLL)) < 4
        assert abs(score([one.importance_nll.value for one in found], enumerated_importance(particles))) < 4
    assert abs(score([one.tangent_nll.value for one in small], enumerated_tangent())) < 4


def test_the_tangent_bound_given_psi_against_enumeration():
    """Whatever psi is, the other half is unbiased: 600 draws of 12 orders; a false alarm once in 16,000."""
    errors = []
    for seed in range(600):
        costs = ORDERS[torch.randint(720, (12,), generator=stream(seed, "psi"))]
        points = torch.stack([tangent_point(costs[6:]), tangent_point(costs[:6])])
        truth = 1 - points - (-MIXTURE - points).exp()
        assert float(truth.max()) <= MIXTURE + 1e-12
        errors.append(float(tangent(costs).mean() - truth.mean()))
    assert abs(score(errors, 0.0)) < 4


def test_the_tangent_point_against_closed_form():
    """Likelihoods of 0.1, 0.2 and 0.3 have mean 0.2 and variance 0.01: psi = 0.2 (1 + 0.01 / (3 x 0.2^2))."""
    likelihoods = torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64)
    assert float(tangent_point(-likelihoods.log())) == pytest.approx(math.log(0.2 * (1 + 1 / 12)), rel=1e-12)


def test_mistakes_are_caught(runs):
    """Negative controls: psi from the orders it is used on, groups of the wrong size, and a forgotten log K."""
    drawn = [ORDERS[torch.randint(720, (4,), generator=stream(seed, "control"))] for seed in range(RUNS)]
    same = [float(1 - tangent_point(c) - (-c - tangent_point(c)).exp().mean()) for c in drawn]
    assert score(same, enumerated_tangent()) > 10
    assert abs(score([float(tangent(c).mean()) for c in drawn], enumerated_tangent())) < 4
    wrong = [float(importance(c, 1).mean()) for c in drawn]  # one group of four, not two of two
    assert abs(score(wrong, enumerated_importance(2))) > 4
    assert abs(score([float((importance(c, 2) - math.log(2)).mean()) for c in drawn], enumerated_importance(2))) > 10
    again = [float(importance(c.repeat_interleave(2)[:4], 2).mean()) for c in drawn]  # a group holds an order twice
    assert abs(score(again, enumerated_importance(2))) > 4


def test_claimed_standard_errors_are_the_spread_over_seeds(runs):
    """Mean squared error claimed over the variance of 200 runs, whose own standard error is about 10 %.

    nll and importance_nll have independent replicates: their ratio is 1. tangent_nll shares psi and is heavy-tailed.
    """
    for found in runs.values():
        for name, low, high in (("nll", 0.7, 1.4), ("importance_nll", 0.7, 1.4), ("tangent_nll", 0.5, 2.0)):
            parts = [getattr(one, name) for one in found]
            spread = torch.tensor([part.value for part in parts], dtype=torch.float64).var()
            claimed = torch.tensor([part.standard_error**2 for part in parts], dtype=torch.float64).mean()
            assert low < float(claimed / spread) < high, (name, float(claimed / spread))


def test_gaps_enclose_the_jensen_gap(runs):
    """Means of 200 runs; each side is allowed 4 standard errors."""
    for found in runs.values():
        assert score([one.least_gap.value for one in found], NLL - MIXTURE) < 4
        assert score([one.most_gap.value for one in found], NLL - MIXTURE) > -4


def test_spread_over_orders_against_enumeration(runs):
    """A standard deviation from 12 orders is biased by a few percent, its square is not."""
    _, large = runs.values()
    assert abs(score([one.spread.value**2 for one in large], float(ORDERS.var(correction=0)))) < 4


def test_short_targets_are_exact_against_all_orders():
    found = bounds(NOISY, ITEM.tokens, context=[0, 5])
    assert found.exact
    assert found.nll.value == pytest.approx(NLL, rel=1e-12)
    for bound in (found.mixture_nll, found.importance_nll, found.tangent_nll):
        assert bound.value == pytest.approx(MIXTURE, rel=1e-12)
    assert all(bound.standard_error == 0 for bound in found.quantities)
    assert found.spread.value == pytest.approx(float(ORDERS.std(correction=0)), rel=1e-12)
    assert found.least_gap.value == pytest.approx(NLL - MIXTURE, rel=1e-9)
    assert (found.nll.evaluations, found.evaluations) == (63, 69)
    assert found.left_to_right.value == pytest.approx(walk(TABLE.table, tuple(range(6))), rel=1e-12)


@pytest.mark.parametrize("length", [1, 2, 3])
def test_tiny_targets(length):
    found = bounds(NOISY, X[0], target=range(length), context=range(6, 12), orders=4, particles=2)
    assert found.exact
    assert found.evaluations == 2**length - 1 + length
    if length == 1:
        assert len({round(bound.value, 12) for bound in found.quantities}) == 1


SETS = [{}, {"context": range(3)}, {"target": [1, 3, 4, 6, 8, 9, 10, 11], "context": [0, 2]}]


@pytest.mark.parametrize("sets", SETS, ids=["everything", "given a prefix", "some summed out"])
def test_single_orders_against_order_nll(sets):
    found = bounds(NOISY, X[1], orders=4, particles=2, **sets)
    for order, bound in (("left-to-right", found.left_to_right), ("most-confident", found.most_confident_first)):
        peer = infodis.order_nll(NOISY, X[1], order=order, **sets)
        assert bound.value == pytest.approx(peer.value, rel=1e-9)
        assert bound.evaluations == peer.evaluations


@pytest.mark.parametrize(
    ("oracle", "length"),
    [
        (CHAIN, 10),
        (HiddenMarkov.random(states=3, vocab_size=3, seed=0), 10),
        (Independent(torch.tensor([0.2, 0.3, 0.5])), 10),
        (Table.dna(0), 8),
    ],
    ids=["chain", "hidden", "independent", "table"],
)
def test_all_quantities_of_an_oracle_are_equal_against_exact(oracle, length):
    x = oracle.sample(1, length=length, generator=stream(1, "oracle"))[0]
    found = bounds(oracle, x, orders=8, particles=4)
    assert not found.exact
    for bound in found.quantities:
        assert bound.value == pytest.approx(-oracle.log_prob(x), abs=1e-9)
        assert bound.standard_error < 1e-9
    assert found.least_gap.value == pytest.approx(found.most_gap.value, abs=1e-9)


def test_many_are_as_each_alone_and_rows_are_asked_once():
    counting = Counting(NOISY)
    sequences = [X[0], X[1][:9], X[2][:3], X[0]]
    found = bounds(counting, sequences, orders=8, particles=2, batch_size=7)
    assert counting.rows == sum(one.evaluations for one in found[:3])
    for one, sequence in zip(found, sequences, strict=True):
        alone = bounds(NOISY, sequence, orders=8, particles=2)
        torch.testing.assert_close(alone.nll.replicates, one.nll.replicates, rtol=1e-12, atol=0)
        assert [b.value for b in alone.quantities] == pytest.approx([b.value for b in one.quantities], rel=1e-12)


def test_more_orders_begin_with_the_same_ones():
    few, more = (bounds(NOISY, X[0], orders=n, particles=2) for n in (4, 8))
    assert torch.equal(few.nll.replicates, more.nll.replicates[:4])


def test_long_targets_in_blocks_are_as_in_one(monkeypatch):
    whole = bounds(NOISY, X[0], orders=8, particles=2)
    monkeypatch.setattr("infodis.quantities.bounds.CHUNK", 300)
    parts = bounds(NOISY, X[0], orders=8, particles=2)
    torch.testing.assert_close(whole.nll.replicates, parts.nll.replicates, rtol=1e-12, atol=0)
    assert whole.evaluations <= parts.evaluations <= 8 * 11 + 1 + 11 + 12  # all orders share the fully masked row


def fickle(tokens: torch.Tensor) -> torch.Tensor:
    """Two tokens; position 0 is surely a 1 while position 1 is masked, and fair afterwards."""
    found = torch.full((*tokens.shape, 2), 0.5).log()
    found[tokens[:, 1] == 2, 0] = torch.tensor([0.0, 1.0]).log()
    return found


@pytest.mark.parametrize("length", [3, 9], ids=["enumerated", "sampled"])
def test_orders_of_probability_zero(length):
    """Half of the orders are impossible: the mean is infinite, the mixture loses one bit."""
    predictor = from_function(fickle, vocab_size=2, mask_token=2)
    found = bounds(predictor, [0] * length, orders=8, particles=2)
    assert found.nll.impossible
    assert found.spread.value == math.inf
    assert (found.least_gap.value, found.most_gap.value) == (math.inf, math.inf)
    mixture = (length + 1) * math.log(2)
    if length == 3:
        assert found.mixture_nll.value == pytest.approx(mixture)
    else:
        assert found.importance_nll.impossible
        assert found.tangent_nll.value <= mixture + 4 * found.tangent_nll.standard_error
    assert not any(math.isnan(b.value) or math.isnan(b.standard_error) for b in found.quantities)


def test_one_impossible_order_makes_every_group_infinite():
    """A group may hold that order alone, so the expectation is infinite, whatever this group holds."""
    predictor = from_function(fickle, vocab_size=2, mask_token=2)
    found = [bounds(predictor, [0] * 9, orders=8, particles=4, seed=seed) for seed in range(4)]
    assert all(one.nll.replicates.isfinite().any() for one in found)
    assert all(one.importance_nll.replicates.isinf().all() for one in found)


def test_impossible_sequences():
    table = Table(torch.tensor([[0, 0, 0, 0, 0, 0, 0, 0], [1] * 8]), torch.tensor([0.5, 0.5]))
    found = bounds(table, [0, 1] * 4, orders=4, particles=2)
    assert all(b.value == math.inf for b in found.quantities if b.quantity != "tangent_nll")
    assert found.tangent_nll.value == 1.0  # -log p >= 1 - p: all that can be said without having seen a likelihood
    assert (found.least_gap.value, found.most_gap.value) == (0.0, math.inf)
    assert average([found])[0].total == math.inf


def test_far_apart_orders_overflow_nothing():
    costs = torch.tensor([5000.0, 5001.0, 10.0, 11.0], dtype=torch.float64)
    assert bool(tangent(costs).isfinite().all())
    assert importance(costs, 2).tolist() == pytest.approx([5000.379885, 10.379885])


def test_averages_add_up():
    found = bounds(NOISY, [X[0], X[1], X[0]], orders=8, particles=2)
    nll = average(found)[0]
    assert (nll.quantity, nll.rows, nll.tokens) == ("nll", 3, 36)
    assert nll.total == pytest.approx(sum(one.nll.value for one in found))
    twice, once = (found[n].nll.standard_error for n in (0, 1))
    assert nll.order_error == pytest.approx(math.hypot(2 * twice, once))  # equal rows share their orders
    assert average(found[:1])[0].row_error is None
    mixed = average(bounds(NOISY, [X[0][:3], X[1]], orders=8, particles=2))
    assert "mixture_nll" not in [one.quantity for one in mixed]


def test_bad_input_is_told():
    for plan, words in (
        ({"orders": 3, "particles": 1}, "at least 4 orders"),
        ({"orders": 8, "particles": 8}, "orders=16"),
        ({"orders": 9, "particles": 4}, "orders=12"),
        ({"particles": 0}, "at least one order"),
    ):
        with pytest.raises(InputError, match=words):
            bounds(NOISY, X[0], **plan)
    with pytest.raises(InputError, match="Sequence 1: Tokens must lie"):
        bounds(NOISY, [[0, 1], [0, 7]])
    with pytest.raises(InputError, match="batch_size"):
        bounds(NOISY, X[0], batch_size=0)


APP = typer.Typer()
APP.command()(command)


def test_command(tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text(
        '{"id": "a", "text": "the capital of france"}\n{"prompt": "one two ", "response": "three"}\n'
        '{"tokens": [1, 2, 3, 4, 5, 6, 7], "context": [0, 1]}\n'
    )
    out, plot = tmp_path / "out.jsonl", tmp_path / "audit.svg"
    line = [str(rows), "--orders", "4", "--particles", "2", "--pairs", "8", "--out", str(out), "--plot", str(plot)]
    done = CliRunner().invoke(APP, line)
    assert done.exit_code == 0, done.output
    for words in ("importance_nll", "lower bound", "upper bound", "Jensen gap", "distance 1"):
        assert words in done.output
    records = [json.loads(one) for one in out.read_text().splitlines()]
    assert [r["id"] for r in records] == ["a", 2, 3]
    assert [r["tokens"] for r in records] == [21, 5, 5]
    model = infodis.load("text8-tiny")
    alone = bounds(model, model.encode("the capital of france"), orders=4, particles=2)
    for bound in alone.quantities:
        assert records[0][bound.quantity]["value"] == pytest.approx(bound.value, rel=1e-4)
        assert records[0][bound.quantity]["evaluations"] == bound.evaluations
    assert records[0]["model"] == model.fingerprint
    assert "nats" in plot.read_text()


def test_command_tells_mistakes_before_work(tmp_path):
    rows = tmp_path / "rows.txt"
    rows.write_text("some text\n")
    for options, words in (
        (["--orders", "3"], "at least 4"),
        (["--plot", "audit.txt"], "ends in"),
        (["--out", str(tmp_path / "nowhere" / "x.jsonl")], "no directory"),
    ):
        done = CliRunner().invoke(APP, [str(rows), *options])
        assert isinstance(done.exception, InputError)
        assert words in str(done.exception)
    rows.write_text("\n")
    assert "no rows" in str(CliRunner().invoke(APP, [str(rows)]).exception)
    assert CliRunner().invoke(APP, ["--help"]).exit_code == 0
