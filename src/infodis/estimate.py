"""Likelihoods with error bars: `nll` (mask average) and `order_nll` (one reveal order).

`nll` draws masks by a design, asks the predictor for surprisals, subtracts a control, and returns an `Estimate` whose
standard error comes from independent replicates of all of that.
"""

import abc
import contextlib
import dataclasses
import functools
import math
import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, SupportsIndex

import torch
from jaxtyping import Float64, Int
from torch import Tensor

from infodis.batching import Batching, converse, run
from infodis.control import Control, Neighbours, fold_bounds, neighbour_maps, predict
from infodis.design import LONGEST_ENUMERATION, Auto, Enumerate, Layout, MaskDesign, numbers_of
from infodis.errors import InputError, PredictorError
from infodis.item import Item, Positions, all_known, as_sequence
from infodis.observe import Asker, Conversation, Observations
from infodis.predictor import Predictor, gather_surprisal
from infodis.rng import key

DEFAULT_EVALUATIONS = 128
DEFAULT_CAP = 4096
"""Forward rows per sequence at which a request for a standard error gives up, unless `evaluations` says otherwise."""

GLANCES = (24, 32, 64)
"""Forward rows to look at before more are spent on a standard error."""

CHUNK = 2**18
"""Mask entries (items x rows x positions) worked on at a time: bounds memory, changes no number."""

WINDOW = 2**19
"""The same for all conversations that are under way together."""

CONTROL_CHUNK = 2**16
"""The same for fitting a control, which holds some ten numbers per entry: small enough for the processor's cache."""

MOST = 1e150
"""Nats of a replicate: squares of more overflow, and a standard error would be NaN."""

Stopped = Literal["budget spent", "standard error reached", "cap reached", "exact"]
Tokens = Iterable[int] | Iterable[Iterable[int]] | Iterable[Tensor] | Tensor


@dataclasses.dataclass(frozen=True, eq=False)
class Replicated(abc.ABC):
    """A number in nats and how sure it is. Everything derives from `replicates`: independent, unbiased values."""

    quantity: str
    replicates: Float64[Tensor, " replicates"]
    evaluations: int
    """Forward rows spent."""
    seed: int
    stopped: Stopped

    def __post_init__(self) -> None:
        fine = (self.replicates.abs() <= MOST) | self.replicates.isinf()  # NaN compares false
        if not bool(fine.all()):
            worst = float(self.replicates[~fine][0])
            raise PredictorError(
                f"{self.quantity} must be a number of at most {MOST:g} nats, or infinite for what cannot happen; a "
                f"replicate is {worst:g}. Look at what the predictor returns, and at the data, for absurd numbers."
            )

    @functools.cached_property
    def value(self) -> float:
        """The estimate in nats."""
        return float(self.replicates.mean())

    @property
    def impossible(self) -> bool:
        """True if a conditional probability of zero was met. One is enough: the value is infinite, for certain."""
        return math.isinf(self.value)

    @functools.cached_property
    def standard_error(self) -> float:
        """Of `value`, from the spread of the replicates; 0 where nothing is random or the value is infinite."""
        count = self.replicates.numel()
        if count == 1 or self.impossible:
            return 0.0
        return float(self.replicates.std()) / math.sqrt(count)

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """A confidence interval at `level`, by Student's t with (replicates - 1) degrees of freedom."""
        from scipy.stats import t  # imported here: it takes longer than an estimate

        if not 0 < level < 1:
            raise InputError(f"A confidence level must lie between 0 and 1, got {level}.")
        if self.standard_error == 0:
            return self.value, self.value
        half = float(t.ppf((1 + level) / 2, self.replicates.numel() - 1)) * self.standard_error
        return self.value - half, self.value + half


@dataclasses.dataclass(frozen=True, eq=False)
class Estimate(Replicated):
    """A likelihood of a target given a context.

    `per_token` holds the credit of every target position, in the order of `target`; credits add up to `value` and are
    the Shapley values of the game v(S) = -log p(x_S).
    """

    per_token: Float64[Tensor, " target"]
    per_token_error: Float64[Tensor, " target"]
    """Standard errors of `per_token`; 0 where nothing is random."""
    target: Int[Tensor, " target"]
    design: MaskDesign | str
    control: Control | None
    about: tuple[int | str, ...]
    """What the replicates have in common: the item's key and the rows of a replicate, or the order."""
    seeds: frozenset[int]

    @property
    def bits_per_token(self) -> float:
        return self.value / math.log(2) / self.target.numel()

    def merge(self, other: "Estimate") -> "Estimate":
        """Pool two independent runs of the same thing: as if one run had drawn all replicates.

        Runs must be of the same predictor (which cannot be checked here), sequence, design and budget, and differ in
        their seeds, or they hold the same masks.
        """
        mine = (self.quantity, self.design, self.control, self.about)
        its = (other.quantity, other.design, other.control, other.about)
        if mine != its:
            raise InputError(
                "Only estimates of the same quantity, sequence, design, control and rows per replicate can be merged, "
                f"got {mine} and {its}."
            )
        if self.stopped == "exact":
            return self
        if self.seeds & other.seeds:
            raise InputError(
                f"Both estimates were drawn with seed {min(self.seeds & other.seeds)}: they hold the same masks. "
                "Change one seed."
            )
        return dataclasses.replace(self.pooled(other), seeds=self.seeds | other.seeds)

    def pooled(self, other: "Estimate") -> "Estimate":
        """All replicates together, without a question whether they belong together."""
        counts = self.replicates.numel(), other.replicates.numel()
        mine, its = (count / sum(counts) for count in counts)
        return dataclasses.replace(
            self,
            replicates=torch.cat([self.replicates, other.replicates]),
            per_token=mine * self.per_token + its * other.per_token,
            per_token_error=torch.hypot(mine * self.per_token_error, its * other.per_token_error),
            evaluations=self.evaluations + other.evaluations,
        )

    def __repr__(self) -> str:
        return (
            f"Estimate({self.quantity} = {self.value:.4f} nats, standard_error={self.standard_error:.2g}, "
            f"replicates={self.replicates.numel()}, evaluations={self.evaluations}, "
            f"bits_per_token={self.bits_per_token:.3f}, design={self.design}"
            + (", impossible" if self.impossible else "")
            + ")"
        )


@dataclasses.dataclass(frozen=True)
class Request:
    """How to estimate: how much to spend, where to look, what to subtract."""

    design: MaskDesign = Auto()
    control: Control | None = Neighbours()
    evaluations: int | None = None
    standard_error: float | None = None
    batch_size: int | None = None
    replicates: int | None = None
    """At most so many, whatever the budget pays for."""
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

    def glances(self, length: int) -> list[int]:
        """Small budgets to try on the way to a standard error."""
        if not self.open_ended or length <= 8:  # so few positions are soon enumerated
            return []
        first, found = self.first_rows(length), []
        for rows in GLANCES:
            with contextlib.suppress(InputError):  # a design that cannot do with so few rows
                self.design.layout(length, rows)
                found += [rows] if 2 * rows <= first and 8 * rows <= self.rows else []
        return found

    def entries(self, length: int) -> int:
        """Mask entries of what most items of that length begin with."""
        rows = (self.glances(length) or [self.first_rows(length)])[0]
        return length * (min(rows, 2 ** min(length, 63)) if isinstance(self.design, Enumerate) else rows)

    def first_rows(self, length: int) -> int:
        """What to spend before looking at the standard error for the first time."""
        if self.open_ended and not isinstance(self.design, Enumerate):
            two_orders = min(2 * length + 8, 256)  # so that Auto may take Orders where two of them are not too dear
            everything = 2**length - 1 if length <= 8 else 0
            return min(self.rows, max(64, two_orders, everything))
        return self.rows

    def check_budget(self) -> None:
        """Refuse a budget that pays for no target of more than one token, before any is looked at."""
        self.design.layout(2, self.rows)

    def fixed(self, rows: int) -> "Request":
        """The same with so many rows, whatever the error."""
        return dataclasses.replace(self, evaluations=rows, standard_error=None, relative=None)

    def is_precise(self, replicates: Float64[Tensor, " replicates"]) -> bool:
        """Whether the standard error is small enough, with some allowance for how badly few replicates know it.

        Without the allowance runs would stop whenever the first few replicates happen to agree.
        """
        if not bool(replicates.isfinite().all()):
            return True
        count = replicates.numel()
        found = float(replicates.std()) / math.sqrt(count) * (1 + 2 / (count - 1))
        share = math.inf if self.relative is None else self.relative * abs(float(replicates.mean()))
        return found <= min(share, self.standard_error or math.inf)


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
        standard_error: instead, add replicates until the standard error is at most this, or `evaluations` (4096 by
            default) are spent; `Estimate.stopped` says which.
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


def error_of_mean(replicates: Float64[Tensor, "..."], *, dim: int = 0) -> Float64[Tensor, "..."]:
    """Standard errors of means over an axis of replicates; 0 for a single one, which is exact."""
    count = replicates.shape[dim]
    return torch.zeros_like(replicates.select(dim, 0)) if count == 1 else replicates.std(dim) / math.sqrt(count)


def check_seed(seed: Any) -> int:
    """A seed as a plain integer: equal numbers of different types must not name different streams."""
    if isinstance(seed, bool) or not hasattr(seed, "__index__"):
        raise InputError(f"A seed must be a whole number, got {seed!r}.")
    return operator.index(seed)


def read_items(
    tokens: Tokens, *, target: Positions | Sequence[Positions] | None, context: Positions | Sequence[Positions] | None
) -> tuple[list[Item], bool]:
    """Items from one sequence or many, and whether it was one."""
    try:
        whole = tokens if isinstance(tokens, Tensor) else list(tokens)
        count = len(whole)
    except TypeError:
        raise InputError(f"tokens must be a sequence of token ids or a list of sequences, got {tokens!r}.") from None
    single = whole.ndim == 1 if isinstance(whole, Tensor) else bool(whole) and _is_number(whole[0])
    if count == 0:
        raise InputError("There is nothing to score: no tokens were given.")
    sequences = [whole] if single else list(whole)
    targets, contexts = (_spread(sets, len(sequences), n) for sets, n in ((target, "target"), (context, "context")))
    items = []
    for number, (sequence, wanted, given) in enumerate(zip(sequences, targets, contexts, strict=True)):
        try:
            items.append(Item.read(sequence, target=wanted, context=given))
        except InputError as error:
            raise error if single else InputError(f"Sequence {number}: {error}") from None
    return items, single


def _is_number(value: object) -> bool:
    return not isinstance(value, Iterable) or (isinstance(value, Tensor) and value.ndim == 0)


def _spread(sets: Any, count: int, name: str) -> list:
    """One set of positions for all sequences, or one for each."""
    if sets is None or (isinstance(sets, Tensor) and sets.ndim < 2):
        return [sets] * count
    if not isinstance(sets, Iterable):
        raise InputError(f"{name} must be a set of positions, like range(4) or [0, 2], got {sets!r}.")
    whole = list(sets)
    if all(part is not None and _is_number(part) for part in whole):
        return [whole] * count
    if len(whole) != count:
        raise InputError(
            f"{name}: give one set of positions, or one for each of the {count} sequences; got {len(whole)}."
        )
    return whole


def check_items(predictor: Predictor, items: Sequence[Item]) -> None:
    """Raise `InputError` if an item holds what the predictor does not know; many are told apart by number."""
    vocabulary = {"vocab_size": predictor.vocab_size, "mask_token": predictor.mask_token}
    if all_known(torch.cat([item.clean for item in items]), **vocabulary):  # all at once is much quicker
        return
    for number, item in enumerate(items):
        try:
            item.check_vocabulary(**vocabulary)
        except InputError as error:
            raise error if len(items) == 1 else InputError(f"Sequence {number}: {error}") from None


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
    conversations = (
        estimating(predictor, [items[n] for n in group], request, seed=seed, names=[names[n] for n in group])
        for group in groups
    )
    largest = max(len(group) * request.entries(items[group[0]].target.numel()) for group in groups)
    batching = Batching(request.batch_size, together=max(1, WINDOW // largest))
    found: dict[int, Estimate] = {}
    for group, estimates in zip(groups, converse(conversations, batching), strict=True):
        found |= dict(zip(group, estimates, strict=True))
    return [found[n] for n in range(len(items))]


def estimating(
    predictor: Predictor, items: list[Item], request: Request, *, seed: int, names: list[int]
) -> Conversation[list[Estimate]]:
    """The conversation that estimates items of one length and target size.

    On the way to a standard error a few rows are looked at first: for some items they are enough. What a glance saw is
    not used again, since whether there is more to come was decided by it.
    """
    found: dict[int, Estimate] = {}
    spent = [0] * len(items)
    left = list(range(len(items)))
    for rows in request.glances(items[0].target.numel()):
        if not left:
            break
        others = [key(names[n], "glance", rows) for n in left]
        begun = yield from Run.begin(predictor, [items[n] for n in left], request.fixed(rows), seed=seed, names=others)
        for n, estimate in zip(left, (yield from begun.finish()), strict=True):
            spent[n] += estimate.evaluations
            if estimate.stopped == "exact" or request.is_precise(estimate.replicates):
                reached: Stopped = "exact" if estimate.stopped == "exact" else "standard error reached"
                found[n] = dataclasses.replace(estimate, stopped=reached, evaluations=spent[n])
        left = [n for n in left if n not in found]
    if left:
        rest = dataclasses.replace(request, evaluations=request.rows - max(spent[n] for n in left))
        begun = yield from Run.begin(
            predictor, [items[n] for n in left], rest, seed=seed, names=[names[n] for n in left]
        )
        for n, estimate in zip(left, (yield from begun.finish()), strict=True):
            more = spent[n]
            found[n] = dataclasses.replace(estimate, evaluations=more + estimate.evaluations) if more else estimate
    return [found[n] for n in range(len(items))]


def _chunks(items: Sequence[Item], request: Request) -> Iterator[list[int]]:
    """Numbers of items that have the same length and target size, few enough at a time to fit in memory."""
    groups: dict[tuple[int, int], list[int]] = {}
    for number, item in enumerate(items):
        groups.setdefault((item.length, item.target.numel()), []).append(number)
    for (_, target), members in sorted(groups.items(), reverse=True):  # neighbours pad each other least
        step = max(1, CHUNK // (request.first_rows(target) * target))
        for start in range(0, len(members), step):
            yield members[start : start + step]


@dataclasses.dataclass(frozen=True, eq=False)
class Run:
    """Items of one length and target size, after their pilot: what was seen, and the design each settled on."""

    items: list[Item]
    names: list[int]
    asker: Asker
    seen: Observations
    settled: list[tuple[MaskDesign, int]]
    request: Request
    seed: int

    @staticmethod
    def begin(
        predictor: Predictor, items: list[Item], request: Request, *, seed: int, names: list[int]
    ) -> "Conversation[Run]":
        length, design = items[0].target.numel(), request.design
        rows = request.first_rows(length)
        asker = Asker.of(predictor, items)
        pilot = design.pilot(length, rows)
        seen = yield from Observations.none(len(items), length).extend(asker, pilot.expand(len(items), -1, -1))
        settled = [design.settle(length, rows, surprisal) for surprisal in seen.surprisal]
        return Run(items, names, asker, seen, settled, request, seed)

    def finish(self) -> Conversation[list[Estimate]]:
        """Draw, observe and combine, design by design."""
        found: dict[int, Estimate] = {}
        groups: dict[tuple[MaskDesign, int], list[int]] = {}
        for number, choice in enumerate(self.settled):
            groups.setdefault(choice, []).append(number)
        for (design, rows), members in groups.items():
            layout = design.layout(self.items[0].target.numel(), rows)
            if self.request.replicates is not None:
                layout = dataclasses.replace(layout, replicates=min(layout.replicates, self.request.replicates))
            found |= yield from self._until_done(design, layout, torch.tensor(members))
        return [found[n] for n in range(len(self.items))]

    def _until_done(self, design: MaskDesign, layout: Layout, members: Int[Tensor, " some"]) -> Conversation[dict]:
        """Add replicates to all members alike until each has what was asked for."""
        found: dict[int, Estimate] = {}
        sample = Sample.none(self, design, layout, members)
        count = layout.replicates
        while members.numel():
            sample = yield from sample.extend(range(sample.count, count))
            combined = sample.combine()
            grown = min(max(count + 1, count * 5 // 4), max(count, self.request.rows // layout.rows))
            done = [self._stopped(values, layout, grown) for values in combined[0]]
            each = zip(members.tolist(), done, sample.seen.cost.tolist(), *combined, strict=True)
            for number, stopped, cost, *parts in each:
                if stopped is not None:
                    found[number] = self._estimate(number, sample, cost, parts, stopped)
            going = torch.tensor([n for n, stopped in enumerate(done) if stopped is None], dtype=torch.int64)
            members, sample, count = members[going], sample.subset(going), grown
        return found

    def _stopped(self, replicates: Float64[Tensor, " replicates"], layout: Layout, grown: int) -> Stopped | None:
        if layout.replicates == 1:
            return "exact"
        if not self.request.open_ended:
            return "budget spent"
        if self.request.is_precise(replicates):
            return "standard error reached"
        return "cap reached" if grown == replicates.numel() else None

    def _estimate(self, number: int, sample: "Sample", cost: int, combined: list[Tensor], stopped: Stopped) -> Estimate:
        item, design = self.items[number], sample.design
        control = None if design.telescoping else self.request.control
        about = (item.key, sample.layout.rows)
        values, credits, errors = combined
        return Estimate(
            "nll",
            values,
            cost,
            self.seed,
            stopped,
            credits,
            errors,
            item.target,
            design,
            control,
            about,
            frozenset({self.seed}),
        )


@dataclasses.dataclass(frozen=True, eq=False)
class Sample:
    """Replicates of one design for some items of a run: masks, weights and surprisals."""

    run: Run
    design: MaskDesign
    layout: Layout
    members: Int[Tensor, " items"]
    weight: Float64[Tensor, "items rows target"]
    seen: Observations
    skip: int
    """Rows of `seen` that belong to the pilot."""

    @staticmethod
    def none(run: Run, design: MaskDesign, layout: Layout, members: Int[Tensor, " items"]) -> "Sample":
        seen = run.seen.subset(members)
        weight = torch.zeros(len(members), 0, seen.masked.shape[-1], dtype=torch.float64)
        return Sample(run, design, layout, members, weight, seen, skip=seen.masked.shape[1])

    @property
    def count(self) -> int:
        return self.weight.shape[1] // self.layout.rows

    def subset(self, items: Int[Tensor, " some"]) -> "Sample":
        return dataclasses.replace(
            self, members=self.members[items], weight=self.weight[items], seen=self.seen.subset(items)
        )

    def cost(self, place: int) -> int:
        return int(self.seen.cost[place])

    def extend(self, replicates: range) -> "Conversation[Sample]":
        """Draw further replicates, each from the stream of its item and number."""
        length = self.weight.shape[-1]
        names = [self.run.names[n] for n in self.members.tolist()]
        paths = [(name, replicate) for name in names for replicate in replicates]
        masked, weight = self.design.masks(*numbers_of(length, self.layout, seed=self.run.seed, paths=paths))
        shape = (len(names), len(replicates) * self.layout.rows, length)
        seen = yield from self.seen.extend(self.run.asker.subset(self.members), masked.reshape(shape))
        return dataclasses.replace(self, seen=seen, weight=torch.cat([self.weight, weight.reshape(shape)], dim=1))

    def combine(
        self,
    ) -> tuple[Float64[Tensor, "items replicates"], Float64[Tensor, "items target"], Float64[Tensor, "items target"]]:
        """The value of every replicate, and the credit of every position with its standard error."""
        masked, surprisal = self.seen.masked[:, self.skip :], self.seen.surprisal[:, self.skip :]
        impossible = self.seen.surprisal.isinf().flatten(1).any(1)  # the pilot's rows count: one is enough
        finite = torch.where(surprisal.isinf(), 0.0, surprisal)
        terms = self.weight * finite
        control = self.run.request.control
        if control is not None and not self.design.telescoping and self.count > 1:
            terms = self._controlled(control, masked, finite)
        per_replicate = terms.unflatten(1, (self.count, self.layout.rows)).sum(2)
        values, credits, errors = per_replicate.sum(-1), per_replicate.mean(1), error_of_mean(per_replicate, dim=1)
        values[impossible] = math.inf
        infinite = self.seen.surprisal.isinf().any(1)
        return values, torch.where(infinite, math.inf, credits), torch.where(infinite, 0.0, errors)

    def _controlled(self, control: Control, masked: Tensor, surprisal: Tensor) -> Float64[Tensor, "items rows target"]:
        """Weighted residuals, plus each row's share of the known mean [eq:control]."""
        maps = neighbour_maps(self.run.asker.target[self.members], control.offsets)
        folds = fold_bounds(self.count, self.layout.rows)
        step = max(1, CONTROL_CHUNK // masked[0].numel())
        parts = []
        for block in zip(*(values.split(step) for values in (masked, self.weight, surprisal, maps)), strict=True):
            columns = (values.transpose(1, 2).contiguous() for values in block[:3])
            prediction, mean = (part.transpose(1, 2) for part in predict(control, *columns, folds=folds, maps=block[3]))
            parts.append(block[1] * (block[2] - prediction) + mean / self.layout.rows)
        return torch.cat(parts)


def order_nll(
    predictor: Predictor,
    tokens: Iterable[int] | Tensor,
    *,
    order: str | Sequence[int] | Tensor = "left-to-right",
    target: Positions | None = None,
    context: Positions | None = None,
    batch_size: int | None = None,
) -> Estimate:
    """The chain rule along one reveal order [eq:order-nll]: exactly -log p for a model that generates in that order.

    `order` is left-to-right, right-to-left, most-confident-first, or the target positions as they are revealed. It
    takes one forward row per target position, all at once; only most-confident-first takes them one after another,
    since each reveal (the masked position whose likeliest token is most probable) decides the next.

    >>> from infodis import oracle
    >>> coin = oracle.Independent(torch.tensor([0.25, 0.75]))
    >>> round(order_nll(coin, [1, 1, 0], order=[2, 0, 1]).value, 6)
    1.961659
    """
    item = Item.read(tokens, target=target, context=context)
    item.check_vocabulary(vocab_size=predictor.vocab_size, mask_token=predictor.mask_token)
    batching = Batching(Request(batch_size=batch_size).batch_size)
    asker = Asker.of(predictor, [item])
    if isinstance(order, str) and order == "most-confident-first":
        found, spent = confident_credits(predictor, [item])
        credits, evaluations, turns = found[0, item.target], int(spent), ()
    else:
        turn = _turns(item, order)
        steps = torch.arange(item.target.numel()).unsqueeze(-1)
        surprisal = run(asker.ask(torch.zeros(len(steps), dtype=torch.int64), turn >= steps), batching)
        credits, evaluations = surprisal.gather(0, turn.unsqueeze(0)).squeeze(0), len(steps)
        turns = tuple(turn.tolist())
    return Estimate(
        quantity="order_nll",
        replicates=credits.sum().reshape(1),
        evaluations=evaluations,
        seed=0,
        stopped="exact",
        per_token=credits,
        per_token_error=torch.zeros_like(credits),
        target=item.target,
        design=order if isinstance(order, str) else "given order",
        control=None,
        about=(item.key, *turns),
        seeds=frozenset(),
    )


def _turns(item: Item, order: str | Sequence[int] | Tensor) -> Int[Tensor, " target"]:
    """For every target position the step at which it is revealed."""
    count = item.target.numel()
    if isinstance(order, str):
        if order not in ("left-to-right", "right-to-left"):
            raise InputError(
                "order must be left-to-right, right-to-left, most-confident-first or a list of positions, "
                f"got {order!r}."
            )
        steps = torch.arange(count)
        return steps if order == "left-to-right" else count - 1 - steps
    given = as_sequence(order)
    if given.shape != (count,) or not torch.equal(given.sort().values, item.target):
        raise InputError(f"order must list each of the {count} target positions once, got {given.tolist()}.")
    return torch.searchsorted(item.target, given).argsort()


@torch.no_grad()
def confident_credits(
    predictor: Predictor, items: Sequence[Item]
) -> tuple[Float64[Tensor, "items length"], Int[Tensor, " items"]]:
    """Reveal the most certain target position of items of one length, again and again, most-confident-first.

    Returns what every position cost, and how many rows every item took. An item stops at a probability of zero: nothing
    is conditional on what cannot happen.
    """
    tokens, hidden = (torch.stack([getattr(item, name) for item in items]) for name in ("clean", "hidden"))
    wanted = torch.zeros_like(hidden)
    for row, item in zip(wanted, items, strict=True):
        row[item.target] = True
    hidden = hidden | wanted
    credits = torch.zeros(hidden.shape, dtype=torch.float64)
    evaluations = torch.zeros(len(items), dtype=torch.int64)
    while (going := ((hidden & wanted).any(1) & credits.isfinite().all(1)).nonzero().squeeze(1)).numel():
        asked, clean = hidden[going], tokens[going]
        answer = predictor.log_conditionals(torch.where(asked, predictor.mask_token, clean))
        surprisal = gather_surprisal(answer, clean, asked, vocab_size=predictor.vocab_size).cpu().double()
        confidence = torch.where(asked & wanted[going], answer.max(-1).values.cpu().double(), -math.inf)
        chosen = confidence.argmax(1, keepdim=True)
        credits[going] = credits[going].scatter(1, chosen, surprisal.gather(1, chosen))
        evaluations[going] += 1
        hidden[going] = asked.scatter(1, chosen, False)
    return credits, evaluations
