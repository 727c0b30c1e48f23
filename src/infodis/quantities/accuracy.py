"""Minimal pairs: which of two sentences a model finds likelier, and how often that is the right one.

The likelier sentence is judged by a race of their `nll`s on shared masks, or exactly by a pseudo-log-likelihood. The
signs of margins that lie within their Monte Carlo error are partly chance. That does not average out over pairs:
chance is right half of the time, so noise moves an accuracy towards one half. The interval of `AccuracySum` allows for
it [eq:accuracy].
"""

import dataclasses
import math
from collections.abc import Sequence
from statistics import NormalDist

from infodis.errors import InputError
from infodis.estimate import Request, check_masks
from infodis.evaluate import Batching, run_batched
from infodis.item import Item, check_items
from infodis.predictor import Predictor
from infodis.quantities.choose import ROUNDING, Race, Verdict, race_coroutine
from infodis.quantities.pseudo import Pll, PllWithinWords, check_sees_all
from infodis.quantities.quantity import Quantity
from infodis.rng import key

PSEUDO: dict[str, Quantity] = {quantity.name: quantity for quantity in (Pll(), PllWithinWords())}
PAIR_SCORES = ("nll", *PSEUDO)
"""What sentences can be judged by."""

CAUTION = 2.0
"""Doses of noise that an interval allows for: one is what the estimates hold, to first order in its variance."""


@dataclasses.dataclass(frozen=True, eq=False)
class SentencePair:
    """Two sentences, of which the first is right."""

    good: Item
    bad: Item
    sizes: tuple[float, float] = (1.0, 1.0)
    """What the nats of each are divided by."""

    @property
    def items(self) -> list[Item]:
        return [self.good, self.bad]


@dataclasses.dataclass(frozen=True)
class PairScore:
    """What a model says about a pair by one score."""

    nats: tuple[float, float]
    """Of the good sentence and of the bad one; infinite for one that is impossible."""
    margin: float
    """Nats of the bad sentence less those of the good one, each divided by its size: above zero it is right."""
    standard_error: float = 0.0
    """Of the margin; 0 where nothing is random."""
    degrees_of_freedom: int = 0
    p_value: float = 0.0
    """The probability of a margin as far on this side of zero if the true one were zero."""
    decided: bool = True
    """Whether the sign is certain, or a race was decided at its alpha."""

    @property
    def right(self) -> bool:
        """A tie is not right."""
        return self.margin > 0

    @property
    def tied(self) -> bool:
        """Whether no number of forward passes would tell the sentences apart."""
        return self.margin == 0 and self.standard_error == 0

    @staticmethod
    def exact(nats: tuple[float, float], sizes: tuple[float, float]) -> "PairScore":
        """Of numbers without Monte Carlo error. Two impossible sentences are tied, and so are equal ones."""
        good, bad = (value / size for value, size in zip(nats, sizes, strict=True))
        alike = good == bad or abs(bad - good) <= ROUNDING * (abs(good) + abs(bad)) < math.inf
        return PairScore(nats, 0.0 if alike else bad - good)

    @staticmethod
    def raced(verdict: Verdict) -> "PairScore":
        """Of a race between the good sentence and the bad one."""
        good, bad = verdict.choices
        nats = (good.nats, bad.nats)
        drawn = [one.replicates for one in (good, bad) if one.replicates > 1]
        if verdict.stopped == "tied" or math.inf in nats or (verdict.decided and not drawn):
            return PairScore.exact(nats, (good.size, bad.size))
        margin, error = (verdict.margin or 0.0) * (1 if verdict.leader == 0 else -1), verdict.standard_error or 0.0
        degrees = min(drawn, default=1) - 1
        p_value = one_sided(margin, error, degrees)
        if verdict.decided:
            p_value = min(p_value, verdict.alpha)
        return PairScore(nats, margin, error, degrees, p_value, verdict.decided)


def one_sided(margin: float, standard_error: float, degrees: int) -> float:
    """The probability, by Student's t, of a mean as far on this side of zero if the true one were zero.

    >>> round(one_sided(2.0, 1.0, 15), 4), one_sided(1.0, 0.0, 0)
    (0.032, 0.5)
    """
    from scipy.special import stdtr  # imported here: it takes longer than the rest

    if not degrees:
        return 0.5  # of a single draw nothing is known
    if not standard_error:
        return 0.0 if margin else 0.5
    return float(stdtr(degrees, -abs(margin) / standard_error))


@dataclasses.dataclass(frozen=True)
class PairScores:
    """What a model says about a pair, by every score that was asked for."""

    by_name: dict[str, PairScore]
    evaluations: int


@dataclasses.dataclass(frozen=True)
class PairRequest:
    """By which scores pairs are judged, and how their race is run."""

    scores: tuple[str, ...] = PAIR_SCORES
    race: Race = Race(chance=0.0)
    """It is not given up early by default: every sign counts."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name in self.scores:
            if name not in PAIR_SCORES:
                raise InputError(f"A pair is judged by some of {', '.join(PAIR_SCORES)}; got {name!r}.")
        if not self.scores:
            raise InputError(f"At least one score must be asked for, got none. Name some of {', '.join(PAIR_SCORES)}.")
        self.race.drawn(2, ())  # a budget that pays for no sentence of more than one token is refused before the work

    def check_predictor(self, predictor: Predictor) -> None:
        """Raise `InputError` if a score that was asked for says nothing about such a model."""
        check_masks(predictor)
        for name in self.scores:
            if name in PSEUDO:
                check_sees_all(predictor, name)

    def passes(self, tokens: int) -> float:
        """Forward passes for a pair of sentences of so many tokens, about; most races end early."""
        return 2.0 * sum(tokens if name in PSEUDO else self.race.evaluations for name in self.scores)

    def measure(
        self, predictor: Predictor, pairs: Sequence[SentencePair], *, batch_size: int | None = None
    ) -> list[PairScores]:
        """Judge many pairs; their rows share batches."""
        self.check_predictor(predictor)
        check_items(predictor, [item for pair in pairs for item in pair.items])
        spent = [0] * len(pairs)
        columns: dict[str, list[PairScore]] = {}
        for name in self.scores:
            found = (self._pseudo if name in PSEUDO else self._race)(predictor, pairs, name, batch_size)
            columns[name] = [score for score, _ in found]
            spent = [before + more for before, (_, more) in zip(spent, found, strict=True)]
        return [
            PairScores({name: column[number] for name, column in columns.items()}, evaluations)
            for number, evaluations in enumerate(spent)
        ]

    def _race(
        self, predictor: Predictor, pairs: Sequence[SentencePair], name: str, batch_size: int | None
    ) -> list[tuple[PairScore, int]]:
        races = (
            race_coroutine(
                predictor,
                pair.items,
                list(pair.sizes),
                self.race,
                seed=self.seed,
                name=key(*sorted(item.key for item in pair.items)),
            )
            for pair in pairs
        )
        return [(PairScore.raced(one), one.evaluations) for one in run_batched(races, Batching(batch_size))]

    def _pseudo(
        self, predictor: Predictor, pairs: Sequence[SentencePair], name: str, batch_size: int | None
    ) -> list[tuple[PairScore, int]]:
        items = [item for pair in pairs for item in pair.items]
        found = PSEUDO[name].measure(predictor, items, Request(batch_size=batch_size), seed=self.seed)
        return [
            (PairScore.exact((good.value, bad.value), pair.sizes), good.evaluations + bad.evaluations)
            for good, bad, pair in zip(found[::2], found[1::2], pairs, strict=True)
        ]


@dataclasses.dataclass(frozen=True)
class Accuracy:
    """The share of pairs whose good sentence a model finds likelier, and how sure that is."""

    value: float
    low: float
    """Of a 95 % interval for all pairs of the kind, with what Monte Carlo error may hide."""
    high: float
    monte_carlo_error: float
    """Standard error from the masks: how much the signs of these pairs are chance."""
    sampling_error: float | None
    """Standard error if the pairs are a random sample of more of their kind, masks included; None for a single one."""
    pairs: int
    undecided: int
    """Pairs of which the race was not decided: best guesses."""
    tied: int
    """Pairs whose sentences are equally likely, which do not count as right."""

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


@dataclasses.dataclass
class AccuracySum:
    """An `Accuracy`, added up pair by pair: pairs need not be kept.

    >>> total = AccuracySum()
    >>> for right in (True, True, True, False):
    ...     total.add(right)
    >>> str(total.result())
    '0.750 [0.301, 0.954]'
    """

    pairs: int = 0
    right: int = 0
    undecided: int = 0
    tied: int = 0
    chance: tuple[float, float] = (0.0, 0.0)
    """The sums of p-values of pairs that look wrong, and of those that look right."""
    variance: float = 0.0

    def add(self, right: bool, *, p_value: float = 0.0, decided: bool = True, tied: bool = False) -> None:
        self.pairs += 1
        self.right += right
        self.undecided += not decided
        self.tied += tied
        wrong_ones, right_ones = self.chance
        self.chance = (wrong_ones, right_ones + p_value) if right else (wrong_ones + p_value, right_ones)
        self.variance += p_value * (1 - p_value)

    def result(self, level: float = 0.95) -> Accuracy:
        """Of the pairs so far, which must be some."""
        if not self.pairs:
            raise InputError("An accuracy needs at least one pair, got none.")
        value, count = self.right / self.pairs, self.pairs
        moved = CAUTION * (self.chance[1] - self.chance[0]) / count
        ends = sorted((value, min(1.0, max(0.0, value + moved))))
        sampling = math.sqrt(value * (1 - value) / (count - 1)) if count > 1 else None
        return Accuracy(
            value=value,
            low=_wilson(ends[0], count, level)[0],
            high=_wilson(ends[1], count, level)[1],
            monte_carlo_error=math.sqrt(self.variance) / count,
            sampling_error=sampling,
            pairs=count,
            undecided=self.undecided,
            tied=self.tied,
        )


def _wilson(share: float, count: int, level: float) -> tuple[float, float]:
    """The score interval of a share (Wilson, 1927), which stays within 0 and 1."""
    z = NormalDist().inv_cdf((1 + level) / 2)
    shrink = 1 + z * z / count
    middle = (share + z * z / (2 * count)) / shrink
    half = z / shrink * math.sqrt(share * (1 - share) / count + (z / (2 * count)) ** 2)
    return max(0.0, middle - half), min(1.0, middle + half)
