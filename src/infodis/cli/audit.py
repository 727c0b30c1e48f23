"""`infodis audit`: two groups of rows under one model, what tells them apart, and what else could."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from infodis.cli.options import ReadingOptions, RunOptions, Seed, with_options
from infodis.cli.running import REJECTED, dry_run, finish, input_rows, show_rejected
from infodis.cli.screen import console, input_path, progress_console
from infodis.errors import InputError
from infodis.files import check_apart, check_own
from infodis.models.spec import ModelSpec
from infodis.settings import option

if TYPE_CHECKING:
    from infodis.apps.audit.analysis import Audit
    from infodis.apps.audit.measure import AuditJob
    from infodis.apps.audit.records import Group
    from infodis.jobs.inputs import InputSpec

EVALUATIONS = 64
"""Masks of a row unless more are asked for: rows differ by more than their errors."""


@dataclasses.dataclass(frozen=True)
class DirectoryOptions(RunOptions):
    """The same for a command that writes a directory."""

    out: Path | None = option(None, "A directory: records, statistics, figures, the report.", "--out", "-o")


@dataclasses.dataclass(frozen=True)
class GroupInput:
    """Rows of a group: a file, the field with their responses if it is not the usual one, and what they are called."""

    label: str
    """Of its files in the directory."""
    name: str
    input: str
    field: str | None = None


@with_options
def audit(
    model: ModelSpec,
    reading: ReadingOptions,
    running: DirectoryOptions,
    a: Annotated[str | None, typer.Argument(help="Rows of the first group; JSONL, CSV, TSV, Parquet or text.")] = None,
    b: Annotated[str | None, typer.Argument(help="Rows of the second group.")] = None,
    responses: Annotated[
        str | None, typer.Option(help="Two fields of one file, instead of a second file: y_human,y_llm.")
    ] = None,
    task: Annotated[str, typer.Option(help="ood, shift or membership: what is asked, and in which words.")] = "ood",
    members: Annotated[str | None, typer.Option(help="Rows known to be in the training data.")] = None,
    nonmembers: Annotated[str | None, typer.Option(help="Fresh rows of the same kind, known not to be.")] = None,
    names: Annotated[str | None, typer.Option(help="What the groups are called: human,gpt.")] = None,
    reference: Annotated[str | None, typer.Option(help="Another model, to compare with under shared masks.")] = None,
    evaluations: Annotated[
        int, typer.Option(min=4, help="Masks of a row, given the prompt, without it and under the reference alike.")
    ] = EVALUATIONS,
    seed: Seed = 0,
) -> None:
    """Does a model tell two groups of rows apart: in and out of its distribution, old and new, members and not?

    Every row is scored given its prompt, without it, and under a reference if there is one, all with shared masks.
    Then: AUROC, detection rates, effect size with intervals, a permutation p-value, pairs where prompts are shared;
    and baselines without a model: does length, or do capitals, separate the groups as well? Records and a
    report to open in a browser land in --out; after a kill, rerun the same command to resume.

    Examples:
    [bold]infodis audit human.jsonl generated.jsonl --model text8-tiny --out audit[/bold]

    [bold]infodis audit pairs.jsonl --responses y_human,y_llm --field prompt=x --names human,gpt --out audit[/bold]

    [bold]infodis audit candidates.jsonl --task membership --members train.jsonl --nonmembers fresh.jsonl -o out[/bold]
    """
    from infodis.apps.audit.analysis import check_extra, task_named
    from infodis.apps.audit.measure import AuditJob
    from infodis.estimate import Request

    check_extra()
    asked = task_named(task)
    sides = _sides(asked.name, [a, b], [members, nonmembers], responses, names, asked.groups)
    other = None if reference is None else dataclasses.replace(model, name=reference)
    job = AuditJob(model, Request(evaluations=evaluations), reading.reading(), seed, other)
    if running.dry_run:
        for side in sides:
            console.print(dry_run(job, _rows(side, job, reading, running), running))
        return
    directory = _directory(running, [input_path(side.input) for side in sides])
    inputs = [side.input for side in sides]
    groups = [_measured(side, job, reading, running, directory, reads=inputs) for side in sides]
    found = _analysed(asked.name, groups, by_id=responses is not None, seed=seed)
    _write(found, directory)
    _print(found, directory)
    if any(group.rejected for group in groups):
        raise typer.Exit(REJECTED)


def _sides(
    task: str,
    files: list[str | None],
    known: list[str | None],
    responses: str | None,
    names: str | None,
    usual: tuple[str, str],
) -> list[GroupInput]:
    """The two groups, and behind them rows in question, if there are any."""
    given = [file for file in files if file is not None]
    called = _two(names, "--names") or list(usual)
    if any(known):
        return _known_sides(task, given, known, called)
    if responses is not None:
        if len(given) != 1:
            raise InputError(f"--responses names two fields of one file; {len(given)} files were given.")
        fields = _two(responses, "--responses")
        called = called if names else fields
        return [
            GroupInput(label, name, given[0], field) for label, name, field in zip("ab", called, fields, strict=True)
        ]
    if len(given) != 2:
        raise InputError(
            f"Two groups are needed, {len(given)} files were given: infodis audit A B, or one file with --responses."
        )
    return [GroupInput(label, name, file) for label, name, file in zip("ab", called, given, strict=True)]


def _known_sides(task: str, given: list[str], known: list[str | None], called: list[str]) -> list[GroupInput]:
    if task != "membership":
        raise InputError(f"--members and --nonmembers belong to --task membership; the task is {task}.")
    members, nonmembers = known
    if members is None or nonmembers is None:
        raise InputError("Membership needs both: --members, and --nonmembers of the same kind.")
    if len(given) > 1:
        raise InputError(f"With --members and --nonmembers there is at most one file in question, got {len(given)}.")
    questioned = [GroupInput("questioned", "in question", file) for file in given]
    return [GroupInput("a", called[0], members), GroupInput("b", called[1], nonmembers), *questioned]


def _two(words: str | None, option: str) -> list[str]:
    found = [] if words is None else [word.strip() for word in words.split(",")]
    if found and (len(found) != 2 or not all(found) or found[0] == found[1]):
        raise InputError(f"{option} takes two different words with a comma between them, got {words!r}.")
    return found


def _directory(running: RunOptions, reads: list[Path]) -> Path:
    """Where everything goes, if nothing of somebody else is in its way."""
    if running.out is None:
        raise InputError("An audit writes records, figures and a report: name a directory with --out.")
    if running.out.exists() and not running.out.is_dir():
        raise InputError(f"{running.out} is a file. Name a directory with --out.")
    if not running.out.parent.is_dir():
        raise InputError(f"There is no directory {running.out.parent} to make {running.out.name} in. Make it first.")
    from infodis.apps.audit.reporting import FIGURES, PAGE, STATISTICS

    check_apart(reads=reads, writes=[running.out / name for name in (FIGURES, PAGE, STATISTICS)])
    for name in (PAGE, STATISTICS):
        check_own(running.out / name)
    running.out.mkdir(exist_ok=True)
    return running.out


def _rows(side: GroupInput, job: "AuditJob", reading: ReadingOptions, running: RunOptions) -> "InputSpec":
    found = input_rows(side.input, job.request.rows, reading, running)
    return dataclasses.replace(
        found, fields={**found.fields, **({} if side.field is None else {"response": side.field})}
    )


def _measured(
    side: GroupInput,
    job: "AuditJob",
    reading: ReadingOptions,
    running: RunOptions,
    directory: Path,
    *,
    reads: list[str],
) -> "Group":
    from infodis.apps.audit.records import Group

    out = directory / f"{side.label}.jsonl"
    progress_console.print(f"{side.name}: {side.input}", soft_wrap=True)
    finished = finish(job, _rows(side, job, reading, running), running, out, reads=reads)
    if finished.rejected is not None:
        show_rejected(finished.rejected, finished.totals, progress_console)
    return Group.read(side.name, out, rejected=int(finished.totals.get("rejected", 0)))


def _analysed(task: str, groups: list["Group"], *, by_id: bool, seed: int) -> "Audit":
    from infodis.apps.audit.analysis import analyse, task_named

    with progress_console.status("Resampling and checking for confounds"):
        return analyse(task_named(task), groups, same_rows=by_id, seed=seed)


def _write(found: "Audit", directory: Path) -> None:
    from infodis.apps.audit.reporting import write_audit
    from infodis.cli.report import provenance

    write_audit(found, directory, provenance([directory / "a.jsonl", directory / "b.jsonl"]))


def _print(found: "Audit", directory: Path) -> None:
    from infodis.apps.audit.reporting import PAGE, findings, interval_text, p_text, percent

    for finding in findings(found):
        mark = ("!", "bold yellow") if finding.warning else ("·", "bold green")
        console.print(Text.assemble(mark, " ", finding.text))
    rates = [f"TPR at {percent(rate)} FPR" for rate in found.main.tpr]
    title = f"{found.positive.name} against {found.negative.name}"
    table = Table("score", "AUROC", *rates, "effect size", "p", "adjusted p", title=title)
    for one, adjusted in zip(found.separations, found.adjusted, strict=True):
        caught = [interval_text(rate) for rate in one.tpr.values()]
        numbers = (interval_text(one.auroc), *caught, interval_text(one.effect))
        table.add_row(one.score, *numbers, p_text(one.p_value), p_text(adjusted))
    if found.confounds.ngrams is not None:
        table.add_section()
        table.add_row("character n-grams, no model", interval_text(found.confounds.ngrams.auroc))
    console.print(table)
    console.print(f"Report: {directory / PAGE}", soft_wrap=True)
