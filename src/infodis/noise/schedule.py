"""How far the noise has come, by three names; schedules that change between them, and integrals over the noise.

    t            time, from 0 (clean) to 1
    total        sigma-bar(t), the integral of the rate from 0 to t
    level        lambda(t) = 1 - exp(-total): the probability that a token was hit at least once    [eq:level]

Masked diffusion is best described by the level; a schedule only decides how much time is spent where.
"""

import abc
import dataclasses
import math

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from infodis.errors import InputError

Numbers = Float[Tensor, "..."]
Nodes = tuple[Float64[Tensor, " nodes"], Float64[Tensor, " nodes"]]


@dataclasses.dataclass(frozen=True)
class Schedule(abc.ABC):
    """A change of variable between time, total noise and level."""

    @abc.abstractmethod
    def total(self, t: Numbers) -> Numbers:
        """Sigma-bar: noise from 0 to t."""

    @abc.abstractmethod
    def rate(self, t: Numbers) -> Numbers:
        """Sigma: the derivative of the total."""

    @abc.abstractmethod
    def time_of_total(self, total: Numbers) -> Numbers:
        """The time at which the total is reached."""

    def level(self, t: Numbers) -> Numbers:
        """Lambda: the probability that a token was hit by time t [eq:level]."""
        return -torch.expm1(-self.total(t))

    def time(self, level: Numbers) -> Numbers:
        """The time at which a level is reached."""
        return self.time_of_total(-torch.log1p(-level))


@dataclasses.dataclass(frozen=True)
class LogLinear(Schedule):
    """The level grows linearly, up to 1 - `end`: the schedule of SEDD, RADD and MDLM for masking."""

    end: float = 1e-3

    def __post_init__(self) -> None:
        _check_end(self.end)

    def total(self, t: Numbers) -> Numbers:
        return -torch.log1p(-(1 - self.end) * t)

    def rate(self, t: Numbers) -> Numbers:
        return (1 - self.end) / (1 - (1 - self.end) * t)

    def time_of_total(self, total: Numbers) -> Numbers:
        return -torch.expm1(-total) / (1 - self.end)


@dataclasses.dataclass(frozen=True)
class Geometric(Schedule):
    """The total grows exponentially from `low` to `high`. At t = 0 there already is noise: `low`."""

    low: float = 1e-3
    high: float = 20.0

    def __post_init__(self) -> None:
        if not 0 < self.low < self.high < math.inf:
            raise InputError(f"Geometric needs 0 < low < high, got low={self.low}, high={self.high}.")

    def total(self, t: Numbers) -> Numbers:
        return self.low * torch.exp(math.log(self.high / self.low) * t)

    def rate(self, t: Numbers) -> Numbers:
        return math.log(self.high / self.low) * self.total(t)

    def time_of_total(self, total: Numbers) -> Numbers:
        return torch.log(total / self.low) / math.log(self.high / self.low)


@dataclasses.dataclass(frozen=True)
class Cosine(Schedule):
    """Tokens survive with probability cos(pi t / 2), down to `end`: little time is spent on nearly clean text."""

    end: float = 1e-3

    def __post_init__(self) -> None:
        _check_end(self.end)

    def total(self, t: Numbers) -> Numbers:
        return -torch.log1p(-self.level(t))

    def rate(self, t: Numbers) -> Numbers:
        return (1 - self.end) * (math.pi / 2) * torch.sin(math.pi / 2 * t) / (1 - self.level(t))

    def time_of_total(self, total: Numbers) -> Numbers:
        return torch.asin((-torch.expm1(-total) / (2 * (1 - self.end))).clamp(0, 1).sqrt()) * (4 / math.pi)

    def level(self, t: Numbers) -> Numbers:
        """1 - cos(pi t / 2) as a square of a sine: no digits cancel where t is small."""
        return 2 * (1 - self.end) * torch.sin(math.pi / 4 * t).square()


def log_expm1(total: Numbers) -> Numbers:
    """log(exp(total) - 1) = log(level / (1 - level)), without overflow where the total is large."""
    return total + torch.log(-torch.expm1(-total))


def half_line(nodes: int, *, until: float = math.inf) -> Nodes:
    """Points and weights for the integral from 0 to `until` [eq:quadrature].

    With s = u^3 / (1 - u) a logarithm at 0 becomes harmless, and infinity comes to u = 1. u^2 / (1 - u)
    does too, with more error from as many nodes.

    >>> points, weights = half_line(32)
    >>> abs(float((weights * torch.exp(-points)).sum()) - 1) < 1e-7
    True
    """
    if nodes < 1 or not until > 0:
        raise InputError(f"An integral needs at least one node and a positive range, got {nodes} and {until}.")
    last = 1.0 if math.isinf(until) else _inverse(until)
    places, weights = np.polynomial.legendre.leggauss(nodes)
    u = torch.from_numpy((places + 1) * last / 2)
    slope = u.square() * (3 - 2 * u) / (1 - u).square()
    return u**3 / (1 - u), torch.from_numpy(weights * last / 2) * slope


def _inverse(s: float) -> float:
    """The u in 0..1 with u^3 / (1 - u) = s: the only real root of u^3 + s u - s."""
    roots = np.roots([1, 0, s, -s])
    return float(roots[np.abs(roots.imag).argmin()].real)


def _check_end(end: float) -> None:
    if not 0 < end < 1:
        raise InputError(f"The probability of survival at t = 1 must lie between 0 and 1, got {end}.")


SCHEDULES: dict[str, Schedule] = {"log-linear": LogLinear(), "geometric": Geometric(), "cosine": Cosine()}
"""By the names that configuration files use."""
