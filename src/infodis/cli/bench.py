"""`infodis bench`: the estimators against exact answers, networks against their peers."""

import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from infodis.cli.screen import check_places, console, progress_console
from infodis.files import result_text

if TYPE_CHECKING:
    from infodis.item import Item
    from infodis.models.model import Model

bench = typer.Typer(help="Measure the estimators against exact answers.", no_args_is_help=True, rich_markup_mode="rich")

Out = Annotated[Path | None, typer.Option(help="Directory for records (JSONL) and pictures (SVG).")]
Runs = Annotated[int, typer.Option(min=2, help="Independent runs of every estimator on every sequence.")]
Sequences = Annotated[int, typer.Option(min=1, help="Sequences per problem.")]


@bench.command("variance")
def bench_variance(
    rows: Annotated[int, typer.Option(min=64, help="Forward passes per run.")] = 128,
    runs: Runs = 250,
    sequences: Sequences = 8,
    temperature: Annotated[list[float] | None, typer.Option(help="Of the chain; may be repeated.")] = None,
    out: Out = None,
) -> None:
    """Mean squared error, bias and coverage of every design at equal rows, other projects' samplers included.

    Example: [bold]infodis bench variance --sequences 40 --runs 100 --out out/bench[/bold]
    """
    from infodis.apps.bench import experiments, problems

    if out is not None:
        from infodis.figures import load_vega

        load_vega()  # a missing library is reported before the work, not after it
    temperatures = temperature or [0.5, 0.15]
    made = (problems.chain_problem(t, count=sequences) for t in temperatures)
    found = _collect("every design on every problem", experiments.variance(made, rows=rows, runs=runs), out, "variance")
    for problem in dict.fromkeys(one.problem for one in found):
        mine = [one for one in found if one.problem == problem]
        paper = next(one for one in mine if one.design == experiments.BASELINE and one.control == "none")
        columns: Columns = {
            "design": lambda one: one.design,
            "control": _control,
            "rows spent": lambda one: "" if one.control == "one plan" else f"{one.evaluations:.0f}",
            "mean squared error": lambda one: f"{one.mean_squared_error:.4g}",
            "times below paper": lambda one: f"{_quotient(paper.mean_squared_error, one.mean_squared_error):.3g}",  # noqa: B023
            "bias": lambda one: f"{one.bias:+.3g}",
            "z": _z,
            "coverage": lambda one: "" if one.coverage is None else f"{one.coverage:.3f}",
        }
        _print(mine, columns, f"{problem}: {rows} rows, {paper.runs} runs")
    _save(found, out, "variance")
    if out is not None:
        from infodis.apps.bench.figure import variance_figure
        from infodis.figures import save_picture

        save_picture(variance_figure(found), out / "variance.svg")
        console.print(f"Picture: {out / 'variance.svg'}")


@bench.command("texts")
def bench_texts(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILES...", help="Text or gzip, cut into windows of 16 + 48 tokens; JSONL: questions."),
    ],
    model: Annotated[str, typer.Option("--model", "-m", help="A model by name or directory.")] = "text8-tiny",
    count: Annotated[int, typer.Option("--texts", min=2, help="Texts of each file.")] = 8,
    budgets: Annotated[list[int] | None, typer.Option("--rows", min=8, help="Forward passes; repeatable.")] = None,
    runs: Runs = 24,
    by_line: Annotated[bool, typer.Option("--lines", help="One text a line, instead of windows.")] = False,
    tokenizer: Annotated[str | None, typer.Option(help="For a model that comes without one.")] = None,
    out: Out = None,
) -> None:
    """Variance of texts under a network with each control, in times below LLaDA's sampler at as many passes.

    Questions are rows {x, choices, label}, read as `infodis reproduce variance-time-free` reads them; those of all
    files are one group.

    Example: [bold]infodis bench texts text8_valid.txt.gz hellaswag.jsonl piqa.jsonl --texts 8 --runs 24[/bold]
    """
    from infodis.apps.bench import texts
    from infodis.models.loading import load

    loaded = load(model, tokenizer=tokenizer)
    groups: "dict[str, list[Item]]" = {}
    for file in files:
        asked = file.suffixes[:1] == [".jsonl"]
        read = _questions if asked else _lines if by_line else _windows
        groups.setdefault("questions" if asked else file.name, []).extend(read(loaded, file, count))

    def made() -> Iterator[Any]:
        for source, items in groups.items():
            yield from texts.text_variance(loaded, items, source=source, runs=runs, budgets=budgets or texts.BUDGETS)

    found = _collect("runs on every text", made(), out, "texts")
    columns: Columns = {
        "passes": lambda one: f"{one.rows}",
        "control": _control,
        "variance": lambda one: f"{one.variance:.3g}",
        "LLaDA's sampler": lambda one: f"{one.llada:.3g}",
        "times below": lambda one: f"{one.times_below:.2f} ± {one.error:.2f}",
        "SE^2 / variance": lambda one: f"{one.calibration:.2f}",
    }
    for source, items in groups.items():
        _print((o for o in found if o.source == source), columns, f"{model}, {source}: {len(items)} texts, {runs} runs")
    _save(found, out, "texts")


def _windows(model: "Model", file: Path, count: int) -> "list[Item]":
    import torch

    from infodis.apps.bench.texts import windows
    from infodis.models.text_files import encode_file

    tokens = torch.from_numpy(encode_file(file, model.tokenizer)).long()
    return windows(tokens, count=count, context=16, target=48)


def _lines(model: "Model", file: Path, count: int) -> "list[Item]":
    from infodis.apps.bench.texts import lines
    from infodis.models.text_files import texts

    return lines(model, [line for _, piece in texts(file) for line in piece.split("\n")], count=count, most=128)


def _questions(model: "Model", file: Path, count: int) -> "list[Item]":
    from infodis.apps.reproduce.data import HELLASWAG
    from infodis.apps.reproduce.triplets import choose_fitting, question, read_response

    window = min(192, model.length or 192)
    rows = [question(row, 0) for row in HELLASWAG.read(file)]
    read = {row.id: read_response(model, row.prompt, row.both, window=window) for row in rows}
    kept = choose_fitting(rows, lambda row: read[row.id] is not None, count=count, seed=0)
    return [item for item in (read[row.id] for row in kept) if item is not None]


@bench.command("auto")
def bench_auto(
    budgets: Annotated[list[int] | None, typer.Option("--rows", min=16, help="May be repeated.")] = None,
    runs: Runs = 1000,
    sequences: Sequences = 3,
    noise: Annotated[list[float] | None, typer.Option(help="On the logits; may be repeated.")] = None,
    networks: Annotated[bool, typer.Option(help="Networks too: random, dna-tiny, bits-tiny, text8-tiny.")] = True,
    out: Out = None,
) -> None:
    """Auto beside Tiled, Orders and LLaDA's sampler, on chains with noise on their conditionals and on networks.

    Example: [bold]infodis bench auto --rows 32 --rows 128 --noise 0 --noise 1 --no-networks[/bold]
    """
    from infodis.apps.bench import experiments, problems

    def made() -> Iterator[problems.Problem]:
        for level in [0.0, 0.02, 0.1, 1.0] if noise is None else noise:
            yield problems.chain_problem(0.5, count=sequences, noise=level)
        if networks:
            for make in (problems.random_problem, problems.dna_problem, problems.bits_problem, problems.text_problem):
                yield make(count=sequences)

    rows = budgets or [16, 32, 64, 128, 256, 512]
    found = _collect("Auto and others", experiments.auto(made(), budgets=rows, runs=runs), out, "auto")
    names = ("Tiled", "Orders", "LLaDA's sampler", "Auto")
    table = Table("problem", "rows", *names, "Auto / better", "Auto's rows", title="mean squared error")
    ratios = []
    for cell in dict.fromkeys((o.problem, o.rows) for o in found):
        mine = {o.design: o for o in found if (o.problem, o.rows) == cell}
        errors = {name: mine[name].mean_squared_error for name in names if name in mine}
        best = min(error for name, error in errors.items() if name in ("Tiled", "Orders"))
        ratios.append(max(errors["Auto"], experiments.EQUAL) / max(best, experiments.EQUAL))
        shown = [f"{errors[name]:.4g}" if name in errors else "" for name in names]
        table.add_row(cell[0], str(cell[1]), *shown, f"{ratios[-1]:.2f}", f"{mine['Auto'].evaluations:.0f}")
    console.print(table)
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    console.print(
        f"Auto / better of Tiled and Orders, {len(ratios)} cells: {mean:.2f} (geometric mean), {max(ratios):.2f} "
        "at worst; squared errors below (0.01 nats)^2 count as equal."
    )
    _save(found, out, "auto")


@bench.command("precision")
def bench_precision(
    asked: Annotated[list[float] | None, typer.Option(help="Standard error in nats; may be repeated.")] = None,
    runs: Runs = 1000,
    out: Out = None,
) -> None:
    """What comes of a requested standard error: the true error, coverage, and what a fixed budget would have cost.

    Example: [bold]infodis bench precision --asked 0.5 --runs 200[/bold]
    """
    from infodis.apps.bench import experiments, problems

    made = (
        make()
        for make in (
            problems.random_problem,
            lambda: problems.chain_problem(0.5, count=2, noise=0.3, target=12),
            problems.heavy_problem,
            problems.text_problem,
            problems.dna_problem,
            problems.bits_problem,
        )
    )
    found = _collect(
        "requests", experiments.precision(made, runs=runs, asked=asked or experiments.ASKED), out, "precision"
    )
    columns: Columns = {
        "problem": lambda one: one.problem,
        "quantity": lambda one: one.quantity,
        "asked": lambda one: f"{one.asked:g}",
        "true error": lambda one: f"{one.root_mean_square_error:.3f}",
        "SE^2 / error^2": lambda one: f"{one.calibration:.2f}",
        "coverage": lambda one: f"{one.coverage:.3f}",
        "z of bias": _z,
        "passes": lambda one: f"{one.evaluations:.0f}",
        "fixed budget": lambda one: f"{one.fixed_evaluations:.0f}",
        "ratio": lambda one: f"{one.evaluations / one.fixed_evaluations:.2f}",
        "capped": lambda one: f"{one.cap_reached:.2f}",
    }
    _print(found, columns, f"requested standard errors, {runs} runs")
    _save(found, out, "precision")


@bench.command("ratio")
def bench_ratio(rows: Annotated[int, typer.Option(min=32)] = 64, runs: Runs = 200, out: Out = None) -> None:
    """Variance of log-likelihood ratios with shared and with separate randomness.

    Example: [bold]infodis bench ratio --rows 64 --runs 400[/bold]
    """
    from infodis.apps.bench import experiments

    found = _collect("coupled and decoupled ratios", experiments.coupling(rows=rows, runs=runs), out, "ratio")
    columns: Columns = {
        "sequences": lambda one: one.pair,
        "design": lambda one: one.design,
        "control": _control,
        "decoupled": lambda one: f"{one.decoupled:.4g}",
        "coupled": lambda one: f"{one.coupled:.4g}",
        "times below": lambda one: f"{one.decoupled / one.coupled:.2f}",
        "z": _z,
    }
    _print(found, columns, "variance")
    _save(found, out, "ratio")


MODELS = "Of those that ship: text8-tiny, text8-block4, dna-tiny. May be repeated."


@bench.command("gradient")
def bench_gradient(
    models: Annotated[list[str] | None, typer.Option("--model", "-m", help=MODELS)] = None,
    pairs: Annotated[int, typer.Option(min=2, max=40, help="Preference pairs per model.")] = 32,
    draws: Annotated[list[int] | None, typer.Option(min=1, help="Masks per sequence; may be repeated.")] = None,
    target: Annotated[int | None, typer.Option(min=2, max=24, help="Characters of a text; 8, in blocks 16.")] = None,
    runs: Runs = 200,
    out: Out = None,
) -> None:
    """Error of the gradient of the DPO loss at equal draws: bias and variance of our designs and of peers' estimators.

    Targets are short, or lie in short blocks, so that the exact gradient is known from all of their masks.

    Example: [bold]infodis bench gradient --model dna-tiny --draws 4 --draws 8[/bold]
    """
    from infodis.apps.bench import gradient

    made = (
        gradient.problem(name, count=pairs, target=target)
        for name in models or ["text8-tiny", "text8-block4", "dna-tiny"]
    )
    asked = draws or [1, 2, 4, 8, 16, 32]
    found = _collect("every estimator", gradient.gradient_errors(made, draws=asked, runs=runs), out, "gradient")
    for model in dict.fromkeys(one.model for one in found):
        columns: Columns = {
            "draws": lambda one: str(one.draws),
            "estimator": lambda one: one.estimator,
            "passes": lambda one: f"{one.passes:.1f}",
            "error": lambda one: f"{one.error:.3g} ± {one.error_se:.1g}",
            "bias": lambda one: f"{one.bias:.2g} ± {one.bias_se:.1g}",
            "variance": lambda one: f"{one.variance:.3g}",
            "times below VRPO": lambda one: "exact" if one.below is None else f"{one.below:.2f} ± {one.below_se:.1g}",
        }
        title = f"{model}: relative squared error of gradients, {pairs} pairs, {runs} runs"
        _print((one for one in found if one.model == model), columns, title)
    _save(found, out, "gradient")


@bench.command("overhead")
def bench_overhead(out: Out = None) -> None:
    """Seconds on one core for planning and summing with an instant predictor; rows per second of the oracle."""
    from infodis.apps.bench import experiments

    found = _collect("timing", experiments.overhead(), out, "overhead")
    columns: Columns = {
        "work": lambda one: one.work,
        "seconds": lambda one: f"{one.seconds:.2f}",
        "rate": lambda one: f"{one.rate:,.0f} {one.unit}",
        "peak memory, MiB": lambda one: "" if one.peak_mebibytes is None else f"{one.peak_mebibytes:.0f}",
    }
    _print(found, columns)
    _save(found, out, "overhead")


@bench.command("throughput")
def bench_throughput(
    source: Annotated[
        Path | None,
        typer.Argument(metavar="[FILE]", help="Text or gzip, cut into windows of 16 + 48 tokens; random if left out."),
    ] = None,
    model: Annotated[str | None, typer.Option("--model", "-m", help="For FILE: a model by name or directory.")] = None,
    texts: Annotated[int, typer.Option(min=2, help="How many; random ones have 20 to 120 tokens.")] = 200,
    out: Out = None,
) -> None:
    """Rows per second, memory and time to a standard error, beside the way people score today.

    Without a file: random texts under a BERT with random weights, which needs transformers.

    Example: [bold]infodis bench throughput --texts 40[/bold]

    Example: [bold]infodis bench throughput text8_valid.txt.gz --model text8-tiny[/bold]
    """
    from infodis.apps.bench.throughput import throughput

    if (source is None) != (model is None):
        raise typer.BadParameter("Give a file and --model, or neither.")
    made = throughput(texts, model=model, source=source)
    found = _collect("today's way, then infodis", made, out, "throughput")
    today, ours = found
    name = "a BERT of 4 x 256, 30,522 tokens" if model is None else f"{model}, {source}"
    table = Table("", *(one.way for one in found), "ratio", title=f"{name}, {texts} texts")
    for name, title, higher_is_better in (
        ("rows_per_second", "rows per second", True),
        ("peak_mebibytes", "peak memory beyond the model, MiB", False),
        ("standard_error", "standard error, nats", False),
        ("seconds_to_standard_error", "seconds a text to 0.5 nats", False),
        ("overhead", "time outside forward passes", None),
    ):
        before, now = (getattr(one, name) for one in (today, ours))
        better = "" if higher_is_better is None else f"{now / before if higher_is_better else before / now:.2f}"
        table.add_row(title, f"{before:,.3g}", f"{now:,.3g}", better)
    console.print(table)
    _save(found, out, "throughput")


@bench.command("engine")
def bench_engine(
    rows: Annotated[int, typer.Option(min=1, help="Short rows to score.")] = 300_000, out: Out = None
) -> None:
    """Rows per second and memory of `infodis score` with an instant network, 8 forward passes each, one core.

    Example: [bold]infodis bench engine --rows 30000[/bold]
    """
    from infodis.apps.bench.engine import EARLY, engine

    (found,) = _collect("reading, scoring, writing", (engine(rows) for _ in range(1)), out, "engine")
    table = Table("", "", title="the engine alone", show_header=False)
    table.add_row("input rows", f"{found.rows:,} in {found.seconds:.1f} s")
    table.add_row("input rows per second", f"{found.rows_per_second:,.0f}")
    table.add_row(f"resident memory at {EARLY:,} rows, MiB", f"{found.early_mebibytes:.0f}")
    table.add_row("the most after that, MiB", f"{found.mebibytes:.0f}")
    console.print(table)
    _save([found], out, "engine")


Columns = dict[str, Callable[[Any], str]]
"""Titles of columns, and what they show of a record."""


def _print(records: Iterable[Any], columns: Columns, title: str | None = None) -> None:
    table = Table(*columns, title=title)
    for record in records:
        table.add_row(*(show(record) for show in columns.values()))
    console.print(table)


def _control(record: Any) -> str:
    """The name of a control, without its options."""
    return str(record.control).split("(")[0]


def _z(record: Any) -> str:
    return f"{record.bias_z:+.1f}"


def _quotient(above: float, below: float) -> float:
    return above / below if below > 1e-20 else math.inf


def _collect(what: str, records: Iterable[Any], out: Path | None, name: str) -> list[Any]:
    """Run an experiment under a progress line on standard error, if its records and picture can be written then."""
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        check_places(out / f"{name}.jsonl", out / f"{name}.svg")
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        TextColumn("{task.completed} done"),
        TimeElapsedColumn(),
    )
    found = []
    with Progress(*columns, console=progress_console, transient=True) as progress:
        task = progress.add_task(what, total=None)
        for record in records:
            found.append(record)
            progress.advance(task)
    return found


def _save(records: Iterable[Any], out: Path | None, name: str) -> None:
    if out is None:
        return
    path = out / f"{name}.jsonl"
    result_text(path, "".join(json.dumps(dataclasses.asdict(record)) + "\n" for record in records))
    console.print(f"Records: {path}")
