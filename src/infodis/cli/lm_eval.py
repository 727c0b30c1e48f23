"""The command that hands over to lm-evaluation-harness, with our model class in it."""

import sys
from typing import Any

import typer

from infodis.cli.screen import write_line
from infodis.errors import InputError

PASSED_ON = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}
"""Every option is the harness's own, --help too."""


def lm_eval(context: typer.Context) -> None:
    """Benchmarks with lm-evaluation-harness: its own command line, with --model infodis in it.

    Example: [bold]infodis lm-eval --model infodis --model_args pretrained=text8-tiny,evaluations=64 --tasks TASK[/bold]
    """
    try:
        from lm_eval import evaluator
    except ImportError as error:
        raise InputError("The harness is not installed: pip install 'infodis[eval]'.") from error
    import infodis.apps.lm_eval.harness  # noqa: F401 - registers the model
    from infodis.apps.lm_eval.monte_carlo import summary

    evaluate = evaluator.simple_evaluate
    found: list[dict[str, Any]] = []

    def keeping(*arguments: Any, **options: Any) -> Any:
        results = evaluate(*arguments, **options)
        found.extend([] if results is None else [results])
        return results

    _run(keeping, context.args)
    for results in found:
        for line in summary(results):
            write_line(line)


def _run(evaluate: Any, arguments: list[str]) -> None:
    """The harness's command line, with a `simple_evaluate` whose results can be seen."""
    import lm_eval
    from lm_eval import __main__ as harness
    from lm_eval import evaluator

    before = evaluator.simple_evaluate, sys.argv
    sys.argv = ["infodis lm-eval", *arguments]
    evaluator.simple_evaluate = lm_eval.simple_evaluate = evaluate
    try:
        harness.cli_evaluate()
    finally:
        evaluator.simple_evaluate = lm_eval.simple_evaluate = before[0]
        sys.argv = before[1]
