"""`infodis curve`: where the information of texts lies, along the noise level and between tokens."""

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from infodis.cli.models import BatchSize, ChatTemplate
from infodis.cli.options import MOST, Seed, with_options
from infodis.cli.screen import check_places, console, counting, load_model, write_line
from infodis.errors import InputError
from infodis.models.spec import ModelSpec

if TYPE_CHECKING:
    from infodis.models.model import Model
    from infodis.quantities.information import Profile, TextProfile
    from infodis.result import Rate

LEVELS = (0.1, 0.25, 0.5, 0.75, 0.9)
"""Noise levels in the table; the picture shows all."""


@with_options
def curve(
    input: Annotated[
        Path, typer.Argument(help="JSONL with text, or prompt and response, or tokens; or a text a line.")
    ],
    model: ModelSpec,
    evaluations: Annotated[int, typer.Option(min=1, help="Forward passes per text.")] = 64,
    limit: Annotated[int | None, typer.Option(min=1, max=MOST, help="Read so many texts. Default: all.")] = None,
    out: Annotated[Path | None, typer.Option(help="JSONL file for one record per text.")] = None,
    plot: Annotated[Path | None, typer.Option(help="SVG, PNG or PDF file for a picture.")] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Print how many tokens to reveal in each of so many sampling steps.")
    ] = None,
    chat_template: ChatTemplate = False,
    seed: Seed = 0,
    batch_size: BatchSize = None,
) -> None:
    """How much a noised text still tells, level by level; what its tokens have in common; with standard errors.

    Prompts stay visible, only responses are noised.

    Example: [bold]infodis curve texts.jsonl --model text8-tiny --limit 100 --plot curve.svg[/bold]
    """
    from infodis.jobs.inputs import entries
    from infodis.quantities import information

    check_places(out, plot=plot, reads=[input])
    loaded = load_model(model)
    found = list(entries(input, limit=limit))
    if not found:
        raise InputError(f"{input} holds no texts.")
    rows = [entry.row(loaded, chat=chat_template) for entry in found]
    if steps is not None:
        _check_steps(steps, {row.target.numel() for row in rows})
    with counting("rows") as progress:
        profile = information.profile(
            loaded,
            [row.tokens for row in rows],
            target=[row.target for row in rows],
            context=[row.context for row in rows],
            evaluations=evaluations,
            seed=seed,
            batch_size=batch_size,
            progress=progress,
        )
    console.print(_table(profile, loaded, title=f"{input.name} under {model.name}"))
    if steps is not None:
        counts = profile.schedule(steps)
        cost = information.unmasking_cost(profile.surprisals(), counts) / math.log(2)
        write_line(f"Reveal {', '.join(map(str, counts))} tokens: {cost:.1f} bits a text more than one by one.")
    if out is not None:
        _write(out, [_record(entry.id, text, loaded) for entry, text in zip(found, profile.texts, strict=True)])
    if plot is not None:
        from infodis.figures import information_curve, save_picture

        save_picture(information_curve(profile, title=f"{input.name} under {model.name}"), plot)


def _check_steps(steps: int, lengths: set[int]) -> None:
    """Told before the work."""
    if len(lengths) > 1:
        raise InputError(
            f"--steps needs texts of one length, these have {min(lengths)} to {max(lengths)} tokens to noise. "
            "Cut them, or leave --steps out."
        )
    if steps > max(lengths):
        raise InputError(f"--steps must be at most {max(lengths)}, the tokens of a text, got {steps}.")


def _table(profile: "Profile", model: "Model", *, title: str) -> Table:
    table = Table("bits per token", "value", "error, masks", "error, texts and masks", title=title)
    for name, band in (
        ("nll", profile.nll),
        ("total correlation", profile.total_correlation),
        ("dual total correlation", profile.dual_total_correlation),
    ):
        table.add_row(name, *_numbers(band, ()))
    left = profile.curve(LEVELS)
    for place, level in enumerate(LEVELS):
        table.add_row(f"information left at level {level:g}", *_numbers(left, (place,)))
    counts = f"{len(profile.texts):,} texts, {profile.tokens:,} tokens, {profile.evaluations:,} forward passes"
    table.caption = f"{counts}\nmodel {model.fingerprint}"
    return table


def _numbers(rate: "Rate", place: tuple[int, ...]) -> list[str]:
    """One number of a rate with its errors, in bits."""
    parts = (rate.value, rate.monte_carlo_error, rate.sampling_error)
    return ["" if part is None else f"{float(part[place]) / math.log(2):.4f}" for part in parts]


def _record(id: int | str, text: "TextProfile", model: "Model") -> dict[str, Any]:
    """In nats."""
    from infodis.result import standard_error

    groups = text.groups()
    record: dict[str, Any] = {"id": id, "tokens": text.tokens, "evaluations": text.evaluations}
    for found in (text.nll, text.total_correlation, text.dual_total_correlation):
        record |= {found.quantity: found.value, f"{found.quantity}_standard_error": found.standard_error}
    return record | {
        "group_tops": text.tops.tolist(),
        "surprisal": groups.mean(0).tolist(),
        "surprisal_standard_error": standard_error(groups).tolist(),
        "seed": text.seed,
        "model": model.fingerprint,
        **model.wiring,
    }


def _write(path: Path, records: list[dict[str, Any]]) -> None:
    from infodis.files import result_text

    result_text(path, "".join(json.dumps(record, allow_nan=False) + "\n" for record in records))
