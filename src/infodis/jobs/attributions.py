"""What every token of a text costs, and how much every token of its prompt helps."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from infodis.estimate import estimate_items
from infodis.jobs.inputs import Entry, Refused, Scored
from infodis.jobs.jobs import TOKEN_COLUMNS, RowJob, RowScorer, numbers, rounded, token_fields
from infodis.jobs.outputs import Columns
from infodis.jobs.summary import ScoreSummary
from infodis.models.model import Model
from infodis.quantities.influence import check_influence_budget, influence
from infodis.result import Replicated


@dataclasses.dataclass(frozen=True)
class Attribute(RowJob):
    """Credits of the tokens of every row and, after a prompt, the influence of its tokens on each of them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_influence_budget(self.request.rows)

    @property
    def columns(self) -> Columns:
        return {**ATTRIBUTION_COLUMNS, **TOKEN_COLUMNS}

    def summary(self) -> ScoreSummary:
        return ScoreSummary()

    def settings(self) -> dict[str, Any]:
        return {"command": "attribute", **super().settings()}

    def open(self) -> "Attributions":
        return Attributions(self, self.model.load(), self.model.fingerprint)


ATTRIBUTION_COLUMNS: Columns = {
    "id": "text",
    "quantity": "text",
    "value": "number",
    "standard_error": "number",
    "degrees_of_freedom": "whole",
    "evaluations": "whole",
    "tokens": "whole",
    "bits_per_token": "number",
    "explained": "number",
    "explained_error": "number",
    "truncated": "whole",
    "stopped": "text",
    "seed": "whole",
    "model": "text",
    "prompt_pieces": "texts",
    "influence": "table",
    "influence_error": "table",
}


@dataclasses.dataclass(frozen=True, eq=False)
class Attributed:
    """What was found about a row."""

    value: float
    standard_error: float
    degrees_of_freedom: int
    evaluations: int
    stopped: str
    credits: Tensor
    errors: Tensor
    prompt: dict[str, Any]
    """What there is to say about the tokens before it, if there are any."""


@dataclasses.dataclass(frozen=True, eq=False)
class Attributions(RowScorer[Entry, Scored, Attributed]):
    """The scorer of `Attribute`."""

    job: Attribute
    model: Model
    fingerprint: str

    def read(self, row: Entry) -> Scored:
        return row.scored(self.model, self.job.reading)

    def measure(self, ready: Sequence[Scored]) -> Sequence[Attributed]:
        return [self._attributed(one) for one in ready]

    def _attributed(self, one: Scored) -> Attributed:
        if one.item.context.numel():
            return self._influenced(one)
        found = estimate_items(self.model, [one.item], self.job.request, seed=self.job.seed)[0]
        if found.impossible:
            raise Refused(None, "It has probability zero under this model: its tokens have no finite credits.")
        credits = found.per_token, found.per_token_error
        return _attributed(found, found.evaluations, credits, {})

    def _influenced(self, one: Scored) -> Attributed:
        item = one.item
        rows, seed = self.job.request.evaluations, self.job.seed
        found = influence(
            self.model, item.tokens, target=item.target, context=item.context, evaluations=rows, seed=seed
        )
        total = found.nll
        tokenizer = self.model.loaded.tokenizer
        before = item.tokens[item.context].tolist()
        prompt = {
            "explained": rounded(found.information.value),
            "explained_error": rounded(found.information.standard_error),
            **({} if tokenizer is None else {"prompt_pieces": tokenizer.pieces(before)}),
            "influence": [numbers(row) for row in found.value],
            "influence_error": [numbers(row) for row in found.standard_error],
        }
        credits = found.per_token, found.per_token_error
        return _attributed(total, found.evaluations, credits, prompt)

    def record(self, row: Entry, ready: Scored, found: Attributed) -> dict[str, Any]:
        return {
            "id": row.id,
            "quantity": "nll",
            "value": rounded(found.value),
            "standard_error": rounded(found.standard_error),
            "degrees_of_freedom": found.degrees_of_freedom,
            "evaluations": found.evaluations,
            "tokens": ready.item.target.numel(),
            "bits_per_token": rounded(found.value / math.log(2) / ready.item.target.numel()),
            **({"truncated": ready.truncated} if ready.truncated else {}),
            "stopped": found.stopped,
            "seed": self.job.seed,
            "model": self.fingerprint,
            **token_fields(row, self.model, ready.item, found.credits, found.errors),
            **found.prompt,
        }


def _attributed(
    total: Replicated, evaluations: int, credits: tuple[Tensor, Tensor], prompt: dict[str, Any]
) -> Attributed:
    return Attributed(
        total.value, total.standard_error, total.degrees_of_freedom, evaluations, total.stopped, *credits, prompt
    )
