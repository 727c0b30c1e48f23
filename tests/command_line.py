"""Commands run in this process."""

from typer.testing import CliRunner

from infodis.cli import app


def invoke(*arguments, code=0, input=None):
    found = CliRunner().invoke(app, [str(argument) for argument in arguments], input=input)
    if found.exception is not None and not isinstance(found.exception, SystemExit):
        raise found.exception
    assert found.exit_code == code, found.output
    return found
