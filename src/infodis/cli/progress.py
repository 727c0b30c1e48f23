"""Progress on standard error: a bar on a terminal, a line now and then elsewhere."""

import time
from typing import TypeVar

from rich.progress import Progress, ProgressColumn

from infodis.cli.screen import progress_console

Self = TypeVar("Self", bound="Watching")


class Watching:
    """What a command with a bar of these columns, or a line every so many seconds, shares with the others."""

    def __init__(self, *columns: ProgressColumn, every: float) -> None:
        self.bar = Progress(*columns, console=progress_console, transient=True)
        self._every, self._told = every, time.monotonic()

    def __enter__(self: Self) -> Self:
        if progress_console.is_terminal:
            self.bar.start()
        return self

    def __exit__(self, *problem: object) -> None:
        if progress_console.is_terminal:
            self.bar.stop()

    def now_and_then(self, line: str) -> None:
        """Print a line, unless one was printed a moment ago."""
        if time.monotonic() - self._told >= self._every:
            self._told = time.monotonic()
            progress_console.print(line, soft_wrap=True)
