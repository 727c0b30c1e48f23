"""Noise that acts on every token by itself: continuous-time Markov chains, their kernels and their rates.

A process has `vocab_size` clean tokens and `states` >= vocab_size states. Its clock is the **total noise** sigma-bar; a
`Schedule` says at what time it has come how far, and no likelihood depends on that. `rates[x, y]` is the rate of jumps
from x to y, rows sum to zero; the kernel exp(total * rates) has p_t(y | x) in row x [eq:kernel].

Masking and uniform noise answer in closed form and never hold a states x states matrix: a vocabulary may be large.
"""

import abc
import dataclasses
import math
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from infodis.errors import InputError
from infodis.rng import uniforms

States = Int[Tensor, "rows length"]
Totals = Float64[Tensor, " rows"]
PerState = Float64[Tensor, "rows length states"]
PerToken = Float64[Tensor, "rows length vocab"]
Matrix = Float64[Tensor, "states states"]
PerRow = Float[Tensor, " rows"]
LogScores = Float[Tensor, "rows length states"]
LogMeans = Float[Tensor, "rows length vocab"]
PerPosition = Float64[Tensor, "rows length"]

BISECTIONS = 60
"""Halvings of an interval in search of a time: what is left is below rounding."""


@runtime_checkable
class ScoreFunction(Protocol):
    """Log-scores log p_t(y) / p_t(x) at total noise sigma, for every row, position and token y."""

    def __call__(self, tokens: States, sigma: PerRow) -> LogScores: ...


class Process(abc.ABC):
    """Token-wise noise on tokens 0 .. vocab_size - 1. Every row of a question has a total noise of its own."""

    vocab_size: int

    @property
    @abc.abstractmethod
    def states(self) -> int:
        """What a noised token may be: 0 .. states - 1."""

    @property
    @abc.abstractmethod
    def rates(self) -> Matrix:
        """Jumps per unit of total noise, from row to column."""

    @abc.abstractmethod
    def stationary(self) -> Float64[Tensor, " states"]:
        """What every token is distributed as in the end."""

    @abc.abstractmethod
    def transition(self, tokens: States, total: Totals) -> PerState:
        """p_t(y | x) for every state y: what a token turns into."""

    @abc.abstractmethod
    def likelihood(self, noised: States, total: Totals) -> PerToken:
        """p_t(y | x) for every clean x, given what was observed: the noised token y."""

    @abc.abstractmethod
    def rates_into(self, noised: States, total: Totals) -> PerState:
        """The rate of jumps from every other state to the present one, per unit of total noise."""

    def score_entropy(self, log_scores: LogScores, noised: States, clean: States, total: Totals) -> PerPosition:
        """Sum over y of the rate y -> x times [s_y - r_y log s_y + r_y (log r_y - 1)] at every position.

        r_y = p_t(y | x_0) / p_t(x | x_0) [eq:score-entropy]. Its mean over x_t is minus the slope of KL(p_t(. | x_0) ||
        p_t) [eq:mdse].
        """
        rates = self.rates_into(noised, total)
        kernel = self.transition(clean, total)
        ratio = kernel / kernel.gather(-1, noised.unsqueeze(-1))
        log_scores = log_scores.cpu().double()
        linear = torch.where(rates > 0, log_scores.exp() - ratio, 0.0)
        curved = torch.where((rates > 0) & (ratio > 0), ratio * (ratio.log() - log_scores), 0.0)
        return (rates * (linear + curved)).sum(-1)

    def scores_of_mean(self, log_mean: LogMeans, noised: States, total: Totals) -> LogScores:
        """Log-scores from p(x_0^i | all other noised tokens): p_t(y) / p_t(x) of such a token [eq:score-mean].

        That is what networks of the mean parametrisation learn (UDLM, Duo, GIDD): they need not say what the noised
        token itself tells about x_0, since the kernel does.
        """
        every = torch.arange(self.vocab_size).expand(len(noised), -1)
        marginal = torch.bmm(log_mean.cpu().double().exp(), self.transition(every, total)).log()
        return marginal - marginal.gather(-1, noised.unsqueeze(-1))

    def kernel(self, total: float) -> Matrix:
        """p_t(y | x) in row x, column y."""
        every = torch.arange(self.states).unsqueeze(0)
        return self.transition(every, torch.tensor([total], dtype=torch.float64))[0]

    def draw(self, tokens: States, total: Totals, *, numbers: Float64[Tensor, "rows length"]) -> States:
        """Noise every token, by inverting its distribution at a uniform number."""
        cumulative = self.transition(tokens, total).cumsum(-1)
        drawn = (cumulative <= numbers.unsqueeze(-1) * cumulative[..., -1:]).sum(-1)
        return drawn.clamp(max=self.states - 1)

    def noise(self, tokens: States, total: Totals, *, generator: torch.Generator) -> States:
        """Noise every token: an exact draw of x_t given x_0.

        >>> from infodis.rng import stream
        >>> Absorbing(4).noise(torch.tensor([[0, 1, 2, 3]]), torch.tensor([50.0]).double(), generator=stream(0))
        tensor([[4, 4, 4, 4]])
        """
        return self.draw(tokens, total, numbers=uniforms(*tokens.shape, generator=generator))

    def path(
        self, tokens: States, totals: Float64[Tensor, " times"], *, generator: torch.Generator
    ) -> Int[Tensor, "times rows length"]:
        """One exact history per row, seen at growing totals."""
        steps = torch.diff(totals, prepend=totals.new_zeros(1))
        if not bool((steps >= 0).all()):
            raise InputError("A path is seen at totals that grow from 0 on.")
        seen = []
        for step in steps:
            tokens = self.noise(tokens, step.expand(len(tokens)), generator=generator)
            seen.append(tokens)
        return torch.stack(seen) if seen else tokens.new_zeros(0, *tokens.shape)


@dataclasses.dataclass(frozen=True)
class Interpolating(Process):
    """Noise that hits every token at rate 1 and then forgets it: p_t(. | x) = e^-total x + (1 - e^-total) pi_total.

    What a hit token turns into does not depend on what it was: any token alike, with probability `uniform`, or else the
    mask, which is state `vocab_size`. That may change as noise grows (GIDD: generalised interpolating discrete
    diffusion). Nothing here holds states x states numbers, and a score entropy takes two sums over the states.
    """

    vocab_size: int

    def __post_init__(self) -> None:
        _check_size(self.vocab_size)

    @property
    def states(self) -> int:
        return self.vocab_size + 1

    @abc.abstractmethod
    def backgrounds(self, total: Totals) -> tuple[Totals, Totals]:
        """(1 - e^-total) pi_total: of one token, and of the mask."""

    @abc.abstractmethod
    def rates_to(self, total: Totals) -> tuple[Totals, Totals]:
        """The rate of jumps to one token, and to the mask, from any other state [eq:interpolating]."""

    @property
    def rates(self) -> Matrix:
        raise InputError(f"The rates of {self} change with the noise. Ask for rates_into at one total.")

    def stationary(self) -> Float64[Tensor, " states"]:
        token, mask = self.backgrounds(torch.tensor([torch.inf], dtype=torch.float64))
        return self._over_states(token, mask)[0]

    def transition(self, tokens: States, total: Totals) -> PerState:
        background = self._over_states(*self.backgrounds(total)).unsqueeze(1)
        return background + torch.exp(-total)[:, None, None] * _one_hot(tokens, self.states)

    def likelihood(self, noised: States, total: Totals) -> PerToken:
        stays = torch.exp(-total)[:, None, None] * _one_hot(noised, self.vocab_size + 1)[..., : self.vocab_size]
        return stays + self._at(noised, *self.backgrounds(total)).unsqueeze(-1)

    def rates_into(self, noised: States, total: Totals) -> PerState:
        rates = self._at(noised, *self.rates_to(total)).unsqueeze(-1)
        return rates * (1 - _one_hot(noised, self.states))

    def replace(self, total: Totals, *, numbers: Float64[Tensor, "rows length"]) -> States:
        """What tokens turn into that were hit, by uniform numbers."""
        token, mask = (part.unsqueeze(-1) for part in self.backgrounds(total))
        uniform = torch.where(mask > 0, token * self.vocab_size / (token * self.vocab_size + mask), 1.0)
        drawn = (numbers / uniform * self.vocab_size).clamp(max=self.vocab_size - 1).long()
        return torch.where(numbers < uniform, drawn, self.vocab_size)

    def score_entropy(self, log_scores: LogScores, noised: States, clean: States, total: Totals) -> PerPosition:
        """The same as of any process, from sums over states that are taken where the scores are."""
        token, mask = (part.unsqueeze(-1) for part in self.backgrounds(total))
        stays, same, visible = torch.exp(-total).unsqueeze(-1), noised == clean, noised < self.vocab_size
        here = torch.where(visible, token, mask) + stays * same  # p_t(x | x_0)
        own = torch.where(same, 0.0, token + stays)  # p_t(x_0 | x_0), of a token that changed
        masks = mask * (visible & (self.states > self.vocab_size))
        tokens = self.vocab_size - visible.long() - (~same).long()  # those that are neither x nor x_0
        scores, logs, log_own, log_mask = self._sums(log_scores, noised, clean)
        known = tokens * _x_log_x(token / here) + _x_log_x(own / here) + _x_log_x(masks / here)
        crossed = _times(token / here, logs) + _times(own / here, log_own) + _times(masks / here, log_mask)
        rate = self._at(noised, *self.rates_to(total))
        return torch.where(rate > 0, rate * (scores - (1 - here) / here + known - crossed), 0.0)

    def scores_of_mean(self, log_mean: LogMeans, noised: States, total: Totals) -> LogScores:
        """The same as of any process, where the distributions are."""
        device, kind = log_mean.device, log_mean.dtype
        parts = (-total, *(part.log() for part in self.backgrounds(total)))
        stays, token, mask = (part.to(kind).to(device)[:, None, None] for part in parts)
        marginal = torch.logaddexp(log_mean + stays, token)
        if self.states > self.vocab_size:
            marginal = torch.cat([marginal, mask.expand(*marginal.shape[:2], 1)], dim=-1)
        return marginal - marginal.gather(-1, noised.to(device).unsqueeze(-1))

    def _sums(
        self, log_scores: LogScores, noised: States, clean: States
    ) -> tuple[PerPosition, PerPosition, PerPosition, PerPosition]:
        """Scores summed over all states but x; logs over tokens but x and x_0; and those of x_0 and the mask."""
        here, there = (part.to(log_scores.device).unsqueeze(-1) for part in (noised, clean))
        scores = log_scores.scatter(-1, here, -torch.inf).exp().sum(-1)
        logs = log_scores.scatter(-1, here, 0.0).scatter(-1, there, 0.0)[..., : self.vocab_size].sum(-1)
        found = scores, logs, log_scores.gather(-1, there).squeeze(-1), log_scores[..., -1]
        one, two, three, four = (part.cpu().double() for part in found)  # in this order: see `infodis.device`
        return one, two, three, four

    def _at(self, noised: States, token: Totals, mask: Totals) -> PerPosition:
        return torch.where(noised < self.vocab_size, token.unsqueeze(-1), mask.unsqueeze(-1))

    def _over_states(self, token: Totals, mask: Totals) -> Float64[Tensor, "rows states"]:
        every = token.unsqueeze(-1).repeat(1, self.states)
        if self.states > self.vocab_size:
            every[:, -1] = mask
        return every


@dataclasses.dataclass(frozen=True)
class Absorbing(Interpolating):
    """Tokens turn into the mask, which is state `vocab_size`, and stay."""

    @property
    def rates(self) -> Matrix:
        rates = -torch.eye(self.states, dtype=torch.float64)
        rates[:, -1] += 1
        return rates

    def backgrounds(self, total: Totals) -> tuple[Totals, Totals]:
        return torch.zeros_like(total), -torch.expm1(-total)

    def rates_to(self, total: Totals) -> tuple[Totals, Totals]:
        return torch.zeros_like(total), torch.ones_like(total)


@dataclasses.dataclass(frozen=True)
class Uniform(Interpolating):
    """Tokens are replaced by uniformly drawn ones at rate 1."""

    @property
    def states(self) -> int:
        return self.vocab_size

    @property
    def rates(self) -> Matrix:
        return torch.full((self.states, self.states), 1 / self.states, dtype=torch.float64) - torch.eye(self.states)

    def backgrounds(self, total: Totals) -> tuple[Totals, Totals]:
        return -torch.expm1(-total) / self.vocab_size, torch.zeros_like(total)

    def rates_to(self, total: Totals) -> tuple[Totals, Totals]:
        return torch.full_like(total, 1 / self.vocab_size), torch.zeros_like(total)


@dataclasses.dataclass(frozen=True)
class Hybrid(Interpolating):
    """GIDD's noise (von Ruette et al., 2025): masks, and at times between the ends uniformly drawn tokens [eq:hybrid].

    At time t a token is as it was with weight 1 - t, masked with weight t, and any token alike with weight
    c_t = scale sqrt(t (1 - t)), divided by their sum. `share` is the probability of the last halfway, at t = 1/2.

    >>> noise = Hybrid(3, share=0.2)
    >>> half = -torch.log(torch.tensor([0.4]).double())
    >>> noise.time(half), noise.transition(torch.tensor([[0]]), half)[0, 0].sum()
    (tensor([0.5000], dtype=torch.float64), tensor(1., dtype=torch.float64))
    """

    share: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.share < 1:
            raise InputError(
                f"The share of uniform noise must lie between 0 and 1, got {self.share}. Masking is Absorbing."
            )

    @property
    def scale(self) -> float:
        return 2 * self.share / (1 - self.share)

    def time(self, total: Totals) -> Totals:
        """The t at which -log p_t(a token was not hit) is `total`."""
        return -torch.expm1(-self._log_left(total))

    def stationary(self) -> Float64[Tensor, " states"]:
        return _one_hot(torch.tensor(self.vocab_size), self.states)

    def path(
        self, tokens: States, totals: Float64[Tensor, " times"], *, generator: torch.Generator
    ) -> Int[Tensor, "times rows length"]:
        raise InputError("Paths are drawn for rates that do not change with the noise; those of Hybrid do.")

    def _log_left(self, total: Totals) -> Totals:
        """-log(1 - t), by bisection."""
        high = total.clone()
        low = (total - math.log1p(self.scale / 2)).clamp(min=0)  # of -log(1 - t), which is less than the total
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            over = middle + torch.log1p(self._weight(middle)) > total
            low, high = torch.where(over, low, middle), torch.where(over, middle, high)
        return (low + high) / 2

    def backgrounds(self, total: Totals) -> tuple[Totals, Totals]:
        t, _, weight = self._at_time(total)
        return weight / (1 + weight) / self.vocab_size, t / (1 + weight)

    def rates_to(self, total: Totals) -> tuple[Totals, Totals]:
        """The derivative of a background by the total, plus the background: what hits must add to make it grow so."""
        t, left, weight = self._at_time(total)
        slope = left * self.scale * (1 - 2 * t) / (2 * (t * left).sqrt())  # of the weight, and below times what is left
        speed = 1 + slope / (1 + weight)
        return (slope + weight) / (1 + weight) / speed / self.vocab_size, 1 / (1 + weight) / speed

    def _at_time(self, total: Totals) -> tuple[Totals, Totals, Totals]:
        """The time, what is left of it, and the weight of uniform noise."""
        log_left = self._log_left(total)
        return -torch.expm1(-log_left), torch.exp(-log_left), self._weight(log_left)

    def _weight(self, log_left: Totals) -> Totals:
        return self.scale * (-torch.expm1(-log_left) * torch.exp(-log_left)).sqrt()


@dataclasses.dataclass(frozen=True, eq=False)
class General(Process):
    """Any matrix of rates, rows summing to zero. The first `vocab_size` states are clean tokens; by default all."""

    matrix: Float[Tensor, "states states"]
    vocab_size: int = 0

    def __post_init__(self) -> None:
        matrix = torch.as_tensor(self.matrix, dtype=torch.float64)
        object.__setattr__(self, "matrix", matrix)
        if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not bool(matrix.isfinite().all()):
            raise InputError(f"Rates are a square matrix of finite numbers, got shape {tuple(matrix.shape)}.")
        off = matrix - matrix.diagonal().diag()
        if bool((off < 0).any()) or not bool((matrix.sum(1).abs() <= 1e-9 * (1 + off.sum(1))).all()):
            raise InputError("Rates off the diagonal must not be negative, and every row must sum to zero.")
        if not 0 <= self.vocab_size <= self.states:
            raise InputError(f"Of {self.states} states, {self.vocab_size} cannot be clean tokens.")
        object.__setattr__(self, "vocab_size", self.vocab_size or self.states)

    @property
    def states(self) -> int:
        return self.matrix.shape[0]

    @property
    def rates(self) -> Matrix:
        return self.matrix

    def stationary(self) -> Float64[Tensor, " states"]:
        _, sizes, vectors = torch.linalg.svd(self.matrix.T)
        if self.states > 1 and float(sizes[-2]) <= 1e-10 * float(sizes[0]):
            raise InputError("These rates leave more than one distribution unchanged: where tokens end is not unique.")
        found = vectors[-1].abs()
        return found / found.sum()

    def transition(self, tokens: States, total: Totals) -> PerState:
        return _rows(self._kernels(total), tokens)

    def likelihood(self, noised: States, total: Totals) -> PerToken:
        return _rows(self._kernels(total).transpose(1, 2), noised)[..., : self.vocab_size]

    def rates_into(self, noised: States, total: Totals) -> PerState:
        return (self.matrix - self.matrix.diagonal().diag()).T[noised]

    def _kernels(self, total: Totals) -> Float64[Tensor, "rows states states"]:
        distinct, which = total.unique(return_inverse=True)
        return torch.linalg.matrix_exp(distinct[:, None, None] * self.matrix).clamp(min=0)[which]


def mixture(processes: dict[Process, float]) -> General:
    """All of some processes at once, each at a rate of its own: masking with some uniform noise, for example.

    They share their clean tokens; a process with fewer states than another leaves the rest alone.

    >>> mixture({Absorbing(2): 0.75, Uniform(2): 0.5}).rates[0].tolist()
    [-1.0, 0.25, 0.75]
    """
    if len({process.vocab_size for process in processes}) != 1 or min(processes.values()) < 0:
        raise InputError("A mixture needs processes over the same tokens, at rates that are not negative.")
    states = max(process.states for process in processes)
    rates = torch.zeros(states, states, dtype=torch.float64)
    for process, rate in processes.items():
        rates[: process.states, : process.states] += rate * process.rates
    return General(rates, next(iter(processes)).vocab_size)


def _x_log_x(ratio: PerPosition) -> PerPosition:
    return torch.where(ratio > 0, ratio * ratio.log(), 0.0)


def _times(weight: PerPosition, value: PerPosition) -> PerPosition:
    """What has no weight counts nothing, even where it is infinite."""
    return torch.where(weight > 0, weight * value, 0.0)


def _rows(kernels: Float64[Tensor, "rows states states"], which: States) -> PerState:
    return kernels[torch.arange(len(which)).unsqueeze(-1), which]


def _one_hot(tokens: Int[Tensor, "..."], states: int) -> Float64[Tensor, "..."]:
    return torch.nn.functional.one_hot(tokens, states).double()


def _check_size(vocab_size: int) -> None:
    if vocab_size < 1:
        raise InputError(f"A process needs at least one token, got vocab_size={vocab_size}.")
