"""What commands that score files have in common: progress on standard error, a summary, an exit code."""

import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.table import Table

from infodis.cli.options import RunOptions
from infodis.cli.progress import Watching
from infodis.cli.screen import console, input_path, progress_console, write_records
from infodis.errors import InputError
from infodis.files import check_apart
from infodis.settings import versions

if TYPE_CHECKING:
    from infodis.jobs.run import Finished, State
    from infodis.jobs.work import Cut, Executor, Job

REJECTED, INTERRUPTED = 3, 130
"""Exit codes beside 0 (done), 1 (failed) and 2 (wrong usage)."""

LOG_SECONDS = 10
"""Between lines where there is no terminal for a bar."""

SAMPLE = 16
"""Rows that a dry run scores to see how long they take."""

Tell = Callable[[dict[str, Any]], Table]


def shard_rows(given: int | None, evaluations: int | None) -> int:
    """Rows of a shard: about as much work in each, whatever a row costs."""
    return given or max(16, min(4096, 2**15 // (evaluations or 128)))


def execute(
    job: "Job",
    cut: "Cut",
    options: RunOptions,
    *,
    reads: Sequence[str],
    tell: Tell,
    pipe: bool = True,
    then: Callable[[Path], None] = lambda records: None,
    pages: Sequence[Path] = (),
) -> None:
    """Run a job to its end, or say what it would do; print the summary and leave with the exit code.

    Without an output, records go to standard output, and all else to standard error; unless `pipe` is False: then only
    the summary is wanted. `then` is done with the finished records, and may write `pages`.
    """
    with _threads_kept():
        if options.dry_run:
            console.print(dry_run(job, cut, options))
        else:
            _check_files(options, reads, pages)
            _execute(job, cut, options, tell, then, pipe=pipe and options.out is None)


def _execute(
    job: "Job",
    cut: "Cut",
    options: RunOptions,
    tell: Tell,
    then: Callable[[Path], None],
    *,
    pipe: bool,
) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        out = options.out or Path(scratch) / "records.jsonl"
        finished = _run(job, cut, options, out)
        if pipe:
            with out.open("rb") as file:
                write_records(file)
        _report(finished, options, tell, progress_console if pipe else console)
        then(out)
    if finished.totals.get("rejected"):
        raise typer.Exit(REJECTED)


def finish(job: "Job", cut: "Cut", options: RunOptions, *, reads: Sequence[str]) -> "Finished":
    """Run a job to its end, for a command that goes on with the records. `options.out` says where they go."""
    if options.out is None:
        raise InputError("There must be an output: give --out.")
    _check_files(options, reads)
    with _threads_kept():
        return _run(job, cut, options, options.out)


def _check_files(options: RunOptions, reads: Sequence[str], pages: Sequence[Path] = ()) -> None:
    """What a run reads must not be what it writes, nor two things that it writes be one."""
    from infodis.jobs.store import places

    own = () if options.out is None else places(options.out)
    check_apart(reads=map(input_path, reads), writes=(*own, *pages))


def _run(job: "Job", cut: "Cut", options: RunOptions, out: Path) -> "Finished":
    from infodis.jobs.run import Plan, run
    from infodis.jobs.store import settled

    if not out.parent.is_dir():
        raise InputError(f"There is no directory {out.parent} to write {out.name} to. Make it first.")
    executor = _executor(options)
    threads = options.threads or (settled(out, "threads") if options.resume else None) or _threads(options)
    _check_gpus(options, str(job.settings().get("device")))
    plan = Plan(
        out=out,
        job=job,
        cut=cut,
        settings={"threads": threads, **versions()},
        about={"command_line": sys.argv[1:], "python": sys.version.split()[0]},
        executor=executor,
        threads=threads,
        resume=options.resume,
        strict=options.strict,
    )
    try:
        with RowsWatching() as watch:
            return run(plan, watch)
    except KeyboardInterrupt:
        again = "same command" if options.resume else "same command without --no-resume"
        kept = "" if options.out is None else f" What was finished is kept: the {again} goes on from there."
        progress_console.print(f"Stopped.{kept}")
        raise typer.Exit(INTERRUPTED) from None


def _threads(options: RunOptions) -> int:
    """Of a worker: all cores together; on a cluster, what Ray sets aside for it."""
    if options.engine == "ray":
        return options.threads or max(1, int(options.worker_cpus))
    return options.threads or max(1, (os.cpu_count() or 1) // options.workers)


def _check_gpus(options: RunOptions, device: str) -> None:
    """Workers of Ray see the GPUs that are set aside for them and no other; `auto` is what there is at the head."""
    if options.engine == "ray" and device.startswith("cuda") and not options.worker_gpus:
        raise InputError(
            f"Workers of Ray must be given GPUs to compute on {device}, got none. Say --worker-gpus 1 or --device cpu."
        )
    if options.engine == "ray" and device == "cpu" and options.worker_gpus:
        raise InputError(
            f"Workers must compute on the {options.worker_gpus:g} GPUs that each is given, but the device is cpu. Say "
            "--device cuda, or leave --worker-gpus out."
        )


def _executor(options: RunOptions) -> "Executor":
    from infodis.jobs.local import InProcess, Processes

    if options.engine == "ray":
        from infodis.jobs.ray import RayActors

        return RayActors(options.workers, options.ray_address, options.worker_cpus, options.worker_gpus)
    if options.engine != "local":
        raise InputError(f"--engine is local or ray, got {options.engine!r}.")
    return InProcess() if options.workers == 1 else Processes(options.workers)


@contextlib.contextmanager
def _threads_kept() -> Iterator[None]:
    """Whoever calls a command from Python has the threads afterwards that it had before."""
    import torch

    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _report(finished: "Finished", options: RunOptions, tell: Tell, screen: Console) -> None:
    screen.print(tell({**finished.summary, **finished.totals}))
    if not finished.fresh:
        screen.print("Nothing was left to do: an earlier run had finished.")
    if finished.redone:
        screen.print(f"{finished.redone} damaged parts (or lines about them) were done again.")
    if options.out is not None:
        screen.print(f"Records: {finished.out}")
    if finished.rejected is not None:
        count = int(finished.totals["rejected"])
        if options.out is None:
            screen.print(finished.rejected.read_text(encoding="utf-8").rstrip())
            screen.print(f"{count:,} rows were rejected, see above.")
        else:
            screen.print(f"{count:,} rows were rejected: {finished.rejected}")


def dry_run(job: "Job", cut: "Cut", options: RunOptions) -> Table:
    """What a run would do, and how long that would take, judged by its first rows."""
    import torch

    torch.set_num_threads(_threads(options))
    with tempfile.TemporaryDirectory() as scratch:
        source = cut(Path(scratch))
        scorer = job.open()
        sample = source.read(0)[:SAMPLE]
        scorer.score(sample[:1])  # the first pass pays for what later ones do not
        begin = time.perf_counter()
        part = scorer.score(sample)
        seconds = time.perf_counter() - begin
    share = source.rows / len(sample)
    table = Table("", "", title="What would be done", show_header=False)
    table.add_row("rows", f"{source.rows:,} in {source.shards:,} shards")
    table.add_row("forward rows", f"about {part.totals['evaluations'] * share:,.0f}")
    table.add_row("time", f"about {_duration(seconds * share / options.workers)} with {options.workers} worker(s)")
    if part.rejected:
        first = part.rejected[0]
        table.add_row("rejected", f"{len(part.rejected)} of {len(sample)}; line {first['line']}: {first['reason']}")
    table.caption = f"Extrapolated from the first {len(sample)} rows, which took {seconds:.2f} s."
    return table


def _duration(seconds: float) -> str:
    for size, name in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {name}"
    return f"{seconds:.1f} seconds"


class RowsWatching(Watching):
    """Rows that are done, and how fast."""

    def __init__(self) -> None:
        columns = (BarColumn(), MofNCompleteColumn(), TextColumn("rows, {task.fields[rates]}", markup=False))
        super().__init__(*columns, every=LOG_SECONDS)
        self._task: Any = None
        self._begin = time.monotonic()

    def __call__(self, state: "State") -> None:
        text = _rates(state, time.monotonic() - self._begin)
        if not progress_console.is_terminal:
            self.now_and_then(f"{state.done:,} of {state.rows:,} rows, {text}")
            return
        if self._task is None:
            self._task = self.bar.add_task("", total=state.rows, completed=state.before, rates="")
        self.bar.update(self._task, completed=state.done, rates=text)


def _rates(state: "State", seconds: float) -> str:
    done = state.done - state.before
    if not done or seconds <= 0:
        return ""
    spent = state.totals.get("evaluations", 0) - state.earlier.get("evaluations", 0)
    scored = max(1.0, state.totals.get("rows", 0))
    error = state.totals.get("standard_error", 0) / scored
    left = _duration(seconds / done * (state.rows - state.done))
    speed = f"{done / seconds:,.1f} rows/s, {spent / seconds:,.0f} forward rows/s"
    return f"{speed}, mean standard error {error:.3g}, {left} left"
