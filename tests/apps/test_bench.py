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


def test_variance_figure(tmp_path):
    found = list(variance([chain_problem(0.5, count=1, target=6)], rows=64, runs=3))
    save_picture(variance_figure(found), tmp_path / "variance.svg")
    assert "<svg" in (tmp_path / "variance.svg").read_text()[:600]
