"""Readers of a clone of the authors' repository, on small files of the same shape; what is wrong in one is named."""

import json
from pathlib import Path

import pytest
import torch
from smoke import write_clone

from infodis.apps.reproduce.audit_texts import LLAMA, datasets
from infodis.apps.reproduce.authors import AuthorsClone
from infodis.apps.reproduce.experiment import Workspace
from infodis.apps.reproduce.ood import BUDGETS, gather_texts
from infodis.apps.reproduce.prompts import TextCutter, WindowShape, as_authors_drew, equally_long
from infodis.errors import InputError
from infodis.models.loading import load
from infodis.models.tokenizers import Characters, text8_style


@pytest.fixture
def clone(tmp_path: Path) -> AuthorsClone:
    write_clone(tmp_path)
    return AuthorsClone(tmp_path)


def _put(clone: AuthorsClone, name: str, content: object) -> None:
    (clone.directory / "data" / name).write_text(json.dumps(content), encoding="utf-8")


def test_sequences_with_their_probabilities(clone: AuthorsClone) -> None:
    _put(clone, "sequence_eval.json", {"ACGT": 0.25, "TTTT": 0.75})
    found = clone.listed()
    assert found.sequences.tolist() == [[0, 1, 2, 3], [3, 3, 3, 3]]  # in the order of our letters, not of theirs
    assert found.probabilities.tolist() == [0.25, 0.75]


def test_rows_of_the_table_are_the_letters_after_a_context(clone: AuthorsClone) -> None:
    """What the file says of AC is what the chain says after A and C: log_prob against the file's number."""
    table = {a + b: {"A": 0.1, "T": 0.2, "G": 0.3, "C": 0.4} for a in "ATGC" for b in "ATGC"}
    table["AC"] = {"A": 0.7, "T": 0.1, "G": 0.15, "C": 0.05}
    _put(clone, "markov_data_table.json", table)
    chain = clone.chain()
    assert chain.order == 2
    for letter, wanted in table["AC"].items():
        row = ["ACGT".index(one) for one in "AC" + letter]
        assert chain.log_prob(row, target=[2], context=[0, 1]) == pytest.approx(torch.tensor(wanted).log().item())


def test_continuations_keep_their_order_and_ids(clone: AuthorsClone) -> None:
    _put(clone, "zh.json", [{"x": "问", "y": "答", "z": "话", "r": "别"}, {"x": "a", "y": "b", "z": "c", "r": "d"}])
    found = clone.continuations("zh.json")
    assert [row["id"] for row in found] == ["0", "1"]
    assert found[0]["z"] == "话"


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("sequence_eval.json", {}, "must map sequences to probabilities; got an empty dict"),
        ("sequence_eval.json", [1], "must map sequences to probabilities; got list"),
        ("sequence_eval.json", {"ACGU": 1.0}, "made of ACGT, got 'ACGU'"),
        ("sequence_eval.json", {"ACG": 0.5, "AC": 0.5}, "of one length"),
        ("sequence_eval.json", {"AC": 0.5, "CA": float("nan")}, "must be numbers from 0 on that add up to 1"),
        ("sequence_eval.json", {"AC": 0.5, "CA": 0.1}, "add up to 1"),
        ("sequence_eval.json", {"AC": 0.5, "CA": "0.5"}, "must be numbers"),
        ("markov_data_table.json", {"A": {"A": 1.0, "T": 0.0, "G": 0.0, "C": 0.0}}, "all 4 contexts of 1 letters"),
        ("markov_data_table.json", {c: {"A": 1.0} for c in "ACGT"}, "A needs a probability for each of ACGT"),
        ("wikitext_llada.json", [], "must be a list of {x, y, z, r}; got an empty list"),
        ("wikitext_llada.json", [{"x": "", "y": "", "z": ""}], "row 0: every row needs .* r is missing"),
        ("wikitext_llada.json", ["text"], "row 0: every row needs the texts"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(clone: AuthorsClone, name: str, content: object, told: str) -> None:
    _put(clone, name, content)
    read = {"sequence_eval.json": clone.listed, "markov_data_table.json": clone.chain}
    with pytest.raises(InputError, match=told) as caught:
        read.get(name, lambda: clone.continuations(name))()
    assert name in str(caught.value)


def test_files_that_are_missing_or_unreadable(clone: AuthorsClone, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"There is no .*zh\.json.*clone of the authors' repository"):
        AuthorsClone(tmp_path / "elsewhere").continuations("zh.json")
    path = clone.directory / "data" / "zh.json"
    path.write_text("{half")
    with pytest.raises(InputError, match=r"zh\.json is not JSON"):
        clone.continuations("zh.json")
    path.write_bytes(b"\xff\xfe\xff")
    with pytest.raises(InputError, match="not UTF-8"):
        clone.continuations("zh.json")
    (clone.directory / "data" / "text8_gpt_eval_data.txt").write_text(" \n")
    with pytest.raises(InputError, match="holds no text"):
        clone.gpt()


def test_continuations_of_a_pair_are_equally_long() -> None:
    """What is shorter than half a response, or has less than half a prompt, is left out on both sides."""
    cut = TextCutter(WindowShape(8, 8))
    records = [
        {"id": "0", "x": "a long enough prompt", "y": "the data goes on", "z": "llama s"},
        {"id": "1", "x": "a long enough prompt", "y": "no", "z": "llama goes on"},
        {"id": "2", "x": "no", "y": "the data goes on", "z": "llama goes on"},
    ]
    found = equally_long(records, cut, text8_style)
    assert [row["id"] for row in found["y"]] == ["0"]
    assert [found[side][0]["response"] for side in "yz"] == ["the dat", "llama s"]
    assert found["y"][0]["prompt"] == "h prompt"


def test_windows_are_drawn_as_the_authors_draw_them() -> None:
    """At different places of both texts; both sides share their prompt and the stretch that they come from."""
    cut = TextCutter(WindowShape(6, 4))
    text, other = "abcdefghijklmnopqrstuvwxyz" * 4, "0123456789" * 3
    true, foreign = as_authors_drew(text, other, 20, cut, seed=0)
    for one, partner in zip(true, foreign, strict=True):
        assert one["prompt"] + one["response"] in text
        assert partner["response"] in other
        assert (one["prompt"], one["id"]) == (partner["prompt"], partner["id"])
    assert len({row["id"].partition("/")[0] for row in true}) > 3
    assert as_authors_drew(text, other, 20, cut, seed=0)[0] == true
    with pytest.raises(InputError, match="28 windows of 4 tokens are wanted; a text of 30 tokens has 27"):
        as_authors_drew(text, other, 28, cut, seed=0)


def test_experiments_take_the_authors_texts(clone: AuthorsClone, tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "run", authors=clone.directory)
    found = {one.name: one for one in datasets(workspace, load("text8-tiny"), 4)}
    assert [len(found["wikitext"].rows), len(found["wikitext"].written[LLAMA])] == [4, 4]
    assert set(found["wikitext"].rows[0]["response"]) <= set("abcdefghijklmnopqrstuvwxyz ")
    texts = gather_texts(workspace, BUDGETS["smoke"], Characters("abcdefghijklmnopqrstuvwxyz "))
    assert len(texts.true) == len(texts.foreign) == BUDGETS["smoke"].main
    assert all(row["response"] in text8_style(clone.gpt()) for row in texts.foreign)
    assert any(one != text8_style(one) for one in texts.untouched)  # capitals and punctuation are told beside
