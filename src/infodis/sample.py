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

from infodis.control import (
    FEWEST_PARTS,
    Control,
    Evened,
    Regression,
    evened,
    fitted_betas,
    fold_bounds,
    neighbour_maps,
    predict,
)
from infodis.design import Layout, MaskDesign, key_count, numbers_of
from infodis.errors import PredictorError
from infodis.evaluate import Coroutine, ItemBatch, Observations, distinct
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
    beside: Float64[Tensor, "surrogates items rows target"]
    """What the control's surrogates say about the same masks."""
    exact_beside: Float64[Tensor, "surrogates items"]
    """The known means of their estimates."""

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
        """No replicates yet. The control is what it comes to for the batch's predictor."""
        control = None if control is None else _control_on(batch, design, layout, control)
        surrogates = () if control is None else control.surrogates
        exact = [one.nlls(items) for one in surrogates]
        known = Observations.none(*batch.target.shape) if seen is None else seen
        weight = torch.zeros(known.masked.shape[0], 0, known.masked.shape[2], dtype=torch.float64)
        skip = known.masked.shape[1]
        beside = torch.zeros(len(surrogates), *weight.shape, dtype=torch.float64)
        means = torch.stack(exact) if exact else torch.zeros(0, len(items), dtype=torch.float64)
        return Sample(items, names, batch, design, layout, control, seed, weight, known, skip, beside, means)

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
            beside=self.beside[:, places],
            exact_beside=self.exact_beside[:, places],
        )

    def enumerated(self) -> "Sample":
        """All masks instead; those that were seen are known."""
        design, length = self.design.exhaustive(), self.weight.shape[-1]
        layout = design.layout(length, 2 ** max(design.parts(length)))
        return Sample.of(
            self.items, self.names, self.batch, design, layout, control=None, seed=self.seed, seen=self.seen
        )

    def head(self, count: int) -> "Sample":
        """The first `count` replicates alone."""
        rows = count * self.layout.rows
        masked, surprisal = (part[:, : self.skip + rows] for part in (self.seen.masked, self.seen.surprisal))
        seen = dataclasses.replace(self.seen, masked=masked, surprisal=surprisal)
        return dataclasses.replace(self, weight=self.weight[:, :rows], seen=seen, beside=self.beside[:, :, :rows])

    def extend(self, count: int) -> "Coroutine[Sample]":
        """Draw further replicates, `count` in all, each plan from the stream of its item and number."""
        length, plan, each = self.weight.shape[-1], self.layout.plan, self.layout.together
        more = range(self.count // each, count // each)
        if not more:
            return self
        paths = [(name, number) for name in self.names for number in more]
        keys = key_count(self.design, length)
        drawn = self.design.masks(*numbers_of(keys, plan, seed=self.seed, paths=paths))
        shape = (len(self.names), len(more) * plan.rows, length)
        masked, weight = (part[:, self.layout.turns].reshape(shape) for part in drawn)
        return (yield from self.add(masked, weight * each))

    def add(
        self, masked: Bool[Tensor, "items rows target"], weight: Float64[Tensor, "items rows target"]
    ) -> "Coroutine[Sample]":
        """The same with further replicates, drawn elsewhere."""
        seen = yield from self.seen.extend(self.batch, masked)
        beside = torch.cat([self.beside, self._beside(masked)], dim=2)
        return dataclasses.replace(self, seen=seen, weight=torch.cat([self.weight, weight], dim=1), beside=beside)

    def _beside(self, masked: Bool[Tensor, "items rows target"]) -> Float64[Tensor, "surrogates items rows target"]:
        """What the surrogates say about some masks; each distinct one of an item is looked at once."""
        if not len(self.beside):
            return torch.zeros(0, *masked.shape, dtype=torch.float64)
        first, same_as = distinct(masked)
        item, rows = first // masked.shape[1], masked.flatten(0, 1)[first]
        target = self.batch.target[item]
        hidden = self.batch.hidden[item].scatter(1, target, rows)
        assert self.control is not None
        found = [
            one.predictor.surprisal(self.batch.tokens[item], hidden).double().gather(1, target)[same_as]
            for one in self.control.surrogates
            if one.predictor is not None
        ]
        if not all(bool(one.isfinite().all()) for one in found):
            raise PredictorError("A surrogate must find every text possible; this one met a probability of zero.")
        return torch.stack(found).view(-1, *masked.shape) * masked

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
        plans = (first or self.count) // self.layout.together
        folds = fold_bounds(plans, self.layout.plan.rows) if self.count > 1 else []
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
        layers = torch.cat([finite.unsqueeze(0), self.beside])
        regression = None if self.control is None else self.control.regression
        if isinstance(self.control, Evened) and folds:
            rows, parts = self.layout.rows, self.design.parts(masked.shape[-1])
            return evened(masked, self.weight, finite, rows=rows, first=folds[-1][1] // rows, parts=parts)
        if regression is None or not folds:
            terms = self.weight * layers
        else:
            terms = self._controlled(regression, masked, layers, folds)
        found = terms.unflatten(2, (self.count, self.layout.rows)).sum(3)
        return found[0] - self._errors_beside(found[1:], finite, folds).unsqueeze(-1) / masked.shape[-1]

    def _errors_beside(
        self,
        found: Float64[Tensor, "surrogates items replicates target"],
        surprisal: Float64[Tensor, "items rows target"],
        folds: list[tuple[int, int]],
    ) -> Float64[Tensor, "items replicates"]:
        """Beta times what the estimate of a surrogate is off, of all surrogates together [eq:surrogate].

        Positions share it equally: only the mean of their sum is known.
        """
        total = torch.zeros(found.shape[1:3], dtype=torch.float64)
        surrogates = () if self.control is None else self.control.surrogates
        for one, mine, beside, exact in zip(surrogates, found, self.beside, self.exact_beside, strict=True):
            beta: Tensor | float | None = one.beta
            if beta is None:
                columns = (part.transpose(1, 2) for part in (self.weight, surprisal, beside))
                beta = fitted_betas(*columns, folds=folds)[:, :: self.layout.rows]
            total = total + beta * (mine.sum(-1) - exact.unsqueeze(1))
        return total

    def _controlled(
        self, control: Regression, masked: Tensor, layers: Tensor, folds: list[tuple[int, int]]
    ) -> Float64[Tensor, "layers items rows target"]:
        """Weighted residuals, plus each row's share of the known mean [eq:control]."""
        parts = self.design.parts(masked.shape[-1])
        control = control.for_rows(folds[-1][1])
        maps = neighbour_maps(self.batch.target, control.offsets, parts)
        step = max(1, CONTROL_CHUNK // masked[0].numel())
        residuals = []
        split = (values.split(step) for values in (masked, self.weight, maps))
        for some, weight, near, values in zip(*split, layers.split(step, dim=1), strict=True):
            columns = (part.transpose(-1, -2).contiguous() for part in (some, weight, values))
            found = predict(control, *columns, folds=folds, maps=near, parts=parts)
            prediction, mean = (part.transpose(-1, -2) for part in found)
            residuals.append(weight * (values - prediction) + mean / self.layout.rows)
        return torch.cat(residuals, dim=1)

    def estimates(self, first: int | None, stopped: Stopped) -> list[Estimate]:
        """What the replicates say about every item."""
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
                control=self.control,
                identity=(item.key, self.layout.rows),
                seeds=frozenset({self.seed}),
            )
            for item, cost, values, credits, errors in zip(
                self.items, self.seen.cost.tolist(), *self.combine(first), strict=True
            )
        ]


def _control_on(batch: ItemBatch, design: MaskDesign, layout: Layout, control: Control) -> Control | None:
    """What a control comes to: reveal orders are evened where there are blocks enough, all masks need nothing."""
    if not design.telescoping:
        return control.on(batch.predictor)
    many = layout.replicates > 1 and len(design.parts(batch.target.shape[1])) >= FEWEST_PARTS
    return Evened() if many else None
