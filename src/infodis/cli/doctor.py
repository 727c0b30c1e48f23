"""`infodis doctor`: is a model wired as it should be?"""

import itertools
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from infodis.cli.options import with_options
from infodis.cli.screen import console, load_model
from infodis.models.spec import ModelSpec

STYLES = {"ok": "green", "wrong": "bold red", "cannot tell": "yellow", "left out": "dim"}


@with_options
def doctor(
    name: Annotated[
        str,
        typer.Argument(metavar="MODEL", help="A model that ships with infodis, a directory, or a name on the hub."),
    ],
    model: ModelSpec,
    text: Annotated[Path | None, typer.Option(help="Text that the model should know, one example a line.")] = None,
) -> None:
    """Check a model's wiring: mask token, alignment, padding, precision and more. Exit code 1 if something is wrong.

    Example: [bold]infodis doctor text8-tiny[/bold]
    """
    from infodis.errors import InputError
    from infodis.models.doctor import examine, with_examples

    if text is not None and not text.is_file():
        raise InputError(f"There is no file {text}.")
    loaded = load_model(model)
    given = [] if text is None else _first_lines(text, 32)
    table = Table("check", "verdict", "what was found", title=f"{name}, a {loaded.loaded.family} model")
    wrong = False
    for finding in examine(with_examples(loaded, given)):
        hint = f"\n{finding.hint}" if finding.verdict != "ok" and finding.hint else ""
        detail = Text.assemble(finding.detail, (hint, "dim"))
        table.add_row(finding.check, Text(finding.verdict, STYLES[finding.verdict]), detail)
        wrong = wrong or finding.verdict == "wrong"
    console.print(table)
    for note in loaded.loaded.notes:
        console.print(f"Note: {note}.")
    if wrong:
        raise typer.Exit(1)


def _first_lines(path: Path, count: int) -> list[str]:
    """Lines that are not empty; JSONL rows by their text."""
    from infodis.models.text_files import texts

    lines = (line for _, piece in texts(path) for line in piece.split("\n") if line.strip())
    return list(itertools.islice(lines, count))
