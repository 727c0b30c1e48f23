"""Which sentence of every minimal pair a model finds likelier."""

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

from infodis.jobs.inputs import Entry, Reading, Scored
from infodis.jobs.job import (
    MODEL_COLUMNS,
    TYPICAL_TOKENS,
    Job,
    Record,
    check_normalisation,
    rounded,
    sizes_for,
    unknown_fields,
)
from infodis.jobs.outputs import Columns
from infodis.jobs.summary import PairSummary
from infodis.quantities.accuracy import PAIR_SCORES, PairRequest, PairScore, PairScores, SentencePair


class ReadPair(NamedTuple):
    """The sentences of a row, ready for the model, and what they test."""

    sentences: list[Scored]
    pair: SentencePair
    phenomenon: str | None


@dataclasses.dataclass(frozen=True)
class PairJob(Job[Entry, ReadPair, PairScores]):
    """Judges minimal pairs by a race of likelihoods and by pseudo-log-likelihoods."""

    command = "pairs"
    summary = PairSummary

    reading: Reading = Reading()
    asked: PairRequest = PairRequest()
    normalise: str = "none"
    labelled: bool = False
    """Whether every row must say what it tests."""

    def __post_init__(self) -> None:
        check_normalisation(self.normalise)

    @property
    def columns(self) -> Columns:
        return PAIR_COLUMNS

    @property
    def passes_per_row(self) -> float:
        return self.asked.passes(TYPICAL_TOKENS)

    def load(self) -> None:
        super().load()
        self.asked.check_predictor(self.loaded_model)

    def read(self, row: Entry) -> ReadPair:
        good, bad = row.sentences(self.loaded_model, self.reading)
        sizes = sizes_for(self.normalise, "sentence_good", [good, bad])
        pair = SentencePair(good.item, bad.item, (sizes[0], sizes[1]))
        return ReadPair([good, bad], pair, row.phenomenon(must=self.labelled))

    def measure(self, ready: Sequence[ReadPair]) -> Sequence[PairScores]:
        return self.asked.measure(self.loaded_model, [one.pair for one in ready])

    def record(self, row: Entry, ready: ReadPair, found: PairScores) -> Record:
        good, bad = row.sentence_texts()
        race = found.by_name.get("nll")
        return {
            "id": row.id,
            "quantity": "pair",
            **({} if good is None else {"good": good}),
            **({} if bad is None else {"bad": bad}),
            **({} if ready.phenomenon is None else {"phenomenon": ready.phenomenon}),
            **{
                name: value for score, one in found.by_name.items() for name, value in _score_fields(score, one).items()
            },
            "standard_error": 0.0 if race is None else rounded(race.standard_error),
            **({} if race is None else _race_fields(race)),
            "tokens": [item.target.numel() for item in ready.pair.items],
            **unknown_fields(self.loaded_model, *ready.pair.items),
            "evaluations": found.evaluations,
            **({} if race is None else {"alpha": self.asked.race.alpha}),
            "seed": self.asked.seed,
            **self.model_fields,
        }


def _score_fields(name: str, found: PairScore) -> Record:
    return {
        f"{name}_right": found.right,
        f"{name}_margin": _finite(found.margin),
        name: [_finite(nats) for nats in found.nats],
    }


def _race_fields(race: PairScore) -> Record:
    return {
        "degrees_of_freedom": race.degrees_of_freedom,
        "p_value": rounded(race.p_value),
        "decided": race.decided,
    }


def _finite(value: float) -> float | None:
    """As records hold it: null for what is infinite."""
    return rounded(value) + 0.0 if math.isfinite(value) else None  # no minus zero


PAIR_COLUMNS: Columns = {
    "id": "text",
    "quantity": "text",
    "good": "text",
    "bad": "text",
    "phenomenon": "text",
    **{f"{name}_right": "flag" for name in PAIR_SCORES},
    **{f"{name}_margin": "number" for name in PAIR_SCORES},
    **dict.fromkeys(PAIR_SCORES, "numbers"),
    "standard_error": "number",
    "degrees_of_freedom": "whole",
    "p_value": "number",
    "decided": "flag",
    "tokens": "wholes",
    "unknown": "whole",
    "evaluations": "whole",
    "alpha": "number",
    "seed": "whole",
    **MODEL_COLUMNS,
}
