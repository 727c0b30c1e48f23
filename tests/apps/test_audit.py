"""Audits: what is looked at against exact answers, groups and scores, and the command from files to findings."""

import csv
import json
import math
import re
from dataclasses import astuple
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from infodis.apps.audit.measure import QUARTERS, PromptedItem, difference, measure_rows
from infodis.cli import app
from infodis.item import Item
from infodis.models.loading import load
from infodis.oracle import MarkovChain, Table
from infodis.result import Measured
from infodis.rng import stream
from infodis.train import train
from infodis.train.config import Config, DataConfig, ModelConfig, OptimConfig, RunConfig

CHAIN = MarkovChain.random(order=1, vocab_size=4, temperature=0.2, seed=0)
OTHER = MarkovChain.random(order=1, vocab_size=4, temperature=0.2, seed=1)
PROMPT = 4


def subject(tokens: torch.Tensor) -> PromptedItem:
    item = Item.read(tokens, context=range(PROMPT))
    return PromptedItem(item, Item.read(tokens, target=range(PROMPT, len(tokens))))


def test_short_rows_are_exact():
    text = CHAIN.sample(1, length=PROMPT + 5, generator=stream(0, "short"))[0]
    found = measure_rows(CHAIN, [subject(text)], reference=OTHER, evaluations=64)[0]
    given = -CHAIN.log_prob(text, context=range(PROMPT))
    alone = -CHAIN.log_prob(text, target=range(PROMPT, len(text)))
    other = -OTHER.log_prob(text, context=range(PROMPT))
    assert astuple(Measured.mean(found.values)) == (pytest.approx(given), 0.0)
    assert astuple(difference(found.without_prompt, found.values)) == (pytest.approx(alone - given), 0.0)
    assert astuple(difference(found.values, found.under_reference)) == (pytest.approx(given - other), 0.0)
    assert found.stopped == "exact"
    assert found.evaluations == 3 * 31


def test_differences_are_unbiased_and_sharper_than_their_sides():
    """Over 60 rows: z of the mean error at most 4 (one false alarm in 16,000), and coupling helps."""
    texts = CHAIN.sample(60, length=PROMPT + 12, generator=stream(0, "rows"))
    found = measure_rows(CHAIN, [subject(text) for text in texts], evaluations=32)
    gaps = [difference(one.without_prompt, one.values) for one in found]
    exact = [
        CHAIN.log_prob(text, context=range(PROMPT)) - CHAIN.log_prob(text, target=range(PROMPT, len(text)))
        for text in texts
    ]
    wrong = torch.tensor([gap.value for gap in gaps], dtype=torch.float64) - torch.tensor(exact, dtype=torch.float64)
    assert abs(float(wrong.mean())) < 4 * float(wrong.std()) / math.sqrt(len(wrong))
    errors = [Measured.mean(one.values).standard_error for one in found]
    assert sum(gap.standard_error for gap in gaps) < sum(errors)


def test_quarters_against_all_masks():
    """All masks are looked at: means over those of each share are what they are."""
    text = CHAIN.sample(1, length=PROMPT + 4, generator=stream(0, "quarters"))[0]
    found = measure_rows(CHAIN, [subject(text)], evaluations=15)[0]
    item = Item.read(text, context=range(PROMPT))
    for size in range(1, QUARTERS + 1):
        means = []
        for mask in torch.cartesian_prod(*[torch.tensor([False, True])] * 4):
            if int(mask.sum()) == size:
                hidden = torch.zeros(len(text), dtype=torch.bool)
                hidden[item.target] = mask
                nats = CHAIN.surprisal(text.unsqueeze(0), hidden.unsqueeze(0))[0]
                means.append(float(nats[hidden].mean()))
        assert float(found.nll_by_mask_rate[size - 1]) == pytest.approx(sum(means) / len(means), rel=1e-6)


def test_win_rates_count_masks():
    """A text of the chain is less surprising to it than to another under most masks, and to itself under half."""
    text = CHAIN.sample(1, length=PROMPT + 24, generator=stream(0, "votes"))[0]
    assert measure_rows(CHAIN, [subject(text)], reference=CHAIN)[0].win_rate == 0.5
    assert measure_rows(CHAIN, [subject(text)], reference=OTHER)[0].win_rate > 0.9


def test_impossible_rows_have_no_number():
    table = Table(torch.tensor([[0, 1, 0, 1], [1, 0, 1, 0]]), torch.tensor([0.5, 0.5]))
    found = measure_rows(table, [subject_of([0, 0, 1, 1])])[0]
    assert found.impossible
    assert Measured.mean(found.values) == Measured(math.inf, 0.0)
    assert difference(found.without_prompt, found.values) is None


def subject_of(tokens: list[int]) -> PromptedItem:
    return PromptedItem(Item.read(tokens, context=[0]), Item.read(tokens, target=[1, 2, 3]))


def test_special_tokens_are_no_prompt():
    model = load("text8-tiny")
    row = model.read("some text")
    assert PromptedItem.of(model, Item(row.tokens, row.target, row.context)).without_prompt is None
    row = model.read("some text", prompt="a prompt and ")
    bare = PromptedItem.of(model, Item(row.tokens, row.target, row.context)).without_prompt
    assert bare.context.numel() == len(model.around()[0]) + len(model.around()[1])
    assert torch.equal(bare.target, row.target)


ROWS = 24
LENGTH = 16


class Silent:
    def progress(self, report): ...
    def validation(self, report): ...
    def message(self, text): ...


def sequences(name: str) -> list[str]:
    """Of a chain that has little to learn from: who knows a sequence has learned it by heart."""
    chain = MarkovChain.random(order=1, vocab_size=4, temperature=1.0, seed=0)
    rows = chain.sample(ROWS, length=LENGTH, generator=stream(0, name))
    return ["".join("ACGT"[token] for token in row) for row in rows]


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> dict[str, Path]:
    """A model that knows the members by heart, and one that has seen other sequences."""
    directory, found = tmp_path_factory.mktemp("membership"), {}
    for name, steps in (("members", 400), ("others", 150)):
        (directory / f"{name}.txt").write_text("".join(sequences(name)))
        config = Config(
            ModelConfig(length=LENGTH, width=64, blocks=2, heads=4, positions=True),
            DataConfig(f"{name}.txt", f"{name}.txt", "dna", aligned=True),
            OptimConfig(steps=steps, batch=ROWS, learning_rate=5e-3, warmup=20, ema=0.9),
            RunConfig(device="cpu", validate_every=steps, valid_windows=4, valid_evaluations=4, checkpoint_every=steps),
        )
        found[name] = train(config, directory / name, base=directory, resume=False, reporter=Silent())
    return found


def write_rows(path: Path, rows: list[dict]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def invoke(*words: object, code: int = 0) -> str:
    found = CliRunner().invoke(app, [str(word) for word in words])
    assert found.exit_code == code, (found.output, found.exception)
    return found.output


def membership(model: Path, directory: Path, *more: object) -> dict:
    directory.mkdir()
    files = {
        name: write_rows(directory / f"{name}.in.jsonl", [{"text": row} for row in sequences(name)])
        for name in ("members", "fresh")
    }
    half = ROWS // 2
    mixed = sequences("members")[:half] + sequences("newer")[:half]
    questioned = write_rows(directory / "mixed.in.jsonl", [{"id": n, "text": row} for n, row in enumerate(mixed)])
    words = ("--task", "membership", "--members", files["members"], "--nonmembers", files["fresh"])
    invoke("audit", questioned, *words, "--model", model, "--evaluations", 8, "--threads", 1, "-o", directory, *more)
    return json.loads((directory / "audit.json").read_text())


def test_members_are_found_by_a_model_that_overfits(trained, tmp_path):
    found = membership(trained["members"], tmp_path / "audit", "--reference", trained["others"])
    main = found["separations"][0]
    assert found["positive"] == "members"
    assert main["auroc"]["low"] > 0.6  # 48 rows: 0.5 is excluded by far
    assert main["p_value"] < 0.001
    called = {row["id"]: row["p"] for row in found["questioned"]["rows"]}
    ranks = sorted(called, key=lambda row: called[row])
    assert sum(row < ROWS // 2 for row in ranks[: ROWS // 2]) >= ROWS // 3
    assert found["questioned"]["score"] == "beyond the reference"


def test_a_model_that_has_seen_neither_finds_no_members(trained, tmp_path):
    found = membership(trained["others"], tmp_path / "audit")
    main = found["separations"][0]
    assert main["auroc"]["low"] < 0.5 < main["auroc"]["high"]
    assert main["p_value"] > 0.01  # one false alarm in a hundred; the seed is fixed


TEXTS = (
    "the history of the city begins with a small settlement on the river",
    "he was born in one of the villages of the north and died in the south",
    "most of the people who live in the area speak the language of the state",
    "the first edition of the book was published in the same year in london",
    "it is used in the production of paper and in the treatment of water",
    "the party won the election and formed a government with its allies",
)


def shuffled(text: str) -> str:
    return " ".join(sorted(text.split(" "), key=lambda word: word[::-1]))


@pytest.fixture
def files(tmp_path) -> dict[str, str]:
    cut = 24
    rows = [{"id": n, "prompt": text[:cut], "response": text[cut:]} for n, text in enumerate(TEXTS)]
    other = [{**row, "response": shuffled(row["response"])} for row in rows]
    both = [
        {"id": row["id"], "x": row["prompt"], "one": row["response"], "two": shuffled(row["response"])} for row in rows
    ]
    return {
        "plain": write_rows(tmp_path / "plain.jsonl", rows),
        "odd": write_rows(tmp_path / "odd.jsonl", other),
        "both": write_rows(tmp_path / "both.jsonl", both),
    }


QUICK = ("--evaluations", 8, "--threads", 1)


def test_the_command_leaves_records_statistics_figures_and_a_report(files, tmp_path):
    out = tmp_path / "audit"
    told = invoke("audit", files["plain"], files["odd"], *QUICK, "--names", "plain,odd", "--out", out)
    assert "Report:" in told
    found = json.loads((out / "audit.json").read_text())
    assert found["paired"] is True
    assert [group["name"] for group in found["groups"]] == ["plain", "odd"]
    assert found["separations"][0]["auroc"]["value"] > 0.8
    assert {path.name for path in (out / "figures").iterdir()} >= {"roc.svg", "roc.png", "roc.csv", "histogram.svg"}
    page = (out / "report.html").read_text()
    assert "http://" not in page.replace("http://www.w3.org", "")
    records = (out / "a.jsonl").read_bytes()
    invoke("audit", files["plain"], files["odd"], *QUICK, "--names", "plain,odd", "--out", out)
    assert (out / "a.jsonl").read_bytes() == records
    assert (out / "report.html").read_text() == page


def test_a_reversed_audit_reverses_its_rule(files, tmp_path):
    """The strange rows are given as those that should be familiar: the page flags low scores, and says so."""
    out = tmp_path / "audit"
    told = invoke("audit", files["odd"], files["plain"], *QUICK, "--names", "odd,plain", "--out", out)
    found = json.loads((out / "audit.json").read_text())
    assert found["separations"][0]["auroc"]["value"] < 0.2
    (sentence,) = [text for text in found["findings"] if "the rule is reversed here" in text]
    assert "lower nll per token = plain: rows at or below" in sentence
    assert "the rule is reversed here" in " ".join(told.split())
    start = float(re.search(r"rows at or below (\S+) are", sentence)[1])
    flagged = {}
    for name in "ab":
        records = [json.loads(line) for line in (out / f"{name}.jsonl").read_text().splitlines()]
        flagged[name] = sum(one["value"] / one["tokens"] <= start + 1e-3 for one in records) / len(records)
    assert flagged["a"] == 1 / len(TEXTS)  # of the negatives one in twenty, or a single one if they are few
    assert flagged["b"] > 0.5
    with (out / "figures" / "roc.csv").open() as file:
        curve = [(float(row["x"]), float(row["y"])) for row in csv.DictReader(file) if row["kind"] == "curve"]
    assert len(curve) > 2
    assert all(y >= x for x, y in curve)  # of the rule that is used: above the diagonal
    right = invoke("audit", files["plain"], files["odd"], *QUICK, "--out", tmp_path / "right")
    assert "the rule is reversed" not in " ".join(right.split())


def test_an_audit_of_a_few_rows_has_no_histogram(files, tmp_path):
    few = [write_rows(tmp_path / f"{name}3.jsonl", read_rows(files[name])[:3]) for name in ("plain", "odd")]
    invoke("audit", *few, *QUICK, "--out", tmp_path / "audit")
    names = {path.name for path in (tmp_path / "audit" / "figures").iterdir()}
    assert "roc.svg" in names
    assert "histogram.svg" not in names


def read_rows(path: str) -> list[dict]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def test_two_fields_of_one_file_are_pairs_by_id(files, tmp_path):
    out = tmp_path / "audit"
    invoke("audit", files["both"], "--responses", "one,two", "--field", "prompt=x", *QUICK, "--out", out)
    found = json.loads((out / "audit.json").read_text())
    assert found["paired"] is True
    assert [group["name"] for group in found["groups"]] == ["one", "two"]
    assert found["separations"][0]["pairs"]["count"] == len(TEXTS)


def test_bad_rows_are_set_aside_and_told(files, tmp_path):
    path = Path(files["odd"])
    path.write_text(path.read_text() + '{"id": 99, "prompt": "x", "response": "Not in the alphabet!"}\n')
    out = tmp_path / "audit"
    told = invoke("audit", files["plain"], files["odd"], *QUICK, "--out", out, code=3)
    assert "1 rows of out could not be read" in " ".join(told.split())
    assert (out / "b.jsonl.rejected.jsonl").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["PLAIN"], "Two groups are needed"),
        (["PLAIN", "ODD"], "--out"),
        (["PLAIN", "ODD", "--task", "guess", "--out", "OUT"], "ood, shift, membership"),
        (["PLAIN", "ODD", "--names", "same,same", "--out", "OUT"], "two different words"),
        (["PLAIN", "ODD", "--responses", "a,b", "--out", "OUT"], "two fields of one file"),
        (["PLAIN", "--task", "membership", "--members", "PLAIN", "--out", "OUT"], "--nonmembers"),
        (["PLAIN", "--members", "PLAIN", "--nonmembers", "ODD", "--out", "OUT"], "--task membership"),
        (["PLAIN", "ODD", "--out", "PLAIN"], "is a file"),
        (["PLAIN", "ODD", "--out", "OUT/deeper/still"], "Make it first"),
        (["missing.jsonl", "ODD", "--out", "OUT"], "missing.jsonl"),
    ],
)
def test_mistakes_are_told(files, tmp_path, words, message):
    places = {"PLAIN": files["plain"], "ODD": files["odd"], "OUT": str(tmp_path / "audit")}
    named = [places.get(word, word.replace("OUT", places["OUT"])) for word in words]
    found = CliRunner().invoke(app, ["audit", *named])
    assert found.exit_code != 0
    assert message in str(found.exception)


def test_a_dry_run_writes_nothing(files, tmp_path):
    told = invoke("audit", files["plain"], files["odd"], *QUICK, "--out", tmp_path / "audit", "--dry-run")
    assert told.count("What would be done") == 2
    assert not (tmp_path / "audit").exists()


def test_a_reference_with_other_tokens_is_refused(files, tmp_path):
    found = CliRunner().invoke(
        app, ["audit", files["plain"], files["odd"], "--reference", "dna-tiny", "--out", str(tmp_path / "audit")]
    )
    assert "do not have the same tokens" in str(found.exception)
