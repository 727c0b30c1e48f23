"""What every token of a text costs, and how much every token of its prompt helps."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from infodis.estimate import estimate_items
from infodis.jobs.inputs import Entry, Refused, Scored
from infodis.jobs.job import MODEL_COLUMNS, TOKEN_COLUMNS, Record, RowJob, numbers, rounded, token_fields
from infodis.jobs.outputs import Columns
from infodis.jobs.summary import ScoreSummary
from infodis.quantities.influence import check_influence_budget, influence
from infodis.result import Replicated


@dataclasses.dataclass(frozen=True, eq=False)
class Attributed:
    """What was found about a row."""

    total: Replicated
    """Its nll, or dse_nll."""
    evaluations: int
    credits: Tensor
    errors: Tensor
    prompt: dict[str, Any]
    """What there is to say about the tokens before it, if there are any."""


@dataclasses.dataclass(frozen=True)
class AttributionJob(RowJob[Scored, Attributed]):
    """Credits of the tokens of every row and, after a prompt, the influence of its tokens on each of them.

    A model of blocks and one of noise give credits only: they cannot be asked about a part of a prompt.
    """

    command = "attribute"
    summary = ScoreSummary

    def __post_init__(self) -> None:
        super().__post_init__()
        check_influence_budget(self.request.rows)

    @property
    def columns(self) -> Columns:
        return {**ATTRIBUTION_COLUMNS, **TOKEN_COLUMNS}

    def read(self, row: Entry) -> Scored:
        return row.scored(self.loaded_model, self.reading)

    def measure(self, ready: Sequence[Scored]) -> Sequence[Attributed]:
        return [self._attributed(one) for one in ready]

    def _attributed(self, one: Scored) -> Attributed:
        if one.item.context.numel() and self._hides_prompts:
            return self._influenced(one)
        found = estimate_items(self.loaded_model, [one.item], self.request, seed=self.seed)[0]
        if found.impossible:
            raise Refused(None, "It has probability zero under this model: its tokens have no finite credits.")
        return Attributed(found, found.evaluations, found.per_token, found.per_token_error, {})

    @property
    def _hides_prompts(self) -> bool:
        """Whether a part of a prompt can be summed out: neither blocks nor noise know what that is."""
        return self.loaded_model.blocks is None and self.loaded_model.noise is None

    def _influenced(self, one: Scored) -> Attributed:
        item = one.item
        rows, seed = self.request.evaluations, self.seed
        found = influence(
            self.loaded_model, item.tokens, target=item.target, context=item.context, evaluations=rows, seed=seed
        )
        tokenizer = self.loaded_model.loaded.tokenizer
        before = item.tokens[item.context].tolist()
        prompt = {
            "explained": rounded(found.information.value),
            "explained_error": rounded(found.information.standard_error),
            **({} if tokenizer is None else {"prompt_pieces": tokenizer.pieces(before)}),
            "influence": [numbers(row) for row in found.value],
            "influence_error": [numbers(row) for row in found.standard_error],
        }
        return Attributed(found.nll, found.evaluations, found.per_token, found.per_token_error, prompt)

    def record(self, row: Entry, ready: Scored, found: Attributed) -> Record:
        return {
            "id": row.id,
            "quantity": found.total.quantity,
            "value": rounded(found.total.value),
            "standard_error": rounded(found.total.standard_error),
            "degrees_of_freedom": found.total.degrees_of_freedom,
            "evaluations": found.evaluations,
            "tokens": ready.item.target.numel(),
            "bits_per_token": rounded(found.total.value / math.log(2) / ready.item.target.numel()),
            **({"truncated": ready.truncated} if ready.truncated else {}),
            "stopped": found.total.stopped,
            "seed": self.seed,
            **self.model_fields,
            **token_fields(row, self.loaded_model, ready.item, found.credits, found.errors),
            **found.prompt,
        }


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
    **MODEL_COLUMNS,
    "prompt_pieces": "texts",
    "influence": "table",
    "influence_error": "table",
}
