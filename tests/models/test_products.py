"""Products by oneDNN: the same numbers as PyTorch's own, wherever they are taken, and nobody's modules are touched."""

import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from infodis.models.nets import products
from infodis.models.nets.products import ByOneDNN, linear, onednn_is_faster
from infodis.rng import stream

here = pytest.mark.skipif(not onednn_is_faster(), reason="needs a processor with AVX-512")


def _numbers(*shape, name="x"):
    return torch.randn(shape, generator=stream(0, name, *shape))


@pytest.fixture
def calls(monkeypatch):
    """Counts the calls of oneDNN."""
    real, counted = torch.ops.mkldnn._linear_pointwise, []

    def counting(*args):
        counted.append(1)
        return real(*args)

    monkeypatch.setattr(products.torch.ops.mkldnn, "_linear_pointwise", counting)
    return counted


@here
@pytest.mark.parametrize("shape", [(1, 8), (3, 5, 8), (2, 3, 4, 8), (0, 8)], ids=str)
@pytest.mark.parametrize("biased", [True, False])
def test_products_against_torch(shape, biased):
    x, weight = _numbers(*shape), _numbers(6, 8, name="weight")
    bias = _numbers(6, name="bias") if biased else None
    found, right = linear(x, weight, bias), F.linear(x, weight, bias)
    assert found.shape == right.shape
    assert torch.allclose(found, right, atol=1e-5)


@here
def test_parts_of_weights_against_torch():
    weight, x = _numbers(64, 16, name="weight"), _numbers(7, 16)
    assert torch.allclose(linear(x, weight[10:30]), F.linear(x, weight[10:30]), atol=1e-5)
    assert torch.allclose(linear(x, weight.t()[:, :16]), F.linear(x, weight.t()[:, :16]), atol=1e-5)
    assert torch.allclose(linear(x[::2], weight), F.linear(x[::2], weight), atol=1e-5)


@here
def test_modules_of_others_are_redirected_and_left_alone(calls):
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).train(False)
    x, before = _numbers(2, 5, 16), dict(layer.named_modules())
    with torch.no_grad():
        right = nn.Sequential(layer.linear1, nn.GELU(), layer.linear2)(x)
        assert not calls
        with ByOneDNN():
            found = nn.Sequential(layer.linear1, nn.GELU(), layer.linear2)(x)
    assert len(calls) == 2
    assert torch.allclose(found, right, atol=1e-5)
    assert dict(layer.named_modules()) == before


@here
def test_new_weights_count_at_once():
    layer, x = nn.Linear(8, 4), _numbers(3, 8)
    with torch.no_grad(), ByOneDNN():
        first = layer(x)
        layer.weight.mul_(2)
        layer.bias.mul_(2)
        assert torch.allclose(layer(x), 2 * first, atol=1e-5)


@here
def test_gradients_against_finite_differences_of_torch(calls):
    """Of first and second order: both are what torch finds for its own products."""
    x, weight, bias = _numbers(2, 3, 8), _numbers(4, 8, name="weight"), _numbers(4, name="bias")
    found = []
    for product in (linear, F.linear):
        given = [part.clone().requires_grad_() for part in (x, weight, bias)]
        slopes = torch.autograd.grad(product(*given).tanh().square().sum(), given, create_graph=True)
        curves = torch.autograd.grad(sum(slope.square().sum() for slope in slopes), given)
        found.append([*slopes, *curves])
    assert len(calls) > 3
    for mine, right in zip(*found, strict=True):
        torch.testing.assert_close(mine, right, rtol=1e-4, atol=1e-4)


@here
def test_a_value_is_the_same_with_and_without_gradients():
    layer, x = nn.Linear(8, 4), _numbers(3, 8)
    with ByOneDNN():
        beside = layer(x)
        with torch.no_grad():
            alone = layer(x)
    assert torch.equal(beside, alone)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_types_are_torchs_own(calls, dtype):
    x, weight = _numbers(3, 8).to(dtype), _numbers(4, 8, name="weight").to(dtype)
    assert torch.equal(linear(x, weight), F.linear(x, weight))
    assert not calls


def test_autocast_is_honoured(calls):
    layer = nn.Linear(8, 4)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16), ByOneDNN():
        assert layer(_numbers(3, 8)).dtype == torch.bfloat16
    assert not calls


COMPILED = """
import torch
from torch import nn
from infodis.models.nets.products import ByOneDNN
layer, x = nn.Linear(8, 4), torch.ones(3, 8)
compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
torch.ops.mkldnn._linear_pointwise = None  # must not be called
with torch.no_grad(), ByOneDNN():
    found = compiled(x)
print(torch.allclose(found, layer(x), atol=1e-5))
"""


@here
def test_what_is_compiled_stays_as_it_is():
    """In a process of its own: types that are checked in tests are nothing for a compiler."""
    done = subprocess.run([sys.executable, "-c", COMPILED], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "True", done.stderr[-2000:]
