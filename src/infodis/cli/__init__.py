"""The command line: parse, call, print. Heavy imports happen inside commands, so that --help answers at once."""

import os
import sys

import typer
from rich.markup import escape

from infodis import __version__
from infodis.cli import attribute, audit, bench, bounds, curve, doctor, lm_eval, models, report, reproduce, score
from infodis.cli.screen import console, progress_console
from infodis.errors import InfodisError

app = typer.Typer(
    help="How likely does a discrete diffusion model find a piece of data, and how sure is that number?",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.add_typer(bench.bench, name="bench")
for command in (
    score.score,
    score.ratio,
    score.choose,
    score.perplexity,
    doctor.doctor,
    audit.audit,
    report.report,
    attribute.attribute,
    reproduce.reproduce,
    bounds.bounds,
    curve.curve,
    models.sample,
    models.train,
    models.export,
):
    app.command()(command)


app.command(context_settings=lm_eval.PASSED_ON, add_help_option=False)(lm_eval.lm_eval)


@app.command()
def version() -> None:
    """Print the version."""
    console.print(__version__)


def main() -> None:
    """Entry point: mistakes and full disks become one line on standard error and exit code 1, not a traceback."""
    try:
        app()
    except (InfodisError, OSError) as error:
        who = f" (process {rank})" if (rank := os.environ.get("RANK", "0")) != "0" else ""
        progress_console.print(
            f"[bold red]Error{who}:[/bold red] {escape(str(error))}", highlight=False, soft_wrap=True
        )
        sys.exit(1)
