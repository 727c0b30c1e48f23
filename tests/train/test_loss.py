"""Losses and schedules against closed forms and enumeration: the paper's lemma, theorem and optimum."""

import itertools
import math

import numpy as np
import pytest
import torch

import infodis
from infodis.design import Enumerate
from infodis.errors import InputError
from infodis.noise.schedule import SCHEDULES, Cosine, Geometric, LogLinear
from infodis.oracle import MarkovChain
from infodis.predictor import from_function
from infodis.rng import stream
from infodis.train.losses import (
    K_DCE,
    LAMBDA_DCE,
    FlatDCE,
    ScoreEntropy,
    TimeDCE,
    add_noise,
    loss_named,
    score_entropy,
    scores_from_predictor,
    strata,
)

CHAIN = MarkovChain.random(order=1, vocab_size=3, temperature=0.3)
X = CHAIN.sample(1, length=4, generator=stream(0, "x"))
MASKS = torch.tensor(list(itertools.product([False, True], repeat=4)))
NODES, WEIGHTS = (torch.from_numpy(a) for a in np.polynomial.legendre.leggauss(40))


def crooked(tokens):
    """Normalised conditionals that belong to no distribution."""
    base = torch.arange(3.0, dtype=torch.float64) * 0.7
    seen = ((tokens + 1) * torch.arange(1, tokens.shape[1] + 1)).sum(-1, keepdim=True).unsqueeze(-1)
    return torch.log_softmax(torch.sin(base + seen.double() + torch.arange(tokens.shape[1]).view(1, -1, 1)), dim=-1)


CROOKED = from_function(crooked, vocab_size=3, mask_token=3)


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
def test_schedules_invert_and_have_their_rate(schedule):
    t = torch.linspace(0.01, 0.99, 50, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(schedule.total(t).sum(), t)
    torch.testing.assert_close(schedule.rate(t), slope)
    if not isinstance(schedule, Geometric):  # whose last levels round to 1
        torch.testing.assert_close(schedule.time(schedule.level(t)), t)
    torch.testing.assert_close(schedule.time_of_total(schedule.total(t)), t)
    level = schedule.level(t)
    assert bool((level.diff() > 0).all())
    assert bool(((level > 0) & (level <= 1)).all())


def test_small_times_keep_their_digits():
    """Levels of a cosine schedule grow like t squared; as a difference from 1 they would vanish below t = 1e-8."""
    t = torch.tensor([1e-12, 1e-8, 1e-4], dtype=torch.float64)
    cosine = Cosine()
    torch.testing.assert_close(cosine.level(t), (1 - 1e-3) * (math.pi * t / 2) ** 2 / 2, rtol=1e-6, atol=0)
    torch.testing.assert_close(cosine.time(cosine.level(t)), t, rtol=1e-10, atol=0)
    for schedule in SCHEDULES.values():
        assert (schedule.rate(t) * (1 - schedule.level(t)) / schedule.level(t)).isfinite().all()


def test_bad_schedules_are_told():
    for make in (lambda: LogLinear(0.0), lambda: Cosine(1.0), lambda: Geometric(2.0, 1.0)):
        with pytest.raises(InputError):
            make()


@pytest.mark.parametrize("predictor", [CHAIN, CROOKED], ids=["chain", "crooked"])
@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
def test_lemma_pointwise_score_entropy_is_weighted_cross_entropy(predictor, schedule):
    """DSE = sigma(t) (1 - lambda) / lambda DCE, for any normalised conditionals; with sigma's integral it fails."""
    t = torch.tensor(0.37, dtype=torch.float64)
    total, rate, level = schedule.total(t), schedule.rate(t), schedule.level(t)
    tokens = X.expand(16, -1)
    noised = torch.where(MASKS, 3, tokens)
    scores = scores_from_predictor(predictor)(noised, total.expand(16))
    entropy = score_entropy(scores, noised, tokens, total.expand(16), vocab_size=3, noise="absorbing")
    surprisal = predictor.surprisal(tokens, MASKS)
    torch.testing.assert_close(rate * entropy, rate * (1 - level) / level * surprisal, atol=1e-9, rtol=1e-9)
    assert not torch.allclose(rate * entropy, total * (1 - level) / level * surprisal, rtol=1e-3)


def expected(values, level):
    """The mean over masks when each token is masked with probability `level`."""
    size = MASKS.sum(-1).double()
    return (level**size * (1 - level) ** (4 - size) * values).sum()


@pytest.mark.parametrize("end", [0.2, 0.9])
@pytest.mark.parametrize("schedule", [LogLinear(), Cosine()], ids=["log-linear", "cosine"])
def test_theorem_time_integrals_are_equal_up_to_any_time(schedule, end):
    """The integral of DSE up to T is that of DCE / lambda up to lambda(T); both by quadrature over all masks."""
    tokens = X.expand(16, -1)
    noised = torch.where(MASKS, 3, tokens)
    dse = 0.0
    for node, weight in zip((NODES + 1) / 2 * end, WEIGHTS / 2 * end, strict=True):
        total = schedule.total(node)
        scores = scores_from_predictor(CROOKED)(noised, total.expand(16))
        entropy = score_entropy(scores, noised, tokens, total.expand(16), vocab_size=3, noise="absorbing")
        dse += weight * schedule.rate(node) * expected(entropy.sum(-1), schedule.level(node))
    top = schedule.level(torch.tensor(end, dtype=torch.float64))
    surprisal = CROOKED.surprisal(tokens, MASKS).sum(-1)
    dce = sum(
        weight / node * expected(surprisal, node)
        for node, weight in zip((NODES + 1) / 2 * top, WEIGHTS / 2 * top, strict=True)
    )
    assert float(dse) == pytest.approx(float(dce), rel=1e-9)
    whole = sum(
        weight / node * expected(surprisal, node) for node, weight in zip((NODES + 1) / 2, WEIGHTS / 2, strict=True)
    )
    exact = infodis.nll(CROOKED, X[0], design=Enumerate(), evaluations=15).value
    assert float(whole) == pytest.approx(exact, rel=1e-9)
    assert float(dse) < exact


def test_gradient_is_zero_at_the_data_conditionals():
    """Logits of every masked state as free parameters: the expected loss is stationary at the oracle."""
    everything = torch.tensor(list(itertools.product(range(3), repeat=3)))
    masks = torch.tensor(list(itertools.product([False, True], repeat=3)))[1:]
    probability = torch.tensor([math.exp(float(CHAIN.log_prob(row))) for row in everything], dtype=torch.float64)
    tokens = everything.repeat_interleave(len(masks), 0)
    masked = masks.repeat(len(everything), 1)
    rows, which = torch.where(masked, 3, tokens).unique(dim=0, return_inverse=True)
    oracle = CHAIN.log_conditionals(rows)
    weight = probability.repeat_interleave(len(masks))

    def gradient(logits, noise):
        logits = logits.clone().requires_grad_()
        table = torch.log_softmax(logits, dim=-1)[which]
        if noise == "cross-entropy":
            each = torch.where(masked, -table.gather(-1, tokens.unsqueeze(-1)).squeeze(-1), 0.0)
        else:
            total = torch.full((len(tokens),), 0.8, dtype=torch.float64)
            scores = table - torch.log(torch.expm1(total))[:, None, None]
            noised = torch.where(masked, 3, tokens)
            each = score_entropy(scores, noised, tokens, total, vocab_size=3, noise="absorbing")
        (found,) = torch.autograd.grad((weight * each.sum(-1)).sum(), logits)
        return float(found.abs().max())

    for noise in ("cross-entropy", "score entropy"):
        assert gradient(oracle, noise) < 1e-12
        assert gradient(oracle * 1.1, noise) > 1e-3


def kernel(total, states):
    stay = math.exp(-total)
    return stay * torch.eye(states, dtype=torch.float64) + (1 - stay) / states


def test_uniform_score_entropy_is_stationary_at_the_exact_scores():
    everything = torch.tensor(list(itertools.product(range(3), repeat=2)))
    clean = torch.tensor([math.exp(float(CHAIN.log_prob(row))) for row in everything], dtype=torch.float64)
    total = 0.6
    k = kernel(total, 3)
    forward = k[everything[:, None, :], everything[None, :, :]].prod(-1)  # p_t(x | x_0)
    noisy = clean @ forward
    exact = torch.zeros(9, 2, 3, dtype=torch.float64)
    for x, place, y in itertools.product(range(9), range(2), range(3)):
        moved = everything[x].clone()
        moved[place] = y
        exact[x, place, y] = math.log(noisy[int(moved[0]) * 3 + int(moved[1])] / noisy[x])

    def loss(scores):
        pairs = list(itertools.product(range(9), range(9)))  # (x_0, x_t)
        start, end = (torch.tensor(side) for side in zip(*pairs, strict=True))
        sigma = torch.full((81,), total, dtype=torch.float64)
        each = score_entropy(scores[end], everything[end], everything[start], sigma, vocab_size=3, noise="uniform")
        return (clean[start] * forward[start, end] * each.sum(-1)).sum()

    scores = exact.clone().requires_grad_()
    (slope,) = torch.autograd.grad(loss(scores), scores)
    free = torch.ones(9, 2, 3, dtype=torch.bool).scatter(-1, everything.unsqueeze(-1), False)
    assert float(slope[free].abs().max()) < 1e-12
    assert float(loss(exact + 0.1)) > float(loss(exact)) >= 0


@pytest.mark.parametrize(
    ("loss", "top"),
    [(K_DCE, 1.0), (LAMBDA_DCE, 1.0), (TimeDCE(), 1 - 1e-3), (TimeDCE(Cosine()), 1 - 1e-3)],
    ids=["k-dce", "lambda-dce", "t-dce", "t-dce cosine"],
)
def test_cross_entropies_are_unbiased_against_exact(loss, top):
    """800 batches of 16; |z| < 4.5 (false alarm 7e-6 each)."""
    exact = float(expected_up_to(top))
    generator = stream(1, "loss", repr(loss))
    tokens = X.expand(16, -1)
    found = torch.stack([loss(CHAIN, tokens, generator=generator).mean() for _ in range(800)]).double()
    z = (float(found.mean()) - exact) / (float(found.std()) / math.sqrt(len(found)))
    assert abs(z) < 4.5


def expected_up_to(top):
    surprisal = CHAIN.surprisal(X.expand(16, -1), MASKS).sum(-1)
    return sum(
        weight / node * expected(surprisal, node)
        for node, weight in zip((NODES + 1) / 2 * top, WEIGHTS / 2 * top, strict=True)
    )


def test_score_entropy_of_a_predictor_is_unbiased_against_exact():
    scores = scores_from_predictor(CHAIN)

    class Network:
        vocab_size = 3

        def __call__(self, tokens, sigma):
            return scores(tokens, sigma.double())

    loss, generator = ScoreEntropy(), stream(1, "dse")
    found = torch.stack([loss(Network(), X.expand(16, -1), generator=generator).mean() for _ in range(800)]).double()
    z = (float(found.mean()) - float(expected_up_to(1 - 1e-3))) / (float(found.std()) / math.sqrt(len(found)))
    assert abs(z) < 4.5


def test_flat_loss_masks_no_more_than_its_share_and_counts_tokens_alike():
    tokens = torch.zeros(64, 40, dtype=torch.int64)
    masked, weight = FlatDCE(0.3).draw(tokens, vocab_size=3, generator=stream(0))
    assert int(masked.sum(-1).min()) >= 1
    assert int(masked.sum(-1).max()) <= 12
    assert weight.unique().tolist() == pytest.approx([0.0, 2 / 0.3])
    with pytest.raises(InputError):
        FlatDCE(0.0)


def test_strata_hold_one_number_each():
    levels = strata(10, generator=stream(0))
    assert ((levels * 10).long() == torch.arange(10)).all()


def test_noise_hits_as_often_as_it_should():
    tokens = torch.zeros(200, 500, dtype=torch.int64)
    total = torch.full((200,), 0.7, dtype=torch.float64)
    masked = add_noise(tokens, total, vocab_size=4, noise="absorbing", generator=stream(0)) == 4
    level = 1 - math.exp(-0.7)
    error = math.sqrt(level * (1 - level) / tokens.numel())
    assert abs(float(masked.double().mean()) - level) < 4.5 * error
    moved = add_noise(tokens, total, vocab_size=4, noise="uniform", generator=stream(0)) != 0
    assert abs(float(moved.double().mean()) - level * 0.75) < 4.5 * error


def test_unknown_losses_are_told():
    with pytest.raises(InputError, match="k-dce, lambda-dce, t-dce, flat-dce, t-dse"):
        loss_named("mse")
