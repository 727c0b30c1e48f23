"""What commands that score files have in common: progress on standard error, a summary, an exit code."""

import contextlib
import dataclasses
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TextColumn
from rich.table import Table

from infodis.cli.options import ReadingOptions, RunOptions
from infodis.cli.screen import ProgressLine, console, input_path, progress_console, working, write_records
from infodis.errors import InputError
from infodis.files import check_apart
from infodis.settings import versions

if TYPE_CHECKING:
    from infodis.jobs.inputs import InputSpec
    from infodis.jobs.job import Job
    from infodis.jobs.run import Executor, FinishedRun, Input, RunProgress

REJECTED, INTERRUPTED = 3, 130
"""Exit codes beside 0 (done), 1 (failed) and 2 (wrong usage)."""

LOG_SECONDS = 10
"""Between lines where there is no terminal for a bar."""

SUMMARIES = ("perplexity",)
"""Commands of which only the summary is wanted, unless an output is named."""

SHOWN_REASONS, MOST_REASONS = 3, 1000
"""Reasons of rejected rows that are printed, and that are told apart."""

SAMPLE = 16
"""Rows that a dry run scores to see how long they take."""


def input_rows(name: str, evaluations: int | None, reading: ReadingOptions, running: RunOptions) -> "InputSpec":
    """The rows of a file, in shards of about as much work each, whatever a row costs."""
    from infodis.jobs.inputs import InputSpec, field_names

    size = running.shard_rows or max(16, min(4096, 2**15 // (evaluations or 128)))
    return InputSpec(name, size, running.limit, reading.format, field_names(reading.fields or []), reading.kept)


@dataclasses.dataclass(frozen=True)
class Results:
    """What a run came to, and where to tell it."""

    finished: "FinishedRun"
    screen: Console
    numbers: dict[str, Any]
    """The summary and the totals."""
    named: bool
    """Whether the user named the output: else it is gone when the command ends."""

    def show(self, table: Table) -> None:
        """Print a summary, where the records are, and what became of the others."""
        finished = self.finished
        self.screen.print(table)
        if not finished.fresh:
            self.screen.print("Nothing was left to do: an earlier run had finished.")
        if finished.redone:
            self.screen.print(f"{finished.redone} damaged parts (or lines about them) were done again.")
        if self.named:
            self.screen.print(f"Records: {finished.out}")
        if finished.rejected is not None:
            show_rejected(finished.rejected, finished.totals, self.screen, named=self.named)


def show_rejected(path: Path, totals: dict[str, float], screen: Console, *, named: bool = True) -> None:
    """How many rows were rejected and why: the most frequent reasons, each with its first line."""
    count, scored = int(totals["rejected"]), int(totals.get("rows", 0))
    reasons: dict[str, list[int]] = {}
    with path.open(encoding="utf-8") as file:
        for row in map(json.loads, file):
            reason = f"{row['field']}: {row['reason']}" if row["field"] else row["reason"]
            if reason in reasons or len(reasons) < MOST_REASONS:
                reasons.setdefault(reason, [0, row["line"]])[0] += 1
    share = f"{count:,} of {count + scored:,}" if scored else "All"
    where = f": {path}" if named else ". Name an output with --out to have them in a file."
    screen.print(f"{share} rows were rejected{where}", soft_wrap=True)
    for reason, (rows, line) in sorted(reasons.items(), key=lambda one: -one[1][0])[:SHOWN_REASONS]:
        screen.print(f"  {rows:,} row{'s' if rows > 1 else ''}, first on line {line}: {reason}", soft_wrap=True)
    if len(reasons) > SHOWN_REASONS:
        screen.print(f"  and {len(reasons) - SHOWN_REASONS:,} other reasons", soft_wrap=True)


@contextlib.contextmanager
def results(
    job: "Job", input: "Input", options: RunOptions, *, reads: Sequence[str], writes: Sequence[Path] = ()
) -> Iterator[Results]:
    """Run a job to its end, for a command that then shows its results; or only say what it would do.

    Without an output, records go to standard output, and all else to standard error; unless the command is about
    its summary only. Ends the command with an exit code if rows were rejected.
    """
    if options.dry_run:
        console.print(dry_run(job, input, options))
        raise typer.Exit
    with tempfile.TemporaryDirectory() as scratch:
        out = options.out or Path(scratch) / "records.jsonl"
        finished = finish(job, input, options, out, reads=reads, writes=writes)
        piped = options.out is None and job.command not in SUMMARIES
        if piped:
            with out.open("rb") as file:
                write_records(file)
        screen, numbers = progress_console if piped else console, {**finished.summary, **finished.totals}
        yield Results(finished, screen, numbers, named=options.out is not None)
    if finished.totals.get("rejected"):
        raise typer.Exit(REJECTED)


def finish(
    job: "Job", input: "Input", options: RunOptions, out: Path, *, reads: Sequence[str], writes: Sequence[Path] = ()
) -> "FinishedRun":
    """Run a job to its end. `reads` and `writes` are all other files of the command: none may be in another's way."""
    from infodis.jobs.run import RunPlan, run
    from infodis.jobs.store import places, settled

    own = () if options.out is None else places(out)
    check_apart(reads=map(input_path, reads), writes=(*own, *writes))
    if not out.parent.is_dir():
        raise InputError(f"There is no directory {out.parent} to write {out.name} to. Make it first.")
    threads = options.threads or (settled(out, "threads") if options.resume else None) or _threads(options)
    plan = RunPlan(
        out=out,
        job=job,
        input=input,
        settings={"threads": threads, **versions()},
        provenance={"command_line": sys.argv[1:], "python": sys.version.split()[0]},
        executor=_executor(options, job.model.options.device),
        threads=threads,
        resume=options.resume,
        strict=options.strict,
    )
    try:
        with progress_console.status(f"reading the files of {job.model.name} ..."):
            job.settings()  # hashes the weights, once
        with _threads_kept(), RowsProgress(job.model.name) as progress:
            return run(plan, progress.show)
    except KeyboardInterrupt:
        option = "" if options.resume else " without --no-resume"
        kept = "" if options.out is None else f" What was finished is kept: rerun the same command{option} to resume."
        progress_console.print(f"Stopped.{kept}")
        raise typer.Exit(INTERRUPTED) from None


def _threads(options: RunOptions) -> int:
    """Of a worker: all cores together; on a cluster, what Ray sets aside for it."""
    if options.engine == "ray":
        return options.threads or max(1, int(options.worker_cpus))
    return options.threads or max(1, (os.cpu_count() or 1) // options.workers)


def _check_gpus(options: RunOptions, device: str) -> None:
    """Workers of Ray see the GPUs that are set aside for them and no other; `auto` is what there is at the head."""
    if device.startswith("cuda") and not options.worker_gpus:
        raise InputError(
            f"Workers of Ray must be given GPUs to compute on {device}, got none. Say --worker-gpus 1 or --device cpu."
        )
    if device == "cpu" and options.worker_gpus:
        raise InputError(
            f"Workers must compute on the {options.worker_gpus:g} GPUs that each is given, but the device is cpu. Say "
            "--device cuda, or leave --worker-gpus out."
        )


def _executor(options: RunOptions, device: str) -> "Executor":
    from infodis.jobs.local import LocalProcesses
    from infodis.jobs.run import InProcess

    if options.engine == "ray":
        from infodis.jobs.ray import RayActors

        _check_gpus(options, device)
        return RayActors(options.workers, options.ray_address, options.worker_cpus, options.worker_gpus)
    if options.engine != "local":
        raise InputError(f"--engine is local or ray, got {options.engine!r}.")
    return InProcess() if options.workers == 1 else LocalProcesses(options.workers)


@contextlib.contextmanager
def _threads_kept() -> Iterator[None]:
    """Whoever calls a command from Python has the threads afterwards that it had before."""
    import torch

    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)


def dry_run(job: "Job", input: "Input", options: RunOptions) -> Table:
    """What a run would do, and how long that would take, judged by its first rows."""
    import torch

    with tempfile.TemporaryDirectory() as scratch, _threads_kept():
        torch.set_num_threads(_threads(options))
        shards = input.cut(Path(scratch))
        sample = shards.read(0)[:SAMPLE]
        with working(f"loading {job.model.name}"):
            job.load()
        job.score(sample[:1])  # the first pass pays for what later ones do not
        begin = time.perf_counter()
        records, rejected = job.score(sample)
        seconds = time.perf_counter() - begin
    share = shards.rows / len(sample)
    table = Table("", "", title="What would be done", show_header=False)
    table.add_row("rows", f"{shards.rows:,} in {shards.shards:,} shards")
    table.add_row("forward passes", f"about {sum(record['evaluations'] for record in records) * share:,.0f}")
    table.add_row("time", f"about {_duration(seconds * share / options.workers)} with {options.workers} worker(s)")
    if rejected:
        first = rejected[0]
        table.add_row("rejected", f"{len(rejected)} of {len(sample)}; line {first['line']}: {first['reason']}")
    table.caption = f"Extrapolated from the first {len(sample)} rows, which took {seconds:.2f} s."
    return table


def _duration(seconds: float) -> str:
    for size, name in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {name}"
    return f"{seconds:.1f} seconds"


class RowsProgress(ProgressLine):
    """Rows that are done, how fast, and how long the others take; before that, that the model loads."""

    def __init__(self, model: str) -> None:
        text = TextColumn("{task.description}", markup=False)
        super().__init__(SpinnerColumn(), BarColumn(), text, every=LOG_SECONDS)
        self._model, self._task = model, self.bar.add_task("", total=None)
        self._begin: float | None = None
        """When the model was loaded."""
        self._said_loading = False

    def show(self, state: "RunProgress") -> None:
        if not state.loaded:
            self._loading()
            return
        self._begin = self._begin or time.monotonic()
        seconds = time.monotonic() - self._begin
        text = f"{int(state.about):,}/{state.rows:,} rows{_rates(state, seconds)}"
        if progress_console.is_terminal:
            self.bar.update(self._task, total=state.rows, completed=state.about, description=text)
        elif state.passes or state.done > state.before:
            self.print_sometimes(text)

    def _loading(self) -> None:
        text = f"loading {self._model} ..."
        self.bar.update(self._task, description=text)
        if not progress_console.is_terminal and not self._said_loading:
            progress_console.print(text, soft_wrap=True)
        self._said_loading = True


def _rates(state: "RunProgress", seconds: float) -> str:
    """From the first batch on."""
    rows, passes = state.about - state.before, max(float(state.passes), state.spent)
    if rows <= 0 or seconds <= 0:
        return ""
    speed = f", {rows / seconds:,.3g} rows/s, {passes / seconds:,.0f} forward passes/s"
    scored = state.totals.get("rows", 0)
    error = f", mean standard error {state.totals['standard_error'] / scored:.3g}" if scored else ""
    return f"{speed}{error}, {_duration(seconds / rows * (state.rows - state.about))} left"
