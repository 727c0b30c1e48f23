"""Where the command line writes: results to standard output, progress and errors to standard error, or to files."""

import sys
from collections.abc import Iterable
from pathlib import Path

from rich.console import Console

from infodis.errors import InputError
from infodis.files import check_apart, check_own

console = Console(width=None if sys.stdout.isatty() else 132)
progress_console = Console(stderr=True)

PICTURES = (".svg", ".png", ".pdf")


def input_path(input: str) -> Path:
    """The file that an input is; standard input may be one too."""
    return Path("/dev/stdin" if input == "-" else input)


def check_places(*results: Path | None, plot: Path | None = None, reads: Iterable[Path] = ()) -> None:
    """What cannot or must not be written is told before the work, not after it."""
    writes = [path for path in (*results, plot) if path is not None]
    for path in writes:
        if not path.parent.is_dir():
            raise InputError(f"There is no directory {path.parent} to write {path.name} to. Make it first.")
    check_apart(reads=reads, writes=writes)
    for path in writes:
        check_own(path)
    if plot is not None:
        from infodis.plotting import load_pyplot

        if plot.suffix not in PICTURES:
            raise InputError(f"A picture's name ends in {', '.join(PICTURES)}; got {plot.name}.")
        load_pyplot()
