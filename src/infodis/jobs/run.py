"""A run from settings to a finished file: claim the output, go on where an earlier run ended, join the parts."""

import contextlib
import dataclasses
import json
import signal
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from infodis.errors import InfodisError, InputError
from infodis.evaluate import Passed, counting_passes
from infodis.files import atomic_file, atomic_text, digest_of
from infodis.jobs import store as stores
from infodis.jobs.job import Job
from infodis.jobs.outputs import Columns, other_columns, writer_for
from infodis.jobs.store import Done, Parts, Store
from infodis.journal import sealed

INPUT = "input"
"""The setting that holds the hash of the input."""

RECORDS = 1
"""The form of records and of what they rest on; another one does not go into the same file."""

SUMS = ("evaluations", "standard_error")
"""Fields of records that are added up for progress."""


@runtime_checkable
class Shards(Protocol):
    """Rows in shards. Small and picklable: every process reads its own shards."""

    @property
    def shards(self) -> int: ...
    @property
    def rows(self) -> int: ...
    @property
    def digest(self) -> str:
        """Of the content and of how it is cut."""
        ...

    def read(self, shard: int) -> list[Any]: ...


@runtime_checkable
class Input(Protocol):
    """What is read, and how, as a value."""

    @property
    def keep(self) -> tuple[str, ...]:
        """Fields of its rows that records carry along."""
        ...

    def settings(self) -> dict[str, Any]:
        """Everything that the rows depend on beside the content of the input, by name."""
        ...

    def cut(self, work: Path) -> Shards:
        """Its rows in shards, with what there is to know about them in a work directory."""
        ...


@dataclasses.dataclass(frozen=True)
class Work:
    """Everything that a worker needs to do shards."""

    rows: Shards
    job: Job
    parts: Parts
    threads: int | None = None
    """Of a worker on the processor; None leaves it to torch."""

    def do(self, shard: int, passed: Passed = lambda count: None) -> Done:
        """Read a shard, score its rows, commit the part. The first one loads the model, and then says so: 0 passes."""
        if self.threads is not None:
            import torch

            torch.set_num_threads(self.threads)
        self.job.load()
        passed(0)
        with counting_passes(passed):
            records, rejected = self.job.score(self.rows.read(shard))
        totals = dict.fromkeys(SUMS, 0.0)
        for record in records:
            for name in SUMS:
                totals[name] += record[name] or 0.0
        digest = self.parts.commit(shard, (*records, *rejected))
        return Done(shard, digest, len(records), len(rejected), totals)


@runtime_checkable
class Executor(Protocol):
    """Who does the shards. They may come back in any order; each is committed before it comes back.

    `passed` is told, where that is possible, when models are loaded (0) and of forward passes before a shard is done.
    """

    def run(self, work: Work, shards: Iterable[int], passed: Passed) -> Iterator[Done]: ...


@dataclasses.dataclass(frozen=True)
class InProcess:
    """One shard after another, here."""

    def run(self, work: Work, shards: Iterable[int], passed: Passed) -> Iterator[Done]:
        return (work.do(shard, passed) for shard in shards)


@dataclasses.dataclass(frozen=True)
class RunProgress:
    """How far a run is."""

    rows: int
    """Of the input."""
    done: int
    """Rows that are scored or rejected."""
    before: int
    """Of these, rows that an earlier run had done."""
    totals: dict[str, float]
    earlier: dict[str, float]
    """The totals of what an earlier run had done."""
    loaded: bool = True
    """Whether the models are loaded: before that nothing is scored."""
    passes: int = 0
    """Forward passes that this run has made."""
    passes_per_row: float = 1.0
    """About, until rows are done that say it."""

    @property
    def spent(self) -> float:
        """Forward passes of rows that this run has done."""
        return self.totals.get("evaluations", 0.0) - self.earlier.get("evaluations", 0.0)

    @property
    def about(self) -> float:
        """Rows that are done, and of those under way as much as their forward passes say."""
        finished = self.done - self.before
        each = self.spent / finished if self.spent and finished else self.passes_per_row
        return min(float(self.rows), self.done + max(0.0, self.passes - self.spent) / each)


@dataclasses.dataclass(frozen=True)
class FinishedRun:
    """A run that is over."""

    out: Path
    rejected: Path | None
    totals: dict[str, float]
    summary: dict[str, Any]
    redone: int
    """Damaged parts, or lines about them, that were found and done again."""
    fresh: bool
    """False if there was nothing to do: an earlier run had finished."""


@dataclasses.dataclass(frozen=True)
class RunPlan:
    """What to run. Results depend on what `job` and `input` call their settings, and on what is in `settings`."""

    out: Path
    job: Job
    input: Input
    executor: Executor
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    """More that results depend on: versions."""
    provenance: dict[str, Any] = dataclasses.field(default_factory=dict)
    """For the manifest only: the command line."""
    threads: int | None = None
    resume: bool = True
    strict: bool = False
    """Stop at the first rejected row."""


def run(plan: RunPlan, show: Callable[[RunProgress], None] = lambda progress: None) -> FinishedRun:
    """Do what is left to do. Raises KeyboardInterrupt on Ctrl-C and SIGTERM: all finished shards are kept."""
    writer_for(plan.out)
    compared = {**plan.job.settings(), **plan.input.settings(), "records": RECORDS, **plan.settings}
    plan = dataclasses.replace(plan, settings=compared)
    with interruptible(), stores.claimed(plan.out) as directory:
        try:
            return _already_finished(plan, directory) or _run(plan, directory, show)
        except OSError as error:
            option = "" if plan.resume else " without --no-resume"
            raise InfodisError(
                f"{error}. What was finished is kept in {directory}. Fix this and rerun the same command{option} to "
                "resume."
            ) from error
        finally:
            if not (directory / stores.SETTINGS).exists():  # finished, or nothing was begun
                stores.remove(directory)


def _run(plan: RunPlan, directory: Path, show: Callable[[RunProgress], None]) -> FinishedRun:
    stores.check_replaceable(plan.out)
    rows, settings = _begin(plan, directory)
    store = Store(directory, rows.shards)
    work = Work(rows, plan.job, store.parts, plan.threads)
    reporter = _Reporter(work, store, show)
    with contextlib.closing(_do_missing(plan.executor, work, store, reporter.passed)) as steps:
        for _ in steps:
            reporter.report()
            if plan.strict and (row := store.first_rejected()) is not None:
                raise InputError(f"Line {row['line']} cannot be scored: {row['reason']} Fix it, or leave --strict out.")
    joined = _join(plan, store, settings)
    (directory / stores.SETTINGS).unlink()
    return joined


class _Reporter:
    """Tells how far a run is."""

    def __init__(self, work: Work, store: Store, show: Callable[[RunProgress], None]) -> None:
        self._work, self._store, self._show = work, store, show
        self._before, self._earlier = store.done_rows, dict(store.totals)
        self._loaded, self._passes = work.job.is_loaded or not len(store.missing), 0

    def passed(self, count: int) -> None:
        """A batch is done, or models are loaded."""
        self._loaded = True
        self._passes += count
        self.report()

    def report(self) -> None:
        done = self._store.done_rows
        self._show(
            RunProgress(
                self._work.rows.rows,
                done,
                self._before,
                dict(self._store.totals),
                self._earlier,
                self._loaded or done > self._before,
                self._passes,
                self._work.job.passes_per_row,
            )
        )


def _begin(plan: RunPlan, directory: Path) -> tuple[Shards, dict[str, Any]]:
    """Cut the input, and note what the run was asked for; an earlier run must have been asked for the same."""
    path = directory / stores.SETTINGS
    known = stores.read_settings(path) if plan.resume and stores.has_parts(directory) else None
    if known is not None:
        stores.check_settings({**known, INPUT: None}, plan.settings, where=directory)
    rows = plan.input.cut(directory / stores.SOURCE)
    settings = {**plan.settings, INPUT: rows.digest}
    if known is None:
        stores.discard(directory)  # only now: an input that cannot be read costs nothing
    else:
        stores.check_settings(known, settings, where=directory)
    stores.write_settings(path, settings)
    return rows, settings


def _do_missing(executor: Executor, work: Work, store: Store, passed: Passed) -> Generator[None, None, None]:
    """Do the shards that are missing. Yields when there is something to show: at first, and after every shard."""
    yield
    if len(store.missing):
        for done in executor.run(work, store.missing.tolist(), passed):
            store.add(done)
            yield


def _join(plan: RunPlan, store: Store, settings: dict[str, Any]) -> FinishedRun:
    """All parts as one file, rejected rows as another, and a manifest that says how they came about."""
    rejected, summary = stores.rejected_path(plan.out), plan.job.summary()
    there = bool(store.totals.get("rejected"))
    with atomic_file(plan.out, within=store.directory) as records, atomic_file(rejected, within=store.directory) as bad:
        with writer_for(plan.out)(records, _columns(plan, store)) as output, bad.open("wb") as refused:
            for shard in range(store.shards):
                lines, others = store.lines(shard)
                for line in lines:
                    output.write(line)
                    summary.add(json.loads(line))
                refused.writelines(others)
        hashes = digest_of(records), digest_of(bad)
        stores.check_replaceable(plan.out)  # again: something may have been put there since
        stores.announce(store.directory, *hashes)
    if not there:
        rejected.unlink()
    manifest = {
        "settings": settings,
        "totals": store.totals,
        "summary": (result := summary.result()),
        "sha256": hashes[0],
        **({"rejected_sha256": hashes[1]} if there else {}),
        **plan.provenance,
    }
    told = json.dumps(sealed(manifest), indent=2, ensure_ascii=False) + "\n"
    atomic_text(stores.manifest_path(plan.out), told, within=store.directory)
    return FinishedRun(plan.out, rejected if there else None, dict(store.totals), result, store.redone, fresh=True)


def _columns(plan: RunPlan, store: Store) -> Columns:
    """Of the records. What is carried along from the input is known when all of it is there."""
    known = plan.job.columns
    if not plan.input.keep:
        return known
    lines = (line for shard in range(store.shards) for line in store.lines(shard)[0])
    return {**known, **other_columns(lines, known)}


def _already_finished(plan: RunPlan, directory: Path) -> FinishedRun | None:
    """What an earlier run of the same thing left, if its file is still what it wrote."""
    manifest = stores.read_manifest(plan.out)
    begun = (directory / stores.SETTINGS).exists()
    if not plan.resume or begun or manifest is None or not plan.out.is_file():
        return None
    stores.check_settings({**manifest["settings"], INPUT: None}, plan.settings, where=plan.out)
    if digest_of(plan.out) != manifest["sha256"]:
        return None
    digest = plan.input.cut(directory / stores.SOURCE).digest
    stores.check_settings(manifest["settings"], {**plan.settings, INPUT: digest}, where=plan.out)
    totals = manifest.get("totals", {})
    rejected = _if_there(stores.rejected_path(plan.out)) if totals.get("rejected") else None
    return FinishedRun(plan.out, rejected, totals, manifest.get("summary", {}), 0, fresh=False)


def _if_there(path: Path) -> Path | None:
    return path if path.exists() else None


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM stops a run as Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
