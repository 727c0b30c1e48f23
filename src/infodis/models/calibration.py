"""Make a surrogate for a model: a chain counted in text, and how much of it to subtract."""

import dataclasses

import torch
from jaxtyping import Int
from torch import Tensor

from infodis.control import Neighbours, Surrogate
from infodis.design import Tiled
from infodis.errors import InputError
from infodis.estimate import Request, estimate_items
from infodis.item import Item
from infodis.oracle import MarkovChain
from infodis.predictor import Predictor

MOST_ENTRIES = 2**24
"""Of a table of transitions."""

LARGE = 2**20
"""Entries of a table of an order above 1."""

CHEAP_STATES = 2**13
"""Of a window that is hidden altogether: with more, the oldest token counts by its class."""

HIGHEST_ORDER = 4

TEXTS, WINDOW, CONTEXT, BUDGET = 64, 64, 16, 32
"""What beta is fitted to: texts, their tokens, those of them that are given, forward passes for each."""


def order_for(vocab_size: int) -> tuple[int, int | None]:
    """The order of a chain that is worth its time, and the classes of its oldest token, if that is to have any.

    >>> order_for(27), order_for(4)
    ((3, 12), (4, None))
    """
    if vocab_size**2 > MOST_ENTRIES:
        raise InputError(
            f"A chain is counted over at most {int(MOST_ENTRIES**0.5):,} tokens, this model has {vocab_size:,}. It has "
            "no surrogate of this kind; scores go on without one."
        )
    order = max(n for n in range(1, HIGHEST_ORDER + 1) if n == 1 or vocab_size ** (n + 1) <= LARGE)
    states = vocab_size**order
    return order, None if order < 2 or states <= CHEAP_STATES else max(2, -(-vocab_size * CHEAP_STATES // states))


def calibrate(model: Predictor, tokens: Int[Tensor, " tokens"], *, texts: int = TEXTS, seed: int = 0) -> Surrogate:
    """A surrogate for a model: counted in all of some tokens but the last ones, to which its beta is fitted.

    The last ones must not be scored later with the same seed: beta would depend on the masks that it is applied to. The
    forward passes that it takes are 32 for each of `texts`.
    """
    order, classes = order_for(model.vocab_size)
    kept = texts * WINDOW
    if len(tokens) < 4 * kept:
        raise InputError(
            f"A corpus must hold at least {4 * kept:,} tokens, of which the last {kept:,} are for beta; got "
            f"{len(tokens):,}. Give more text."
        )
    counted = tokens[:-kept].unsqueeze(0)
    chain = MarkovChain.counted(counted, order=order, vocab_size=model.vocab_size, classes=classes)
    chain = dataclasses.replace(chain, transitions=chain.windows.transitions, initial=chain.start, dtype=torch.float32)
    return Surrogate(chain, beta=_fitted_beta(model, chain, tokens[-kept:].view(texts, WINDOW), seed=seed))


def _fitted_beta(model: Predictor, chain: MarkovChain, windows: Int[Tensor, "texts tokens"], *, seed: int) -> float:
    """The slope of a model's replicates on those of the chain at the same masks, within texts."""
    items = [Item.read(window, context=range(CONTEXT)) for window in windows]
    request = Request(Tiled(), Neighbours(), BUDGET)
    mine, beside = (
        torch.stack([one.replicates for one in estimate_items(predictor, items, request, seed=seed)])
        for predictor in (model, chain)
    )
    f, h = (values - values.mean(1, keepdim=True) for values in (mine, beside))
    return round(float(((f * h).sum() / h.square().sum()).clamp(0.0, 1.0)), 3)
