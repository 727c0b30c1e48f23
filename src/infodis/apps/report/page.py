"""A report as one HTML file: no network, light and dark, on a phone and on paper."""

import base64
import hashlib
import importlib.resources
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from infodis.apps.report import drawing
from infodis.apps.report.payload import SHADES, hottest, packed, payload
from infodis.apps.report.values import Cell, Report
from infodis.errors import InfodisError
from infodis.files import result_text

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
    script, vega = _asset("page.js"), drawing.vega_script()
    text = _template().render(
        report=report,
        warnings=[finding for finding in report.findings if finding.warning],
        findings=[finding for finding in report.findings if not finding.warning],
        provenance=list(_flat(report.provenance)),
        threshold_after=_threshold_place(report),
        palette=drawing.PALETTE,
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
