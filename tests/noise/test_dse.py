"""Likelihood from scores: the paper's identities with exact scores, and Monte Carlo against them."""

import itertools
import math

import pytest
import torch
from test_process import random_rates

from infodis import dse_nll, nll
from infodis.design import Enumerate
from infodis.errors import InputError, PredictorError
from infodis.noise.dse import NoisyOracle, from_denoiser, from_network, from_predictor, mdce, mdse
from infodis.noise.process import Absorbing, Hybrid, Uniform, mixture
from infodis.noise.schedule import LogLinear, half_line
from infodis.oracle import HiddenMarkov, Independent, MarkovChain, Table
from infodis.rng import stream, uniforms
from infodis.train.losses import scores_from_predictor

LENGTH, VOCAB = 3, 3
CHAIN = MarkovChain.random(order=1, vocab_size=VOCAB, temperature=0.2, seed=3)
HIDDEN = HiddenMarkov.random(states=2, vocab_size=VOCAB, temperature=0.2)
TABLE = Table(
    torch.tensor(list(itertools.product(range(VOCAB), repeat=LENGTH))),
    torch.softmax(3 * uniforms(VOCAB**LENGTH, generator=stream(5)), dim=0),
)
PROCESSES = {
    "absorbing": Absorbing(VOCAB),
    "uniform": Uniform(VOCAB),
    "mixture": mixture({Absorbing(VOCAB): 0.7, Uniform(VOCAB): 0.4}),
    "hybrid": Hybrid(VOCAB, share=0.3),
    "general": random_rates(VOCAB),
}
processes = pytest.mark.parametrize("process", PROCESSES.values(), ids=PROCESSES.keys())
oracles = pytest.mark.parametrize("oracle", [TABLE, CHAIN, HIDDEN], ids=["table", "chain", "hidden"])
TOKENS = [2, 0, 1]
MANY = 10**6
"""Evaluations that pay for all noised sequences."""


def kl(oracle, process, total, tokens=TOKENS):
    """KL(p_t(. | x_0) || p_t) by summing over all states, from the joint density alone."""
    every = torch.tensor(list(itertools.product(range(process.states), repeat=len(tokens))))
    clean = torch.tensor(list(itertools.product(range(oracle.vocab_size), repeat=len(tokens))))
    kernel = process.kernel(total)
    prior = torch.tensor([math.exp(oracle.log_prob(x)) for x in clean.tolist()], dtype=torch.float64)
    given = kernel[clean.unsqueeze(1), every].prod(-1)  # clean x noised
    marginal = prior @ given
    mine = kernel[torch.tensor(tokens), every].prod(-1)
    return float(torch.where(mine > 0, mine * (mine / marginal).log(), 0.0).sum())


@processes
@oracles
def test_density_and_denoiser_of_noised_oracles_against_enumeration(oracle, process):
    noisy, total = NoisyOracle(oracle, process), torch.full((process.states**LENGTH,), 0.4).double()
    every = torch.tensor(list(itertools.product(range(process.states), repeat=LENGTH)))
    clean = torch.tensor(list(itertools.product(range(VOCAB), repeat=LENGTH)))
    prior = torch.tensor([math.exp(oracle.log_prob(x)) for x in clean.tolist()], dtype=torch.float64)
    joint = prior.unsqueeze(1) * process.kernel(0.4)[clean.unsqueeze(1), every].prod(-1)
    where = torch.ones(LENGTH, dtype=torch.bool)
    assert torch.allclose(noisy.log_prob(every, total, where), joint.sum(0).log(), atol=1e-10)
    found = noisy.log_denoised(every, total, where).exp()
    for position in range(LENGTH):
        for token in range(VOCAB):
            exact = joint[clean[:, position] == token].sum(0) / joint.sum(0)
            assert torch.allclose(found[:, position, token], exact, atol=1e-10)


@processes
@oracles
def test_slope_of_divergence_is_minus_mdse(oracle, process):
    noisy, step = NoisyOracle(oracle, process), 1e-5
    for total in (0.05, 0.5, 2.0):
        slope = (kl(oracle, process, total + step) - kl(oracle, process, total - step)) / (2 * step)
        found = mdse(noisy, TOKENS, total, process=process, evaluations=MANY)
        assert found.stopped == "exact"
        assert found.value == pytest.approx(-slope, abs=1e-6)


@oracles
def test_slope_of_divergence_by_level_is_minus_mdce_over_level(oracle):
    process, step = PROCESSES["absorbing"], 1e-5

    def at(level):
        return kl(oracle, process, -math.log1p(-level))

    for level in (0.1, 0.5, 0.9):
        slope = (at(level + step) - at(level - step)) / (2 * step)
        assert mdce(oracle, TOKENS, level, evaluations=MANY).value / level == pytest.approx(-slope, abs=1e-6)


@oracles
def test_score_entropy_is_cross_entropy_pointwise(oracle):
    for level in (0.2, 0.7):
        process, total = PROCESSES["absorbing"], -math.log1p(-level)
        entropy = mdse(from_predictor(oracle), TOKENS, total, process=process, evaluations=MANY)
        assert entropy.value == pytest.approx((1 - level) / level * mdce(oracle, TOKENS, level, evaluations=MANY).value)


@processes
@oracles
def test_decomposition_against_exact_for_infinite_and_finite_noise(oracle, process):
    noisy, exact = NoisyOracle(oracle, process), -oracle.log_prob(TOKENS)
    for until in (math.inf, 0.8, 3.0):
        found = dse_nll(noisy, TOKENS, process=process, until=until, evaluations=MANY)
        assert found.value == pytest.approx(exact, abs=1e-7)
        assert found.standard_error == 0
        assert float(found.per_token.sum()) == pytest.approx(found.value)


@processes
@oracles
def test_conditional_decomposition_against_exact(oracle, process):
    noisy = NoisyOracle(oracle, process)
    for until in (math.inf, 0.8):
        found = dse_nll(noisy, TOKENS, process=process, context=[1], until=until, evaluations=MANY)
        assert found.value == pytest.approx(-oracle.log_prob(TOKENS, context=[1]), abs=1e-7)


def test_masking_leaves_positions_out_as_nll_does():
    process = PROCESSES["absorbing"]
    found = dse_nll(NoisyOracle(CHAIN, process), TOKENS, process=process, target=[0], context=[2], evaluations=MANY)
    assert found.value == pytest.approx(-CHAIN.log_prob(TOKENS, target=[0], context=[2]), abs=1e-6)


def test_a_masked_predictor_gives_its_nll():
    """Equal for any conditionals, not only consistent ones: these are an oracle's, tempered."""
    from infodis.predictor import Tempered

    tempered = Tempered(TABLE, temperature=0.5)
    exact = nll(tempered, TOKENS, design=Enumerate()).value
    process = PROCESSES["absorbing"]
    for score in (from_predictor(tempered), from_network(_padded(scores_from_predictor(tempered)))):
        found = dse_nll(score, TOKENS, process=process, evaluations=MANY)
        assert found.value == pytest.approx(exact, abs=1e-4)


def _padded(scores):
    """Score networks have a column for the mask."""

    def padded(tokens, sigma):
        found = scores(tokens, sigma.double())
        return torch.cat([found, torch.zeros(*tokens.shape, 1)], dim=-1)

    return padded


class PublicLayout(torch.nn.Module):
    """Exact scores of masking, computed as SEDD's network does: exp(sigma) - 1 in float32, which overflows at 89.

    Beyond what it was trained with it answers nonsense.
    """

    def __init__(self, oracle, largest):
        super().__init__()
        self.oracle, self.largest = oracle, largest

    def forward(self, tokens, sigma):
        size = torch.where(sigma < 0.5, torch.expm1(sigma), sigma.exp() - 1).log()
        log_conditionals = self.oracle.log_conditionals(tokens).float()
        log_conditionals = torch.where(
            (sigma > self.largest)[:, None, None], -3.0 * sigma[:, None, None], log_conditionals
        )
        found = torch.cat([log_conditionals, torch.zeros(*tokens.shape, 1)], dim=-1) - size[:, None, None]
        return found.scatter(-1, tokens.unsqueeze(-1), 0.0)


@pytest.mark.parametrize("oracle", [TABLE, CHAIN], ids=["table", "chain"])
def test_a_score_network_of_masking_to_the_end_of_its_schedule_against_exact(oracle):
    process, exact = PROCESSES["absorbing"], -oracle.log_prob(TOKENS)
    until = float(LogLinear().total(torch.tensor(1.0)))
    ended = dse_nll(
        from_network(PublicLayout(oracle, until + 1e-3)), TOKENS, process=process, until=until, evaluations=MANY
    )
    assert ended.value == pytest.approx(exact, abs=1e-5)
    endless = dse_nll(from_network(PublicLayout(oracle, math.inf)), TOKENS, process=process, evaluations=MANY)
    assert endless.value == pytest.approx(exact, abs=1e-5)
    beyond = dse_nll(from_network(PublicLayout(oracle, until + 1e-3)), TOKENS, process=process, evaluations=MANY)
    assert beyond.value > exact + 0.01, "negative control: what it answers beyond its schedule is nonsense"


@pytest.mark.parametrize("name", ["absorbing", "uniform", "general"])
@pytest.mark.parametrize("until", [math.inf, 1.5])
def test_monte_carlo_against_exact(name, until):
    """20 sequences, 15 degrees of freedom: |z| beyond 4.5 among them once in a hundred sets; seeds are fixed."""
    chain = MarkovChain.random(order=2, vocab_size=4, temperature=0.3)
    process = {"absorbing": Absorbing(4), "uniform": Uniform(4), "general": random_rates(4)}[name]
    scores = NoisyOracle(chain, process)
    z = []
    for number, row in enumerate(chain.sample(20, length=10, generator=stream(7))):
        found = dse_nll(scores, row, process=process, until=until, evaluations=512, seed=number)
        z.append((found.value + chain.log_prob(row)) / found.standard_error)
    assert max(map(abs, z)) < 4.5
    assert abs(sum(z)) / math.sqrt(len(z)) < 3.5


def test_monte_carlo_on_a_table_under_uniform_noise():
    table, process = Table.dna(0), Uniform(4)
    scores = NoisyOracle(table, process)
    z = []
    for number, row in enumerate(table.sequences[:12]):
        found = dse_nll(scores, row, process=process, evaluations=512, seed=number)
        z.append((found.value + table.log_prob(row)) / found.standard_error)
    assert max(map(abs, z)) < 4.5


@pytest.mark.parametrize("wrong", ["rates the other way", "no terminal term", "score of the token itself"])
def test_known_wrong_forms_are_caught(wrong):
    """Negative controls, on a process that is not symmetric."""
    process = PROCESSES["general"]
    noisy, exact = NoisyOracle(TABLE, process), -TABLE.log_prob(TOKENS)
    if wrong == "rates the other way":
        other = random_rates(VOCAB)
        object.__setattr__(other, "rates_into", lambda x, total: (other.rates - other.rates.diagonal().diag())[x])
        value = dse_nll(noisy, TOKENS, process=other, evaluations=MANY).value
    elif wrong == "no terminal term":
        points, weights = half_line(32, until=0.8)
        parts = [mdse(noisy, TOKENS, float(point), process=process, evaluations=MANY).value for point in points]
        value = float((weights * torch.tensor(parts).double()).sum())
    else:
        flat = from_denoiser(lambda x, total, where: noisy.log_denoised(x, 0.9 * total, where), process)
        value = dse_nll(flat, TOKENS, process=process, evaluations=MANY).value
    assert abs(value - exact) > 1e-3


def test_the_end_taken_for_stationary_is_an_upper_bound():
    process = PROCESSES["uniform"]
    blind = from_denoiser(NoisyOracle(TABLE, process).log_denoised, process)
    exact = -TABLE.log_prob(TOKENS)
    near, far = (dse_nll(blind, TOKENS, process=process, until=t, evaluations=MANY).value for t in (1.0, 6.0))
    surplus = [
        dse_nll(blind, x, process=process, until=1.0, evaluations=MANY).value + TABLE.log_prob(x)
        for x in TABLE.sequences
    ]
    assert float((TABLE.probabilities * torch.tensor(surplus)).sum()) > 1e-3
    assert abs(far - exact) < 1e-4 < abs(near - exact)


def test_schedules_change_nothing():
    from infodis.noise.schedule import Cosine

    process, schedule = PROCESSES["uniform"], Cosine()
    until = float(schedule.total(torch.tensor(0.7).double()))
    found = dse_nll(NoisyOracle(TABLE, process), TOKENS, process=process, until=until, evaluations=MANY)
    assert found.value == pytest.approx(-TABLE.log_prob(TOKENS), abs=1e-6)


def test_independent_tokens_cost_what_they_cost():
    coin, process = Independent(torch.tensor([0.25, 0.75])), Uniform(2)
    found = dse_nll(NoisyOracle(coin, process), [0, 1], process=process, evaluations=MANY)
    assert found.per_token.tolist() == pytest.approx([math.log(4), math.log(4 / 3)], abs=1e-6)


def test_same_seed_same_numbers_whatever_the_batch():
    process = Uniform(VOCAB)
    noisy, row = NoisyOracle(CHAIN, process), CHAIN.sample(1, length=9, generator=stream(1))[0]
    one = dse_nll(noisy, row, process=process, seed=4, batch_size=7)
    two = dse_nll(noisy, row, process=process, seed=4)
    assert torch.allclose(one.replicates, two.replicates)
    other = dse_nll(noisy, row, process=process, seed=5)
    assert not torch.allclose(one.replicates, other.replicates)
    assert one.merge(other).replicates.numel() == 16


def test_bad_input():
    process = Uniform(VOCAB)
    noisy = NoisyOracle(CHAIN, process)
    with pytest.raises(InputError, match="target or context"):
        dse_nll(noisy, TOKENS, process=process, target=[0])
    with pytest.raises(InputError, match=r"0\.\.2"):
        dse_nll(noisy, [0, 5], process=process)
    with pytest.raises(InputError, match="evaluations=6"):
        dse_nll(noisy, [0, 1, 2, 0, 1, 2], process=process, evaluations=5)
    with pytest.raises(InputError, match="must agree"):
        NoisyOracle(CHAIN, Uniform(4))
    hybrid = Hybrid(VOCAB)
    with pytest.raises(InputError, match=r"until=math\.inf"):
        dse_nll(from_denoiser(NoisyOracle(CHAIN, hybrid).log_denoised, hybrid), TOKENS, process=hybrid, until=2.0)
    with pytest.raises(InputError, match="positive and finite"):
        mdse(noisy, TOKENS, 0.0, process=process)
    with pytest.raises(InputError, match="between 0 and 1"):
        mdce(CHAIN, TOKENS, 0.0)
    with pytest.raises(PredictorError, match="rows x length x states"):
        dse_nll(lambda x, total, where: torch.zeros(1), TOKENS, process=process)
    with pytest.raises(PredictorError, match="NaN"):
        dse_nll(lambda x, t, w: torch.full((*x.shape, VOCAB), math.nan), TOKENS, process=process)
