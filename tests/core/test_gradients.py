"""Log-likelihoods with gradients: against the gradient of the sum over all masks, and against each other."""

import dataclasses
import math

import pytest
import torch
from laws import ALL_DESIGNS
from torch import nn

import infodis
from infodis.apps.bench.peers import CoupledWeights, FullMask
from infodis.auto import Auto
from infodis.design import Enumerate, MaskDesign, Tiled
from infodis.errors import InputError
from infodis.models.nets import RADD, NetworkShape, initialise
from infodis.plan import MaskPlan, draw_plan
from infodis.rng import stream

ROW = [0, 1, 2, 1, 0]
STEPS = 600
FALSE_ALARM = 5.0
"""Standard errors; there are some hundred comparisons, so one in ten thousand runs would fail by chance."""


def tiny_network(*, dropout: float = 0.0) -> RADD:
    """Far from any distribution: its conditionals disagree, so that designs differ."""
    network = RADD(3, NetworkShape(8, 1, 2, dropout=dropout))
    initialise(network, generator=stream(0, "weights"))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += 0.5 * torch.randn(parameter.shape, generator=stream(1, "more"))
    return network.double()


NETWORK = tiny_network()


def gradient(value: torch.Tensor, network: nn.Module = NETWORK) -> torch.Tensor:
    found = torch.autograd.grad(value, list(network.parameters()), allow_unused=True)
    return torch.cat([g.flatten() for g in found if g is not None])


def all_masks() -> MaskPlan:
    return draw_plan(NETWORK, [ROW], evaluations=31, design=Enumerate())


@pytest.fixture(scope="module")
def each_mask():
    """Value and gradient of the surprisal of every position under every mask: rows by the number of the mask."""
    plan = all_masks()
    surprisal = NETWORK.surprisal(torch.tensor([ROW] * 31), plan.masked)
    directions = torch.randn(
        8, sum(p.numel() for p in NETWORK.parameters()), generator=stream(2, "directions"), dtype=torch.float64
    )
    found = torch.zeros(32, 5, 9, dtype=torch.float64)
    for number, place in plan.masked.nonzero().tolist():
        code = int((plan.masked[number] * 2 ** torch.arange(5)).sum())
        found[code, place, 0] = surprisal[number, place].detach()
        slopes = torch.autograd.grad(surprisal[number, place], list(NETWORK.parameters()), retain_graph=True)
        found[code, place, 1:] = directions @ torch.cat([slope.flatten() for slope in slopes])
    return found, directions


def off_by(design: MaskDesign, each_mask: torch.Tensor, evaluations: int) -> torch.Tensor:
    """Standard errors between the mean over many steps and the sum over all masks: of value and gradient."""
    exact = (all_masks().weight.unsqueeze(-1) * each_mask[_codes(all_masks().masked)]).sum((0, 1))
    plans = [draw_plan(NETWORK, [ROW], evaluations=evaluations, design=design, step=n) for n in range(STEPS)]
    found = torch.stack([(p.weight.unsqueeze(-1) * each_mask[_codes(p.masked)]).sum((0, 1)) for p in plans])
    error = found.std(0) / math.sqrt(STEPS)
    return (found.mean(0) - exact).abs() / error.clamp(min=1e-9)


def _codes(masked: torch.Tensor) -> torch.Tensor:
    return (masked * 2 ** torch.arange(masked.shape[1])).sum(-1)


@pytest.mark.parametrize("design", ALL_DESIGNS, ids=repr)
def test_value_and_gradient_against_all_masks(design, each_mask):
    evaluations = 31 if isinstance(design, Enumerate) else 9 if "antithetic=True" in repr(design) else 6
    assert float(off_by(design, each_mask[0], evaluations).max()) < FALSE_ALARM


@pytest.mark.parametrize("design", [FullMask(), CoupledWeights()], ids=repr)
def test_estimators_that_are_no_likelihood_fail(design, each_mask):
    off = off_by(design, each_mask[0], 3)
    assert float(off[0]) > 2 * FALSE_ALARM
    assert float(off[1:].max()) > 2 * FALSE_ALARM


@pytest.mark.parametrize("design", ALL_DESIGNS, ids=repr)
def test_log_likelihood_is_the_weighted_sum_with_its_gradient(design, each_mask):
    """So what holds for weights on masks holds for what `log_likelihood` returns."""
    plan = draw_plan(NETWORK, [ROW], evaluations=31, design=design, step=3)
    wanted = -(plan.weight.unsqueeze(-1) * each_mask[0][_codes(plan.masked)]).sum((0, 1))
    log_p = infodis.log_likelihood(NETWORK, plan, micro_batch=4)
    found = torch.cat([log_p.detach(), each_mask[1] @ gradient(log_p.sum())])
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)


def test_enumerated_it_is_minus_the_exact_nll():
    found = infodis.log_likelihood(NETWORK, all_masks()).detach()
    assert float(found) == pytest.approx(-infodis.nll(NETWORK, ROW, design=Enumerate()).value, rel=1e-6)


ROWS = ["the capital of france", ("the capital of france is ", "paris"), "a", "some more text of another length"]


@pytest.fixture(scope="module")
def model():
    return infodis.load("text8-tiny", trainable=True)


def test_policy_and_reference_that_are_equal_have_margins_of_exactly_zero(model):
    reference = infodis.load("text8-tiny")
    plan = draw_plan(model, ROWS, evaluations=4)
    with torch.no_grad():
        reference_log_p = infodis.log_likelihood(reference, plan, micro_batch=5)
    log_p = infodis.log_likelihood(model, plan, micro_batch=5)
    assert log_p.requires_grad
    assert not reference_log_p.requires_grad
    assert torch.equal(log_p.detach(), reference_log_p)
    loss, report = infodis.dpo_loss(log_p, reference_log_p, report=True)
    assert (report.margin == 0).all()
    assert float(loss.detach()) == pytest.approx(math.log(2))


def test_micro_batches_padding_and_checkpoints_change_no_number(model):
    """Values to 1e-6 of their size, gradients to 2e-5 of the largest entry: rounding of float32."""
    plan = draw_plan(model, ROWS, evaluations=4)
    parameters = list(model.network.parameters())

    def run(**options):
        log_p = infodis.log_likelihood(model, plan, **options)
        loss = torch.nn.functional.logsigmoid(0.1 * (log_p[::2] - log_p[1::2])).sum()
        slopes = torch.autograd.grad(loss, parameters)
        return log_p.detach(), torch.cat([slope.flatten() for slope in slopes]).double()

    value, slope = run(micro_batch=1, checkpoint=False)
    for options in ({"micro_batch": 1}, {"micro_batch": 3}, {"micro_batch": 16}, {"checkpoint": False}):
        other, its = run(**options)
        torch.testing.assert_close(other, value, rtol=1e-6, atol=0)
        assert float((its - slope).abs().max()) < 2e-5 * float(slope.abs().max())
    plain, again = run(micro_batch=3, checkpoint=False), run(micro_batch=3)
    assert torch.equal(plain[0], again[0])
    assert float((plain[1] - again[1]).abs().max()) < 1e-6 * float(slope.abs().max())


def test_tokens_and_replicates_add_up(model):
    plan = draw_plan(model, ROWS, evaluations=8, replicates=2)
    whole = infodis.log_likelihood(model, plan)
    tokens = infodis.log_likelihood(model, plan, per_token=True)
    replicates = infodis.log_likelihood(model, plan, per_replicate=True)
    both = infodis.log_likelihood(model, plan, per_token=True, per_replicate=True)
    assert tokens.shape == (4, plan.width)
    assert replicates.shape == (4, 2)
    torch.testing.assert_close(tokens.sum(1), whole)
    torch.testing.assert_close(replicates.mean(1), whole)
    torch.testing.assert_close(both.sum(-1), replicates)
    context = torch.ones(plan.width, dtype=torch.bool)
    context[plan.items[1].target] = False
    assert (tokens[1, context] == 0).all()
    assert (tokens[1, ~context] < 0).all()


def test_dropout_is_off_and_the_network_stays_in_its_mode():
    network = tiny_network(dropout=0.5).float().train()
    model = infodis.load(network)
    plan = draw_plan(model, [ROW], evaluations=8)
    one, two = (infodis.log_likelihood(model, plan) for _ in range(2))
    assert torch.equal(one, two)
    assert network.training
    assert one.requires_grad


def test_a_function_is_trained_too():
    """Whatever is between tokens and log-probabilities; a token that cannot happen is -inf, and one that is not asked
    about does no harm."""
    table = torch.zeros(5, 3, requires_grad=True)

    def conditionals(tokens):
        logits = table[: tokens.shape[1]].expand(len(tokens), -1, -1)
        return torch.log_softmax(logits.masked_fill(torch.tensor([False, False, True]), -torch.inf), dim=-1)

    predictor = infodis.from_function(conditionals, vocab_size=3, mask_token=3)
    plan = draw_plan(predictor, [[0, 1, 0], [1, 1]], evaluations=7, design=Enumerate())
    log_p = infodis.log_likelihood(predictor, plan, micro_batch=2)
    torch.testing.assert_close(log_p.detach(), -math.log(2) * torch.tensor([3.0, 2.0]).double(), rtol=1e-6, atol=0)
    log_p.sum().backward()
    wanted = torch.tensor([[0.0, 0, 0], [-1, 1, 0], [0.5, -0.5, 0], [0, 0, 0], [0, 0, 0]])
    torch.testing.assert_close(table.grad, wanted)
    impossible = infodis.log_likelihood(predictor, draw_plan(predictor, [[0, 2, 0]], evaluations=4))
    assert float(impossible.detach()) == -math.inf


@pytest.mark.parametrize("name", ["text8-tiny", "text8-block4", "text8-causal"])
def test_a_plan_that_masks_nothing_has_value_and_gradient_zero(name):
    """`TimeIntegral` may draw one."""
    model = infodis.load(name, trainable=True)
    plan = draw_plan(model, ["ab"], evaluations=1)
    plan = dataclasses.replace(
        plan, masked=torch.zeros_like(plan.masked[:1]), weight=torch.zeros_like(plan.weight[:1]),
        sequence=plan.sequence[:1], replicate=plan.replicate[:1],
    )  # fmt: skip
    assert plan.evaluations == 0
    log_p = infodis.log_likelihood(model, plan)
    assert log_p.tolist() == [0]
    log_p.sum().backward()
    assert not any(p.grad is not None and bool(p.grad.any()) for p in model.network.parameters())


def test_autocast_around_it_is_honoured(model):
    plan = draw_plan(model, ROWS, evaluations=4)
    exact = infodis.log_likelihood(model, plan)
    with torch.autocast("cpu", torch.bfloat16):
        rough = infodis.log_likelihood(model, plan, micro_batch=3)
        with torch.no_grad():
            reference = infodis.log_likelihood(model, plan, micro_batch=3)
    assert torch.equal(rough.detach(), reference)
    assert not torch.equal(rough, exact)
    torch.testing.assert_close(rough, exact, rtol=0.02, atol=0)
    slopes = torch.autograd.grad(rough.sum(), list(model.network.parameters()))
    assert all(bool(slope.isfinite().all()) for slope in slopes)


def test_weights_from_files_have_gradients_only_if_asked(model):
    assert not any(p.requires_grad for p in infodis.load("text8-tiny").network.parameters())
    assert all(p.requires_grad for p in model.network.parameters())


def test_a_plan_of_other_tokens_is_told(model):
    with pytest.raises(InputError, match="27 of them, got a model with 4"):
        infodis.log_likelihood(infodis.load("dna-tiny"), draw_plan(model, ["text"]))
    with pytest.raises(InputError, match="micro_batch must be at least 1"):
        infodis.log_likelihood(model, draw_plan(model, ["text"]), micro_batch=0)


def test_designs_take_all_rows_for_one_replicate():
    assert Tiled().fewest_replicates(9, 8).replicates == 1
    assert Auto().fewest_replicates(3, 8).rows == 7
