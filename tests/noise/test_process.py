"""Noise processes against matrix exponentials and counts, and the score entropy against the losses that train."""

import math

import pytest
import torch

from infodis.errors import InputError
from infodis.noise.process import Absorbing, General, Uniform, mixture, score_entropy
from infodis.rng import stream, uniforms
from infodis.train.losses import score_entropy as trained_entropy


def random_rates(states, seed=0):
    """Not symmetric, and with no detailed balance."""
    rates = uniforms(states, states, generator=stream(seed, "rates"))
    rates.fill_diagonal_(0)
    return General(rates - rates.sum(1).diag())


PROCESSES = [Absorbing(3), Uniform(3), mixture({Absorbing(3): 0.7, Uniform(3): 0.4}), random_rates(3)]
names = pytest.mark.parametrize("process", PROCESSES, ids=["absorbing", "uniform", "mixture", "general"])


@names
@pytest.mark.parametrize("total", [0.0, 1e-6, 0.3, 2.0, 40.0])
def test_kernel_against_matrix_exponential(process, total):
    exact = torch.linalg.matrix_exp(total * process.rates)
    assert torch.allclose(process.kernel(total), exact, atol=1e-12)
    states = torch.arange(process.states).unsqueeze(0)
    noise = torch.tensor([total]).double()
    assert torch.allclose(process.likelihood(states, noise)[0], exact[: process.vocab_size].T, atol=1e-12)


@names
def test_rates_and_the_end_against_linear_algebra(process):
    states = torch.arange(process.states).unsqueeze(0)
    expected = (process.rates - process.rates.diagonal().diag()).T
    assert torch.allclose(process.rates_into(states)[0], expected, atol=1e-12)
    assert torch.allclose(process.stationary() @ process.rates, torch.zeros(process.states).double(), atol=1e-12)
    assert torch.allclose(process.kernel(200.0), process.stationary().expand(process.states, -1), atol=1e-9)


@names
def test_draws_and_paths_follow_the_kernel(process):
    """Counts of 20,000 tokens within 4.5 standard errors: a false alarm in 10,000 over all that is compared."""
    count, tokens = 20_000, torch.zeros(20_000, 1, dtype=torch.int64)
    drawn = process.noise(tokens, torch.full((count,), 0.7).double(), generator=stream(1))
    seen = process.path(tokens, torch.tensor([0.2, 0.7]).double(), generator=stream(2))
    assert seen.shape == (2, count, 1)
    for found, total in ((drawn, 0.7), (seen[0], 0.2), (seen[1], 0.7)):
        expected = process.kernel(total)[0]
        share = torch.bincount(found.flatten(), minlength=process.states) / count
        assert bool(((share - expected).abs() <= 4.5 * (expected * (1 - expected) / count).sqrt() + 1e-12).all())


@pytest.mark.parametrize(("process", "noise"), [(Absorbing(3), "absorbing"), (Uniform(3), "uniform")])
def test_score_entropy_against_the_loss_that_trains(process, noise):
    generator = stream(3)
    clean = torch.randint(3, (5, 4), generator=generator)
    total = 0.1 + uniforms(5, generator=generator)
    noised = process.noise(clean, total, generator=generator)
    log_scores = uniforms(5, 4, process.states, generator=generator)
    mine = score_entropy(process, log_scores, noised, clean, total)
    other = trained_entropy(log_scores, noised, clean, total, vocab_size=3, noise=noise)
    assert torch.allclose(mine, other, atol=1e-12)


def test_a_mixture_forgets_its_parts_gracefully():
    both = mixture({Absorbing(4): 1.0, Uniform(4): 0.0})
    assert torch.allclose(both.kernel(0.5), Absorbing(4).kernel(0.5), atol=1e-12)
    assert both.vocab_size == 4
    assert both.states == 5


def test_bad_input():
    with pytest.raises(InputError, match="at least one token"):
        Uniform(0)
    with pytest.raises(InputError, match="sum to zero"):
        General(torch.ones(2, 2))
    with pytest.raises(InputError, match="square matrix"):
        General(torch.full((2, 2), math.nan))
    with pytest.raises(InputError, match="more than one distribution"):
        General(torch.zeros(2, 2)).stationary()
    with pytest.raises(InputError, match="same tokens"):
        mixture({Uniform(2): 1.0, Uniform(3): 1.0})
    with pytest.raises(InputError, match="grow"):
        Uniform(2).path(torch.zeros(1, 1).long(), torch.tensor([0.2, 0.1]).double(), generator=stream(0))
