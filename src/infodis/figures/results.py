"""Pictures of results: what `--plot` draws."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from infodis.errors import InputError
from infodis.figures.charts import Point, beside, grid, lines
from infodis.figures.figure import Figure

if TYPE_CHECKING:
    from infodis.quantities.consistency import Consistency
    from infodis.quantities.information import Profile
    from infodis.result import Measured, Rate

LEVELS = 200
"""Steps between the noise levels of a curve."""

MOST_SHARES = 512
"""Shares of masked tokens that a profile shows."""


def consistency_map(found: "Consistency") -> Figure:
    """Root-mean-square circulation by the distance of two tokens and the share masked."""
    from infodis.quantities.consistency import span_of

    cells = {(cell.shares, cell.distances): cell.root_mean_square for cell in found.table}
    if not cells:
        raise InputError("There is nothing to draw: no pair had a circulation, all met probabilities of zero.")
    distances = sorted({place[1] for place in cells})
    shares = sorted({place[0] for place in cells}, reverse=True)
    known = [[cells.get((share, distance)) for distance in distances] for share in shares]
    return grid(
        [[None if one is None else one.value for one in row] for row in known],
        errors=[[None if one is None else one.standard_error for one in row] for row in known],
        labels=[["" if one is None else _label(one) for one in row] for row in known],
        rows=[f"{100 * low:.0f}-{100 * high:.0f} %" for low, high in shares],
        columns=[span_of(*one) for one in distances],
        axes=("distance of the two tokens", "share of the target that is masked"),
        quantity="nats",
        signs=("circulation",),
        name="consistency",
        title="How far two reveal orders of a pair disagree: root-mean-square circulation, nats",
    )


def _label(one: "Measured") -> str:
    return f"{_short(one.value)}\n± {_short(one.standard_error)}"


def _short(value: float) -> str:
    """Two digits, without an exponent where that is short."""
    return "?" if math.isinf(value) else "0" if value < 1e-8 else f"{value:.2g}" if value < 10 else f"{value:.0f}"


def information_curve(profile: "Profile", *, title: str = "") -> Figure:
    """The information left at every noise level, and the cost of a masked token, in bits with error bands."""
    levels = [n / LEVELS for n in range(LEVELS + 1)]
    count = min(MOST_SHARES, max(text.tokens for text in profile.texts))
    shares = [(n + 0.5) / count for n in range(count)]
    straight = [(0.0, float(profile.nll.value) / math.log(2)), (1.0, 0.0)]
    left = lines(
        {**_banded(levels, profile.curve(levels)), "if tokens were independent": straight},
        axes=("noise level: probability that a token is masked", "bits per token"),
        title="Information about the text that is left",
    )
    right = lines(
        _banded(shares, profile.at_shares(shares)),
        interpolate="step",
        axes=("share of tokens that are masked", "bits per masked token"),
        title="What a masked token costs",
    )
    about = title or f"{len(profile.texts)} texts, {profile.tokens} tokens"
    return beside([left, right], name="curve", title=f"{about}, ± 2 standard errors")


def _banded(places: Sequence[float], rate: "Rate") -> dict[str, list[Point]]:
    """The same line twice: with what texts and masks leave uncertain, and with what the masks alone do."""
    bits = (rate.value / math.log(2)).tolist()
    errors = {"texts and masks": rate.sampling_error, "masks alone": rate.monte_carlo_error}
    found: dict[str, list[Point]] = {}
    for name, error in errors.items():
        if error is not None:
            halves = (2 * error / math.log(2)).tolist()
            found[name] = [(x, y, y - half, y + half) for x, y, half in zip(places, bits, halves, strict=True)]
    return found
