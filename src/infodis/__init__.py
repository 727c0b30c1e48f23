"""How likely does a discrete diffusion model find a piece of data, and how sure is that number?

    import infodis
    model = infodis.load("text8-tiny")             # or any predictor
    estimate = infodis.nll(model, tokens)          # value, standard error, per-token credits
    ratio = infodis.log_ratio(model, y, x)         # log p(y) - log p(x) with shared masks

Names load on first use, so that ``import infodis`` costs nothing.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from infodis.dse import dse_nll as dse_nll
    from infodis.estimate import Estimate as Estimate
    from infodis.estimate import nll as nll
    from infodis.estimate import order_nll as order_nll
    from infodis.gaussian import gaussian_nll as gaussian_nll
    from infodis.model import load as load
    from infodis.race import choose as choose
    from infodis.ratio import log_ratio as log_ratio

__version__ = "0.1.0"

_HOME = {
    **{"nll": "estimate", "order_nll": "estimate", "Estimate": "estimate", "log_ratio": "ratio", "load": "model"},
    **{"choose": "race", "dse_nll": "dse", "gaussian_nll": "gaussian"},
}
_MODULES = (
    *("adapters", "audit", "batching", "bench", "bounds", "checkpoint", "consistency", "control", "data", "design"),
    *("device", "doctor", "dse", "engine", "errors", "estimate", "files", "gaussian", "influence", "information"),
    *("inputs", "integrations", "item", "loss", "model", "nets", "observe", "oracle", "perplexity", "plotting"),
    *("predictor", "process", "quadrature", "race", "ratio", "report", "reproduce", "rng", "sampling", "schedule"),
    "train",
)

__all__ = ["Estimate", "choose", "dse_nll", "gaussian_nll", "load", "log_ratio", "nll", "order_nll"]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"infodis.{_HOME[name]}"), name)
    if name in _MODULES:
        return importlib.import_module(f"infodis.{name}")
    raise AttributeError(f"module 'infodis' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME, *_MODULES})
