"""What a report is made of: plain values, checked when they are made, that know nothing of HTML."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from infodis.errors import InputError
from infodis.figures import Figure

Cell = str | float | None


@dataclasses.dataclass(frozen=True)
class ReportFinding:
    """A sentence in plain language; a warning is shown first."""

    text: str
    warning: bool = False


@dataclasses.dataclass(frozen=True)
class ReportTable:
    """A few statistics. Numbers are shown to four digits."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    caption: str = ""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise InputError(f"A row of table {self.title!r} has {len(self.columns)} cells, got {len(row)}.")


@dataclasses.dataclass(frozen=True)
class Tokens:
    """What each token of a row costs, in nats; None where it is impossible. Errors are standard errors."""

    pieces: tuple[str, ...]
    nats: tuple[float | None, ...]
    errors: tuple[float | None, ...] | None = None

    def __post_init__(self) -> None:
        lengths = {len(self.pieces), len(self.nats), len(self.pieces if self.errors is None else self.errors)}
        if len(lengths) > 1:
            raise InputError(f"Pieces, nats and errors of tokens go together, got lengths {sorted(lengths)}.")


@dataclasses.dataclass(frozen=True)
class ReportRow:
    """A text that was scored. `values` holds a number for each column that it has one for."""

    id: int | str
    group: str | None
    prompt: str
    tokens: Tokens | None
    text: str
    values: Mapping[str, float | None]


@dataclasses.dataclass(frozen=True)
class Column:
    """A number of every row; `about` explains it in a sentence."""

    name: str
    title: str
    about: str = ""
    digits: int = 3


@dataclasses.dataclass(frozen=True)
class Threshold:
    """Rows at or beyond a value of `column` are called `positive`: at or above it, or at or below it."""

    column: str
    negative: str
    positive: str
    above: bool
    start: float


@dataclasses.dataclass(frozen=True)
class Report:
    """All that a page shows, in its order."""

    title: str
    about: str = ""
    findings: tuple[ReportFinding, ...] = ()
    tables: tuple[ReportTable, ...] = ()
    figures: tuple[Figure, ...] = ()
    columns: tuple[Column, ...] = ()
    rows: tuple[ReportRow, ...] = ()
    threshold: Threshold | None = None
    provenance: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_distinct("figure", [figure.name for figure in self.figures])
        _check_distinct("column", [column.name for column in self.columns])
        known = {column.name for column in self.columns}
        if self.threshold is not None and self.threshold.column not in known:
            raise InputError(f"A threshold is on one of the columns {sorted(known)}, got {self.threshold.column!r}.")

    @property
    def groups(self) -> tuple[str, ...]:
        """Groups in the order of their colours: the threshold's two, then others as they come."""
        named = () if self.threshold is None else (self.threshold.negative, self.threshold.positive)
        found = (row.group for row in self.rows if row.group is not None)
        return tuple(dict.fromkeys((*named, *found)))


def _check_distinct(kind: str, names: list[str]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(f"Every {kind} has a name of its own, got {twice[0]!r} twice.")
