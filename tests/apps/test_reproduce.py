"""The frame of experiments: what is kept and refused, toy networks against exact answers, documents, the command."""

import dataclasses
import json
import math
import re
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from infodis import __version__, figures
from infodis.apps.report.values import ReportTable as Shown
from infodis.apps.reproduce import theory, toys
from infodis.apps.reproduce.catalog import EXPERIMENTS, experiments_named
from infodis.apps.reproduce.dna import PEAKED, PRINTED, DnaConditional, DnaOrder2, DnaUnconditional
from infodis.apps.reproduce.experiment import (
    Claim,
    Cost,
    Experiment,
    ExperimentResult,
    StandIn,
    Workspace,
    settings_table,
)
from infodis.apps.reproduce.toy_report import Match, learned, order_claim
from infodis.apps.reproduce.toys import Fit, draw_letters, one_sequence
from infodis.apps.reproduce.writing import markdown, write_all, write_document
from infodis.cli import app
from infodis.design import Enumerate
from infodis.errors import InputError
from infodis.estimate import Request
from infodis.item import Item
from infodis.journal import Journal
from infodis.oracle import MarkovChain, Table
from infodis.rng import stream
from infodis.testing import Perturbed
from infodis.train.config import read_config

# What is done is kept.


def test_an_interrupted_run_goes_on_behind_what_it_has(tmp_path: Path) -> None:
    workspace, asked = Workspace(tmp_path), []

    def square(key: str) -> int:
        asked.append(key)
        if key == "4" and asked.count("4") == 1:
            raise KeyboardInterrupt
        return int(key) ** 2

    with pytest.raises(KeyboardInterrupt):
        workspace.keep_each("squares", {}, ["2", "3", "4"], square)
    assert workspace.keep_each("squares", {}, ["2", "3", "4"], square) == [4, 9, 16]
    assert asked == ["2", "3", "4", "4"]


def test_half_a_line_at_the_end_is_done_again(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    workspace.keep_each("squares", {}, ["2", "3"], lambda key: int(key) ** 2)
    kept = tmp_path / "squares.jsonl"
    kept.write_text(kept.read_text()[:-4])
    assert workspace.keep_each("squares", {}, ["2", "3"], lambda key: int(key) ** 2) == [4, 9]
    found = [entry and entry["value"] for entry in Journal(kept, {}).entries()]
    assert found == [4, None, 9]  # half a line stays, and counts as damaged


def test_work_under_other_settings_is_refused_not_overwritten(tmp_path: Path) -> None:
    Workspace(tmp_path).keep("one", {"rows": 8}, lambda: 1)
    for workspace, settings, told in (
        (Workspace(tmp_path), {"rows": 16}, "rows was 8, is 16"),
        (Workspace(tmp_path, seed=1), {"rows": 8}, "seed was 0, is 1"),
    ):
        with pytest.raises(InputError, match=told):
            workspace.keep("one", settings, lambda: 2)
    assert Workspace(tmp_path).keep("one", {"rows": 8}, lambda: 3) == 1


def test_another_recipe_in_the_same_place_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    class Stopped(Exception): ...

    def stop(what: str, done: int, total: int) -> None:
        if what.startswith("network"):
            raise Stopped

    with pytest.raises(Stopped):
        DnaUnconditional().run(Workspace(tmp_path, "smoke", train=True, progress=stop))
    train = tmp_path / "dna-list" / "train.npy"
    drawn = train.read_bytes()
    with pytest.raises(InputError, match="seed was 0, is 1"):
        DnaUnconditional().run(Workspace(tmp_path, "smoke", seed=1, train=True))
    with pytest.raises(InputError, match="letters was 16000, is 8000000"):
        DnaUnconditional().run(Workspace(tmp_path, "laptop", train=True))
    assert train.read_bytes() == drawn


# Sections 3 and 4.


@pytest.mark.parametrize("identity", theory.IDENTITIES, ids=lambda one: one.name)
def test_both_sides_of_every_identity_agree(identity: theory.Identity) -> None:
    assert theory.worst(identity) < theory.CLOSE


def test_an_identity_that_is_wrong_is_caught() -> None:
    assert theory.worst(theory.AS_PRINTED) > 1e-2


# Figure 2.


@pytest.fixture(scope="module")
def listed() -> tuple[Table, list[Item]]:
    oracle = Table.dna(0, entries=16, length=5)
    return oracle, [Item.read(row) for row in oracle.sequences]


def test_a_perfect_network_is_told_as_such(listed: tuple[Table, list[Item]], tmp_path: Path) -> None:
    oracle, items = listed
    found = toys.fit(Workspace(tmp_path), "all", oracle, oracle, items, Request(Enumerate(), evaluations=31))
    assert float(found.distance.max()) < 1e-9
    assert found.correlation.value > 1 - 1e-9
    assert Match(close=0.05, alike=0.95).verdict(found) == "holds"


def test_a_network_that_errs_is_told_as_such(listed: tuple[Table, list[Item]], tmp_path: Path) -> None:
    oracle, items = listed
    wrong = Perturbed(oracle, scale=1.0)
    found = toys.fit(Workspace(tmp_path), "all", wrong, oracle, items, Request(Enumerate(), evaluations=31))
    assert Match(close=0.05, alike=0.95).verdict(found) == "does not hold"
    assert Match(close=10, alike=0.95).verdict(found) == "holds in part"
    assert float(found.distance.mean()) > 0.1


def test_numbers_of_a_fit() -> None:
    true, found = torch.tensor([[1.0, 2.0, 3.0], [1.5, 2.0, 2.5]], dtype=torch.float64)
    numbers = Fit(true, found, torch.full_like(true, 0.1), 7.0).numbers()
    assert numbers["mean_absolute_error"] == pytest.approx(1 / 3)
    assert numbers["standard_error"] == pytest.approx(math.sqrt(1 / 12) / math.sqrt(3))
    assert numbers["correlation"] == pytest.approx(1.0)
    assert numbers["monte_carlo_error"] == pytest.approx(0.1)


def test_pairs_in_the_same_order_are_counted() -> None:
    values = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    ours = Fit(values, values, torch.zeros(3).double(), 1.0)
    swapped = Fit(values, values[[1, 0, 2]], torch.ones(3).double(), 1.0)
    assert order_claim(ours, ours).verdict == "holds"
    assert "67 ± 67 %" in order_claim(swapped, ours).found
    assert order_claim(swapped, ours).verdict == "undecided"
    many = torch.arange(30).double()
    straight, reversed_ = (Fit(many, one, torch.ones(30).double(), 1.0) for one in (many, many.flip(0)))
    assert order_claim(reversed_, straight).verdict == "does not hold"


@pytest.mark.parametrize(
    ("experiment", "steps", "batch", "rate"),
    [(DnaUnconditional(), 70_000, 512, 3e-4), (DnaConditional(), 80_000, 1_024, 6e-4)],
    ids=lambda one: getattr(one, "name", None),
)
def test_the_papers_size_is_the_papers(experiment, steps: int, batch: int, rate: float, tmp_path: Path) -> None:
    recipe = experiment.recipe(Workspace(tmp_path, "full"))
    optim, shape = recipe.optim, recipe.model.shape
    assert (optim.steps, optim.batch, optim.learning_rate) == (steps, batch, rate)
    assert (optim.loss, optim.warmup, optim.ema) == ("lambda-dce", 2_500, 0.9999)
    assert (shape.width, shape.blocks, shape.heads, shape.positions) == (256, 8, 8, 0)
    assert experiment.cost(Workspace(tmp_path, "full")).trained == steps * batch * recipe.model.length
    tried = experiment.recipe(Workspace(tmp_path, "full", stand_in=StandIn(3)))
    assert (tried.optim.batch, tried.optim.loss, tried.model.length) == (batch, "lambda-dce", recipe.model.length)
    assert (tried.optim.steps, tried.model.shape.width) == (2, 16)


RECIPES = {"dna-list": DnaUnconditional(), "dna-chain": DnaConditional(), "dna-order-2": DnaOrder2()}


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_what_an_experiment_trains_by(name: str, tmp_path: Path) -> None:
    given = read_config(Path(__file__).parents[2] / "recipes" / f"{name}.toml")
    wanted = RECIPES[name].recipe(Workspace(tmp_path, train=True)).config(0, "auto")
    assert (given.model, given.optim, given.run) == (wanted.model, wanted.optim, wanted.run)
    assert given.data.aligned == wanted.data.aligned


def test_one_sequence_of_a_chain_against_its_law() -> None:
    """Counts of three letters within 5 standard errors of what the chain says: one in 27,000 by chance, of 64."""
    chain = MarkovChain.random(order=2, vocab_size=4, seed=3)
    letters = torch.from_numpy(one_sequence(chain, 60_000, generator=stream(0, "letters")).astype("int64"))
    assert letters.shape == (60_000,)
    codes = letters[:-2] * 16 + letters[1:-1] * 4 + letters[2:]
    found = codes.bincount(minlength=64).double()
    wanted = (chain.start.unsqueeze(-1) * chain.transitions).flatten() * len(codes)
    assert float(((found - wanted) / wanted.sqrt()).abs().max()) < 5
    other = MarkovChain.random(order=2, vocab_size=4, seed=4)
    wrong = (other.start.unsqueeze(-1) * other.transitions).flatten() * len(codes)
    assert float(((found - wrong) / wrong.sqrt()).abs().max()) > 5


def test_letters_of_a_list_are_its_rows() -> None:
    oracle = Table.dna(0, entries=4, length=5)
    letters = draw_letters(oracle, 40, 5, generator=stream(0, "letters")).reshape(-1, 5)
    assert {tuple(row) for row in letters.tolist()} <= {tuple(row) for row in oracle.sequences.tolist()}


def test_chains_are_as_peaked_as_they_say() -> None:
    """The text's formula cannot give a letter less than 4 %; half of Dirichlet(1/2)'s rows hold one that does."""
    least = 1 / (1 + 3 * math.e**2)
    assert float(PRINTED.make(0).transitions.min()) >= least
    rows = PEAKED.make(0).transitions.reshape(-1, 4)
    assert float((rows.amin(-1) < least).double().mean()) > 0.5
    entropy = -(rows * rows.log()).sum(-1)
    assert float(entropy.mean()) == pytest.approx(0.884, abs=5 * float(entropy.std()) / 16)  # of 256 rows


def test_what_a_network_has_learned() -> None:
    true = torch.linspace(14, 16, 10, dtype=torch.float64)
    nothing = torch.full_like(true, 16 * math.log(4))
    zero = torch.zeros_like(true)
    assert learned(Fit(true, true, zero, 1.0)).startswith("the network has learned 100 ± 0")
    assert learned(Fit(true, nothing, zero, 1.0)).startswith("the network has learned 0 ± 0")


def test_a_network_that_saw_less_than_the_papers_decides_nothing() -> None:
    true = torch.linspace(14, 16, 10, dtype=torch.float64)
    poor = Fit(true, true.flip(0), torch.zeros_like(true), 1.0)
    assert [Match(0.1, 0.9).claim("", poor, "", share).verdict for share in (0.1, 1)] == ["undecided", "does not hold"]
    assert Match(0.1, 0.9).claim("", Fit(true, true, true, 1.0), "", 0.1).verdict == "holds"


def test_shipped_networks_are_for_our_own_data(tmp_path: Path) -> None:
    """With other letters there is nothing to score: a network is trained on them."""
    ours = Workspace(tmp_path)
    assert not ours.trains
    for other in (dataclasses.replace(ours, seed=1), dataclasses.replace(ours, authors=tmp_path)):
        assert other.trains
        assert DnaUnconditional().cost(other).trained > 0


def test_scores_of_another_network_or_other_windows_are_refused(
    listed: tuple[Table, list[Item]], tmp_path: Path
) -> None:
    oracle, items = listed
    wanted = Request(Enumerate(), evaluations=31)
    toys.fit(Workspace(tmp_path), "all", oracle, oracle, items, wanted)
    with pytest.raises(InputError, match="model was Table, is Perturbed"):
        toys.fit(Workspace(tmp_path), "all", Perturbed(oracle, scale=1.0), oracle, items, wanted)
    with pytest.raises(InputError, match="items was"):
        toys.fit(Workspace(tmp_path), "all", oracle, oracle, items[:4], wanted)


# Documents and the command.


@dataclasses.dataclass(frozen=True)
class Trivial:
    name = "trivial"
    title = "A trivial experiment"
    paper = "Section 0"
    own_model = True
    has_authors_data = False

    def check(self, workspace: Workspace) -> None: ...

    def cost(self, workspace: Workspace) -> Cost:
        return Cost(1, 2)

    def run(self, workspace: Workspace) -> ExperimentResult:
        table = Shown("Numbers", ("a | b", "c"), (("x|y", 1.0),), "A caption.")
        return ExperimentResult("About it.", (Claim("One is one.", "It is.", "holds"),), "Numbers are.", (table,))


def test_a_document_holds_claims_tables_and_commands(tmp_path: Path) -> None:
    one, workspace = Trivial(), Workspace(tmp_path / "run")
    write_document([(one, one.run(workspace), workspace)], tmp_path / "all.md", order=["trivial"])
    text = (tmp_path / "all.md").read_text()
    assert "| One is one. | It is. | ✓ holds |" in text
    assert f"`infodis reproduce trivial` (laptop, seed 0, infodis {__version__})" in text
    assert "\n\n**Why.** Numbers are.\n\n" in text
    assert r"| a \| b | c |" in text
    write_all([(one, one.run(workspace), workspace)], tmp_path / "all.html")
    assert "One is one." in (tmp_path / "all.html").read_text()


def test_a_document_keeps_what_others_wrote_and_refuses_other_files(tmp_path: Path) -> None:
    class Second(Trivial):
        name, title = "second", "Another one"

    path, workspace = tmp_path / "all.md", Workspace(tmp_path / "run")
    for one in (Second(), Trivial(), Second()):
        write_document([(one, one.run(workspace), workspace)], path, order=["trivial", "second"])
    assert re.findall("^## .*", path.read_text(), re.MULTILINE) == ["## A trivial experiment", "## Another one"]
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="written by something else"):
        write_document([(one, one.run(workspace), workspace)], path, order=["second"])
    with pytest.raises(InputError, match="is a directory"):
        write_document([(one, one.run(workspace), workspace)], tmp_path, order=["second"])
    path.write_text("# Notes of mine\n")
    with pytest.raises(InputError, match="written by something else"):
        write_document([(one, one.run(workspace), workspace)], path, order=["second"])
    assert path.read_text() == "# Notes of mine\n"


def test_pictures_beside_a_document_are_its_own(tmp_path: Path) -> None:
    figure = figures.histogram({"a": [1.0, 2.0]}, axis="nats")
    done = [(Trivial(), ExperimentResult("About it.", (), "", figures=(figure,)), Workspace(tmp_path / "run"))]
    write_document(done, tmp_path / "paper.md", order=["trivial"])
    write_document(done, tmp_path / "paper.md", order=["trivial"])
    (picture,) = (tmp_path / "images" / "reproduction").iterdir()
    picture.write_text("mine")
    with pytest.raises(InputError, match="does not show it"):
        write_document(done, tmp_path / "other.md", order=["trivial"])
    assert picture.read_text() == "mine"


def test_bars_in_cells_are_escaped() -> None:
    assert markdown(Shown("T", ("a",), (("x|y",),))).splitlines()[-1] == r"| x\|y |"


def test_every_experiment_of_the_issue_is_there() -> None:
    assert all(isinstance(one, Experiment) for one in EXPERIMENTS)
    assert experiments_named("all") == EXPERIMENTS
    assert len({one.name for one in EXPERIMENTS}) == 8


def test_the_command_writes_numbers_figures_and_a_page_and_answers_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    some = [one for one in theory.IDENTITIES if "time-free" in one.name]  # the quick ones; all are tried above
    monkeypatch.setattr(theory, "IDENTITIES", some)
    words = ["reproduce", "theory", "--out", str(tmp_path), "--document", str(tmp_path / "paper.md")]
    first = CliRunner().invoke(app, words)
    assert first.exit_code == 0, first.output
    result = json.loads((tmp_path / "laptop" / "theory" / "outcome.json").read_text())
    assert [claim["verdict"] for claim in result["claims"]] == ["holds", "does not hold"]
    assert (tmp_path / "laptop" / "theory" / "report.html").stat().st_size > 1000
    document = (tmp_path / "paper.md").read_text()
    CliRunner().invoke(app, words)
    assert (tmp_path / "paper.md").read_text() == document


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["nothing"], "no experiment 'nothing'"),
        (["theory", "--full", "--smoke"], "choose one"),
        (["theory", "--model", "text8-tiny"], "have models of their own"),
        (["theory", "--smoke", "--document", "some.md"], "proves nothing"),
        (["theory", "--document", "no/such/place.md"], "no directory"),
        (["ood-text8", "--data", "no-such-directory"], "There is no no-such-directory"),
        (["ood-text8", "--authors", "no-such-clone"], "no-such-clone has no directory data"),
        (["variance-time-free", "--full", "--designs", "time-free,best"], "no design 'best'"),
        (["ood-text8", "--designs", "time-free"], "--designs is for variance-time-free"),
    ],
)
def test_mistakes_are_told_before_any_work(words: list[str], told: str, tmp_path: Path) -> None:
    found = CliRunner().invoke(app, ["reproduce", *words, "--out", str(tmp_path)])
    assert found.exit_code != 0
    assert told in str(found.exception)


def test_what_is_missing_is_told_before_anything_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them without data: what is on no hub is named before the first one begins, and the others are run."""
    began: list[str] = []
    monkeypatch.setattr(sys.modules["infodis.cli.reproduce"], "_one", lambda one, where: began.append(one.name))
    monkeypatch.setitem(sys.modules, "datasets", None)  # no hub
    found = CliRunner().invoke(app, ["reproduce", "all", "--data", str(tmp_path), "--out", str(tmp_path / "out")])
    assert "human_vs_llm_180.jsonl is needed" in " ".join(found.output.split())
    assert "Not run: variance-time-free, variance-ratio, ood-text8, audit-llada" in str(found.exception)
    assert began == ["theory", "dna-unconditional", "dna-conditional", "dna-order-2"]


def test_settings_that_are_the_papers_are_left_out() -> None:
    assert settings_table([("draws", 100, "100"), ("texts", 500, 3)]).rows == (("texts", "500", "3"),)
