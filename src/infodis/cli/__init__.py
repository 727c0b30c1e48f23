"""The command line: parse, call, print. Heavy imports happen inside commands, so that --help answers at once."""

import os
import sys
from typing import Annotated, Any

import typer

from infodis import __version__
from infodis.cli import (
    attribute,
    audit,
    bench,
    bounds,
    calibrate,
    curve,
    doctor,
    lm_eval,
    models,
    pairs,
    perplexity,
    report,
    reproduce,
    score,
    variants,
)
from infodis.cli.running import INTERRUPTED
from infodis.cli.screen import check_streams, console, progress_console, tame_libraries
from infodis.errors import InfodisError

USAGE: Any = typer.BadParameter.__base__
"""Whatever typer raises when a command line is wrong."""

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.add_typer(bench.bench, name="bench")
for command in (
    score.score,
    score.ratio,
    score.choose,
    perplexity.perplexity,
    pairs.pairs,
    variants.variants,
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
    calibrate.calibrate,
):
    app.command()(command)


app.command(context_settings=lm_eval.PASSED_ON, add_help_option=False)(lm_eval.lm_eval)


@app.command()
def version() -> None:
    """Print the version."""
    console.print(__version__)


def _version_option(wanted: bool) -> bool:
    if wanted:
        version()
        raise typer.Exit
    return wanted


@app.callback()
def infodis(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_version_option, help="Print the version.")
    ] = False,
) -> None:
    """How likely does a discrete diffusion model find a piece of data, and how sure is that number?"""


def main() -> None:
    """Entry point: mistakes and full disks become one line on standard error and exit code 1, not a traceback."""
    try:
        check_streams()
        tame_libraries()
        sys.exit(app(standalone_mode=False))
    except USAGE as error:
        if type(error).__name__ != "NoArgsIsHelpError":  # help was printed in its stead
            hint = "" if error.ctx is None else f" See {error.ctx.command_path} --help."
            progress_console.error(f"{error.format_message()}{hint}")
        sys.exit(error.exit_code)
    except typer.Abort:
        sys.exit(INTERRUPTED)
    except (InfodisError, OSError) as error:
        who = f"Error (process {rank})" if (rank := os.environ.get("RANK", "0")) != "0" else "Error"
        progress_console.error(str(error), label=who)
        sys.exit(1)
