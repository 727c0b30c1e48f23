"""Data that is not shipped: from a file, by its name on the hub, or an error that says how to get it."""

import gzip
import json
import math
from pathlib import Path

import pytest

from infodis.apps.reproduce import data, ood_texts
from infodis.apps.reproduce.data import ARC, GPT2, HELD_OUT, HELLASWAG, PAIRS, PIQA, TO_TRAIN_ON, TRIPLETS, WIKITEXT
from infodis.apps.reproduce.experiment import Workspace
from infodis.apps.reproduce.ratio import TripletVariances
from infodis.apps.reproduce.toys import ToyRecipe
from infodis.apps.reproduce.triplets import Triplet, questions, read_response, triplets, triplets_key
from infodis.errors import InputError
from infodis.estimate import nll
from infodis.models.loading import load
from infodis.train.config import ModelConfig, OptimConfig


class Hub:
    """Stands for a library that fetches."""

    def __init__(self, rows: list[dict]) -> None:
        self.rows, self.asked = rows, []

    def load_dataset(self, name: str, part: str | None, *, split: str) -> list[dict]:
        self.asked.append((name, part, split))
        return self.rows


@pytest.fixture
def hub(monkeypatch):
    def answering(*rows: dict) -> Hub:
        found = Hub(list(rows))
        monkeypatch.setattr(data.importlib, "import_module", lambda name: found)
        return found

    return answering


@pytest.fixture
def offline(monkeypatch):
    def refuse(name: str) -> None:
        raise ConnectionError("no route\nto anywhere")

    monkeypatch.setattr(data.importlib, "import_module", refuse)


def _written(path: Path, *rows: dict) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def test_a_file_comes_before_the_hub(hub, tmp_path):
    workspace = Workspace(tmp_path, data=tmp_path)
    asked = hub({"text": "from "}, {"text": "afar"})
    assert WIKITEXT.get(workspace) == "from afar"
    assert asked.asked == [("Salesforce/wikitext", "wikitext-2-raw-v1", "train")]
    (tmp_path / WIKITEXT.file).write_text("at home")
    assert WIKITEXT.get(workspace) == "at home"
    assert len(asked.asked) == 1


def test_what_is_nowhere_is_named_with_where_to_get_it(offline, tmp_path):
    workspace = Workspace(tmp_path, data=tmp_path)
    with pytest.raises(
        InputError, match=r"wiki.train.raw is needed and not in .*Salesforce/wikitext.*--data.*no route"
    ):
        WIKITEXT.get(workspace)
    with pytest.raises(InputError, match=r"human_vs_llm_180.jsonl is needed .*fast-detect-gpt.*--data\.$"):
        PAIRS.get(workspace)  # not on the hub


def test_questions_of_the_hub_read_like_those_of_a_file(hub, tmp_path):
    workspace = Workspace(tmp_path, data=tmp_path)
    hub(
        {
            "ind": 4,
            "activity_label": "Pets",
            "ctx": "A cat [title] sits",
            "endings": ["up", "[step] down"],
            "label": "1",
        }
    )
    assert HELLASWAG.get(workspace) == [{"id": "4", "x": "Pets: A cat. sits", "choices": ["up", "down"], "label": 1}]
    hub({"id": "m", "question": "Why?", "choices": {"text": ["so", "not"], "label": ["A", "B"]}, "answerKey": "B"})
    assert ARC.get(workspace) == [{"id": "m", "x": "Question: Why?", "choices": ["so", "not"], "label": 1}]
    hub({"goal": "To sit,", "sol1": "stand.", "sol2": "sit.", "label": 1})
    assert questions(workspace, PIQA) == [Triplet("0", "To sit,", "sit.", "stand.")]


def test_all_pairs_of_a_safe_and_an_unsafe_response(hub, tmp_path):
    rows = [("p", "a", True), ("p", "b", False), ("q", "c", True), ("p", "d", True), ("r", "e", False)]
    asked = hub(*({"prompt": p, "response": r, "is_safe": safe} for p, r, safe in rows))
    name, found = triplets(Workspace(tmp_path, size="full", data=tmp_path))
    assert (name, asked.asked[0][0]) == ("BeaverTails", "PKU-Alignment/BeaverTails")
    assert [(one.prompt, one.right, one.wrong) for one in found] == [("p", "a", "b"), ("p", "d", "b")]


def test_beavertails_is_paired_from_a_file_too(tmp_path):
    rows = [{"prompt": "p", "response": text, "is_safe": safe} for text, safe in (("a", True), ("b", False))]
    _written(tmp_path / "published.jsonl", *rows, {"prompt": "q", "response": "c", "is_safe": True})
    assert triplets(Workspace(tmp_path, data=tmp_path / "published.jsonl"))[1] == [Triplet("0", "p", "a", "b")]
    _written(tmp_path / "published.jsonl", {**rows[0], "is_safe": "yes"})
    with pytest.raises(InputError, match=r"line 1: is_safe must be true or false"):
        triplets(Workspace(tmp_path, data=tmp_path / "published.jsonl"))


def test_triplets_of_a_user_come_first(tmp_path):
    row = {"prompt": "p", "chosen": "yes", "rejected": "no"}
    _written(tmp_path / "mine.jsonl", row)
    assert triplets(Workspace(tmp_path, data=tmp_path / "mine.jsonl")) == (
        "mine.jsonl",
        [Triplet("1", "p", "yes", "no")],
    )
    _written(tmp_path / PIQA.file, {"id": "z", "x": "p", "choices": ["yes", "no"], "label": 0})
    assert triplets(Workspace(tmp_path, data=tmp_path)) == ("PIQA", [Triplet("z", "p", "yes", "no")])
    _written(tmp_path / TRIPLETS.file, row)
    assert triplets(Workspace(tmp_path, data=tmp_path))[0] == TRIPLETS.file


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('{"id": "a", "x": "Why?", "choices": ["b", "c"]}', r"line 1: every row needs x, choices, label; no label"),
        ("{", r"line 1: Not JSON"),
        ('{"id": "a", "x": "Why?", "choices": ["b", "c"], "label": 2}', r"Question a: label must be the number"),
        ('{"id": "a", "x": "Why?", "choices": "bc", "label": 0}', r"line 1: choices must be a list"),
        ('{"id": "a", "x": 5, "choices": ["b", "c"], "label": 0}', r"line 1: x must be a text"),
        ('{"id": "a", "x": "Why?", "choices": ["b", 2], "label": 0}', r"Question a: choices must be texts"),
        ('{"id": "a", "x": "Why?", "choices": ["b"], "label": 0}', r"no wrong choice"),
    ],
)
def test_broken_questions_are_told_with_their_place(line, told, tmp_path):
    (tmp_path / PIQA.file).write_text(line + "\n")
    with pytest.raises(InputError, match=told):
        questions(Workspace(tmp_path, data=tmp_path), PIQA)


def test_other_texts_under_the_same_names_are_refused(tmp_path):
    """Rows without an id are called by their lines: results of one file must not be taken for those of another."""
    for name, word in (("one", "water"), ("two", "stone")):
        row = {"prompt": "Tea is made of", "chosen": f"hot {word}", "rejected": f"cold {word}"}
        _written(tmp_path / f"{name}.jsonl", row, {**row, "prompt": "Ice is made of"})
    asked = TripletVariances(Workspace(tmp_path / "out", data=tmp_path / "one.jsonl"))
    asked.workspace.keep("triplets", {**asked.size, "texts": triplets_key(asked.kept)}, lambda: None)
    with pytest.raises(InputError, match="texts was"):
        TripletVariances(Workspace(tmp_path / "out", data=tmp_path / "two.jsonl")).variances()


def test_a_response_that_cannot_be_spelled_does_not_fit():
    model = load("text8-tiny")
    assert read_response(model, "Why?", "...", window=64) is None
    assert read_response(model, "Why?", "so", window=64) is not None


def test_text_that_is_not_utf8_is_refused(tmp_path):
    (tmp_path / WIKITEXT.file).write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="not UTF-8"):
        WIKITEXT.get(Workspace(tmp_path, data=tmp_path))


def test_the_papers_network_is_trained_in_tokens_of_gpt2(tmp_path):
    """The same steps with a tokenizer of the same kind and a network of a toy's size."""
    data, symbols = tmp_path / "data", "abcdefghijklmnopqrstuvwxyz\u0120"
    (data / "gpt2_bpe").mkdir(parents=True)
    pieces = {piece: number for number, piece in enumerate([*symbols, "th", "the"])}
    (data / "gpt2_bpe" / "encoder.json").write_text(json.dumps(pieces), encoding="utf-8")
    (data / GPT2.file).write_text("#version: 0.2\nt h\nth e\n", encoding="utf-8")
    for text in (HELD_OUT, TO_TRAIN_ON):
        (data / text.file).write_bytes(gzip.compress(b"the cat and the dog " * 50))
    workspace = Workspace(tmp_path / "out", size="full", data=data)
    model = ModelConfig(length=32, width=16, blocks=1, heads=2)
    recipe = ToyRecipe(model, OptimConfig(steps=2, batch=2, warmup=0), letters=500)
    found = load(ood_texts.as_in_the_paper(workspace, recipe))
    assert found.tokenizer.pieces(found.encode("the cat").tolist()) == ["the", "\u0120", "c", "a", "t"]
    assert math.isfinite(nll(found, found.encode("the cat"), evaluations=8).value)
    again = ood_texts.as_in_the_paper(workspace, recipe)
    assert load(again).fingerprint == found.fingerprint
