"""Noise that acts on every token by itself: continuous-time Markov chains, their kernels and their rates.

A process has `vocab_size` clean tokens and `states` >= vocab_size states. Its clock is the **total noise** sigma-bar; a
`Schedule` says at what time it has come how far, and no likelihood depends on that. `rates[x, y]` is the rate of jumps
from x to y, rows sum to zero; the kernel exp(total * rates) has p_t(y | x) in row x [eq:kernel].

Masking and uniform noise answer in closed form and never hold a states x states matrix: a vocabulary may be large.
"""

import abc
import dataclasses
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
    def rates_into(self, noised: States) -> PerState:
        """The rate of jumps from every other state to the present one."""

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
class Absorbing(Process):
    """Tokens turn into the mask, which is state `vocab_size`, and stay."""

    vocab_size: int

    def __post_init__(self) -> None:
        _check_size(self.vocab_size)

    @property
    def states(self) -> int:
        return self.vocab_size + 1

    @property
    def rates(self) -> Matrix:
        rates = -torch.eye(self.states, dtype=torch.float64)
        rates[:, -1] += 1
        return rates

    def stationary(self) -> Float64[Tensor, " states"]:
        return _one_hot(torch.tensor(self.vocab_size), self.states)

    def transition(self, tokens: States, total: Totals) -> PerState:
        stays = torch.exp(-total)[:, None, None] * _one_hot(tokens, self.states)
        stays[..., -1] += -torch.expm1(-total).unsqueeze(-1)
        return torch.where((tokens == self.vocab_size).unsqueeze(-1), _one_hot(tokens, self.states), stays)

    def likelihood(self, noised: States, total: Totals) -> PerToken:
        stays = torch.exp(-total)[:, None, None] * _one_hot(noised, self.states)[..., :-1]
        hit = -torch.expm1(-total)[:, None, None].expand_as(stays)
        return torch.where((noised == self.vocab_size).unsqueeze(-1), hit, stays)

    def rates_into(self, noised: States) -> PerState:
        rates = (noised == self.vocab_size).double().unsqueeze(-1).repeat(1, 1, self.states)
        rates[..., -1] = 0
        return rates


@dataclasses.dataclass(frozen=True)
class Uniform(Process):
    """Tokens are replaced by uniformly drawn ones at rate 1."""

    vocab_size: int

    def __post_init__(self) -> None:
        _check_size(self.vocab_size)

    @property
    def states(self) -> int:
        return self.vocab_size

    @property
    def rates(self) -> Matrix:
        return torch.full((self.states, self.states), 1 / self.states, dtype=torch.float64) - torch.eye(self.states)

    def stationary(self) -> Float64[Tensor, " states"]:
        return torch.full((self.states,), 1 / self.states, dtype=torch.float64)

    def transition(self, tokens: States, total: Totals) -> PerState:
        moved = (-torch.expm1(-total) / self.states)[:, None, None]
        return moved + torch.exp(-total)[:, None, None] * _one_hot(tokens, self.states)

    def likelihood(self, noised: States, total: Totals) -> PerToken:
        return self.transition(noised, total)  # the kernel is symmetric

    def rates_into(self, noised: States) -> PerState:
        return (1 - _one_hot(noised, self.states)) / self.states


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

    def rates_into(self, noised: States) -> PerState:
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


def score_entropy(
    process: Process, log_scores: Float[Tensor, "rows length states"], noised: States, clean: States, total: Totals
) -> Float64[Tensor, "rows length"]:
    """Sum over y of the rate y -> x times [s_y - r_y log s_y + r_y (log r_y - 1)] at every position [eq:score-entropy].

    r_y = p_t(y | x_0) / p_t(x | x_0). Its mean over x_t is minus the slope of KL(p_t(. | x_0) || p_t) [eq:mdse].
    """
    rates = process.rates_into(noised)
    kernel = process.transition(clean, total)
    ratio = kernel / kernel.gather(-1, noised.unsqueeze(-1))
    log_scores = log_scores.double()
    linear = torch.where(rates > 0, log_scores.exp() - ratio, 0.0)
    curved = torch.where((rates > 0) & (ratio > 0), ratio * (ratio.log() - log_scores), 0.0)
    return (rates * (linear + curved)).sum(-1)


def _rows(kernels: Float64[Tensor, "rows states states"], which: States) -> PerState:
    return kernels[torch.arange(len(which)).unsqueeze(-1), which]


def _one_hot(tokens: Int[Tensor, "..."], states: int) -> Float64[Tensor, "..."]:
    return torch.nn.functional.one_hot(tokens, states).double()


def _check_size(vocab_size: int) -> None:
    if vocab_size < 1:
        raise InputError(f"A process needs at least one token, got vocab_size={vocab_size}.")
