"""Matplotlib, where it is installed: pip install 'infodis[plot]'."""

import importlib
from typing import Any

from infodis.errors import InfodisError


def load_pyplot() -> Any:
    """Matplotlib without a screen, its SVG files the same at every run."""
    try:
        import matplotlib
    except ImportError:
        raise InfodisError(
            "Drawing needs matplotlib: pip install 'infodis[plot]'. Leave --out away for the table."
        ) from None
    matplotlib.use("agg")
    matplotlib.rcParams |= {"svg.hashsalt": "infodis", "svg.fonttype": "none"}
    return importlib.import_module("matplotlib.pyplot")
