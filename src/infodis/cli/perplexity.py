"""`infodis perplexity`: long documents under one model, or under several side by side."""

import dataclasses
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from infodis.cli.options import PrecisionOptions, ReadingOptions, RunOptions, with_options
from infodis.cli.running import REJECTED, dry_run, finish, input_rows, results
from infodis.cli.score import add_rate, add_unknown
from infodis.cli.screen import console, working
from infodis.errors import InputError
from infodis.models.options import WIRING
from infodis.models.spec import ModelSpec

if TYPE_CHECKING:
    from infodis.jobs.documents import DocumentsSpec
    from infodis.jobs.rolling import PerplexityJob
    from infodis.quantities.perplexity import Windows

WINDOW_EVALUATIONS = 32
"""Forward passes of a window unless more are asked for: there are many windows, and errors of many average out."""

WINDOW_TOKENS = 256
"""Of a window, for models that do not say what they were trained with."""

RATE = ("value", "monte_carlo_error", "sampling_error")


@with_options
def perplexity(
    input: Annotated[str, typer.Argument(help="A text file, or JSONL, CSV or Parquet with a document a row; .gz too.")],
    model: ModelSpec,
    precision: PrecisionOptions,
    reading: ReadingOptions,
    running: RunOptions,
    against: Annotated[
        list[str] | None, typer.Option(help="Another model, for a table of all side by side. Repeatable.")
    ] = None,
    length: Annotated[int | None, typer.Option(min=1, help="Tokens in a window; as in training unless given.")] = None,
    stride: Annotated[
        int | None, typer.Option(min=1, help="Tokens scored per window, given the rest. Default: all, given nothing.")
    ] = None,
    windows: Annotated[int | None, typer.Option(min=1, help="Score so many, evenly spread. Default: all.")] = None,
    evaluations: Annotated[
        int | None,
        typer.Option(
            min=1, help=f"Forward passes for each window: {WINDOW_EVALUATIONS}; with an error asked for at most 4,096."
        ),
    ] = None,
) -> None:
    """Bits per token and per byte of long documents, with the error from masks and the error from text.

    A window of --length tokens moves on by --stride; only what is new in it is scored, given the rest of it. The first
    error comes from the masks drawn; the second is the sampling error over documents, or over windows of a single one.

    With --against, several models stand in one table of bits per byte: full diffusion, block diffusion and
    autoregressive ones. Their windows are those of the model with the shortest. --block-size and other options that
    say what a model is are about --model alone; records of each model go to an output with its name.

    Examples: [bold]infodis perplexity novel.txt --model text8-tiny --windows 200 --stride 128[/bold]

    [bold]infodis perplexity novel.txt -m text8-tiny --against text8-block4 --against text8-causal[/bold]
    """
    from infodis.jobs.documents import DocumentsSpec
    from infodis.jobs.rolling import PerplexityJob
    from infodis.quantities.perplexity import Windows

    _check_documents(input, reading, running)
    if evaluations is None and precision.standard_error is None and precision.relative is None:
        precision = dataclasses.replace(precision, evaluations=WINDOW_EVALUATIONS)
    specs = [model, *(_beside(model, name) for name in against or [])]
    jobs = [PerplexityJob(spec, precision.request(), precision.seed) for spec in specs]
    rolled = Windows(length or min(_window_tokens(job, reading.max_length) for job in jobs), stride)
    rows = input_rows(input, precision.evaluations, reading, running)
    documents = [DocumentsSpec(rows, rolled, windows, job.loaded_model) for job in jobs]
    if len(jobs) > 1:
        _side_by_side(jobs, documents, running)
        return
    with results(jobs[0], documents[0], running, reads=[input]) as found:
        found.show(_perplexity_table(found.numbers, input, model.name, rolled))


def _beside(model: ModelSpec, name: str) -> ModelSpec:
    """Another model, computed alike. What is said about how the first one is wired is not about it."""
    wired = (field for field in dataclasses.fields(model.options) if field.name in WIRING)
    plain: dict[str, Any] = {field.name: field.default for field in wired}
    return dataclasses.replace(model, name=name, options=dataclasses.replace(model.options, **plain))


def _window_tokens(job: "PerplexityJob", longest: int | None) -> int:
    """Of a window without the special tokens around it."""
    with working(f"loading {job.model.name}"):
        job.load()
    around = sum(len(part) for part in job.loaded_model.around())
    return (longest or job.loaded_model.length or WINDOW_TOKENS) - around


def _check_documents(input: str, reading: ReadingOptions, running: RunOptions) -> None:
    """Options that say nothing about documents are refused, not ignored."""
    from infodis.jobs.inputs import is_table

    if reading.chat_template or reading.truncate or reading.kept:
        raise InputError(
            "Documents are read in windows, without a prompt: leave --chat-template, --truncate and --keep out."
        )
    if running.limit is not None and not is_table(input, reading.format):
        raise InputError(f"--limit counts documents, and {input} is one long text: give --windows instead.")


def _side_by_side(jobs: "Sequence[PerplexityJob]", documents: "Sequence[DocumentsSpec]", running: RunOptions) -> None:
    """Run one model after another, each with an output of its own, and show all in one table."""
    names = [Path(job.model.name).name for job in jobs]
    if len(set(names)) < len(names):
        raise InputError(f"Models that are compared must have different names, got {', '.join(names)}. Rename one.")
    if running.dry_run:
        for job, rows in zip(jobs, documents, strict=True):
            console.print(dry_run(job, rows, running))
        return
    found = {}
    with tempfile.TemporaryDirectory() as scratch:
        base = running.out or Path(scratch) / "records.jsonl"
        for name, job, rows in zip(names, jobs, documents, strict=True):
            out = base.with_name(f"{base.stem}.{name}{base.suffix}")
            mine = dataclasses.replace(running, out=None if running.out is None else out)
            finished = finish(job, rows, mine, out, reads=[rows.input.input])
            found[name] = {**finished.summary, **finished.totals}
    console.print(_models_table(found, documents[0]))
    if any(numbers.get("rejected") for numbers in found.values()):
        raise typer.Exit(REJECTED)


def _models_table(found: dict[str, dict[str, Any]], documents: "DocumentsSpec") -> Table:
    """A model a line. Errors from masks are zero where every mask was evaluated, or nothing is masked."""
    units = next(iter(found.values()))["units"]
    title = f"{documents.input.input}, windows of {documents.rolled.length} tokens"
    table = Table("model", "bits per byte", "± masks", f"± {units}", "bits per token", "passes a window", title=title)
    for name, numbers in found.items():
        passes = f"{numbers['evaluations'] / numbers['windows']:.1f}"
        table.add_row(name, *_cells(numbers["bits_per_byte"]), _cells(numbers["bits_per_token"])[0], passes)
    return table


def _cells(rate: dict[str, float | None] | None) -> list[str]:
    """A rate and its two errors; empty where there is none."""
    value, masks, units = (None if rate is None else rate[name] for name in RATE)
    shown = ["" if number is None else f"{number:.4f}" for number in (value, masks, units)]
    return [shown[0], "exact" if masks == 0 else shown[1], shown[2]]


def _perplexity_table(found: dict[str, Any], input: str, model: str, windows: "Windows") -> Table:
    units = found["units"]
    table = Table("quantity", "value", "± masks", f"± {units}", title=f"{input} under {model}")
    add_rate(table, "bits per token", found["bits_per_token"])
    add_rate(table, "bits per byte", found["bits_per_byte"])
    if found["perplexity"] is not None:
        numbers = (found[f"perplexity{name}"] for name in ("", "_monte_carlo_error", "_sampling_error"))
        table.add_row("perplexity per token", *("" if one is None else f"{one:.3f}" for one in numbers))
        low, high = found["perplexity_interval"]
        table.add_row("its 95 % interval", f"{low:.3f} to {high:.3f}")
    table.add_section()
    given = "" if windows.stride is None else f", {windows.stride} of each given the rest"
    table.add_row("tokens", f"{found['tokens']:,}")
    table.add_row("documents", f"{found['documents']:,}")
    table.add_row(f"windows of {windows.length} tokens{given}", f"{found['windows']:,}")
    table.add_row("forward passes", f"{found['evaluations']:,.0f}")
    for name in ("rejected", "impossible"):
        if found.get(name):
            table.add_row(name, f"{found[name]:,.0f}")
    add_unknown(table, found)
    return table
