"""The Gaussian sibling: densities of continuous data from a denoiser, by the identity the paper starts from (I-MMSE).

With z = sqrt(snr) x + e, e standard normal, the error of the best denoiser integrates to the likelihood, as the score
entropy does for tokens (Guo, Shamai and Verdu, 2005; Kong, Brekelmans and Ver Steeg, 2023):

    -log p(x) = -log N(x) - 1/2 integral over snr of [error of N's denoiser - error of p's denoiser]      [eq:i-mmse]

for any normal N; the same quadrature, the same replicates, and N's error under the same noise as a control.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import SupportsIndex

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from infodis.errors import InputError, PredictorError
from infodis.noise.schedule import half_line
from infodis.result import Replicated
from infodis.rng import check_seed, stream, uniforms

Points = Float64[Tensor, "rows size"]
Ratios = Float64[Tensor, " rows"]
Denoiser = Callable[[Points, Ratios], Tensor]
"""The mean of x given z = sqrt(snr) x + e, for rows of z with a signal-to-noise ratio each."""

NODES, EVALUATIONS = 32, 512


@dataclasses.dataclass(frozen=True, eq=False)
class GaussianEstimate(Replicated):
    """The negative log-density of a point, in nats."""

    size: int
    """Numbers in the point."""


@dataclasses.dataclass(frozen=True, eq=False)
class GaussianMixture:
    """A mixture of normal distributions: density, draws, and the exact denoiser."""

    weights: Float64[Tensor, " parts"]
    means: Float64[Tensor, "parts size"]
    variances: Float64[Tensor, "parts size"]

    def __post_init__(self) -> None:
        if not bool((self.weights >= 0).all()) or abs(float(self.weights.sum()) - 1) > 1e-9:
            raise InputError("The weights of a mixture are probabilities: not negative, and summing to 1.")
        if self.means.shape != self.variances.shape or len(self.means) != len(self.weights):
            raise InputError("A mixture needs one mean and one variance vector of one size for every weight.")
        if not bool((self.variances > 0).all()):
            raise InputError("Variances must be positive.")

    def log_prob(self, x: Float64[Tensor, " size"]) -> float:
        """Log p(x)."""
        return float(self._log_parts(x.unsqueeze(0), self.means, self.variances).logsumexp(-1))

    def denoise(self, z: Points, snr: Ratios) -> Points:
        """E[x | z]: every part's posterior mean, weighted by how likely the part made z."""
        root, ratio = snr.sqrt()[:, None, None], snr[:, None, None]
        parts = self._log_parts(z, root * self.means, ratio * self.variances + 1).softmax(-1)
        gain = root * self.variances / (ratio * self.variances + 1)
        return torch.einsum("rp,rps->rs", parts, self.means + gain * (z.unsqueeze(1) - root * self.means))

    def sample(self, count: int, *, generator: torch.Generator) -> Points:
        """Independent draws."""
        part = torch.searchsorted(self.weights.cumsum(0), uniforms(count, generator=generator)).clamp(
            max=len(self.weights) - 1
        )
        noise = torch.randn(count, self.means.shape[1], generator=generator, dtype=torch.float64)
        return self.means[part] + self.variances[part].sqrt() * noise

    def _log_parts(self, z: Points, means: Tensor, variances: Tensor) -> Float64[Tensor, "rows parts"]:
        distance = (z.unsqueeze(1) - means).square() / variances
        return self.weights.log() - 0.5 * (distance + (2 * math.pi * variances).log()).sum(-1)


def gaussian_nll(
    denoiser: Denoiser,
    x: Sequence[float] | Float[Tensor, " size"],
    *,
    mean: float = 0.0,
    variance: float = 1.0,
    evaluations: int = EVALUATIONS,
    nodes: int = NODES,
    seed: SupportsIndex = 0,
) -> GaussianEstimate:
    """-log p(x) from a denoiser [eq:i-mmse]: exact up to quadrature and Monte Carlo if the denoiser is the best one.

    Args:
        denoiser: E[x | z] for rows of z = sqrt(snr) x + e, and their snr.
        x: the point.
        mean: of the normal distribution to compare with; near the data's, little is left to integrate.
        variance: the same; it also sets the scale of the signal-to-noise ratios looked at.
        evaluations: rows to spend; `nodes` of them make a replicate.
        nodes: signal-to-noise ratios.
        seed: the same seed draws the same noise.

    >>> normal = GaussianMixture(torch.ones(1).double(), torch.zeros(1, 2).double(), torch.ones(1, 2).double())
    >>> estimate = gaussian_nll(normal.denoise, [0.5, -1.0])
    >>> abs(estimate.value + normal.log_prob(torch.tensor([0.5, -1.0]).double())) < 1e-9
    True
    """
    point, number = torch.as_tensor(x, dtype=torch.float64), check_seed(seed)
    if point.ndim != 1 or point.numel() == 0 or not bool(point.isfinite().all()):
        raise InputError(f"A point is a list of finite numbers, got {x!r}.")
    if not 0 < variance < math.inf or not math.isfinite(mean):
        raise InputError(f"The normal to compare with needs a positive variance, got mean {mean}, variance {variance}.")
    count = evaluations // nodes
    if count < 2:
        raise InputError(f"Two replicates of {nodes} rows need evaluations={2 * nodes} or more, got {evaluations}.")
    points, weights = half_line(nodes)
    snr = (points / variance).repeat(count)
    noise = torch.cat([_noise(nodes, point.numel(), stream(number, "gaussian", n)) for n in range(count)])
    z = snr.sqrt().unsqueeze(-1) * point + noise
    gain = _error(_normal_denoiser(mean, variance), point, z, snr) - _error(denoiser, point, z, snr)
    integral = ((weights / variance).repeat(count) * gain).view(count, nodes).sum(1)
    start = 0.5 * ((point - mean).square() / variance + math.log(2 * math.pi * variance)).sum()
    return GaussianEstimate("gaussian_nll", start - integral / 2, count * nodes, number, "budget spent", point.numel())


def _normal_denoiser(mean: float, variance: float) -> Denoiser:
    def denoise(z: Points, snr: Ratios) -> Points:
        root = snr.sqrt().unsqueeze(-1)
        return mean + root * variance / (snr.unsqueeze(-1) * variance + 1) * (z - root * mean)

    return denoise


def _error(denoiser: Denoiser, point: Float64[Tensor, " size"], z: Points, snr: Ratios) -> Ratios:
    """The squared distance of what the denoiser finds from the point."""
    found = denoiser(z, snr)
    if not isinstance(found, Tensor) or found.shape != z.shape or not bool(found.isfinite().all()):
        raise PredictorError(f"A denoiser must return finite numbers of shape {tuple(z.shape)}.")
    return (found.double() - point).square().sum(-1)


def _noise(nodes: int, size: int, generator: torch.Generator) -> Float64[Tensor, "nodes size"]:
    """Standard normal; every second node has the opposite of the one before, so that odd parts cancel."""
    drawn = torch.randn(-(-nodes // 2), size, generator=generator, dtype=torch.float64)
    return torch.stack([drawn, -drawn], dim=1).flatten(0, 1)[:nodes]
