"""A figure as plain data, how it looks, and its files. Vega draws it: pip install 'infodis[report]'.

`vl_convert` carries Vega and Vega-Lite. A chart is written once, as a Vega-Lite specification: static files are drawn
from it here, and the page draws it with the same libraries in the browser. Nothing of the user's is changed.
"""

import csv
import dataclasses
import functools
import io
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from infodis.errors import InfodisError, InputError
from infodis.files import result_file, result_text
from infodis.terminal import printable

PALETTE = {
    "paper": ("#ffffff", "#14171a"),
    "ink": ("#1c2127", "#e6e8ea"),
    "soft": ("#59626c", "#a3acb5"),
    "line": ("#e1e5e9", "#30363c"),
    "accent": ("#0a5c96", "#7cc4f2"),
    "warning": ("#9a3d00", "#f5a762"),
    "series-0": ("#0072b2", "#56b4e9"),
    "series-1": ("#d55e00", "#f28e3c"),
    "series-2": ("#00815e", "#35c69a"),
    "series-3": ("#b0578c", "#e39ac4"),
    "series-4": ("#946b00", "#ecc34b"),
    "series-5": ("#5a5fc7", "#a5a9ff"),
}
"""Light and dark. The first two series are told apart whatever one's colour vision."""

SERIES = [name for name in PALETTE if name.startswith("series-")]
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
TABLE = "table"
"""The name of a figure's data in its specification."""

PNG_SCALE = 2.0

FORMULA = ("=", "+", "-", "@", "\t", "\n")
"""What a spreadsheet's formula may begin with."""


@dataclasses.dataclass(frozen=True)
class Figure:
    """A chart: a Vega-Lite specification without data, and its data. `name` is the stem of its files.

    A parameter called `threshold` in the specification follows the slider of the page, and so do `false_positives` and
    `true_positives`, the rates at that threshold.
    """

    name: str
    title: str
    caption: str
    spec: dict[str, Any]
    data: tuple[dict[str, Any], ...]

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z0-9][a-z0-9_-]*", self.name):
            raise InputError(f"A figure's name is a file name of a-z, 0-9, - and _, got {self.name!r}.")

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        """What a notebook shows: the picture, if it can be drawn."""
        try:
            return {"text/plain": repr(self), "image/svg+xml": svg(self)}
        except InfodisError as error:
            return {"text/plain": f"{self!r}: {error}"}

    def __repr__(self) -> str:
        return f"Figure({self.name!r}, {self.title!r}, {len(self.data)} rows)"

    @property
    def parameters(self) -> frozenset[str]:
        return frozenset(one["name"] for one in self.spec.get("params", ()))


def light(name: str) -> str:
    """A colour of the palette on white."""
    return PALETTE[name][0]


def variable(name: str) -> str:
    """The same as a CSS variable, so that a drawn chart follows the page from light to dark and to paper."""
    return f"var(--{name})"


def config(colour: Callable[[str], str]) -> dict[str, Any]:
    """How charts look. Specifications name styles, not colours."""
    axis = {
        **{"labelColor": colour("soft"), "titleColor": colour("soft"), "gridColor": colour("line")},
        **{"domainColor": colour("line"), "tickColor": colour("line"), "titleFontWeight": "normal"},
        **{"labelFontSize": 12, "titleFontSize": 12, "titlePadding": 8, "labelPadding": 4},
    }
    return {
        "background": colour("paper"),
        "font": FONT,
        "aria": False,
        "padding": 4,
        "axis": axis,
        "axisX": {"grid": False, "tickCount": 6},
        "axisY": {"domain": False, "ticks": False, "tickCount": 6},
        "view": {"stroke": None},
        "legend": {"orient": "top", "title": None, "labelColor": colour("ink"), "labelFontSize": 13, "offset": 8},
        "title": {"color": colour("ink"), "anchor": "start", "fontSize": 15, "fontWeight": 600, "offset": 12},
        "mark": {"color": colour("series-0"), "aria": False},
        "range": {"category": [colour(name) for name in SERIES]},
        "style": {
            "reference": {"color": colour("soft"), "strokeDash": [4, 4], "opacity": 0.8},
            "label": {"color": colour("ink"), "fontSize": 12},
            "threshold": {"color": colour("ink"), "strokeWidth": 2},
            "operating": {
                "fill": colour("ink"),
                "stroke": colour("paper"),
                "strokeWidth": 2,
                "size": 110,
                "opacity": 1,
            },
        },
    }


def load_vega() -> Any:
    """vl_convert, or what to install."""
    try:
        import vl_convert
    except ImportError:
        raise InfodisError("Pictures and reports need vl-convert-python: pip install 'infodis[report]'.") from None
    return vl_convert


@functools.cache
def vega_script() -> str:
    """Vega, Vega-Lite and vega-embed as one script that sets `window.vegaEmbed`. Making it takes seconds."""
    return str(load_vega().javascript_bundle("window.vegaEmbed=vegaEmbed;"))


def svg(figure: Figure) -> str:
    """A figure as an SVG picture, the same at every run."""
    return str(load_vega().vegalite_to_svg(_complete(figure), config=config(light)))


def png(figure: Figure) -> bytes:
    """A figure as a PNG picture, at twice its size in pixels."""
    return bytes(load_vega().vegalite_to_png(_complete(figure), config=config(light), scale=PNG_SCALE))


def pdf(figure: Figure) -> bytes:
    """A figure as a PDF page of its size."""
    return bytes(load_vega().vegalite_to_pdf(_complete(figure), config=config(light)))


PICTURES: dict[str, Callable[[Figure], bytes]] = {
    ".svg": lambda one: svg(one).encode("utf-8"),
    ".png": png,
    ".pdf": pdf,
}
"""Kinds of pictures, by the suffix of their files."""


def check_picture(path: Path) -> None:
    """Raise an error unless a picture can be drawn to this path: before the work, not after it."""
    if path.suffix not in PICTURES:
        raise InputError(f"A picture's name ends in {', '.join(PICTURES)}; got {path.name}.")
    load_vega()


def save_picture(figure: Figure, path: Path) -> None:
    """Write one picture, of the kind that the suffix names."""
    check_picture(path)
    with result_file(path) as unfinished:
        unfinished.write_bytes(PICTURES[path.suffix](figure))


def save(figure: Figure, directory: Path) -> None:
    """Write NAME.svg, NAME.png and NAME.csv."""
    directory.mkdir(parents=True, exist_ok=True)
    for kind in ("svg", "png"):
        save_picture(figure, directory / f"{figure.name}.{kind}")
    result_text(directory / f"{figure.name}.csv", csv_text(figure))


def csv_text(figure: Figure) -> str:
    """The numbers of a figure as CSV. A text that a spreadsheet would take for a formula begins with an apostrophe."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(name for row in figure.data for name in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _cell(value) for name, value in row.items()} for row in finite(figure.data))
    return text.getvalue()


def _cell(value: Any) -> Any:
    """Carriage returns are written out, too: not all who write or read CSV keep them within a cell."""
    text = printable(value, keep="\n\t") if isinstance(value, str) else value
    return f"'{text}" if isinstance(text, str) and text.startswith(FORMULA) else text


def _complete(figure: Figure) -> dict[str, Any]:
    return {**figure.spec, "title": figure.title, "data": {"name": TABLE, "values": finite(figure.data)}}


def finite(value: Any) -> Any:
    """The same with None for numbers that JSON does not know, and tuples as lists."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [finite(one) for one in value]
    return value
