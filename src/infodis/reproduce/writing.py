"""Outcomes as files: numbers, figures, a page for each experiment, and one document for all of them."""

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from infodis import __version__
from infodis.files import atomic_text
from infodis.report import figures
from infodis.report.page import cell, write
from infodis.report.values import Finding, Report, Table
from infodis.reproduce.experiment import Bench, Experiment, Outcome

MARKS = {"holds": "✓", "holds in part": "~", "does not hold": "✗", "not tested here": "–"}


def write_outcome(experiment: Experiment, outcome: Outcome, bench: Bench) -> None:
    """outcome.json, figures/ and report.html in the directory of the bench."""
    told = {
        "name": experiment.name,
        "paper": experiment.paper,
        "size": bench.size,
        "seed": bench.seed,
        "infodis": __version__,
        "claims": [dataclasses.asdict(claim) for claim in outcome.claims],
        "numbers": dict(outcome.numbers),
    }
    atomic_text(bench.directory / "outcome.json", json.dumps(told, indent=2, ensure_ascii=False) + "\n")
    for figure in outcome.figures:
        figures.save(figure, bench.directory / "figures")
    write(_page(experiment, outcome, bench), bench.directory / "report.html")


def _page(experiment: Experiment, outcome: Outcome, bench: Bench) -> Report:
    return Report(
        title=experiment.title,
        about=f"{experiment.paper} of the paper. {outcome.about}",
        findings=tuple(
            Finding(f"The paper: {claim.paper} Here: {claim.found}", warning=claim.verdict == "does not hold")
            for claim in outcome.claims
        ),
        tables=(_claims(outcome), *outcome.tables),
        figures=outcome.figures,
        provenance={"experiment": experiment.name, "size": bench.size, "seed": bench.seed, "infodis": __version__},
    )


def _claims(outcome: Outcome) -> Table:
    rows = tuple((claim.paper, claim.found, f"{MARKS[claim.verdict]} {claim.verdict}") for claim in outcome.claims)
    return Table("Claims", ("the paper", "here", "verdict"), rows)


def document(done: Sequence[tuple[Experiment, Outcome, Bench]], *, command: str) -> str:
    """All outcomes in Markdown. Figures are looked for in images/reproduction/."""
    parts = [
        "# The paper, reproduced",
        f"Written by `{command}` from the runs it describes; no number in it was typed by hand.",
        *(_section(*one) for one in done),
    ]
    return "\n\n".join(parts) + "\n"


def _section(experiment: Experiment, outcome: Outcome, bench: Bench) -> str:
    parts = [
        f"## {experiment.title}",
        f"`infodis reproduce {experiment.name}` ({bench.size}, seed {bench.seed}) · {experiment.paper}",
        outcome.about,
        markdown(_claims(outcome)),
        *(f"### {table.title}\n\n{markdown(table)}" for table in outcome.tables),
        *(_picture(experiment.name, figure) for figure in outcome.figures),
    ]
    return "\n\n".join(parts)


def _picture(experiment: str, figure: Any) -> str:
    return f"![{figure.title}](images/reproduction/{experiment}-{figure.name}.svg)\n\n{figure.caption}"


def markdown(table: Table) -> str:
    """A table as Markdown has it; bars inside cells are escaped."""
    rows = [table.columns, ("---",) * len(table.columns), *table.rows]
    lines = ["| " + " | ".join(cell(one).replace("|", "\\|") for one in row) + " |" for row in rows]
    return "\n".join(lines) + (f"\n\n{table.caption}" if table.caption else "")
