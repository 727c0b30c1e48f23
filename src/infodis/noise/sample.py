"""Replicates of noised rows: what they are drawn like, their score entropies, and what those add up to.

The sibling of `infodis.sample.Sample` for models of noise. Both grow by whole replicates, each drawn from the stream of
its item and number, and both say what the replicates come to.
"""

import dataclasses
import functools
import math

import torch
from jaxtyping import Bool, Float64, Int
from torch import Tensor

from infodis.control import Regression, fold_bounds, neighbour_maps, predict
from infodis.design import Layout
from infodis.errors import InputError
from infodis.evaluate import Coroutine, ItemBatch
from infodis.item import Item
from infodis.noise.design import NoiseDesign
from infodis.noise.process import Absorbing
from infodis.result import Estimate, Stopped, standard_error, stein_factor


@dataclasses.dataclass(frozen=True, eq=False)
class NoiseSample:
    """Replicates of one noise design for items of one length and target size."""

    items: list[Item]
    names: list[int]
    """Of the items' random streams."""
    batch: ItemBatch
    design: NoiseDesign
    layout: Layout
    control: Regression | None
    seed: int
    weight: Float64[Tensor, "items rows"]
    hits: Bool[Tensor, "items hit_rows target"]
    """Of the rows that were drawn by hits: the first of every replicate."""
    hit_weight: Float64[Tensor, "items hit_rows"]
    entropy: Float64[Tensor, "items rows target"]
    """What `weight` multiplies."""

    @staticmethod
    def of(
        items: list[Item],
        names: list[int],
        batch: ItemBatch,
        design: NoiseDesign,
        layout: Layout,
        *,
        control: Regression | None,
        seed: int,
    ) -> "NoiseSample":
        """No replicates yet."""
        count, length = batch.target.shape
        rows, targets = torch.zeros(count, 0, dtype=torch.float64), torch.zeros(count, 0, length, dtype=torch.float64)
        return NoiseSample(items, names, batch, design, layout, control, seed, rows, targets.bool(), rows, targets)

    def __post_init__(self) -> None:
        if not isinstance(self.design.noise.process, Absorbing) and not all(item.complete for item in self.items):
            raise InputError(
                "Every position must be target or context: only masking can leave some out. Name the others as context."
            )

    exact = False

    @property
    def count(self) -> int:
        return self.weight.shape[1] // self.layout.rows

    @functools.cached_property
    def values(self) -> Float64[Tensor, "items replicates"]:
        """The value of every replicate."""
        return self.per_replicate(None).sum(-1)

    def subset(self, places: Int[Tensor, " some"]) -> "NoiseSample":
        """Some of the items."""
        numbers = places.tolist()
        return dataclasses.replace(
            self,
            items=[self.items[place] for place in numbers],
            names=[self.names[place] for place in numbers],
            batch=self.batch.subset(places),
            weight=self.weight[places],
            hits=self.hits[places],
            hit_weight=self.hit_weight[places],
            entropy=self.entropy[places],
        )

    def extend(self, count: int) -> "Coroutine[NoiseSample]":
        """Draw further replicates, `count` in all, each from the stream of its item and number."""
        more = range(self.count, count)
        if not more:
            return self
        items, length = self.batch.target.shape
        paths = [(name, "noise", replicate) for name in self.names for replicate in more]
        numbers = self.design.numbers(length, self.layout.rows, seed=self.seed, paths=list(paths))
        clean = self.batch.tokens.gather(1, self.batch.target).repeat_interleave(len(more), dim=0)
        plan = self.design.draw(numbers, clean)
        rows = len(more) * self.layout.rows
        item = torch.arange(items).repeat_interleave(rows)
        mask = self.design.noise.process.states - 1
        totals = plan.totals.flatten().clamp(max=self.design.noise.end)  # rows beyond have no weight
        found = yield from self.batch.entropies(item, plan.states.flatten(0, 1), totals, mask)
        return dataclasses.replace(
            self,
            weight=_joined(self.weight, plan.weight),
            hits=_joined(self.hits, plan.hits),
            hit_weight=_joined(self.hit_weight, plan.hit_weight),
            entropy=_joined(self.entropy, found),
        )

    def per_replicate(self, first: int | None) -> Float64[Tensor, "items replicates target"]:
        """What every position adds to every replicate: the integral, and the term at its end."""
        ends = self.design.noise.end_terms(self.batch.tokens.gather(1, self.batch.target))
        return self.integrals(first) + ends.unsqueeze(1)

    def integrals(self, first: int | None = None) -> Float64[Tensor, "items replicates target"]:
        """The integral alone, less a control that is fitted across folds of replicates.

        Only the `first` replicates decide on the control, where the others were drawn because of them.
        """
        weight = self.weight.unsqueeze(-1)
        terms = torch.where(weight > 0, weight * self.entropy, 0.0)  # even where it is infinite
        found = terms.unflatten(1, (self.count, self.layout.rows)).sum(2)
        if self.control is None or self.count < 2 or not self._by_hits:
            return found
        return found - self._controlled(self.control, terms, fold_bounds(first or self.count, self._by_hits))

    @property
    def _by_hits(self) -> int:
        """Rows of a replicate that were drawn by hits."""
        return self.hits.shape[1] // self.count

    def _controlled(
        self, control: Regression, terms: Float64[Tensor, "items rows target"], folds: list[tuple[int, int]]
    ) -> Float64[Tensor, "items replicates target"]:
        """A prediction of what hit tokens cost, less its known mean: hits are those of a mask design [eq:control]."""
        items, _, length = terms.shape
        each = (items, self.count * self._by_hits, length)
        of_hits = terms.unflatten(1, (self.count, self.layout.rows))[:, :, : self._by_hits].reshape(each)
        hits, weight = self.hits, self.hit_weight.unsqueeze(-1) * self.hits
        cost = torch.where(hits & of_hits.isfinite(), of_hits / weight.clamp(min=torch.finfo(torch.float64).tiny), 0.0)
        maps = neighbour_maps(self.batch.target, control.offsets, (length,))
        hit, weighed, layer = (values.transpose(1, 2).contiguous() for values in (hits, weight, cost))
        found = predict(control, hit, weighed, layer.unsqueeze(0), folds=folds, maps=maps, parts=(length,))
        prediction, mean = (part[0].transpose(1, 2) for part in found)
        surplus = weight * prediction - mean / self._by_hits
        return surplus.unflatten(1, (self.count, self._by_hits)).sum(2)

    def estimates(self, first: int | None, stopped: Stopped) -> list[Estimate]:
        """What the replicates say about every item."""
        per_replicate = self.per_replicate(first)
        errors = standard_error(per_replicate[:, :first], dim=1)
        if first is not None:
            errors = errors * (stein_factor(first) * math.sqrt(first / self.count))
        impossible = per_replicate.isinf()
        credits = per_replicate.mean(1)
        errors = torch.where(impossible.any(1), 0.0, errors)
        return [
            Estimate(
                quantity="dse_nll",
                replicates=per_replicate[number].sum(-1),
                evaluations=self.count * self.layout.rows,
                seed=self.seed,
                stopped=stopped,
                first=first,
                per_token=credits[number],
                per_token_error=errors[number],
                target=item.target,
                design=str(self.design),
                control=self.control,
                identity=(item.key, self.layout.rows),
                seeds=frozenset({self.seed}),
            )
            for number, item in enumerate(self.items)
        ]


def _joined(known: Tensor, drawn: Tensor) -> Tensor:
    """With what was drawn for the same items: of every item, its replicates stand together."""
    return torch.cat([known, drawn.reshape(len(known), -1, *known.shape[2:])], dim=1)
