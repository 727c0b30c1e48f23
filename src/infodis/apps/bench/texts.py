"""How much estimates of texts vary under a network, beside LLaDA's sampler at as many forward passes.

A text's own answer is not known here, so that variances over repeated runs are compared, and how well standard errors
tell them. Every run is evaluated once; controls are taken off the same rows. The variance of LLaDA's sampler follows
from moments by size (`moments`), for batches of at most 16 rows.
"""

import dataclasses
from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float64, Int
from torch import Tensor

from infodis.apps.bench.moments import Moments, law
from infodis.apps.bench.peers import LladaSampler
from infodis.control import Control, Kernel, Neighbours, Surrogate
from infodis.design import Tiled
from infodis.errors import InputError
from infodis.evaluate import Batching, ItemBatch, run
from infodis.item import Item
from infodis.models.model import Model
from infodis.result import Measured, standard_error
from infodis.rng import key
from infodis.sample import Sample

BUDGETS = (8, 16, 32, 64, 128)
BATCH = 16
"""Of LLaDA's sampler, where as many rows are paid for."""


@dataclasses.dataclass(frozen=True)
class TextVariance:
    """Variances of one control at one budget, over texts."""

    model: str
    source: str
    """Where the texts come from."""
    control: str
    rows: int
    texts: int
    runs: int
    variance: float
    """Of a text's nll, in nats squared, averaged over texts."""
    llada: float
    """The same of LLaDA's sampler."""
    times_below: float
    error: float
    """Of `times_below`, by leaving out one text at a time."""
    calibration: float
    """The mean of standard_error^2 over `variance`."""


def text_variance(
    model: Model, items: Sequence[Item], *, source: str, runs: int, budgets: Sequence[int] = BUDGETS, seed: int = 0
) -> Iterator[TextVariance]:
    """`Tiled` with each control, at each budget."""
    moments = [Moments.drawn(model, item, seed=seed) for item in items]
    for rows in budgets:
        peer = LladaSampler(min(BATCH, rows))
        peers = [its.variance(law(peer, len(its.mean), rows)) for its in moments]
        drawn = [_drawn(model, item, rows, runs, seed) for item in items]
        for name in drawn[0]:
            values = [each[name] for each in drawn]
            mine = [float(one.mean(1).var()) for one in values]
            told = [float(standard_error(one, dim=1).square().mean()) for one in values]
            below, mean = Measured.ratio(peers, mine), sum(mine) / len(mine)
            calibration = sum(told) / sum(mine)
            yield TextVariance(
                model.name,
                source,
                name,
                rows,
                len(items),
                runs,
                mean,
                sum(peers) / len(peers),
                below.value,
                below.standard_error,
                calibration,
            )


def _drawn(model: Model, item: Item, rows: int, runs: int, seed: int) -> dict[str, Float64[Tensor, "runs replicates"]]:
    """The replicates of many runs on one text, with each control on the same rows, and with the surrogate if any."""
    names = [key(item.key, "variance", rows, number) for number in range(runs)]
    items, design = [item] * runs, Tiled()
    layout = design.layout(item.target.numel(), rows)
    sample = Sample.of(items, names, ItemBatch.of(model, items), design, layout, control=Surrogate(), seed=seed)
    sample = run(sample.extend(layout.replicates), Batching())
    alone = dataclasses.replace(sample, beside=sample.beside[:0], exact_beside=sample.exact_beside[:0])
    regressions: dict[str, Control | None] = {"none": None, "Neighbours": Neighbours(), "Kernel": Kernel()}
    found = {name: dataclasses.replace(alone, control=control).values for name, control in regressions.items()}
    if not isinstance(sample.control, Surrogate):
        return found
    for name in ("Neighbours", "Kernel"):
        both = dataclasses.replace(sample.control, residual=regressions[name])
        found[f"Surrogate, {name}"] = dataclasses.replace(sample, control=both).values
    return found


def windows(text: Int[Tensor, " tokens"], *, count: int, context: int, target: int) -> list[Item]:
    """Pieces of a long text, spread evenly over it."""
    length = context + target
    if len(text) < count * length:
        raise InputError(f"{count} windows of {length} tokens take {count * length} tokens, got {len(text)}.")
    starts = (torch.arange(count) * ((len(text) - length) // max(1, count - 1))).tolist()
    return [Item.read(text[start : start + length], context=range(context)) for start in starts]


def lines(model: Model, texts: Sequence[str], *, count: int, most: int) -> list[Item]:
    """The first lines that are not longer than so many tokens, read as the model expects them."""
    found = (model.read(text) for text in texts if text.strip())
    kept = [item for item in found if 24 <= item.target.numel() <= most][:count]
    if len(kept) < 2:
        raise InputError(f"At least two lines must have 24 to {most} tokens, got {len(kept)}.")
    return kept
