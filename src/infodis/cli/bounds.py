"""`infodis bounds`: what reveal orders say about a file's rows, and whether they agree."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from infodis.cli.models import BatchSize, ChatTemplate
from infodis.cli.options import MOST, Seed, with_options
from infodis.cli.screen import check_places, console, counting, load_model
from infodis.errors import InputError
from infodis.models.spec import ModelSpec

if TYPE_CHECKING:
    from infodis.jobs.inputs import Entry
    from infodis.models.model import Model
    from infodis.quantities.bounds import Average, Bound, Bounds, Plan
    from infodis.quantities.consistency import Consistency
    from infodis.result import Measured


@with_options
def bounds(
    input: Annotated[Path, typer.Argument(help="JSONL rows with text, prompt and response, or tokens; or text lines.")],
    model: ModelSpec,
    orders: Annotated[int, typer.Option(help="Reveal orders drawn for each row.")] = 32,
    particles: Annotated[
        int, typer.Option(help="Orders in a group of the importance-weighted bound; they must divide --orders.")
    ] = 8,
    audit: Annotated[bool, typer.Option("--audit", help="Measure how much the conditionals disagree.")] = False,
    pairs: Annotated[int, typer.Option(min=2, help="Pairs of tokens that --audit looks at in each row.")] = 64,
    out: Annotated[Path | None, typer.Option(help="JSONL file for every row's numbers.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Picture of the audit (.svg, .png, .pdf); implies --audit.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, max=MOST, help="At most so many rows.")] = None,
    chat_template: ChatTemplate = False,
    seed: Seed = 0,
    batch_size: BatchSize = None,
) -> None:
    """Enclose the likelihood of a model that draws its reveal order, and compare single orders with their mean.

    Example: [bold]infodis bounds texts.jsonl --model text8-tiny --orders 64 --audit --plot audit.svg[/bold]
    """
    from infodis.jobs.inputs import entries
    from infodis.quantities.bounds import Plan, average, bound_items
    from infodis.quantities.consistency import audit_items

    plan = Plan(orders, particles)
    check_places(out, plot=plot, reads=[input])
    loaded = load_model(model)
    given = list(entries(input, limit=limit))
    items = [entry.row(loaded, chat=chat_template) for entry in given]
    if not items:
        raise InputError(f"{input} holds no rows. Give JSONL rows, or lines of text.")
    with counting("rows") as progress:
        found = bound_items(
            loaded,
            items,
            plan,
            seed=seed,
            batch_size=batch_size,
            progress=progress,
        )
    console.print(_table(average(found), found, title=f"{input.name} under {model.name}"))
    if out is not None:
        _write(out, given, found, plan, loaded)
    if audit or plot is not None:
        checked = audit_items(loaded, items, found, pairs=pairs, seed=seed, batch_size=batch_size)
        for table in _audit_tables(checked):
            console.print(table)
        if plot is not None:
            from infodis.figures import consistency_map, save_picture

            save_picture(consistency_map(checked), plot)
            console.print(f"Picture: {plot}")


def _table(averages: "Sequence[Average]", found: "Sequence[Bounds]", *, title: str) -> Table:
    """Means per row and per token. Errors: of these rows, from the orders drawn; and of rows like these."""
    rows, tokens = averages[0].rows, averages[0].tokens
    per_row, per_token = 1 / rows, 1 / tokens / math.log(2)
    table = Table(title=title)
    for name in ("quantity", "nats per row", "bits per token"):
        table.add_column(name, justify="left" if name == "quantity" else "right", no_wrap=True)
        if name != "quantity":
            table.add_column("± orders", justify="right", style="dim", no_wrap=True)
            table.add_column("± rows", justify="right", style="dim", no_wrap=True)
    table.add_column("what it is")
    for one in averages:
        nats = _numbers(one.total, one.order_error, one.row_error, scale=per_row)
        bits = _numbers(one.total, one.order_error, one.token_error, scale=per_token)
        table.add_row(one.quantity, *nats, *bits, one.meaning)
    spent = sum({one.item.key: one.evaluations for one in found}.values())
    table.caption = (
        f"{rows:,} rows, {tokens:,} tokens, {spent:,} forward passes. "
        "± orders: what more orders would remove; ± rows: the sampling error of rows drawn from more of their kind."
    )
    return table


def _numbers(total: float, order_error: float, sampling_error: float | None, *, scale: float) -> tuple[str, str, str]:
    exact = "exact" if order_error == 0 else f"{order_error * scale:.4f}"
    return f"{total * scale:.4f}", exact, "" if sampling_error is None else f"{sampling_error * scale:.4f}"


def _write(path: Path, given: "Sequence[Entry]", found: "Sequence[Bounds]", plan: "Plan", model: "Model") -> None:
    """A line per row."""
    from infodis.files import result_text

    records = (_record(entry, one, plan, model) for entry, one in zip(given, found, strict=True))
    result_text(path, "".join(f"{json.dumps(record, allow_nan=False)}\n" for record in records))
    console.print(f"Records: {path}")


def _record(entry: "Entry", found: "Bounds", plan: "Plan", model: "Model") -> dict[str, Any]:
    return {
        "id": entry.id,
        **{bound.quantity: _numbers_of(bound) for bound in found.quantities},
        "tokens": found.tokens,
        "evaluations": found.evaluations,
        "orders": plan.orders,
        "particles": plan.particles,
        "seed": found.nll.seed,
        "model": model.fingerprint,
        **model.wiring,
    }


def _numbers_of(bound: "Bound") -> dict[str, Any]:
    """An impossible row's value is null: JSON has no infinity."""
    return {
        "value": None if bound.impossible else bound.value,
        "standard_error": bound.standard_error,
        "evaluations": bound.evaluations,
        "impossible": bound.impossible,
    }


def _audit_tables(found: "Consistency") -> list[Table]:
    summary = Table("consistency", "nats", "± pairs or orders", title="Do the conditionals agree?")
    figures: list[tuple[str, Measured]] = [
        ("circulation of a pair, root mean square", found.root_mean_square),
        ("circulation of a pair, mean absolute", found.mean_absolute),
        ("spread of order_nll over orders, per token", found.spread_per_token),
        ("Jensen gap nll - mixture_nll per token, at least", found.least_gap_per_token),
        ("Jensen gap nll - mixture_nll per token, at most", found.most_gap_per_token),
    ]
    for name, figure in figures:
        summary.add_row(name, f"{figure.value:.4g}", f"{figure.standard_error:.2g}")
    left_out = f", {found.impossible:,} left out that met a probability of zero" if found.impossible else ""
    summary.caption = f"{found.circulations.value.numel():,} pairs{left_out}; {found.evaluations:,} forward passes"
    return [summary, _audit_grid(found)]


def _audit_grid(found: "Consistency") -> Table:
    """Root-mean-square circulation: distances across, the share masked downwards."""
    from infodis.quantities.consistency import span_of

    cells = {(cell.shares, cell.distances): cell.root_mean_square for cell in found.table}
    distances = sorted({place[1] for place in cells})
    grid = Table("masked", *(f"distance {span_of(*d)}" for d in distances), title="Circulation, root mean square, nats")
    for shares in sorted({place[0] for place in cells}, reverse=True):
        known = [cells.get((shares, d)) for d in distances]
        texts = ("" if one is None else f"{one.value:.2g} ± {_error(one)}" for one in known)
        grid.add_row(f"{100 * shares[0]:.0f}-{100 * shares[1]:.0f} %", *texts)
    return grid


def _error(found: "Measured") -> str:
    """A single pair has none."""
    return "?" if math.isinf(found.standard_error) else f"{found.standard_error:.1g}"
