"""`infodis bench gradient`: its tables against autograd, its errors against plans that are drawn one by one."""

import json

import pytest
import torch
from typer.testing import CliRunner

import infodis
from infodis.apps.bench import gradient
from infodis.apps.bench.gradient import Folding, PairTable, Study, TargetMasks
from infodis.apps.bench.peers import CoupledWeights, FullMask, GaussNodes
from infodis.cli import app
from infodis.design import Dealt, Enumerate, UniformCount
from infodis.errors import InputError
from infodis.item import Item
from infodis.models.nets import RADD, NetworkShape, initialise
from infodis.plan import draw_plan
from infodis.rng import stream
from infodis.train.objectives import dpo_loss

BETA, FALSE_ALARM = 0.5, 5.0
"""Standard errors: one comparison in two million fails by chance."""


def tiny(seed: int, *, block_size: int = 0):
    network = RADD(3, NetworkShape(8, 1, 2, block_size=block_size))
    initialise(network, generator=stream(seed, "weights"))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += 0.5 * torch.randn(parameter.shape, generator=stream(seed, "more"))
    return infodis.load(network)


PAIR = (Item.read([0, 1, 2, 1, 0], context=[0, 1]), Item.read([0, 2, 2, 1, 1, 0], context=[0, 1]))


class Models:
    """Policy and reference: without blocks, or with blocks of two tokens."""

    def __init__(self, block_size: int) -> None:
        self.policy, self.reference = (tiny(seed, block_size=block_size) for seed in (0, 1))
        self.table = PairTable.of(self.policy, self.reference, PAIR)
        self.everything = draw_plan(self.policy, list(PAIR), evaluations=15, design=Enumerate())

    def study(self, runs: int, beta: float = BETA) -> Study:
        return Study([self.table], runs, beta)

    def gradient(self, plan) -> torch.Tensor:
        """Of the loss, by `log_likelihood` and autograd."""
        with torch.no_grad():
            reference_log_p = infodis.log_likelihood(self.reference, plan)
        loss = dpo_loss(infodis.log_likelihood(self.policy, plan), reference_log_p, beta=BETA)
        found = torch.autograd.grad(loss, list(self.policy.network.parameters()))
        return torch.cat([part.flatten() for part in found]).double()

    def margin(self, plan) -> float:
        with torch.no_grad():
            moved = infodis.log_likelihood(self.policy, plan) - infodis.log_likelihood(self.reference, plan)
        return float(moved[0] - moved[1])


@pytest.fixture(scope="module", params=[0, 2], ids=["whole", "blocks"])
def models(request):
    return Models(request.param)


def test_folding_against_inner_products():
    """Within five standard errors of a folded product, the root of (|a|^2 |b|^2 + (a b)^2) / places; exact if there are
    no more entries than places."""
    entries = torch.randn(2, 153_000, generator=stream(0, "entries"))
    entries[1] += 0.3 * entries[0]
    for some, loose in ((entries, 1.0), (entries[:, :8000], 1e-6)):
        parts = [some[:, :5000].view(2, 50, 100), some[:, 5000:]]
        folding = Folding.of([part[0].numel() for part in parts])
        folded = torch.stack([folding.fold([part[n] for part in parts]) for n in range(2)])
        exact, found = some @ some.T, folded @ folded.T
        error = ((exact.diag().outer(exact.diag()) + exact.square()) / gradient.FOLDED).sqrt()
        assert float(((found - exact) / error).abs().max()) < FALSE_ALARM * loose
    absent = Folding.of([10, 20]).fold([None, torch.ones(20)])
    assert absent.nonzero().squeeze(1).tolist() == list(range(10, 30))


def test_exact_gradient_and_margin_against_autograd_over_all_masks(models):
    weights = models.table.exact()
    found = models.table.squares(models.table.gradients(weights, BETA))
    assert float(found) == pytest.approx(float(models.gradient(models.everything).square().sum()), rel=1e-4)
    assert float(weights @ models.table.margin) == pytest.approx(models.margin(models.everything), rel=1e-5)


@pytest.mark.parametrize("design", [UniformCount(), Dealt()], ids=repr)
def test_errors_against_plans_that_are_drawn_one_by_one(models, design):
    """The mean squared error of 200 plans of `draw_plan`, by autograd, within five of its standard errors."""
    exact = models.gradient(models.everything)
    plans = [draw_plan(models.policy, list(PAIR), evaluations=2, design=design, step=n) for n in range(200)]
    squares = torch.stack([(models.gradient(plan) - exact).square().sum() for plan in plans]) / exact.square().sum()
    found = models.study(2000).errors(design, 2)
    error = FALSE_ALARM * float(squares.std()) / 200**0.5
    assert float(found.square / found.length) == pytest.approx(float(squares.mean()), abs=error)
    assert found.passes == pytest.approx(sum(plan.evaluations for plan in plans) / 400, abs=0.1)


def test_blocks_of_a_mask_over_the_whole_target_add_up(models):
    """What a peer draws over all blocks has no bias either: linear in the weights at a small beta."""
    for whole in (False, True):
        found = models.study(4000, beta=1e-3).errors(UniformCount(), 2, whole=whole)
        variance = float((found.square - found.bias) / found.length)
        assert abs(float(found.bias / found.length)) < FALSE_ALARM * variance / 4000


def test_all_masks_have_no_error_and_biased_estimators_a_bias(models):
    none = models.study(2).errors(Enumerate(), 15)
    assert float(none.square) < 1e-12 * float(none.length)
    for design in (FullMask(), CoupledWeights()):
        found = models.study(400).errors(design, 3, whole=True)
        assert float(found.bias) > 0.02 * float(found.length)
    full = models.study(4).errors(FullMask(), 3, whole=True)
    assert float(full.square - full.bias) < 1e-9 * float(full.length)
    assert full.passes == 1


def test_averaging_plans_takes_the_variance_down(models):
    """Of independent masks four times as many have a quarter of the error, but for what the log-sigmoid adds."""
    few, many = (models.study(3000, beta=0.01).errors(UniformCount(), n, whole=True) for n in (2, 8))
    assert float(few.square / many.square) == pytest.approx(4, rel=0.15)


def test_gauss_nodes_are_unbiased_for_short_targets_only():
    """n nodes integrate polynomials of degree 2 n - 1; a mask of k tokens is one of degree m - 1."""
    generator = stream(0, "gauss")
    for length, nodes, unbiased in ((4, 2, True), (8, 2, False), (8, 4, True)):
        runs = 20000
        keys = torch.rand(runs, nodes, length, generator=generator, dtype=torch.float64)
        masked, weight = GaussNodes().masks(keys[..., 0], keys)
        sizes = masked.sum(-1)
        for size in range(1, length + 1):  # every size has a total weight of one
            total = torch.where(sizes == size, weight.sum(-1), 0).sum(1)
            off = abs(float(total.mean()) - 1) / float(total.std() / runs**0.5)
            if unbiased:
                assert off < FALSE_ALARM
            elif size == length:
                assert off > FALSE_ALARM


def test_bench_gradient(tmp_path, monkeypatch):
    """As the command prints and saves it, on networks of two sizes of blocks."""

    def made(name, **_):
        models = Models(2 if "block" in name else 0)
        return gradient.GradientProblem(name, models.policy, models.reference, [PAIR] * 3)

    monkeypatch.setattr(gradient, "problem", made)
    asked = ["bench", "gradient", "--pairs", "3", "--draws", "1", "--draws", "4", "--runs", "20", "--out"]
    done = CliRunner().invoke(app, [*asked, str(tmp_path)])
    assert done.exit_code == 0, done.output
    records = [json.loads(line) for line in (tmp_path / "gradient.jsonl").read_text().splitlines()]
    names = {
        (model, draws): {one["estimator"] for one in records if (one["model"], one["draws"]) == (model, draws)}
        for model in ("text8-tiny", "text8-block4", "dna-tiny")
        for draws in (1, 4)
    }
    everything = set(gradient.PEERS) | set(gradient.OURS)
    assert names["text8-block4", 4] == everything
    assert names["text8-tiny", 4] == everything - {"TimeIntegral", "Pairs"}  # what peers of theirs draw
    assert names["dna-tiny", 4] - names["dna-tiny", 1] == {"ESPO (Pairs)", "DiffuCoder"}  # one draw is too few
    for one in records:
        assert one["error"] == pytest.approx(one["bias"] + one["variance"])
    assert "times below VRPO" in done.output
    exact = [one for one in records if one["below"] is None]  # four draws are enough for all masks of two tokens
    assert {(one["model"], one["draws"], one["estimator"]) for one in exact} >= {("text8-block4", 4, "Dealt")}
    assert all(one["error"] < 1e-20 for one in exact)


def test_shipped_problems():
    model = infodis.load("text8-tiny")
    for pairs, target in ((gradient.text_pairs(model, 40, target=24), 24), (gradient.dna_pairs(40), 8)):
        assert len(pairs) == 40
        assert all(item.target.numel() == target for pair in pairs for item in pair)
        assert len({item.key for pair in pairs for item in pair}) == 80
    with pytest.raises(InputError, match="There are 64 pairs"):
        gradient.dna_pairs(65)
    with pytest.raises(InputError, match="at most 12 tokens"):
        TargetMasks.of(model, gradient.text_pairs(model, 2, target=13)[0][0])
    made = gradient.problem("dna-tiny", count=2)
    plan = draw_plan(made.policy, list(made.pairs[0]), evaluations=255, design=Enumerate())
    with torch.no_grad():
        moved = infodis.log_likelihood(made.policy, plan) - infodis.log_likelihood(made.reference, plan)
    assert abs(float(moved[0] - moved[1])) > 1e-3
