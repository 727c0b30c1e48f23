"""Replicates of one design: masks, weights and surprisals of some items, and what they add up to.

A `Sample` grows by whole replicates, each drawn from the stream of its item and number. It subtracts a control and
sums: the value of every replicate, and the credit of every position with its standard error.
"""

import dataclasses
import functools
import math

import torch
from jaxtyping import Bool, Float64, Int
from torch import Tensor

from infodis.control import Control, fold_bounds, neighbour_maps, predict
from infodis.design import Enumerate, Layout, MaskDesign, numbers_of
from infodis.evaluate import Coroutine, ItemBatch, Observations
from infodis.item import Item
from infodis.result import Estimate, Stopped, standard_error, stein_factor

CONTROL_CHUNK = 2**16
"""Mask entries (items x rows x positions) of a control that are fitted at a time, some ten numbers each: small enough
for the processor's cache. It changes no number."""


@dataclasses.dataclass(frozen=True, eq=False)
class Sample:
    """Replicates of one design for items of one length and target size: masks, weights and surprisals."""

    items: list[Item]
    names: list[int]
    """Of the items' random streams."""
    batch: ItemBatch
    design: MaskDesign
    layout: Layout
    control: Control | None
    seed: int
    weight: Float64[Tensor, "items rows target"]
    seen: Observations
    skip: int
    """Rows of `seen` that were there before: a pilot's."""

    @staticmethod
    def of(
        items: list[Item],
        names: list[int],
        batch: ItemBatch,
        design: MaskDesign,
        layout: Layout,
        *,
        control: Control | None,
        seed: int,
        seen: Observations | None = None,
    ) -> "Sample":
        """No replicates yet."""
        known = Observations.none(*batch.target.shape) if seen is None else seen
        weight = torch.zeros(known.masked.shape[0], 0, known.masked.shape[2], dtype=torch.float64)
        skip = known.masked.shape[1]
        return Sample(items, names, batch, design, layout, control, seed, weight, known, skip)

    @property
    def count(self) -> int:
        return self.weight.shape[1] // self.layout.rows

    @property
    def exact(self) -> bool:
        """Whether a single replicate holds all masks."""
        return self.layout.replicates == 1

    @functools.cached_property
    def values(self) -> Float64[Tensor, "items replicates"]:
        """The value of every replicate."""
        return self.combine()[0]

    def subset(self, places: Int[Tensor, " some"]) -> "Sample":
        return dataclasses.replace(
            self,
            items=[self.items[place] for place in places.tolist()],
            names=[self.names[place] for place in places.tolist()],
            batch=self.batch.subset(places),
            weight=self.weight[places],
            seen=self.seen.subset(places),
        )

    def enumerated(self) -> "Sample":
        """All masks instead; those that were seen are known."""
        layout = Enumerate().layout(self.weight.shape[-1], 2 ** self.weight.shape[-1])
        return Sample.of(
            self.items, self.names, self.batch, Enumerate(), layout, control=None, seed=self.seed, seen=self.seen
        )

    def head(self, count: int) -> "Sample":
        """The first `count` replicates alone."""
        rows = count * self.layout.rows
        masked, surprisal = (part[:, : self.skip + rows] for part in (self.seen.masked, self.seen.surprisal))
        seen = dataclasses.replace(self.seen, masked=masked, surprisal=surprisal)
        return dataclasses.replace(self, weight=self.weight[:, :rows], seen=seen)

    def extend(self, count: int) -> "Coroutine[Sample]":
        """Draw further replicates, `count` in all, each from the stream of its item and number."""
        length, more = self.weight.shape[-1], range(self.count, count)
        if not more:
            return self
        paths = [(name, replicate) for name in self.names for replicate in more]
        masked, weight = self.design.masks(*numbers_of(length, self.layout, seed=self.seed, paths=paths))
        shape = (len(self.names), len(more) * self.layout.rows, length)
        return (yield from self.add(masked.reshape(shape), weight.reshape(shape)))

    def add(
        self, masked: Bool[Tensor, "items rows target"], weight: Float64[Tensor, "items rows target"]
    ) -> "Coroutine[Sample]":
        """The same with further replicates, drawn elsewhere."""
        seen = yield from self.seen.extend(self.batch, masked)
        return dataclasses.replace(self, seen=seen, weight=torch.cat([self.weight, weight], dim=1))

    @property
    def impossible(self) -> Bool[Tensor, " items"]:
        """Where a probability of zero was met. Rows of a pilot count: one is enough."""
        return self.seen.surprisal.isinf().flatten(1).any(1)

    def combine(
        self, first: int | None = None
    ) -> tuple[Float64[Tensor, "items replicates"], Float64[Tensor, "items target"], Float64[Tensor, "items target"]]:
        """The value of every replicate, and the credit of every position with its standard error.

        `first` replicates alone decide on a control and on errors, where the others were drawn because of them.
        """
        folds = fold_bounds(first or self.count, self.layout.rows) if self.count > 1 else []
        per_replicate = self.per_replicate(folds)
        values, credits = per_replicate.sum(-1), per_replicate.mean(1)
        errors = standard_error(per_replicate[:, :first], dim=1)
        if first is not None:
            errors = errors * (stein_factor(first) * math.sqrt(first / self.count))
        values[self.impossible] = math.inf
        infinite = self.seen.surprisal.isinf().any(1)
        return values, torch.where(infinite, math.inf, credits), torch.where(infinite, 0.0, errors)

    def per_replicate(self, folds: list[tuple[int, int]]) -> Float64[Tensor, "items replicates target"]:
        """What every position adds to every replicate, less a control that is fitted across folds of rows, if any.

        Infinite surprisals count as nothing: see `impossible`.
        """
        masked, surprisal = self.seen.masked[:, self.skip :], self.seen.surprisal[:, self.skip :]
        finite = torch.where(surprisal.isinf(), 0.0, surprisal)
        terms = self.weight * finite
        if self.control is not None and not self.design.telescoping and folds:
            terms = self._controlled(self.control, masked, finite, folds)
        return terms.unflatten(1, (self.count, self.layout.rows)).sum(2)

    def _controlled(
        self, control: Control, masked: Tensor, surprisal: Tensor, folds: list[tuple[int, int]]
    ) -> Float64[Tensor, "items rows target"]:
        """Weighted residuals, plus each row's share of the known mean [eq:control]."""
        maps = neighbour_maps(self.batch.target, control.offsets)
        step = max(1, CONTROL_CHUNK // masked[0].numel())
        parts = []
        for block in zip(*(values.split(step) for values in (masked, self.weight, surprisal, maps)), strict=True):
            columns = (values.transpose(1, 2).contiguous() for values in block[:3])
            prediction, mean = (part.transpose(1, 2) for part in predict(control, *columns, folds=folds, maps=block[3]))
            parts.append(block[1] * (block[2] - prediction) + mean / self.layout.rows)
        return torch.cat(parts)

    def estimates(self, first: int | None, stopped: Stopped) -> list[Estimate]:
        """What the replicates say about every item."""
        control = None if self.design.telescoping else self.control
        return [
            Estimate(
                quantity="nll",
                replicates=values,
                evaluations=cost,
                seed=self.seed,
                stopped=stopped,
                first=first,
                per_token=credits,
                per_token_error=errors,
                target=item.target,
                design=self.design,
                control=control,
                identity=(item.key, self.layout.rows),
                seeds=frozenset({self.seed}),
            )
            for item, cost, values, credits, errors in zip(
                self.items, self.seen.cost.tolist(), *self.combine(first), strict=True
            )
        ]
