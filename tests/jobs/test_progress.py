"""What a run says while it works: that things load, and how far it is, before the first shard is done."""

import io
import json
import re
import subprocess
import sys

import pytest
from command_line import invoke
from instant import InstantScore

import infodis
from infodis.cli import screen
from infodis.cli.running import RowsProgress
from infodis.estimate import Request
from infodis.jobs.inputs import InputSpec
from infodis.jobs.local import LocalProcesses
from infodis.jobs.run import InProcess, RunPlan, RunProgress, run

ROWS, EVALUATIONS = 6, 64


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"text": "letters of a row " + "abcdef"[n]}) + "\n" for n in range(ROWS)))
    return path


def states(rows, executor):
    found = []
    job = InstantScore(request=Request(evaluations=EVALUATIONS))
    plan = RunPlan(rows.with_name("out.jsonl"), job, InputSpec(str(rows), ROWS), executor)
    run(plan, found.append)
    return found


@pytest.mark.parametrize("executor", [InProcess(), LocalProcesses(1)], ids=["here", "worker"])
def test_a_single_shard_moves(rows, executor, monkeypatch):
    monkeypatch.setattr("infodis.models.model.TOKENS_AT_ONCE", 24 * 32)  # batches of 32 rows of 18 tokens
    found = states(rows, executor)
    assert [state.loaded for state in found] == [False] + [True] * (len(found) - 1)
    assert (found[1].passes, found[1].about) == (0, 0)
    middle = [state.about for state in found if state.passes and not state.done]
    assert len(middle) > 2 if isinstance(executor, InProcess) else middle  # a worker has batches of its own size
    assert middle == sorted(set(middle))
    assert found[-1].about == found[-1].done == ROWS
    assert found[-1].passes == found[-1].totals["evaluations"]


def test_rows_under_way_go_by_forward_passes():
    begun = {"rows": 10, "done": 0, "before": 0, "totals": {}, "earlier": {}, "passes_per_row": 100.0}
    assert RunProgress(**begun, passes=250).about == 2.5
    assert RunProgress(**begun, passes=10_000).about == 10  # never more than there are
    resumed = {**begun, "done": 6, "before": 4, "totals": {"evaluations": 500.0}, "earlier": {"evaluations": 400.0}}
    assert RunProgress(**resumed, passes=150).about == 7  # two rows took 100: another 50 are a row


def test_nobody_is_told_of_passes_outside():
    from infodis.evaluate import counting_passes
    from infodis.oracle import MarkovChain

    chain, told = MarkovChain.random(order=1, vocab_size=3), []
    with counting_passes(told.append):
        estimate = infodis.nll(chain, [0, 1, 2] * 4, evaluations=16)
    infodis.nll(chain, [0, 1, 2] * 4, evaluations=16)
    assert sum(told) == estimate.evaluations


def state(**changes):
    usual = {"rows": 24, "done": 0, "before": 0, "totals": {}, "earlier": {}, "passes_per_row": 16.0}
    return RunProgress(**{**usual, **changes})


def shown(monkeypatch, *, terminal):
    """What a run of a few states shows, where a second passes between two looks at the clock."""
    monkeypatch.setenv("TERM", "xterm")
    console = screen.Screen(width=200)
    console.file, console._force_terminal, console.is_interactive = io.StringIO(), terminal, terminal
    seconds = iter(range(1000))
    for module in ("screen", "running"):
        monkeypatch.setattr(f"infodis.cli.{module}.progress_console", console)
    monkeypatch.setattr("infodis.cli.running.time.monotonic", lambda: float(next(seconds)))
    with RowsProgress("some/model") as progress:
        for one in (state(loaded=False), state(loaded=False), state(), state(passes=32), state(passes=64)):
            progress.show(one)
            progress.bar.refresh()
    return console.file.getvalue()


def test_a_log_says_that_the_model_loads_and_then_how_far_it_is(monkeypatch):
    lines = shown(monkeypatch, terminal=False).strip().splitlines()
    assert lines[0] == "loading some/model ..."
    assert re.fullmatch(r"2/24 rows, \S+ rows/s, \d+ forward passes/s, \S+ seconds left", lines[1])
    assert len(lines) == 2  # the next after ten seconds


def test_a_terminal_gets_a_bar(monkeypatch):
    text = shown(monkeypatch, terminal=True)
    assert "loading some/model ..." in text
    assert "2/24 rows" in text
    assert "rows/s" in text


def test_the_command_line_says_what_it_loads(rows, tmp_path):
    command = [sys.executable, "-m", "infodis", "score", rows, "--out", tmp_path / "o.jsonl", "--threads", "1"]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=True)
    lines = done.stderr.splitlines()
    assert lines[:2] == ["loading torch ...", "loading text8-tiny ..."]
    assert "rows/s" in lines[2]
    assert invoke(*command[3:]).stderr == ""  # nothing to do: the model is not loaded


def test_the_version_has_two_names():
    assert invoke("--version").stdout == invoke("version").stdout == f"{infodis.__version__}\n"
