"""The likelihood of every row."""

import dataclasses
from collections.abc import Sequence

from infodis.catalog import quantity_for
from infodis.jobs.inputs import Entry, Scored
from infodis.jobs.job import (
    ESTIMATE_COLUMNS,
    TOKEN_COLUMNS,
    TYPICAL_TOKENS,
    Record,
    RowJob,
    estimate_fields,
    token_fields,
    unknown_fields,
)
from infodis.jobs.outputs import Columns
from infodis.jobs.summary import ScoreSummary
from infodis.quantities.quantity import Nll, Quantity
from infodis.result import Estimate


@dataclasses.dataclass(frozen=True)
class ScoreJob(RowJob[Scored, Estimate]):
    """`nll`, or another quantity, of every row."""

    command = "score"
    summary = ScoreSummary

    per_token: bool = False
    quantity: Quantity | None = None
    """None leaves it to the model."""

    def __post_init__(self) -> None:
        self._expected.check_request(self.request)

    @property
    def _expected(self) -> Quantity:
        """Before the model is there to be asked."""
        return Nll() if self.quantity is None else self.quantity

    @property
    def passes_per_row(self) -> float:
        return self._expected.passes(self.request, TYPICAL_TOKENS)

    @property
    def columns(self) -> Columns:
        return {**ESTIMATE_COLUMNS, **(TOKEN_COLUMNS if self.per_token else {})}

    def read(self, row: Entry) -> Scored:
        return row.scored(self.loaded_model, self.reading)

    def measure(self, ready: Sequence[Scored]) -> Sequence[Estimate]:
        quantity = quantity_for(self.loaded_model, self.quantity)
        return quantity.measure(self.loaded_model, [one.item for one in ready], self.request, seed=self.seed)

    def record(self, row: Entry, ready: Scored, found: Estimate) -> Record:
        more = {}
        if self.per_token:
            more = token_fields(row, self.loaded_model, ready.item, found.per_token, found.per_token_error)
        return {
            "id": row.id,
            **estimate_fields(found, ready.bytes),
            **unknown_fields(self.loaded_model, ready.item),
            **({"truncated": ready.truncated} if ready.truncated else {}),
            "seed": self.seed,
            **self.model_fields,
            **more,
        }
