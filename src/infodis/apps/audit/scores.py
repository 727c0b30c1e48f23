"""Numbers that may tell groups apart, read off the records of `Examine`. High always means: strange to the model."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

Record = dict[str, Any]

TAIL = 0.2
"""Of the tokens of a row: the share with the largest credits that makes the tail."""


@dataclasses.dataclass(frozen=True)
class Score:
    """A number of a row, and what it means."""

    name: str
    about: str
    of: Callable[[Record], float | None] = dataclasses.field(repr=False, compare=False)


def _per_token(name: str, sign: int = 1) -> Callable[[Record], float | None]:
    return lambda record: None if record.get(name) is None else sign * record[name] / record["tokens"]


def _per_byte(record: Record) -> float | None:
    return None if record["value"] is None or not record.get("bytes") else record["value"] / record["bytes"]


def _tail(record: Record) -> float | None:
    credits = record["per_token"]
    if any(credit is None for credit in credits):
        return None
    dearest = sorted(credits, reverse=True)[: math.ceil(TAIL * len(credits))]
    return math.fsum(dearest) / len(dearest)


def _quarter(number: int) -> Callable[[Record], float | None]:
    return lambda record: record["quarters"][number]


def _outvoted(record: Record) -> float | None:
    return None if record.get("votes") is None else 1 - record["votes"]


PRIMARY = Score("nll per token", "Nats per token given the prompt.", _per_token("value"))

SCORES = (
    PRIMARY,
    Score("nll per byte", "The same per byte of UTF-8: texts that take many tokens are not cheaper for it.", _per_byte),
    Score("tail", "Mean credit of the fifth of the tokens that cost most (in the manner of Min-K %).", _tail),
    Score(
        "prompt does not help",
        "Nats per token given the prompt minus nats per token without it, from the same masks.",
        _per_token("explained", -1),
    ),
    Score(
        "beyond the reference",
        "Nats per token under the model minus those under the reference, from the same masks.",
        _per_token("beyond_reference"),
    ),
    Score("outvoted", "Share of masks under which the reference (or no prompt) does better.", _outvoted),
    Score("light masks", "Nats per masked token where at most a quarter of the tokens is masked.", _quarter(0)),
    Score("heavy masks", "Nats per masked token where more than three quarters are masked.", _quarter(-1)),
)


def available(groups: Iterable[Sequence[Record]]) -> list[Score]:
    """Scores that all rows of all groups have."""
    rows = [record for group in groups for record in group]
    return [score for score in SCORES if all(score.of(record) is not None for record in rows)]
