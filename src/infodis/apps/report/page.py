"""A report as one HTML file: no network, light and dark, on a phone and on paper. Equal reports give equal bytes."""

import base64
import gzip
import hashlib
import importlib.resources
import json
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from infodis.apps.report.values import Cell, Report, ReportRow, Tokens
from infodis.errors import InfodisError
from infodis.figures.figure import PALETTE, config, finite, light, variable, vega_script
from infodis.files import result_text

SHADES = 10
"""Steps of the heat map; `page.css` has a colour for each."""

MILLI = 1000
"""Nats of tokens are kept as whole thousandths, a third of the size of what they were."""

LONE_SURROGATE = re.compile("[\ud800-\udfff]")
"""Half of a character, which JSON may hold but no file can."""

WIDE_FROM = 600
"""Figures of this width on have a row for themselves."""


def write(report: Report, path: Path) -> None:
    """Write the page; a crash leaves what was there before. It replaces no file but a page that was written so."""
    text = render(report)
    path.parent.mkdir(parents=True, exist_ok=True)
    result_text(path, text)


def render(report: Report) -> str:
    """The page as text. The same report gives the same text.

    Jinja escapes all that the template shows; rows are packed and shown by the script as text. Only the two scripts
    whose hashes the page's policy names run at all, and nothing may be loaded from anywhere.
    """
    script, vega = _asset("page.js"), vega_script()
    text = _template().render(
        report=report,
        warnings=[finding for finding in report.findings if finding.warning],
        findings=[finding for finding in report.findings if not finding.warning],
        provenance=list(_flat(report.provenance)),
        threshold_after=_threshold_place(report),
        palette=PALETTE,
        hottest=hottest([row.tokens for row in report.rows]),
        shades=SHADES,
        style=_asset("page.css"),
        script=script,
        scripts=" ".join(f"'sha256-{_hash(one)}'" for one in (script, vega)),
        vega=packed(vega),
        payload=packed(payload(report)),
    )
    return LONE_SURROGATE.sub("\ufffd", text)


def _threshold_place(report: Report) -> int | None:
    """The figure below which the slider stands: the first that follows it; -1 is above all of them."""
    if report.threshold is None:
        return None
    return next((n for n, figure in enumerate(report.figures) if "threshold" in figure.parameters), -1)


def _template() -> Any:
    try:
        import jinja2
    except ImportError:
        raise InfodisError("Reports need Jinja2: pip install 'infodis[report]'.") from None
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"cell": cell, "is_number": _is_number, "is_wide": _is_wide, "prose": prose}
    return environment.from_string(_asset("page.html.j2"))


def _asset(name: str) -> str:
    return (importlib.resources.files("infodis.apps.report") / name).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")


def cell(value: Cell) -> str:
    """A table's cell: numbers to four digits, a dash where there is none."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    if isinstance(value, str):
        return value
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if isinstance(value, int) or (value == round(value) and abs(value) >= 1000):
        return f"{value:,.0f}"
    return f"{value:.4g}" if 1e-3 <= abs(value) < 1e4 or not value else f"{value:.2e}"


def prose(text: str) -> str:
    """A number and its per cent sign, or its error, stay on one line."""
    return re.sub(r"(?<=\d) %|(?<=±) (?=\d)|(?<=\d) (?=±)", lambda found: found[0].replace(" ", "\u00a0"), text)


def _is_number(value: Cell) -> bool:
    return value is None or not isinstance(value, str)


def _is_wide(spec: Mapping[str, Any]) -> bool:
    return int(spec.get("width", 0)) >= WIDE_FROM


def _flat(tree: Mapping[str, Any], before: str = "") -> "list[tuple[str, str]]":
    """Settings inside settings by their whole names, as words."""
    found = []
    for name, value in tree.items():
        if isinstance(value, Mapping):
            found += _flat(value, f"{before}{name}.")
        elif isinstance(value, list | tuple):
            found.append((f"{before}{name}", ", ".join(map(str, value))))
        elif value is not None:
            found.append((f"{before}{name}", str(value)))
    return found


def packed(text: str) -> str:
    """Text as base64 of gzip, which a script element can hold whatever the text is."""
    return base64.b64encode(gzip.compress(text.encode("utf-8"), compresslevel=6, mtime=0)).decode("ascii")


def payload(report: Report) -> str:
    """What the page's script reads. ASCII: lone surrogates, which no file can hold, stay escaped."""
    tokens = [row.tokens for row in report.rows]
    found = {
        "looks": {"page": config(variable), "file": config(light)},
        "groups": report.groups,
        "columns": [vars(column) for column in report.columns],
        "rows": finite(_rows(report)),
        "tokens": _tokens(tokens),
        "hottest": hottest(tokens),
        "threshold": _threshold(report),
        "figures": finite([vars(figure) for figure in report.figures]),
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


def _own_text(row: ReportRow) -> str | None:
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
