"""`infodis pairs` as people run it, and the same from Python."""

import csv
import json
from pathlib import Path

import pytest
from command_line import invoke

import infodis
from infodis.errors import InputError

BLIMP = Path(__file__).parents[3] / "shared/data/blimp_1340.jsonl"
ROWS = [
    ("the end of the war", "the of end war the", "order"),
    ("he was born in", "born he in was", "order"),
    ("they are", "they is", "agreement"),
    ("the same", "the same", "agreement"),
]
HOW = ("--model", "text8-tiny", "--threads", "1", "--evaluations", "32")


def blimp(path, rows=ROWS):
    names = ("sentence_good", "sentence_bad", "linguistics_term", "UID")
    path.write_text("".join(json.dumps(dict(zip(names, (*row, "u"), strict=True))) + "\n" for row in rows))
    return path


def records(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_command_is_the_call(tmp_path):
    out = tmp_path / "out.jsonl"
    found = invoke("pairs", blimp(tmp_path / "in.jsonl"), *HOW, "--keep", "UID", "--out", out)
    rows = [{"good": good, "bad": bad, "what": what} for good, bad, what in ROWS]
    alone = infodis.minimal_pairs("text8-tiny", rows, by="what", evaluations=32)
    for record, one in zip(records(out), alone, strict=True):
        assert [record["good"], record["bad"], record["phenomenon"]] == [one.good, one.bad, one.phenomenon]
        for name, score in one.scores.items():
            assert record[f"{name}_right"] == score.right
            assert record[f"{name}_margin"] == pytest.approx(score.margin, abs=1e-3)
            assert record[name] == pytest.approx(score.nats, abs=1e-3)
        assert (record["evaluations"], record["UID"]) == (one.evaluations, "u")
        race = one.scores["nll"]
        assert [record["standard_error"], record["p_value"]] == pytest.approx(
            [race.standard_error, race.p_value], abs=1e-3
        )
    summary = json.loads((tmp_path / "out.jsonl.manifest.json").read_text())["summary"]
    for name in ("nll", "pll", "pll_within_words"):
        total, groups = alone.accuracy(name), alone.by_phenomenon(name)
        assert summary["accuracy"][name]["value"] == total.value
        assert summary["accuracy"][name]["high"] == pytest.approx(total.high, abs=1e-3)
        assert [summary["by_phenomenon"][group][name]["value"] for group in groups] == [
            one.value for one in groups.values()
        ]
        assert total.tied == summary["accuracy"][name]["tied"] == 1
    assert list(summary["by_phenomenon"]) == ["order", "agreement"]
    assert summary["accuracy"]["pll"]["value"] >= 0.5
    assert "agreement" in found.output
    assert "tied, counted as wrong" in found.output


def test_fields_by_option_in_a_table(tmp_path):
    table, out = tmp_path / "in.csv", tmp_path / "out.csv"
    with table.open("w", newline="") as file:
        csv.writer(file).writerows([("correct", "wrong", "rule"), *ROWS])
    how = ("--good", "correct", "--bad", "wrong", "--by", "rule", "--scores", "pll,pll-within-words")
    invoke("pairs", table, *HOW[:4], *how, "--normalise", "token", "--out", out)
    with out.open(newline="") as file:
        found = list(csv.DictReader(file))
    assert [row["phenomenon"] for row in found] == [row[2] for row in ROWS]
    alone = infodis.minimal_pairs("text8-tiny", [row[:2] for row in ROWS], scores=["pll"], sizes="tokens")
    for row, one in zip(found, alone, strict=True):
        assert float(row["pll_margin"]) == pytest.approx(one.scores["pll"].margin, abs=1e-4)
        assert row["nll_margin"] == ""


BAD = [
    ({"sentence_good": "abc"}, "needs a good and a bad sentence", "--field sentence_bad=NAME"),
    ({"sentence_good": "abc", "sentence_bad": ""}, "", "sentence_bad"),
    ({"sentence_good": "abc", "sentence_bad": 3}, "must be a text", "sentence_bad"),
    ({"sentence_good": "abc", "sentence_bad": "ABC"}, "alphabet", "sentence_bad"),
    ({"sentence_good": "a" * 2000, "sentence_bad": "abc"}, "", "sentence_good"),
    ({"sentence_good": "abc", "sentence_bad": "abd", "linguistics_term": ["x"]}, "a name or a number", "linguistics"),
]


def test_bad_rows_are_rejected_with_a_reason(tmp_path):
    rows, out = blimp(tmp_path / "in.jsonl", ROWS[:1]), tmp_path / "out.jsonl"
    with rows.open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row, _, _ in BAD)
    invoke("pairs", rows, *HOW[:4], "--scores", "pll", "--out", out, code=3)
    assert len(records(out)) == 1
    for one, (_, *words) in zip(records(tmp_path / "out.jsonl.rejected.jsonl"), BAD, strict=True):
        for word in words:
            assert word in f"{one['field']}: {one['reason']}"


def test_a_field_that_no_row_has_is_told(tmp_path):
    rows = blimp(tmp_path / "in.jsonl")
    for option, name in (("--good", "sentence_good"), ("--by", "linguistics_term")):
        out = tmp_path / f"{name}.jsonl"
        found = invoke("pairs", rows, *HOW[:4], option, "nothing", "--out", out, code=3)
        assert f"Here {name} is called nothing" in found.output


def test_rows_without_a_phenomenon_are_counted_together(tmp_path):
    rows, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    rows.write_text("".join(json.dumps({"good": good, "bad": bad}) + "\n" for good, bad, _ in ROWS))
    invoke("pairs", rows, *HOW[:4], "--scores", "pll", "--out", out)
    summary = json.loads((tmp_path / "out.jsonl.manifest.json").read_text())["summary"]
    assert summary["by_phenomenon"] == {}
    assert summary["accuracy"]["pll"]["pairs"] == 4


@pytest.mark.parametrize("suffix", ["jsonl", "csv"])
def test_a_page_is_written(tmp_path, suffix):
    out, page, later = tmp_path / f"out.{suffix}", tmp_path / "page.html", tmp_path / "later.html"
    invoke("pairs", blimp(tmp_path / "in.jsonl"), *HOW, "--out", out, "--report", page)
    text = page.read_text()
    assert "Accuracy by phenomenon" in text
    assert "By pll_within_words the good sentence is likelier in" in text
    invoke("report", out, "--out", later)
    assert "By pll_within_words the good sentence is likelier in" in later.read_text()
    if suffix == "jsonl":
        out.write_text(out.read_text() + json.dumps({"id": 1, "quantity": "nll", "value": 1.0}) + "\n")
        with pytest.raises(InputError, match="one kind, got pairs and others"):
            invoke("report", out, "--out", tmp_path / "mixed.html")


def test_wrong_options_are_told(tmp_path):
    rows = blimp(tmp_path / "in.jsonl")
    for words, option in (("some of nll", ("--scores", "ppl")), ("none, token or byte", ("--normalise", "word"))):
        with pytest.raises(InputError, match=words):
            invoke("pairs", rows, *HOW, *option, "--out", tmp_path / "out.jsonl")


def test_pairs_in_python():
    found = infodis.minimal_pairs("text8-tiny", [row[:2] for row in ROWS], scores=["pll"])
    assert len(found) == 4
    assert found[1:3].accuracy().pairs == 2
    assert repr(found).startswith("MinimalPairs(4 under text8-tiny: accuracy by pll 0.")
    assert "95 % intervals" in found._repr_html_()
    assert list(found.to_pandas().columns) == ["good", "bad", "pll_right", "pll_margin", "evaluations"]
    assert [row["name"] for row in found.plot().data] == ["all"]
    with pytest.raises(InputError, match="among the scores, which are pll"):
        found.accuracy("nll")


def test_frames_keep_their_index():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(ROWS, columns=["good", "bad", "rule"], index=["p", "q", "r", "s"])
    found = infodis.minimal_pairs("text8-tiny", frame, by="rule", scores=["pll"])
    assert list(found.to_pandas().index) == ["p", "q", "r", "s"]
    assert list(found.by_phenomenon()) == ["order", "agreement"]


@pytest.mark.parametrize(
    ("pairs", "words"),
    [
        ([], "no pairs were given"),
        ("abc", "must be a list of pairs"),
        (["ab"], r"Pair 0: A pair must be a good and a bad sentence, got 'ab'"),
        ([("a", "b", "c")], "Pair 0: A pair must be"),
        ([("a", "b"), ("a", None)], "Pair 1: A sentence must be a text, got None"),
        ([("a", "B")], "Pair 0: The alphabet is"),
        ([{"good": "a"}], "Pair 0: A pair must have two sentences, here in the field sentence_bad or bad, got good"),
        ([("a" * 2000, "b")], "Row 0: A row must have at most"),
        ([("", "b")], "Pair 0: A text must have at least one token"),
    ],
)
def test_bad_pairs_are_told(pairs, words):
    with pytest.raises(InputError, match=words):
        infodis.minimal_pairs("text8-tiny", pairs, scores=["pll"])


@pytest.mark.skipif(not BLIMP.is_file(), reason="the data are not here")
def test_blimp_reads_as_it_is(tmp_path):
    """A model of letters refuses its capital letters, row by row, each with the reason."""
    out = tmp_path / "out.jsonl"
    found = invoke("pairs", BLIMP, *HOW[:4], "--scores", "pll", "--limit", "3", "--out", out, code=3)
    assert "3 rows" in found.output
    small = tmp_path / "small.jsonl"
    lines = [json.loads(line) for line in BLIMP.read_text().splitlines()[:2]]
    for row in lines:
        for name in ("sentence_good", "sentence_bad"):
            row[name] = "".join(letter for letter in row[name].lower() if letter.isalpha() or letter == " ")
    small.write_text("".join(json.dumps(row) + "\n" for row in lines))
    invoke("pairs", small, *HOW[:4], "--scores", "pll", "--out", tmp_path / "small.out.jsonl")
    assert {one["phenomenon"] for one in records(tmp_path / "small.out.jsonl")} == {"island_effects"}
