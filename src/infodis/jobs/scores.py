"""The likelihood of every row."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from infodis.estimate import estimate_items
from infodis.jobs.inputs import Entry, Scored
from infodis.jobs.jobs import ESTIMATE_COLUMNS, TOKEN_COLUMNS, RowJob, RowScorer, estimate_fields, token_fields
from infodis.jobs.outputs import Columns
from infodis.jobs.summary import ScoreSummary
from infodis.models.model import Model
from infodis.result import Estimate


@dataclasses.dataclass(frozen=True)
class Score(RowJob):
    """`nll` of every row."""

    per_token: bool = False

    @property
    def columns(self) -> Columns:
        return {**ESTIMATE_COLUMNS, **(TOKEN_COLUMNS if self.per_token else {})}

    def summary(self) -> ScoreSummary:
        return ScoreSummary()

    def settings(self) -> dict[str, Any]:
        return {"command": "score", **super().settings()}

    def open(self) -> "Scores":
        return Scores(self, self.model.load(), self.model.fingerprint)


@dataclasses.dataclass(frozen=True, eq=False)
class Scores(RowScorer[Entry, Scored, Estimate]):
    """The scorer of `Score`."""

    job: Score
    model: Model
    fingerprint: str

    def read(self, row: Entry) -> Scored:
        return row.scored(self.model, self.job.reading)

    def measure(self, ready: Sequence[Scored]) -> Sequence[Estimate]:
        return estimate_items(self.model, [one.item for one in ready], self.job.request, seed=self.job.seed)

    def record(self, row: Entry, ready: Scored, found: Estimate) -> dict[str, Any]:
        more = {}
        if self.job.per_token:
            more = token_fields(row, self.model, ready.item, found.per_token, found.per_token_error)
        return {
            "id": row.id,
            **estimate_fields(found, ready.bytes),
            **({"truncated": ready.truncated} if ready.truncated else {}),
            "seed": self.job.seed,
            "model": self.fingerprint,
            **more,
        }
