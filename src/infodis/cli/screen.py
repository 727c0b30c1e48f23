"""Where the command line writes: results to standard output, progress and errors to standard error."""

import sys

from rich.console import Console

console = Console(width=None if sys.stdout.isatty() else 132)
progress_console = Console(stderr=True)
