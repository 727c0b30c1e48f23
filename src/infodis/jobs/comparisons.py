"""The log-likelihood ratio of every row."""

import dataclasses
from collections.abc import Sequence

from infodis.errors import InputError
from infodis.item import Item
from infodis.jobs.inputs import Entry, Scored
from infodis.jobs.job import MODEL_COLUMNS, Record, ReferenceJob, rounded, unknown_fields
from infodis.jobs.outputs import Columns
from infodis.jobs.summary import RatioSummary
from infodis.quantities.ratio import Comparison, Ratio, Side, compare, margin


@dataclasses.dataclass(frozen=True)
class RatioJob(ReferenceJob[list[Scored], Ratio]):
    """Log-likelihood ratios: chosen against rejected, or a model against a reference, or both."""

    command = "ratio"
    summary = RatioSummary

    coupled: bool = True

    @property
    def columns(self) -> Columns:
        return RATIO_COLUMNS

    def read(self, row: Entry) -> list[Scored]:
        if self.reference is not None and not row.has("chosen"):
            return [row.scored(self.loaded_model, self.reading)]
        return row.pair(self.loaded_model, self.reading)

    def measure(self, ready: Sequence[list[Scored]]) -> "Sequence[Ratio | str]":
        found = compare([self._comparison([one.item for one in rows]) for rows in ready])
        return [str(outcome) if isinstance(outcome, InputError) else outcome for outcome in found]

    def _comparison(self, items: list[Item]) -> Comparison:
        other = self.loaded_reference
        if len(items) == 2:
            sides = margin(self.loaded_model, items[0], items[1], reference=other)
        elif other is not None:
            sides = (Side(self.loaded_model, items[0]), Side(other, items[0], -1))
        quantity = "log_ratio" if self.reference is None or len(items) == 1 else "margin"
        return Comparison(sides, self.request, self.coupled, self.seed, quantity)

    def record(self, row: Entry, ready: list[Scored], found: Ratio) -> Record:
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
            **unknown_fields(self.loaded_model, *(one.item for one in ready)),
            "coupled": found.coupled,
            "design": str(found.sides[0].design),
            "stopped": found.stopped,
            "seed": found.seed,
            **self.model_fields,
            **({} if self.reference is None else {"reference": self.reference.fingerprint}),
        }


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
    "unknown": "whole",
    "coupled": "flag",
    "design": "text",
    "stopped": "text",
    "seed": "whole",
    **MODEL_COLUMNS,
    "reference": "text",
}
