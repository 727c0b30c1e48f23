"""The report of a results file of `infodis pairs`."""

from collections.abc import Iterator, Sequence
from typing import Any

from infodis.apps.report.values import Column, Report, ReportFinding, ReportRow, ReportTable
from infodis.figures import Figure, bars
from infodis.jobs.summary import PairSummary
from infodis.quantities.accuracy import PAIR_SCORES

Record = dict[str, Any]

COLUMNS = (
    *(
        Column(
            f"{name}_margin", f"{name} margin", f"Nats of the bad sentence less those of the good one, by {name}.", 2
        )
        for name in PAIR_SCORES
    ),
    Column("standard_error", "± nats", "Standard error of the nll margin: how much other random masks change it.", 2),
    Column("p_value", "p", "How often a margin of zero would look as far on this side of zero by its masks.", 3),
)

RIGHT, WRONG = "right", "wrong"


def pair_report(records: Sequence[Record], *, title: str, provenance: dict[str, Any]) -> Report:
    """What a results file says, in words first. Rows are grouped by whether the first score is right."""
    total = PairSummary()
    for record in records:
        total.add(record)
    found, scores = total.result(), [name for name in PAIR_SCORES if name in total.every]
    return Report(
        title=title,
        about=f"Which sentence of each of {len(records):,} minimal pairs the model finds likelier.",
        findings=tuple(_findings(found, scores)),
        tables=tuple(_tables(found, scores)),
        figures=tuple(_figures(found, scores)),
        columns=tuple(column for column in COLUMNS if any(record.get(column.name) is not None for record in records)),
        rows=tuple(_row(record, scores) for record in records),
        provenance=provenance,
    )


def _findings(found: dict[str, Any], scores: Sequence[str]) -> Iterator[ReportFinding]:
    race = found["accuracy"].get("nll")
    if race is not None and race["undecided"]:
        yield ReportFinding(
            f"{race['undecided']:,} of {race['pairs']:,} races were not decided: their signs are best guesses, and the "
            "interval of nll allows for it. More --evaluations decide more of them.",
            warning=race["undecided"] > race["pairs"] / 4,
        )
    for name in scores:
        one = found["accuracy"][name]
        ties = f" {one['tied']:,} pairs are tied, and count as wrong." if one["tied"] else ""
        yield ReportFinding(
            f"By {name} the good sentence is likelier in {one['value']:.3f} of the pairs, 95 % interval "
            f"{_interval(one)}.{ties}"
        )


def _interval(one: dict[str, Any]) -> str:
    return f"{one['low']:.3f} to {one['high']:.3f}"


def _tables(found: dict[str, Any], scores: Sequence[str]) -> Iterator[ReportTable]:
    groups = {**found["by_phenomenon"], "all": found["accuracy"]}
    columns = ("phenomenon", "pairs", *(head for name in scores for head in (name, "95 % interval")))
    rows = tuple(
        (
            group,
            one[scores[0]]["pairs"],
            *(cell for name in scores for cell in (one[name]["value"], _interval(one[name]))),
        )
        for group, one in groups.items()
    )
    yield ReportTable("Accuracy by phenomenon", columns, rows, "Intervals are for all pairs of the kind.")


def _figures(found: dict[str, Any], scores: Sequence[str]) -> Iterator[Figure]:
    groups = {**found["by_phenomenon"], "all": found["accuracy"]}
    for name in scores:
        points = {group: tuple(one[name][end] for end in ("value", "low", "high")) for group, one in groups.items()}
        yield bars(
            points,
            axis="accuracy",
            reference=0.5,
            name=f"accuracy-{name.replace('_', '-')}",
            title=f"Accuracy by {name}",
            caption="Shares of pairs whose good sentence is likelier, with 95 % intervals; the line is chance.",
        )


def _row(record: Record, scores: Sequence[str]) -> ReportRow:
    texts = [record.get(name) or "" for name in ("good", "bad")]
    right = RIGHT if record.get(f"{scores[0]}_right") else WRONG
    values = {column.name: record.get(column.name) for column in COLUMNS}
    return ReportRow(record.get("id", ""), right, "", None, " / ".join(filter(None, texts)), values)
