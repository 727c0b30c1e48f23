"""What notebooks show of a result: small pieces of HTML. No script, no style sheet; colours follow the page.

Text of the page's own colour and translucent backgrounds read well on light and on dark pages alike. Everything that
comes from elsewhere is escaped by `text`; the other functions take and return HTML.
"""

import html
import math
from collections.abc import Sequence
from typing import Any

from infodis.errors import InputError
from infodis.terminal import printable

WIDTH, HEIGHT = 120, 14
"""Pixels of an error bar."""

MOST_NATS = 5.0
"""Nats of a token that is coloured most."""

STRONGEST = 0.55
"""Opacity of that colour: text on it is still easy to read, whatever the page."""

CELL = "padding:2px 10px;text-align:{};vertical-align:top"


def text(value: object, most: int = 200) -> str:
    """Anything as HTML that shows it, cut to so many characters.

    >>> text("<b>")
    '&lt;b&gt;'
    """
    words = str(value)
    return html.escape(printable(words, most, keep="\n")) + ("…" if len(words) > most else "")


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, caption: str) -> str:
    """A table of HTML cells. The first column is text, others are numbers or pictures."""
    sides = ["left", *["right"] * (len(columns) - 1)]
    head = "".join(
        f'<th scope="col" style="{CELL.format(side)}">{text(name)}</th>'
        for name, side in zip(columns, sides, strict=True)
    )
    body = "".join(
        "<tr>"
        + "".join(f'<td style="{CELL.format(side)}">{cell}</td>' for cell, side in zip(row, sides, strict=True))
        + "</tr>"
        for row in rows
    )
    style = "border-collapse:collapse;color:inherit;background:transparent"
    return (
        f'<table style="{style}"><caption style="caption-side:top;text-align:left;padding:2px 10px;color:inherit">'
        f"{text(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    )


def facts(pairs: Sequence[tuple[str, str]], *, caption: str) -> str:
    """Names and values, one pair a row; values are HTML."""
    return table(("", ""), [(text(name), value) for name, value in pairs], caption=caption)


def error_bar(interval: tuple[float, float, float], ends: tuple[float, float]) -> str:
    """A picture of (value, low, high) on the line from one end to the other; nothing where something is infinite."""
    if not all(map(math.isfinite, (*interval, *ends))):
        return ""
    first, last = ends
    value, low, high = (3 + (WIDTH - 6) * (one - first) / ((last - first) or 1.0) for one in interval)
    middle = HEIGHT / 2
    label = f"{interval[0]:.4g}, 95 % interval {interval[1]:.4g} to {interval[2]:.4g}"
    return (
        f'<svg role="img" aria-label="{text(label)}" width="{WIDTH}" height="{HEIGHT}" style="vertical-align:middle">'
        f'<line x1="{low:.1f}" x2="{high:.1f}" y1="{middle}" y2="{middle}" stroke="currentColor" stroke-width="2"/>'
        f'<circle cx="{value:.1f}" cy="{middle}" r="3" fill="currentColor"/></svg>'
    )


def ends(intervals: Sequence[tuple[float, float, float]]) -> tuple[float, float]:
    """The line that all finite intervals lie on."""
    known = [one for interval in intervals for one in interval if math.isfinite(one)]
    return (min(known), max(known)) if known else (0.0, 1.0)


def tokens(pieces: Sequence[str], nats: Sequence[float]) -> str:
    """Pieces of a text, the more coloured the more they cost; the title of each says what."""
    spans = (
        f'<span title="{cost:.2f} nats" style="background:rgba(213,94,0,{_opacity(cost):.2f})">{text(piece)}</span>'
        for piece, cost in zip(pieces, nats, strict=True)
    )
    return f'<span style="font-family:monospace;white-space:pre-wrap;overflow-wrap:anywhere">{"".join(spans)}</span>'


def _opacity(nats: float) -> float:
    return STRONGEST * min(1.0, max(0.0, nats / MOST_NATS))


def data_frame(rows: Sequence[dict[str, Any]], *, index: Any = None) -> Any:
    """Rows of plain values as a DataFrame of pandas, which need not be installed for anything else."""
    try:
        import pandas
    except ImportError as error:
        raise InputError("A DataFrame needs pandas, which is not installed: pip install pandas.") from error
    return pandas.DataFrame(list(rows), index=index)
