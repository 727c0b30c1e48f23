"""The log-likelihood ratio of every row."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from infodis.errors import InputError
from infodis.item import Item
from infodis.jobs.inputs import Entry, Scored
from infodis.jobs.jobs import ModelSpec, RowJob, RowScorer, rounded
from infodis.jobs.outputs import Columns
from infodis.jobs.summary import RatioSummary
from infodis.models.model import Model, check_same_tokens
from infodis.quantities.ratio import Comparison, Ratio, Side, compare, margin


@dataclasses.dataclass(frozen=True)
class Compare(RowJob):
    """Log-likelihood ratios: chosen against rejected, or a model against a reference, or both."""

    reference: ModelSpec | None = None
    coupled: bool = True

    @property
    def columns(self) -> Columns:
        return RATIO_COLUMNS

    def summary(self) -> RatioSummary:
        return RatioSummary()

    def settings(self) -> dict[str, Any]:
        return {"command": "ratio", **super().settings()}

    def open(self) -> "Comparisons":
        model = self.model.load()
        other = None if self.reference is None else self.reference.load()
        if other is not None:
            check_same_tokens(model, other)
        reference = None if self.reference is None else self.reference.fingerprint
        return Comparisons(self, model, other, self.model.fingerprint, reference)


RATIO_COLUMNS: Columns = {
    "id": "text",
    "quantity": "text",
    "value": "number",
    "standard_error": "number",
    "degrees_of_freedom": "whole",
    "impossible": "flag",
    "evaluations": "whole",
    "nll": "numbers",
    "nll_standard_error": "numbers",
    "tokens": "wholes",
    "coupled": "flag",
    "design": "text",
    "stopped": "text",
    "seed": "whole",
    "model": "text",
    "reference": "text",
}


@dataclasses.dataclass(frozen=True, eq=False)
class Comparisons(RowScorer[Entry, list[Scored], Ratio]):
    """The scorer of `Compare`."""

    job: Compare
    model: Model
    reference: Model | None
    fingerprint: str
    reference_fingerprint: str | None

    def read(self, row: Entry) -> list[Scored]:
        if self.reference is not None and not row.has("chosen"):
            return [row.scored(self.model, self.job.reading)]
        return row.pair(self.model, self.job.reading)

    def measure(self, ready: Sequence[list[Scored]]) -> "Sequence[Ratio | str]":
        found = compare([self._comparison([one.item for one in rows]) for rows in ready])
        return [str(outcome) if isinstance(outcome, InputError) else outcome for outcome in found]

    def _comparison(self, items: list[Item]) -> Comparison:
        job = self.job
        if len(items) == 2:
            sides = margin(self.model, items[0], items[1], reference=self.reference)
        elif self.reference is not None:
            sides = (Side(self.model, items[0]), Side(self.reference, items[0], -1))
        quantity = "log_ratio" if self.reference is None or len(items) == 1 else "margin"
        return Comparison(sides, job.request, job.coupled, job.seed, quantity)

    def record(self, row: Entry, ready: list[Scored], found: Ratio) -> dict[str, Any]:
        return {
            "id": row.id,
            "quantity": found.quantity,
            "value": None if found.impossible else rounded(found.value),
            "standard_error": rounded(found.standard_error),
            "degrees_of_freedom": found.degrees_of_freedom,
            **({"impossible": True} if found.impossible else {}),
            "evaluations": found.evaluations,
            "nll": [None if side.impossible else rounded(side.value) for side in found.sides],
            "nll_standard_error": [rounded(side.standard_error) for side in found.sides],
            "tokens": [side.target.numel() for side in found.sides],
            "coupled": found.coupled,
            "design": str(found.sides[0].design),
            "stopped": found.stopped,
            "seed": found.seed,
            "model": self.fingerprint,
            **({} if self.reference is None else {"reference": self.reference_fingerprint}),
        }
