"""The frame of experiments: what is kept and refused, toy networks against exact answers, documents, the command."""

import dataclasses
import itertools
import json
import math
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from typer.testing import CliRunner

from infodis import figures
from infodis.apps.report.values import ReportTable as Shown
from infodis.apps.reproduce import dna, theory
from infodis.apps.reproduce.catalog import EXPERIMENTS, experiments_named
from infodis.apps.reproduce.dna import DnaConditional, DnaUnconditional, Fit, Match
from infodis.apps.reproduce.experiment import Claim, Experiment, ExperimentResult, Workspace
from infodis.apps.reproduce.start import ANSWER, Axes, Memories, NeighbourUnits, begin
from infodis.apps.reproduce.writing import markdown, write_all, write_document
from infodis.cli import app
from infodis.design import Enumerate
from infodis.errors import InputError
from infodis.estimate import Request
from infodis.item import Item
from infodis.journal import Journal
from infodis.models.checkpoint import WEIGHTS, Spec, load
from infodis.models.nets import NetworkShape
from infodis.oracle import Table
from infodis.rng import stream
from infodis.testing import Perturbed

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
        if what.startswith("stage"):
            raise Stopped

    with pytest.raises(Stopped):
        DnaUnconditional().run(Workspace(tmp_path, "smoke", progress=stop))
    drawn = (tmp_path / "train.npy").read_bytes()
    with pytest.raises(InputError, match="seed was 0, is 1"):
        DnaUnconditional().run(Workspace(tmp_path, "smoke", seed=1))
    with pytest.raises(InputError, match="sequences was 2000, is 1000000"):
        DnaUnconditional().run(Workspace(tmp_path, "laptop"))
    assert (tmp_path / "train.npy").read_bytes() == drawn


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
    found = dna.fit(Workspace(tmp_path), "all", oracle, oracle, items, Request(Enumerate(), evaluations=31))
    assert float(found.distance.max()) < 1e-9
    assert found.correlation.value > 1 - 1e-9
    assert Match(close=0.05, alike=0.95).verdict(found) == "holds"


def test_a_network_that_errs_is_told_as_such(listed: tuple[Table, list[Item]], tmp_path: Path) -> None:
    oracle, items = listed
    wrong = Perturbed(oracle, scale=1.0)
    found = dna.fit(Workspace(tmp_path), "all", wrong, oracle, items, Request(Enumerate(), evaluations=31))
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
    assert dna._order_claim(ours, ours).verdict == "holds"
    assert "67 ± 67 %" in dna._order_claim(swapped, ours).found
    assert dna._order_claim(swapped, ours).verdict == "undecided"
    many = torch.arange(30).double()
    straight, reversed_ = (Fit(many, one, torch.ones(30).double(), 1.0) for one in (many, many.flip(0)))
    assert dna._order_claim(reversed_, straight).verdict == "does not hold"


def _units(directory: Path, tokens: Tensor, block: int = 0) -> Tensor:
    """What the feed-forward units of a block are given, at every place of the rows."""
    network, _ = load(directory)
    seen: list[Tensor] = []
    network.blocks[block].mlp[0].register_forward_hook(lambda layer, given, found: seen.append(found))
    with torch.no_grad():
        network.log_conditionals(tokens)
    return seen[0].view(*tokens.shape, -1)


@pytest.mark.parametrize("block", [0, 1])
def test_units_begin_with_all_combinations_of_neighbours_against_counting(block: int, tmp_path: Path) -> None:
    """Of two neighbouring letters, a gap beside or between them: 3 x 16 units, each answers to its own and no other.

    And only where the token in the gap is masked. In the second block, which also gets what the first adds, answers are
    lower, but far apart from those of others: by a quarter of a part.
    """
    length, here, mask = 12, 5, 4
    spec = Spec("radd", 4, NetworkShape(width=96, blocks=2, heads=4), length)
    rows = torch.randint(0, 4, (256, length), generator=stream(0, "rows"))
    begin(spec, tmp_path / "start", NeighbourUnits(2), rows, seed=0)
    hidden = rows.clone()
    hidden[:, here] = mask
    given = _units(tmp_path / "start", hidden, block)[..., :48]
    wanted = torch.zeros_like(given, dtype=torch.bool)
    for unit in range(48):
        places = ((1, 2), (-1, 1), (-2, -1))[unit % 3]
        letters = [unit // 3 // 4**order % 4 for order in range(2)]
        agree = [rows[:, here + distance] == letter for distance, letter in zip(places, letters, strict=True)]
        wanted[:, here, unit] = agree[0] & agree[1]
    assert float(given[wanted].min()) > float(given[~wanted].max()) + ANSWER / 4
    assert block == 1 or bool(((given > 0) == wanted).all())


def test_a_second_block_is_told_what_the_first_made_of_a_masked_neighbour(tmp_path: Path) -> None:
    """The first block is made to answer with one letter; beside it, the second's units for that letter rise."""
    length, mask, letter = 12, 4, 2
    spec = Spec("radd", 4, NetworkShape(width=96, blocks=2, heads=4), length)
    rows = torch.randint(0, 4, (64, length), generator=stream(0, "rows"))
    rows[:, 4:6] = mask
    begin(spec, tmp_path / "start", NeighbourUnits(2), rows, seed=0)
    before = _units(tmp_path / "start", rows, 1)
    weights = load_file(tmp_path / "start" / WEIGHTS)
    answers = Axes(spec.shape, 4).answer(letter)
    weights["blocks.0.mlp.2.bias"][answers] += 1.0
    save_file(weights, tmp_path / "start" / WEIGHTS)
    rise = (_units(tmp_path / "start", rows, 1) - before)[:, 4, :48].mean(0)
    beside = rise[1::3].view(4, 4)  # units by the letters to the right, which is masked, and to the left
    others = beside[[other for other in range(4) if other != letter]]
    assert bool((beside[letter] > others.amax(0) + 0.5).all())


def test_units_begin_with_rows_of_the_data_against_comparing(tmp_path: Path) -> None:
    """A unit answers at its place, if all that is visible elsewhere agrees with its row."""
    length, mask = 4, 4
    spec = Spec("radd", 4, NetworkShape(width=64, blocks=1, heads=4, positions=length, feed=1), length)
    rows = torch.randint(0, 4, (16, length), generator=stream(0, "rows")).unique(dim=0)
    begin(spec, tmp_path / "start", Memories(), rows, seed=0)
    hidden = torch.rand(16, length, generator=stream(0, "hidden")) < 0.6
    given = torch.cat([rows, rows.flip(0)])
    given = torch.where(torch.cat([hidden[: len(rows)]] * 2), mask, given)
    answered = _units(tmp_path / "start", given) > 0
    for unit, (row, here) in enumerate(itertools.product(rows.tolist(), range(length))):
        agree = (given == torch.tensor(row)) | (given == mask)
        agree[:, here] = True
        wanted = torch.zeros_like(agree)
        wanted[:, here] = agree.all(1)
        assert torch.equal(answered[:, :, unit], wanted)


def test_a_network_too_narrow_for_its_start_is_refused(tmp_path: Path) -> None:
    spec = Spec("radd", 4, NetworkShape(width=16, blocks=1, heads=4), 8)
    with pytest.raises(InputError, match="A width of 29 is needed"):
        begin(spec, tmp_path / "start", NeighbourUnits(2), torch.zeros(1, 8, dtype=torch.int64), seed=0)


@pytest.mark.parametrize("experiment", [DnaUnconditional(), DnaConditional()], ids=lambda one: one.name)
def test_the_papers_size_is_the_papers(experiment: DnaUnconditional | DnaConditional, tmp_path: Path) -> None:
    stage = experiment.recipe(Workspace(tmp_path, "full")).stages[-1]
    wanted = {"dna-unconditional": (70_000, 512, 3e-4), "dna-conditional": (80_000, 1_024, 6e-4)}
    assert (stage.steps, stage.batch, stage.learning_rate) == wanted[experiment.name]


# Documents and the command.


@dataclasses.dataclass(frozen=True)
class Trivial:
    name = "trivial"
    title = "A trivial experiment"
    paper = "Section 0"
    own_model = True

    def run(self, workspace: Workspace) -> ExperimentResult:
        table = Shown("Numbers", ("a | b", "c"), (("x|y", 1.0),), "A caption.")
        return ExperimentResult("About it.", (Claim("One is one.", "It is.", "holds"),), (table,))


def test_a_document_holds_claims_tables_and_commands(tmp_path: Path) -> None:
    one, workspace = Trivial(), Workspace(tmp_path / "run")
    write_document([(one, one.run(workspace), workspace)], tmp_path / "all.md", order=["trivial"])
    text = (tmp_path / "all.md").read_text()
    assert "| One is one. | It is. | ✓ holds |" in text
    assert "`infodis reproduce trivial` (laptop, seed 0)" in text
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
    done = [(Trivial(), ExperimentResult("About it.", (), figures=(figure,)), Workspace(tmp_path / "run"))]
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
    assert len({one.name for one in EXPERIMENTS}) == 7


def test_the_command_writes_numbers_figures_and_a_page_and_answers_again(tmp_path: Path) -> None:
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
    ],
)
def test_mistakes_are_told_before_any_work(words: list[str], told: str, tmp_path: Path) -> None:
    found = CliRunner().invoke(app, ["reproduce", *words, "--out", str(tmp_path)])
    assert found.exit_code != 0
    assert told in str(found.exception)
