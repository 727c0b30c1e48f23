"""Nothing of the user's is removed or replaced: only files that we wrote are, and only by a result that is complete."""

import errno
import json
import os

import pytest
from collisions import trial
from instant import InstantScore
from typer.testing import CliRunner

from infodis.cli import app
from infodis.errors import InfodisError, InputError
from infodis.estimate import Request
from infodis.files import (
    LOCK,
    MANIFEST,
    UNFINISHED,
    atomic_directory,
    check_apart,
    locked,
    result_file,
    result_text,
)
from infodis.jobs import store as stores
from infodis.jobs.inputs import InputSpec
from infodis.jobs.run import InProcess, RunPlan, run

MINE = '{"text": "mine"}\n'


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A current directory with some rows, the last one bad."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").write_text('{"text": "abc"}\n{"text": "xyz"}\n{"text": 3}\n')
    return tmp_path


def score(rows, out, *, resume=True, settings=None, watch=lambda state: None):
    """As `infodis score` does, without a network to speak of."""
    job = InstantScore(request=Request(evaluations=2))
    plan = RunPlan(out, job, InputSpec(str(rows), 1), InProcess(), settings or {}, resume=resume)
    return run(plan, watch)


def infodis(*words):
    found = CliRunner().invoke(app, [str(word) for word in words])
    if found.exception is not None and not isinstance(found.exception, SystemExit):
        raise found.exception
    assert found.exit_code in (0, 3), found.output
    return found.output


def content(directory):
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


# Results and what was there before


@pytest.mark.parametrize("anew", [[], ["--no-resume"]])
def test_an_input_is_no_output(here, anew):
    os.link("rows.jsonl", "twin.jsonl")
    (here / "link.jsonl").symlink_to("rows.jsonl")
    (here / "out.jsonl.rejected.jsonl").write_text(MINE)
    before = content(here)
    for source, out in (
        ("rows.jsonl", "rows.jsonl"),
        ("rows.jsonl", "twin.jsonl"),
        ("rows.jsonl", "link.jsonl"),
        ("link.jsonl", "./rows.jsonl"),
        ("out.jsonl.rejected.jsonl", "out.jsonl"),
    ):
        with pytest.raises(InputError, match=r"is read by the same command\. Choose another"):
            infodis("score", source, "--out", out, *anew)
        assert content(here) == before
    infodis("score", "rows.jsonl", "--out", "ours.jsonl", "--evaluations", "2")
    ours = (here / "ours.jsonl").read_bytes()
    with pytest.raises(InputError, match="is read by the same command"):  # though we wrote it
        infodis("score", "ours.jsonl", "--field", "text=pieces", "--out", "ours.jsonl", *anew)
    assert (here / "ours.jsonl").read_bytes() == ours


@pytest.mark.parametrize("resume", [True, False])
@pytest.mark.parametrize(
    "name",
    [
        "out.jsonl",
        "out.jsonl.rejected.jsonl",
        "out.jsonl.manifest.json",
        "out.jsonl.work",
        "out.jsonl.work/notes.txt",
        "out.jsonl.work/settings.json",
        f"out.jsonl.work/{LOCK}",
    ],
)
def test_a_foreign_file_in_the_way_is_refused(here, name, resume):
    path = here / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(MINE)
    before = content(here)
    with pytest.raises(InputError, match=r"is there already|was not made by infodis|must be") as told:
        score(here / "rows.jsonl", here / "out.jsonl", resume=resume)
    assert content(here) == before
    assert name.split("/")[0] in str(told.value)
    assert "--no-resume" not in str(told.value)


def test_old_results_stay_until_the_new_ones_are_complete(here):
    rows, out = here / "rows.jsonl", here / "out.jsonl"
    score(rows, out)
    old = content(here)
    with pytest.raises(InputError, match="There is no file"):
        score(here / "mistyped.jsonl", out, resume=False)
    assert content(here) == old

    def stop(state):
        if state.done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        score(rows, out, resume=False, settings={"seed": 1}, watch=stop)
    assert {path: content(here)[path] for path in old} == old
    seen = []
    assert score(rows, out, settings={"seed": 1}, watch=lambda state: seen.append(state.before)).fresh
    assert seen[0] == 2  # the new run goes on, beside the finished old one
    assert json.loads(stores.manifest_path(out).read_text())["settings"]["seed"] == 1
    rows.write_text('{"text": "abc"}\n')
    assert score(rows, out, resume=False).rejected is None
    assert not stores.rejected_path(out).exists()  # it was ours


def test_finished_shards_survive_an_input_that_cannot_be_read(here):
    rows, out = here / "rows.jsonl", here / "out.jsonl"

    def stop(state):
        if state.done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        score(rows, out, watch=stop)
    with pytest.raises(InputError, match="There is no file"):
        score(here / "mistyped.jsonl", out, resume=False)
    seen = []
    score(rows, out, watch=lambda state: seen.append(state.before))
    assert seen[0] == 2


def test_what_the_user_changed_is_the_users(here):
    rows, out = here / "rows.jsonl", here / "out.jsonl"
    score(rows, out)
    for path in (out, stores.rejected_path(out)):
        ours = path.read_bytes()
        path.write_text(MINE)
        with pytest.raises(InputError, match="is not what infodis wrote"):
            score(rows, out, resume=False)
        assert path.read_text() == MINE
        path.write_bytes(ours)
    score(rows, out, resume=False)


def test_a_file_that_appears_during_a_run_is_kept(here):
    rows, out = here / "rows.jsonl", here / "out.jsonl"
    with pytest.raises(InputError, match="is there already"):
        score(rows, out, watch=lambda state: out.write_text(MINE))
    assert out.read_text() == MINE
    out.unlink()
    assert score(rows, out).fresh


def test_two_outputs_share_no_file(here):
    pytest.importorskip("pyarrow")
    score(here / "rows.jsonl", here / "b.jsonl")
    first = content(here)
    score(here / "rows.jsonl", here / "b.parquet")
    assert {path: content(here)[path] for path in first} == first
    assert not {*stores.places(here / "b.jsonl")} & {*stores.places(here / "b.parquet")}


def test_a_work_directory_on_another_file_system(here, monkeypatch):
    """Or what looks like one: a rename across directories fails."""
    replace = os.replace

    def elsewhere(source, target):
        if os.path.dirname(source) != os.path.dirname(target):
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        replace(source, target)

    score(here / "rows.jsonl", here / "whole.jsonl")
    monkeypatch.setattr(os, "replace", elsewhere)
    (here / "disk").mkdir()
    (here / "out.jsonl.work").symlink_to(here / "disk")
    (here / f"{UNFINISHED}{os.uname().nodename}.1.out.jsonl").write_text("left by a kill")
    score(here / "rows.jsonl", here / "out.jsonl")
    assert (here / "out.jsonl").read_bytes() == (here / "whole.jsonl").read_bytes()
    assert not list(here.rglob(f"{UNFINISHED}*"))
    assert not list((here / "disk").iterdir())


def test_results_without_a_manifest_of_their_own(here):
    """Pages, pictures, figures: the directory's manifest names them."""
    page = here / "page.html"
    page.write_text(MINE)
    with pytest.raises(InputError, match="is not what infodis wrote"):
        result_text(page, "ours")
    assert page.read_text() == MINE
    page.unlink()
    for text in ("one", "two", "two"):
        result_text(page, text)
    assert page.read_text() == "two"
    page.write_text("two, edited")
    with pytest.raises(InputError, match="is not what infodis wrote"):
        result_text(page, "three")

    def late():
        with result_file(here / "late.svg") as unfinished:
            unfinished.write_text("ours")
            (here / "late.svg").write_text(MINE)

    with pytest.raises(InputError, match="is there already"):
        late()
    assert (here / "late.svg").read_text() == MINE
    (here / "link.html").symlink_to("nowhere.html")
    with pytest.raises(InputError, match="is a link"):
        result_text(here / "link.html", "ours")
    (here / "deep").mkdir()
    (here / "deep" / MANIFEST).write_text(MINE)
    (here / "deep" / "page.html").write_text(MINE)
    with pytest.raises(InputError, match="something else"):
        result_text(here / "deep" / "page.html", "ours")
    with pytest.raises(InputError, match="something else"):
        result_text(here / "deep" / "new.html", "ours")
    assert set(content(here / "deep").values()) == {MINE.encode()}


@pytest.mark.parametrize(
    "words",
    [
        ["curve", "rows.jsonl", "--out", "mine"],
        ["curve", "rows.jsonl", "--plot", "mine.svg"],
        ["curve", "rows.jsonl", "--out", "new.svg", "--plot", "new.svg"],
        ["bounds", "rows.jsonl", "--out", "mine"],
        ["bounds", "rows.jsonl", "--plot", "mine.svg"],
        ["report", "scores.jsonl", "--out", "mine.html"],
        ["score", "rows.jsonl", "--report", "mine.html"],
        ["audit", "rows.jsonl", "rows.jsonl", "--out", "some"],
        ["bench", "ratio", "--out", "some"],
        ["train", "config.toml", "--out", "some"],
        ["reproduce", "theory", "--out", "some"],
        ["reproduce", "all", "--out", "some"],
        ["export", "dna-tiny", "some"],
    ],
    ids=lambda words: " ".join(words[:1] + words[-2:]),
)
def test_commands_refuse_before_the_work(here, words, monkeypatch):
    from training_runs import prepare

    prepare(here)
    (here / "some" / "laptop" / "theory").mkdir(parents=True)
    mine = "mine", "mine.svg", "mine.html", "some/audit.json", "some/ratio.jsonl", "some/metrics.jsonl"
    for name in (*mine, "some/laptop/report.html", "some/laptop/theory/notes.txt"):
        (here / name).write_text(MINE)
    (here / "scores.jsonl").write_text('{"id": 1, "value": 1.5, "standard_error": 0.5}\n')
    before = content(here)
    monkeypatch.setattr("infodis.models.loading.load", lambda *given, **options: pytest.fail("work was begun"))
    monkeypatch.setattr(
        "infodis.apps.bench.experiments.coupling", lambda **options: map(pytest.fail, ["work was begun"])
    )
    with pytest.raises(InfodisError):
        infodis(*words)
    assert content(here) == before


def test_training_removes_only_its_own_checkpoints(here):
    from training_runs import prepare
    from training_runs import run as train

    config = prepare(here / "data", steps=4)
    notes = here / "run" / "step-by-step" / "notes.txt"
    notes.parent.mkdir(parents=True)
    notes.write_text(MINE)
    (here / "run" / ".notes.2024.tmp").write_text(MINE)
    train(config, here / "run")
    assert notes.read_text() == (here / "run" / ".notes.2024.tmp").read_text() == MINE


def test_a_cache_of_answers_that_is_not_ours(here):
    from infodis.apps.lm_eval.monte_carlo import RequestLog
    from infodis.apps.lm_eval.scorer import ResponseCache, digest

    path = here / f"{digest({'model': 1})}.jsonl"
    path.write_text("no line end")
    with pytest.raises(InputError, match="must be a file that infodis wrote"):
        ResponseCache(here, {"model": 1}).add({"key": {"value": 1}})
    with pytest.raises(InputError, match="is there already"):
        RequestLog(path, {})
    assert path.read_text() == "no line end"


# The means


def test_paths_are_compared_by_what_they_lead_to(here):
    (here / "deep").mkdir()
    (here / "same").symlink_to("deep")
    os.link("rows.jsonl", "twin.jsonl")
    for read, written in (
        ("rows.jsonl", "deep/../rows.jsonl"),
        ("rows.jsonl", "twin.jsonl"),
        ("deep/new.jsonl", "same/new.jsonl"),
        ("same/a/b/c", "deep/a"),
    ):
        with pytest.raises(InputError, match="is read by"):
            check_apart(reads=[here / read], writes=[here / written])
    with pytest.raises(InputError, match="is written too"):
        check_apart(writes=[here / "a" / "b", here / "a"])
    with pytest.raises(InputError, match="is written too"):
        check_apart(writes=[here / "a", here / "a" / "b"])
    check_apart(reads=[here / "rows.jsonl", here], writes=[here / "deep" / "rows.jsonl", here / "rows.jsonl.work"])


def test_a_lock_neither_follows_a_link_nor_empties_a_file(here):
    for name in ("linked", "full"):
        (here / name).mkdir()
    (here / "linked" / LOCK).symlink_to(here / "rows.jsonl")
    (here / "full" / LOCK).write_text(MINE)
    before = content(here)
    for name in ("linked", "full"):
        with pytest.raises(InputError, match="must be an empty file"), locked(here / name):
            pass
    assert content(here) == before


def test_a_directory_is_there_as_a_whole_and_replaces_none(here):
    with atomic_directory(here / "new") as place:
        (place / "file").write_text("whole")
        assert not (here / "new").exists()
    with pytest.raises(OSError, match="not empty"), atomic_directory(here / "new") as place:
        (place / "file").write_text("another")
    assert (here / "new" / "file").read_text() == "whole"
    with pytest.raises(RuntimeError), atomic_directory(here / "new", replace=True) as place:
        raise RuntimeError
    assert (here / "new" / "file").read_text() == "whole"
    assert not list(here.glob(f"{UNFINISHED}*"))


@pytest.mark.parametrize("seed", [3, 5, 8])
def test_colliding_paths_in_any_combination(seed):
    """More of them, and slower commands: make faults."""
    trial(seed, slow=False)
