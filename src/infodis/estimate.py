"""Likelihoods with error bars: `nll` (mask average) and `order_nll` (one reveal order).

`nll` draws masks by a design, asks the predictor for surprisals, subtracts a control, and returns an `Estimate` whose
standard error comes from independent replicates of all of that.
"""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import SupportsIndex

import torch
from jaxtyping import Float64
from torch import Tensor

from infodis.auto import Auto
from infodis.control import Control, Neighbours
from infodis.design import (
    FEWEST_REPLICATES,
    LONGEST_ENUMERATION,
    Enumerate,
    Layout,
    MaskDesign,
)
from infodis.errors import InputError
from infodis.evaluate import Batching, Coroutine, ItemBatch, Observations, run_batched
from infodis.item import Item, Positions, Tokens, check_items, read_items
from infodis.predictor import Predictor
from infodis.result import Estimate, Stopped, stein_factor
from infodis.rng import check_seed
from infodis.sample import Sample

DEFAULT_EVALUATIONS = 128
DEFAULT_CAP = 4096
"""Forward rows per sequence at which a request for a standard error gives up, unless `evaluations` says otherwise."""

SMALLEST_STAGE = 72
"""Forward rows of a first stage at least: a pilot, and eight replicates of eight rows."""

LARGEST_STAGE = 1024
"""Forward rows of a first stage at most: sixteen replicates of 64 rows."""

CHUNK = 2**18
"""Mask entries (items x rows x positions) worked on at a time: bounds memory, changes no number."""

WINDOW = 2**19
"""The same for all coroutines that run together."""


@dataclasses.dataclass(frozen=True)
class Request:
    """How to estimate: how much to spend, where to look, what to subtract."""

    design: MaskDesign = Auto()
    control: Control | None = Neighbours()
    evaluations: int | None = None
    standard_error: float | None = None
    batch_size: int | None = None
    relative: float | None = None
    """A standard error to reach, as a share of the value; the stricter one holds if both are given."""

    def __post_init__(self) -> None:
        if not isinstance(self.design, MaskDesign):
            raise InputError(f"design must be a value like Tiled(), got {self.design!r}.")
        if self.control is not None and not isinstance(self.control, Control):
            raise InputError(f"control must be a value like Neighbours(), or None, got {self.control!r}.")
        for name in ("evaluations", "batch_size"):
            number = getattr(self, name)
            if number is not None and (isinstance(number, bool) or not hasattr(number, "__index__")):
                raise InputError(f"{name} must be a whole number, got {number!r}.")
        for name in ("standard_error", "relative"):
            wanted = getattr(self, name)
            if wanted is not None and not isinstance(wanted, int | float):
                raise InputError(f"{name} must be a number, got {wanted!r}.")
            if wanted is not None and not 0 < wanted < math.inf:
                raise InputError(f"{name} must be positive, got {wanted}.")
        if self.evaluations is not None and self.evaluations < 1:
            raise InputError(f"evaluations must be at least 1, got {self.evaluations}.")
        if self.batch_size is not None and self.batch_size < 1:
            raise InputError(f"batch_size must be at least 1, got {self.batch_size}.")

    @property
    def open_ended(self) -> bool:
        """Whether a standard error decides what is spent."""
        return self.standard_error is not None or self.relative is not None

    @property
    def rows(self) -> int:
        """The budget of a fixed-size run, or the cap of a run towards a standard error."""
        default = DEFAULT_CAP if self.open_ended else DEFAULT_EVALUATIONS
        if isinstance(self.design, Enumerate):  # which knows what it takes
            default = 2**LONGEST_ENUMERATION - 1
        return default if self.evaluations is None else self.evaluations

    def check_budget(self) -> None:
        """Refuse a budget that pays for no target of more than one token, before any is looked at."""
        self.design.layout(2, self.rows)

    def first_rows(self, length: int, *, sides: int = 1) -> int:
        """What to spend on each of some sides before looking at the spread for the first time.

        On the way to a standard error it grows with the square root of what texts typically need: their variance times
        the rows spent is around half a nat squared per token, and variances of sides add up. Small first stages have
        small replicates, which vary more row for row; a large one cannot be taken back.
        """
        if not self.open_ended:
            return self.rows
        typical = 0.5 * sides * length / self.precision(float(length)) ** 2
        return min(self.rows, LARGEST_STAGE, max(SMALLEST_STAGE, round(20 * math.sqrt(typical))))

    def first_layout(self, design: MaskDesign, length: int, rows: int) -> Layout:
        """The replicates of a fixed budget, or of the first stage towards a standard error."""
        layout = design.first_stage(length, rows) if self.open_ended else design.layout(length, rows)
        if self.open_ended and 1 < layout.replicates < FEWEST_REPLICATES:
            raise InputError(
                f"A requested standard error takes at least {FEWEST_REPLICATES} replicates to begin with; {design} "
                f"makes {layout.replicates} of {rows} forward rows. Raise evaluations, or leave it out."
            )
        return layout

    def precision(self, value: float) -> float:
        """The standard error that is asked for if the value is this."""
        share = math.inf if self.relative is None else self.relative * abs(value)
        return min(share, self.standard_error or math.inf)

    def replicates_for(self, first: Float64[Tensor, " replicates"], *, most: int) -> "tuple[int, Stopped]":
        """How many replicates there shall be, given those of a first stage, and what will have been reached [eq:stein].

        The only look at the spread: it decides once, and is never estimated anew.
        """
        count = first.numel()
        if not self.open_ended:
            return count, "budget spent"
        if not bool(first.isfinite().all()):
            return count, "standard error reached"
        spread, precision = float(first.std()), self.precision(float(first.mean()))
        if stein_factor(count) * spread <= precision * math.sqrt(count):
            return count, "standard error reached"
        wanted = (stein_factor(count) * spread / precision) ** 2 if precision else math.inf
        if wanted > most:
            return max(count, most), "cap reached"
        step = max(1, count // 4)  # few different numbers: items that need as many go on together
        return min(most, math.ceil(wanted / step) * step), "standard error reached"


def nll(
    predictor: Predictor,
    tokens: Tokens,
    *,
    target: Positions | Sequence[Positions] | None = None,
    context: Positions | Sequence[Positions] | None = None,
    evaluations: int | None = None,
    standard_error: float | None = None,
    relative: float | None = None,
    design: MaskDesign = Auto(),
    control: Control | None = Neighbours(),
    seed: SupportsIndex = 0,
    batch_size: int | None = None,
) -> "Estimate | list[Estimate]":
    """The mask-average negative log-likelihood of target tokens given context tokens [eq:nll], in nats.

    It equals -log p(target | context) exactly if the predictor's conditionals come from one joint distribution; for a
    learned network it is the paper's DCE value, the mean over reveal orders of the chain-rule sum.

    Args:
        predictor: any `Predictor`.
        tokens: one sequence of token ids, or many of any lengths; many give a list of estimates.
        target: positions to score; by default all that are not context.
        context: positions to condition on; by default none. Positions in neither set are summed out.
            For many sequences give one set for all or a list of sets.
        evaluations: forward rows to spend on each sequence, at most: 128 by default, all masks with `Enumerate`. What
            does not make up another replicate is left over; `Estimate.evaluations` says what was spent.
        standard_error: instead, spend what this takes, by a first stage that fixes the scale and a second that its
            spread asks for [eq:stein], or `evaluations` (4096 by default) at most; `Estimate.stopped` says which.
        relative: the same with a standard error that is this share of the value; the stricter holds if both are given.
        design: where to look. All designs are unbiased; they differ in variance.
        control: what to subtract; `None` for nothing.
        seed: the same seed gives the same masks for the same sequence in any company.
        batch_size: at most so many rows per call of the predictor. It changes no result.

    >>> from infodis import oracle
    >>> chain = oracle.MarkovChain.random(order=2, vocab_size=4, seed=1)
    >>> estimate = nll(chain, [0, 1, 2, 3, 0, 1, 2, 3], context=range(4))
    >>> abs(estimate.value + chain.log_prob([0, 1, 2, 3, 0, 1, 2, 3], context=range(4))) < 1e-9
    True
    """
    request = Request(design, control, evaluations, standard_error, batch_size, relative=relative)
    number = check_seed(seed)
    items, single = read_items(tokens, target=target, context=context)
    found = estimate_items(predictor, items, request, seed=number)
    return found[0] if single else found


def estimate_items(
    predictor: Predictor, items: Sequence[Item], request: Request, *, seed: int, names: Sequence[int] | None = None
) -> list[Estimate]:
    """Estimate many items; `names` are their names in the random streams (by default their content)."""
    check_items(predictor, items)
    if names is None:  # equal items meet equal masks: they are scored once
        distinct = {item.key: item for item in items}
        if len(distinct) < len(items):
            once = estimate_items(predictor, list(distinct.values()), request, seed=seed)
            by_key = dict(zip(distinct, once, strict=True))
            return [by_key[item.key] for item in items]
        names = list(distinct)
    groups = list(_chunks(items, request))
    coroutines = (
        nll_coroutine(predictor, [items[n] for n in group], request, seed=seed, names=[names[n] for n in group])
        for group in groups
    )
    largest = max(len(group) * _entries(items[group[0]], request) for group in groups)
    batching = Batching(request.batch_size, together=max(1, WINDOW // largest))
    found: dict[int, Estimate] = {}
    for group, estimates in zip(groups, run_batched(coroutines, batching), strict=True):
        found |= dict(zip(group, estimates, strict=True))
    return [found[n] for n in range(len(items))]


def nll_coroutine(
    predictor: Predictor, items: list[Item], request: Request, *, seed: int, names: list[int]
) -> Coroutine[list[Estimate]]:
    """The coroutine that estimates items of one length and target size."""
    batch, length = ItemBatch.of(predictor, items), items[0].target.numel()
    seen, settled = yield from pilot_coroutine(batch, request)
    groups: dict[tuple[MaskDesign, int], list[int]] = {}
    for number, choice in enumerate(settled):
        groups.setdefault(choice, []).append(number)
    found: dict[int, Estimate] = {}
    for (design, rows), members in groups.items():
        begun = Sample.of(
            [items[n] for n in members],
            [names[n] for n in members],
            batch.subset(torch.tensor(members)),
            design,
            request.first_layout(design, length, rows),
            control=request.control,
            seed=seed,
            seen=seen.subset(torch.tensor(members)),
        )
        sample = yield from begun.extend(begun.layout.replicates)
        found |= dict(zip(members, (yield from _second_stage(sample, request)), strict=True))
    return [found[n] for n in range(len(items))]


def pilot_coroutine(
    batch: ItemBatch, request: Request, *, sides: int = 1
) -> Coroutine[tuple[Observations, list[tuple[MaskDesign, int]]]]:
    """A pilot, if the design wants one; for every item the design it settles on, and the rows left to spend."""
    items, length = batch.target.shape
    rows = request.first_rows(length, sides=sides)
    pilot = request.design.pilot(length, rows)
    seen = yield from Observations.none(items, length).extend(batch, pilot.expand(items, -1, -1))
    precision = request.precision(float(length)) if request.open_ended else None
    return seen, [request.design.settle(length, rows, found, precision=precision) for found in seen.surprisal]


def _second_stage(sample: "Sample", request: Request) -> Coroutine[list[Estimate]]:
    """Estimates from a first stage: what its spread asks for is drawn, and all of it summed up.

    Where everything could be enumerated for that, it is.
    """
    if sample.layout.replicates == 1:
        return sample.estimates(None, "exact")
    count, length = sample.count, sample.weight.shape[-1]
    most = (request.rows - sample.skip) // sample.layout.rows
    goals = [request.replicates_for(values, most=most) for values in sample.combine()[0]]
    found: dict[int, Estimate] = {}
    for goal, stopped in dict.fromkeys(goals):
        places = [place for place, other in enumerate(goals) if other == (goal, stopped)]
        some = sample.subset(torch.tensor(places))
        if isinstance(request.design, Auto) and 2 ** min(length, 64) <= (goal - count) * sample.layout.rows:
            some = yield from some.enumerated().extend(1)
            estimates = some.estimates(None, "exact")
        else:
            some = yield from some.extend(goal)
            estimates = some.estimates(count if request.open_ended else None, stopped)
        found |= dict(zip(places, estimates, strict=True))
    return [found[place] for place in range(len(goals))]


def _entries(item: Item, request: Request) -> int:
    """Mask entries that an item begins with."""
    length = item.target.numel()
    rows = request.first_rows(length)
    return length * (min(rows, 2 ** min(length, 63)) if isinstance(request.design, Enumerate) else rows)


def _chunks(items: Sequence[Item], request: Request) -> Iterator[list[int]]:
    """Numbers of items that have the same length and target size, few enough at a time to fit in memory."""
    groups: dict[tuple[int, int], list[int]] = {}
    for number, item in enumerate(items):
        groups.setdefault((item.length, item.target.numel()), []).append(number)
    for _, members in sorted(groups.items(), reverse=True):  # neighbours pad each other least
        step = max(1, CHUNK // _entries(items[members[0]], request))
        for start in range(0, len(members), step):
            yield members[start : start + step]
