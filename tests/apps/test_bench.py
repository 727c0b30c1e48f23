"""The commands of `infodis bench`, and the picture that they draw."""

import json

from typer.testing import CliRunner

from infodis.apps.bench.experiments import variance
from infodis.apps.bench.figure import variance_figure
from infodis.apps.bench.problems import chain_problem
from infodis.cli import app
from infodis.figures import save_picture


def test_bench_commands(tmp_path):
    runner = CliRunner()
    done = runner.invoke(app, ["bench", "ratio", "--runs", "2", "--rows", "32", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    records = [json.loads(line) for line in (tmp_path / "ratio.jsonl").read_text().splitlines()]
    assert {r["pair"] for r in records} == {"edited", "edited, shorter", "unrelated", "unrelated, shorter"}
    assert runner.invoke(app, ["bench", "variance", "--rows", "3"]).exit_code == 2
    assert runner.invoke(app, ["version"]).output.strip()
    for command in (["--help"], ["bench", "--help"], ["bench", "variance", "--help"]):
        assert runner.invoke(app, command).exit_code == 0


def test_bench_texts_and_questions(tmp_path):
    text = "the castle was built on a hill above the valley and the river flows through several towns to the sea "
    (tmp_path / "text.txt").write_text(text * 4)
    question = {"x": "Where does the river flow?", "choices": ["To the sea, of course.", "Up the hill."], "label": 0}
    (tmp_path / "questions.jsonl").write_text("".join(json.dumps({"id": n, **question}) + "\n" for n in "ab"))
    files = [str(tmp_path / name) for name in ("text.txt", "questions.jsonl")]
    options = ["--texts", "2", "--runs", "2", "--rows", "8", "--out", str(tmp_path)]
    done = CliRunner().invoke(app, ["bench", "texts", *files, *options])
    assert done.exit_code == 0, done.output
    found = [json.loads(line) for line in (tmp_path / "texts.jsonl").read_text().splitlines()]
    assert [(one["source"], one["control"]) for one in found] == [
        (source, control)
        for source in ("text.txt", "questions")
        for control in ("none", "Neighbours", "Kernel", "Surrogate, Neighbours", "Surrogate, Kernel")
    ]
    assert all(one["llada"] > 0 and one["variance"] >= 0 for one in found)


def test_bench_throughput_of_a_model_on_a_text(tmp_path):
    (tmp_path / "text.txt").write_text("the castle was built on a hill above the valley and the river flows " * 4)
    options = ["--model", "text8-tiny", "--texts", "2", "--out", str(tmp_path)]
    done = CliRunner().invoke(app, ["bench", "throughput", str(tmp_path / "text.txt"), *options])
    assert done.exit_code == 0, done.output
    today, ours = (json.loads(line) for line in (tmp_path / "throughput.jsonl").read_text().splitlines())
    assert (today["way"], ours["way"]) == ("today", "infodis")
    assert today["rows"] == 256 >= ours["rows"] > 200
    assert ours["standard_error"] < today["standard_error"]
    assert CliRunner().invoke(app, ["bench", "throughput", "--model", "text8-tiny"]).exit_code == 2


def test_variance_figure(tmp_path):
    found = list(variance([chain_problem(0.5, count=1, target=6)], rows=64, runs=3))
    save_picture(variance_figure(found), tmp_path / "variance.svg")
    assert "<svg" in (tmp_path / "variance.svg").read_text()[:600]
