"""Losses of log-likelihoods: values, gradients, what noise does to them, and bounds against exact mixtures."""

import math

import pytest
import torch

import infodis
from infodis.design import Orders
from infodis.errors import InputError
from infodis.models.nets import RADD, NetworkShape, initialise
from infodis.plan import draw_plan
from infodis.rng import stream
from infodis.train.objectives import LossReport, upper_log_p

NEW = torch.tensor([-10.0, -14.0, -8.0, -6.0], dtype=torch.float64)
OLD = torch.tensor([-11.0, -13.0, -8.0, -9.0], dtype=torch.float64)
"""Margins 2 and -3."""


def test_dpo_against_its_formula():
    log_p = NEW.clone().requires_grad_()
    loss, found = infodis.dpo_loss(log_p, OLD, beta=0.5, report=True)
    assert float(loss.detach()) == pytest.approx((math.log1p(math.exp(-1)) + math.log1p(math.exp(1.5))) / 2)
    loss.backward()
    pull = 0.25 * torch.tensor([1 / (1 + math.e), 1 / (1 + math.exp(-1.5))]).double()
    torch.testing.assert_close(log_p.grad, torch.stack([-pull, pull], 1).flatten())
    assert found.margin.tolist() == [2, -3]
    assert found.accuracy == 0.5
    assert found.chosen_log_p.tolist() == [-10, -8]
    assert found.rejected_log_p.tolist() == [-14, -6]
    assert found.variance is None
    assert not found.margin.requires_grad


def test_a_policy_that_is_its_reference_has_no_margin():
    loss, found = infodis.dpo_loss(NEW, NEW, report=True)
    assert float(loss) == pytest.approx(math.log(2))
    assert found.margin.tolist() == [0, 0]
    assert found.accuracy == 0.5


def test_kto_turns_the_sign_of_what_is_not_wanted():
    desirable = torch.tensor([True, False, True, False])
    loss, found = infodis.kto_loss(NEW, OLD, desirable, beta=1.0, baseline=0.5, report=True)
    assert found.margin.tolist() == [0.5, 1.5, -0.5, -2.5]
    assert float(loss) == pytest.approx(sum(1 / (1 + math.exp(m)) for m in (0.5, 1.5, -0.5, -2.5)) / 4)
    assert found.chosen_log_p.tolist() == [-10, -8]


@pytest.mark.parametrize(("advantage", "moved", "wanted"), [(1, 0.5, -1.2), (1, -0.5, -math.exp(-0.5)),
                                                           (-1, 0.5, math.exp(0.5)), (-1, -0.5, 0.8)])  # fmt: skip
def test_a_ratio_is_clipped_on_the_side_that_pays(advantage, moved, wanted):
    log_p = torch.tensor([moved], dtype=torch.float64, requires_grad=True)
    loss, found = infodis.grpo_loss(log_p, torch.zeros(1).double(), torch.tensor([float(advantage)]), report=True)
    assert float(loss.detach()) == pytest.approx(wanted)
    loss.backward()
    assert (float(log_p.grad) == 0) == (advantage * moved > 0)
    assert float(found.margin) == advantage * moved


def test_gspo_takes_the_root_of_the_ratio():
    lengths = torch.tensor([1, 2, 4, 3])
    loss = infodis.grpo_loss(NEW, OLD, torch.ones(4), lengths=lengths, clip=100.0)
    assert float(loss) == pytest.approx(-sum(math.exp(m) for m in (1, -0.5, 0, 1)) / 4)
    both = (torch.stack([part, part], 1) for part in (NEW, OLD))
    assert float(infodis.grpo_loss(*both, torch.ones(4), lengths=lengths, clip=100.0)) == pytest.approx(float(loss))


MIDDLE = torch.tensor([1.5, 0.5, -1.0, 0.5], dtype=torch.float64)
"""What policies have moved by, in truth."""


def noisy(replicates: int, spread: float, runs: int = 20_000) -> torch.Tensor:
    """Unbiased estimates of it: runs x sequences x replicates. The second half has the noise of the first, turned."""
    noise = torch.randn(runs // 2, 4, replicates, generator=stream(0, "noise", replicates), dtype=torch.float64)
    return MIDDLE.unsqueeze(-1) + spread * torch.stack([noise, -noise], 1).flatten(0, 1)


LOSSES = {
    "dpo": lambda log_p, **o: infodis.dpo_loss(log_p, torch.zeros_like(log_p), beta=0.7, **o),
    "ipo": lambda log_p, **o: infodis.ipo_loss(log_p, torch.zeros_like(log_p), beta=0.7, **o),
    "kto": lambda log_p, **o: infodis.kto_loss(
        log_p, torch.zeros_like(log_p), torch.ones(len(log_p), dtype=torch.bool), beta=1.5, **o
    ),
    "grpo": lambda log_p, **o: infodis.grpo_loss(
        log_p, torch.zeros_like(log_p), torch.ones(len(log_p)), clip=(1.0, 1e9), **o
    ),
}


@pytest.mark.parametrize("name", LOSSES)
def test_noise_biases_value_and_gradient_and_debiasing_takes_it_out(name):
    """Two replicates. What is left of the bias is at most a third (nothing in the case of IPO), within five errors."""
    loss, groups = LOSSES[name], 100
    truth = MIDDLE.clone().requires_grad_()
    exact = loss(truth)
    wanted = torch.cat([torch.autograd.grad(exact, truth)[0], exact.detach().unsqueeze(0)])

    def off(*, debias: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """Bias of gradient and value, and their standard errors, from groups of runs."""
        log_p = noisy(2, 0.6).unflatten(0, (groups, -1)).requires_grad_()
        values = torch.stack([loss(one.flatten(0, 1), debias=debias) for one in log_p])
        slopes = torch.autograd.grad(values.sum(), log_p)[0].sum((1, 3))
        found = torch.cat([slopes, values.detach().unsqueeze(1)], 1)
        return found.mean(0) - wanted, found.std(0) / math.sqrt(groups)

    (plain, error), (debiased, its) = off(debias=False), off(debias=True)
    assert float(plain[-1].abs() / error[-1]) > 10
    left = 0.0 if name == "ipo" else 1 / 3
    for part in (slice(0, 4), slice(4, 5)):  # the gradient, and the value
        slack = 5 * float((error[part] + its[part]).norm())
        assert float(debiased[part].norm()) <= left * float(plain[part].norm()) + slack


@pytest.mark.parametrize("debias", [False, True])
@pytest.mark.parametrize("name", LOSSES)
def test_gradients_against_differences(name, debias):
    assert torch.autograd.gradcheck(
        lambda log_p: LOSSES[name](log_p, debias=debias), noisy(2, 0.6, runs=2)[0].requires_grad_()
    )


def test_the_variance_of_a_margin_is_that_of_its_mean():
    found = [infodis.dpo_loss(one, torch.zeros_like(one), report=True)[1] for one in noisy(4, 0.6, runs=2000)]
    assert all(isinstance(one, LossReport) for one in found)
    variance = torch.stack([one.variance for one in found]).mean()
    assert float(variance) == pytest.approx(2 * 0.36 / 4, rel=0.05)  # chosen and rejected, four replicates
    assert float(torch.stack([one.margin for one in found])[:, 0].var()) == pytest.approx(float(variance), rel=0.1)


def test_rewards_enter_between_bounds():
    orders = torch.tensor([[-3.0, -1, -2, -4], [-3.0, -1, -2, -4]]).double().requires_grad_()
    up = infodis.sandwich_loss(orders[:1], torch.tensor([2.0]))
    down, found = infodis.sandwich_loss(orders[1:], torch.tensor([-2.0]), report=True)
    assert float(up.detach()) == pytest.approx(5.0)
    assert float(down.detach()) == pytest.approx(2 * float(upper_log_p(orders[1:]).detach()))
    assert float(found.margin) > 0
    (up + down).backward()
    assert torch.equal(orders.grad[0], torch.full((4,), -0.5).double())
    assert bool((orders.grad[1] > 0).all())  # every order is made less likely
    with pytest.raises(InputError, match="at least four orders"):
        infodis.sandwich_loss(orders[:, :3], torch.ones(2))


def test_the_upper_bound_lies_above_the_exact_mixture_and_the_lower_one_below():
    """Over 200 plans of eight orders of a network whose conditionals disagree, within five standard errors."""
    network = RADD(3, NetworkShape(8, 1, 2))
    initialise(network, generator=stream(0, "weights"))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += 0.5 * torch.randn(parameter.shape, generator=stream(1, "more"))
        row = [0, 1, 2, 1, 0]
        exact = infodis.bounds(network, row)
        plans = [draw_plan(network, [row], evaluations=40, design=Orders(), replicates=8, step=n) for n in range(200)]
        orders = torch.cat([infodis.log_likelihood(network, plan, per_replicate=True) for plan in plans])
    assert exact.exact
    assert exact.spread.value > 0.1
    lower, upper = orders.mean(1), upper_log_p(orders)
    errors = [5 * float(one.std()) / math.sqrt(len(plans)) for one in (lower, upper)]
    assert float(lower.mean()) == pytest.approx(-exact.nll.value, abs=errors[0])
    assert float(upper.mean()) > -exact.mixture_nll.value - errors[1]
    assert float(upper.mean()) < -exact.mixture_nll.value + exact.spread.value
    assert float(lower.mean()) < -exact.mixture_nll.value < float(upper.mean())


def test_log_likelihoods_that_do_not_belong_together_are_told():
    with pytest.raises(InputError, match=r"one shape.*got \[4\] and \[2\]"):
        infodis.dpo_loss(NEW, OLD[:2])
    with pytest.raises(InputError, match="in pairs, chosen then rejected; got 3"):
        infodis.dpo_loss(NEW[:3], OLD[:3])
    with pytest.raises(InputError, match="two or more replicates, got one"):
        infodis.dpo_loss(NEW, OLD, debias=True)
