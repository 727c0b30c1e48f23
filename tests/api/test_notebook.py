"""What notebooks show: well-formed, escaped, without scripts, with what counts in it."""

import xml.etree.ElementTree as ElementTree

import pytest
import torch

import infodis
from infodis import notebook
from infodis.oracle import Independent

MODEL = infodis.load("text8-tiny", device="cpu")
COIN = Independent(torch.tensor([0.25, 0.75]))
FEW = {"evaluations": 32}


def parsed(value):
    shown = value._repr_html_()
    assert "<script" not in shown
    assert "<style" not in shown
    return ElementTree.fromstring(shown)


@pytest.mark.parametrize(
    "make",
    [
        lambda: infodis.nll(MODEL, "the capital of france", **FEW),
        lambda: infodis.nll(COIN, [0, 1]),
        lambda: infodis.log_ratio(MODEL, "there", "their", **FEW),
        lambda: infodis.bounds(MODEL, "the capital of france", orders=16),
        lambda: infodis.score(MODEL, ["the capital of france", "abc"], **FEW),
        lambda: infodis.score(MODEL, "abc")[0],
        lambda: infodis.doctor(infodis.load("dna-tiny")),
        lambda: infodis.perplexity(MODEL, "the capital of france"),
    ],
    ids=["estimate", "exact", "ratio", "bounds", "scores", "score", "doctor", "perplexity"],
)
def test_results_are_well_formed(make):
    found = make()
    assert parsed(found).tag == "table"
    assert "\n" not in repr(found)


def test_an_impossible_text_shows_itself():
    sure = Independent(torch.tensor([1.0, 0.0]))
    assert "inf" in ElementTree.tostring(parsed(infodis.nll(sure, [0, 1]))).decode()
    assert "inf" in infodis.score(sure, [[0, 1], [0, 0]])._repr_html_()


def test_hostile_text_is_escaped():
    hostile = '<script>alert("x")</script>\x1b[31m'
    characters = "".join(sorted(set(hostile)))
    coin = Independent(torch.full((len(characters),), 1 / len(characters)))
    scores = infodis.score(coin, [hostile] * 12, tokenizer=f"characters:{characters}", **FEW)
    shown = scores._repr_html_()
    assert "<script" not in shown
    assert "\x1b" not in shown
    ElementTree.fromstring(shown)
    assert ElementTree.fromstring(notebook.table((hostile, "b"), [], caption=hostile)).tag == "table"


def test_scores_have_error_bars_and_coloured_tokens():
    table = parsed(infodis.score(MODEL, ["the capital of france"] * 25, **FEW))
    assert len(table.findall(".//svg")) == 20
    assert len(table.findall(".//span[@title]")) == 10 * 21
    assert "the first 20 of 25" in "".join(table.find("caption").itertext())


def test_an_error_bar_lies_where_it_should():
    bar = ElementTree.fromstring(notebook.error_bar((5.0, 0.0, 10.0), (0.0, 10.0)))
    line, circle = bar
    assert (float(line.get("x1")), float(line.get("x2")), float(circle.get("cx"))) == (3.0, 117.0, 60.0)
