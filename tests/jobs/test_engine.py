"""Runs that are killed, damaged or interrupted end as if nothing had happened."""

import dataclasses
import itertools
import json
import math
import os
import stat

import forks
import pytest
import torch
from instant import InstantScore

from infodis.apps.bench.engine import InstantSpec, instant
from infodis.design import UniformCount
from infodis.errors import InfodisError, InputError
from infodis.estimate import Request, nll
from infodis.files import UNFINISHED, atomic_text, locked
from infodis.item import Item
from infodis.jobs import store as stores
from infodis.jobs.documents import DocumentsSpec, Window
from infodis.jobs.inputs import InputSpec
from infodis.jobs.local import LocalProcesses
from infodis.jobs.rolling import PerplexityJob
from infodis.jobs.run import InProcess, RunPlan, run
from infodis.jobs.summary import PerplexitySummary
from infodis.models.tokenizers import Characters
from infodis.quantities.perplexity import Windows
from infodis.result import RateSum
from infodis.rng import stream

ROWS = 60


@pytest.fixture
def rows(tmp_path):
    """Rows of letters, one of them bad."""
    path = tmp_path / "rows.jsonl"
    letters = "abcdefghijklmnopqrstuvwxyz "
    with path.open("w") as file:
        for number in range(ROWS):
            text = "".join(letters[(7 * number + 3 * place) % 27] for place in range(4 + 3 * (number % 3)))
            file.write(json.dumps({"id": f"row {number}", "text": text if number != 17 else 17}) + "\n")
    return path


def plan(rows, out, *, executor=InProcess(), settings=None, **options):
    job = InstantScore(request=Request(evaluations=8), **options.pop("job", {}))
    return RunPlan(
        out=out,
        job=job,
        input=InputSpec(str(rows), 7),
        settings=settings or {},
        executor=executor,
        **options,
    )


def test_records_are_as_of_single_rows_and_bad_rows_are_told(rows, tmp_path):
    finished = run(plan(rows, tmp_path / "out.jsonl"))
    records = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    given = [json.loads(line) for line in rows.read_text().splitlines()]
    good = [row for row in given if isinstance(row["text"], str)]
    assert [record["id"] for record in records] == [row["id"] for row in good]
    model = instant()
    for record, row in zip(records, good, strict=True):
        alone = nll(model, model.encode(row["text"]), evaluations=8)
        assert record["value"] == pytest.approx(alone.value, abs=1e-5)
        assert record["standard_error"] == pytest.approx(alone.standard_error, abs=1e-5)
        assert record["bits_per_byte"] == pytest.approx(alone.value / math.log(2) / len(row["text"]), abs=1e-5)
    rejected = [json.loads(line) for line in (tmp_path / "out.jsonl.rejected.jsonl").read_text().splitlines()]
    assert [(row["line"], row["field"]) for row in rejected] == [(18, "text")]
    assert finished.totals["rows"] == ROWS - 1
    assert finished.totals["rejected"] == 1
    assert not stores.work_directory(tmp_path / "out.jsonl").exists()


def test_one_token_costs_one_row(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "a"}\n')
    run(plan(path, tmp_path / "out.jsonl"))
    assert json.loads((tmp_path / "out.jsonl").read_text())["evaluations"] == 1


def dying(made: RunPlan, step: int) -> None:
    """Run, and die at the n-th time that something is made final or written down."""
    left = [step]

    def deadly(function):
        def stepping(*args, **kwargs):
            left[0] -= 1
            if left[0] == 0:
                os._exit(9)
            result = function(*args, **kwargs)
            left[0] -= 1
            if left[0] == 0:
                os._exit(9)
            return result

        return stepping

    os.replace, os.fsync = deadly(os.replace), deadly(os.fsync)
    run(made)
    os._exit(0)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_killed_at_every_step_the_result_is_the_same(rows, tmp_path):
    run(plan(rows, tmp_path / "whole.jsonl"))
    out, deaths = tmp_path / "out.jsonl", 0
    while forks.exit_code(dying, plan(rows, out), 9 + 7 * deaths % 30) == 9:
        deaths += 1
        assert deaths < 100
    assert deaths > 4
    assert out.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    assert (tmp_path / "out.jsonl.rejected.jsonl").read_bytes() == (
        tmp_path / "whole.jsonl.rejected.jsonl"
    ).read_bytes()
    left = {path.name for path in tmp_path.iterdir()}
    assert not [name for name in left if name.startswith(UNFINISHED) or name.endswith(".work")]


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.parametrize("step", range(1, 100, 9))
def test_killed_once_at_some_step(rows, tmp_path, step):
    """From the first file written to the last one removed."""
    out = tmp_path / "out.jsonl"
    run(plan(rows, tmp_path / "whole.jsonl"))
    forks.exit_code(dying, plan(rows, out), step)
    run(plan(rows, out))
    assert out.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_killed_while_an_old_result_is_replaced_there_is_the_old_or_the_new(tmp_path):
    path, out = tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    path.write_text('{"text": "abc"}\n{"text": 3}\n')
    run(plan(path, out))
    old = {one: one.read_bytes() for one in stores.places(out) if one.is_file()}
    path.write_text('{"text": "abcd"}\n{"text": 4}\n{"text": 5}\n')
    run(plan(path, tmp_path / "whole.jsonl"))
    new = {one: one.with_name(one.name.replace("out", "whole")).read_bytes() for one in old}
    mixed = 0
    for step in itertools.count(12, 2):  # from where settings are written
        for one in old:
            one.write_bytes(old[one])
        if forks.exit_code(dying, plan(path, out, resume=False), step) != 9:
            break
        replaced = [one.read_bytes() == new[one] for one in old]
        assert all(one.read_bytes() in (old[one], new[one]) for one in old)
        mixed += any(replaced) and not all(replaced)
        run(plan(path, out, resume=step % 2 == 0 and (stores.work_directory(out) / stores.SETTINGS).exists()))
        assert all(one.read_bytes() == new[one] for one in old)
    assert mixed


def interrupted(rows, out, after: int) -> None:
    """A run that is stopped when so many shards are done."""
    seen = set()

    def watch(state):
        seen.add(state.done)
        if len(seen) > after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(plan(rows, out), watch)


def test_finished_shards_are_not_done_again(rows, tmp_path):
    out = tmp_path / "out.jsonl"
    interrupted(rows, out, after=4)
    seen = []
    run(plan(rows, out), lambda state: seen.append((state.before, state.done)))
    assert seen[0] == (28, 28)
    assert seen[-1] == (28, ROWS)


def test_a_damaged_part_is_found_and_redone(rows, tmp_path):
    run(plan(rows, tmp_path / "whole.jsonl"))
    out = tmp_path / "out.jsonl"
    interrupted(rows, out, after=6)
    parts = sorted(stores.work_directory(out).glob("parts/*/*.jsonl"))
    content = bytearray(parts[2].read_bytes())
    content[40] ^= 1
    parts[2].write_bytes(content)
    parts[4].unlink()
    finished = run(plan(rows, out))
    assert finished.redone == 2
    assert out.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


def test_a_part_that_changes_before_the_join_is_not_joined(rows, tmp_path):
    run(plan(rows, tmp_path / "whole.jsonl"))
    out = tmp_path / "out.jsonl"

    def change_a_digit(state):
        if state.done == ROWS:
            part = min(stores.work_directory(out).glob("parts/*/*.jsonl"))
            part.write_bytes(part.read_bytes().replace(b'"value": ', b'"value": 1', 1))

    with pytest.raises(stores.Corrupted):
        run(plan(rows, out), change_a_digit)
    assert not out.exists()
    assert run(plan(rows, out)).redone == 1
    assert out.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


def test_a_shard_counts_once_its_line_is_on_disk(tmp_path, monkeypatch):
    manifest, synced = tmp_path / stores.MANIFEST, []
    store = stores.Store(tmp_path, shards=2)

    def fsync(handle):
        assert os.path.samestat(os.fstat(handle), manifest.stat())
        shards = [json.loads(line)["shard"] for line in manifest.read_text().splitlines()]
        synced.append((shards, store.missing.tolist()))

    monkeypatch.setattr(os, "fsync", fsync)
    for shard in (1, 0):
        store.add(stores.Done(shard, "digest", 3, 0, {}))
    assert synced == [([1], [0, 1]), ([1, 0], [0])]
    assert not len(store.missing)


def test_a_file_is_on_disk_before_it_gets_its_name(tmp_path, monkeypatch):
    steps, real = [], os.replace

    def fsync(handle):
        state = os.fstat(handle)
        steps.append("directory on disk" if stat.S_ISDIR(state.st_mode) else f"{state.st_size} bytes on disk")

    def replace(old, new):
        steps.append("named")
        real(old, new)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    atomic_text(tmp_path / "file", "content")
    assert steps == ["7 bytes on disk", "named", "directory on disk"]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_of_json_is_not_written(tmp_path, value):
    parts = stores.Parts(tmp_path)
    with pytest.raises(ValueError, match="JSON compliant"):
        parts.commit(0, [{"id": 1, "value": value}])
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize("torn", [b'{"shard": 3, "dig', b"\x00\x00"])
def test_a_torn_line_of_the_manifest_is_dropped(rows, tmp_path, torn):
    run(plan(rows, tmp_path / "whole.jsonl"))
    out = tmp_path / "out.jsonl"
    interrupted(rows, out, after=3)
    with (stores.work_directory(out) / stores.MANIFEST).open("ab") as file:
        file.write(torn)
    interrupted(rows, out, after=2)
    seen = []
    run(plan(rows, out), lambda state: seen.append(state.before))
    assert seen[0] == 35  # three shards before the torn line and two behind it
    assert out.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


def test_a_changed_digit_of_the_manifest_is_noticed(rows, tmp_path):
    """Whatever number of a line it is: the line is dropped, and its shard done again."""
    run(plan(rows, tmp_path / "whole.jsonl"))
    out = tmp_path / "out.jsonl"
    interrupted(rows, out, after=6)
    path = stores.work_directory(out) / stores.MANIFEST
    lines = path.read_text().splitlines()
    for number, name in enumerate(("shard", "rows", "rejected", "evaluations", "standard_error")):
        head, colon, tail = lines[number].partition(f'"{name}": ')
        lines[number] = head + colon + str((int(tail[0]) + 1) % 10) + tail[1:]
    path.write_text("\n".join(lines) + "\n")
    finished = run(plan(rows, out))
    assert finished.redone == 5
    assert out.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    assert finished.totals == run(plan(rows, tmp_path / "whole.jsonl")).totals


def flip(path):
    """A bit of the first count of forward passes in a file, and not the file's time."""
    content, written = bytearray(path.read_bytes()), path.stat().st_mtime_ns
    content[content.index(b'"evaluations": ') + 15] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(0, written))


def test_a_manifest_that_changes_before_the_join_changes_nothing(rows, tmp_path):
    """What it says was read before, and is kept."""
    run(plan(rows, tmp_path / "whole.jsonl"))
    out = tmp_path / "out.jsonl"

    def watch(state):
        if state.done == state.rows:  # the last shard is noted; what follows is the join
            flip(stores.work_directory(out) / stores.MANIFEST)

    run(plan(rows, out), watch)
    assert out.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


def test_a_changed_digit_of_the_settings_is_noticed(rows, tmp_path):
    out = tmp_path / "out.jsonl"
    interrupted(rows, out, after=2)
    path = stores.work_directory(out) / stores.SETTINGS
    content = path.read_text()
    path.write_text(content.replace('"seed": 0', '"seed": 1'))
    with pytest.raises(InputError, match=r"settings\.json is damaged"):
        run(plan(rows, out, job={"seed": 1}))
    path.write_text(content)
    run(plan(rows, out))
    path = stores.manifest_path(out)
    path.write_text(path.read_text().replace('"value": ', '"value": 1'))
    with pytest.raises(InputError, match="is not what infodis wrote"):
        run(plan(rows, out))


def test_an_input_replaced_during_a_run_stops_it(tmp_path):
    """Rows of two files never meet in one output."""
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path, out = tmp_path / "rows.parquet", tmp_path / "out.jsonl"
    parquet.write_table(arrow.table({"text": ["aaaa"] * ROWS}), path)

    def watch(state):
        if state.done >= 20:
            parquet.write_table(arrow.table({"text": ["bbbb"] * ROWS}), path)

    with pytest.raises(InputError, match="was changed after it was cut"):
        run(plan(path, out), watch)
    with pytest.raises(InputError, match="input: was"):
        run(plan(path, out))
    assert not out.exists()


def test_other_settings_are_refused_by_name(rows, tmp_path):
    out = tmp_path / "out.jsonl"
    interrupted(rows, out, after=2)
    with pytest.raises(InputError, match=r"dtype: was not set, is bfloat16"):
        run(plan(rows, out, settings={"dtype": "bfloat16"}))
    rows.write_text(rows.read_text() + '{"id": "one more", "text": "abc"}\n')
    with pytest.raises(InputError, match="input: was"):
        run(plan(rows, out))
    finished = run(plan(rows, out, resume=False))
    assert finished.totals["rows"] == ROWS


def test_a_run_that_finished_nothing_binds_nobody(rows, tmp_path):
    """Who forgot an option, and was told so when the model was loaded, gives it and goes on."""
    out = tmp_path / "out.jsonl"
    interrupted(rows, out, after=0)
    assert (stores.work_directory(out) / stores.SETTINGS).exists()
    assert run(plan(rows, out, settings={"block_size": 4})).fresh


def test_a_finished_output_is_kept(rows, tmp_path):
    out = tmp_path / "out.jsonl"
    first = run(plan(rows, out))
    again = run(plan(rows, out))
    assert first.fresh
    assert not again.fresh
    assert again.summary == first.summary
    with pytest.raises(InputError, match="other settings"):
        run(plan(rows, out, settings={"seed": 1}))
    out.write_text("something else\n")
    with pytest.raises(InputError, match="is not what infodis wrote"):
        run(plan(rows, out))
    foreign = tmp_path / "mine.jsonl"
    foreign.write_text("precious\n")
    with pytest.raises(InputError, match="is there already"):
        run(plan(rows, foreign))
    assert foreign.read_text() == "precious\n"
    assert not stores.work_directory(foreign).exists()


def test_one_run_at_a_time(rows, tmp_path):
    out = tmp_path / "out.jsonl"
    with locked(stores.work_directory(out)), pytest.raises(InputError, match="Another process is at work"):
        run(plan(rows, out))


def test_strict_stops_at_the_first_bad_row(rows, tmp_path):
    for _ in range(2):  # also when the bad row was met by an earlier run
        with pytest.raises(InputError, match="Line 18 cannot be scored"):
            run(plan(rows, tmp_path / "out.jsonl", strict=True))
    assert run(plan(rows, tmp_path / "out.jsonl")).totals["rejected"] == 1


def test_rows_that_are_all_bad_give_an_empty_file(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("nothing\n" * 20)
    finished = run(plan(path, tmp_path / "out.jsonl"))
    assert finished.totals["rejected"] == 20
    assert (tmp_path / "out.jsonl").read_bytes() == b""
    path.write_text("\n")
    with pytest.raises(InputError):
        run(plan(path, tmp_path / "none.jsonl"))
    assert not stores.work_directory(tmp_path / "none.jsonl").exists()


def test_processes_give_the_same_file_and_replace_the_dead(rows, tmp_path):
    lines = rows.read_text().splitlines()
    lines[30] = json.dumps({"id": "row 30", "text": "fatal"})
    rows.write_text("\n".join(lines))
    (tmp_path / "met").touch()
    run(plan(rows, tmp_path / "one.jsonl", job={"met": str(tmp_path / "met")}))
    (tmp_path / "met").unlink()
    run(plan(rows, tmp_path / "two.jsonl", executor=LocalProcesses(2), job={"met": str(tmp_path / "met")}))
    assert (tmp_path / "met").exists()
    assert (tmp_path / "one.jsonl").read_bytes() == (tmp_path / "two.jsonl").read_bytes()


def test_a_full_disk_loses_nothing(rows, tmp_path, monkeypatch):
    out, real, calls = tmp_path / "out.jsonl", os.fsync, []

    def full(handle):
        calls.append(handle)
        if len(calls) == 12:
            raise OSError(28, "No space left on device")
        real(handle)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InfodisError, match=r"No space left on device.*rerun the same command to resume"):
        run(plan(rows, out))
    monkeypatch.undo()
    run(plan(rows, tmp_path / "whole.jsonl"))
    run(plan(rows, out))
    assert out.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


def test_parquet_holds_the_same_rows(rows, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    run(plan(rows, tmp_path / "out.jsonl"))
    run(plan(rows, tmp_path / "out.parquet"))
    records = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    found = parquet.read_table(tmp_path / "out.parquet").to_pylist()
    assert [{k: v for k, v in row.items() if v is not None} for row in found] == records


def test_a_rate_has_the_error_of_a_ratio_estimator():
    """Against the textbook formula, and against repeated draws of units with a known rate."""
    generator = stream(0, "rates")
    rates = []
    for _ in range(300):
        below = torch.randint(5, 50, (40,), generator=generator).double()
        above = below * 2.0 + below.sqrt() * torch.randn(40, generator=generator, dtype=torch.float64)
        rate = RateSum()
        for one, other in zip(above.tolist(), below.tolist(), strict=True):
            rate.add(one, other, 0.25)
        rates.append(rate.result())
        value = above.sum() / below.sum()
        spread = ((above - value * below) ** 2).sum() * 40 / 39
        assert rates[-1]["value"] == pytest.approx(float(value))
        assert rates[-1]["sampling_error"] == pytest.approx(float(spread.sqrt() / below.sum()), rel=1e-6)
        assert rates[-1]["monte_carlo_error"] == pytest.approx(math.sqrt(40 * 0.25) / float(below.sum()))
    scores = torch.tensor([(one["value"] - 2.0) / one["sampling_error"] for one in rates])
    # 300 scores of about unit variance: 4.5 standard errors, false alarms fewer than 1 in 10^5
    assert abs(float(scores.mean())) < 4.5 / math.sqrt(300)
    assert abs(float(scores.std()) - 1) < 4.5 / math.sqrt(600) + 0.03


def test_windows_of_documents_meet_masks_of_their_own():
    """Or else the errors of equal passages would not average out."""
    job = PerplexityJob(InstantSpec(), Request(UniformCount(), None, evaluations=8))
    item = Item.read(instant().encode("the same again and again"))
    places = [("a", 0), ("a", 1), ("b", 0), (0, 0), ("a", 0)]
    windows = [Window(id, number, item, 24.0, line=1) for id, number in places]
    found = [tuple(one.replicates.tolist()) for one in job.measure(windows)]
    assert len(set(found)) == 4
    assert found[0] == found[4]


@pytest.mark.parametrize("name", ["text.txt", "documents.jsonl"])
def test_windows_share_the_bytes_of_their_document(tmp_path, name):
    """Bytes of UTF-8, not characters: these two letters have two and three of them."""
    text = "ße€ß€ eß€€"
    path = tmp_path / name
    path.write_text(text if name.endswith("txt") else json.dumps({"text": text}) + "\n", encoding="utf-8")
    loaded = dataclasses.replace(instant().loaded, tokenizer=Characters("e ß€"))
    model = dataclasses.replace(instant(), loaded=loaded)
    found = DocumentsSpec(InputSpec(str(path), 9), Windows(4, 3), None, model).cut(tmp_path).read(0)
    assert [len(window.item.target) for window in found] == [4, 3, 3]
    assert sum(window.bytes for window in found) == pytest.approx(len(text.encode()))


def test_documents_are_the_units_of_a_corpus():
    """Windows of a document that are all alike must not count as independent."""
    summary, flat = PerplexitySummary(), PerplexitySummary()
    for document in range(10):
        for window in range(20):
            record = {"value": 10.0 + document, "tokens": 10, "bytes": 10.0, "standard_error": 0.0, "evaluations": 1}
            summary.add({"id": document, **record})
            flat.add({"id": 0, "window": window, **record})
    found, naive = summary.result(), flat.result()
    assert (found["units"], naive["units"]) == ("documents", "windows")
    assert found["bits_per_token"]["value"] == naive["bits_per_token"]["value"]
    ratio = found["bits_per_token"]["sampling_error"] / naive["bits_per_token"]["sampling_error"]
    assert ratio == pytest.approx(math.sqrt(20 * 10 / 9 / (200 / 199)), rel=1e-9)
