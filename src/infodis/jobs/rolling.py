"""The likelihood of every window of some documents."""

import dataclasses
from collections.abc import Sequence

from infodis.estimate import Request, estimate_items
from infodis.jobs.documents import Window
from infodis.jobs.job import ESTIMATE_COLUMNS, TYPICAL_TOKENS, Job, Record, estimate_fields, rounded, unknown_fields
from infodis.jobs.outputs import Columns
from infodis.jobs.summary import PerplexitySummary
from infodis.result import Estimate
from infodis.rng import key


@dataclasses.dataclass(frozen=True)
class PerplexityJob(Job[Window, Window, Estimate]):
    """`nll` of windows of documents."""

    command = "perplexity"
    summary = PerplexitySummary

    request: Request
    seed: int = 0

    def __post_init__(self) -> None:
        self.request.check_budget()

    @property
    def columns(self) -> Columns:
        return {"id": "text", "window": "whole", **ESTIMATE_COLUMNS, "bytes": "number"}

    @property
    def passes_per_row(self) -> float:
        return float(self.request.first_rows(TYPICAL_TOKENS))

    def read(self, row: Window) -> Window:
        return row

    def measure(self, ready: Sequence[Window]) -> Sequence[Estimate]:
        # windows are named by their place: equal ones must not share their masks, or their errors would add up
        names = [key("window", one.id, one.number) for one in ready]
        items = [one.item for one in ready]
        return estimate_items(self.loaded_model, items, self.request, seed=self.seed, names=names)

    def record(self, row: Window, ready: Window, found: Estimate) -> Record:
        return {
            "id": row.id,
            "window": row.number,
            **estimate_fields(found, row.bytes),
            **unknown_fields(self.loaded_model, row.item),
            "bytes": rounded(row.bytes),
            "seed": self.seed,
            **self.model_fields,
        }
