"""`infodis variants` as people run it, and the same from Python."""

import csv
import json

import pytest
from command_line import invoke
from scipy.stats import spearmanr

import infodis
from infodis.errors import InputError
from infodis.mutants import WildType

WILD = "ACGTACGT"
ROWS = [
    ("A1C", "", "0.5", "x"),
    ("A1C:G3T", "", "0.1", "y"),
    ("", "ACGTAC", "0.2", "shorter"),
    ("C2G", "AGGTACGT", "0.7", ""),
    ("T4A", "", "-1", ""),
    ("CGTTACG", "", "0.4", "a sequence, as ProteinGym has it"),
]
BAD = {
    "G1C": "has A at position 1",
    "a1c": "lower case",
    "A1X": "nobody knows",
    "A1-": "gap",
    "A1*": "stop",
    "A9C": "--offset",
    "foo": "written like A12G",
    "A1C:A1G": "every position once",
}


@pytest.fixture
def files(tmp_path):
    (tmp_path / "wt.fasta").write_text(f">wild\n{WILD[:4]}\n{WILD[4:]}\n")
    with (tmp_path / "mutants.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("mutant", "mutated_sequence", "DMS_score", "note"), *ROWS])
    return tmp_path


def run(files, *more, code=0):
    how = ("--model", "dna-tiny", "--threads", "1", "--evaluations", "64", "--out", files / "out.csv")
    return invoke("variants", files / "wt.fasta", files / "mutants.csv", *how, *more, code=code)


def read(files):
    with (files / "out.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_command_is_the_call(files):
    found = run(files)
    records = read(files)
    mutants = [mutant or sequence for mutant, sequence, _, _ in ROWS]
    alone = infodis.variants("dna-tiny", WILD, mutants, measured=[float(row[2]) for row in ROWS], evaluations=64)
    for record, one in zip(records, alone, strict=True):
        for name, value in one.scores.items():
            assert record[name] == "" if value is None else float(record[name]) == pytest.approx(value, abs=1e-3)
        assert float(record["standard_error"]) == pytest.approx(one.standard_error, abs=1e-3)
    assert [record["note"] for record in records] == [row[3] for row in ROWS]
    assert [record["DMS_score"] for record in records] == [row[2] for row in ROWS]
    assert records[2]["masked_marginals"] == ""
    summary = json.loads((files / "out.csv.manifest.json").read_text())["summary"]
    expected = spearmanr([float(one["log_ratio"]) for one in records], [float(row[2]) for row in ROWS]).statistic
    assert summary["spearman"]["log_ratio"]["value"] == pytest.approx(expected)
    assert alone.spearman("log_ratio").value == pytest.approx(expected)
    assert summary["forward_passes"] == alone.passes < alone.evaluations == summary["evaluations"]
    assert "saved, since mutants share contexts" in found.output


def test_bad_mutants_are_rejected_with_a_word_each(files):
    with (files / "mutants.csv").open("a", newline="") as file:
        csv.writer(file).writerows(
            [*((mutant, "", "", "") for mutant in BAD), ("", "AC-T", "", ""), ("C2G", WILD, "", "")]
        )
    run(files, "--scores", "masked-marginals", code=3)
    assert len(read(files)) == len(ROWS)
    reasons = [json.loads(line)["reason"] for line in (files / "out.csv.rejected.jsonl").read_text().splitlines()]
    for reason, word in zip(reasons, [*BAD.values(), "gap", "must agree"], strict=True):
        assert word in reason


def test_positions_count_from_an_offset(files):
    (files / "mutants.csv").write_text("mutant\nA24C\n")
    run(files, "--offset", "24", "--scores", "wt_marginals")
    assert float(read(files)[0]["wt_marginals"]) == pytest.approx(
        infodis.variants("dna-tiny", WILD, ["A1C"], scores=["wt_marginals"])[0].scores["wt_marginals"], abs=1e-4
    )


@pytest.mark.parametrize(
    ("content", "words"),
    [(">a\nAC\n>b\nGT\n", "one sequence"), (">a\nacgt\n", "lower case"), (">a\n", "at least one"), ("ACXT", "nobody")],
)
def test_bad_wild_types_are_told(files, content, words):
    (files / "wt.fasta").write_text(content)
    with pytest.raises(InputError, match=words):
        run(files)


def test_mutants_are_made_of_the_wild_type():
    assert WildType("MKTAYIAKQR", 5).mutated("A8G:K12R") == "MKTGYIARQR"
    assert WildType("MKT").mutated("WT") == "MKT"
    with pytest.raises(InputError, match="nothing to score"):
        infodis.variants("dna-tiny", WILD, [])
    with pytest.raises(InputError, match="a number for each of the 1"):
        infodis.variants("dna-tiny", WILD, ["A1C"], measured=[1.0, 2.0])
    with pytest.raises(InputError, match=r"Mutant 0: .*has A at position 1"):
        infodis.variants("dna-tiny", WILD, ["C1A"])
