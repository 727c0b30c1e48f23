"""What a check found, and what all of them found about a model."""

import dataclasses
from collections.abc import Iterator
from typing import Literal, get_args

from infodis import notebook

Verdict = Literal["ok", "wrong", "cannot tell", "left out"]
GIVE_TEXT = "Give text of the kind it was trained on: --text FILE."


@dataclasses.dataclass(frozen=True)
class CheckResult:
    """What a check found."""

    verdict: Verdict
    detail: str
    hint: str = ""
    """What to do if it is wrong, or not known."""
    check: str = ""
    """Its name."""


@dataclasses.dataclass(frozen=True)
class CheckResults:
    """What all checks found about a model."""

    model: str
    results: tuple[CheckResult, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return all(one.verdict != "wrong" for one in self.results)

    def __iter__(self) -> Iterator[CheckResult]:
        return iter(self.results)

    def __repr__(self) -> str:
        counts = (f"{sum(one.verdict == verdict for one in self.results)} {verdict}" for verdict in get_args(Verdict))
        return f"CheckResults({self.model}: {', '.join(counts)})"

    def _repr_html_(self) -> str:
        rows = [
            (
                notebook.text(one.check),
                f"<b>{one.verdict}</b>" if one.verdict == "wrong" else one.verdict,
                notebook.text(one.detail if one.verdict == "ok" else f"{one.detail} {one.hint}", 500),
            )
            for one in self.results
        ]
        return notebook.table(("check", "verdict", "what was found"), rows, caption=f"Is {self.model} wired right?")
