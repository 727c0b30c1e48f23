"""The rows of a group, looked at: the job that the engine does, and its records."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from infodis.apps.audit.looking import Look, Subject, difference, look, mean_of
from infodis.jobs.inputs import Entry, Scored
from infodis.jobs.jobs import (
    ESTIMATE_COLUMNS,
    TOKEN_COLUMNS,
    ModelSpec,
    RowJob,
    RowScorer,
    numbers,
    rounded,
    token_fields,
)
from infodis.jobs.outputs import Columns
from infodis.jobs.summary import ScoreSummary
from infodis.models.model import Model, check_same_tokens


@dataclasses.dataclass(frozen=True)
class Examine(RowJob):
    """Look at every row, with its prompt, without it, and under a reference if there is one."""

    reference: ModelSpec | None = None

    @property
    def columns(self) -> Columns:
        return {**ESTIMATE_COLUMNS, **LOOK_COLUMNS, **TOKEN_COLUMNS}

    def summary(self) -> ScoreSummary:
        return ScoreSummary()

    def settings(self) -> dict[str, Any]:
        return {"command": "audit", **super().settings()}

    def open(self) -> "Examiner":
        model = self.model.load()
        other = None if self.reference is None else self.reference.load()
        if other is not None:
            check_same_tokens(model, other)
        return Examiner(self, model, other, self.model.fingerprint)


LOOK_COLUMNS: Columns = {
    "bytes": "whole",
    "text": "text",
    "explained": "number",
    "explained_error": "number",
    "beyond_reference": "number",
    "beyond_reference_error": "number",
    "votes": "number",
    "quarters": "numbers",
}


@dataclasses.dataclass(frozen=True, eq=False)
class Examiner(RowScorer[Entry, Scored, Look]):
    """The scorer of `Examine`."""

    job: Examine
    model: Model
    reference: Model | None
    fingerprint: str

    def read(self, row: Entry) -> Scored:
        return row.scored(self.model, self.job.reading)

    def measure(self, ready: Sequence[Scored]) -> Sequence[Look]:
        subjects, rows = [Subject.of(self.model, one.item) for one in ready], self.job.request.rows
        return look(self.model, subjects, reference=self.reference, evaluations=rows, seed=self.job.seed)

    def record(self, row: Entry, ready: Scored, found: Look) -> dict[str, Any]:
        value, error = mean_of(found.values)
        bits = None if found.impossible else value / math.log(2)
        tokens = ready.item.target.numel()
        return {
            "id": row.id,
            "quantity": "nll",
            "value": None if found.impossible else rounded(value),
            "standard_error": rounded(error),
            **({"impossible": True} if found.impossible else {}),
            "evaluations": found.evaluations,
            "tokens": tokens,
            "bits_per_token": None if bits is None else rounded(bits / tokens),
            **({} if not ready.bytes else {"bits_per_byte": None if bits is None else rounded(bits / ready.bytes)}),
            "bytes": ready.bytes,
            **_pair("explained", None if found.without is None else difference(found.without, found.values)),
            **_pair("beyond_reference", difference(found.values, found.reference)),
            "votes": None if found.votes is None else rounded(found.votes),
            "quarters": numbers(found.quarters.nan_to_num(nan=math.inf)),
            **({"truncated": ready.truncated} if ready.truncated else {}),
            "design": str(found.design),
            "stopped": found.stopped,
            "seed": self.job.seed,
            "model": self.fingerprint,
            "text": row.texts()[1],
            **token_fields(row, self.model, ready.item, found.credits, found.credit_errors),
        }


def _pair(name: str, found: tuple[float, float] | None) -> dict[str, float]:
    """A number and its error, where there is one."""
    return {} if found is None else {name: rounded(found[0]), f"{name}_error": rounded(found[1])}
