"""Where the command line writes: results to standard output, progress and errors to standard error, or to files."""

import sys
from pathlib import Path

from rich.console import Console

from infodis.errors import InputError

console = Console(width=None if sys.stdout.isatty() else 132)
progress_console = Console(stderr=True)

PICTURES = (".svg", ".png", ".pdf")


def check_places(out: Path | None, plot: Path | None) -> None:
    """What cannot be written is told before the work, not after it."""
    for path in (out, plot):
        if path is not None and not path.parent.is_dir():
            raise InputError(f"There is no directory {path.parent} to write {path.name} to. Make it first.")
    if plot is not None:
        from infodis.plotting import load_pyplot

        if plot.suffix not in PICTURES:
            raise InputError(f"A picture's name ends in {', '.join(PICTURES)}; got {plot.name}.")
        load_pyplot()
