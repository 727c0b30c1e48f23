"""Log-likelihood ratios with shared randomness.

log p(y) - log p(x) is a difference of two `nll`s. Each side alone is unbiased, so the difference is unbiased however
the two are drawn; drawn from the same uniform numbers, their errors go up and down together and cancel. The numbers are
shared, not the masks, so the lengths need not be equal: the same level gives each side the same share of masked
positions, the same keys decide which [eq:ratio].

A `Comparison` is a sum of such sides, each added or subtracted: two for a ratio, four for a reward margin. `compare`
makes many of them side by side, so that their rows share batches.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, SupportsIndex

import torch
from jaxtyping import Float64
from torch import Tensor

from infodis.auto import Auto
from infodis.control import Control, Neighbours
from infodis.design import Layout, MaskDesign
from infodis.errors import InputError
from infodis.estimate import CHUNK, WINDOW, Request, pilot_coroutine
from infodis.evaluate import Batching, Coroutine, ItemBatch, run_batched
from infodis.item import Item, Positions, Tokens, read_items
from infodis.predictor import Predictor
from infodis.result import Estimate, Replicated, Stopped
from infodis.rng import check_seed, key
from infodis.sample import Sample

Sign = Literal[1, -1]


@dataclasses.dataclass(frozen=True, eq=False)
class Ratio(Replicated):
    """A sum of sign x log p in nats, in most cases log p(y) - log p(x), with the `nll` of every side."""

    sides: tuple[Estimate, ...]
    signs: tuple[Sign, ...]
    coupled: bool

    @property
    def numerator(self) -> Estimate:
        """The `nll` of y, where two sides are compared."""
        return self._only(1)

    @property
    def denominator(self) -> Estimate:
        """The `nll` of x, where two sides are compared."""
        return self._only(-1)

    def _only(self, sign: Sign) -> Estimate:
        found = [side for side, its in zip(self.sides, self.signs, strict=True) if its == sign]
        if len(found) != 1:
            raise InputError(f"{len(self.sides)} sides have no single numerator and denominator: read `sides`.")
        return found[0]

    def __repr__(self) -> str:
        return f"Ratio({self.quantity} = {self.value:.4f} nats, {self._precision()}, coupled={self.coupled})"


Outcome = Ratio | InputError
"""A ratio, or why there is none."""


def log_ratio(
    predictor: Predictor,
    y: Tokens,
    x: Iterable[int] | Tensor | None = None,
    *,
    reference: Predictor | None = None,
    target: Positions | None = None,
    context: Positions | None = None,
    evaluations: int | None = None,
    standard_error: float | None = None,
    design: MaskDesign = Auto(),
    control: Control | None = Neighbours(),
    coupled: bool = True,
    seed: SupportsIndex = 0,
    batch_size: int | None = None,
) -> "Ratio | list[Ratio]":
    """Log p(y) - log p(x), or log p(y) under `predictor` minus log p(y) under `reference`, with its standard error.

    Args:
        y: one sequence, or a list of candidates (then a list of ratios comes back), of any lengths.
        x: the sequence to compare with; leave it out if you give a `reference`.
        reference: another predictor, to compare with on the same tokens.
        target, context: positions, the same for every sequence; by default everything is target.
        evaluations, standard_error, design, control, seed, batch_size: as for `nll`, for each side.
        coupled: share the randomness. `False` draws the two sides independently, for comparison.

    >>> from infodis import oracle
    >>> chain = oracle.MarkovChain.random(order=1, vocab_size=3)
    >>> ratio = log_ratio(chain, [0, 1, 2, 0, 1], [2, 2, 0])
    >>> abs(ratio.value - (chain.log_prob([0, 1, 2, 0, 1]) - chain.log_prob([2, 2, 0]))) < 1e-9
    True
    """
    if (x is None) == (reference is None):
        raise InputError(
            "Compare y with another sequence x, or with a reference predictor on the same tokens: give one."
        )
    request = Request(design, control, evaluations, standard_error, batch_size=batch_size)
    numerators, single = read_items(y, target=target, context=context)
    if x is None:
        denominators = numerators
    else:
        base, _ = read_items(x, target=target, context=context)
        if len(base) != 1:
            raise InputError(f"x must be one sequence, got {len(base)}. For many candidates give a list as y.")
        denominators = base * len(numerators)
    other = predictor if reference is None else reference
    number = check_seed(seed)
    comparisons = [
        Comparison((Side(predictor, above), Side(other, below, -1)), request, coupled, number)
        for above, below in zip(numerators, denominators, strict=True)
    ]
    found = [_defined(outcome) for outcome in compare(comparisons)]
    return found[0] if single else found


@dataclasses.dataclass(frozen=True, eq=False)
class Side:
    """One log p of a comparison, added or subtracted."""

    predictor: Predictor
    item: Item
    sign: Sign = 1

    @property
    def shape(self) -> tuple[int, int, int]:
        """Sides of one shape can be estimated together."""
        return id(self.predictor), self.item.length, self.item.target.numel()


def margin(policy: Predictor, chosen: Item, rejected: Item, *, reference: Predictor | None = None) -> tuple[Side, ...]:
    """The sides of log p(chosen) - log p(rejected); with a reference, minus the same under the reference.

    The latter is the reward margin of direct preference optimisation, in units of its temperature beta.
    """
    sides = (Side(policy, chosen), Side(policy, rejected, -1))
    return sides if reference is None else (*sides, Side(reference, chosen, -1), Side(reference, rejected))


@dataclasses.dataclass(frozen=True, eq=False)
class Comparison:
    """The sum of sign x log p over some sides, drawn from the same uniform numbers.

    The first side that is subtracted is the **base**. A pilot on it decides the design of all sides. The numbers are
    named after it, so that all candidates that are compared with one sequence share them.
    """

    sides: tuple[Side, ...]
    request: Request = Request()
    coupled: bool = True
    """`False` draws every side independently, for comparison."""
    seed: int = 0
    quantity: str = "log_ratio"

    def __post_init__(self) -> None:
        if all(side.sign == 1 for side in self.sides):
            raise InputError(f"A comparison needs a side that is subtracted; all {len(self.sides)} are added.")
        for side in self.sides:
            side.item.check_vocabulary(vocab_size=side.predictor.vocab_size, mask_token=side.predictor.mask_token)

    @property
    def base(self) -> Side:
        return next(side for side in self.sides if side.sign == -1)

    @property
    def entries(self) -> int:
        """Mask entries of a first stage, about."""
        rows = self.request.first_rows(self.base.item.target.numel(), sides=2)
        return rows * sum(side.item.target.numel() for side in self.sides)

    def names(self) -> list[int]:
        """The random stream of every side."""
        shared = last = key(self.base.item.key, "ratio", 0)
        names = []
        for side in self.sides:
            if side is self.base or self.coupled:
                names.append(shared)
            else:
                last = key(last, "apart")
                names.append(last)
        return names

    def ratio(self) -> Ratio:
        """The outcome of this comparison alone."""
        return _defined(compare([self])[0])


def _defined(outcome: Outcome) -> Ratio:
    if isinstance(outcome, InputError):
        raise outcome
    return outcome


def compare(comparisons: Sequence[Comparison]) -> list[Outcome]:
    """Make many comparisons side by side; what came of each, in order.

    Their rows share batches, and what several of them ask (the same side from the same numbers) is asked once. A
    comparison that has no answer, since two probabilities of zero meet or its budget is too small for its design, gives
    the `InputError` that says so, and the others go on. Batches are as small as the smallest that a request asks for.
    """
    groups = list(_groups(comparisons))
    largest = max((sum(comparisons[n].entries for n in group) for group in groups), default=1)
    sizes = [comparison.request.batch_size for comparison in comparisons]
    smallest = min((size for size in sizes if size is not None), default=None)
    batching = Batching(smallest, together=max(1, WINDOW // largest))
    coroutines = (ratio_coroutine([comparisons[n] for n in group]) for group in groups)
    found: dict[int, Outcome] = {}
    for group, outcomes in zip(groups, run_batched(coroutines, batching), strict=True):
        found |= dict(zip(group, outcomes, strict=True))
    return [found[n] for n in range(len(comparisons))]


def _groups(comparisons: Sequence[Comparison]) -> Iterator[list[int]]:
    """Numbers of comparisons that begin alike, few enough at a time to fit in memory."""
    alike: dict[tuple, list[int]] = {}
    for number, comparison in enumerate(comparisons):
        alike.setdefault((comparison.base.shape, comparison.request, comparison.seed), []).append(number)
    for members in sorted(alike.values(), key=lambda m: -comparisons[m[0]].base.item.length):  # less padding
        group: list[int] = []
        entries = 0
        for number in members:
            entries += comparisons[number].entries
            if group and entries > CHUNK:
                yield group
                group, entries = [], comparisons[number].entries
            group.append(number)
        yield group


def ratio_coroutine(comparisons: Sequence[Comparison]) -> Coroutine[list[Outcome]]:
    """The coroutine that makes comparisons with bases of one shape, one request and one seed."""
    begun = yield from _begin(comparisons)
    stages = [stage for stage in begun if isinstance(stage, Stage)]
    first = yield from _sampled(stages, [stage.replicates for stage in stages])
    goals = [stage.goal(samples) for stage, samples in zip(stages, first, strict=True)]
    second = yield from _sampled(stages, [count for count, _ in goals], first)
    found = iter(
        stage.outcome(samples, stopped) for stage, samples, (_, stopped) in zip(stages, second, goals, strict=True)
    )
    return [next(found) if isinstance(stage, Stage) else stage for stage in begun]


def _begin(comparisons: Sequence[Comparison]) -> "Coroutine[list[Stage | InputError]]":
    """A pilot on every distinct base, and what it settles."""
    bases = {comparison.base.item.key: comparison.base.item for comparison in comparisons}
    request = comparisons[0].request
    batch = ItemBatch.of(comparisons[0].base.predictor, list(bases.values()))
    seen, settled = yield from pilot_coroutine(batch, request, sides=2)  # as many for all: they may share sides
    known = dict(zip(bases, zip(settled, seen.cost.tolist(), strict=True), strict=True))
    begun: list[Stage | InputError] = []
    for comparison in comparisons:
        (design, rows), cost = known[comparison.base.item.key]
        try:
            begun.append(Stage.begin(comparison, design, rows, pilot=cost))
        except InputError as error:
            begun.append(error)
    return begun


def _sampled(
    stages: "Sequence[Stage]", counts: Sequence[int], before: Sequence[tuple[Sample, ...]] | None = None
) -> Coroutine[list[tuple[Sample, ...]]]:
    """Every side of every stage with so many replicates. Sides of one shape are asked together, equal ones once."""
    groups: dict[tuple, dict[tuple[int, int], Sample]] = {}
    asked: list[list[tuple]] = []
    for number, (stage, count) in enumerate(zip(stages, counts, strict=True)):
        asked.append([])
        begun = stage.samples() if before is None else before[number]
        for side, sample in zip(stage.comparison.sides, begun, strict=True):
            goal = min(count, 1) if sample.layout.replicates == 1 else count
            group = (side.shape, sample.design, sample.layout, sample.control, sample.seed, goal)
            member = (sample.items[0].key, sample.names[0])
            groups.setdefault(group, {})[member] = sample
            asked[-1].append((group, member))
    known: dict[tuple, Sample] = {}
    for group, members in groups.items():
        together = yield from Sample.joined(list(members.values())).extend(group[-1])
        for place, member in enumerate(members):
            known[group, member] = together.subset(torch.tensor([place]))
    return [tuple(known[ask] for ask in asks) for asks in asked]


@dataclasses.dataclass(frozen=True, eq=False)
class Stage:
    """A comparison whose design is settled: one for all sides, with as many replicates of each."""

    comparison: Comparison
    design: MaskDesign
    layouts: tuple[Layout, ...]
    pilot: int
    """Forward rows that it took to settle on the design."""

    @staticmethod
    def begin(comparison: Comparison, design: MaskDesign, rows: int, *, pilot: int) -> "Stage":
        """`InputError` if a side is too long for the design and its rows."""
        request = comparison.request
        sizes = [side.item.target.numel() for side in comparison.sides]
        if isinstance(request.design, Auto) and not _fits(design, max(sizes), rows):
            design = request.design.tiled
        layouts = [request.first_layout(design, size, rows) for size in sizes]
        replicates = min((layout.replicates for layout in layouts if layout.replicates > 1), default=1)
        few = [dataclasses.replace(one, replicates=min(one.replicates, replicates)) for one in layouts]
        return Stage(comparison, design, tuple(few), pilot)

    @property
    def replicates(self) -> int:
        return max(layout.replicates for layout in self.layouts)

    def samples(self) -> tuple[Sample, ...]:
        """No replicates yet, of any side."""
        comparison = self.comparison
        return tuple(
            Sample.of(
                [side.item],
                [name],
                ItemBatch.of(side.predictor, [side.item]),
                self.design,
                layout,
                control=comparison.request.control,
                seed=comparison.seed,
            )
            for side, name, layout in zip(comparison.sides, comparison.names(), self.layouts, strict=True)
        )

    def goal(self, samples: tuple[Sample, ...]) -> tuple[int, Stopped]:
        """How many replicates there shall be, given a first stage."""
        if self.replicates == 1:
            return 1, "exact"
        request = self.comparison.request
        most = (request.rows - self.pilot) // max(layout.rows for layout in self.layouts if layout.replicates > 1)
        return request.replicates_for(self._signed_sum([one.combine()[0][0] for one in samples]), most=most)

    def outcome(self, samples: tuple[Sample, ...], stopped: Stopped) -> Outcome:
        """What came of it."""
        first = self.replicates if self.comparison.request.open_ended and self.replicates > 1 else None
        sides = tuple(self._side(sample, first, stopped) for sample in samples)
        infinite = {sign for sign, side in zip(self._signs, sides, strict=True) if side.impossible}
        if len(infinite) == 2:
            return InputError("Both sides of the ratio hold a probability of zero, so it is not defined.")
        return Ratio(
            self.comparison.quantity,
            self._signed_sum([side.replicates for side in sides]),
            self.pilot + sum(side.evaluations for side in sides),
            self.comparison.seed,
            stopped,
            sides,
            self._signs,
            self.comparison.coupled,
            first=first,
        )

    @staticmethod
    def _side(sample: Sample, first: int | None, stopped: Stopped) -> Estimate:
        exact = sample.layout.replicates == 1
        return sample.estimates(None if exact else first, "exact" if exact else stopped)[0]

    @property
    def _signs(self) -> tuple[Sign, ...]:
        return tuple(side.sign for side in self.comparison.sides)

    def _signed_sum(self, values: Sequence[Tensor]) -> Float64[Tensor, " replicates"]:
        """The sum of sign x log p, replicate by replicate; an exact side counts for every replicate of the others."""
        total = torch.zeros(max(one.numel() for one in values), dtype=torch.float64)
        for one, sign in zip(values, self._signs, strict=True):
            total = total - sign * one
        return total


def _fits(design: MaskDesign, length: int, rows: int) -> bool:
    try:
        design.layout(length, rows)
    except InputError:
        return False
    return True
