"""Noise designs: unbiased, with intervals that hold what they promise, on exact oracles and on wrong scores."""

import math

import pytest
import torch
from test_process import random_rates

import infodis
from infodis.errors import InputError
from infodis.estimate import Request, estimate_items
from infodis.item import Item
from infodis.noise import design as noise_design
from infodis.noise.design import Noise, NoiseDesign
from infodis.noise.dse import dse_nll
from infodis.noise.process import Absorbing, General, Hybrid, Uniform, mixture
from infodis.noise.scores import NoisyOracle, ScorePredictor, from_denoiser
from infodis.oracle import MarkovChain
from infodis.rng import key, stream

VOCAB = 4
CHAIN = MarkovChain.random(order=1, vocab_size=VOCAB, temperature=0.3, seed=2)
PROCESSES = {
    "absorbing": Absorbing(VOCAB),
    "uniform": Uniform(VOCAB),
    "hybrid": Hybrid(VOCAB, share=0.2),
    "mixture": mixture({Absorbing(VOCAB): 0.7, Uniform(VOCAB): 0.4}),
    "general": random_rates(VOCAB),
}
processes = pytest.mark.parametrize("process", PROCESSES.values(), ids=PROCESSES.keys())
RUNS = 400


def items_of(count, length, seed=0):
    return [Item.read(row) for row in CHAIN.sample(count, length=length, generator=stream(seed, "items"))]


def errors_of(process, request, *, length=10, count=RUNS, until=math.inf):
    """Estimates of many sequences, and by how much each is off."""
    items = items_of(count, length)
    names = [key("run", number) for number in range(count)]
    model = ScorePredictor(NoisyOracle(CHAIN, process), Noise(process, until))
    found = estimate_items(model, items, request, seed=3, names=names)
    exact = torch.tensor([-CHAIN.log_prob(item.tokens) for item in items], dtype=torch.float64)
    return found, torch.tensor([one.value for one in found]).double() - exact


def bias_z(found, errors):
    return float(errors.sum()) / math.sqrt(sum(one.standard_error**2 for one in found))


def coverage(found, errors, level=0.95):
    inside = [low <= one.value - error <= high for one, error in zip(found, errors.tolist(), strict=True)
              for low, high in [one.interval(level)]]  # fmt: skip
    return sum(inside) / len(inside)


@processes
@pytest.mark.parametrize("evaluations", [32, pytest.param(96, marks=pytest.mark.slow)])
def test_bias_and_coverage_against_exact(process, evaluations):
    """400 intervals of 95 %: shares outside 93 to 97 % come once in 15 times if all is right; seeds are fixed.

    Rows that are drawn by time alone have longer tails: 90 % of their intervals at least.
    """
    found, errors = errors_of(process, Request(evaluations=evaluations))
    assert abs(bias_z(found, errors)) < 3.5
    assert (0.90 if isinstance(process, General) else 0.93) <= coverage(found, errors) <= 0.975
    squares = float(errors.square().sum()) / sum(one.standard_error**2 for one in found)
    assert 0.75 < squares < 1.3, "standard errors are as large as the errors are, in the mean square"
    assert all(one.quantity == "dse_nll" for one in found)


def test_a_wrong_weight_is_noticed(monkeypatch):
    """Negative controls: without the clean rows, or with a factor e^-s of the density forgotten."""
    weights = noise_design._Shape.weights

    def no_clean_rows(self, totals, count, table):
        return torch.where(count > 0, weights(self, totals, count, table), 0.0)

    def no_survival(self, totals, count, table):
        return torch.where(count > 0, torch.exp(-totals), 1.0) * weights(self, totals, count, table)

    for wrong in (no_clean_rows, no_survival):
        monkeypatch.setattr(noise_design._Shape, "weights", wrong)
        assert abs(bias_z(*errors_of(PROCESSES["uniform"], Request(evaluations=32), count=150))) > 5


@pytest.mark.parametrize("name", ["uniform", "hybrid"])
def test_wrong_scores_against_enumeration(name):
    """A denoiser that is told less noise than there is: what it is worth does not depend on how noise is drawn."""
    process, tokens = PROCESSES[name], CHAIN.sample(1, length=4, generator=stream(4))[0]
    exact = NoisyOracle(CHAIN, process)
    score = from_denoiser(lambda x, total, where: exact.log_denoised(x, 0.7 * total, where), process)
    enumerated = dse_nll(score, tokens, process=process, evaluations=10**6)
    found = dse_nll(score, tokens, process=process, evaluations=4000, seed=5)
    assert abs(enumerated.value + CHAIN.log_prob(tokens)) > 1e-3
    assert enumerated.stopped == "exact"
    assert abs(found.value - enumerated.value) < 4 * found.standard_error
    per_token = (found.per_token - enumerated.per_token) / found.per_token_error
    assert float(per_token.abs().max()) < 5


def test_an_end_that_is_not_quite_stationary_against_enumeration():
    process, until, tokens = PROCESSES["uniform"], 2.0, CHAIN.sample(1, length=4, generator=stream(4))[0]
    score = from_denoiser(NoisyOracle(CHAIN, process).log_denoised, process)
    enumerated = dse_nll(score, tokens, process=process, until=until, evaluations=10**6)
    found = dse_nll(score, tokens, process=process, until=until, evaluations=4096)
    assert abs(found.value - enumerated.value) < 4 * found.standard_error
    assert float(Noise(process, until).end_terms(tokens[None]).sum()) > 0.1


@pytest.mark.parametrize("name", ["uniform", "hybrid"])
def test_a_requested_standard_error_is_reached_and_true(name):
    found, errors = errors_of(PROCESSES[name], Request(standard_error=0.6), count=100)
    assert {one.stopped for one in found} == {"standard error reached"}
    assert all(one.standard_error <= 0.6 for one in found)
    assert coverage(found, errors) >= 0.88
    assert abs(bias_z(found, errors)) < 3.5


@pytest.mark.parametrize("name", ["uniform", "hybrid"])
def test_ratios_with_shared_noise_against_exact(name):
    """Unbiased, covered, and less uncertain than with noise of its own on either side."""
    process = PROCESSES[name]
    model = ScorePredictor(NoisyOracle(CHAIN, process), Noise(process))
    z, inside, shared, apart = [], 0, 0.0, 0.0
    rows = CHAIN.sample(30, length=9, generator=stream(9))
    for number, row in enumerate(rows):
        other = row.clone()
        other[5] = (other[5] + 1) % VOCAB
        exact = CHAIN.log_prob(other) - CHAIN.log_prob(row)
        ratio = infodis.log_ratio(model, other, row, evaluations=32, seed=number)
        low, high = ratio.interval()
        inside += low <= exact <= high
        z.append((ratio.value - exact) / ratio.standard_error)
        shared += ratio.standard_error**2
        apart += infodis.log_ratio(model, other, row, evaluations=32, seed=number, coupled=False).standard_error ** 2
    assert inside >= 24, "30 intervals of 95 %: fewer than 25 hold once in three hundred times"
    assert abs(sum(z)) / math.sqrt(len(z)) < 5  # Student's t with three degrees of freedom
    assert shared < 0.6 * apart


def test_ratios_of_unequal_lengths_against_exact():
    process = PROCESSES["uniform"]
    model = ScorePredictor(NoisyOracle(CHAIN, process), Noise(process))
    row = CHAIN.sample(1, length=12, generator=stream(3))[0]
    ratio = infodis.log_ratio(model, row[:10], row, evaluations=2048)
    assert abs(ratio.value - (CHAIN.log_prob(row[:10]) - CHAIN.log_prob(row))) < 4 * ratio.standard_error


def test_the_same_noise_whatever_else_is_scored():
    process = PROCESSES["hybrid"]
    model = ScorePredictor(NoisyOracle(CHAIN, process), Noise(process))
    items = items_of(2, 5) + items_of(2, 7, seed=1)
    together = estimate_items(model, items, Request(evaluations=24), seed=1)
    for item, one in zip(items, together, strict=True):
        alone = estimate_items(model, [item], Request(evaluations=24, batch_size=7), seed=1)[0]
        assert torch.allclose(alone.replicates, one.replicates)
        assert float(one.per_token.sum()) == pytest.approx(one.value)


def test_given_a_context_against_exact():
    process = PROCESSES["uniform"]
    model = ScorePredictor(NoisyOracle(CHAIN, process), Noise(process))
    rows, z = CHAIN.sample(40, length=9, generator=stream(6)), []
    found = infodis.score(model, [Item.read(row, context=range(4)) for row in rows], evaluations=64)
    for row, one in zip(rows, found, strict=True):
        z.append((one.value + CHAIN.log_prob(row, context=range(4))) / one.standard_error)
    assert found[0].quantity == "dse_nll"
    assert abs(sum(z)) / math.sqrt(len(z)) < 4


def test_impossible_texts_are_infinite():
    table = infodis.oracle.Table(torch.tensor([[0, 0, 0, 0], [1, 1, 1, 1]]), torch.tensor([0.5, 0.5]))
    process = Absorbing(2)
    model = ScorePredictor(NoisyOracle(table, process), Noise(process))
    assert infodis.score(model, [[0, 1, 0, 1]])[0].estimate.impossible


@processes
def test_weights_integrate_what_depends_on_noise_alone(process):
    """The mean weight of rows below a total noise is that noise: within 4.5 standard errors of 400 replicates."""
    design = NoiseDesign(Noise(process))
    numbers = design.numbers(6, 24, seed=0, paths=[(number,) for number in range(400)])
    plan = design.draw(numbers, torch.zeros(400, 6, dtype=torch.int64))
    for bound in (0.05, 0.5, 2.0, 8.0):
        mean = (plan.weight * (plan.totals < bound)).sum(1)
        assert abs(float(mean.mean()) - bound) < 4.5 * float(mean.std()) / 20


def test_bad_input():
    process = Uniform(VOCAB)
    model = ScorePredictor(NoisyOracle(CHAIN, process), Noise(process))
    with pytest.raises(InputError, match="evaluations=6"):
        infodis.score(model, [[0, 1, 2, 3]], evaluations=5)
    with pytest.raises(InputError, match="knows noise, not masks"):
        infodis.score(model, [[0, 1, 2, 3]], design=infodis.Tiled())
    with pytest.raises(InputError, match="of one kind"):
        infodis.log_ratio(model, [0, 1, 2], reference=CHAIN)
    with pytest.raises(InputError, match="of one kind"):
        infodis.log_ratio(CHAIN, [0, 1, 2], reference=model)
    with pytest.raises(InputError, match="dse_nll"):
        infodis.nll(model, [0, 1, 2])
    with pytest.raises(InputError, match="target or context"):
        infodis.score(model, [Item.read([0, 1, 2], target=[0])])
    with pytest.raises(InputError, match="positive"):
        Noise(process, 0.0)
