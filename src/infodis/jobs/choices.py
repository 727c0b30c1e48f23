"""Multiple choice, question by question."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from infodis.errors import InputError
from infodis.evaluate import Batching, run_batched
from infodis.jobs.inputs import Choices, Entry, Reading, Refused, Scored
from infodis.jobs.job import Job, Record, rounded
from infodis.jobs.outputs import Columns
from infodis.jobs.summary import ChoiceSummary
from infodis.quantities.choose import Race, Verdict, race_coroutine
from infodis.rng import key

NORMALISATIONS = ("none", "token", "byte")


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
        if self.normalise not in NORMALISATIONS:
            raise InputError(f"normalise is none, token or byte, got {self.normalise!r}.")
        self.race.each(2)  # a budget that pays for no choice of more than one token is refused before the work

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
            "evaluations": "whole",
            "alpha": "number",
            "seed": "whole",
            "model": "text",
        }

    @property
    def passes_per_row(self) -> float:
        """Of all its choices, of which most drop out early."""
        return float(self.race.evaluations)

    def read(self, row: Entry) -> Choices:
        found = row.choices(self.loaded_model, self.reading)
        if self.normalise == "byte" and any(one.bytes is None for one in found.rows):
            raise Refused("choices", "Bytes are not known of tokens, or of texts that were cut: normalise by token.")
        return found

    def measure(self, ready: Sequence[Choices]) -> list[Verdict]:
        races = (self._race([one.item for one in question.rows], self._sizes(question.rows)) for question in ready)
        return list(run_batched(races, Batching()))

    def _race(self, items: list, sizes: list[float]) -> Any:
        name = key(*sorted(item.key for item in items))
        return race_coroutine(self.loaded_model, items, sizes, self.race, seed=self.seed, name=name)

    def _sizes(self, rows: Sequence[Scored]) -> list[float]:
        if self.normalise == "token":
            return [float(one.item.target.numel()) for one in rows]
        if self.normalise == "byte":
            return [float(one.bytes or 1) for one in rows]
        return [1.0] * len(rows)

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
            "evaluations": found.evaluations,
            "alpha": found.alpha,
            "seed": found.seed,
            "model": self.model.fingerprint,
        }
