import itertools
import math

import pytest
import torch

import infodis
from infodis.apps.bench.experiments import measure
from infodis.apps.bench.problems import chain_problem
from infodis.control import Kernel, Neighbours, Positions, fold_bounds, neighbour_maps, predict
from infodis.design import Layout, Orders, StratifiedCount, Tiled, TimeFree, numbers
from infodis.errors import InputError
from infodis.estimate import Request, estimate_items
from infodis.item import Item
from infodis.oracle import MarkovChain
from infodis.result import Measured
from infodis.rng import key, stream
from infodis.testing import Perturbed, Tabulated, check_control


def every_mask(length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """All masks (as columns) and the probability of each given that it holds a position, times its size law 1/m."""
    masks = [torch.tensor(bits, dtype=torch.bool) for bits in itertools.product([0, 1], repeat=length) if any(bits)]
    masked = torch.stack(masks, dim=-1)
    sizes = masked.sum(0)
    weight = torch.tensor([1 / (int(k) * math.comb(length, int(k))) for k in sizes], dtype=torch.float64)
    return masked, weight


@pytest.mark.parametrize("target", [[0, 1, 2, 3, 4, 5, 6], [3, 4, 6, 7, 8, 11], [0, 5], [2]])
@pytest.mark.parametrize(
    "control", [Neighbours(radius=3), Neighbours(radius=1), Kernel(), Kernel(radius=2, strength=1.5)], ids=repr
)
def test_features_have_mean_zero_against_enumeration(control, target):
    """[eq:control-means]: over all masks that hold i, with their weights, every centred feature averages to zero.

    Predictions average to what is stated [eq:kernel-control].
    """
    check_control(control, target=target)


def test_a_feature_that_is_not_centred_is_caught():
    class Uncentred(Neighbours):
        def features(self, around):
            return around.neighbours

    with pytest.raises(AssertionError, match=r"mean zero .* has 0\.5 at position 0"):
        check_control(Uncentred(radius=1))


def test_a_kernel_whose_mean_is_that_of_other_masks_is_caught(monkeypatch):
    """A negative control: as if neighbours were masked with probability 1/2 each, independently."""
    half = (torch.tensor([0.5], dtype=torch.float64), torch.tensor([1.0], dtype=torch.float64))
    monkeypatch.setattr(infodis.control, "_legendre", lambda count: half)
    with pytest.raises(AssertionError, match="must be the stated one"):
        check_control(Kernel())


def test_neighbour_map_follows_places_in_the_sequence():
    gap, none = neighbour_maps(torch.tensor([[2, 3, 7], [4, 5, 6]]), (1, -1, 4), (3,)).tolist()
    assert gap == [[1, 3, 3], [3, 0, 2], [3, 3, 3]]  # 3 stands for "no such neighbour"
    assert none == [[1, 3, 3], [2, 0, 3], [3, 1, 3]]
    assert neighbour_maps(torch.tensor([[4, 5, 6], [0, 1, 2]]), (1, -1, 4), (3,)).tolist() == [none, none]


@pytest.mark.parametrize("control", [Neighbours(), Kernel()], ids=["Neighbours", "Kernel"])
def test_predictions_come_from_other_folds(control):
    """Changing the surprisals of one fold changes the predictions of the others and never its own."""
    levels, keys = numbers(8, Layout(4, 8), [stream(0, r) for r in range(4)])
    masked, weight = (part.flatten(0, 1).T.unsqueeze(0).contiguous() for part in Tiled().masks(levels, keys))
    surprisal = torch.rand(1, 8, 32, generator=stream(1, "f"), dtype=torch.float64) * masked
    maps = neighbour_maps(torch.arange(8).unsqueeze(0), control.offsets, (8,))
    folds = fold_bounds(4, 8)
    plain, mean = predict(control, masked, weight, surprisal.unsqueeze(0), folds=folds, maps=maps, parts=(8,))
    spoiled = surprisal.clone()
    spoiled[..., 8:16] *= 3
    moved, moved_mean = predict(control, masked, weight, spoiled.unsqueeze(0), folds=folds, maps=maps, parts=(8,))
    assert torch.allclose(plain[..., 8:16], moved[..., 8:16])
    assert torch.allclose(mean[..., 8:16], moved_mean[..., 8:16])
    assert not torch.allclose(plain[..., :8], moved[..., :8])


def test_folds_are_blocks_of_whole_replicates():
    assert fold_bounds(4, 8) == [(0, 8), (8, 16), (16, 24), (24, 32)]
    assert fold_bounds(6, 5) == [(0, 5), (5, 15), (15, 20), (20, 30)]
    assert [end - start for start, end in fold_bounds(22, 1)] == [5, 6, 5, 6]


def test_a_linear_surprisal_is_predicted_and_the_variance_goes():
    """If f depends on the neighbours linearly, the control takes nearly all of the variance away."""
    chain = MarkovChain.random(order=1, vocab_size=4, temperature=0.1, seed=1)
    x = chain.sample(1, length=24, generator=stream(2, "x"))[0]
    plain, controlled = (
        torch.tensor(
            [infodis.nll(chain, x, design=StratifiedCount(), control=c, seed=s).value for s in range(80)]
        ).var()
        for c in (None, Neighbours(radius=2))
    )
    assert controlled < plain / 2


def table_of(f, *, length: int = 8) -> Tabulated:
    """A made-up predictor: the surprisal of every position is a function of the mask."""
    masked, _ = every_mask(length)
    code = (masked * 2 ** torch.arange(length).unsqueeze(-1)).sum(0)
    surprisal = torch.zeros(2**length, length, dtype=torch.float64)
    surprisal[code] = (f(masked.double()) * masked).T
    return Tabulated(Item.read([0] * length), 2, 2, surprisal)


def outcomes(table: Tabulated, control, *, evaluations: int, runs: int) -> list[infodis.Estimate]:
    names = [key("kernel", run) for run in range(runs)]
    request = Request(Tiled(), control, evaluations)
    return estimate_items(table, [table.item] * runs, request, seed=0, names=names)


def test_a_kernel_learns_what_pairs_of_neighbours_do_not():
    """Whether both or none of two neighbours are masked, which stand apart, more or less at every other position."""
    sign = torch.tensor([1.0, -1.0]).repeat(4).unsqueeze(-1)
    circle = table_of(lambda masked: 4 + 2 * sign * (2 * masked.roll(1, 0) - 1) * (2 * masked.roll(-2, 0) - 1))
    values = [
        torch.tensor([one.value for one in outcomes(circle, control, evaluations=96, runs=100)])
        for control in (Neighbours(), Kernel())
    ]
    assert values[1].var() < 0.6 * values[0].var()
    assert abs(float(values[1].mean()) - circle.exact) < 4 * float(values[1].std()) / 10


@pytest.mark.parametrize("evaluations", [16, 64])
def test_a_kernel_is_unbiased_with_honest_intervals_against_enumeration(evaluations):
    """400 runs: |z| < 4 is missed once in 16,000; 0.91 is four standard errors below 0.95."""
    chain = MarkovChain.random(order=2, vocab_size=4, temperature=0.3, seed=0)
    item = Item.read(chain.sample(1, length=12, generator=stream(0, "kernel"))[0], context=range(3))
    table = Tabulated.of(Perturbed(chain, scale=0.4), item)
    for control in (Kernel(), infodis.Surrogate(chain, beta=0.7, residual=Kernel())):
        found = outcomes(table, control, evaluations=evaluations, runs=400)
        bias = Measured.mean([one.value - table.exact for one in found])
        assert abs(bias.value) < 4 * bias.standard_error
        assert sum(low <= table.exact <= high for low, high in (one.interval(0.95) for one in found)) > 0.91 * 400


def test_memory_of_a_kernel_is_bounded_and_changes_nothing(monkeypatch):
    table = table_of(lambda masked: 1 + masked.roll(1, 0) * masked.cumsum(0))
    whole = outcomes(table, Kernel(), evaluations=64, runs=2)
    monkeypatch.setattr(infodis.control, "PROCESS_CHUNK", 1)
    pieces = outcomes(table, Kernel(), evaluations=64, runs=2)
    monkeypatch.setattr(infodis.control, "MOST_KNOWN", 8)
    fewer = outcomes(table, Kernel(), evaluations=64, runs=2)
    for one, other, less in zip(whole, pieces, fewer, strict=True):
        assert torch.allclose(one.replicates, other.replicates, atol=1e-5)
        assert not torch.allclose(one.replicates, less.replicates, atol=1e-5)
        assert abs(less.value - table.exact) < 8 * less.standard_error


def test_controls_leave_telescoping_designs_alone():
    chain = Perturbed(MarkovChain.random(order=2, vocab_size=3), scale=0.5)
    x = [0, 1, 2, 0, 1, 2, 0, 1]
    with_control, without = (infodis.nll(chain, x, design=Orders(), control=c).value for c in (Neighbours(), None))
    assert with_control == without


def test_bad_controls_are_refused():
    with pytest.raises(InputError, match="radius >= 1"):
        Neighbours(radius=0)
    with pytest.raises(InputError, match="positive"):
        Positions(intercept_prior=0.0)
    with pytest.raises(InputError, match="radius must be 1 or more"):
        Kernel(radius=0)
    with pytest.raises(InputError, match="positive"):
        Kernel(noise=0.0)


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.0, 1.0])
@pytest.mark.parametrize("rows", [32, 128])
def test_controls_unbiased_and_harmless_against_enumeration(noise, rows):
    """2,000 runs, target of 16: |z| below 4 (a false alarm once in 16,000 a case), at most 5 % worse than without."""
    problem = chain_problem(0.5, count=2, noise=noise)
    for design in (TimeFree(), StratifiedCount(), Tiled()):
        plain, *controlled = (
            measure(problem, Request(design, c, rows), runs=1000) for c in (None, Positions(), Neighbours())
        )
        for outcome in controlled:
            assert abs(outcome.bias_z) < 4
            assert outcome.mean_squared_error < 1.05 * plain.mean_squared_error


def test_a_kernel_needs_rows():
    """With fewer it is `Neighbours`. On the way to a standard error the first stage decides, whatever follows."""
    kernel, simple = Kernel(intercept_prior=2.0), Neighbours(intercept_prior=2.0)
    assert (kernel.for_rows(48), kernel.for_rows(47)) == (kernel, simple)
    chain, tokens = MarkovChain.random(order=2, vocab_size=3, seed=3), [0, 1, 2, 0, 1, 1] * 4
    network = Perturbed(chain, scale=0.5)

    def value(control, evaluations):
        return infodis.nll(network, tokens, design=Tiled(), control=control, evaluations=evaluations).value

    assert value(kernel, 40) == value(simple, 40)
    assert value(kernel, 64) != value(simple, 64)
