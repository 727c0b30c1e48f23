"""The command line: parse, call, print. Heavy imports happen inside commands, so that --help answers at once."""

import sys

import typer
from rich.markup import escape

from infodis import __version__
from infodis.cli import bench, models
from infodis.cli.screen import console, progress_console
from infodis.errors import InfodisError

app = typer.Typer(
    help="How likely does a discrete diffusion model find a piece of data, and how sure is that number?",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.add_typer(bench.bench, name="bench")
for command in (models.perplexity, models.sample, models.train, models.export):
    app.command()(command)


@app.command()
def version() -> None:
    """Print the version."""
    console.print(__version__)


def main() -> None:
    """Entry point: what infodis raises on purpose becomes one line on standard error and exit code 1."""
    try:
        app()
    except InfodisError as error:
        progress_console.print(f"[bold red]Error:[/bold red] {escape(str(error))}", highlight=False)
        sys.exit(1)
    except KeyboardInterrupt:
        progress_console.print("Interrupted.")
        sys.exit(130)
