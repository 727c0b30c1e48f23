"""A run from settings to a finished file: claim the output, go on where an earlier run ended, join the parts."""

import contextlib
import dataclasses
import json
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from infodis.errors import InfodisError, InputError
from infodis.files import atomic_file, atomic_text, digest_of
from infodis.jobs import store as stores
from infodis.jobs.outputs import writer_for
from infodis.jobs.store import Done, Store
from infodis.jobs.work import Cut, Executor, Job, Work
from infodis.snapshot import sealed

INPUT = "input"
"""The setting that holds the hash of the input."""

RECORDS = 1
"""The form of records and of what they rest on; another one does not go into the same file."""

Watch = Callable[["State"], None]


@dataclasses.dataclass(frozen=True)
class State:
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


@dataclasses.dataclass(frozen=True)
class Finished:
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
class Plan:
    """What to run. Results depend on what `job` and `cut` call their settings, and on what is in `settings`."""

    out: Path
    job: Job
    cut: Cut
    executor: Executor
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    """More that results depend on: versions."""
    about: dict[str, Any] = dataclasses.field(default_factory=dict)
    """For the manifest only: the command line."""
    threads: int | None = None
    resume: bool = True
    strict: bool = False
    """Stop at the first rejected row."""


def run(plan: Plan, watch: Watch = lambda state: None) -> Finished:
    """Do what is left to do. Raises KeyboardInterrupt on Ctrl-C and SIGTERM: all finished shards are kept."""
    writer_for(plan.out)
    compared = {**plan.job.settings(), **plan.cut.settings(), "records": RECORDS, **plan.settings}
    plan = dataclasses.replace(plan, settings=compared)
    with interruptible(), stores.claimed(plan.out) as directory:
        try:
            return _already_finished(plan, directory) or _run(plan, directory, watch)
        except OSError as error:
            command = "same command" if plan.resume else "same command without --no-resume"
            raise InfodisError(
                f"{error}. What was finished is kept in {directory}: when that is mended, the {command} goes on."
            ) from error
        finally:
            if not (directory / stores.SETTINGS).exists():  # finished, or nothing was begun
                stores.remove(directory)


def _run(plan: Plan, directory: Path, watch: Watch) -> Finished:
    path = directory / stores.SETTINGS
    stores.check_replaceable(plan.out)
    known = stores.read_settings(path) if plan.resume else None
    if known is not None:
        stores.check_settings({**known, INPUT: None}, plan.settings, where=directory)
    source = plan.cut(directory / stores.SOURCE)
    settings = {**plan.settings, INPUT: source.digest}
    if known is None:
        stores.discard(directory)  # only now: an input that cannot be read costs nothing
    else:
        stores.check_settings(known, settings, where=directory)
    stores.write_settings(path, settings)
    with stores.opened(directory, source.shards) as store:
        work = Work(source, plan.job, store.parts, plan.threads)
        before, earlier = _rows(store), dict(store.totals)
        watch(State(source.rows, before, before, store.totals, earlier))
        if plan.strict and earlier.get("rejected"):
            raise InputError(_first_rejected(store, next(done for done in store.known() if done.rejected)))
        if not store.done.all():
            with contextlib.closing(_closable(plan.executor.run(work, store.missing))) as results:
                for done in results:
                    store.note(done)
                    watch(State(source.rows, _rows(store), before, store.totals, earlier))
                    if plan.strict and done.rejected:
                        raise InputError(_first_rejected(store, done))
        finished = _join(plan, store, settings)
    path.unlink()
    return finished


def _closable(results: Iterator) -> Any:
    """As a generator, which can be closed."""
    yield from results


def _rows(store: Store) -> int:
    return int(store.totals.get("rows", 0) + store.totals.get("rejected", 0))


def _first_rejected(store: Store, done: Done) -> str:
    lines = list(store.parts.lines(done))
    row = json.loads(lines[done.rows])
    return f"Line {row['line']} cannot be scored: {row['reason']} Mend it, or leave --strict out."


def _join(plan: Plan, store: Store, settings: dict[str, Any]) -> Finished:
    """All parts as one file, rejected rows as another, and a manifest that says how they came about."""
    rejected, summary = stores.rejected_path(plan.out), plan.job.summary()
    there = bool(store.totals.get("rejected"))
    with atomic_file(plan.out, within=store.directory) as records, atomic_file(rejected, within=store.directory) as bad:
        with writer_for(plan.out)(records, plan.job.columns) as output, bad.open("wb") as refused:
            for done in store.in_order():
                lines = list(store.parts.lines(done))
                for line in lines[: done.rows]:
                    output.add(line)
                    summary.add(json.loads(line))
                refused.writelines(lines[done.rows :])
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
        **plan.about,
    }
    told = json.dumps(sealed(manifest), indent=2, ensure_ascii=False) + "\n"
    atomic_text(stores.manifest_path(plan.out), told, within=store.directory)
    return Finished(plan.out, rejected if there else None, dict(store.totals), result, store.redone, fresh=True)


def _already_finished(plan: Plan, directory: Path) -> Finished | None:
    """What an earlier run of the same thing left, if its file is still what it wrote."""
    manifest = stores.read_manifest(plan.out)
    begun = (directory / stores.SETTINGS).exists()
    if not plan.resume or begun or manifest is None or not plan.out.is_file():
        return None
    stores.check_settings({**manifest["settings"], INPUT: None}, plan.settings, where=plan.out)
    if digest_of(plan.out) != manifest["sha256"]:
        return None
    digest = plan.cut(directory / stores.SOURCE).digest
    stores.check_settings(manifest["settings"], {**plan.settings, INPUT: digest}, where=plan.out)
    totals = manifest.get("totals", {})
    rejected = _if_there(stores.rejected_path(plan.out)) if totals.get("rejected") else None
    return Finished(plan.out, rejected, totals, manifest.get("summary", {}), 0, fresh=False)


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
