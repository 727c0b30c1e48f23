"""How likely does a discrete diffusion model find a piece of data, and how sure is that number?

    import infodis
    scores = infodis.score("text8-tiny", ["the capital of france", "colorless green ideas"])
    scores[0].value, scores[0].standard_error      # -log p in nats, and how sure that is
    model = infodis.load("text8-tiny")             # or any predictor
    infodis.nll(model, "paris", prompt="the capital of france is ")
    infodis.log_ratio(model, "colour", "color")    # log p(y) - log p(x) with shared masks

Names load on first use, so that ``import infodis`` costs nothing.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from infodis.auto import Auto as Auto
    from infodis.control import Neighbours as Neighbours
    from infodis.control import Positions as Positions
    from infodis.design import Enumerate as Enumerate
    from infodis.design import Orders as Orders
    from infodis.design import Pairs as Pairs
    from infodis.design import PowerCount as PowerCount
    from infodis.design import StratifiedCount as StratifiedCount
    from infodis.design import Tiled as Tiled
    from infodis.design import TimeFree as TimeFree
    from infodis.design import TimeIntegral as TimeIntegral
    from infodis.design import UniformCount as UniformCount
    from infodis.estimate import nll as nll
    from infodis.models.doctor import doctor as doctor
    from infodis.models.loading import load as load
    from infodis.noise.dse import dse_nll as dse_nll
    from infodis.noise.gaussian import gaussian_nll as gaussian_nll
    from infodis.predictor import from_function as from_function
    from infodis.quantities.bounds import bounds as bounds
    from infodis.quantities.choose import choose as choose
    from infodis.quantities.orders import order_nll as order_nll
    from infodis.quantities.perplexity import perplexity as perplexity
    from infodis.quantities.ratio import Ratio as Ratio
    from infodis.quantities.ratio import log_ratio as log_ratio
    from infodis.result import Estimate as Estimate
    from infodis.scores import Score as Score
    from infodis.scores import Scores as Scores
    from infodis.scores import score as score
    from infodis.train.validation import validation_nll as validation_nll

__version__ = "0.2.0"

_HOMES = {
    "auto": ("Auto",),
    "control": ("Neighbours", "Positions"),
    "design": (
        *("Enumerate", "Orders", "Pairs", "PowerCount", "StratifiedCount", "Tiled"),
        *("TimeFree", "TimeIntegral", "UniformCount"),
    ),
    "estimate": ("nll",),
    "models.doctor": ("doctor",),
    "models.loading": ("load",),
    "noise.dse": ("dse_nll",),
    "noise.gaussian": ("gaussian_nll",),
    "predictor": ("from_function",),
    "quantities.bounds": ("bounds",),
    "quantities.choose": ("choose",),
    "quantities.orders": ("order_nll",),
    "quantities.perplexity": ("perplexity",),
    "quantities.ratio": ("Ratio", "log_ratio"),
    "result": ("Estimate",),
    "scores": ("Score", "Scores", "score"),
    "train.validation": ("validation_nll",),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"infodis.{_HOME[name]}"), name)
    raise AttributeError(f"module 'infodis' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
