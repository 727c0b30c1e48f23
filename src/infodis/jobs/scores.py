"""The likelihood of every row."""

import dataclasses
from collections.abc import Sequence

from infodis.estimate import estimate_items
from infodis.jobs.inputs import Entry, Scored
from infodis.jobs.job import ESTIMATE_COLUMNS, TOKEN_COLUMNS, Record, RowJob, estimate_fields, token_fields
from infodis.jobs.outputs import Columns
from infodis.jobs.summary import ScoreSummary
from infodis.result import Estimate


@dataclasses.dataclass(frozen=True)
class ScoreJob(RowJob[Scored, Estimate]):
    """`nll` of every row."""

    command = "score"
    summary = ScoreSummary

    per_token: bool = False

    @property
    def columns(self) -> Columns:
        return {**ESTIMATE_COLUMNS, **(TOKEN_COLUMNS if self.per_token else {})}

    def read(self, row: Entry) -> Scored:
        return row.scored(self.loaded_model, self.reading)

    def measure(self, ready: Sequence[Scored]) -> Sequence[Estimate]:
        return estimate_items(self.loaded_model, [one.item for one in ready], self.request, seed=self.seed)

    def record(self, row: Entry, ready: Scored, found: Estimate) -> Record:
        more = {}
        if self.per_token:
            more = token_fields(row, self.loaded_model, ready.item, found.per_token, found.per_token_error)
        return {
            "id": row.id,
            **estimate_fields(found, ready.bytes),
            **({"truncated": ready.truncated} if ready.truncated else {}),
            "seed": self.seed,
            "model": self.model.fingerprint,
            **more,
        }
