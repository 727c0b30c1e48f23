"""The Gaussian sibling against the exact density of a mixture."""

import math

import pytest
import torch

from infodis import gaussian_nll
from infodis.errors import InputError, PredictorError
from infodis.noise.gaussian import GaussianMixture
from infodis.rng import stream

MIXTURE = GaussianMixture(
    torch.tensor([0.3, 0.7]).double(),
    torch.tensor([[-2.0, 0.5, 0.0], [1.0, -1.0, 3.0]]).double(),
    torch.tensor([[0.2, 0.5, 1.0], [1.5, 0.3, 0.4]]).double(),
)


def test_mixture_against_numerical_mean():
    """E[x | z] by a fine grid, in one dimension."""
    one = GaussianMixture(MIXTURE.weights, MIXTURE.means[:, :1], MIXTURE.variances[:, :1])
    grid = torch.linspace(-12, 12, 20_001, dtype=torch.float64)
    density = torch.tensor([one.log_prob(x.reshape(1)) for x in grid], dtype=torch.float64).exp()
    assert float(density.sum() * (grid[1] - grid[0])) == pytest.approx(1, abs=1e-6)
    for z, snr in ((0.3, 0.5), (-4.0, 3.0)):
        weight = density * torch.exp(-0.5 * (z - math.sqrt(snr) * grid).square())
        exact = float((weight * grid).sum() / weight.sum())
        found = one.denoise(torch.tensor([[z]]).double(), torch.tensor([snr]).double())
        assert float(found) == pytest.approx(exact, abs=1e-6)


@pytest.mark.parametrize("reference", [(0.0, 1.0), (0.5, 4.0)])
def test_density_against_exact(reference):
    """20 points, 31 degrees of freedom: |z| beyond 3.9 among them once in a hundred sets; seeds are fixed."""
    z = []
    for number, x in enumerate(MIXTURE.sample(20, generator=stream(0))):
        mean, variance = reference
        found = gaussian_nll(MIXTURE.denoise, x, mean=mean, variance=variance, evaluations=1024, seed=number)
        z.append((found.value + MIXTURE.log_prob(x)) / found.standard_error)
    assert max(map(abs, z)) < 3.9
    assert abs(sum(z)) / math.sqrt(len(z)) < 3.5


def test_a_worse_denoiser_costs_more():
    """The negative control: shrinking the answer must not pass for the density."""
    x = torch.tensor([1.0, -1.0, 3.0]).double()
    found = gaussian_nll(lambda z, snr: 0.9 * MIXTURE.denoise(z, snr), x, evaluations=2048)
    assert (found.value + MIXTURE.log_prob(x)) / found.standard_error > 5


def test_bad_input():
    with pytest.raises(InputError, match="finite numbers"):
        gaussian_nll(MIXTURE.denoise, [math.nan])
    with pytest.raises(InputError, match="positive variance"):
        gaussian_nll(MIXTURE.denoise, [0.0, 0.0, 0.0], variance=0.0)
    with pytest.raises(InputError, match="evaluations=64"):
        gaussian_nll(MIXTURE.denoise, [0.0, 0.0, 0.0], evaluations=10)
    with pytest.raises(PredictorError, match="denoiser"):
        gaussian_nll(lambda z, snr: z[:, :1], [0.0, 0.0])
    with pytest.raises(InputError, match="probabilities"):
        GaussianMixture(torch.ones(2).double(), torch.zeros(2, 1).double(), torch.ones(2, 1).double())
