"""Where the command line writes: results to standard output, progress and errors to standard error, or to files.

Nothing that a file holds does anything to a terminal: text is only text on these consoles, whoever prints it, and
libraries that warn or log are held to the same.
"""

import contextlib
import importlib
import logging
import math
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.segment import Segment
from rich.text import Text

from infodis.errors import InputError
from infodis.files import check_apart, check_own
from infodis.terminal import printable

if TYPE_CHECKING:
    from infodis.models.model import Model
    from infodis.models.spec import ModelSpec

LINES = "\n\t"
"""Control characters that texts of several lines are made of."""


class Screen(Console):
    """A console without markup, emoji codes and control characters: style comes with `Text`, never with a text."""

    def __init__(self, *, stderr: bool = False, width: int | None = None) -> None:
        super().__init__(stderr=stderr, width=width, markup=False, highlight=False, emoji=False)

    def render_str(self, text: str, **how: Any) -> Text:
        """Before it is laid out, so that tables stay straight."""
        return super().render_str(printable(text, keep=LINES), **how)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """The way of everything that is shown, a `Text` made elsewhere too."""
        for found in super().render(renderable, options):
            yield found if found.control else Segment(printable(found.text, keep=LINES), found.style)

    def error(self, message: str, *, label: str = "Error") -> None:
        """One line, however many the message has."""
        line = " ".join(part for part in map(str.strip, message.splitlines()) if part)
        self.print(Text.assemble((f"{label}:", "bold red"), " ", printable(line)), soft_wrap=True)


console = Screen(width=None if sys.stdout is not None and sys.stdout.isatty() else 132)
progress_console = Screen(stderr=True)


def write_line(text: str) -> None:
    """A line of results, which is data: as it is into a file or a pipe, printable on a terminal."""
    print(printable(text, keep=LINES) if sys.stdout.isatty() else text)


def write_records(file: IO[bytes]) -> None:
    """Copy lines of JSON to standard output."""
    if sys.stdout.isatty():
        for line in file:
            write_line(line.decode().removesuffix("\n"))
        return
    while piece := file.read(2**20):
        sys.stdout.buffer.write(piece)
    sys.stdout.buffer.flush()


def check_streams() -> None:
    """A closed standard stream is told before the work: whatever is opened next would take its place."""
    for number, name in ((2, "stderr"), (1, "stdout"), (0, "stdin")):
        if getattr(sys, name) is None:
            _open_nothing(number, name)
            if name == "stdout":
                raise InputError("Standard output is closed. Leave it open, or discard it: > /dev/null.")
        elif name != "stdin":
            getattr(sys, name).reconfigure(errors="backslashreplace")  # names of files that are not Unicode


def _open_nothing(number: int, name: str) -> None:
    """The null device in the place of a stream that is not there."""
    handle = os.open(os.devnull, os.O_RDWR)
    if handle != number:
        os.dup2(handle, number)
        os.close(handle)
    if name != "stdin":  # who asks for input is told that there is none
        setattr(sys, name, open(number, "w", encoding="utf-8", closefd=False))  # noqa: SIM115 - stays open


def tame_libraries() -> None:
    """What others warn of, log or fail with quotes files as well."""
    plain, make = warnings.formatwarning, logging.getLogRecordFactory()

    def record(*arguments: Any, **options: Any) -> logging.LogRecord:
        made = make(*arguments, **options)
        made.msg, made.args = printable(made.getMessage(), keep=LINES), None
        return made

    def failed(kind: Any, error: Any, trace: Any) -> None:
        sys.stderr.write(printable("".join(traceback.format_exception(kind, error, trace)), keep=LINES))

    warnings.formatwarning = lambda *about: printable(plain(*about), keep=LINES)
    logging.setLogRecordFactory(record)
    sys.excepthook = failed


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
        from infodis.figures.figure import check_picture

        check_picture(plot)


@contextlib.contextmanager
def working(text: str) -> Iterator[None]:
    """Say what takes a while, on standard error: a spinner on a terminal, a line elsewhere."""
    if progress_console.is_terminal:
        with progress_console.status(f"{text} ..."):
            yield
        return
    progress_console.print(f"{text} ...", soft_wrap=True)
    yield


@contextlib.contextmanager
def counting(unit: str) -> Iterator[Callable[[int, int], None]]:
    """A bar for work that tells how many of its units are done, and of how many."""
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn(unit), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=progress_console, transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def load_torch() -> None:
    """Import torch, which takes seconds, and say so."""
    if "torch" not in sys.modules:
        with working("loading torch"):
            importlib.import_module("torch")


def load_model(spec: "ModelSpec") -> "Model":
    """A model by its name, and say so while it loads."""
    with working(f"loading {spec.name}"):
        return spec.load()


Progressing = TypeVar("Progressing", bound="ProgressLine")


class ProgressLine:
    """Progress on standard error: a bar of these columns on a terminal, a line every so many seconds elsewhere."""

    def __init__(self, *columns: ProgressColumn, every: float) -> None:
        self.bar = Progress(*columns, console=progress_console, transient=True)
        self._every, self._last = every, -math.inf

    def __enter__(self: Progressing) -> Progressing:
        if progress_console.is_terminal:
            self.bar.start()
        return self

    def __exit__(self, *problem: object) -> None:
        if progress_console.is_terminal:
            self.bar.stop()

    def print_sometimes(self, line: str) -> None:
        """Print a line: the first, and then one every so many seconds."""
        if time.monotonic() - self._last >= self._every:
            self._last = time.monotonic()
            progress_console.print(line, soft_wrap=True)
