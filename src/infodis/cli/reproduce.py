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
    from collections.abc import Callable

    from infodis.apps.reproduce.experiment import Experiment, ExperimentResult, Size, Workspace
    from infodis.apps.reproduce.writing import Done

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
            help="theory, dna-unconditional, dna-conditional, dna-order-2, variance-time-free, variance-ratio, "
            "ood-text8, audit-llada; or all."
        ),
    ],
    full: Annotated[bool, typer.Option("--full", help="The paper's own size: its models, steps and counts.")] = False,
    smoke: Annotated[bool, typer.Option("--smoke", help="Seconds instead of minutes: does it run? Proves nothing.")] = (
        False
    ),
    train: Annotated[
        bool,
        typer.Option("--train", help="Train toy networks anew, by their recipes, instead of scoring those that ship."),
    ] = False,
    authors: Annotated[
        Path | None,
        typer.Option(help="A clone of the authors' repository (github.com/Dongjae0324/infodis): their data, not ours."),
    ] = None,
    designs: Annotated[
        str | None,
        typer.Option(
            help="Designs that variance-time-free runs repeatedly, by commas: time-integral, time-free, script, "
            "uniform-count, llada, stratified-count, pairs, tiled, orders, orders-antithetic, tiled-neighbours."
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what it takes: passes, tokens, GPU-hours.")] = (
        False
    ),
    stand_in: Annotated[
        int | None, typer.Option(hidden=True, help="Of tests: tiny networks, few steps, and so many texts at most.")
    ] = None,
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

    [bold]infodis reproduce audit-llada --full --authors infodis-of-the-authors --dry-run[/bold]

    [bold]infodis reproduce all --document docs/reproduction.md[/bold]
    """
    from infodis.apps.reproduce.catalog import ALL, EXPERIMENTS, experiments_named
    from infodis.apps.reproduce.experiment import StandIn, Workspace
    from infodis.apps.reproduce.variance import VarianceTimeFree
    from infodis.apps.reproduce.variance_texts import chosen_designs
    from infodis.apps.reproduce.writing import PAGE

    if full and smoke:
        raise InputError("--full and --smoke are two sizes; choose one.")
    if authors is not None and not (authors / "data").is_dir():
        raise InputError(f"{authors} has no directory data. --authors names a clone of github.com/Dongjae0324/infodis.")
    names = tuple(filter(None, (designs or "").split(",")))
    chosen_designs(names)
    if names and name not in (VarianceTimeFree.name, ALL):
        raise InputError(f"--designs is for {VarianceTimeFree.name}; {name} has its own. Leave it out.")
    if data is not None and not data.exists():
        raise InputError(f"There is no {data}. --data names a directory with texts, or a file of triplets.")
    if document is not None:
        _check_document(document, smoke=smoke)
    chosen = experiments_named(name)
    if model is not None and stand_in is None and name in (own := [one.name for one in EXPERIMENTS if one.own_model]):
        raise InputError(f"{' and '.join(own)} have models of their own; --model is for the others.")
    size: Size = "full" if full else "smoke" if smoke else "laptop"
    page = out / size / PAGE
    writes = [page, *(out / size / one.name for one in chosen), *([] if document is None else [document])]
    check_apart(reads=[one for one in (data, authors) if one is not None], writes=writes)
    spare = None if stand_in is None else StandIn(stand_in, model)

    def workspace(experiment: "Experiment") -> "Workspace":
        return Workspace(
            out / size / experiment.name,
            size,
            seed,
            data,
            model if spare is None else None,  # in a test it stands for the paper's large one, not for its toys
            device,
            authors if experiment.has_authors_data else None,
            train,
            names,
            spare,
        )

    if dry_run:
        _show_costs([(one, workspace(one)) for one in chosen])
        return
    if name == ALL:
        check_own(page)
    done, failed = [], []

    def attempt(experiment: "Experiment", step: "Callable[[Experiment, Workspace], Done | None]") -> "Done | None":
        try:
            return step(experiment, workspace(experiment))
        except InputError as problem:
            if len(chosen) == 1:
                raise
            failed.append(experiment.name)
            progress_console.error(str(problem), label=experiment.name)
            return None

    if authors is not None and (without := [one.name for one in chosen if not one.has_authors_data]):
        progress_console.print(f"The authors' repository holds no data for {', '.join(without)}: run as without it.")
    for experiment in chosen:  # what is missing is told before hours of work on something else
        attempt(experiment, lambda one, where: one.check(where))
    for experiment in chosen:
        if experiment.name not in failed and (finished := attempt(experiment, _one)) is not None:
            done.append(finished)
    _write_together(done, page if name == ALL else None, document)
    if failed:
        raise InputError(f"Not run: {', '.join(failed)}, see above. The others are in {out / size}.")


def _show_costs(planned: "list[tuple[Experiment, Workspace]]") -> None:
    """What runs will take, at most."""
    table = Table("experiment", "forward passes", "M tokens in them", "M tokens of training", "GPU-hours")
    for experiment, workspace in planned:
        cost = experiment.cost(workspace)
        hours = f"{cost.gpu_hours:,.1f}" if cost.weights else ""
        parts = (f"{cost.passes:,}", f"{cost.tokens / 1e6:,.1f}", f"{cost.trained / 1e6:,.1f}", hours)
        table.add_row(experiment.name, *parts)
    console.print(table)
    console.print("At most; GPU-hours are those of the 8 B model on one GPU that does 120 TFLOPS.")


def _check_document(document: Path, *, smoke: bool) -> None:
    """Refuse a document that cannot be written before the work begins."""
    from infodis.apps.reproduce.writing import sections_of

    if not document.parent.is_dir():
        raise InputError(f"There is no directory {document.parent} to write {document.name} to. Make it first.")
    if smoke:
        raise InputError("A smoke run proves nothing, and is not written to a --document.")
    sections_of(document)


def _one(experiment: "Experiment", workspace: "Workspace") -> "Done":
    from infodis.apps.reproduce.writing import write_result

    progress_console.print(f"{experiment.name}: {experiment.title} ({experiment.paper})")
    progress_console.print(f"At most {experiment.cost(workspace)}.")
    workspace.directory.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    with _ExperimentProgress() as watching, locked(workspace.directory):
        result = experiment.run(dataclasses.replace(workspace, progress=watching, notice=progress_console.print))
        minutes = workspace.keep("minutes", {}, lambda: (time.monotonic() - start) / 60)  # not of a rerun
        result = dataclasses.replace(result, minutes=minutes)
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


def _write_together(done: "list[Done]", page: Path | None, document: Path | None) -> None:
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
