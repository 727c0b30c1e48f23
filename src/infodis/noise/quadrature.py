"""Integrals over noise that are smooth but for their ends: Gauss-Legendre after a change of variable."""

import math

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from infodis.errors import InputError

Nodes = tuple[Float64[Tensor, " nodes"], Float64[Tensor, " nodes"]]


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
