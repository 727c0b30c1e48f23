"""`infodis variants`: what a model says about mutants of a protein."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from infodis.cli.options import PrecisionOptions, ReadingOptions, RunOptions, with_options
from infodis.cli.running import input_rows, results
from infodis.cli.score import add_unknown
from infodis.errors import InputError
from infodis.models.spec import ModelSpec

MARGINAL_ROWS = 4096
"""Rows of a shard where nothing but marginals is wanted: they share all of their contexts."""


@with_options
def variants(
    wild_type: Annotated[Path, typer.Argument(help="The wild type: a FASTA file with one sequence.")],
    input: Annotated[str, typer.Argument(help="Mutants: CSV, JSONL or Parquet with mutant or mutated_sequence.")],
    model: ModelSpec,
    precision: PrecisionOptions,
    reading: ReadingOptions,
    running: RunOptions,
    scores: Annotated[
        str,
        typer.Option(
            help="wt_marginals, masked_marginals, masked_marginals_joint, pll_ratio, log_ratio: some, or all."
        ),
    ] = "all",
    offset: Annotated[int, typer.Option(help="The number of the first residue of the wild type.")] = 1,
) -> None:
    """Variant effects: marginals, pseudo-log-likelihood and coupled likelihood ratios of mutants, in nats.

    Rows are as ProteinGym has them: mutant (A12G, or A12G:K30R), or mutated_sequence, of any length: where it differs
    only log_ratio is defined. With DMS_score, Spearman's correlation of every score is shown with a bootstrap interval.
    Columns of the input are kept. What mutants share is evaluated once.

    Examples:
    [bold]infodis variants BLAT.fasta BLAT_ECOLX.csv -m facebook/esm2_t12_35M_UR50D --out scores.csv[/bold]

    [bold]infodis variants wt.fasta mutants.csv -m ESM --scores wt_marginals,masked_marginals -o scores.csv[/bold]

    [bold]infodis variants wt.fasta mutants.csv -m ESM --offset 24 --field DMS_score=fitness -o scores.csv[/bold]
    """
    import dataclasses

    from infodis.jobs.variants import VariantJob
    from infodis.mutants import WildType, read_fasta
    from infodis.quantities.effects import METHODS, EffectRequest

    if reading.chat_template or reading.truncate or reading.max_length:
        raise InputError("Mutants are whole sequences: leave --chat-template, --truncate and --max-length out.")
    names = METHODS if scores == "all" else tuple(name.strip().replace("-", "_") for name in scores.split(","))
    asked = EffectRequest(names, precision.request(), precision.seed)
    job = VariantJob(model, WildType(read_fasta(wild_type), offset), asked)
    if not {"log_ratio", "pll_ratio"} & {*names} and running.shard_rows is None:
        running = dataclasses.replace(running, shard_rows=MARGINAL_ROWS)
    reading = dataclasses.replace(reading, keep=reading.keep or ["all"])
    rows = input_rows(input, precision.evaluations, reading, running)
    with results(job, rows, running, reads=[str(wild_type), input]) as found:
        found.show(variant_table(found.numbers, input, model.name))


def variant_table(found: dict[str, Any], input: str, model: str) -> Table:
    """What mutants came to."""
    table = Table("", "Spearman", "95 % interval", "mutants", title=f"variants of {input} under {model}")
    for name, one in found["spearman"].items():
        numbers = (
            ("-", "-") if one["value"] is None else (f"{one['value']:.3f}", f"{one['low']:.3f} to {one['high']:.3f}")
        )
        table.add_row(name, *numbers, f"{one['rows']:,}")
    table.add_section()
    saved = found["forward_passes_saved"]
    for name, number in (
        ("mutants", found["rows"]),
        ("forward passes", found["forward_passes"]),
        ("saved, since mutants share contexts", saved),
        ("rejected", found.get("rejected")),
    ):
        if number:
            table.add_row(name, f"{number:,.0f}")
    add_unknown(table, found)
    return table
