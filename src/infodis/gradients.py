"""Log-likelihoods with gradients: a model, evaluated on a plan of masks.

    plan = infodis.draw_plan(model, rows, evaluations=4, step=step)
    with torch.no_grad():
        reference_log_p = infodis.log_likelihood(reference, plan)
    log_p = infodis.log_likelihood(model, plan)

What a plan weighs is linear in the surprisals, so the gradient of the estimate is an unbiased estimate of the gradient,
as the value is of the value [eq:plan]. Losses that are not linear in log p are biased by its noise: see
`infodis.train.objectives`.
"""

import functools
from collections.abc import Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint as run_again_in_backward

from infodis.blocks import blocks_of
from infodis.errors import InputError
from infodis.plan import MaskPlan
from infodis.predictor import Predictor, RowPredictor, Rows


def log_likelihood(
    model: Predictor,
    plan: MaskPlan,
    *,
    micro_batch: int = 16,
    per_token: bool = False,
    per_replicate: bool = False,
    checkpoint: bool = True,
) -> Float[Tensor, "..."]:
    """Log p of every sequence of a plan, estimated on its masks, in nats: `[sequences]`, with gradients.

    Unbiased for -`nll`, the ELBO of a diffusion model [eq:plan], and its gradient for that one's gradient.
    Models on one plan see the same masks: their differences lose most of the noise.

    Args:
        model: what `infodis.load` returns (`trainable=True` for weights that can move), or any other `Predictor`. It
            runs in evaluation mode, so without dropout, in the precision of its weights or of an autocast around it.
        plan: of `infodis.draw_plan`; drawn for these tokens.
        micro_batch: rows per forward pass. It changes no number beyond rounding.
        per_token: `[sequences, length]` instead: what every token adds, zeros at context and padding.
        per_replicate: with an axis for replicates behind that of sequences, instead of their mean.
        checkpoint: run every micro-batch again in the backward pass, so that memory does not grow with the number of
            draws. It changes no number.

    >>> import infodis
    >>> model = infodis.load("text8-tiny", trainable=True)
    >>> plan = infodis.draw_plan(model, ["paris", "pxris"], evaluations=8)
    >>> log_p = infodis.log_likelihood(model, plan)
    >>> bool(log_p[0] > log_p[1]), log_p.requires_grad
    (True, True)
    """
    if not isinstance(micro_batch, int) or micro_batch < 1:
        raise InputError(f"micro_batch must be at least 1, a whole number of rows, got {micro_batch!r}. Try 16.")
    if not isinstance(plan, MaskPlan):
        raise InputError(f"The second argument must be a plan, got a {type(plan).__name__}. Draw one by draw_plan.")
    plan.check_model(model)
    found = _weighted(plan, _surprisals(model, plan, micro_batch, checkpoint=checkpoint))
    found = found if per_replicate else found.mean(1)
    return found if per_token else found.sum(-1)


def _weighted(
    plan: MaskPlan, surprisal: Float[Tensor, "passes length"]
) -> Float[Tensor, "sequences replicates length"]:
    """Minus the sum of weight x surprisal over the draws of every replicate [eq:plan]."""
    device = surprisal.device
    kind = torch.float32 if device.type == "mps" else torch.float64  # which mps does not have
    weight, number = plan.weight.to(device=device, dtype=kind), plan.distinct[1].to(device)
    terms = torch.where(weight > 0, -weight * surprisal.to(kind)[number], 0.0)  # not 0 x inf
    group = (plan.sequence * plan.replicates + plan.replicate).to(device)
    sums = torch.zeros(len(plan) * plan.replicates, plan.width, dtype=kind, device=device).index_add(0, group, terms)
    return sums.unflatten(0, (len(plan), plan.replicates))


def _surprisals(
    model: Predictor, plan: MaskPlan, micro_batch: int, *, checkpoint: bool
) -> Float[Tensor, "passes length"]:
    """Of every distinct mask; zeros where nothing is masked."""
    draws = plan.distinct[0]
    if not len(draws):  # nothing is masked anywhere: one pass all the same, so that there are gradients, of zero
        draws = torch.zeros(1, dtype=torch.int64)
    longest_first = plan.lengths[plan.sequence[draws]].argsort(descending=True, stable=True)
    batches = list(_batches(model, plan, draws[longest_first], micro_batch))
    again = checkpoint and len(batches) > 1 and torch.is_grad_enabled()
    found = []
    for rows in batches:
        ask = functools.partial(_ask, model, rows)
        found.append(run_again_in_backward(ask, use_reentrant=False) if again else ask())
    whole = torch.cat([torch.nn.functional.pad(one, (0, plan.width - one.shape[1])) for one in found])
    return whole[longest_first.argsort().to(whole.device)]


def _batches(model: Predictor, plan: MaskPlan, draws: Int[Tensor, " passes"], size: int) -> Iterator[Rows]:
    """Rows of the draws, so many at a time. Only a model that does not see padding takes rows of unequal lengths."""
    lengths = plan.lengths[plan.sequence[draws]]
    pads, blocks = isinstance(model, RowPredictor) and model.pads, blocks_of(model)
    alike = [slice(0, len(draws))] if pads else _runs(lengths)
    for some in alike:
        for part, long in zip(draws[some].split(size), lengths[some].split(size), strict=True):
            owner, width = plan.sequence[part], int(long[0])
            wanted = plan.masked[part, :width]
            hidden = plan.hidden[owner, :width] | wanted
            yield Rows(plan.tokens[owner, :width], hidden, wanted, long, plan.starts(blocks)[owner])


def _runs(lengths: Int[Tensor, " rows"]) -> list[slice]:
    """Where neighbours are equal."""
    counts = lengths.unique_consecutive(return_counts=True)[1]
    ends = counts.cumsum(0).tolist()
    return [slice(end - count, end) for end, count in zip(ends, counts.tolist(), strict=True)]


def _ask(model: Predictor, rows: Rows) -> Float[Tensor, "rows length"]:
    """Surprisals at wanted places, zeros elsewhere."""
    if isinstance(model, RowPredictor):
        found = model.surprisals(rows)
        wanted = rows.wanted.to(found.device)
        return torch.zeros(wanted.shape, dtype=found.dtype, device=found.device).index_put((wanted,), found)
    found = model.surprisal(rows.tokens, rows.hidden)
    return torch.where(rows.wanted.to(found.device), found, 0.0)
