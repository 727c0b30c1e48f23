"""[eq:surrogate]: a second distribution as a control, against tables that know the exact answer."""

import dataclasses
import math

import pytest
import torch

import infodis
from infodis.blocks import BlockLayout
from infodis.control import Surrogate, fitted_betas
from infodis.design import Enumerate, Orders, Tiled
from infodis.errors import InputError
from infodis.estimate import Request, estimate_items
from infodis.item import Item
from infodis.oracle import Independent, MarkovChain
from infodis.result import Measured
from infodis.rng import key, stream
from infodis.testing import Blockwise, Perturbed, Tabulated

RUNS = 200
CHAIN = MarkovChain.random(order=2, vocab_size=4, temperature=0.3, seed=0)
SURROGATES = {
    "good": CHAIN,
    "coarse": MarkovChain.random(order=2, vocab_size=4, temperature=0.6, seed=0),
    "bad": MarkovChain.random(order=2, vocab_size=4, temperature=0.3, seed=7),
    "adversarial": MarkovChain.random(order=1, vocab_size=4, temperature=0.06, seed=3),
}


@pytest.fixture(scope="module")
def table() -> Tabulated:
    """Nine tokens given three, under a chain with noise on its conditionals, as a network has it."""
    item = Item.read(CHAIN.sample(1, length=12, generator=stream(0, "surrogate"))[0], context=range(3))
    return Tabulated.of(Perturbed(CHAIN, scale=0.4), item)


def estimates(table: Tabulated, control, *, evaluations: int = 32, runs: int = RUNS):
    names = [key(table.item.key, run) for run in range(runs)]
    request = Request(Tiled(), control, evaluations)
    return estimate_items(table, [table.item] * runs, request, seed=0, names=names)


def bias_and_coverage(table: Tabulated, found) -> tuple[float, float]:
    bias = Measured.mean([one.value - table.exact for one in found])
    covered = sum(low <= table.exact <= high for low, high in (one.interval(0.95) for one in found))
    return bias.value / bias.standard_error, covered / len(found)


@pytest.mark.parametrize("beta", [1.0, None])
@pytest.mark.parametrize("name", list(SURROGATES))
def test_unbiased_with_honest_intervals_against_enumeration(table, name, beta):
    """However bad the surrogate is. |z| < 4 is missed once in 16,000; coverage of 200 runs at 0.95 is above 0.90 but
    once in a thousand."""
    z, coverage = bias_and_coverage(table, estimates(table, Surrogate(SURROGATES[name], beta=beta)))
    assert abs(z) < 4
    assert coverage > 0.90


def test_a_good_surrogate_lowers_the_variance(table):
    plain = estimates(table, infodis.Neighbours())
    for beta in (0.8, None):
        beside = estimates(table, Surrogate(CHAIN, beta=beta))
        ratio = torch.tensor([one.value for one in plain]).var() / torch.tensor([one.value for one in beside]).var()
        assert ratio > 1.5


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Disagreeing(MarkovChain):
    """Its conditionals are not those of the distribution whose likelihood it states."""

    def log_probs(self, items):
        return super().log_probs(items) - 0.5


def test_a_surrogate_whose_likelihood_is_wrong_is_caught(table):
    """A negative control: half a nat too many is half a nat of bias."""
    wrong = Disagreeing(CHAIN.transitions)
    z, _ = bias_and_coverage(table, estimates(table, Surrogate(wrong, beta=1.0)))
    assert z > 8


def test_beta_fitted_to_the_same_replicates_is_caught(table):
    """A negative control: a slope from the replicates that it is applied to makes intervals too short."""
    exact = -CHAIN.log_prob(table.item.tokens, target=table.item.target, context=table.item.context)
    mine = torch.stack([one.replicates for one in estimates(table, None)])
    same = Tabulated.of(CHAIN, table.item)
    beside = torch.stack([one.replicates for one in estimates(same, None)])
    mine, off = mine, beside - beside.mean(1, keepdim=True)
    beta = (mine * off).sum(1) / off.square().sum(1)
    values = mine - beta.unsqueeze(1) * (beside - exact)
    reach = 3.182 * values.std(1) / math.sqrt(values.shape[1])  # Student's t with three degrees of freedom
    coverage = float(((values.mean(1) - table.exact).abs() <= reach).double().mean())
    assert coverage < 0.90


def test_it_is_the_difference_of_two_estimates_against_itself(table):
    """The regression is linear: f less beta h is the estimate of f less beta times that of h, whose mean is added."""
    exact = -CHAIN.log_prob(table.item.tokens, target=table.item.target, context=table.item.context)
    f = estimates(table, infodis.Neighbours(), runs=3)
    h = estimates(Tabulated.of(CHAIN, table.item), infodis.Neighbours(), runs=3)
    both = estimates(table, Surrogate(CHAIN, beta=0.7), runs=3)
    for one, other, found in zip(f, h, both, strict=True):
        assert torch.allclose(found.replicates, one.replicates - 0.7 * (other.replicates - exact), atol=1e-5)
        assert float(found.per_token.sum()) == pytest.approx(found.value, abs=1e-9)
        assert found.evaluations == one.evaluations


def test_betas_come_from_other_folds():
    """Changing one fold changes the betas of the others and never its own."""
    generator = stream(0, "betas")
    weight, f, h = (torch.rand(1, 5, 16, generator=generator, dtype=torch.float64) for _ in range(3))
    f, folds = f + h, [(0, 4), (4, 8), (8, 12)]
    plain = fitted_betas(weight, f, h, folds=folds)
    spoiled = f.clone()
    spoiled[..., 4:8] *= 0.3
    moved = fitted_betas(weight, spoiled, h, folds=folds)
    assert torch.equal(plain[:, 4:8], moved[:, 4:8])
    assert bool((plain[:, :4] != moved[:, :4]).all())
    assert bool((plain[:, 12:] != moved[:, 12:]).all())  # rows behind all folds
    assert not fitted_betas(weight, f, h, folds=[]).any()


def test_surrogates_in_each_other(table):
    inner = Surrogate(SURROGATES["coarse"], beta=0.3)
    z, coverage = bias_and_coverage(table, estimates(table, Surrogate(CHAIN, beta=0.6, residual=inner)))
    assert abs(z) < 4
    assert coverage > 0.90
    with pytest.raises(InputError, match="only one may be without beta"):
        Surrogate(CHAIN, residual=Surrogate(CHAIN))


def test_positions_in_neither_set_are_summed_out():
    tokens = CHAIN.sample(1, length=14, generator=stream(1, "gaps"))[0]
    item = Item.read(tokens, target=[3, 4, 5, 7, 8, 10, 11, 12], context=[0, 1, 6])
    found = Tabulated.of(Perturbed(CHAIN, scale=0.3), item)
    z, _ = bias_and_coverage(found, estimates(found, Surrogate(CHAIN, beta=0.9)))
    assert abs(z) < 4


def test_a_requested_standard_error_is_kept(table):
    names = [key(table.item.key, run) for run in range(100)]
    request = Request(Tiled(), Surrogate(CHAIN, beta=0.9), standard_error=0.2)
    found = estimate_items(table, [table.item] * 100, request, seed=0, names=names)
    error = torch.tensor([one.value - table.exact for one in found])
    assert float(error.square().mean().sqrt()) < 0.2 * 1.25  # 100 runs: 4 standard errors of a root mean square
    assert abs(float(error.mean())) < 4 * float(error.std()) / 10


def test_ratios_and_races_take_it():
    network, control = Perturbed(CHAIN, scale=0.1), Surrogate(CHAIN, beta=1.0)
    y, x = CHAIN.sample(2, length=14, generator=stream(2, "pair"))
    exact = infodis.nll(network, x, design=Enumerate()).value - infodis.nll(network, y, design=Enumerate()).value
    plain = infodis.log_ratio(network, y, x, design=Tiled(), evaluations=64)
    ratio = infodis.log_ratio(network, y, x, design=Tiled(), control=control, evaluations=64)
    assert abs(ratio.value - exact) < 6 * ratio.standard_error
    assert ratio.standard_error < plain.standard_error


def test_what_telescopes_needs_none():
    found = infodis.nll(CHAIN, [0, 1, 2, 3, 0, 1], design=Orders(), control=Surrogate(CHAIN, beta=1.0))
    assert found.control is None
    assert found.value == pytest.approx(-CHAIN.log_prob([0, 1, 2, 3, 0, 1]), abs=1e-9)


def test_what_is_no_surrogate_is_refused():
    tokens = [0, 1, 2, 3] * 6
    with pytest.raises(InputError, match="log_prob of its own"):
        Surrogate(Perturbed(CHAIN, scale=0.1))
    with pytest.raises(InputError, match="beta must be a number"):
        Surrogate(CHAIN, beta=math.nan)
    with pytest.raises(InputError, match="same tokens"):
        infodis.nll(CHAIN, tokens, design=Tiled(), control=Surrogate(Independent(torch.tensor([0.5, 0.5])), beta=1.0))
    blocks, never = Blockwise(CHAIN, BlockLayout(8)), Independent(torch.tensor([0.5, 0.5, 0.0, 0.0]))
    with pytest.raises(InputError, match="block by block"):
        infodis.nll(blocks, tokens, design=infodis.Blocks(Tiled()), evaluations=32, control=Surrogate(CHAIN, beta=1.0))
    with pytest.raises(InputError, match="probability zero"):
        infodis.nll(CHAIN, tokens, design=Tiled(), control=Surrogate(never, beta=1.0))


def test_without_one_of_its_own_a_predictor_gets_the_regression_alone(table):
    ours, plain = estimates(table, Surrogate(), runs=2), estimates(table, infodis.Kernel(), runs=2)
    assert [one.value for one in ours] == [one.value for one in plain]
    assert ours[0].control == infodis.Kernel()
