"""Records of runs as files: JSON lines, CSV, Parquet; and fields of the input that they carry along."""

import csv
import json
import math

import pytest
from command_line import invoke

import infodis
from infodis.errors import InputError

TEXTS = ["the cat sat on the mat", "seven wizards", "a"]
FEW = ["--evaluations", "16", "--threads", "1"]


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"id": n, "text": text}) + "\n" for n, text in enumerate(TEXTS)))
    return path


def test_csv_holds_what_jsonl_holds(rows, tmp_path):
    """Lists are JSON in a cell; a page made of either is the same but for its provenance."""
    from infodis.jobs.outputs import read_csv
    from infodis.jobs.scores import ScoreJob
    from infodis.models.spec import ModelSpec

    options = [*FEW, "--per-token", "--shard-rows", "2"]
    invoke("score", rows, "--out", tmp_path / "out.jsonl", *options)
    invoke("score", rows, "--out", tmp_path / "out.csv", *options)
    with (tmp_path / "out.csv").open(newline="") as file:
        first = next(csv.DictReader(file))
    assert json.loads(first["per_token"]) == read(tmp_path / "out.jsonl")[0]["per_token"]
    columns = ScoreJob(ModelSpec("text8-tiny"), per_token=True).columns
    for told, record in zip(read_csv(tmp_path / "out.csv", columns), read(tmp_path / "out.jsonl"), strict=True):
        assert {name: value for name, value in told.items() if value is not None} == {**record, "id": str(record["id"])}
    assert "Nothing was left to do" in invoke("score", rows, "--out", tmp_path / "out.csv", *options).output
    invoke("report", tmp_path / "out.csv", "--out", tmp_path / "csv.html")
    assert "over 3 rows" in (tmp_path / "csv.html").read_text()
    (tmp_path / "bad.csv").write_text("id,value\n1\n")
    with pytest.raises(InputError, match="more or fewer cells"):
        invoke("report", tmp_path / "bad.csv", "--out", tmp_path / "bad.html")


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".parquet"])
def test_an_output_is_the_same_after_a_stop(tmp_path, suffix, monkeypatch):
    """Stopped after its first shard and resumed, byte for byte, with fields that are carried along."""
    from infodis.jobs.run import Work

    path, do = tmp_path / "rows.jsonl", Work.do
    path.write_text("".join(json.dumps({"text": text, "n": n}) + "\n" for n, text in enumerate("abcd")))
    options = [*FEW, "--shard-rows", "1", "--keep", "all"]
    invoke("score", path, "--out", tmp_path / f"whole{suffix}", *options)

    def stopped(self, shard, *more):
        if shard == 2:
            raise KeyboardInterrupt
        return do(self, shard, *more)

    with monkeypatch.context() as patch:
        patch.setattr(Work, "do", stopped)
        invoke("score", path, "--out", tmp_path / f"again{suffix}", *options, code=130)
    invoke("score", path, "--out", tmp_path / f"again{suffix}", *options)
    assert (tmp_path / f"again{suffix}").read_bytes() == (tmp_path / f"whole{suffix}").read_bytes()


KEPT = [
    {"id": "x", "text": "ab", "label": 'fine, "yes"\nno', "year": 1990, "model": "gpt", "tags": ["a", "b"], "mixed": 1},
    {"id": "y", "text": "cd", "label": "=1+1", "year": 2.5, "model": "gpt", "input_model": "m", "mixed": {"a": [None]}},
]


def kept_rows(tmp_path, suffix):
    path = tmp_path / f"kept{suffix}"
    if suffix == ".parquet":
        arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        plain = [{name: value for name, value in row.items() if name != "mixed"} for row in KEPT]
        parquet.write_table(arrow.Table.from_pylist([{**dict.fromkeys(KEPT[1]), **row} for row in plain]), path)
    elif suffix == ".csv":
        with path.open("w", newline="") as file:
            table = csv.DictWriter(file, ["id", "text", "label", "year", "model", "input_model"], extrasaction="ignore")
            table.writeheader()
            table.writerows(KEPT)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in KEPT))
    return path


def records_of(path):
    if path.suffix == ".parquet":
        return pytest.importorskip("pyarrow.parquet").read_table(path).to_pylist()
    if path.suffix == ".csv":
        with path.open(newline="") as file:
            return list(csv.DictReader(file))
    return read(path)


@pytest.mark.parametrize("source", [".jsonl", ".csv", ".parquet"])
@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".parquet"])
def test_fields_of_the_input_are_carried_along(tmp_path, source, suffix):
    path, out = kept_rows(tmp_path, source), tmp_path / f"out{suffix}"
    invoke("score", path, "--out", out, *FEW, "--keep", "label,year", "--keep", "model")
    found = records_of(out)
    assert [one["label"] for one in found] == [row["label"] for row in KEPT]
    assert [float(one["year"]) for one in found] == [1990.0, 2.5]
    assert [one["input_model"] for one in found] == ["gpt", "gpt"]
    assert {one["model"] for one in found} == {infodis.load("text8-tiny").fingerprint}
    assert "tags" not in found[0]


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".parquet"])
def test_all_fields_are_carried_along(tmp_path, suffix):
    path, out = kept_rows(tmp_path, ".jsonl"), tmp_path / f"out{suffix}"
    invoke("score", path, "--out", out, *FEW, "--keep", "all")
    first, second = records_of(out)
    assert (first["text"], second["input_model"], second["input_input_model"]) == ("ab", "gpt", "m")
    mixed = second["mixed"] if suffix == ".jsonl" else json.loads(second["mixed"])
    assert mixed == {"a": [None]}
    tags = json.loads(first["tags"]) if suffix == ".csv" else first["tags"]
    assert tags == ["a", "b"]


@pytest.mark.parametrize("source", [".jsonl", ".csv", ".parquet"])
def test_a_field_to_keep_that_no_row_has_is_told_before_the_work(tmp_path, source):
    with pytest.raises(InputError, match=r"no row of .* has lable. Name others, or all"):
        invoke("score", kept_rows(tmp_path, source), "--out", tmp_path / "out.jsonl", *FEW, "--keep", "lable,year")
    assert not (tmp_path / "out.jsonl").exists()


def test_values_that_json_does_not_know_are_carried_along(tmp_path):
    import datetime

    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    row = {"text": "a", "day": datetime.date(2024, 2, 29), "rate": math.nan, "raw": b"\xff", "at": {"x": [math.inf]}}
    parquet.write_table(arrow.Table.from_pylist([row]), tmp_path / "rows.parquet")
    invoke("score", tmp_path / "rows.parquet", "--out", tmp_path / "out.jsonl", *FEW, "--keep", "all")
    (found,) = read(tmp_path / "out.jsonl")
    assert (found["day"], found["rate"], found["at"]) == ("2024-02-29", None, {"x": [None]})
    deep = "[" * 900 + "]" * 900
    row = '{"text": "a", "deep": DEEP, "half": "\\ud800", "long": LONG}'
    (tmp_path / "rows.jsonl").write_text(row.replace("DEEP", deep).replace("LONG", "1" * 99))
    for name in ("out.csv", "out.parquet"):
        invoke("score", tmp_path / "rows.jsonl", "--out", tmp_path / name, *FEW, "--keep", "all")
        assert records_of(tmp_path / name)[0]["half"] == "?"
