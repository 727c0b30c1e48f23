"""The report of a results file of `infodis score`."""

import math
from collections.abc import Iterator, Sequence
from statistics import fmean, variance
from typing import Any

from infodis.apps.report.values import Column, Report, ReportFinding, ReportRow, ReportTable, Tokens
from infodis.figures import Figure, histogram, lines, matrix
from infodis.result import Measured, RateSum

Record = dict[str, Any]

BIT = 1 / math.log(2)

EXTREMES = 5
"""Rows that are named as the most surprising."""

NOISY = 0.5
"""Share of Monte Carlo error in the differences of rows from which on it is warned."""

MATRICES, MOST_CELLS = 8, 60
"""Rows whose influences are drawn, and the most tokens of a prompt or text for it."""

FEWEST = 10
"""Rows that a histogram, or the mean at a place in the text, needs to be shown."""

PER_TOKEN = Column("bits_per_token", "bits per token", "What a token of the row costs the model on average.", 3)
COLUMNS = (
    PER_TOKEN,
    Column("bits_per_byte", "bits per byte", "The same per byte of the text, which compares tokenizers.", 3),
    Column("value", "nats", "Minus the log-likelihood of the row.", 2),
    Column("standard_error", "± nats", "Its standard error: how much other random masks would change it.", 2),
    Column(
        "degrees_of_freedom",
        "d.f.",
        "How well that is known: a 95 % interval reaches 3.18 of it to either side with 3, 2.13 with 15.",
        0,
    ),
    Column("tokens", "tokens", "Tokens that were scored.", 0),
)


def score_report(records: Sequence[Record], *, title: str, provenance: dict[str, Any]) -> Report:
    """What a results file says, in words first. Rows of probability zero are shown, and left out of the numbers."""
    kept = [record for record in records if record.get("value") is not None]
    return Report(
        title=title,
        about=f"How likely the model finds each of {len(records):,} texts. Fewer bits: more likely.",
        findings=tuple(_findings(records, kept)),
        tables=tuple(_tables(kept)),
        figures=tuple(_figures(kept)),
        columns=tuple(column for column in COLUMNS if any(record.get(column.name) is not None for record in records)),
        rows=tuple(_row(record) for record in records),
        provenance=provenance,
    )


def _row(record: Record) -> ReportRow:
    tokens = tokens_of(record)
    text = record.get("text") or ("" if tokens is None else "".join(tokens.pieces))
    values = {column.name: record.get(column.name) for column in COLUMNS}
    return ReportRow(record.get("id", ""), None, record.get("prompt") or "", tokens, text, values)


def tokens_of(record: Record) -> Tokens | None:
    """None unless the record has a text and a number for each of its pieces."""
    pieces, nats, errors = (record.get(name) for name in ("pieces", "per_token", "per_token_error"))
    if not pieces or not nats or len(pieces) != len(nats):
        return None
    known = tuple(errors) if errors is not None and len(errors) == len(nats) else None
    return Tokens(tuple(pieces), tuple(nats), known)


def _findings(records: Sequence[Record], kept: Sequence[Record]) -> Iterator[ReportFinding]:
    yield from _warnings(records)
    rated = _rated(kept)
    if not rated:
        yield ReportFinding("No row has a likelihood to report.", warning=True)
        return
    yield _mean(rated)
    if len(rated) > 1:
        yield from _differences(rated)
        yield _extremes(rated)


def _warnings(records: Sequence[Record]) -> Iterator[ReportFinding]:
    """What was not as asked for, said first."""
    impossible = sum(bool(record.get("impossible")) for record in records)
    short = sum(record.get("stopped") == "cap reached" for record in records)
    cut = sum(bool(record.get("truncated")) for record in records)
    if impossible:
        verb = "has" if impossible == 1 else "have"
        yield ReportFinding(
            f"{_rows(impossible)} {verb} probability zero under the model. The means leave them out.", True
        )
    if short:
        yield ReportFinding(
            f"{_rows(short)} stopped at the most forward passes allowed, less precise than asked for.", True
        )
    if cut:
        yield ReportFinding(f"{_rows(cut)} did not fit into the model and were scored in part.", True)


def _rated(records: Sequence[Record]) -> list[Record]:
    return [record for record in records if record.get("bits_per_token") is not None and record.get("tokens")]


def _mean(rated: Sequence[Record]) -> ReportFinding:
    rate = RateSum()
    for record in rated:
        rate.add(record["value"], record["tokens"], (record.get("standard_error") or 0.0) ** 2)
    found = rate.result(BIT)
    assert found is not None
    value, masks, others = found["value"] or 0.0, found["monte_carlo_error"] or 0.0, found["sampling_error"]
    text = f"A token costs the model {_with_error(value, masks if others is None else others)} bits on average"
    if others is None:
        return ReportFinding(f"{text} over {_rows(len(rated))}; the error is that of the random masks.")
    return ReportFinding(
        f"{text} over {_rows(len(rated))}. The error is the sampling error of rows drawn from more of their kind; "
        f"the random masks make ± {masks:.2g} of it."
    )


def _differences(rated: Sequence[Record]) -> Iterator[ReportFinding]:
    """How much of what tells rows apart is Monte Carlo error."""
    total = variance(record["bits_per_token"] for record in rated)
    noise = fmean(_error(record) ** 2 for record in rated)
    if not total:
        yield ReportFinding("All rows cost the same per token.")
        return
    share = min(1.0, noise / total)
    yield ReportFinding(
        f"Rows differ by {math.sqrt(total):.3g} bits per token (standard deviation). "
        f"{100 * share:.1f} % of that variance is Monte Carlo error; the rest is the texts."
    )
    if share > NOISY:
        yield ReportFinding(
            "Most of what tells rows apart is Monte Carlo error: ask for more --evaluations.", warning=True
        )


def _extremes(rated: Sequence[Record]) -> ReportFinding:
    ordered = sorted(rated, key=lambda record: record["bits_per_token"])
    least, most = ordered[0], ordered[-1]
    return ReportFinding(
        f"The most surprising row is {most.get('id')}, at {_row_cost(most)} bits per token; "
        f"the most expected is {least.get('id')}, at {_row_cost(least)}."
    )


def _tables(kept: Sequence[Record]) -> Iterator[ReportTable]:
    rated = _rated(kept)
    if len(rated) > EXTREMES:
        ordered = sorted(rated, key=lambda record: -record["bits_per_token"])[:EXTREMES]
        rows = tuple((str(r.get("id")), _row_cost(r), int(r["tokens"]), _beginning(r)) for r in ordered)
        yield ReportTable("Most surprising rows", ("row", "bits per token", "tokens", "begins"), rows)


def _beginning(record: Record, most: int = 60) -> str:
    text = _row(record).text
    return text if len(text) <= most else text[:most].rstrip() + " …"


def _figures(kept: Sequence[Record]) -> Iterator[Figure]:
    rated = _rated(kept)
    if len(rated) >= FEWEST:
        values = {"rows": [record["bits_per_token"] for record in rated]}
        yield histogram(values, axis=PER_TOKEN.title, name="bits-per-token", title="Bits per token of the rows")
    along = _along([record["per_token"] for record in kept if record.get("per_token")])
    if len(along) > 1:
        axes = ("place in the scored text", "nats per token")
        caption = "Means over rows with 95 % intervals (sampling error)."
        yield lines({"rows": along}, axes=axes, name="places", title="What a token costs by its place", caption=caption)

    yield from _influences(kept)


def _influences(kept: Sequence[Record]) -> Iterator[Figure]:
    """What the tokens of the prompt do, for the first rows that are short enough to look at."""
    short = [one for one in kept if one.get("influence") and max(_shape(one)) <= MOST_CELLS]
    for number, one in enumerate(short[:MATRICES]):
        total = f"{_with_error(one['explained'], one.get('explained_error') or 0.0)} nats"
        yield matrix(
            one["influence"],
            rows=one.get("pieces") or [str(n) for n in range(_shape(one)[0])],
            columns=one.get("prompt_pieces") or [str(n) for n in range(_shape(one)[1])],
            errors=one.get("influence_error"),
            name=f"influence-{number}",
            title=f"What the prompt of {one.get('id')} does",
            caption=f"Tokens of the prompt across, of the text down; all together {total}. Hover for nats and errors.",
        )


def _shape(record: Record) -> tuple[int, int]:
    return len(record["influence"]), len(record["influence"][0])


def _along(per_token: Sequence[Sequence[float | None]]) -> list[tuple[float, float, float, float]]:
    """Mean and interval of what the tokens at each place cost, as far as there are enough rows."""
    found = []
    for place in range(max(map(len, per_token), default=0)):
        there = [nats for row in per_token if place < len(row) and (nats := row[place]) is not None]
        if len(there) < FEWEST:
            break
        mean = Measured.mean(there)
        half = 1.96 * mean.standard_error
        found.append((float(place + 1), mean.value, mean.value - half, mean.value + half))
    return found


def _error(record: Record) -> float:
    """The standard error of a row's bits per token."""
    return float(record.get("standard_error") or 0.0) * BIT / float(record["tokens"])


def _row_cost(record: Record) -> str:
    return _with_error(record["bits_per_token"], _error(record))


def _with_error(value: float, error: float) -> str:
    """A number to the two leading digits of its error."""
    return str(Measured(value, error)) if error else f"{value:.4g}"


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count:,} rows"
