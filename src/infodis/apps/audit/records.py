"""The records of a group of rows: which scores they have, and which row belongs to which of another group."""

import collections
import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from infodis.apps.audit.confounds import ScoredText
from infodis.errors import InputError

Record = dict[str, Any]

TAIL = 0.2
"""Of the tokens of a row: the share with the largest credits that makes the tail."""


@dataclasses.dataclass(frozen=True)
class DetectionScore:
    """A number of a row that may tell groups apart, and what it means. High: strange to the model."""

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
    largest = sorted(credits, reverse=True)[: math.ceil(TAIL * len(credits))]
    return math.fsum(largest) / len(largest)


def _quarter(number: int) -> Callable[[Record], float | None]:
    return lambda record: record["nll_by_mask_rate"][number]


def _reference_wins(record: Record) -> float | None:
    return None if record.get("win_rate") is None else 1 - record["win_rate"]


PRIMARY = DetectionScore("nll per token", "Nats per token given the prompt.", _per_token("value"))

SCORES = (
    PRIMARY,
    DetectionScore(
        "nll per byte", "The same per byte of UTF-8: texts that take many tokens are not cheaper for it.", _per_byte
    ),
    DetectionScore(
        "tail", "Mean nll of the fifth of the tokens with the highest nll (in the manner of Min-K %).", _tail
    ),
    DetectionScore(
        "prompt does not help",
        "Nats per token given the prompt minus nats per token without it, from the same masks.",
        _per_token("explained", -1),
    ),
    DetectionScore(
        "beyond the reference",
        "Nats per token under the model minus those under the reference, from the same masks.",
        _per_token("beyond_reference"),
    ),
    DetectionScore(
        "reference wins",
        "Share of masks under which the reference, or the text without its prompt, has the lower nll.",
        _reference_wins,
    ),
    DetectionScore(
        "light masks", "Nats per masked token where at most a quarter of the tokens is masked.", _quarter(0)
    ),
    DetectionScore("heavy masks", "Nats per masked token where more than three quarters are masked.", _quarter(-1)),
)


def available(groups: Iterable[Sequence[Record]]) -> list[DetectionScore]:
    """Scores that all rows of all groups have."""
    rows = [record for group in groups for record in group]
    return [score for score in SCORES if all(score.of(record) is not None for record in rows)]


MOSTLY = 0.9
"""Of the rows of the smaller group: so many must have a partner, or groups are compared as they are, unpaired."""


@dataclasses.dataclass(frozen=True)
class Group:
    """The records of some rows that belong together. Impossible rows have no number, and are only counted."""

    name: str
    records: tuple[Record, ...]
    impossible: int = 0
    rejected: int = 0

    @staticmethod
    def read(name: str, path: Path, *, rejected: int = 0) -> "Group":
        with path.open(encoding="utf-8") as file:
            records = [json.loads(line) for line in file]
        possible = tuple(record for record in records if record["value"] is not None)
        if len(possible) < 2:
            raise InputError(
                f"{name}: at least two rows must be scored, {len(possible)} were ({rejected} rejected, "
                f"{len(records) - len(possible)} impossible)."
            )
        return Group(name, possible, len(records) - len(possible), rejected)

    def texts(self) -> list[ScoredText]:
        return [ScoredText(record.get("prompt", ""), record["text"], record["tokens"]) for record in self.records]

    def prompts(self) -> list[str]:
        return [record.get("prompt", "") for record in self.records]

    def only(self, rows: Sequence[int]) -> "Group":
        return dataclasses.replace(self, records=tuple(self.records[row] for row in rows))


def by_id(a: Group, b: Group) -> tuple[Group, Group]:
    """Rows of one file of which two fields are compared: partners have one id. Rows without partner are left out."""
    return _matched(a, b, [record["id"] for record in a.records], [record["id"] for record in b.records])


def by_prompt(a: Group, b: Group) -> tuple[Group, Group] | None:
    """Rows that share a prompt no other row has, if most have such a partner; None otherwise."""
    return _sharing(a, b, _unique(a.prompts()), _unique(b.prompts()))


def by_text(a: Group, b: Group) -> tuple[Group, Group] | None:
    """The same for rows whose text, without its prompt, is the same."""
    mine, its = (_unique([record["text"] for record in group.records]) for group in (a, b))
    return _sharing(a, b, mine, its)


def _sharing(a: Group, b: Group, mine: list[str | None], its: list[str | None]) -> tuple[Group, Group] | None:
    common = len({key for key in mine if key} & {key for key in its if key})
    if common < max(2, MOSTLY * min(len(a.records), len(b.records))):
        return None
    return _matched(a, b, mine, its)


def clusters(one: Group, other: Group) -> tuple[list[str], list[str]] | None:
    """Names of rows, equal for those that share a prompt; None if none do.

    A prompt that all rows of a group share, such as an instruction, is no reason to take them for one.
    """
    names = tuple(
        [prompt or f"{number} of {place}" for number, prompt in enumerate(group.prompts())]
        for place, group in enumerate((one, other))
    )
    distinct = [len(set(some)) for some in names]
    if min(distinct) < 2 or len({*names[0], *names[1]}) == len(names[0]) + len(names[1]):
        return None
    return names[0], names[1]


def _unique(prompts: Sequence[str]) -> list[str | None]:
    count = collections.Counter(prompts)
    return [prompt if prompt and count[prompt] == 1 else None for prompt in prompts]


def _matched(a: Group, b: Group, mine: Sequence, its: Sequence) -> tuple[Group, Group]:
    places = {key: place for place, key in enumerate(its) if key is not None}
    pairs = [(place, places[key]) for place, key in enumerate(mine) if key is not None and key in places]
    if len(pairs) < 2:
        raise InputError(f"At least two pairs are needed, {len(pairs)} rows of {a.name} have a partner in {b.name}.")
    return a.only([one for one, _ in pairs]), b.only([other for _, other in pairs])
