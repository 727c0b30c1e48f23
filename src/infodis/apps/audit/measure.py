"""What is measured of a row: its nll given the prompt, without it, and under a reference; and the job that does it.

All three meet the same masks, so that their differences are sharper than each of them.
"""

import dataclasses
import math
from collections.abc import Sequence

import torch
from jaxtyping import Float64
from torch import Tensor

from infodis.design import LONGEST_ENUMERATION, Enumerate, MaskDesign, Tiled
from infodis.estimate import Request, check_masks
from infodis.evaluate import Batching, Coroutine, ItemBatch, run_batched
from infodis.item import Item
from infodis.jobs.inputs import Entry, Scored
from infodis.jobs.job import (
    ESTIMATE_COLUMNS,
    TOKEN_COLUMNS,
    Record,
    ReferenceJob,
    numbers,
    rounded,
    token_fields,
)
from infodis.jobs.outputs import Columns
from infodis.jobs.summary import ScoreSummary
from infodis.models.model import Model
from infodis.predictor import Predictor
from infodis.result import Measured, Stopped
from infodis.sample import Sample

QUARTERS = 4
"""Bins of masks, by the share of tokens that they hide."""

TOGETHER = 64
"""Rows under way at a time."""

Values = Float64[Tensor, " replicates"]


@dataclasses.dataclass(frozen=True, eq=False)
class RowMeasurement:
    """What was measured of one row."""

    values: Values
    """Replicates of `nll` given the prompt."""
    per_token: Float64[Tensor, " target"]
    per_token_error: Float64[Tensor, " target"]
    without_prompt: Values | None
    """Replicates of `nll` without the prompt, from the same masks; None if there is no prompt."""
    under_reference: Values | None
    """Replicates of `nll` under the reference model, from the same masks; None if there is none."""
    nll_by_mask_rate: Float64[Tensor, " quarters"]
    """Nats per masked token where at most a quarter of the tokens is masked, up to a half, ...; NaN where none is."""
    win_rate: float | None
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
class PromptedItem:
    """A row, and the same without its prompt, if it has one."""

    item: Item
    without_prompt: Item | None

    @staticmethod
    def of(model: Model, item: Item) -> "PromptedItem":
        """Special tokens that a model puts around every row are no prompt."""
        before, behind = ([], []) if model.loaded.tokenizer is None else model.around()
        tokens = item.tokens.tolist()
        start = len(before) if tokens[: len(before)] == before else 0
        stop = item.length - (len(behind) if behind and tokens[-len(behind) :] == behind else 0)
        prompt = (item.context >= start) & (item.context < stop)
        if not bool(prompt.any()):
            return PromptedItem(item, None)
        if model.blocks is None:
            return PromptedItem(item, Item(item.tokens, item.target, item.context[~prompt]))
        kept = torch.cat(
            [item.context[~prompt], item.target]
        )  # from a model of blocks nothing can be hidden but taken out
        return PromptedItem(item, Item.read(item.tokens[kept], context=range(int((~prompt).sum()))))


def measure_rows(
    predictor: Predictor,
    rows: Sequence[PromptedItem],
    *,
    reference: Predictor | None = None,
    evaluations: int = 64,
    seed: int = 0,
) -> list[RowMeasurement]:
    """Rows side by side: `evaluations` masks each, with the prompt, without it and under the reference."""
    coroutines = (_measure_row(predictor, row, reference, evaluations, seed) for row in rows)
    return list(run_batched(coroutines, Batching(together=TOGETHER)))


def _measure_row(
    predictor: Predictor, row: PromptedItem, reference: Predictor | None, evaluations: int, seed: int
) -> Coroutine[RowMeasurement]:
    masks = {"rows": evaluations, "seed": seed, "name": row.item.key}
    sample = yield from _sampled(predictor, row.item, **masks)
    values, per_token, errors = (part[0] for part in sample.combine())
    cost, without, other = int(sample.seen.cost[0]), None, None
    if row.without_prompt is not None:
        without = yield from _sampled(predictor, row.without_prompt, **masks)
        cost += int(without.seen.cost[0])
    if reference is not None:
        other = yield from _sampled(reference, row.item, **masks)
        cost += int(other.seen.cost[0])
    rival = without if other is None else other
    return RowMeasurement(
        values,
        per_token,
        errors,
        None if without is None else without.combine()[0][0],
        None if other is None else other.combine()[0][0],
        _nll_by_mask_rate(sample),
        None if rival is None else _win_rate(sample, rival),
        cost,
        sample.design,
    )


def _sampled(predictor: Predictor, item: Item, *, rows: int, seed: int, name: int) -> Coroutine[Sample]:
    """Masks by `Tiled`, or all of them if they are few enough."""
    length = item.target.numel()
    few = length <= LONGEST_ENUMERATION and 2**length - 1 <= rows
    design = Enumerate() if few else Tiled()
    layout = design.layout(length, rows)
    begun = Sample.of(
        [item], [name], ItemBatch.of(predictor, [item]), design, layout, control=Request().control, seed=seed
    )
    return (yield from begun.extend(layout.replicates))


def _nll_by_mask_rate(sample: Sample) -> Float64[Tensor, " quarters"]:
    """Means over masks of the mean surprisal of what they hide, by the share that they hide."""
    masked, surprisal = sample.seen.masked[0], sample.seen.surprisal[0]
    count = masked.sum(1)
    group = (count * QUARTERS - 1) // masked.shape[1]
    means = surprisal.sum(1) / count
    return torch.stack([means[group == quarter].mean() for quarter in range(QUARTERS)])


def _win_rate(sample: Sample, rival: Sample) -> float:
    """The share of masks under which the sample is less surprising than its rival."""
    excess = (sample.seen.surprisal[0] - rival.seen.surprisal[0]).sum(1).nan_to_num(nan=0.0)
    return float(((excess < 0) + (excess == 0) / 2).double().mean())


@dataclasses.dataclass(frozen=True)
class AuditJob(ReferenceJob[Scored, RowMeasurement]):
    """Measure every row given its prompt, without it, and under a reference if there is one."""

    command = "audit"
    summary = ScoreSummary

    @property
    def columns(self) -> Columns:
        return {**ESTIMATE_COLUMNS, **AUDIT_COLUMNS, **TOKEN_COLUMNS}

    def load(self) -> None:
        super().load()
        check_masks(self.loaded_model)

    def read(self, row: Entry) -> Scored:
        return row.scored(self.loaded_model, self.reading)

    def measure(self, ready: Sequence[Scored]) -> Sequence[RowMeasurement]:
        rows, evaluations = [PromptedItem.of(self.loaded_model, one.item) for one in ready], self.request.rows
        return measure_rows(
            self.loaded_model, rows, reference=self.loaded_reference, evaluations=evaluations, seed=self.seed
        )

    def record(self, row: Entry, ready: Scored, found: RowMeasurement) -> Record:
        nll = Measured.mean(found.values)
        bits = None if found.impossible else nll.value / math.log(2)
        tokens = ready.item.target.numel()
        return {
            "id": row.id,
            "quantity": "nll",
            "value": None if found.impossible else rounded(nll.value),
            "standard_error": rounded(nll.standard_error),
            **({"impossible": True} if found.impossible else {}),
            "evaluations": found.evaluations,
            "tokens": tokens,
            "bits_per_token": None if bits is None else rounded(bits / tokens),
            **({} if not ready.bytes else {"bits_per_byte": None if bits is None else rounded(bits / ready.bytes)}),
            "bytes": ready.bytes,
            **_fields("explained", difference(found.without_prompt, found.values)),
            **_fields("beyond_reference", difference(found.values, found.under_reference)),
            "win_rate": None if found.win_rate is None else rounded(found.win_rate),
            "nll_by_mask_rate": numbers(found.nll_by_mask_rate.nan_to_num(nan=math.inf)),
            **({"truncated": ready.truncated} if ready.truncated else {}),
            "design": str(found.design),
            "stopped": found.stopped,
            "seed": self.seed,
            **self.model_fields,
            "text": row.texts()[1],
            **token_fields(row, self.loaded_model, ready.item, found.per_token, found.per_token_error),
        }


AUDIT_COLUMNS: Columns = {
    "bytes": "whole",
    "text": "text",
    "explained": "number",
    "explained_error": "number",
    "beyond_reference": "number",
    "beyond_reference_error": "number",
    "win_rate": "number",
    "nll_by_mask_rate": "numbers",
}


def difference(one: Values | None, other: Values | None) -> Measured | None:
    """The mean of one minus another from the same masks; None unless both are there and possible."""
    if one is None or other is None or not bool((one.isfinite() & other.isfinite()).all()):
        return None
    return Measured.mean(one - other)


def _fields(name: str, found: Measured | None) -> dict[str, float]:
    """A number and its error, where there is one."""
    return {} if found is None else {name: rounded(found.value), f"{name}_error": rounded(found.standard_error)}
