"""Multiple choice as a race: which of some continuations does a predictor find likeliest?

A choice is scored by its `nll` divided by a size (1, its tokens, its bytes); the lowest score wins. All choices draw
cheap replicates of the same design from the same uniform numbers, round after round, and what is looked at are coupled
differences of scores. A choice that can no longer win at level alpha stops being evaluated, so rows go where the race
is close.

**When a choice is out.** For two choices let there be n differences of scores, one per replicate, with mean D and S the
sum of their squared deviations from it. With T the distribution function of Student's t with n degrees of freedom,

    e = 2 T(z) (1 + n g)^(-1/2) [(S + n D^2) / (S + n D^2 / (1 + n g))]^(n/2),
    z = n D [n g / (1 + n g) / (S + n D^2 / (1 + n g))]^(1/2)                                              [eq:race]

is a Bayes factor: a positive mean, whose ratio to the standard deviation is half-normal with variance g, against none.
If differences are normal with a mean of at most 0 and any variance, the expectation of e is at most 1 *whenever one
stops*, so that it ever reaches 1 / alpha with probability at most alpha. The best choice has K - 1 rivals. The mean of
their e against it is at most 1 in expectation too; a choice is out when that mean reaches 1 / alpha. So the best one is
ever out with probability at most alpha.

Differences are only nearly normal. `PowerCount` is made to keep them so with a single row each; the tests measure how
often the wrong choice wins on chains with known answers. What no test of this kind can see is a surprise so rare that
no row has met it.

**What is subtracted.** A control, fitted to *earlier* rows of the same choice. It knows nothing of the masks that it is
applied to, so that every difference has the same mean whatever was seen before; only its variance falls with time.
"""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal, SupportsIndex, TypedDict, overload

import torch
from jaxtyping import Bool, Float64, Int
from torch import Tensor
from typing_extensions import Unpack

from infodis.auto import Auto, Blocks, in_blocks
from infodis.blocks import blocks_of
from infodis.control import Control, Neighbours, Surrogate
from infodis.design import Keys, Layout, Levels, MaskDesign, PowerCount, StratifiedCount, Tiled, key_count, numbers
from infodis.errors import InputError
from infodis.estimate import Request
from infodis.evaluate import Batching, Coroutine, ItemBatch, run
from infodis.item import Item, ManySequences, Positions, Tokens, check_items, read_items
from infodis.predictor import Predictor
from infodis.result import Measured
from infodis.rng import check_seed, key, stream
from infodis.sample import Sample

FEWEST = 8
"""Replicates before the first look. With fewer than seven [eq:race] cannot reach 100."""

BLOCK = 4
"""Replicates, or a quarter of those before them if that is more, that share what a control has learned."""

SMALL = 15
"""Masks that are all asked about, instead of drawing some: targets of up to four tokens are exact."""

SPREAD = 0.5
"""g of [eq:race]: the variance of mean / standard deviation of a replicate's difference, as the prior has it."""

ROUNDING = 1e-6
"""Relative differences of scores that are not told apart."""

Scores = Float64[Tensor, "choices replicates"]
Stopped = Literal["decided", "budget spent", "given up", "tied"]


OPEN = (Auto, PowerCount, StratifiedCount, Tiled)
"""Designs whose replicates may have any number of rows."""


@dataclasses.dataclass(frozen=True)
class Race:
    """How to choose: how sure to be, how much to spend, where to look, what to subtract."""

    alpha: float = 0.01
    """The probability at which a wrong choice may be decided on."""
    evaluations: int = 128
    """The most forward passes per choice."""
    design: MaskDesign = PowerCount()
    rows: int = 1
    """Of a replicate, where the design leaves that open."""
    control: Control | None = Surrogate(residual=Neighbours())
    chance: float = 0.3
    """A race ends undecided when the chance to decide it within the budget falls below this; 0 spends it all."""

    def __post_init__(self) -> None:
        if not isinstance(self.design, MaskDesign):
            raise InputError(f"design must be a value like Tiled(), got {self.design!r}.")
        if self.control is not None and not isinstance(self.control, Control):
            raise InputError(f"control must be a value like Neighbours(), or None, got {self.control!r}.")
        for name in ("evaluations", "rows"):
            number = getattr(self, name)
            if isinstance(number, bool) or not hasattr(number, "__index__") or number < 1:
                raise InputError(f"{name} must be a whole number and at least 1, got {number!r}.")
        if not isinstance(self.alpha, int | float) or not 0 < self.alpha < 1:
            raise InputError(f"alpha must lie between 0 and 1, got {self.alpha!r}.")
        if not isinstance(self.chance, int | float) or not 0 <= self.chance < 1:
            raise InputError(f"chance must be at least 0 and below 1, got {self.chance!r}.")

    def drawn(self, target: int, blocks: tuple[int, ...]) -> tuple[MaskDesign, Layout]:
        """What a choice of so many tokens, in such blocks if there are any, draws from: all masks if they are few."""
        inner = self.design.inner if isinstance(self.design, Blocks) else self.design
        design = in_blocks(inner, blocks)
        masks = 2 ** max(design.parts(target)) - 1
        if masks <= min(self.evaluations, SMALL):
            return design.exhaustive(), Layout(1, masks)
        layout = design.layout(target, self.evaluations)
        rows = min(self.rows, layout.rows) if isinstance(inner, OPEN) else layout.rows
        return design, Layout(self.evaluations // rows, rows)


@dataclasses.dataclass(frozen=True)
class Choice:
    """One choice as the race left it."""

    nats: float
    """Its `nll`; infinite if it is impossible."""
    standard_error: float
    """Of `nats`; 0 where nothing is random."""
    size: float
    evaluations: int
    replicates: int
    """1 if it was enumerated."""

    @property
    def score(self) -> float:
        return self.nats / self.size


@dataclasses.dataclass(frozen=True)
class Verdict:
    """Who won, by how much, and whether that is sure."""

    ranking: tuple[int, ...]
    """Numbers of the choices, best first: those still in the race, then the others, each by their score at the end."""
    stopped: Stopped
    """Why the race was over. `tied`: no budget could tell. `given up`: this one would hardly have been enough."""
    margin: float | None
    """Score of the runner-up minus that of the leader, over the replicates they share; None for a single choice."""
    standard_error: float | None
    """Of `margin`."""
    choices: tuple[Choice, ...]
    evaluations: int
    """Forward passes of all choices; equal ones are evaluated once."""
    alpha: float
    seed: int

    @property
    def leader(self) -> int:
        return self.ranking[0]

    @property
    def decided(self) -> bool:
        """Whether the leader has won."""
        return self.stopped == "decided"

    def __repr__(self) -> str:
        sure = "" if self.margin is None else f" by {Measured(self.margin, self.standard_error or 0.0)} nats"
        names = f"ranking={list(self.ranking)}, evaluations={self.evaluations}, alpha={self.alpha}"
        return f"Verdict(choice {self.leader} leads{sure}, {self.stopped}, {names})"

    def record(self) -> dict[str, Any]:
        """Plain values for a line of JSON. Infinite ones are None."""
        choices = [
            {name: _finite(value) for name, value in dataclasses.asdict(choice).items()} for choice in self.choices
        ]
        mine = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        margin = None if self.margin is None else _finite(self.margin)
        return mine | {
            "ranking": list(self.ranking),
            "decided": self.decided,
            "margin": margin,
            "choices": choices,
        }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


Sizes = Sequence[float] | Literal["tokens", "bytes"] | None


class ChooseOptions(TypedDict, total=False):
    """The keywords of `choose`, for type checkers."""

    context: Positions | Sequence[Positions] | None
    sizes: Sizes
    alpha: float
    evaluations: int
    design: MaskDesign
    seed: SupportsIndex
    batch_size: int | None


@overload
def choose(predictor: Predictor, prompt: str, choices: Sequence[str], **options: Unpack[ChooseOptions]) -> Verdict: ...
@overload
def choose(
    predictor: Predictor,
    prompt: ManySequences | Tensor = ...,
    choices: ManySequences | Tensor | None = ...,
    **options: Unpack[ChooseOptions],
) -> Verdict: ...
def choose(
    predictor: Predictor,
    prompt: Tokens = "",
    choices: Tokens | None = None,
    *,
    context: Positions | Sequence[Positions] | None = None,
    sizes: Sizes = None,
    alpha: float = 0.01,
    evaluations: int = 128,
    design: MaskDesign = PowerCount(),
    seed: SupportsIndex = 0,
    batch_size: int | None = None,
) -> Verdict:
    """The likeliest of some texts or sequences of any lengths, with a bound on the probability of being wrong.

    Text: `choose(model, prompt, choices)`. Token ids: `choose(model, choices, context=...)`, with the prompt in each.

    Args:
        predictor: a model (`infodis.load`) or any other `Predictor`.
        prompt: the text before every choice; may be left out.
        choices: two or more texts or sequences of token ids.
        context: for token ids, positions to condition on: one set for all or a list of sets.
        sizes: what to divide each `nll` by: `tokens`, `bytes` (of texts), or a list of numbers; 1 by default.
        alpha: how often a wrong choice may be decided on.
        evaluations: the most forward passes per choice; clear cases take some twenty.
        design: where to look.
        seed: the same seed gives the same masks for the same choices, whatever else is scored.
        batch_size: at most so many rows per call of the predictor. It changes no result.

    >>> from infodis import oracle
    >>> chain = oracle.MarkovChain.random(order=1, vocab_size=3, temperature=0.2)
    >>> verdict = choose(chain, [[0, 2, 1, 0, 2, 1, 0, 2], [0, 0, 1, 1, 2, 2, 0, 1]], context=[0])
    >>> verdict.leader, verdict.decided, verdict.evaluations < 2 * 128
    (1, True, True)

    >>> import infodis
    >>> choose(infodis.load("text8-tiny"), "the capital of france is ", ["paris", "qzxvk"]).leader
    0
    """
    race, batching = Race(alpha, evaluations, design), Batching(Request(batch_size=batch_size).batch_size)
    if choices is None:
        prompt, choices = "", prompt
    if not isinstance(prompt, str):
        raise InputError(
            "choose takes a prompt and choices as text, or choices as token ids, got a prompt that is no text. Put the "
            "prompt's ids before every choice, and name their positions: choose(model, choices, context=range(...))."
        )
    choices = choices if isinstance(choices, str | Tensor | Item) else list(choices)
    items, single = read_items(predictor, choices, prompt=prompt, context=context)
    if single:
        raise InputError("choices must be a list of texts or sequences, got a single one. Give two or more.")
    check_items(predictor, items)
    name = key(*sorted(item.key for item in items))
    divided = sizes_of(sizes, items, choices)
    racing = race_coroutine(predictor, items, divided, race, seed=check_seed(seed), name=name)
    return run(racing, batching)


def sizes_of(sizes: Sizes, items: Sequence[Item], choices: Tokens) -> list[float]:
    """What to divide the `nll` of every choice by."""
    if sizes is None:
        return [1.0] * len(items)
    if not isinstance(sizes, str):
        return list(sizes)
    if sizes == "tokens":
        return [float(item.target.numel()) for item in items]
    texts = list(choices) if sizes == "bytes" and not isinstance(choices, Item) else []
    if not texts or not all(isinstance(text, str) for text in texts):
        raise InputError(
            f"sizes must be 'tokens', 'bytes' where choices are texts, or one number for each choice, got {sizes!r}. "
            "Take 'tokens' for token ids."
        )
    return [float(len(str(text).encode())) for text in texts]


def race_coroutine(
    predictor: Predictor, items: list[Item], sizes: list[float], race: Race, *, seed: int, name: int
) -> Coroutine[Verdict]:
    """The coroutine that runs one race. `name` names its random numbers, which all choices share."""
    sizes = _checked(items, sizes)
    columns = _columns(items)
    runners = {
        item.key: Runner.begin(predictor, item, places, race) for item, places in zip(items, columns, strict=True)
    }
    drawn = [runner.rows for runner in runners.values() if not runner.exact]
    longest = max(int(runner.columns[-1]) + 1 for runner in runners.values())
    shared = Numbers(seed, name, longest, max(drawn, default=1))
    most = race.evaluations // max(drawn) if drawn else 1
    field = Field.of([item.key for item in items], sizes, race)
    count, until = 0, min(FEWEST, most)
    while True:
        for mine in dict.fromkeys(field.keys[n] for n in field.open):
            runners[mine] = yield from runners[mine].go(shared, range(count, until))
        field = field.judged(runners)
        stopped = field.stopped(runners, until, most)
        if stopped is not None:
            return field.verdict(runners, stopped, seed=seed)
        count, until = until, min(max(until + 1, until * 5 // 4), most)


def _checked(items: list[Item], sizes: Sequence[float]) -> list[float]:
    if not items:
        raise InputError("There is nothing to choose from: no choices were given.")
    if len(sizes) != len(items):
        raise InputError(f"sizes: give one for each of the {len(items)} choices, got {len(sizes)}.")
    for size in sizes:
        if isinstance(size, bool) or not isinstance(size, int | float) or not 0 < size < math.inf:
            raise InputError(f"A size must be a positive number, got {size!r}.")
    return [float(size) for size in sizes]


def _columns(items: list[Item]) -> list[Int[Tensor, " target"]]:
    """For every target position of every choice the number of its key: equal beginnings and equal ends share theirs.

    Positions are numbered from the first, except for an end that a choice has in common with another one: it is
    numbered from the last, so that masks meet it alike though lengths differ.
    """
    texts = [item.tokens[item.target].tolist() for item in items]
    longest = max(len(text) for text in texts)
    columns = []
    for text in texts:
        end = max((_common_end(text, other) for other in texts if len(other) != len(text)), default=0)
        places = torch.arange(len(text))
        columns.append(places + (places >= len(text) - end) * (longest - len(text)))
    return columns


def _common_end(one: list[int], other: list[int]) -> int:
    """Tokens at the end that two texts share, besides those that they share at the beginning."""
    shortest = min(len(one), len(other))
    begin = next((n for n in range(shortest) if one[n] != other[n]), shortest)
    return next((n for n in range(shortest - begin) if one[-1 - n] != other[-1 - n]), shortest - begin)


@dataclasses.dataclass(frozen=True)
class Numbers:
    """The uniform numbers that all choices share."""

    seed: int
    name: int
    longest: int
    rows: int

    def draw(self, replicates: range) -> tuple[Levels, Keys]:
        generators = [stream(self.seed, self.name, "race", replicate) for replicate in replicates]
        return numbers(self.longest, Layout(len(replicates), self.rows), generators)


@dataclasses.dataclass(frozen=True, eq=False)
class Runner:
    """One distinct item in the race: its sample, and the value of every replicate."""

    columns: Int[Tensor, " target"]
    """The number of every position's key among the shared ones."""
    sample: Sample
    values: Float64[Tensor, " replicates"]

    @staticmethod
    def begin(predictor: Predictor, item: Item, columns: Int[Tensor, " target"], race: Race) -> "Runner":
        blocks, target = blocks_of(predictor), item.target.numel()
        design, layout = race.drawn(target, () if blocks is None else blocks.sizes(item.target))
        if blocks is not None:  # they begin alike, and where they end alike their blocks do not
            columns = torch.arange(key_count(design, target))
        sample = Sample.of(
            [item], [item.key], ItemBatch.of(predictor, [item]), design, layout, control=race.control, seed=0
        )
        return Runner(columns, sample, torch.zeros(0, dtype=torch.float64))

    @property
    def rows(self) -> int:
        """Of a replicate."""
        return self.sample.layout.rows

    @property
    def exact(self) -> bool:
        """Whether a replicate holds all masks."""
        return self.sample.design == self.sample.design.exhaustive()

    @property
    def impossible(self) -> bool:
        return bool(self.sample.impossible)

    @property
    def cost(self) -> int:
        return int(self.sample.seen.cost[0])

    def choice(self, size: float) -> Choice:
        """Where it stands."""
        found = Measured(math.inf, 0.0) if self.impossible else Measured.mean(self.values)
        return Choice(found.value, found.standard_error, size, self.cost, len(self.values))

    def go(self, shared: Numbers, replicates: range) -> "Coroutine[Runner]":
        """The same after some more replicates."""
        if self.exact:
            sample = yield from self.sample.extend(1)
            return dataclasses.replace(self, sample=sample, values=sample.values[0])
        levels, keys = shared.draw(replicates)
        masked, weight = self.sample.design.masks(levels[:, : self.rows], keys[:, : self.rows, self.columns])
        sample = yield from self.sample.add(*(part.flatten(0, 1).unsqueeze(0) for part in (masked, weight)))
        grown = dataclasses.replace(self, sample=sample)
        fresh = [grown._values(block) for block in _blocks(replicates)]
        return dataclasses.replace(grown, values=torch.cat([self.values, *fresh]))

    def _values(self, replicates: range) -> Float64[Tensor, " replicates"]:
        """Of some replicates, less what a control makes of the rows before them [eq:control]."""
        if self.impossible:
            return torch.full((len(replicates),), math.inf, dtype=torch.float64)
        past, end = replicates.start * self.rows, replicates.stop * self.rows
        folds = [(0, past), (past, end)] if past else []
        return self.sample.head(replicates.stop).per_replicate(folds)[0, replicates.start :].sum(-1)


def _blocks(replicates: range) -> Iterator[range]:
    """Neighbouring replicates that get the same control."""
    start = replicates.start
    while start < replicates.stop:
        stop = min(replicates.stop, start + max(BLOCK, start // 4))
        yield range(start, stop)
        start = stop


Runners = dict[int, Runner]


@dataclasses.dataclass(frozen=True, eq=False)
class Field:
    """Who is still in the race, and what has been seen against whom."""

    keys: list[int]
    """The runner of every choice."""
    sizes: list[float]
    race: Race
    open: list[int]
    against: Float64[Tensor, "choices choices"]
    """Log of e: how strongly the second choice was seen to be better than the first."""

    @staticmethod
    def of(keys: list[int], sizes: list[float], race: Race) -> "Field":
        nothing = torch.full((len(keys), len(keys)), -math.inf, dtype=torch.float64)
        return Field(keys, sizes, race, list(range(len(keys))), nothing)

    def stopped(self, runners: Runners, count: int, most: int) -> Stopped | None:
        """Why the race is over after so many replicates, if it is."""
        if len(self.open) == 1:
            return "decided"
        alike = len({(self.keys[n], self.sizes[n]) for n in self.open}) <= 1
        if alike or all(runners[self.keys[n]].exact for n in self.open):
            return "tied"
        if count >= most:
            return "budget spent"
        return "given up" if self.chance(runners, most) < self.race.chance else None

    def scores(self, runners: Runners, choices: list[int]) -> Scores:
        """Over the replicates that the choices share. Exact ones count for every replicate of the others."""
        some = [runners[self.keys[n]] for n in choices]
        count = min((len(runner.values) for runner in some if not runner.exact), default=1)
        values = [runner.values[:count].expand(count) / self.sizes[n] for n, runner in zip(choices, some, strict=True)]
        return torch.stack(values)

    def judged(self, runners: Runners) -> "Field":
        """Without those that can no longer win."""
        possible = [n for n in self.open if not runners[self.keys[n]].impossible]
        if len(possible) < 2:
            return dataclasses.replace(self, open=possible)
        exact = torch.tensor([runners[self.keys[n]].exact for n in possible])
        against, places = self.against.clone(), torch.tensor(possible)
        against[places.unsqueeze(1), places] = _evidence(self.scores(runners, possible), exact)
        mean = against.fill_diagonal_(-math.inf).logsumexp(1) - math.log(len(self.keys) - 1)
        left = [n for n in possible if mean[n] < -math.log(self.race.alpha)]
        return dataclasses.replace(self, open=left or possible, against=against)

    def chance(self, runners: Runners, most: int) -> float:
        """Of deciding for the leader at the end of the budget, if its lead over the others goes on as so far."""
        scores = self.scores(runners, self.open)
        count = scores.shape[1]
        leader = int(scores.mean(1).argmin())
        mine = (self.keys[self.open[leader]], self.sizes[self.open[leader]])
        rivals = [place for place, n in enumerate(self.open) if (self.keys[n], self.sizes[n]) != mine]
        lead = scores[rivals] - scores[leader]
        t = math.sqrt(count) * torch.nan_to_num(lead.mean(1) / lead.std(1), nan=-math.inf)  # 0 / 0: never
        needed = _needed(most, math.log((len(self.keys) - 1) / self.race.alpha))
        ahead = (t * math.sqrt(most / count) - needed) / math.sqrt(most / count - 1)
        return float(torch.special.ndtr(ahead).min())

    def verdict(self, runners: Runners, stopped: Stopped, *, seed: int) -> Verdict:
        choices = tuple(runners[mine].choice(size) for mine, size in zip(self.keys, self.sizes, strict=True))
        others = [n for n in range(len(choices)) if n not in self.open]
        ranking = [n for some in (self.open, others) for n in sorted(some, key=lambda n: choices[n].score)]
        margin, error = self._margin(runners, ranking)
        return Verdict(
            ranking=tuple(ranking),
            stopped=stopped,
            margin=margin,
            standard_error=error,
            choices=choices,
            evaluations=sum(runner.cost for runner in runners.values()),
            alpha=self.race.alpha,
            seed=seed,
        )

    def _margin(self, runners: Runners, ranking: list[int]) -> tuple[float | None, float | None]:
        """Between the first two, with its standard error."""
        first, *others = (runners[self.keys[n]] for n in ranking[:2])
        if not others or first.impossible:
            return None, None
        if others[0].impossible:
            return math.inf, 0.0
        leader, second = self.scores(runners, ranking[:2])
        lead = Measured.mean(second - leader)
        return max(0.0, lead.value), lead.standard_error  # a second that is out may have been ahead by luck


def _evidence(scores: Scores, exact: Bool[Tensor, " choices"]) -> Float64[Tensor, "choices choices"]:
    """Log e for every pair: how strongly the second of two choices was seen to have the lower score [eq:race]."""
    from scipy.special import stdtr  # imported here: it takes longer than most races

    excess = scores.unsqueeze(1) - scores.unsqueeze(0)
    scale = scores.abs().unsqueeze(1) + scores.abs().unsqueeze(0)
    excess = torch.where(excess.abs() <= ROUNDING * scale, 0.0, excess)
    found = torch.full_like(excess[..., 0], -math.inf)
    count = scores.shape[1]
    if count >= FEWEST:
        mean = excess.mean(-1)
        within = (excess - mean.unsqueeze(-1)).square().sum(-1)
        shrink = 1 + count * SPREAD
        total, rest = within + count * mean.square(), within + count * mean.square() / shrink
        z = count * mean * (count * SPREAD / shrink / rest).sqrt()
        growth = torch.where(total > 0, total / rest, 1.0).log()
        tail = torch.from_numpy(stdtr(count, torch.where(total > 0, z, 0.0).numpy()))
        found = (2 * tail).log() - math.log(shrink) / 2 + count / 2 * growth
    certain = torch.where(excess[..., 0] > 0, math.inf, -math.inf)
    return torch.where(exact.unsqueeze(1) & exact, certain, found)


def _needed(count: int, log_e: float) -> float:
    """The t statistic at which [eq:race] reaches a value, up to the factor T, which is nearly 1 there."""
    shrink = 1 + count * SPREAD
    ratio = math.exp(2 / count * (log_e - math.log(2) + math.log(shrink) / 2))
    return math.sqrt((count - 1) * (ratio - 1) / (1 - ratio / shrink)) if ratio < shrink else math.inf
