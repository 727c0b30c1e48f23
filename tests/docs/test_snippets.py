"""Every Python snippet of the README and the pages runs, and prints what stands below it; every command line parses.

A snippet that cannot run here has a comment before it that says why: `<!-- not run: it needs a GPU -->`.
"""

import contextlib
import io
import itertools
import re
import shlex
from pathlib import Path

import click
import pytest
import typer

from infodis.cli import app

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(
    r"(?:<!-- not run: (?P<reason>[^>]+) -->\s*)?^```(?P<kind>[^\n]*)\n(?P<content>.*?)^```$", re.DOTALL | re.MULTILINE
)
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e-?\d+)?")


def name(path):
    return str(path.relative_to(ROOT))


def fences(path, kind):
    """Blocks of a kind, each with the block behind it."""
    found = list(FENCE.finditer(path.read_text(encoding="utf-8")))
    return [(one, after) for one, after in itertools.zip_longest(found, found[1:]) if one["kind"] == kind]


def run(path):
    """What the snippets of a page print, one after the other in one namespace, and what the page says they do."""
    namespace = {"__name__": "snippet"}
    for number, (block, after) in enumerate(fences(path, "python")):
        if block["reason"]:
            continue
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(block["content"], f"{name(path)}, snippet {number + 1}", "exec"), namespace)
        if after is not None and after["kind"] == "text":
            yield printed.getvalue(), after["content"]


def assert_alike(printed, expected):
    """The same words, and numbers that agree to a percent: the last digits are the processor's."""
    assert NUMBER.sub("#", printed).split() == NUMBER.sub("#", expected).split(), printed
    numbers = [[float(one) for one in NUMBER.findall(text)] for text in (printed, expected)]
    assert numbers[0] == pytest.approx(numbers[1], rel=0.01, abs=0.01), printed


WITH_SNIPPETS = [path for path in PAGES if fences(path, "python")]


@pytest.mark.filterwarnings("ignore")  # those of libraries that pages show
@pytest.mark.parametrize("path", WITH_SNIPPETS, ids=name)
def test_snippets_run_and_print_what_the_page_says(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for printed, expected in run(path):
        assert_alike(printed, expected)


def commands(path):
    for block, _ in fences(path, ""):
        for line in block["content"].replace("\\\n", " ").splitlines():
            if line.startswith("infodis ") and not line.startswith("infodis lm-eval"):
                yield shlex.split(line, comments=True)[1:]


LINES = [(name(path), words) for path in PAGES for words in commands(path)]


@pytest.mark.parametrize(("path", "words"), LINES, ids=lambda one: one if isinstance(one, str) else " ".join(one))
def test_command_lines_have_options_that_exist(path, words):
    """Parsed, not run: most name files and models that are not here."""
    command, context = typer.main.get_command(app), None
    while isinstance(command, click.Group):
        context = click.Context(command, info_name=words[0], parent=context)
        command, words = command.commands[words[0]], words[1:]
    command.make_context(command.name, list(words), parent=context)


def test_there_are_snippets_and_commands():
    assert len(WITH_SNIPPETS) >= 5
    assert len(LINES) >= 20


def test_another_output_is_noticed():
    assert_alike("nll 15.42\n", "nll   15.4")
    with pytest.raises(AssertionError):
        assert_alike("nll 15.42\n", "nll 16.42")
    with pytest.raises(AssertionError):
        assert_alike("nll 15.42\n", "nats 15.42")
