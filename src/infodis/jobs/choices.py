"""Multiple choice, question by question."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from infodis.estimate import check_masks
from infodis.evaluate import Batching, run_batched
from infodis.jobs.inputs import Choices, Entry, Reading, Scored
from infodis.jobs.job import MODEL_COLUMNS, Job, Record, check_normalisation, rounded, sizes_for, unknown_fields
from infodis.jobs.outputs import Columns
from infodis.jobs.summary import ChoiceSummary
from infodis.quantities.choose import Race, Verdict, race_coroutine
from infodis.rng import key


@dataclasses.dataclass(frozen=True)
class ChoiceJob(Job[Entry, Choices, Verdict]):
    """The likeliest choice of every row, as a race."""

    command = "choose"
    summary = ChoiceSummary

    reading: Reading = Reading()
    seed: int = 0
    race: Race = Race()
    normalise: str = "none"

    def __post_init__(self) -> None:
        check_normalisation(self.normalise)
        self.race.drawn(2, ())  # a budget that pays for no choice of more than one token is refused before the work

    @property
    def columns(self) -> Columns:
        return {
            "id": "text",
            "quantity": "text",
            "choice": "whole",
            "decided": "flag",
            "answer": "whole",
            "margin": "number",
            "standard_error": "number",
            "ranking": "wholes",
            "nll": "numbers",
            "nll_standard_error": "numbers",
            "sizes": "numbers",
            "unknown": "whole",
            "evaluations": "whole",
            "alpha": "number",
            "seed": "whole",
            **MODEL_COLUMNS,
        }

    @property
    def passes_per_row(self) -> float:
        """Of all its choices, of which most drop out early."""
        return float(self.race.evaluations)

    def load(self) -> None:
        super().load()
        check_masks(self.loaded_model)

    def read(self, row: Entry) -> Choices:
        found = row.choices(self.loaded_model, self.reading)
        self._sizes(found.rows)  # refuses those that are not known
        return found

    def measure(self, ready: Sequence[Choices]) -> list[Verdict]:
        races = (self._race([one.item for one in question.rows], self._sizes(question.rows)) for question in ready)
        return list(run_batched(races, Batching()))

    def _race(self, items: list, sizes: list[float]) -> Any:
        name = key(*sorted(item.key for item in items))
        return race_coroutine(self.loaded_model, items, sizes, self.race, seed=self.seed, name=name)

    def _sizes(self, rows: Sequence[Scored]) -> list[float]:
        return sizes_for(self.normalise, "choices", rows)

    def record(self, row: Entry, ready: Choices, found: Verdict) -> Record:
        told = found.record()
        return {
            "id": row.id,
            "quantity": "choice",
            "choice": found.leader,
            "decided": found.decided,
            **({} if ready.answer is None else {"answer": ready.answer}),
            "margin": None if told["margin"] is None else rounded(told["margin"]),
            "standard_error": None if found.standard_error is None else rounded(found.standard_error),
            "ranking": told["ranking"],
            "nll": [None if one["nats"] is None else rounded(one["nats"]) for one in told["choices"]],
            "nll_standard_error": [rounded(one.standard_error) for one in found.choices],
            "sizes": [one.size for one in found.choices],
            **unknown_fields(self.loaded_model, *(one.item for one in ready.rows)),
            "evaluations": found.evaluations,
            "alpha": found.alpha,
            "seed": found.seed,
            **self.model_fields,
        }
