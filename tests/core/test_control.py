import itertools
import math

import pytest
import torch

import infodis
from infodis.apps.bench.experiments import measure
from infodis.apps.bench.problems import chain_problem
from infodis.control import Neighbours, Positions, fold_bounds, neighbour_maps, predict
from infodis.design import Layout, Orders, StratifiedCount, Tiled, TimeFree, numbers
from infodis.errors import InputError
from infodis.estimate import Request
from infodis.oracle import MarkovChain
from infodis.rng import stream
from infodis.testing import Perturbed, check_control


def every_mask(length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """All masks (as columns) and the probability of each given that it holds a position, times its size law 1/m."""
    masks = [torch.tensor(bits, dtype=torch.bool) for bits in itertools.product([0, 1], repeat=length) if any(bits)]
    masked = torch.stack(masks, dim=-1)
    sizes = masked.sum(0)
    weight = torch.tensor([1 / (int(k) * math.comb(length, int(k))) for k in sizes], dtype=torch.float64)
    return masked, weight


@pytest.mark.parametrize("target", [[0, 1, 2, 3, 4, 5, 6], [3, 4, 6, 7, 8, 11], [0, 5], [2]])
@pytest.mark.parametrize("control", [Neighbours(radius=3), Neighbours(radius=1)], ids=repr)
def test_features_have_mean_zero_against_enumeration(control, target):
    """[eq:control-means]: over all masks that hold i, with their weights, every centred feature averages to zero."""
    check_control(control, target=target)


def test_a_feature_that_is_not_centred_is_caught():
    class Uncentred(Neighbours):
        def features(self, around):
            return around.neighbours

    with pytest.raises(AssertionError, match=r"mean zero .* has 0\.5 at position 0"):
        check_control(Uncentred(radius=1))


def test_neighbour_map_follows_places_in_the_sequence():
    gap, none = neighbour_maps(torch.tensor([[2, 3, 7], [4, 5, 6]]), (1, -1, 4), (3,)).tolist()
    assert gap == [[1, 3, 3], [3, 0, 2], [3, 3, 3]]  # 3 stands for "no such neighbour"
    assert none == [[1, 3, 3], [2, 0, 3], [3, 1, 3]]
    assert neighbour_maps(torch.tensor([[4, 5, 6], [0, 1, 2]]), (1, -1, 4), (3,)).tolist() == [none, none]


def test_predictions_come_from_other_folds():
    """Changing the surprisals of one fold changes the predictions of the others and never its own."""
    levels, keys = numbers(8, Layout(4, 8), [stream(0, r) for r in range(4)])
    masked, weight = (part.flatten(0, 1).T.unsqueeze(0).contiguous() for part in Tiled().masks(levels, keys))
    surprisal = torch.rand(1, 8, 32, generator=stream(1, "f"), dtype=torch.float64) * masked
    control = Neighbours()
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
            [infodis.nll(chain, x, design=StratifiedCount(), control=c, seed=s).value for s in range(40)]
        ).var()
        for c in (None, Neighbours(radius=2))
    )
    assert controlled < plain / 2


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
