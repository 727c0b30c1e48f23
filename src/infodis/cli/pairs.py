"""`infodis pairs`: accuracy on minimal pairs."""

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from infodis.cli.options import ReadingOptions, RunOptions, Seed, with_options
from infodis.cli.report import check_page, write_report
from infodis.cli.running import input_rows, results
from infodis.cli.score import Input, add_unknown
from infodis.cli.screen import input_path, progress_console
from infodis.models.spec import ModelSpec


@with_options
def pairs(
    input: Input,
    model: ModelSpec,
    reading: ReadingOptions,
    running: RunOptions,
    good: Annotated[
        str | None, typer.Option(help="The field of the right sentence. Default: sentence_good, or good.")
    ] = None,
    bad: Annotated[
        str | None, typer.Option(help="The field of the wrong sentence. Default: sentence_bad, or bad.")
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(help="The field that says what a pair tests. Default: linguistics_term, where there is one."),
    ] = None,
    scores: Annotated[str, typer.Option(help="nll (a race), pll, pll_within_words: some, or all.")] = "all",
    alpha: Annotated[float, typer.Option(help="Chance of a wrong decision of a race that is accepted.")] = 0.01,
    evaluations: Annotated[int, typer.Option(min=1, help="Most forward passes of a race for a sentence.")] = 128,
    give_up: Annotated[
        float, typer.Option(help="Call it undecided when the chance to decide within the budget is lower; 0: never.")
    ] = 0.0,
    normalise: Annotated[str, typer.Option(help="none, token or byte: what nats are divided by.")] = "none",
    report: Annotated[Path | None, typer.Option(help="Write a page to open, .html.")] = None,
    seed: Seed = 0,
) -> None:
    """Minimal pairs: how often the model finds the right one of two sentences likelier, by phenomenon.

    Rows are as BLiMP has them: sentence_good, sentence_bad and linguistics_term; or other fields by option. Sentences
    are compared by their nll, in a race on shared masks, by pll and by pll_within_words, which are exact. The 95 %
    interval of an accuracy is for all pairs of the kind, and allows for what Monte Carlo error hides.

    Examples:
    [bold]infodis pairs blimp.jsonl --model bert-base-uncased --out pairs.jsonl[/bold]

    [bold]infodis pairs blimp.jsonl -m bert-base-uncased --scores pll_within_words --by UID -o pairs.csv[/bold]

    [bold]infodis pairs mine.csv --good correct --bad wrong --by rule --report pairs.html -o pairs.csv[/bold]
    """
    from infodis.jobs.pairs import PairJob
    from infodis.quantities.accuracy import PAIR_SCORES, PairRequest
    from infodis.quantities.choose import Race

    if report is not None:
        check_page(report, reads=[input_path(input)])
    names = PAIR_SCORES if scores == "all" else tuple(name.strip().replace("-", "_") for name in scores.split(","))
    asked = PairRequest(names, Race(alpha=alpha, evaluations=evaluations, chance=give_up), seed)
    job = PairJob(model, reading.reading(), asked, normalise, labelled=by is not None)
    named = {"sentence_good": good, "sentence_bad": bad, "linguistics_term": by}
    fields = [f"{ours}={theirs}" for ours, theirs in named.items() if theirs is not None]
    reading = dataclasses.replace(reading, fields=[*(reading.fields or []), *fields])
    rows = input_rows(input, evaluations, reading, running)
    with results(job, rows, running, reads=[input], writes=[] if report is None else [report]) as found:
        found.show(pair_table(found.numbers, input, model.name))
        if report is not None:
            write_report(found.finished.out, report, title=f"{input} under {model.name}")
            progress_console.print(f"Report: {report}")


def pair_table(found: dict[str, Any], input: str, model: str) -> Table:
    """Accuracies by phenomenon, and how sure they are."""
    names = list(found["accuracy"])
    heads = [name for score in names for name in (score, "95 % interval")]
    table = Table("", "pairs", *heads, title=f"accuracy on pairs of {input} under {model}")
    for group, one in found["by_phenomenon"].items():
        _add_accuracies(table, group, one, names)
    if found["by_phenomenon"]:
        table.add_section()
    if names:
        _add_accuracies(table, "all", found["accuracy"], names)
    table.add_section()
    race = found["accuracy"].get("nll", {})
    for name, number in (
        ("undecided by nll: best guesses", race.get("undecided")),
        ("tied, counted as wrong", max((one["tied"] for one in found["accuracy"].values()), default=0)),
        ("forward passes", found["evaluations"]),
        ("rejected", found.get("rejected")),
    ):
        if number:
            table.add_row(name, f"{number:,.0f}")
    if race.get("undecided"):
        table.add_row("± masks, accuracy by nll", f"{race['monte_carlo_error']:.4f}")
    add_unknown(table, found)
    return table


def _add_accuracies(table: Table, group: str, found: dict[str, Any], names: list[str]) -> None:
    cells = [
        cell
        for one in (found[name] for name in names)
        for cell in (f"{one['value']:.3f}", f"{one['low']:.3f} to {one['high']:.3f}")
    ]
    table.add_row(group, f"{found[names[0]]['pairs']:,}", *cells)
