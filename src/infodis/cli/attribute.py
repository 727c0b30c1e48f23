"""`infodis attribute`: what every token costs, and how much every token of the prompt helps."""

import dataclasses
import json
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from infodis.cli.options import ReadingOptions, RunOptions, Seed, with_options
from infodis.cli.running import finish, input_rows, results
from infodis.cli.screen import console
from infodis.errors import InputError
from infodis.models.spec import ModelSpec

SHADES = ("", "on #fbe9e7", "on #ffccbc", "on #ffab91", "on #ff8a65", "on #ff7043")
"""From what is expected to what is not."""

SHADE_NATS = 1.0
"""Nats of a token from one shade to the next."""

STRONGEST, SURE = 12, 3.0
"""Influences that are listed, and how many standard errors they must be away from nothing."""


@with_options
def attribute(
    model: ModelSpec,
    reading: ReadingOptions,
    running: RunOptions,
    input: Annotated[
        str | None, typer.Argument(help="JSONL, CSV, TSV or Parquet rows, or a text a line; .gz is fine; - for stdin.")
    ] = None,
    text: Annotated[str | None, typer.Option(help="A single text, instead of a file.")] = None,
    prompt: Annotated[str, typer.Option(help="What comes before --text.")] = "",
    evaluations: Annotated[int, typer.Option(min=1, help="Forward passes for each row.")] = 1024,
    seed: Seed = 0,
) -> None:
    """Per-token credits of a text given its prompt, and how much each prompt token helps each token of the text.

    Credits add up to the nll. Influences are Shapley values: they add up to what the whole prompt explains. Both come
    with standard errors. Models of blocks, autoregressive ones and those of uniform or mixed noise have no influences:
    a part of a prompt cannot be hidden from them.

    Examples:
    [bold]infodis attribute --prompt "the capital of france is " --text paris[/bold]

    [bold]infodis attribute rows.jsonl --model text8-tiny --out credits.jsonl[/bold]

    [bold]infodis report credits.jsonl --out credits.html[/bold]
    """
    from infodis.estimate import Request
    from infodis.jobs.attributions import AttributionJob
    from infodis.jobs.inputs import InputSpec

    if (input is None) == (text is None):
        raise InputError("Give a file of rows, or a single text with --text: one of them.")
    if text is not None and reading.kept:
        raise InputError("--keep carries fields of a file along; --text has none. Leave it out.")
    job = AttributionJob(model, Request(evaluations=evaluations), reading.reading(), seed)
    rows = running.shard_rows or 16
    running = dataclasses.replace(running, shard_rows=rows)
    if input is not None:
        with results(job, input_rows(input, evaluations, reading, running), running, reads=[input]) as found:
            found.show(_table(found.numbers, input))
        return
    with tempfile.TemporaryDirectory() as scratch:
        source, out = Path(scratch) / "text.jsonl", running.out or Path(scratch) / "out.jsonl"
        source.write_text(json.dumps({"prompt": prompt, "text": text}) + "\n", encoding="utf-8")
        finished = finish(job, InputSpec(str(source), rows), running, out, reads=[str(source)])
        if finished.rejected is not None:
            raise InputError(json.loads(finished.rejected.read_text(encoding="utf-8"))["reason"])
        _show(json.loads(out.read_text(encoding="utf-8")))


def _table(found: dict[str, Any], input: str) -> Table:
    table = Table("quantity", "value", title=f"credits of {input}", show_header=False)
    table.add_row("rows", f"{found['rows']:,.0f}")
    table.add_row("forward passes", f"{found['evaluations']:,.0f}")
    if found.get("rejected"):
        table.add_row("rejected", f"{found['rejected']:,.0f}")
    return table


def _show(record: dict[str, Any]) -> None:
    """A text with its costly tokens shaded, and what in the prompt helped most."""
    pieces = record.get("pieces") or [str(number) for number in range(record["tokens"])]
    shaded = Text()
    for piece, nats in zip(pieces, record["per_token"], strict=True):
        shade = SHADES[min(len(SHADES) - 1, max(0, int(nats / SHADE_NATS)))]
        shaded.append(piece, style=f"black {shade}" if shade else "")
    console.print(shaded)
    console.print(f"{record['quantity']} {record['value']:.3f} ± {record['standard_error']:.3f} nats")
    tokens = Table("", "token", "nats", "±", title="What every token costs")
    numbers = zip(pieces, record["per_token"], record["per_token_error"], strict=True)
    for place, (piece, nats, error) in enumerate(numbers, start=1):
        tokens.add_row(str(place), _visible(piece), f"{nats:.3f}", f"{error:.3f}")
    console.print(tokens)
    if "influence" in record:
        explained = f"{record['explained']:.3f} ± {record['explained_error']:.3f}"
        console.print(f"The prompt explains {explained} nats of what the text would cost without it.")
        console.print(_strongest(record, pieces))


def _strongest(record: dict[str, Any], pieces: list[str]) -> Table:
    """Influences that are surely there, the largest first."""
    before = record.get("prompt_pieces") or [str(n) for n in range(len(record["influence"][0]))]
    title = "What helps (+) and what misleads (-), tokens with their places"
    table = Table("token of the prompt", "changes", "by nats", "±", title=title)
    found = [
        (nats, error, f"{column + 1} {_visible(before[column])}", f"{row + 1} {_visible(pieces[row])}")
        for row, (effects, errors) in enumerate(zip(record["influence"], record["influence_error"], strict=True))
        for column, (nats, error) in enumerate(zip(effects, errors, strict=True))
        if abs(nats) > SURE * error
    ]
    for nats, error, helper, helped in sorted(found, key=lambda one: -abs(one[0]))[:STRONGEST]:
        table.add_row(helper, helped, f"{nats:+.3f}", f"{error:.3f}")
    total = sum(len(row) for row in record["influence"])
    table.caption = f"{len(found)} of {total} influences are beyond {SURE:g} standard errors"
    return table


def _visible(piece: str) -> str:
    return piece if piece.strip() else piece.replace(" ", "␣")
