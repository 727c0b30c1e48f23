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
    from infodis.auto import Blocks as Blocks
    from infodis.blocks import BlockLayout as BlockLayout
    from infodis.control import Kernel as Kernel
    from infodis.control import Neighbours as Neighbours
    from infodis.control import Positions as Positions
    from infodis.control import Surrogate as Surrogate
    from infodis.design import Dealt as Dealt
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
    from infodis.gradients import log_likelihood as log_likelihood
    from infodis.models.doctor import doctor as doctor
    from infodis.models.loading import load as load
    from infodis.mutants import variants as variants
    from infodis.noise.dse import dse_nll as dse_nll
    from infodis.noise.gaussian import gaussian_nll as gaussian_nll
    from infodis.pairs import minimal_pairs as minimal_pairs
    from infodis.plan import MaskPlan as MaskPlan
    from infodis.plan import draw_plan as draw_plan
    from infodis.predictor import from_function as from_function
    from infodis.quantities.bounds import bounds as bounds
    from infodis.quantities.choose import choose as choose
    from infodis.quantities.orders import order_nll as order_nll
    from infodis.quantities.perplexity import perplexity as perplexity
    from infodis.quantities.ratio import Ratio as Ratio
    from infodis.quantities.ratio import log_ratio as log_ratio
    from infodis.result import Estimate as Estimate
    from infodis.reveal import AboveThreshold as AboveThreshold
    from infodis.reveal import InBlocks as InBlocks
    from infodis.reveal import LargestMargin as LargestMargin
    from infodis.reveal import LeftToRight as LeftToRight
    from infodis.reveal import LowestEntropy as LowestEntropy
    from infodis.reveal import MostConfident as MostConfident
    from infodis.reveal import RandomOrder as RandomOrder
    from infodis.reveal import RightToLeft as RightToLeft
    from infodis.scores import Score as Score
    from infodis.scores import Scores as Scores
    from infodis.scores import score as score
    from infodis.train.objectives import dpo_loss as dpo_loss
    from infodis.train.objectives import grpo_loss as grpo_loss
    from infodis.train.objectives import ipo_loss as ipo_loss
    from infodis.train.objectives import kto_loss as kto_loss
    from infodis.train.objectives import sandwich_loss as sandwich_loss
    from infodis.train.validation import validation_nll as validation_nll

__version__ = "0.3.0"

_HOMES = {
    "auto": ("Auto", "Blocks"),
    "blocks": ("BlockLayout",),
    "control": ("Kernel", "Neighbours", "Positions", "Surrogate"),
    "design": (
        *("Dealt", "Enumerate", "Orders", "Pairs", "PowerCount", "StratifiedCount", "Tiled"),
        *("TimeFree", "TimeIntegral", "UniformCount"),
    ),
    "estimate": ("nll",),
    "gradients": ("log_likelihood",),
    "models.doctor": ("doctor",),
    "models.loading": ("load",),
    "mutants": ("variants",),
    "noise.dse": ("dse_nll",),
    "noise.gaussian": ("gaussian_nll",),
    "pairs": ("minimal_pairs",),
    "plan": ("MaskPlan", "draw_plan"),
    "predictor": ("from_function",),
    "quantities.bounds": ("bounds",),
    "quantities.choose": ("choose",),
    "quantities.orders": ("order_nll",),
    "quantities.perplexity": ("perplexity",),
    "quantities.ratio": ("Ratio", "log_ratio"),
    "result": ("Estimate",),
    "reveal": (
        *("AboveThreshold", "InBlocks", "LargestMargin", "LeftToRight"),
        *("LowestEntropy", "MostConfident", "RandomOrder", "RightToLeft"),
    ),
    "scores": ("Score", "Scores", "score"),
    "train.objectives": ("dpo_loss", "grpo_loss", "ipo_loss", "kto_loss", "sandwich_loss"),
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
