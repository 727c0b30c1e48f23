"""A number and how sure it is. The only place where a spread is divided by the square root of a count.

- `Replicated`: the mean of independent replicates and all that derives from them (`Estimate`, `Ratio`, bounds).
- `Measured`: a value with its standard error, where the replicates are not kept.
- `Rate`: a ratio of sums over rows (nats per token), with the error of the masks and the error of the rows.
- `Interval`: a value with a confidence interval that is not symmetric.
"""

import abc
import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from infodis import notebook
from infodis.errors import InputError, PredictorError
from infodis.rng import key

LARGEST = 1e150
"""Nats of a replicate: squares of more overflow, and a standard error would be NaN."""

RESAMPLES = 999
"""Of a bootstrap."""

Stopped = Literal["budget spent", "standard error reached", "cap reached", "exact"]


def standard_error(replicates: Float[Tensor, "..."], *, dim: int = 0) -> Float[Tensor, "..."]:
    """Of the mean over an axis of independent replicates; 0 for a single one, which is exact."""
    count = replicates.shape[dim]
    return torch.zeros_like(replicates.select(dim, 0)) if count == 1 else replicates.std(dim) / math.sqrt(count)


def exp(nats: float) -> float:
    """The exponential; infinite where it is too large for a float."""
    return math.exp(nats) if nats < 709 else math.inf


@functools.lru_cache(maxsize=256)
def student_quantile(share: float, degrees: int) -> float:
    """The value below which Student's t lies with probability `share`."""
    from scipy.stats import t  # imported here: it takes longer than an estimate

    return float(t.ppf(share, degrees))


def stein_factor(first: int) -> float:
    """How many times larger than its estimate a standard error is, in the mean square, after stopping by it [eq:stein].

    The estimate is the spread of `first` normal replicates; the mean of 1 / chi-squared with n degrees is 1 / (n - 2).
    """
    return math.sqrt((first - 1) / (first - 3))


@dataclasses.dataclass(frozen=True, eq=False)
class Replicated(abc.ABC):
    """A number in nats and how sure it is. Everything derives from `replicates`: independent, unbiased values."""

    quantity: str
    replicates: Float64[Tensor, " replicates"]
    evaluations: int
    """Forward passes spent."""
    seed: int
    stopped: Stopped
    first: int | None = dataclasses.field(default=None, kw_only=True)
    """Where a standard error was asked for: the replicates of the first stage, whose spread decided on the others."""

    def __post_init__(self) -> None:
        fine = (self.replicates.abs() <= LARGEST) | self.replicates.isinf()  # NaN compares false
        if not bool(fine.all()):
            worst = float(self.replicates[~fine][0])
            raise PredictorError(
                f"{self.quantity} must be a number of at most {LARGEST:g} nats, or infinite for what cannot happen; a "
                f"replicate is {worst:g}. Look at what the predictor returns, and at the data, for absurd numbers."
            )

    @functools.cached_property
    def value(self) -> float:
        """The estimate in nats."""
        return float(self.replicates.mean())

    def __float__(self) -> float:
        return self.value

    @property
    def impossible(self) -> bool:
        """True if a conditional probability of zero was met. One is enough: the value is infinite, for certain."""
        return math.isinf(self.value)

    @property
    def degrees_of_freedom(self) -> int:
        """How well the standard error is known: of Student's t in `interval`. 0 where nothing is random."""
        return (self.first or self.replicates.numel()) - 1

    @functools.cached_property
    def standard_error(self) -> float:
        """Of `value`, from the spread of the replicates; 0 where nothing is random or the value is infinite.

        After a request for a standard error only the spread of the first stage counts, made a little larger so that its
        square is on average that of the true error [eq:stein].
        """
        return self._scale * (1.0 if self.first is None else stein_factor(self.first))

    @functools.cached_property
    def _scale(self) -> float:
        if self.replicates.numel() == 1 or self.impossible:
            return 0.0
        return float(self.replicates[: self.first].std()) / math.sqrt(self.replicates.numel())

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """A confidence interval at `level`, by Student's t with `degrees_of_freedom`."""
        if not 0 < level < 1:
            raise InputError(f"A confidence level must lie between 0 and 1, got {level}.")
        if self._scale == 0:
            return self.value, self.value
        half = student_quantile((1 + level) / 2, self.degrees_of_freedom) * self._scale
        return self.value - half, self.value + half

    @property
    def exact(self) -> bool:
        """Whether nothing is random."""
        return self._scale == 0

    def shown(self) -> str:
        """The value and its standard error, as many digits as mean something."""
        return f"{self.value:.4f}" if self.exact else str(Measured(self.value, self.standard_error))

    def _facts(self) -> list[tuple[str, str]]:
        """What a notebook shows, as names and HTML."""
        low, high = self.interval()
        sure = "exact" if self.exact else notebook.text(f"{low:.4g} to {high:.4g}")
        return [
            ("nats", f"<b>{notebook.text(self.shown())}</b>"),
            ("95 % interval", sure),
            ("forward passes", f"{self.evaluations}"),
        ]

    def _repr_html_(self) -> str:
        return notebook.facts(self._facts(), caption=self.quantity)

    def _precision(self) -> str:
        """How sure the value is, in words."""
        if self._scale == 0:
            return f"evaluations={self.evaluations}"
        low, high = self.interval()
        return (
            f"standard_error={self.standard_error:.2g}, 95 % interval {low:.4f} to {high:.4f}, "
            f"evaluations={self.evaluations}"
        )


@dataclasses.dataclass(frozen=True, eq=False)
class Estimate(Replicated):
    """A likelihood of a target given a context.

    `per_token` holds the credit of every target position, in the order of `target`; credits add up to `value` and are
    the Shapley values of the game v(S) = -log p(x_S).

    >>> import infodis
    >>> from infodis.oracle import MarkovChain
    >>> estimate = infodis.nll(MarkovChain.random(order=1, vocab_size=3), [0, 1, 2, 0, 1], design=infodis.Tiled())
    >>> low, high = estimate.interval()
    >>> low < estimate.value < high, abs(float(estimate.per_token.sum()) - estimate.value) < 1e-9
    (True, True)
    """

    per_token: Float64[Tensor, " target"]
    per_token_error: Float64[Tensor, " target"]
    """Standard errors of `per_token`; 0 where nothing is random."""
    target: Int[Tensor, " target"]
    design: Any
    """The `MaskDesign`, or the name of an order."""
    control: Any
    """The `Control`, or None."""
    identity: tuple[int | str, ...]
    """What the replicates have in common: the item's key and the passes of a replicate, or the order."""
    seeds: frozenset[int]

    @property
    def bits_per_token(self) -> float:
        return self.value / math.log(2) / self.target.numel()

    @property
    def perplexity(self) -> float:
        """The exponential of the nats per token. Compare bits per byte, not this, between tokenizers."""
        return exp(self.value / self.target.numel())

    def _facts(self) -> list[tuple[str, str]]:
        return [
            *super()._facts(),
            ("tokens", f"{self.target.numel()}"),
            ("bits per token", f"{self.bits_per_token:.4g}"),
            ("perplexity", f"{self.perplexity:.4g}"),
            ("design", notebook.text(self.design)),
        ]

    def merge(self, other: "Estimate") -> "Estimate":
        """Pool two independent runs of the same thing: as if one run had drawn all replicates.

        Runs must be of the same predictor (which cannot be checked here), sequence, design and budget, and differ in
        their seeds, or they hold the same masks.
        """
        if self.first is not None or other.first is not None:
            raise InputError(
                "Estimates towards a standard error cannot be merged: how many replicates each holds was decided by "
                "their spread. Merge estimates of fixed budgets (evaluations=...), or ask for a smaller standard error."
            )
        kinds = [(one.quantity, one.design, one.control, one.identity) for one in (self, other)]
        if kinds[0] != kinds[1]:
            raise InputError(
                "Only estimates of the same quantity, sequence, design, control and passes per replicate can be "
                f"merged, got {kinds[0]} and {kinds[1]}."
            )
        if self.stopped == "exact":
            return self
        if self.seeds & other.seeds:
            raise InputError(
                f"Both estimates were drawn with seed {min(self.seeds & other.seeds)}: they hold the same masks. "
                "Change one seed."
            )
        counts = self.replicates.numel(), other.replicates.numel()
        mine, its = (count / sum(counts) for count in counts)
        return dataclasses.replace(
            self,
            replicates=torch.cat([self.replicates, other.replicates]),
            per_token=mine * self.per_token + its * other.per_token,
            per_token_error=torch.hypot(mine * self.per_token_error, its * other.per_token_error),
            evaluations=self.evaluations + other.evaluations,
            seeds=self.seeds | other.seeds,
        )

    def __repr__(self) -> str:
        return (
            f"Estimate({self.quantity} = {self.value:.4f} nats, {self._precision()}, "
            f"bits_per_token={self.bits_per_token:.3f}, design={self.design}"
            + (", impossible" if self.impossible else "")
            + ")"
        )


@dataclasses.dataclass(frozen=True)
class Measured:
    """A number and its standard error."""

    value: float
    standard_error: float

    @staticmethod
    def mean(values: "Float64[Tensor, ' draws'] | Sequence[float]") -> "Measured":
        """The mean of independent draws; no error for a single one, or where the mean is infinite."""
        draws = torch.as_tensor(values, dtype=torch.float64)
        value = float(draws.mean())
        return Measured(value, 0.0 if math.isinf(value) else float(standard_error(draws)))

    @staticmethod
    def ratio(above: Sequence[float], below: Sequence[float]) -> "Measured":
        """A mean over rows divided by another mean over the same rows; the error by leaving out one row at a time."""
        top, bottom = (torch.as_tensor(values, dtype=torch.float64) for values in (above, below))
        return jackknife(len(top), lambda kept: float(top[kept].sum() / bottom[kept].sum()))

    @property
    def band(self) -> tuple[float, float, float]:
        """The value, and two standard errors to both sides of it."""
        return self.value, self.value - 2 * self.standard_error, self.value + 2 * self.standard_error

    def __str__(self) -> str:
        if not 1e-4 < self.standard_error < math.inf:
            return f"{self.value:.3g} ± {self.standard_error:.2g}"
        decimals = max(0, 1 - math.floor(math.log10(self.standard_error)))  # two digits of the error
        return f"{self.value:.{decimals}f} ± {self.standard_error:.{decimals}f}"


def sum_errors(errors: Sequence[float]) -> float:
    """The standard error of a sum of independent numbers."""
    return math.sqrt(math.fsum(error**2 for error in errors))


def jackknife(count: int, of: "Callable[[slice | Tensor], float]") -> Measured:
    """Something of `count` rows, with its standard error by leaving out one at a time: `of` is told which to keep."""
    if count < 2:
        return Measured(of(slice(None)), math.nan)
    every = torch.arange(count)
    without = torch.tensor([of(every[every != one]) for one in range(count)], dtype=torch.float64)
    spread = float((without - without.mean()).square().sum()) * (count - 1) / count
    return Measured(of(slice(None)), math.sqrt(spread))


@dataclasses.dataclass(frozen=True, eq=False)
class Rate:
    """A ratio of sums over rows, such as nats per token: one number or many, and how sure they are."""

    value: Float64[Tensor, "*shape"]
    monte_carlo_error: Float64[Tensor, "*shape"]
    """Standard error from the masks drawn: what more forward passes would remove."""
    sampling_error: Float64[Tensor, "*shape"] | None
    """Standard error if the rows are a random sample of more of their kind, masks included; None for a single row."""

    @staticmethod
    def over(
        above: Float64[Tensor, "rows *shape"],
        below: Float64[Tensor, " rows"],
        variance: Float64[Tensor, "rows *shape"],
    ) -> "Rate":
        """The sum of `above` over the sum of `below`; `variance` is that of every number above, from its masks.

        The sampling error is the linearised one of a ratio estimator, from the spread of above - rate x below.
        """
        count, total = len(above), below.sum()
        value = above.sum(0) / total
        spread = (above - value * below.view(-1, *[1] * value.ndim)).square().sum(0)
        sampling = None if count < 2 else (spread * count / (count - 1)).sqrt() / total
        return Rate(value, variance.sum(0).sqrt() / total, sampling)


@dataclasses.dataclass
class RateSum:
    """A `Rate` of plain numbers, added up row by row: rows need not be kept."""

    rows: int = 0
    above: float = 0.0
    below: float = 0.0
    variance: float = 0.0
    squares: tuple[float, float, float] = (0.0, 0.0, 0.0)

    def add(self, above: float, below: float, variance: float) -> None:
        self.rows += 1
        self.above += above
        self.below += below
        self.variance += variance
        one, two, three = self.squares
        self.squares = (one + above * above, two + above * below, three + below * below)

    def result(self, scale: float = 1.0) -> dict[str, float | None] | None:
        """Value and errors times `scale`, as plain numbers; None if there is nothing to divide by."""
        if not self.below:
            return None
        rate = self.above / self.below
        spread = max(0.0, self.squares[0] - 2 * rate * self.squares[1] + rate * rate * self.squares[2])
        sampling = math.sqrt(spread * self.rows / (self.rows - 1)) / self.below if self.rows > 1 else None
        return {
            "value": rate * scale,
            "monte_carlo_error": math.sqrt(self.variance) / self.below * scale,
            "sampling_error": None if sampling is None else sampling * scale,
        }


@dataclasses.dataclass(frozen=True)
class Interval:
    """A number and the confidence interval around it."""

    value: float
    low: float
    high: float
    level: float = 0.95

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"


def spearman(one: Sequence[float], other: Sequence[float], *, seed: int = 0, level: float = 0.95) -> Interval:
    """The rank correlation of two columns, with the interval that a bootstrap over their rows gives.

    The interval is about other rows of the kind. Noise in a column, as standard errors have it, lowers the correlation
    itself. Nothing is known, NaN, where a column is constant or there are fewer than three rows.

    >>> str(spearman([1, 2, 3, 4, 5], [1, 3, 2, 5, 9], seed=1))[:4]
    '0.90'
    """
    import warnings

    from numpy.random import default_rng
    from scipy.stats import bootstrap, spearmanr

    if min(len(set(one)), len(set(other))) < 2 or len(one) < 3:
        return Interval(math.nan, math.nan, math.nan, level)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # few rows: a resample may be constant, and says nothing
        drawn = bootstrap(
            (one, other),
            lambda x, y: spearmanr(x, y).statistic,
            paired=True,
            vectorized=False,
            n_resamples=RESAMPLES,
            method="percentile",
            rng=default_rng(key(seed, "spearman", len(one))),
        ).bootstrap_distribution
    kept = torch.from_numpy(drawn[drawn == drawn])
    low, high = (float(kept.quantile((1 + sign * level) / 2)) for sign in (-1, 1))
    return Interval(float(spearmanr(one, other).statistic), low, high, level)
