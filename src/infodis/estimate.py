"""Likelihoods with error bars: the request, and the one replicate loop.

`nll` draws masks by a design, asks the predictor for surprisals, subtracts a control, and returns an `Estimate` whose
standard error comes from independent replicates of all of that. A likelihood is a `Combination` of one term, a ratio
one of two with shared random numbers: the loop is the same.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, SupportsIndex, TypedDict, overload

import torch
from jaxtyping import Float64
from torch import Tensor
from typing_extensions import Unpack

from infodis.auto import Auto, auto_in, in_blocks
from infodis.blocks import blocks_of
from infodis.control import Control, Surrogate
from infodis.design import (
    FEWEST_REPLICATES,
    LONGEST_ENUMERATION,
    SMALLEST_STAGE,
    Layout,
    MaskDesign,
)
from infodis.errors import InputError
from infodis.evaluate import Batching, Coroutine, ItemBatch, Observations, run_batched
from infodis.item import (
    Item,
    ManySequences,
    OneSequence,
    Positions,
    Prompt,
    Tokens,
    check_items,
    read_items,
)
from infodis.noise.design import NoiseDesign, noise_of
from infodis.noise.sample import NoiseSample
from infodis.predictor import NO_MASKS, Predictor
from infodis.result import Estimate, Stopped, stein_factor
from infodis.rng import check_seed
from infodis.sample import Sample

DEFAULT_EVALUATIONS = 128
DEFAULT_CAP = 4096
"""Forward passes per sequence at which a request for a standard error gives up, unless `evaluations` says otherwise."""

LARGEST_STAGE = 1024
"""Forward passes of a first stage at most: sixteen replicates of 64 rows."""

CHUNK = 2**18
"""Mask entries (items x rows x positions) worked on at a time: bounds memory, changes no number."""

WINDOW = 2**19
"""The same for all coroutines that run together."""


@dataclasses.dataclass(frozen=True)
class Request:
    """How to estimate: how much to spend, where to look, what to subtract."""

    design: MaskDesign = Auto()
    control: Control | None = Surrogate()
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
    def exhaustive(self) -> bool:
        """Whether all masks are asked for."""
        return self.design == self.design.exhaustive()

    @property
    def rows(self) -> int:
        """The budget of a fixed-size run, or the cap of a run towards a standard error."""
        default = DEFAULT_CAP if self.open_ended else DEFAULT_EVALUATIONS
        if self.exhaustive:  # which knows what it takes
            default = 2**LONGEST_ENUMERATION - 1
        return default if self.evaluations is None else self.evaluations

    def check_budget(self) -> None:
        """Refuse a budget that pays for no target of more than one token, before any is looked at."""
        self.design.over((2,)).layout(2, self.rows)

    def first_rows(self, length: int, *, terms: int = 1) -> int:
        """What to spend on each of some terms before looking at the spread for the first time.

        On the way to a standard error it grows with the square root of what texts typically need: their variance times
        the rows spent is around half a nat squared per token, and variances of terms add up. Small first stages have
        small replicates, which vary more row for row; a large one cannot be taken back.
        """
        if not self.open_ended:
            return self.rows
        typical = 0.5 * terms * length / self.precision(float(length)) ** 2
        return min(self.rows, LARGEST_STAGE, max(SMALLEST_STAGE, round(20 * math.sqrt(typical))))

    def first_layout(self, design: "MaskDesign | NoiseDesign", length: int, rows: int) -> Layout:
        """The replicates of a fixed budget, or of the first stage towards a standard error."""
        layout = design.first_stage(length, rows) if self.open_ended else design.layout(length, rows)
        if self.open_ended and 1 < layout.replicates < FEWEST_REPLICATES:
            raise InputError(
                f"A requested standard error takes at least {FEWEST_REPLICATES} replicates to begin with; {design} "
                f"makes {layout.replicates} of {rows} forward passes. Raise evaluations, or leave it out."
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


class NllOptions(TypedDict, total=False):
    """The keywords of `nll`, for type checkers."""

    prompt: Prompt
    target: Positions | Sequence[Positions] | None
    context: Positions | Sequence[Positions] | None
    evaluations: int | None
    standard_error: float | None
    relative: float | None
    design: MaskDesign
    control: Control | None
    seed: SupportsIndex
    batch_size: int | None


# A tensor may hold one sequence or many, which its type does not say. A text is an iterable of texts, too: mypy warns.
@overload
def nll(predictor: Predictor, tokens: Tensor, **options: Unpack[NllOptions]) -> Any: ...
@overload
def nll(  # type: ignore[overload-overlap]
    predictor: Predictor, tokens: OneSequence, **options: Unpack[NllOptions]
) -> Estimate: ...
@overload
def nll(predictor: Predictor, tokens: ManySequences, **options: Unpack[NllOptions]) -> list[Estimate]: ...
def nll(
    predictor: Predictor,
    tokens: Tokens,
    *,
    prompt: Prompt = "",
    target: Positions | Sequence[Positions] | None = None,
    context: Positions | Sequence[Positions] | None = None,
    evaluations: int | None = None,
    standard_error: float | None = None,
    relative: float | None = None,
    design: MaskDesign = Auto(),
    control: Control | None = Surrogate(),
    seed: SupportsIndex = 0,
    batch_size: int | None = None,
) -> "Estimate | list[Estimate]":
    """The mask-average negative log-likelihood of target tokens given context tokens [eq:nll], in nats.

    It equals -log p(target | context) exactly if the predictor's conditionals come from one joint distribution; for a
    learned network it is the paper's DCE value, the mean over reveal orders of the chain-rule sum.

    Args:
        predictor: a model (`infodis.load`) or any other `Predictor`.
        tokens: a text, what `Model.read` made of one, or a sequence of token ids; many of them give a list of
            estimates. Text is read as the model expects it, special tokens included; token ids stay as they are.
        prompt: a text that the scored text comes after: one for all, or a list with one for each.
        target: positions to score; by default all that are not context.
        context: positions to condition on; by default none. Positions in neither set are summed out.
            For many sequences give one set for all or a list of sets.
        evaluations: forward passes to spend on each sequence, at most: 128 by default, all masks with `Enumerate`. What
            does not make up another replicate is left over; `Estimate.evaluations` says what was spent.
        standard_error: instead, spend what this takes, by a first stage that fixes the scale and a second that its
            spread asks for [eq:stein], or `evaluations` (4096 by default) at most; `Estimate.stopped` says which.
        relative: the same with a standard error that is this share of the value; the stricter holds if both are given.
        design: where to look. All designs are unbiased; they differ in variance.
        control: what to subtract; `None` for nothing.
        seed: the same seed gives the same masks for the same sequence, whatever else is scored.
        batch_size: at most so many rows per call of the predictor. It changes no result.

    >>> from infodis import oracle
    >>> chain = oracle.MarkovChain.random(order=2, vocab_size=4, seed=1)
    >>> estimate = nll(chain, [0, 1, 2, 3, 0, 1, 2, 3], context=range(4))
    >>> abs(estimate.value + chain.log_prob([0, 1, 2, 3, 0, 1, 2, 3], context=range(4))) < 1e-9
    True

    With a model, text goes in as it is:

    >>> import infodis
    >>> model = infodis.load("text8-tiny")
    >>> nll(model, "paris", prompt="the capital of france is ").value < nll(model, "paris").value
    True
    """
    request = Request(design, control, evaluations, standard_error, batch_size, relative=relative)
    number = check_seed(seed)
    items, single = read_items(predictor, tokens, prompt=prompt, target=target, context=context)
    check_masks(predictor)
    found = estimate_items(predictor, items, request, seed=number)
    return found[0] if single else found


def check_masks(predictor: object) -> None:
    """Raise `InputError` for a model of noise: it has no `nll`."""
    if noise_of(predictor) is not None:
        raise InputError(NO_MASKS)


def estimate_items(
    predictor: Predictor, items: Sequence[Item], request: Request, *, seed: int, names: Sequence[int] | None = None
) -> list[Estimate]:
    """The `nll` of many items, or the `dse_nll` if that is what the predictor is made for.

    `names` are their names in the random streams (by default their content).
    """
    check_items(predictor, items)
    named = [item.key for item in items] if names is None else names
    terms = (Term(predictor, item, name) for item, name in zip(items, named, strict=True))
    found = estimate_combinations([Combination((term,), request, seed) for term in terms])
    return [raise_if_refused(one).estimates[0] for one in found]


@dataclasses.dataclass(frozen=True, eq=False)
class Term:
    """One `nll` of a combination: the name of its random stream, and what it is multiplied by."""

    predictor: Predictor
    item: Item
    name: int
    coefficient: int = 1

    @functools.cached_property
    def blocks(self) -> tuple[int, ...]:
        """How many target tokens lie in each block, if the predictor has blocks."""
        layout = blocks_of(self.predictor)
        return () if layout is None else layout.sizes(self.item.target)

    @property
    def shape(self) -> tuple[int, int, int, tuple[int, ...]]:
        """Terms of one shape can be drawn together."""
        return id(self.predictor), self.item.length, self.item.target.numel(), self.blocks

    @property
    def noise(self) -> NoiseDesign | None:
        """How noise is drawn for it, if its predictor is a model of noise."""
        found = noise_of(self.predictor)
        return None if found is None else NoiseDesign(found)

    def masks(self, design: MaskDesign) -> int:
        """All that there are, in the pieces of the target that the design draws independently; some at most."""
        return 2 ** min(63, max(design.over(self.blocks).parts(self.item.target.numel())))


@dataclasses.dataclass(frozen=True, eq=False)
class Combination:
    """A sum of coefficient x `nll` (or `dse_nll`): one term for a likelihood, two for a ratio, four for a margin.

    Terms of one name draw from the same uniform numbers. The first term with a positive coefficient is the **base**: a
    pilot on it chooses the design of all terms.
    """

    terms: tuple[Term, ...]
    request: Request
    seed: int

    def __post_init__(self) -> None:
        if len({term.noise is None for term in self.terms}) > 1:
            raise InputError(
                "Two models that are compared must be of one kind, got one of noise (dse_nll) and one of masks (nll). "
                "Score each by itself."
            )

    @property
    def base(self) -> Term:
        return next(term for term in self.terms if term.coefficient > 0)

    @property
    def first_rows(self) -> int:
        """Of each term: what to spend before looking at the spread."""
        terms = min(2, len(self.terms))  # four as two: they share terms
        return self.request.first_rows(self.base.item.target.numel(), terms=terms)

    @property
    def entries(self) -> int:
        """Mask entries of a first stage, about."""
        rows, request = self.first_rows, self.request
        if request.exhaustive:
            return sum(term.item.target.numel() * min(rows, term.masks(request.design)) for term in self.terms)
        return sum(term.item.target.numel() * rows for term in self.terms)


@dataclasses.dataclass(frozen=True, eq=False)
class Combined:
    """What came of a combination: the estimate of every term, and the replicates of the sum."""

    estimates: tuple[Estimate, ...]
    replicates: Float64[Tensor, " replicates"]
    stopped: Stopped
    first: int | None

    @property
    def evaluations(self) -> int:
        return sum(estimate.evaluations for estimate in self.estimates)


def raise_if_refused(outcome: "Combined | InputError") -> Combined:
    """The outcome, if there is one."""
    if isinstance(outcome, InputError):
        raise outcome
    return outcome


def estimate_combinations(combinations: Sequence[Combination]) -> "list[Combined | InputError]":
    """Estimate many combinations side by side; what came of each, in order.

    Their rows share batches, and what several of them need (the same term from the same numbers) is evaluated once. A
    combination whose budget is too small for its design gives the `InputError` that says so, and the others go on.
    Batches are as small as the smallest that a request asks for.
    """
    groups = list(_groups(combinations))
    largest = max((sum(combinations[n].entries for n in group) for group in groups), default=1)
    sizes = [combination.request.batch_size for combination in combinations]
    smallest = min((size for size in sizes if size is not None), default=None)
    batching = Batching(smallest, together=max(1, WINDOW // largest))
    coroutines = (combination_coroutine([combinations[n] for n in group]) for group in groups)
    found: dict[int, Combined | InputError] = {}
    for group, outcomes in zip(groups, run_batched(coroutines, batching), strict=True):
        found |= dict(zip(group, outcomes, strict=True))
    return [found[n] for n in range(len(combinations))]


def _groups(combinations: Sequence[Combination]) -> Iterator[list[int]]:
    """Numbers of combinations that begin alike, few enough at a time to fit in memory."""
    alike: dict[tuple, list[int]] = {}
    for number, one in enumerate(combinations):
        alike.setdefault((one.base.shape, one.first_rows, one.request, one.seed), []).append(number)
    for members in sorted(
        alike.values(), key=lambda m: combinations[m[0]].base.shape[1:], reverse=True
    ):  # less padding
        group: list[int] = []
        entries = 0
        for number in members:
            entries += combinations[number].entries
            if group and entries > CHUNK:
                yield group
                group, entries = [], combinations[number].entries
            group.append(number)
        yield group


def combination_coroutine(combinations: Sequence[Combination]) -> "Coroutine[list[Combined | InputError]]":
    """The coroutine that estimates combinations whose bases have one shape, for one request and one seed.

    This is the one replicate loop: a pilot chooses a design, a first stage of replicates is drawn, its spread says once
    how many there shall be, and those are drawn. Terms of models of noise are `dse_nll`s and take no pilot.
    """
    noisy = combinations[0].base.noise is not None
    begun = _begin_noise(combinations) if noisy else (yield from _begin(combinations))
    stages = [stage for stage in begun if isinstance(stage, _Stage)]
    first = yield from _first_stage(stages)
    estimates = yield from _second_stage(stages, first)
    outcomes = iter(stage.combined(some) for stage, some in zip(stages, estimates, strict=True))
    return [next(outcomes) if isinstance(stage, _Stage) else stage for stage in begun]


def _begin(combinations: Sequence[Combination]) -> "Coroutine[list[_Stage | InputError]]":
    """A pilot on every distinct base, if the design wants one, and the design that it chooses."""
    request, rows = combinations[0].request, combinations[0].first_rows
    bases = {one.base.item.key: one.base.item for one in combinations}
    base = combinations[0].base
    batch, length = ItemBatch.of(base.predictor, list(bases.values())), base.item.target.numel()
    design = request.design.over(base.blocks)
    pilot = design.pilot(length, rows)
    seen = yield from Observations.none(len(bases), length).extend(batch, pilot.expand(len(bases), -1, -1))
    precision = request.precision(float(length)) if request.open_ended else None
    chosen = [design.choose_design(length, rows, found, precision=precision) for found in seen.surprisal]
    place = {key: number for number, key in enumerate(bases)}
    begun: list[_Stage | InputError] = []
    for combination in combinations:
        number = place[combination.base.item.key]
        try:
            begun.append(_Stage.begin(combination, *chosen[number], seen.subset(torch.tensor([number]))))
        except InputError as error:
            begun.append(error)
    return begun


def _begin_noise(combinations: Sequence[Combination]) -> "list[_Stage | InputError]":
    """Designs of noise take no pilot: there is one for all budgets."""
    begun: list[_Stage | InputError] = []
    for combination in combinations:
        try:
            begun.append(_Stage.begin_noise(combination))
        except InputError as error:
            begun.append(error)
    return begun


Place = tuple[Sample | NoiseSample, int]
"""The replicates of one term: a sample that it shares with other terms, and its place there."""


@dataclasses.dataclass(frozen=True, eq=False)
class _Stage:
    """A combination whose design is chosen: one for all terms, with as many replicates of each."""

    combination: Combination
    designs: tuple[MaskDesign | NoiseDesign, ...]
    """The same for every term, but for the blocks that its target lies in, or for the noise of its model."""
    layouts: tuple[Layout, ...]
    pilot: Observations
    """Of the base."""

    @staticmethod
    def begin(combination: Combination, design: MaskDesign, rows: int, pilot: Observations) -> "_Stage":
        """`InputError` if a term is too long for the design and its rows."""
        request, auto = combination.request, auto_in(combination.request.design)
        sizes = [term.item.target.numel() for term in combination.terms]
        designs = [design.over(term.blocks) for term in combination.terms]
        if auto is not None and not all(_fits(one, size, rows) for one, size in zip(designs, sizes, strict=True)):
            designs = [in_blocks(auto.tiled, term.blocks) for term in combination.terms]
        layouts = [request.first_layout(one, size, rows) for one, size in zip(designs, sizes, strict=True)]
        replicates = min((layout.replicates for layout in layouts if layout.replicates > 1), default=1)
        together = min(layout.together for layout in layouts)  # terms that are drawn alike share their numbers
        few = [Layout(min(one.replicates, replicates), one.rows, together) for one in layouts]
        return _Stage(combination, tuple(designs), tuple(few), pilot)

    @staticmethod
    def begin_noise(combination: Combination) -> "_Stage":
        """The same for models of noise, each with noise of its own, from the same uniform numbers."""
        request = combination.request
        if request.design != Auto():
            raise InputError(
                f"A design says which tokens are masked, got {request.design} for a model that knows noise, not masks. "
                "Leave it out."
            )
        designs = [term.noise for term in combination.terms if term.noise is not None]
        sizes = [term.item.target.numel() for term in combination.terms]
        rows = combination.first_rows
        layouts = [request.first_layout(one, size, rows) for one, size in zip(designs, sizes, strict=True)]
        pilot = Observations.none(1, combination.base.item.target.numel())
        return _Stage(combination, tuple(designs), tuple(layouts), pilot)

    @property
    def replicates(self) -> int:
        return max(layout.replicates for layout in self.layouts)

    def goal(self, places: Sequence[Place]) -> tuple[int, Stopped]:
        """How many replicates there shall be, given a first stage; 1 where all is, or had better be, enumerated."""
        request = self.combination.request
        if self.replicates == 1:
            return 1, "exact"
        rows = max(layout.rows for layout in self.layouts if layout.replicates > 1)
        most = (request.rows - self.pilot.masked.shape[1]) // rows
        goal, stopped = request.replicates_for(self.sum([sample.values[place] for sample, place in places]), most=most)
        if self.combination.base.noise is not None:
            return goal, stopped
        masks = sum(term.masks(request.design) for term in self.combination.terms)
        cheaper = masks <= (goal - self.replicates) * rows * len(places)
        return (1, "exact") if auto_in(request.design) is not None and cheaper else (goal, stopped)

    def combined(self, estimates: Sequence[Estimate]) -> Combined:
        """What the terms add up to. How sure that is, those that are not exact decide."""
        random = next((one for one in estimates if one.stopped != "exact"), estimates[0])
        return Combined(tuple(estimates), self.sum([e.replicates for e in estimates]), random.stopped, random.first)

    def sum(self, values: Sequence[Tensor]) -> Float64[Tensor, " replicates"]:
        """Replicate by replicate; an exact term counts for every replicate of the others."""
        total = torch.zeros(max(one.numel() for one in values), dtype=torch.float64)
        for one, term in zip(values, self.combination.terms, strict=True):
            total = total + term.coefficient * one
        return total


def _first_stage(stages: Sequence[_Stage]) -> Coroutine[list[list[Place]]]:
    """Every term of every stage with its first replicates. Terms of one shape are drawn together, equal ones once."""
    begun: dict[tuple, tuple[Term, Observations | None]] = {}
    wanted: list[list[tuple]] = []
    for stage in stages:
        wanted.append([])
        for term, design, layout in zip(stage.combination.terms, stage.designs, stage.layouts, strict=True):
            looked = term is stage.combination.base and stage.pilot.masked.shape[1] > 0
            pilot = stage.pilot if looked else None
            want = ((term.shape, design, layout, pilot is None), (term.item.key, term.name))
            begun.setdefault(want, (term, pilot))
            wanted[-1].append(want)

    def draw(group: tuple, members: list[tuple]) -> Coroutine[list[Place]]:
        _, design, layout, _ = group
        terms, pilots = zip(*(begun[group, member] for member in members), strict=True)
        sample = _sample(terms, pilots, design, layout, stages[0].combination)
        sample = yield from sample.extend(layout.replicates)
        return [(sample, place) for place in range(len(members))]

    return (yield from _each_once(wanted, draw))


def _sample(
    terms: Sequence[Term],
    pilots: Sequence[Observations | None],
    design: MaskDesign | NoiseDesign,
    layout: Layout,
    asked: Combination,
) -> Sample | NoiseSample:
    """What terms of one shape begin with."""
    items, names, control = [term.item for term in terms], [term.name for term in terms], asked.request.control
    batch = ItemBatch.of(terms[0].predictor, items)
    if isinstance(design, NoiseDesign):
        on_hits = None if control is None else control.regression
        return NoiseSample.of(items, names, batch, design, layout, control=on_hits, seed=asked.seed)
    seen = [pilot for pilot in pilots if pilot is not None]
    return Sample.of(
        items,
        names,
        batch,
        design,
        layout,
        control=control,
        seed=asked.seed,
        seen=Observations.joined(seen) if seen else None,
    )


def _second_stage(stages: Sequence[_Stage], first: Sequence[Sequence[Place]]) -> Coroutine[list[list[Estimate]]]:
    """The estimate of every term from as many replicates as the first stage asks for.

    Where everything could be enumerated for that, it is.
    """
    wanted: list[list[tuple]] = []
    for stage, places in zip(stages, first, strict=True):
        goal = stage.goal(places)
        exact = (1, "exact")
        wanted.append([((sample, exact if sample.exact else goal), place) for sample, place in places])

    def draw(group: tuple, places: list[int]) -> Coroutine[list[Estimate]]:
        sample, (count, stopped) = group
        some = sample.subset(torch.tensor(places))
        if stopped == "exact" and isinstance(some, Sample) and not some.exact:
            some = some.enumerated()
        some = yield from some.extend(count)
        decided = stages[0].combination.request.open_ended and stopped != "exact"
        return some.estimates(sample.count if decided else None, stopped)

    return (yield from _each_once(wanted, draw))


def _each_once(
    wanted: Sequence[Sequence[tuple[Hashable, Any]]], draw: Callable[[Any, list], Coroutine[list]]
) -> Coroutine[list[list]]:
    """What `draw` makes of the distinct members of every group, for every (group, member) that is wanted."""
    groups: dict[Hashable, dict[Any, None]] = {}
    for group, member in itertools.chain.from_iterable(wanted):
        groups.setdefault(group, {})[member] = None
    known: dict[tuple[Hashable, Any], Any] = {}
    for group, members in groups.items():
        found = yield from draw(group, list(members))
        known |= {(group, member): one for member, one in zip(members, found, strict=True)}
    return [[known[want] for want in some] for some in wanted]


def _fits(design: MaskDesign, length: int, rows: int) -> bool:
    try:
        design.layout(length, rows)
    except InputError:
        return False
    return True
