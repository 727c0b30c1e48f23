"""The likelihood of every window of some documents."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from infodis.estimate import Request, estimate_items
from infodis.jobs.documents import Window
from infodis.jobs.jobs import ESTIMATE_COLUMNS, ModelSpec, RowScorer, estimate_fields, rounded
from infodis.jobs.outputs import Columns
from infodis.jobs.summary import PerplexitySummary
from infodis.models.model import Model
from infodis.result import Estimate
from infodis.rng import key
from infodis.settings import settings_of


@dataclasses.dataclass(frozen=True)
class Rolling:
    """`nll` of windows of documents."""

    model: ModelSpec
    request: Request
    seed: int = 0

    def __post_init__(self) -> None:
        self.request.check_budget()

    @property
    def columns(self) -> Columns:
        return {"id": "text", "window": "whole", **ESTIMATE_COLUMNS, "bytes": "number"}

    def summary(self) -> PerplexitySummary:
        return PerplexitySummary()

    def settings(self) -> dict[str, Any]:
        return {"command": "perplexity", **settings_of(self)}

    def open(self) -> "Rolled":
        return Rolled(self, self.model.load(), self.model.fingerprint)


@dataclasses.dataclass(frozen=True, eq=False)
class Rolled(RowScorer[Window, Window, Estimate]):
    """The scorer of `Rolling`."""

    job: Rolling
    model: Model
    fingerprint: str

    def read(self, row: Window) -> Window:
        return row

    def measure(self, ready: Sequence[Window]) -> Sequence[Estimate]:
        # windows are named by their place: equal ones must not share their masks, or their errors would add up
        names = [key("window", one.id, one.number) for one in ready]
        items = [one.item for one in ready]
        return estimate_items(self.model, items, self.job.request, seed=self.job.seed, names=names)

    def record(self, row: Window, ready: Window, found: Estimate) -> dict[str, Any]:
        return {
            "id": row.id,
            "window": row.number,
            **estimate_fields(found, row.bytes),
            "bytes": rounded(row.bytes),
            "seed": self.job.seed,
            "model": self.fingerprint,
        }
