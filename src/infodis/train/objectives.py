"""What preference and reinforcement learning minimise: small functions of log-likelihoods.

All take what `infodis.log_likelihood` returns, for policy and reference **on one plan**: shared masks leave a hundredth
of the variance of their difference, and a reference that was computed before, on other masks, gives all of it back.

A log p of `[sequences]` is taken as it is. One of `[sequences, replicates]` (`per_replicate=True`) is averaged over the
replicates, and their spread says what the noise of the masks is: `LossReport.variance`, and `debias=True`. Log p is
estimated without bias, but a curved loss of a noisy number is not: in second order, E f(x + noise) is f(x) plus half of
f'' times the variance [eq:debias]. Debiased losses subtract that.
"""

import dataclasses
import math
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from infodis.errors import InputError
from infodis.quantities.bounds import tangent_point

LogP = Float[Tensor, "..."]
"""Of every sequence, or of every sequence and replicate of its masks."""

PerSequence = Float[Tensor, " sequences"]

LARGEST_EXPONENT = 20.0
"""Of a ratio of likelihoods, so that a single sequence cannot overflow a loss."""


@dataclasses.dataclass(frozen=True, eq=False)
class LossReport:
    """What a loss is made of, without gradients: to be logged."""

    margin: Float[Tensor, " rows"]
    """By how many nats the policy has moved the right way, against its reference: one number a pair or a sequence."""
    variance: Float[Tensor, " rows"] | None
    """Of the margins, by the draw of the masks; None where log p came without two or more replicates."""
    chosen_log_p: Float[Tensor, " chosen"]
    """Of what is wanted: the chosen, the desirable, those of positive advantage."""
    rejected_log_p: Float[Tensor, " rejected"]
    """Of what is not wanted."""

    @property
    def accuracy(self) -> float:
        """The share of margins that are positive; a margin of zero counts half."""
        return float((self.margin > 0).double().mean() + 0.5 * (self.margin == 0).double().mean())


def dpo_loss(
    log_p: LogP, reference_log_p: LogP, *, beta: float = 0.1, debias: bool = False, report: bool = False
) -> Any:
    """Direct preference optimisation: the mean of -log sigmoid(beta x margin) over pairs (Rafailov et al., 2023).

    The margin of a pair is log p - reference log p of the chosen sequence, less that of the rejected one. With log p of
    a plan this is VRPO (Zhu et al., 2025, LLaDA 1.5).

    *Noise:* -log sigmoid is convex, so noise of the margin raises the loss, by up to beta^2 / 8 times its variance, and
    draws the gradient towards pairs whose margin happens to look small. With shared masks at beta = 0.1 that is a
    thousandth of a nat for a variance of 1. `debias` takes it out in second order; it needs two or more replicates.

    Args:
        log_p, reference_log_p: rows in pairs: chosen, rejected, chosen, rejected, ...
        beta: how dearly moving away from the reference is paid for.
        debias: subtract the second-order bias.
        report: return the loss and a `LossReport`.

    >>> log_p = torch.tensor([-10.0, -14.0])
    >>> round(float(dpo_loss(log_p, torch.tensor([-11.0, -13.0]), beta=0.1)), 5)  # log(1 + exp(-0.2))
    0.59814
    """
    _check_beta(beta)
    moved = _moved(log_p, reference_log_p)
    margin = moved[0::2] - _paired(moved)[1::2]
    middle, variance = _mean(margin), _variance(margin)
    each = -F.logsigmoid(beta * middle)
    if debias:
        share = torch.sigmoid(beta * middle)
        each = each - 0.5 * beta**2 * share * (1 - share) * _known(variance)  # [eq:debias]
    total = _mean(log_p)
    return _told(each.mean(), LossReport(middle, variance, total[0::2], total[1::2]), report)


def ipo_loss(
    log_p: LogP, reference_log_p: LogP, *, beta: float = 0.1, debias: bool = False, report: bool = False
) -> Any:
    """Identity preference optimisation: the mean of (margin - 1 / (2 beta))^2 over pairs (Azar et al., 2024).

    Margins as for `dpo_loss`.

    *Noise:* the variance of the margin is added to the loss, and its gradient teaches the policy to be predictable
    instead of right. `debias` subtracts the variance: then loss and gradient are unbiased, not in second order only.

    >>> float(ipo_loss(torch.tensor([-10.0, -14.0]), torch.tensor([-11.0, -13.0]), beta=0.1))  # (2 - 5)^2
    9.0
    """
    _check_beta(beta)
    moved = _moved(log_p, reference_log_p)
    margin = moved[0::2] - _paired(moved)[1::2]
    middle, variance = _mean(margin), _variance(margin)
    each = (middle - 1 / (2 * beta)).square()
    if debias:
        each = each - _known(variance)  # [eq:debias]
    total = _mean(log_p)
    return _told(each.mean(), LossReport(middle, variance, total[0::2], total[1::2]), report)


def kto_loss(
    log_p: LogP,
    reference_log_p: LogP,
    desirable: Bool[Tensor, " sequences"],
    *,
    beta: float = 0.1,
    baseline: float | Tensor = 0.0,
    debias: bool = False,
    report: bool = False,
) -> Any:
    """Kahneman-Tversky optimisation: 1 - sigmoid(beta x margin), averaged over sequences (Ethayarajh et al., 2024).

    Needs no pairs: every sequence is desirable or not. The margin is log p - reference log p - `baseline`, with the
    sign turned for those that are not. The paper's baseline is an estimate of KL(policy, reference): the mean of log p
    - reference log p of responses put after other prompts, not below 0, without gradient.

    *Noise:* the loss is S-shaped, so noise raises it for sequences that are on the right side and lowers it for
    others: both are drawn to one half. `debias` takes that out in second order; it needs two or more replicates.

    >>> moved = torch.tensor([2.0, -2.0])
    >>> round(float(kto_loss(moved, torch.zeros(2), torch.tensor([True, False]), beta=0.1)), 5)  # 1 - sigmoid(0.2)
    0.45017
    """
    _check_beta(beta)
    moved = _moved(log_p, reference_log_p)
    sign = torch.where(_one_each(desirable, len(moved), "desirable").to(moved.device), 1.0, -1.0).to(moved.dtype)
    middle, variance = sign * (_mean(moved) - baseline), _variance(moved)
    share = torch.sigmoid(beta * middle)
    each = 1 - share
    if debias:
        each = each + 0.5 * beta**2 * share * (1 - share) * (1 - 2 * share) * _known(variance)  # [eq:debias]
    total = _mean(log_p)
    return _told(each.mean(), LossReport(middle, variance, total[sign > 0], total[sign < 0]), report)


def grpo_loss(
    log_p: LogP,
    old_log_p: LogP,
    advantage: PerSequence,
    *,
    clip: float | tuple[float, float] = 0.2,
    lengths: Tensor | None = None,
    debias: bool = False,
    report: bool = False,
) -> Any:
    """The clipped policy gradient of GRPO with one ratio a sequence; with `lengths`, GSPO's (Zheng et al., 2025).

    The ratio is exp(log p - old log p), with `lengths` that to the power 1 / length. The loss is minus the mean of the
    smaller one of ratio x advantage and clipped ratio x advantage. Ratios of single tokens, as in GRPO for
    autoregressive models (Shao et al., 2024), have no meaning here: a likelihood belongs to the sequence.

    *Noise:* a ratio is the exponential of a noisy number, so it is too large by half of its variance, in relative
    terms, and noise pushes it into the clip. Old and new policy must be evaluated on one plan: save it with the
    rollout. `debias` divides by what noise adds in second order; it needs two or more replicates.

    Args:
        log_p, old_log_p: of the policy now, and when the sequences were drawn.
        advantage: of every sequence: its reward, less the mean of its group.
        clip: how far a ratio may be from 1: below and above.
        lengths: tokens of every response, for GSPO. Its clip is far smaller (0.0003 and 0.0004 in the paper).

    >>> new, old = torch.tensor([0.0, 0.5]), torch.zeros(2)
    >>> round(float(grpo_loss(new, old, torch.tensor([1.0, 1.0]), clip=0.2)), 5)  # -(1 + 1.2) / 2: one is clipped
    -1.1
    """
    below, above = clip if isinstance(clip, tuple) else (clip, clip)
    if below < 0 or above < 0:
        raise InputError(f"clip must be how far a ratio may be below 1 and above, not negative, got {clip}. Try 0.2.")
    moved = _moved(log_p, old_log_p)
    if lengths is not None:
        moved = moved / _one_each(lengths, len(moved), "lengths").to(moved.device).reshape(-1, *[1] * (moved.ndim - 1))
    middle, variance = _mean(moved), _variance(moved)
    exponent = middle - 0.5 * _known(variance) if debias else middle  # [eq:debias]
    ratio = exponent.clamp(max=LARGEST_EXPONENT).exp()
    gain = _one_each(advantage, len(ratio), "advantage").to(ratio)
    each = -torch.minimum(ratio * gain, ratio.clamp(1 - below, 1 + above) * gain)
    total = _mean(log_p)
    found = LossReport(torch.where(gain >= 0, middle, -middle), variance, total[gain >= 0], total[gain < 0])
    return _told(each.mean(), found, report)


def sandwich_loss(
    order_log_p: Float[Tensor, "sequences orders"], advantage: PerSequence, *, report: bool = False
) -> Any:
    """The policy gradient between two bounds: a lower one where the advantage is positive, else an upper one.

    Sandwiched policy gradient's idea (Wang et al., 2025): -`nll` lies below the log-likelihood of a model that draws
    its reveal order. Raising a lower bound raises what it bounds; lowering one need not lower anything. So where the
    advantage is negative, an upper bound is lowered: minus `tangent_nll` of `infodis.bounds`, where SPG has another.

    It takes whole reveal orders, m forward passes each, at least four:

        plan = infodis.draw_plan(model, rows, design=infodis.Orders(), evaluations=4 * m, replicates=4)
        order_log_p = infodis.log_likelihood(model, plan, per_replicate=True)

    *Noise:* the lower bound is linear, so unbiased. The upper one holds in expectation, gradient included, for any
    point of the tangent; that point comes from the other half of the orders, without gradient. Its variance is that of
    likelihoods of orders, which are heavy-tailed: see `infodis.bounds`.

    >>> orders = torch.tensor([[-3.0, -3.0, -3.0, -3.0]])  # all alike: both bounds are exact
    >>> float(sandwich_loss(orders, torch.tensor([1.0]))), float(sandwich_loss(orders, torch.tensor([-1.0])))
    (3.0, -3.0)
    """
    upper, lower = upper_log_p(order_log_p), order_log_p.mean(1)
    gain = _one_each(advantage, len(lower), "advantage").to(lower)
    taken = torch.where(gain >= 0, lower, upper)
    found = LossReport(upper - lower, _variance(order_log_p), taken[gain >= 0], taken[gain < 0])
    return _told(-(gain * taken).mean(), found, report)


def upper_log_p(order_log_p: Float[Tensor, "sequences orders"]) -> PerSequence:
    """An upper bound, in expectation, of the log-likelihood of a model that draws its reveal order [eq:tangent].

    Log p <= log psi + w / psi - 1 for likelihoods w of single orders, which average to p, and any psi. Each half of the
    orders is bounded with the psi of the other half.

    >>> float(upper_log_p(torch.full((1, 4), -2.0)))
    -2.0
    """
    orders = order_log_p.shape[1] if order_log_p.ndim == 2 else 1
    if orders < 4:
        raise InputError(
            f"An upper bound needs at least four orders of every sequence, two for each half, got {orders}. Draw the "
            "plan with design=Orders(), replicates=4 and as many times the evaluations."
        )
    halves = order_log_p[:, : orders // 2], order_log_p[:, orders // 2 :]
    points = [torch.stack([tangent_point(-one.double()) for one in half.detach()]) for half in reversed(halves)]
    bounds = [
        point + (half - point).clamp(max=LARGEST_EXPONENT).exp() - 1
        for half, point in zip(halves, (one.to(order_log_p).unsqueeze(1) for one in points), strict=True)
    ]
    return torch.cat(bounds, dim=1).mean(1)


def _moved(log_p: Tensor, reference_log_p: Tensor) -> Tensor:
    """By how much the policy has moved; both must come from the same sequences and replicates."""
    both = log_p, reference_log_p
    shapes = [list(part.shape) if isinstance(part, Tensor) else type(part).__name__ for part in both]
    if shapes[0] != shapes[1] or not isinstance(log_p, Tensor) or log_p.ndim not in (1, 2) or not len(log_p):
        raise InputError(
            "Log-likelihoods of policy and reference must have one shape, [sequences] or [sequences, replicates]; got "
            f"{shapes[0]} and {shapes[1]}. Evaluate both on one plan, in the same way."
        )
    return log_p - reference_log_p.detach()


def _check_beta(beta: float) -> None:
    if not 0 < beta < math.inf:
        raise InputError(f"beta must be a positive number, got {beta}. Values of 0.01 to 0.5 are usual.")


def _one_each(values: Any, sequences: int, name: str) -> Tensor:
    """A tensor with a number for every sequence."""
    found = torch.as_tensor(values)
    if found.shape != (sequences,):
        raise InputError(
            f"{name} must have one number for each of the {sequences} sequences, got the shape {list(found.shape)}. "
            "Sequences are the rows of log p."
        )
    return found


def _paired(moved: Tensor) -> Tensor:
    if len(moved) % 2:
        raise InputError(
            f"Rows must come in pairs, chosen then rejected; got {len(moved)} of them. Put each rejected sequence "
            "right behind its chosen one."
        )
    return moved


def _mean(values: Tensor) -> Tensor:
    return values if values.ndim == 1 else values.mean(1)


def _variance(values: Tensor) -> Tensor | None:
    """Of the mean over replicates."""
    if values.ndim == 1 or values.shape[1] < 2:
        return None
    return values.var(1) / values.shape[1]


def _known(variance: Tensor | None) -> Tensor:
    if variance is None:
        raise InputError(
            "A debiased loss needs log-likelihoods of two or more replicates, got one number a sequence. Draw the plan "
            "with replicates=2, and ask log_likelihood for per_replicate=True."
        )
    return variance


def _told(loss: Tensor, found: LossReport, report: bool) -> Any:
    if not report:
        return loss
    parts: dict[str, Any] = {field.name: getattr(found, field.name) for field in dataclasses.fields(found)}
    detached: dict[str, Any] = {name: None if part is None else part.detach() for name, part in parts.items()}
    return loss, LossReport(**detached)
