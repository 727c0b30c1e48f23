"""Rows that cannot be scored: where they are, what is wrong, and as little of them as helps to find them."""

import dataclasses
import json
from typing import Any

from infodis.errors import InputError
from infodis.terminal import printable

EXCERPT, REASON = 80, 400
"""Characters kept of a rejected row, and of the reason."""


class Refused(InputError):
    """A row breaks a rule. Says which field is at fault; whoever reads many rows rejects this one and goes on."""

    def __init__(self, field: str | None, reason: str) -> None:
        super().__init__(reason)
        self.field = field


@dataclasses.dataclass(frozen=True)
class Rejected:
    """A row that is not scored. Its texts are safe to print and to write, whatever the row held."""

    line: int
    id: int | str | None
    """None if it has none, or none that can be read."""
    field: str | None
    """None if the whole row is at fault."""
    reason: str
    excerpt: str = ""
    """How the row, or the field at fault, begins."""

    def __post_init__(self) -> None:
        field = None if self.field is None else printable(self.field, EXCERPT)
        for name, value in (
            ("field", field),
            ("reason", printable(self.reason, REASON)),
            ("excerpt", printable(self.excerpt, EXCERPT)),
        ):
            object.__setattr__(self, name, value)

    def record(self) -> dict[str, Any]:
        """As a JSON object; `Rejected(**record)` makes it again."""
        return dataclasses.asdict(self)


def beginning(data: bytes) -> str:
    """How some bytes begin, as text; what is not UTF-8 is escaped."""
    return data[: 8 * EXCERPT].decode("utf-8", "backslashreplace").strip()[:EXCERPT]


def excerpt_of(value: Any) -> str:
    """How a value of a row begins."""
    if isinstance(value, str):
        return value[: EXCERPT + 1]
    try:
        return json.dumps(value, default=str)[: EXCERPT + 1]
    except (RecursionError, ValueError):  # nested too deeply, or a number with too many digits
        return ""


def kind_of(value: Any) -> str:
    """What a value of a row is, for messages."""
    if value is None:
        return "null"
    kinds = {
        bool: "true or false",
        int: "a number",
        float: "a number",
        str: "a text",
        list: "a list",
        dict: "an object",
    }
    return kinds.get(type(value), f"of type {type(value).__name__}")
