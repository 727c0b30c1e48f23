"""Noise processes against matrix exponentials and counts, and the score entropy against the losses that train."""

import math

import pytest
import torch

from infodis.errors import InputError
from infodis.noise.process import Absorbing, General, Hybrid, Process, Uniform, mixture
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
    assert torch.allclose(process.rates_into(states, torch.ones(1).double())[0], expected, atol=1e-12)
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
    mine = process.score_entropy(log_scores, noised, clean, total)
    other = trained_entropy(log_scores, noised, clean, total, vocab_size=3, noise=noise)
    assert torch.allclose(mine, other, atol=1e-12)


INTERPOLATING = [Absorbing(3), Uniform(3), Hybrid(3, share=0.3), Hybrid(3, share=0.02)]
interpolating = pytest.mark.parametrize("process", INTERPOLATING, ids=["absorbing", "uniform", "hybrid", "little"])


@interpolating
def test_score_entropy_in_two_sums_against_the_sum_over_states(process):
    generator = stream(5)
    clean = torch.randint(3, (200, 4), generator=generator)
    total = 4 * uniforms(200, generator=generator) ** 3 + 1e-6
    noised = process.noise(clean, total, generator=generator)
    log_scores = 3 * uniforms(200, 4, process.states, generator=generator) - 2
    mine = process.score_entropy(log_scores, noised, clean, total)
    other = Process.score_entropy(process, log_scores, noised, clean, total)
    assert torch.allclose(mine, other, rtol=1e-9, atol=1e-12)
    coarse = process.score_entropy(log_scores.float(), noised, clean, total)
    assert torch.allclose(mine, coarse, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("share", [0.3, 0.02])
@pytest.mark.parametrize("total", [1e-3, 0.2, 1.5, 6.0])
def test_rates_of_hybrid_noise_against_the_slope_of_its_kernel(share, total):
    process, step = Hybrid(4, share=share), 1e-5 * total
    states, noise = torch.arange(5).unsqueeze(0), torch.tensor([total]).double()
    rates = process.rates_into(states, noise)[0].T
    rates = rates - rates.sum(1).diag()
    slope = (process.kernel(total + step) - process.kernel(total - step)) / (2 * step)
    assert torch.allclose(process.kernel(total) @ rates, slope, atol=1e-5)
    assert torch.allclose(process.kernel(total).sum(1), torch.ones(5).double())


def test_hybrid_noise_is_that_of_gidd_at_a_time():
    """Survival (1 - t) / C, mask t / C, uniform c / C, with c = 2 share / (1 - share) sqrt(t (1 - t)), C = 1 + c."""
    process, t = Hybrid(4, share=0.2), torch.tensor([0.01, 0.3, 0.5, 0.97]).double()
    c = 0.5 * (t * (1 - t)).sqrt()
    total = -((1 - t) / (1 + c)).log()
    assert torch.allclose(process.time(total), t, atol=1e-12)
    kernel = process.transition(torch.zeros(4, 1, dtype=torch.int64), total)[:, 0]
    assert torch.allclose(kernel[:, 4], t / (1 + c))
    assert torch.allclose(kernel[:, 1], c / (1 + c) / 4)
    assert torch.allclose(kernel[:, 0], (1 - t + c / 4) / (1 + c))


@interpolating
def test_hits_and_what_they_turn_into_follow_the_kernel(process):
    """Counts of 20,000 tokens within 4.5 standard errors, as above."""
    count, total = 20_000, torch.full((20_000,), 0.8).double()
    hit = uniforms(count, 1, generator=stream(8)) < -math.expm1(-0.8)
    replaced = process.replace(total, numbers=uniforms(count, 1, generator=stream(9)))
    share = torch.bincount(torch.where(hit, replaced, 0).flatten(), minlength=process.states) / count
    expected = process.kernel(0.8)[0]
    assert bool(((share - expected).abs() <= 4.5 * (expected * (1 - expected) / count).sqrt() + 1e-12).all())


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
    with pytest.raises(InputError, match="between 0 and 1"):
        Hybrid(3, share=0.0)
    with pytest.raises(InputError, match="change with the noise"):
        Hybrid(3).rates  # noqa: B018
    with pytest.raises(InputError, match="do not change"):
        Hybrid(3).path(torch.zeros(1, 1).long(), torch.tensor([0.1]).double(), generator=stream(0))
    with pytest.raises(InputError, match="grow"):
        Uniform(2).path(torch.zeros(1, 1).long(), torch.tensor([0.2, 0.1]).double(), generator=stream(0))
