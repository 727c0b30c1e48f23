"""`infodis reproduce`: experiments of the paper, each by its name."""

import dataclasses
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from infodis.cli.options import Device, Seed
from infodis.cli.screen import ProgressLine, console, progress_console
from infodis.errors import InputError
from infodis.files import check_apart, check_own, locked

if TYPE_CHECKING:
    from infodis.apps.reproduce.experiment import Experiment, ExperimentResult, Size, Workspace

LOG_SECONDS = 30
STYLES = {
    "holds": "green",
    "holds in part": "yellow",
    "undecided": "yellow",
    "does not hold": "bold red",
    "not tested here": "dim",
}


def reproduce(
    name: Annotated[
        str,
        typer.Argument(
            help="theory, dna-unconditional, dna-conditional, variance-time-free, variance-ratio, ood-text8, "
            "audit-llada; or all."
        ),
    ],
    full: Annotated[bool, typer.Option("--full", help="The paper's own size: its models, steps and counts.")] = False,
    smoke: Annotated[bool, typer.Option("--smoke", help="Seconds instead of minutes: does it run? Proves nothing.")] = (
        False
    ),
    data: Annotated[
        Path | None,
        typer.Option(
            help="A directory with the texts that some of them need, instead of data; or a file of {prompt, "
            "chosen, rejected} for variance-ratio. What is not there is fetched from the Hugging Face hub."
        ),
    ] = None,
    model: Annotated[str | None, typer.Option(help="Another model than an experiment's own.")] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="For numbers, figures, pages, and what was done so far.")] = (
        Path("out/reproduce")
    ),
    document: Annotated[
        Path | None,
        typer.Option(
            help="A Markdown file to write to, or to bring up to date; figures go to images/reproduction beside it."
        ),
    ] = None,
    seed: Seed = 0,
    device: Device = "auto",
) -> None:
    """Run an experiment of the paper: data, training if any, estimates, figures, and a page with what holds.

    Every one finishes on two cores; --full is the paper's size. Numbers (outcome.json), figures and report.html land in
    a directory of --out. Rerun a killed command to resume; a finished one
    answers from what is there.

    Examples:
    [bold]infodis reproduce theory[/bold]

    [bold]infodis reproduce variance-time-free --data DIR --out out/reproduce[/bold]

    [bold]infodis reproduce variance-ratio --data preferences.jsonl --model GSAI-ML/LLaDA-8B-Base[/bold]

    [bold]infodis reproduce all --document docs/reproduction.md[/bold]
    """
    from infodis.apps.reproduce.catalog import ALL, EXPERIMENTS, experiments_named
    from infodis.apps.reproduce.experiment import Workspace
    from infodis.apps.reproduce.writing import PAGE

    if full and smoke:
        raise InputError("--full and --smoke are two sizes; choose one.")
    if data is not None and not data.exists():
        raise InputError(f"There is no {data}. --data names a directory with texts, or a file of triplets.")
    if document is not None:
        _check_document(document, smoke=smoke)
    chosen = experiments_named(name)
    if model is not None and name in (own := [one.name for one in EXPERIMENTS if one.own_model]):
        raise InputError(f"{' and '.join(own)} have models of their own; --model is for the others.")
    size: Size = "full" if full else "smoke" if smoke else "laptop"
    page = out / size / PAGE
    writes = [page, *(out / size / one.name for one in chosen), *([] if document is None else [document])]
    check_apart(reads=[] if data is None else [data], writes=writes)
    if name == ALL:
        check_own(page)
    done, failed = [], []
    for experiment in chosen:
        try:
            done.append(_one(experiment, Workspace(out / size / experiment.name, size, seed, data, model, device)))
        except InputError as problem:
            if len(chosen) == 1:
                raise
            failed.append(experiment.name)
            progress_console.error(str(problem), label=experiment.name)
    _write_together(done, page if name == ALL else None, document)
    if failed:
        raise InputError(f"Not run: {', '.join(failed)}, see above. The others are in {out / size}.")


def _check_document(document: Path, *, smoke: bool) -> None:
    """Refuse a document that cannot be written before the work begins."""
    from infodis.apps.reproduce.writing import sections_of

    if not document.parent.is_dir():
        raise InputError(f"There is no directory {document.parent} to write {document.name} to. Make it first.")
    if smoke:
        raise InputError("A smoke run proves nothing, and is not written to a --document.")
    sections_of(document)


def _one(experiment: "Experiment", workspace: "Workspace") -> "tuple[Experiment, ExperimentResult, Workspace]":
    from infodis.apps.reproduce.writing import write_result

    progress_console.print(f"{experiment.name}: {experiment.title} ({experiment.paper})")
    workspace.directory.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    with _ExperimentProgress() as watching, locked(workspace.directory):
        result = experiment.run(dataclasses.replace(workspace, progress=watching))
        write_result(experiment, result, workspace)
    _show(experiment, result, workspace)
    progress_console.print(f"This run took {(time.monotonic() - start) / 60:.1f} minutes.")
    return experiment, result, workspace


def _show(experiment: "Experiment", result: "ExperimentResult", workspace: "Workspace") -> None:
    from infodis.apps.reproduce.writing import PAGE

    table = Table("the paper", "here", "verdict", title=experiment.title, show_lines=True)
    for claim in result.claims:
        style = STYLES[claim.verdict]
        table.add_row(claim.paper, claim.found, Text(claim.verdict, style))
    console.print(table)
    if workspace.size == "smoke":
        console.print("A smoke run shows that it runs; its verdicts mean nothing.")
    console.print(f"Page: {workspace.directory / PAGE}", soft_wrap=True)


def _write_together(
    done: "list[tuple[Experiment, ExperimentResult, Workspace]]", page: Path | None, document: Path | None
) -> None:
    from infodis.apps.reproduce.catalog import EXPERIMENTS
    from infodis.apps.reproduce.writing import write_all, write_document

    if page is not None and done:
        write_all(done, page)
        console.print(f"Everything: {page}", soft_wrap=True)
    if document is not None and done:
        write_document(done, document, order=[one.name for one in EXPERIMENTS])
        console.print(f"Document: {document}", soft_wrap=True)


class _ExperimentProgress(ProgressLine):
    """What is being done, and how much of it."""

    def __init__(self) -> None:
        text = TextColumn("{task.description}", markup=False)
        columns = (BarColumn(), MofNCompleteColumn(), text, TimeRemainingColumn())
        super().__init__(*columns, every=LOG_SECONDS)
        self._task = self.bar.add_task("", total=None)

    def __call__(self, what: str, done: int, total: int) -> None:
        if not progress_console.is_terminal:
            self.print_sometimes(f"{what}: {done:,} of {total:,}")
            return
        if self.bar.tasks[0].description.split(":")[0] != what.split(":")[0]:
            self.bar.reset(self._task)
        self.bar.update(self._task, completed=done, total=total, description=what)
