"""Charts of plain numbers. Each builder returns a `Figure`.

Group and series names are data: they never become field names or expressions of a specification.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from infodis.figures.figure import Figure

WIDE = {"width": 720, "height": 240}
HALF = {"width": 420, "height": 260}
SQUARE: dict[str, Any] = {"width": 360, "height": 360, "usermeta": {"square": True}}

CELL = 18
"""Pixels of a cell of a matrix."""

ONCE: dict[str, Any] = {"values": [{}]}
"""Data of marks that are drawn once: lines that follow a parameter."""

Numbers = Sequence[float | None]
Point = tuple[float, ...]


def histogram(
    groups: Mapping[str, Numbers],
    *,
    axis: str,
    name: str = "histogram",
    title: str = "Distribution",
    caption: str = "",
    threshold: float | None = None,
) -> Figure:
    """Overlaid histograms with shared bins: shares of each group, or counts if there is one.

    Numbers that are missing or infinite are left out, which the caption says. With `threshold` a line is drawn there,
    which follows the slider of the page.
    """
    kept = {
        group: [one for one in values if one is not None and math.isfinite(one)] for group, values in groups.items()
    }
    missing = sum(len(values) for values in groups.values()) - sum(len(values) for values in kept.values())
    edges = shared_bins(list(kept.values()))
    data = [
        {"group": group, "start": start, "end": end, "count": count, "share": count / max(1, len(kept[group]))}
        for group in kept
        for start, end, count in _counts(kept[group], edges)
    ]
    several = len(groups) > 1
    height = _quantity("share" if several else "count", "share of the group" if several else "rows")
    ticks = {"format": "%", "tickMinStep": 0.01} if several else {"format": "d", "tickMinStep": 1}
    height = {**height, "axis": {"tickCount": 4, **ticks}, "stack": None}
    inside = {"domain": [edges[0], edges[-1]], "nice": False, "clamp": True}
    across = {**_quantity("start", axis), "scale": inside, "bin": {"binned": True}, "axis": {"tickCount": 8}}
    bars: dict[str, Any] = {
        "mark": {"type": "bar", "opacity": 0.55 if several else 0.8, "binSpacing": 1},
        "encoding": {
            **{"x": across, "x2": {"field": "end"}, "y": height, "color": _colour(list(groups))},
            "tooltip": [_tip("group"), _tip("start", ".4~g"), _tip("end", ".4~g"), _tip("count"), _tip("share", ".1%")],
        },
    }
    note = f"{missing:,} without a finite value not shown." if missing else ""
    spec: dict[str, Any] = {"layer": [bars]}
    if threshold is not None:
        spec = _following([bars], {"type": "rule", "style": "threshold"}, {"x": ("threshold", threshold)})
    return Figure(name, title, " ".join(filter(None, (caption, note))), {**WIDE, **spec}, tuple(data))


def _following(
    layers: list[dict[str, Any]], mark: dict[str, Any], axes: Mapping[str, tuple[str, float]]
) -> dict[str, Any]:
    """Layers, and one more mark at parameters that the page moves: by axis, the parameter's name and first value."""
    at = {axis: {"datum": {"expr": name}, "type": "quantitative"} for axis, (name, _) in axes.items()}
    params = [{"name": name, "value": value} for name, value in axes.values()]
    return {"params": params, "layer": [*layers, {"data": ONCE, "mark": mark, "encoding": at}]}


def shared_bins(groups: Sequence[Sequence[float]], most: int = 48) -> list[float]:
    """Edges of equal bins over all groups: as Freedman and Diaconis ask for the narrowest group, but 8 to `most`."""
    every = np.concatenate([np.asarray(values, dtype=float) for values in groups]) if groups else np.empty(0)
    if not every.size:
        return [0.0, 1.0]
    low, high = float(every.min()), float(every.max())
    if low == high:
        return [low - 0.5, low + 0.5]
    widths = [2 * float(np.subtract(*np.quantile(g, [0.75, 0.25]))) / len(g) ** (1 / 3) for g in groups if len(g)]
    width = min((one for one in widths if one > 0), default=math.inf)
    bins = int(min(most, max(8, (high - low) / width)))
    return [float(edge) for edge in np.linspace(low, high, bins + 1)]


def _counts(values: Sequence[float], edges: Sequence[float]) -> list[tuple[float, float, int]]:
    counts, _ = np.histogram(values, edges)
    pairs = zip(edges[:-1], edges[1:], counts.tolist(), strict=True)
    return [(start, end, count) for start, end, count in pairs if count]


def roc(
    points: Sequence[Point],
    band: Sequence[Point] = (),
    *,
    area: float,
    interval: tuple[float, float] | None = None,
    operating: tuple[float, float] | None = None,
    name: str = "roc",
    title: str = "ROC curve",
) -> Figure:
    """A ROC curve of (false positive rate, true positive rate), with a band of (rate, low, high) and its area.

    `operating` is the point of the threshold; on the page it moves with the slider.
    """
    data = [
        *({"kind": "band", "x": x, "low": low, "high": high} for x, low, high in band),
        *({"kind": "curve", "x": x, "y": y, "order": n} for n, (x, y) in enumerate(points)),
        *({"kind": "chance", "x": x, "y": x} for x in (0.0, 1.0)),
    ]
    across = {**_quantity("x", "false positive rate"), **_unit_axis()}
    up = {**_quantity("y", "true positive rate"), **_unit_axis()}
    curve = {"x": across, "y": up, "order": {"field": "order", "type": "quantitative"}}
    layers: list[dict[str, Any]] = [
        _only("band", {"type": "area", "opacity": 0.22}, {"x": across, **_low_high(up)}),
        _only("chance", {"type": "line", "style": "reference"}, {"x": across, "y": up}),
        _only("curve", {"type": "line", "strokeWidth": 2.5, "interpolate": "linear"}, curve),
    ]
    spec: dict[str, Any] = {"layer": layers}
    if operating is not None:
        at = {"x": ("false_positives", operating[0]), "y": ("true_positives", operating[1])}
        spec = _following(layers, {"type": "point", "style": "operating", "filled": True}, at)
    known = "" if interval is None else f", 95 % interval {interval[0]:.3f} to {interval[1]:.3f}"
    caption = f"AUROC {area:.3f}{known}. 0.5 (dashed) is chance."
    return Figure(name, title, caption, {**SQUARE, **spec}, tuple(data))


def bars(
    values: Mapping[str, Point],
    *,
    axis: str,
    kinds: Mapping[str, str] | None = None,
    reference: float | None = None,
    name: str = "comparison",
    title: str = "Comparison",
    caption: str = "",
) -> Figure:
    """Named values (value, low, high) as points with intervals, in their order, beside a reference line.

    `kinds` colours them: the kind of each name, such as a model's score or a baseline without a model.
    """
    of = kinds or {}
    data = [
        {"name": one, "kind": of.get(one, ""), "value": value, "low": low, "high": high}
        for one, (value, low, high) in values.items()
    ]
    names: dict[str, Any] = {"field": "name", "type": "nominal", "sort": None, "title": None}
    names = {**names, "axis": {"labelLimit": 220, "domain": False, "ticks": False, "grid": True}}
    across = {**_quantity("value", axis), "scale": {"zero": False}}
    colour = {"color": _colour(list(dict.fromkeys(of[one] for one in values if one in of)) or [""], "kind")}
    tips = [_tip("name"), *(_tip(one, ".4~g") for one in ("value", "low", "high"))]
    layers: list[dict[str, Any]] = [
        {"mark": {"type": "rule", "strokeWidth": 2.5}, "encoding": {"x": _at(across, "low"), "x2": {"field": "high"}}},
        {"mark": {"type": "point", "filled": True, "size": 90, "opacity": 1}, "encoding": {"x": across}},
    ]
    for layer in layers:
        layer["encoding"] |= {"y": names, "tooltip": tips, **colour}
    spec = {"width": HALF["width"], "height": 30 * max(2, len(data)), "layer": [*_rule(reference), *layers]}
    return Figure(name, title, caption, spec, tuple(data))


def lines(
    series: Mapping[str, Sequence[Point]],
    *,
    axes: tuple[str, str],
    log: tuple[bool, bool] = (False, False),
    points: bool = False,
    interpolate: str = "linear",
    wide: bool = False,
    name: str = "lines",
    title: str = "Lines",
    caption: str = "",
) -> Figure:
    """Lines through (x, y) or (x, y, low, high); the latter have a band. `log` makes x or y logarithmic.

    What a logarithmic axis cannot show (zero and below) is left out. `interpolate` is Vega's: "linear", "step" ...
    """
    data: list[dict[str, Any]] = [
        {"series": one, **dict(zip(("x", "y", "low", "high"), point, strict=False))}
        for one, found in series.items()
        for point in found
        if _can_show(point, log)
    ]
    across, up = (
        {**_quantity(field, axis), **_scale([row[field] for row in data], logarithmic)}
        for field, axis, logarithmic in zip("xy", axes, log, strict=True)
    )
    colour = {"color": _colour(list(series), "series")}
    tips = [_tip("series"), *(_tip(field, ".4~g") for field in ("x", "y", "low", "high"))]
    mark = {"type": "line", "interpolate": interpolate, "strokeWidth": 2, "point": {"size": 40} if points else False}
    layers = [
        {
            "transform": [{"filter": "isValid(datum.low) && isValid(datum.high)"}],
            "mark": {"type": "area", "interpolate": interpolate, "opacity": 0.18},
            "encoding": {"x": across, **_low_high(up), **colour},
        },
        {"mark": mark, "encoding": {"x": across, "y": up, "tooltip": tips, **colour}},
    ]
    return Figure(name, title, caption, {**(WIDE if wide else HALF), "layer": layers}, tuple(data))


def _scale(values: Sequence[float], logarithmic: bool) -> dict[str, Any]:
    """A scale that need not start at zero; a logarithmic one over decades has its ticks at powers of ten."""
    if not logarithmic:
        return {"scale": {"zero": False}}
    ends = (min(values, default=1.0), max(values, default=1.0))
    low, high = math.floor(math.log10(ends[0])), math.ceil(math.log10(ends[1]))
    decades = {"axis": {"values": [10.0**power for power in range(low, high + 1)], "format": "~g"}}
    return {"scale": {"type": "log"}, **(decades if high - low > 1 else {})}


def _can_show(point: Point, log: tuple[bool, bool]) -> bool:
    return not (log[0] and point[0] <= 0) and not (log[1] and min(point[1:]) <= 0)


def calibration(
    groups: Mapping[str, Sequence[Point]],
    *,
    axes: tuple[str, str] = ("truth", "estimate"),
    name: str = "calibration",
    title: str = "Estimate against truth",
    caption: str = "",
) -> Figure:
    """Estimates against truths: points (truth, estimate, standard error) with bars of two errors, and the diagonal."""
    data: list[dict[str, Any]] = [
        {"series": one, "x": x, "y": y, "low": y - 2 * error, "high": y + 2 * error, "kind": "estimate"}
        for one, found in groups.items()
        for x, y, error in found
    ]
    every = [value for row in data for value in (row["x"], row["y"]) if math.isfinite(value)] or [0.0, 1.0]
    ends = [{"kind": "diagonal", "x": one, "y": one} for one in (min(every), max(every))]
    across, up = ({**_quantity(f, axis), "scale": {"zero": False}} for f, axis in zip("xy", axes, strict=True))
    colour = {"color": _colour(list(groups), "series")}
    tips = [_tip("series"), *(_tip(field, ".4~g") for field in ("x", "y", "low", "high"))]
    layers = [
        _only("diagonal", {"type": "line", "style": "reference"}, {"x": across, "y": up}),
        _only("estimate", {"type": "rule", "opacity": 0.6}, {"x": across, **_low_high(up), **colour}),
        _only("estimate", {"type": "point", "filled": True}, {"x": across, "y": up, "tooltip": tips, **colour}),
    ]
    return Figure(name, title, caption, {**SQUARE, "layer": layers}, (*data, *ends))


def matrix(
    values: Sequence[Numbers],
    *,
    rows: Sequence[str],
    columns: Sequence[str],
    errors: Sequence[Numbers] | None = None,
    signs: tuple[str, str] = ("helps", "misleads"),
    name: str = "matrix",
    title: str = "Matrix",
    caption: str = "",
) -> Figure:
    """Signed numbers of rows by columns, as cells of two colours, stronger where they are larger.

    Names of rows and columns may repeat: they are pieces of a text, drawn where they stand in it.
    """
    cells = [
        {"kind": "cell", "row": row, "column": column, "from": columns[column], "to": rows[row]}
        | {"sign": signs[value < 0], "size": abs(value), "nats": value, "error": error}
        for row, column, value, error in _finite_cells(values, errors)
    ]
    labels: list[dict[str, Any]] = [{"kind": "row", "row": n, "name": _seen(one)} for n, one in enumerate(rows)]
    labels += [{"kind": "column", "column": n, "name": _seen(one)} for n, one in enumerate(columns)]
    across, down = (
        {"field": field, "type": "ordinal", "axis": None, "scale": {"domain": list(range(count))}}
        for field, count in (("column", len(columns)), ("row", len(rows)))
    )
    tips = [_tip("from"), _tip("to"), _tip("nats", "+.3f"), _tip("error", ".3f")]
    shade = _colour(signs, "sign")
    shade["legend"] |= {"offset": 2 * CELL}  # above the names of the columns
    colour = {"color": shade, "opacity": _strength(0, 1), "tooltip": tips}
    name_of, label = {"text": {"field": "name"}}, {"type": "text", "style": "label"}
    layers = [
        _only("cell", {"type": "rect"}, {"x": across, "y": down, **colour}),
        _only("row", {**label, "align": "right"}, {"y": down, "x": {"value": -6}, **name_of}),
        _only("column", {**label, "baseline": "bottom"}, {"x": across, "y": {"value": -6}, **name_of}),
    ]
    size = {"width": CELL * len(columns), "height": CELL * len(rows)}
    return Figure(name, title, caption, {**size, "layer": layers}, (*cells, *labels))


def grid(
    values: Sequence[Numbers],
    *,
    rows: Sequence[str],
    columns: Sequence[str],
    axes: tuple[str, str],
    errors: Sequence[Numbers] | None = None,
    labels: Sequence[Sequence[str]] | None = None,
    quantity: str = "value",
    signs: Sequence[str] = ("above", "below"),
    name: str = "grid",
    title: str = "Grid",
    caption: str = "",
) -> Figure:
    """A heat map: numbers of rows by columns, written into cells of two colours, stronger where they are larger.

    `labels` are written instead of the numbers. `signs` names the colours; where no number is negative, one is enough.
    """
    data: list[dict[str, Any]] = [
        {"row": rows[row], "column": columns[column], "sign": signs[value < 0], "size": abs(value)}
        | {"value": value, "error": error, "label": labels[row][column] if labels else f"{value:+.1f}"}
        for row, column, value, error in _finite_cells(values, errors)
    ]
    straight = {"axis": {"labelAngle": 0, "domain": False, "ticks": False}}
    across, down = (
        {"field": field, "type": "nominal", "sort": list(names), "title": axis, **straight}
        for field, names, axis in zip(("column", "row"), (columns, rows), axes, strict=True)
    )
    tips = [_tip("row"), _tip("column"), {**_tip("value", "+.3f"), "title": quantity}, _tip("error", ".3f")]
    colour = {"color": _colour(signs, "sign"), "opacity": _strength(0.08, 0.75)}
    text: dict[str, Any] = {"type": "text", "style": "label", "lineBreak": "\n", "baseline": "middle"}
    text |= {"dy": {"expr": "-7 * (length(split(datum.label, '\\n')) - 1)"}}
    layers = [
        {"mark": "rect", "encoding": {**colour, "tooltip": tips}},
        {"mark": text, "encoding": {"text": {"field": "label"}}},
    ]
    longest = max((len(line) for row in data for line in row["label"].splitlines()), default=0)
    size = {"width": max(3 * CELL, 7 * longest + 12) * len(columns), "height": 2 * CELL * len(rows)}
    spec = {**size, "encoding": {"x": across, "y": down}, "layer": layers}
    return Figure(name, title, caption, spec, tuple(data))


def _finite_cells(
    values: Sequence[Numbers], errors: Sequence[Numbers] | None
) -> list[tuple[int, int, float, float | None]]:
    """Row, column, value and error of what is known."""
    return [
        (row, column, value, None if errors is None else errors[row][column])
        for row, numbers in enumerate(values)
        for column, value in enumerate(numbers)
        if value is not None and math.isfinite(value)
    ]


def _strength(low: float, high: float) -> dict[str, Any]:
    """How strong a cell's colour is, by the size of its number."""
    return {"field": "size", "type": "quantitative", "scale": {"range": [low, high], "zero": True}, "legend": None}


def grouped_bars(
    bars: Sequence[tuple[str, str, float, str]],
    *,
    axis: str,
    kinds: Sequence[str],
    name: str = "bars",
    title: str = "Bars",
    caption: str = "",
) -> Figure:
    """Positive numbers (name, kind, value, label) as bars on a logarithmic axis: a group for each name, kinds inside.

    The bars begin at 1: what is below reaches to the left.
    """
    data = [
        {"name": one, "kind": kind, "value": value, "end": max(1.0, value), "label": label}
        for one, kind, value, label in bars
    ]
    ends = [1.0, *(value for _, _, value, _ in bars)]
    scale = {"type": "log", "domain": [min(ends) / 1.5, max(ends) * 6], "nice": False}  # room for the labels
    across = {**_quantity("value", axis), "scale": scale, "axis": {"grid": True, "format": "~g", "tickCount": 4}}
    names = {"field": "name", "type": "nominal", "sort": None, "title": None, "axis": {"domain": False, "ticks": False}}
    inside = {"field": "kind", "type": "nominal", "sort": list(kinds)}
    label = {"type": "text", "style": "label", "align": "left", "dx": 4, "fontSize": 10}
    after = {**across, "field": "end"}
    layers = [
        {"mark": {"type": "bar"}, "encoding": {"x": across, "x2": {"datum": 1.0}, "color": _colour(kinds, "kind")}},
        {"mark": label, "encoding": {"x": after, "text": {"field": "label"}}},
        *_rule(1.0),
    ]
    for layer in layers[:2]:
        layer["encoding"] |= {"y": names, "yOffset": inside, "tooltip": [_tip("name"), _tip("kind"), _tip("label")]}
    height = 14 * len(kinds) * len({row["name"] for row in data})
    return Figure(name, title, caption, {"width": 300, "height": height, "layer": layers}, tuple(data))


def columns(
    groups: Mapping[str, Sequence[float]],
    *,
    labels: Sequence[str],
    axis: str,
    name: str = "columns",
    title: str = "Columns",
    caption: str = "",
) -> Figure:
    """Upright bars from zero, one of each group side by side for every label."""
    data = [
        {"group": group, "place": place, "label": label, "value": value}
        for group, values in groups.items()
        for place, (label, value) in enumerate(zip(labels, values, strict=True))
    ]
    across: dict[str, Any] = {"field": "place", "type": "ordinal", "title": None, "axis": None}
    inside = {"field": "group", "type": "nominal", "sort": list(groups)}
    up = {**_quantity("value", axis), "scale": {"zero": True}}
    tips = [_tip("label"), _tip("group"), _tip("value", ".4~g")]
    encoding = {"x": across, "xOffset": inside, "y": up, "color": _colour(list(groups)), "tooltip": tips}
    return Figure(name, title, caption, {**WIDE, "mark": {"type": "bar"}, "encoding": encoding}, tuple(data))


def beside(panels: Sequence[Figure], *, name: str, title: str, caption: str = "") -> Figure:
    """Figures next to each other as one; the captions of the panels stand below their titles."""
    data = tuple({"panel": n, **row} for n, panel in enumerate(panels) for row in panel.data)
    parts = [
        {
            **panel.spec,
            "title": {"text": panel.title, **({"subtitle": panel.caption} if panel.caption else {})},
            "transform": [{"filter": {"field": "panel", "equal": n}}],
        }
        for n, panel in enumerate(panels)
    ]
    return Figure(name, title, caption, {"hconcat": parts, "spacing": 40}, data)


def _seen(piece: str) -> str:
    return piece if piece.strip() else "␣"


def _quantity(field: str, title: str) -> dict[str, Any]:
    return {"field": field, "type": "quantitative", "title": title}


def _at(channel: dict[str, Any], field: str) -> dict[str, Any]:
    return {**channel, "field": field}


def _low_high(channel: dict[str, Any]) -> dict[str, Any]:
    return {"y": _at(channel, "low"), "y2": {"field": "high"}}


def _unit_axis() -> dict[str, Any]:
    return {"scale": {"domain": [0, 1]}, "axis": {"tickCount": 5, "grid": True}}


def _only(kind: str, mark: dict[str, Any], encoding: dict[str, Any]) -> dict[str, Any]:
    """A layer of the data of one kind, a word of ours."""
    return {"transform": [{"filter": {"field": "kind", "equal": kind}}], "mark": mark, "encoding": encoding}


def _rule(value: float | None) -> list[dict[str, Any]]:
    if value is None:
        return []
    return [{"data": ONCE, "mark": {"type": "rule", "style": "reference"}, "encoding": {"x": {"datum": value}}}]


def _colour(names: Sequence[str], field: str = "group") -> dict[str, Any]:
    """Colours in the order of the names; no legend for one of them."""
    legend = None if len(names) < 2 else {"labelLimit": 260, "symbolType": "circle", "symbolOpacity": 1}
    return {"field": field, "type": "nominal", "scale": {"domain": list(names)}, "legend": legend}


def _tip(field: str, format: str = "") -> dict[str, Any]:
    return {"field": field, **({"format": format, "type": "quantitative"} if format else {"type": "nominal"})}
