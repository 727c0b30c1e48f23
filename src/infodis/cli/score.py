"""Commands that score files of any size: `score`, `ratio`, `choose`, `perplexity`."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from infodis.cli.options import PrecisionOptions, ReadingOptions, RunOptions, Seed, with_options
from infodis.cli.report import check_page, write_report
from infodis.cli.running import input_rows, results
from infodis.cli.screen import input_path, progress_console
from infodis.models.spec import ModelSpec

if TYPE_CHECKING:
    pass

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
    quantity: Annotated[
        str | None,
        typer.Option(help="nll, dse_nll, order_nll, pll or pll_within_words. Default: nll; dse_nll for uniform noise."),
    ] = None,
    order: Annotated[
        str | None,
        typer.Option(
            help="The likelihood of a decoder (order_nll) that reveals tokens by this rule: left-to-right, "
            "right-to-left, random, most-confident, lowest-entropy, largest-margin (=2: two tokens a step), "
            "above-threshold=0.9; in blocks like most-confident:32."
        ),
    ] = None,
    per_token: Annotated[bool, typer.Option("--per-token", help="Add the credit of every target token.")] = False,
    report: Annotated[Path | None, typer.Option(help="Write a page to open, .html; implies --per-token.")] = None,
) -> None:
    """The likelihood of every row, in nats, with its standard error; or another --quantity of it.

    Rows hold text, or prompt and response, or messages, or tokens (with target and context positions if not all are
    scored). What cannot be scored goes to OUT.rejected.jsonl, and the exit code is 3. Kill it at any moment: rerun
    the same command to resume, and the finished file is the same, byte for byte.

    Examples:
    [bold]infodis score texts.jsonl --model text8-tiny --out scores.jsonl[/bold]

    [bold]infodis score rows.parquet -m GSAI-ML/LLaDA-8B-Base --device cuda --standard-error 0.5 -o out.parquet[/bold]

    [bold]infodis score texts.csv --field text=sentence --keep label,year --out scores.csv[/bold]

    [bold]infodis score texts.jsonl -m bert-base-uncased --quantity pll --out scores.jsonl[/bold]

    [bold]infodis score texts.jsonl --order most-confident=2:32 --out scores.jsonl[/bold]

    [bold]infodis score texts.jsonl --out scores.jsonl --report scores.html[/bold]

    [bold]cat texts.jsonl | infodis score - --evaluations 32 | jq .bits_per_token[/bold]
    """
    from infodis.catalog import as_quantity
    from infodis.jobs.scores import ScoreJob

    if report is not None:
        check_page(report, reads=[input_path(input)])
    asked, tokens = as_quantity(quantity, order), per_token or report is not None
    job = ScoreJob(model, precision.request(), reading.reading(), precision.seed, tokens, asked)
    rows = input_rows(input, precision.evaluations, reading, running)
    with results(job, rows, running, reads=[input], writes=[] if report is None else [report]) as found:
        found.show(_score_table(found.numbers, input, model.name))
        if report is not None:
            write_report(found.finished.out, report, title=f"{input} under {model.name}")
            progress_console.print(f"Report: {report}")


def _score_table(found: dict[str, Any], input: str, model: str) -> Table:
    title = f"{found['quantity']} of {input} under {model}"
    table = Table("quantity", "value", "± masks", "± rows", title=title)
    add_rate(table, "nats per row", found["nats_per_row"])
    add_rate(table, "bits per token", found["bits_per_token"])
    add_rate(table, "bits per byte", found["bits_per_byte"])
    if found.get("pseudo_perplexity") is not None:
        table.add_row("pseudo-perplexity per token", f"{found['pseudo_perplexity']:.4f}")
    _add_counts(table, found)
    return table


def add_rate(table: Table, name: str, rate: dict[str, float | None] | None) -> None:
    """A rate with its two errors, if there is one."""
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
    add_unknown(table, found)


def add_unknown(table: Table, found: dict[str, Any]) -> None:
    """How many tokens were unknown, if any were."""
    if found.get("unknown_tokens"):
        text = f"{found['unknown_tokens']:,} in {found['rows_with_unknown']:,} rows"
        table.add_row("tokens unknown to the tokenizer", text)


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
    add_rate(table, "mean, nats", found["nats_per_row"])
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
    add_unknown(table, found)
    return table


def _add_share(table: Table, title: str, found: dict[str, Any], name: str) -> None:
    if found[name] is not None:
        error = found[f"{name}_standard_error"]
        table.add_row(title, f"{found[name]:.4f}" + ("" if error is None else f" ± {error:.4f}"))
