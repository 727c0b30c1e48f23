"""Sphinx: Markdown pages, notebooks with the outputs that are committed, and a reference made from docstrings."""

import ast
import inspect
import re
import sys
import textwrap
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

import infodis

project = "infodis"
version = release = infodis.__version__
copyright = "the infodis authors, Apache-2.0"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_design"]
exclude_patterns = ["_build"]
suppress_warnings = ["myst.xref_missing"]  # links to files of the repository

myst_enable_extensions = ["dollarmath", "colon_fence", "attrs_inline", "deflist"]
myst_heading_anchors = 3
nb_execution_mode = "off"  # `make tutorials` runs them and keeps their outputs; `make docs` checks that they still run
nb_merge_streams = True

default_role = "code"  # docstrings are read as Markdown by people: `name` is code
autodoc_mock_imports = ["trl"]  # its documentation is read, not its code
autodoc_default_options = {"member-order": "bysource"}
python_maximum_signature_line_length = 80

html_theme = "furo"
html_title = "infodis"
html_static_path = ["_static"]
html_css_files = ["infodis.css"]


def source_signature(app: Any, what: str, name: str, obj: Any, *rest: Any) -> tuple[str, str] | None:
    """For autodoc: a function as its source spells it, with `Positions` instead of the union that it stands for."""
    if what not in {"function", "method"} or "__signature__" in vars(obj):
        return None
    definition = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(obj)))).body[0]
    assert isinstance(definition, ast.FunctionDef)
    if what == "method" and not any(ast.unparse(one) == "staticmethod" for one in definition.decorator_list):
        definition.args.args.pop(0)
    result = "" if definition.returns is None else ast.unparse(definition.returns)
    return f"({ast.unparse(definition.args)})", result.strip("'")


def link_equations(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """For autodoc: a tag such as [eq:nll] leads to its equation on the page about theory."""
    lines[:] = [re.sub(r"\[eq:([\w-]+)\]", r"`[eq:\1] <../theory.html#eq-\1>`__", line) for line in lines]


def name_equations(app: Any, page: str, source: list[str]) -> None:
    """The tags of the page about theory become places to link to."""
    if page == "theory":
        for tag in dict.fromkeys(re.findall(r"`\[eq:([\w-]+)\]`", source[0])):
            source[0] = source[0].replace(f"`[eq:{tag}]`", f"`[eq:{tag}]`{{#eq-{tag}}}", 1)


def write_commands(app: Any, page: str, source: list[str]) -> None:
    """The page about commands: what every `--help` prints."""
    if page != "reference/commands":
        return
    from infodis.cli import app as commands

    names = [
        one.name or one.callback.__name__.replace("_", "-") for one in commands.registered_commands if one.callback
    ]
    calls = [(f"infodis {name}", [name, "--help"]) for name in names if name not in {"lm-eval", "version"}]
    for title, arguments in calls:
        surroundings = {"COLUMNS": "84", "TTY_COMPATIBLE": "0"}
        shown = CliRunner().invoke(commands, arguments, prog_name="infodis", env=surroundings).output
        source[0] += f"\n## {title}\n\n```text\n{textwrap.dedent(shown).strip()}\n```\n"


def make_accessible(app: Any, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """What axe-core asks for: headings with a level, and scrolling by keyboard."""
    for part, old, new in (
        ("furo_navigation_tree", 'role="heading"', 'role="heading" aria-level="2"'),
        ("body", "<pre>", '<pre tabindex="0">'),
    ):
        context[part] = context.get(part, "").replace(old, new)


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("autodoc-process-signature", source_signature)
    app.connect("autodoc-process-docstring", link_equations)
    app.connect("source-read", name_equations)
    app.connect("source-read", write_commands)
    app.connect("html-page-context", make_accessible, priority=900)  # after the theme
