"""The data of a page: compact JSON, packed. The same report gives the same bytes."""

import base64
import gzip
import json
import math
from collections.abc import Iterable
from typing import Any

from infodis.apps.report import drawing
from infodis.apps.report.values import Report, Row, Tokens

SHADES = 10
"""Steps of the heat map; `page.css` has a colour for each."""

MILLI = 1000
"""Nats of tokens are kept as whole thousandths, a third of the size of what they were."""


def packed(text: str) -> str:
    """Text as base64 of gzip, which a script element can hold whatever the text is."""
    return base64.b64encode(gzip.compress(text.encode("utf-8"), compresslevel=6, mtime=0)).decode("ascii")


def payload(report: Report) -> str:
    """What the page's script reads. ASCII: lone surrogates, which no file can hold, stay escaped."""
    tokens = [row.tokens for row in report.rows]
    found = {
        "looks": {"page": drawing.config(drawing.variable), "file": drawing.config(drawing.light)},
        "groups": report.groups,
        "columns": [vars(column) for column in report.columns],
        "rows": drawing.finite(_rows(report)),
        "tokens": _tokens(tokens),
        "hottest": hottest(tokens),
        "threshold": _threshold(report),
        "figures": drawing.finite([vars(figure) for figure in report.figures]),
    }
    return json.dumps(found, allow_nan=False, separators=(",", ":"))


def _rows(report: Report) -> dict[str, Any]:
    """Column by column, which is smaller than row by row."""
    places = {group: n for n, group in enumerate(report.groups)}
    rows = report.rows
    return {
        "id": [row.id for row in rows],
        "group": [-1 if row.group is None else places[row.group] for row in rows],
        "prompt": [row.prompt for row in rows],
        "text": [_own_text(row) for row in rows],
        "values": [[row.values.get(column.name) for row in rows] for column in report.columns],
    }


def _own_text(row: Row) -> str | None:
    """None where the pieces say it already."""
    return None if row.tokens is not None and row.text == "".join(row.tokens.pieces) else row.text


def _tokens(tokens: list[Tokens | None]) -> dict[str, Any]:
    """All tokens in one line, pieces by their number in a list of distinct ones; -1 is a row without tokens."""
    there = [one for one in tokens if one is not None]
    places: dict[str, int] = {}
    pieces = [places.setdefault(piece, len(places)) for one in there for piece in one.pieces]
    errors = (one.errors or (None,) * len(one.pieces) for one in there)
    return {
        "distinct": list(places),
        "counts": [-1 if one is None else len(one.pieces) for one in tokens],
        "pieces": pieces,
        "nats": _thousandths(value for one in there for value in one.nats),
        "errors": _thousandths(value for row in errors for value in row),
    }


def _thousandths(values: Iterable[float | None]) -> list[int | None]:
    return [None if value is None or not math.isfinite(value) else round(value * MILLI) for value in values]


def hottest(tokens: list[Tokens | None]) -> float:
    """The nats from which on the heat map has its strongest colour: one token in fifty has more."""
    sizes = sorted(
        abs(value)
        for one in tokens
        if one is not None
        for value in one.nats
        if value is not None and math.isfinite(value)
    )
    if not sizes or not sizes[-1]:
        return 1.0
    typical = sizes[int(0.98 * (len(sizes) - 1))] or sizes[-1]
    return float(f"{typical:.2g}")


def _threshold(report: Report) -> dict[str, Any] | None:
    """Groups and column by their places, and the range of the slider."""
    wanted = report.threshold
    if wanted is None:
        return None
    values = [row.values.get(wanted.column) for row in report.rows if row.group in (wanted.negative, wanted.positive)]
    known = [value for value in values if value is not None and math.isfinite(value)] + [wanted.start]
    low, high = min(known), max(known)
    step = 10.0 ** math.floor(math.log10((high - low) / 200)) if high > low else 1.0
    return {
        "column": [column.name for column in report.columns].index(wanted.column),
        "negative": report.groups.index(wanted.negative),
        "positive": report.groups.index(wanted.positive),
        "above": wanted.above,
        "start": wanted.start,
        "low": math.floor(low / step) * step,
        "high": (math.ceil(high / step) + 1) * step,
        "step": step,
    }
