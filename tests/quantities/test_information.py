"""Information against enumeration: exact where everything can be listed, within standard errors elsewhere."""

import itertools
import json
import math

import pytest
import torch
import typer
from scipy.integrate import quad
from typer.testing import CliRunner

import infodis
from infodis.cli.curve import curve
from infodis.design import Enumerate, MaskDesign, Tiled, UniformCount
from infodis.errors import InputError
from infodis.evaluate import Batching, run_batched
from infodis.files import MANIFEST
from infodis.item import Item
from infodis.oracle import Independent, MarkovChain, Table
from infodis.predictor import Counting
from infodis.quantities import influence as parts
from infodis.quantities import information
from infodis.quantities.influence import influence, mutual_information
from infodis.quantities.information import profile, unmasking_cost, unmasking_schedule, visible_shares
from infodis.rng import stream, uniforms
from infodis.testing import Perturbed, Tabulated

DNA = Table.dna(0)
CHAIN = MarkovChain.random(order=2, vocab_size=4, temperature=0.15, seed=0)
NOISY = Perturbed(CHAIN, scale=0.3)
X = CHAIN.sample(4, length=20, generator=stream(0, "information"))
COIN = Independent(torch.softmax(uniforms(20, 4, generator=stream(0, "coin")) * 3, dim=-1))

SETS = {
    "everything": {},
    "some given": {"context": [0, 3]},
    "some summed out": {"target": [1, 2, 4, 6], "context": [7]},
    "one token": {"target": [5]},
}


def surprisal(x, masked, i, item) -> float:
    """f(M, i), from the exact distribution and not from a predictor."""
    known = [*item.context.tolist(), *(j for j in item.target.tolist() if j not in masked)]
    return -DNA.log_prob(x, target=[i], context=known)


def exact_profile(x, item) -> list[float]:
    """g(1), ..., g(m) by enumeration of masks."""
    target = item.target.tolist()
    found = []
    for size in range(1, len(target) + 1):
        costs = [surprisal(x, m, i, item) for m in itertools.combinations(target, size) for i in m]
        found.append(sum(costs) / len(costs))
    return found


@pytest.mark.parametrize("sets", SETS.values(), ids=SETS.keys())
def test_profile_and_correlations_on_a_table_against_enumeration(sets):
    for x in DNA.sequences[4:5]:
        item = Item.read(x, **sets)
        text = profile(DNA, x, evaluations=255, **sets).texts[0]
        assert text.groups()[0].tolist() == pytest.approx(exact_profile(x, item), rel=1e-8, abs=1e-10)
        joint = -DNA.log_prob(x, **sets)
        alone = -sum(DNA.log_prob(x, target=[i], context=item.context) for i in item.target.tolist())
        private = sum(surprisal(x, [i], i, item) for i in item.target.tolist())
        assert text.nll.value == pytest.approx(joint, rel=1e-8)
        assert text.total_correlation.value == pytest.approx(alone - joint, rel=1e-8, abs=1e-8)
        assert text.dual_total_correlation.value == pytest.approx(joint - private, rel=1e-8, abs=1e-8)
        assert (text.stopped, text.nll.standard_error) == ("exact", 0.0)
        assert text.evaluations == 2 ** item.target.numel() - 1


def test_information_left_against_enumeration_of_all_masks_at_a_level():
    """The mean over masks, each token masked with that probability, of -log p(what is visible)."""
    x, given = DNA.sequences[3], [1, 6]
    target = [0, 2, 3, 4, 5, 7]
    levels = [0.0, 0.2, 0.55, 0.9, 1.0]
    exact = [0.0] * len(levels)
    for size in range(len(target)):
        for masked in itertools.combinations(target, size):
            told = -DNA.log_prob(x, target=[i for i in target if i not in masked], context=given)
            for n, level in enumerate(levels):
                exact[n] += told * level**size * (1 - level) ** (len(target) - size)
    found = profile(DNA, x, context=given, evaluations=63).curve(levels)
    assert (found.value * len(target)).tolist() == pytest.approx(exact, rel=1e-8, abs=1e-10)


@pytest.mark.parametrize("tokens", [1, 2, 7, 40])
def test_information_left_against_quadrature(tokens):
    """The closed form is the I-MDCE integral of mdce(u) / u from the level to 1, for any profile."""
    g = uniforms(tokens, generator=stream(tokens, "quadrature")).tolist()

    def integrand(u: float) -> float:
        return sum(math.comb(tokens, k) * u ** (k - 1) * (1 - u) ** (tokens - k) * k * g[k - 1] for k in sizes)

    sizes = range(1, tokens + 1)
    levels = torch.tensor([0.0, 0.03, 0.5, 0.8, 1.0], dtype=torch.float64)
    found = visible_shares(tokens, levels) @ torch.tensor(g, dtype=torch.float64)
    for level, value in zip(levels.tolist(), found.tolist(), strict=True):
        assert value == pytest.approx(quad(integrand, level, 1, epsabs=1e-12)[0], abs=1e-8)


@pytest.mark.parametrize("evaluations", [16, 64, 255], ids=["drawn", "all single masks", "enumerated"])
def test_everything_vanishes_between_independent_tokens(evaluations):
    for length in (8, 20):
        coin = Independent(COIN.probabilities[:length])
        found = profile(coin, X[:2, :length], context=[2], evaluations=evaluations)
        left = found.curve([0.0, 0.5])
        assert float(found.total_correlation.value) == pytest.approx(0, abs=1e-12)
        assert float(found.dual_total_correlation.value) == pytest.approx(0, abs=1e-12)
        exact = -sum(coin.log_prob(x, context=[2]) for x in X[:2, :length]) / (2 * length - 2)
        assert left.value[0] == pytest.approx(exact, rel=1e-9)
        between = mutual_information(coin, X[0, :length], [0, 1, 5], [2, 3], given=[4], evaluations=evaluations)
        assert between.value == pytest.approx(0, abs=1e-12)
        shown = influence(coin, X[0, :length], context=[1, 4, 6], evaluations=evaluations)
        assert float(shown.value.abs().max()) < 1e-12


@pytest.fixture(scope="module")
def table() -> Tabulated:
    """A target of ten, 1,023 masks, under conditionals that do not agree with each other."""
    return Tabulated.of(NOISY, Item.read(X[0, :16], context=range(6)))


def mean_z(found: torch.Tensor, exact: torch.Tensor) -> float:
    """The largest deviation of means from the truth, in standard errors; exact numbers must be exact."""
    error = found.std(0) / math.sqrt(len(found))
    off = (found.mean(0) - exact).abs()
    assert bool((off[error < 1e-9] < 1e-8).all())
    return float((off / error)[error >= 1e-9].max())


def summary(text: information.TextProfile) -> torch.Tensor:
    """Everything that a profile is asked for, in one row."""
    three = (text.nll, text.total_correlation, text.dual_total_correlation)
    left = text.curve(torch.tensor([0.1, 0.4, 0.8], dtype=torch.float64)).mean(0)
    return torch.cat([torch.tensor([q.value for q in three], dtype=torch.float64), left])


@pytest.mark.parametrize("evaluations", [16, 100], ids=["some single masks", "all single masks"])
def test_drawn_profiles_are_unbiased_against_enumeration(table, evaluations):
    """150 copies of a text; z beyond 4.5 is a false alarm once in 150,000, there are at most 32 numbers."""
    exact = profile(table, table.item.tokens, context=range(6), evaluations=1023).texts[0]
    texts = table.item.tokens.expand(150, -1)
    found = profile(table, texts, context=range(6), evaluations=evaluations).texts
    assert all(text.evaluations <= evaluations for text in found)
    assert mean_z(torch.stack([summary(text) for text in found]), summary(exact)) < 4.5
    widths = found[0].widths.tolist()
    groups = torch.stack([part.mean() for part in exact.groups()[0].split(widths)])
    assert mean_z(torch.stack([text.groups().mean(0) for text in found]), groups) < 4.5


class WithoutFullMask(MaskDesign):
    """`UniformCount` that never masks everything, as the paper's script does not."""

    def layout(self, length, rows):
        return UniformCount().layout(length, rows)

    def masks(self, levels, keys):
        return UniformCount().masks(levels * (1 - 1 / keys.shape[-1]), keys)


@pytest.mark.parametrize(("design", "caught"), [(UniformCount(), False), (WithoutFullMask(), True)])
def test_a_profile_without_the_full_mask_is_caught(table, design, caught):
    """Negative control: the same test raises the alarm. 100 seeds; z beyond 4 is a false alarm once in 16,000."""
    exact = profile(table, table.item.tokens, context=range(6), evaluations=1023).texts[0]
    plan = information._Plan(10, design, design.layout(10, 64), singles=1)
    asked = [plan.profiling(table, table.item, seed=seed, name=0) for seed in range(100)]
    found = torch.tensor([text.nll.value for text in run_batched(asked, Batching())], dtype=torch.float64)
    z = float((found.mean() - exact.nll.value) / found.std() * math.sqrt(100))
    assert z < -6 if caught else abs(z) < 4


def test_standard_errors_are_the_spread(table):
    """Sample variance over 200 copies of a text against the mean of squared errors, within 4 standard errors."""
    found = profile(table, table.item.tokens.expand(200, -1), context=range(6), evaluations=32)
    for name in ("nll", "total_correlation", "dual_total_correlation"):
        each = [getattr(text, name) for text in found.texts]
        spread = torch.tensor([one.value for one in each], dtype=torch.float64).var()
        claimed = torch.tensor([one.standard_error for one in each], dtype=torch.float64).square().mean()
        assert abs(float(spread / claimed) - 1) < 4 * math.sqrt(2 / 199), name
        band = getattr(found, name)  # equal texts differ by their masks only: both errors must say the same
        assert float(band.sampling_error / band.monte_carlo_error) == pytest.approx(1, abs=4 * math.sqrt(0.5 / 199))


def test_averages_over_texts_are_per_token_and_know_about_texts():
    lengths = [7, 5, 8, 6]
    texts = [x[:length] for x, length in zip(X, lengths, strict=True)]
    found = profile(CHAIN, texts, context=[0], evaluations=127)
    nats = torch.tensor([-CHAIN.log_prob(x, context=[0]) for x in texts], dtype=torch.float64)
    rate = float(nats.sum()) / 22
    assert float(found.nll.value) == pytest.approx(rate, rel=1e-8)
    assert float(found.nll.monte_carlo_error) == 0.0
    off = nats - rate * (torch.tensor(lengths) - 1)
    assert float(found.nll.sampling_error) == pytest.approx(math.sqrt(float(off.square().sum()) * 4 / 3) / 22)
    shares = (torch.arange(840, dtype=torch.float64) + 0.5) / 840  # 840 is a multiple of every target length
    assert float(found.at_shares(shares).value.mean()) == pytest.approx(rate, rel=1e-8)
    assert profile(CHAIN, texts[0], evaluations=127).nll.sampling_error is None


def test_numbers_of_a_text_do_not_depend_on_other_texts():
    counting, seen = Counting(NOISY), []
    together = profile(counting, X, evaluations=24, batch_size=7, progress=lambda *done: seen.append(done))
    alone = profile(NOISY, X[2], evaluations=24).texts[0]
    torch.testing.assert_close(together.texts[2].gains, alone.gains)
    assert seen == [(n, 4) for n in range(1, 5)]
    assert counting.rows == together.evaluations
    twice = profile(NOISY, X[[0, 0]], evaluations=24).texts
    assert not torch.equal(twice[0].gains, twice[1].gains)


def test_mutual_information_on_a_table_against_exact():
    x = DNA.sequences[5]
    for a, b, given in (([0, 1], [2, 3, 4], ()), ([3], range(4, 8), [0, 1]), ([0, 2, 4, 6], [1], [7])):
        exact = DNA.log_prob(x, target=a, context=[*b, *given]) - DNA.log_prob(x, target=a, context=given)
        one, other = (mutual_information(DNA, x, *pair, given=given) for pair in ((a, b), (b, a)))
        assert one.value == pytest.approx(exact, rel=1e-8, abs=1e-9)
        assert other.value == pytest.approx(exact, rel=1e-8, abs=1e-9)
        assert one.quantity == "mutual_information"


def test_shared_masks_make_mutual_information_precise():
    """25 seeds; z beyond 5 is a false alarm once in 25,000 (Student's t). The same without sharing is far noisier."""
    a, b = range(5, 15), [15, 16]
    how = {"evaluations": 32, "design": Tiled(), "control": None}
    coupled, apart = (
        torch.tensor(
            [mutual_information(CHAIN, X[1], a, b, **how, coupled=shared, seed=seed).value for seed in range(25)],
            dtype=torch.float64,
        )
        for shared in (True, False)
    )
    exact = CHAIN.log_prob(X[1], target=a, context=b) - CHAIN.log_prob(X[1], target=a)
    for found in (coupled, apart):
        assert abs(float(found.mean()) - exact) < 5 * float(found.std()) / math.sqrt(25)
    assert float(apart.var()) > 5 * float(coupled.var())


def shapley(x, target, context) -> torch.Tensor:
    """Influence by its definition: over all orders of the context, by how much each token lowers the credits."""
    orders = list(itertools.permutations(context))
    total = torch.zeros(len(target), len(context), dtype=torch.float64)
    credits = {
        frozenset(known): infodis.nll(NOISY, x, target=target, context=known, design=Enumerate()).per_token
        for size in range(len(context) + 1)
        for known in itertools.combinations(context, size)
    }
    for order in orders:
        for place, token in enumerate(order):
            known = frozenset(order[:place])
            total[:, context.index(token)] += (credits[known] - credits[known | {token}]) / len(orders)
    return total


def test_influence_against_enumeration():
    x, target, context = X[0, :9], [1, 4, 5], [0, 2, 3, 8]
    exact = influence(NOISY, x, target=target, context=context, evaluations=7 * 16)
    torch.testing.assert_close(exact.value, shapley(x, target, context))
    full = infodis.nll(NOISY, x, target=target, context=context, design=Enumerate())
    torch.testing.assert_close(exact.per_token, full.per_token)
    none = infodis.nll(NOISY, x, target=target, design=Enumerate())
    torch.testing.assert_close(exact.value.sum(1), none.per_token - full.per_token)
    assert (exact.stopped, float(exact.standard_error.max())) == ("exact", 0.0)


@pytest.mark.parametrize("context", [[0, 2, 3, 8], [0, 8], [3]], ids=repr)
def test_drawn_influence_is_unbiased_and_adds_up(context):
    """100 seeds; z beyond 5 is a false alarm once in 1.7 million, there are 28 numbers."""
    x, target = X[0, :9], [1, 4, 5, 6]
    exact = influence(NOISY, x, target=target, context=context, evaluations=15 * 2 ** len(context))
    drawn = [influence(NOISY, x, target=target, context=context, evaluations=28, seed=s) for s in range(100)]
    assert mean_z(torch.stack([d.value for d in drawn]), exact.value) < 5
    assert mean_z(torch.stack([d.per_token for d in drawn]), exact.per_token) < 5
    gained = torch.tensor([d.information.value for d in drawn])
    claimed = torch.stack([d.standard_error for d in drawn]).square().mean(0)
    spread = torch.stack([d.value for d in drawn]).var(0)
    assert bool((spread / claimed - 1).abs().max() < 6 * math.sqrt(2 / 99))
    assert abs(float(gained.mean()) - exact.information.value) < 5 * float(gained.std()) / math.sqrt(100)


def test_influence_with_wrong_shares_is_caught(monkeypatch):
    """Negative control: a token's share without regard to the size of the part."""
    x, target, context = X[0, :9], [1, 4, 5, 6], [0, 2, 3, 8]
    exact = influence(NOISY, x, target=target, context=context, evaluations=15 * 16)
    monkeypatch.setattr(parts, "_shapley", lambda visible: torch.where(visible, 1.0, -1.0).double() / 4)
    drawn = [influence(NOISY, x, target=target, context=context, evaluations=28, seed=s) for s in range(100)]
    assert mean_z(torch.stack([d.value for d in drawn]), exact.value) > 10


def compositions(total: int, count: int):
    """All lists of `count` positive numbers with that sum."""
    for cuts in itertools.combinations(range(1, total), count - 1):
        yield [b - a for a, b in itertools.pairwise([0, *cuts, total])]


@pytest.mark.parametrize("steps", [1, 2, 3, 5, 8])
def test_unmasking_schedule_against_all_schedules(steps):
    for seed in range(5):
        drawn = uniforms(8, generator=stream(seed, "schedule"))
        for g in (drawn, drawn.sort().values):  # rising, as of consistent models, or not
            found = unmasking_schedule(g, steps)
            assert (len(found), sum(found), min(found) >= 1) == (steps, 8, True)
            best = min(unmasking_cost(g, counts) for counts in compositions(8, steps))
            assert unmasking_cost(g, found) == pytest.approx(best, abs=1e-12)
    assert unmasking_cost(g, [1] * 8) == pytest.approx(0, abs=1e-12)


def test_unmasking_cost_against_enumeration():
    """The mean over all orders of what blocks of tokens cost together, minus the chain rule: on a table, exactly."""
    x, target, counts = DNA.sequences[2], [0, 1, 4, 6, 7], [2, 1, 2]
    item = Item.read(x, target=target, context=[2, 3])
    total = 0.0
    orders = list(itertools.permutations(target))
    for order in orders:
        start = 0
        for count in counts:
            total += sum(surprisal(x, order[start:], i, item) for i in order[start : start + count])
            start += count
    g = profile(DNA, x, target=target, context=[2, 3], evaluations=31).surprisals
    lost = total / len(orders) + DNA.log_prob(x, target=target, context=[2, 3])
    assert unmasking_cost(exact_profile(x, item), counts) == pytest.approx(lost, rel=1e-8)
    assert g().shape == (5,)


def test_schedule_of_a_profile_rises_and_slows_down():
    found = profile(CHAIN, X, evaluations=64)
    g = found.surprisals()
    assert bool((g.diff() >= 0).all())
    assert float(g.sum()) == pytest.approx(float(found.nll.value) * 20, rel=0.1)
    counts = found.schedule(5)
    even = unmasking_cost(g, [4] * 5)
    assert sum(counts) == 20
    assert 0 <= unmasking_cost(g, counts) <= even


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: profile(CHAIN, X, evaluations=15), "at least 16"),
        (lambda: profile(CHAIN, X, evaluations=True), "whole number"),
        (lambda: profile(CHAIN, [[0, 1], [0, 9]]), r"Sequence 1: .*0\.\.3"),
        (lambda: profile(CHAIN, X[0], evaluations=32).curve([0.5, 1.2]), "levels must be"),
        (lambda: profile(CHAIN, X[0], evaluations=32).at_shares(torch.tensor(0.5)), "shares must be"),
        (lambda: profile(CHAIN, [[0, 1], [0, 1, 2]]).schedule(2), "2 to 3 tokens"),
        (lambda: profile(CHAIN, [0, 1]).schedule(3), r"1\.\.2"),
        (lambda: profile(Table(torch.tensor([[0, 0], [1, 1]]), torch.ones(2) / 2), [0, 1]), "probability zero"),
        (lambda: influence(Table(torch.tensor([[0, 0], [1, 1]]), torch.ones(2) / 2), [0, 1], context=[0]), "zero"),
        (lambda: influence(CHAIN, X[0], context=[]), "context is empty"),
        (lambda: influence(CHAIN, X[0], context=[0, 1], evaluations=7), "at least 8"),
        (lambda: mutual_information(CHAIN, X[0], [0, 1], [1, 2]), "a and b must be disjoint"),
        (lambda: mutual_information(CHAIN, X[0], [0], [1], given=[1]), "b and given must be disjoint"),
        (lambda: mutual_information(CHAIN, X[0], [], [1]), "at least one position"),
        (lambda: unmasking_schedule([], 1), "flat list"),
        (lambda: unmasking_schedule([0.1, math.inf], 1), "finite"),
        (lambda: unmasking_cost([0.1, 0.2], [1]), "2 in all"),
    ],
)
def test_bad_input_is_a_clear_error(call, words):
    with pytest.raises(InputError, match=words):
        call()


def test_values_print_what_they_are():
    found = profile(CHAIN, X[:2], evaluations=24)
    assert "2 texts, 40 tokens, nll = " in repr(found)
    assert "total_correlation = " in repr(found.texts[0].total_correlation)
    assert "2 context on 18 target tokens" in repr(influence(CHAIN, X[0], context=[0, 1], evaluations=16))


def test_curve_command(tmp_path):
    app = typer.Typer()
    app.command()(curve)
    texts = tmp_path / "texts.jsonl"
    rows = [{"id": "a", "prompt": "the capital ", "response": "of france"}, {"text": "some text"}]
    texts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    out, plot = tmp_path / "out.jsonl", tmp_path / "curve.svg"
    asked = [str(texts), "--evaluations", "24", "--out", str(out), "--plot", str(plot), "--steps", "3", "--seed", "5"]
    done = CliRunner().invoke(app, asked)
    assert done.exit_code == 0, done.output
    assert "dual total correlation" in done.output
    assert "information left at level 0.5" in done.output
    assert "2 texts, 18 tokens" in done.output
    assert "bits a text more than one by one" in done.output
    assert "<svg" in plot.read_text()[:600]
    records = [json.loads(line) for line in out.read_text().splitlines()]
    assert [record["id"] for record in records] == ["a", 2]
    model = infodis.load("text8-tiny")
    row = model.read("of france", prompt="the capital ")
    alone = profile(model, row.tokens, target=row.target, context=row.context, evaluations=24, seed=5).texts[0]
    assert records[0]["nll"] == pytest.approx(alone.nll.value, rel=1e-5)
    assert records[0]["model"] == model.fingerprint
    assert records[0]["group_tops"][-1] == records[0]["tokens"] == 9
    assert sorted(tmp_path.iterdir()) == sorted([texts, out, plot, tmp_path / MANIFEST])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--plot", "curve.txt"], "ends in .svg"),
        (["--out", "nowhere/out.jsonl"], "no directory nowhere"),
        (["--steps", "3"], "4 to 9 tokens"),
        (["--steps", "5", "--limit", "1"], "at most 4"),
    ],
)
def test_curve_command_tells_mistakes_before_the_work(tmp_path, monkeypatch, options, words):
    app = typer.Typer()
    app.command()(curve)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts.txt").write_text("four\nnine char\n")
    done = CliRunner().invoke(app, ["texts.txt", *options])
    assert isinstance(done.exception, InputError)
    assert words in str(done.exception)
    (tmp_path / "empty.txt").write_text("\n")
    assert "holds no texts" in str(CliRunner().invoke(app, ["empty.txt"]).exception)
