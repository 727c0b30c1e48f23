"""What is looked at in a row: its surprisals under many masks, with its prompt, without it, and under a reference.

All circumstances meet the same masks, so that their differences are sharper than each of them.
"""

import dataclasses
import math
from collections.abc import Sequence

import torch
from jaxtyping import Float64
from torch import Tensor

from infodis.design import LONGEST_ENUMERATION, Enumerate, MaskDesign, Tiled
from infodis.estimate import Request
from infodis.evaluate import Batching, Coroutine, ItemBatch, run_batched
from infodis.item import Item
from infodis.models.model import Model
from infodis.predictor import Predictor
from infodis.result import Stopped, standard_error
from infodis.sample import Sample

QUARTERS = 4
"""Groups of masks by the share of tokens that they hide."""

TOGETHER = 64
"""Rows under way at a time."""

Values = Float64[Tensor, " replicates"]


@dataclasses.dataclass(frozen=True, eq=False)
class Look:
    """What was seen of one row."""

    values: Values
    """Replicates of `nll` given the prompt."""
    credits: Float64[Tensor, " target"]
    credit_errors: Float64[Tensor, " target"]
    without: Values | None
    """Replicates of `nll` without the prompt, from the same masks; None if there is no prompt."""
    reference: Values | None
    """Replicates of `nll` under the reference model, from the same masks; None if there is none."""
    quarters: Float64[Tensor, " quarters"]
    """Nats per masked token where at most a quarter of the tokens is masked, up to a half, ...; NaN where none is."""
    votes: float | None
    """The share of masks under which the text is less surprising than under the reference or, if there is none, than
    without the prompt; ties count half.
    """
    evaluations: int
    design: MaskDesign

    @property
    def impossible(self) -> bool:
        return not bool(self.values.isfinite().all())

    @property
    def stopped(self) -> Stopped:
        return "exact" if len(self.values) == 1 else "budget spent"


@dataclasses.dataclass(frozen=True, eq=False)
class Subject:
    """A row to look at, and the same without its prompt, if it has one."""

    item: Item
    bare: Item | None

    @staticmethod
    def of(model: Model, item: Item) -> "Subject":
        """Special tokens that a model puts around every row are no prompt."""
        before, behind = ([], []) if model.loaded.tokenizer is None else model.around()
        tokens = item.tokens.tolist()
        start = len(before) if tokens[: len(before)] == before else 0
        stop = item.length - (len(behind) if behind and tokens[-len(behind) :] == behind else 0)
        prompt = (item.context >= start) & (item.context < stop)
        return Subject(item, Item(item.tokens, item.target, item.context[~prompt]) if bool(prompt.any()) else None)


def look(
    predictor: Predictor,
    subjects: Sequence[Subject],
    *,
    reference: Predictor | None = None,
    evaluations: int = 64,
    seed: int = 0,
) -> list[Look]:
    """Look at rows side by side: `evaluations` masks each, for every circumstance."""
    going = (_looking(predictor, subject, reference, evaluations, seed) for subject in subjects)
    return list(run_batched(going, Batching(together=TOGETHER)))


def _looking(
    predictor: Predictor, subject: Subject, reference: Predictor | None, rows: int, seed: int
) -> Coroutine[Look]:
    name = subject.item.key
    sample = yield from _sampled(predictor, subject.item, rows, seed=seed, name=name)
    values, credits, errors = (part[0] for part in sample.combine())
    cost, without, other = int(sample.seen.cost[0]), None, None
    if subject.bare is not None:
        without = yield from _sampled(predictor, subject.bare, rows, seed=seed, name=name)
        cost += int(without.seen.cost[0])
    if reference is not None:
        other = yield from _sampled(reference, subject.item, rows, seed=seed, name=name)
        cost += int(other.seen.cost[0])
    rival = without if other is None else other
    return Look(
        values,
        credits,
        errors,
        None if without is None else without.combine()[0][0],
        None if other is None else other.combine()[0][0],
        _quarters(sample),
        None if rival is None else _votes(sample, rival),
        cost,
        sample.design,
    )


def _sampled(predictor: Predictor, item: Item, rows: int, *, seed: int, name: int) -> Coroutine[Sample]:
    """Masks by `Tiled`, or all of them if they are few enough."""
    length = item.target.numel()
    few = length <= LONGEST_ENUMERATION and 2**length - 1 <= rows
    design = Enumerate() if few else Tiled()
    layout = design.layout(length, rows)
    begun = Sample.of(
        [item], [name], ItemBatch.of(predictor, [item]), design, layout, control=Request().control, seed=seed
    )
    return (yield from begun.extend(layout.replicates))


def _quarters(sample: Sample) -> Float64[Tensor, " quarters"]:
    """Means over masks of the mean surprisal of what they hide, by the share that they hide."""
    masked, surprisal = sample.seen.masked[0], sample.seen.surprisal[0]
    count = masked.sum(1)
    group = (count * QUARTERS - 1) // masked.shape[1]
    means = surprisal.sum(1) / count
    return torch.stack([means[group == quarter].mean() for quarter in range(QUARTERS)])


def _votes(sample: Sample, rival: Sample) -> float:
    excess = (sample.seen.surprisal[0] - rival.seen.surprisal[0]).sum(1).nan_to_num(nan=0.0)
    return float(((excess < 0) + (excess == 0) / 2).double().mean())


def difference(one: Values, other: Values | None) -> tuple[float, float] | None:
    """The mean of one minus another from the same masks, with its standard error; None where there is none."""
    if other is None or not bool((one.isfinite() & other.isfinite()).all()):
        return None
    gap = one - other
    return float(gap.mean()), float(standard_error(gap))


def mean_of(values: Values) -> tuple[float, float]:
    """Value and standard error."""
    if not bool(values.isfinite().all()):
        return math.inf, 0.0
    return float(values.mean()), float(standard_error(values))
