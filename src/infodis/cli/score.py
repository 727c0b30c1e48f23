"""Commands that score files of any size: `score`, `ratio`, `choose`, `perplexity`."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from infodis.cli.options import PrecisionOptions, ReadingOptions, RunOptions, Seed, with_options
from infodis.cli.report import check_page, write_report
from infodis.cli.running import input_rows, results
from infodis.cli.screen import input_path, progress_console, working
from infodis.errors import InputError
from infodis.models.spec import ModelSpec

if TYPE_CHECKING:
    from infodis.quantities.perplexity import Windows

WINDOW_EVALUATIONS = 32
"""Forward passes of a window unless more are asked for: there are many windows, and errors of many average out."""

WINDOW_TOKENS = 256
"""Of a window, for models that do not say what they were trained with."""

Input = Annotated[
    str, typer.Argument(help="JSONL, CSV, TSV or Parquet rows, or a text a line; .gz is fine; - for standard input.")
]


@with_options
def score(
    input: Input,
    model: ModelSpec,
    precision: PrecisionOptions,
    reading: ReadingOptions,
    running: RunOptions,
    per_token: Annotated[bool, typer.Option("--per-token", help="Add the credit of every target token.")] = False,
    report: Annotated[Path | None, typer.Option(help="Write a page to open, .html; implies --per-token.")] = None,
) -> None:
    """The likelihood of every row, in nats, with its standard error.

    Rows hold text, or prompt and response, or messages, or tokens (with target and context positions if not all are
    scored). What cannot be scored goes to OUT.rejected.jsonl, and the exit code is 3. Kill it at any moment: rerun
    the same command to resume, and the finished file is the same, byte for byte.

    Examples:
    [bold]infodis score texts.jsonl --model text8-tiny --out scores.jsonl[/bold]

    [bold]infodis score rows.parquet -m GSAI-ML/LLaDA-8B-Base --device cuda --standard-error 0.5 -o out.parquet[/bold]

    [bold]infodis score texts.csv --field text=sentence --keep label,year --out scores.csv[/bold]

    [bold]infodis score texts.jsonl --out scores.jsonl --report scores.html[/bold]

    [bold]cat texts.jsonl | infodis score - --evaluations 32 | jq .bits_per_token[/bold]
    """
    from infodis.jobs.scores import ScoreJob

    if report is not None:
        check_page(report, reads=[input_path(input)])
    job = ScoreJob(model, precision.request(), reading.reading(), precision.seed, per_token or report is not None)
    rows = input_rows(input, precision.evaluations, reading, running)
    with results(job, rows, running, reads=[input], writes=[] if report is None else [report]) as found:
        found.show(_score_table(found.numbers, input, model.name))
        if report is not None:
            write_report(found.finished.out, report, title=f"{input} under {model.name}")
            progress_console.print(f"Report: {report}")


def _score_table(found: dict[str, Any], input: str, model: str) -> Table:
    table = Table("quantity", "value", "± masks", "± rows", title=f"nll of {input} under {model}")
    _add_rate(table, "nats per row", found["nats_per_row"])
    _add_rate(table, "bits per token", found["bits_per_token"])
    _add_rate(table, "bits per byte", found["bits_per_byte"])
    _add_counts(table, found)
    return table


def _add_rate(table: Table, name: str, rate: dict[str, float | None] | None) -> None:
    if rate is not None:
        numbers = (rate["value"], rate["monte_carlo_error"], rate["sampling_error"])
        table.add_row(name, *("" if number is None else f"{number:.4f}" for number in numbers))


def _add_counts(table: Table, found: dict[str, Any]) -> None:
    """What was done, and what was left out."""
    table.add_section()
    table.add_row("rows", f"{found['rows']:,.0f}")
    table.add_row("forward passes", f"{found['evaluations']:,.0f}")
    for name, meaning in (
        ("rejected", "rejected"),
        ("impossible", "impossible (probability zero), left out"),
        ("cap_reached", "less precise than asked: --evaluations reached"),
    ):
        if found.get(name):
            table.add_row(meaning, f"{found[name]:,.0f}")


@with_options
def ratio(
    input: Input,
    model: ModelSpec,
    precision: PrecisionOptions,
    reading: ReadingOptions,
    running: RunOptions,
    reference: Annotated[str | None, typer.Option(help="Another model, to compare with on the same tokens.")] = None,
    coupled: Annotated[bool, typer.Option(help="Share the randomness of what is compared.")] = True,
) -> None:
    """Log-likelihood ratios with shared masks: far more precise than the difference of two scores.

    Rows hold prompt, chosen and rejected: log p(chosen) - log p(rejected). With --reference the same under that model
    is subtracted (the margin of DPO's implicit reward); rows of prompt and response then give log p under the model
    minus log p under the reference.

    Examples:
    [bold]infodis ratio preferences.jsonl --model runs/policy --reference runs/base --out margins.jsonl[/bold]

    [bold]infodis ratio pairs.jsonl -m GSAI-ML/LLaDA-8B-Instruct --device cuda --standard-error 0.2 -o out.jsonl[/bold]
    """
    from infodis.jobs.comparisons import RatioJob

    other = None if reference is None else dataclasses.replace(model, name=reference)
    job = RatioJob(model, precision.request(), reading.reading(), precision.seed, other, coupled)
    with results(job, input_rows(input, precision.evaluations, reading, running), running, reads=[input]) as found:
        found.show(_ratio_table(found.numbers, input, model.name))


def _ratio_table(found: dict[str, Any], input: str, model: str) -> Table:
    table = Table("quantity", "value", "± masks", "± rows", title=f"log ratios of {input} under {model}")
    _add_rate(table, "mean, nats", found["nats_per_row"])
    table.add_row("positive", f"{found['positive']:,} of {found['rows']:,.0f}")
    table.add_row("beyond two standard errors", f"{found['beyond_two_standard_errors']:,}")
    _add_counts(table, found)
    return table


@with_options
def choose(
    input: Input,
    model: ModelSpec,
    reading: ReadingOptions,
    running: RunOptions,
    alpha: Annotated[float, typer.Option(help="Chance of a wrong decision that is accepted.")] = 0.01,
    evaluations: Annotated[int, typer.Option(min=1, help="Most forward passes for a choice.")] = 128,
    give_up: Annotated[
        float, typer.Option(help="Call it undecided when the chance to decide within the budget is lower; 0: never.")
    ] = 0.3,
    normalise: Annotated[str, typer.Option(help="none, token or byte: what a choice's nll is divided by.")] = "none",
    seed: Seed = 0,
) -> None:
    """Multiple choice as a race: choices that can no longer win are dropped; only close ones cost many passes.

    Rows hold prompt, choices (a list) and, if known, answer (its number from 0, or its letter from A).

    Examples:
    [bold]infodis choose hellaswag.jsonl --model text8-tiny --out choices.jsonl[/bold]

    [bold]infodis choose arc.jsonl --field prompt=question --normalise byte --alpha 0.05 -o choices.jsonl[/bold]
    """
    from infodis.jobs.choices import ChoiceJob
    from infodis.quantities.choose import Race

    race = Race(alpha=alpha, evaluations=evaluations, chance=give_up)
    job = ChoiceJob(model, reading.reading(), seed, race, normalise)
    with results(job, input_rows(input, evaluations, reading, running), running, reads=[input]) as found:
        found.show(_choice_table(found.numbers, input, model.name))


def _choice_table(found: dict[str, Any], input: str, model: str) -> Table:
    table = Table("quantity", "value", title=f"choices of {input} under {model}", show_header=False)
    rows, undecided = max(1, found["rows"]), found["undecided"]
    table.add_row("questions", f"{found['rows']:,.0f}")
    table.add_row("decided", f"{found['decided']:,} ({100 * found['decided'] / rows:.1f} %)")
    if undecided:
        table.add_row("undecided: gave up, too close to call", f"{undecided:,} ({100 * undecided / rows:.1f} %)")
    _add_share(table, "accuracy of decided questions", found, "accuracy")
    if undecided:
        _add_share(table, "accuracy of best guesses on the undecided", found, "undecided_best_guess_accuracy")
        _add_share(table, "accuracy with best guesses", found, "best_guess_accuracy")
    if found["evaluations_per_choice"] is not None:
        table.add_row("forward passes per choice", f"{found['evaluations_per_choice']:.1f}")
    table.add_row("forward passes", f"{found['evaluations']:,.0f}")
    if found.get("rejected"):
        table.add_row("rejected rows", f"{found['rejected']:,.0f}")
    return table


def _add_share(table: Table, title: str, found: dict[str, Any], name: str) -> None:
    if found[name] is not None:
        error = found[f"{name}_standard_error"]
        table.add_row(title, f"{found[name]:.4f}" + ("" if error is None else f" ± {error:.4f}"))


@with_options
def perplexity(
    input: Annotated[str, typer.Argument(help="A text file, or JSONL, CSV or Parquet with a document a row; .gz too.")],
    model: ModelSpec,
    precision: PrecisionOptions,
    reading: ReadingOptions,
    running: RunOptions,
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

    Example: [bold]infodis perplexity novel.txt --model text8-tiny --windows 200 --stride 128[/bold]
    """
    from infodis.jobs.documents import DocumentsSpec
    from infodis.jobs.rolling import PerplexityJob
    from infodis.quantities.perplexity import Windows

    _check_documents(input, reading, running)
    if evaluations is None and precision.standard_error is None and precision.relative is None:
        precision = dataclasses.replace(precision, evaluations=WINDOW_EVALUATIONS)
    job = PerplexityJob(model, precision.request(), precision.seed)
    with working(f"loading {model.name}"):
        job.load()
    longest = reading.max_length or job.loaded_model.length or WINDOW_TOKENS
    rolled = Windows(length or longest - sum(len(part) for part in job.loaded_model.around()), stride)
    rows = input_rows(input, precision.evaluations, reading, running)
    with results(job, DocumentsSpec(rows, rolled, windows, job.loaded_model), running, reads=[input]) as found:
        found.show(_perplexity_table(found.numbers, input, model.name, rolled))


def _check_documents(input: str, reading: ReadingOptions, running: RunOptions) -> None:
    """Options that say nothing about documents are refused, not ignored."""
    from infodis.jobs.inputs import is_table

    if reading.chat_template or reading.truncate or reading.kept:
        raise InputError(
            "Documents are read in windows, without a prompt: leave --chat-template, --truncate and --keep out."
        )
    if running.limit is not None and not is_table(input, reading.format):
        raise InputError(f"--limit counts documents, and {input} is one long text: give --windows instead.")


def _perplexity_table(found: dict[str, Any], input: str, model: str, windows: "Windows") -> Table:
    units = found["units"]
    table = Table("quantity", "value", "± masks", f"± {units}", title=f"{input} under {model}")
    _add_rate(table, "bits per token", found["bits_per_token"])
    _add_rate(table, "bits per byte", found["bits_per_byte"])
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
    return table
