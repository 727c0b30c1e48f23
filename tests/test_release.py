"""What is installed and published: versions that agree with each other, workflows and forms that can be read."""

import ast
import re
import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

import infodis

yaml = pytest.importorskip("yaml")
ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MAKEFILE = (ROOT / "Makefile").read_text()
CI = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
FORMS = sorted(path for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")
PYTHON = ("3.10", "3.11", "3.12", "3.13")


def steps():
    return [step for job in CI["jobs"].values() for step in job["steps"]]


def test_the_changelog_begins_with_this_version():
    assert re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[0] == infodis.__version__


def test_every_supported_python_is_said_and_tested():
    assert PROJECT["requires-python"] == f">={PYTHON[0]}"
    said = [line.rpartition(" ")[2] for line in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", line)]
    assert tuple(said) == tuple(CI["jobs"]["test"]["strategy"]["matrix"]["python"]) == PYTHON


def test_workflows_run_our_make_targets():
    targets = set(re.search(r"^\.PHONY: (.+)$", MAKEFILE, re.MULTILINE)[1].split())
    run = {re.fullmatch(r"make ([\w-]+)( \w+=\S*| \w+=.*\}\})*", step["run"])[1] for step in steps() if "run" in step}
    assert run == {"test", "check", "docs", "demo", "smoke", "smoke-full", "faults", "dist"}
    assert run <= targets
    assert all(re.search(rf"^{target}:", MAKEFILE, re.MULTILINE) for target in targets)


def test_workflows_hold_no_secrets_and_take_actions_by_major_version():
    text = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    assert "secrets" not in text
    assert CI["permissions"] == {"contents": "read"}
    assert all(re.fullmatch(r"actions/[\w-]+@v\d+", step["uses"]) for step in steps() if "uses" in step)


def test_the_oldest_versions_are_those_that_we_allow():
    """Written in two files: what may be installed, and what is tested."""
    needed = [*PROJECT["dependencies"], *(one for some in PROJECT["optional-dependencies"].values() for one in some)]
    allowed = dict(found.groups() for one in needed if (found := re.match(r"([\w-]+)(?:\[\w+\])?>=([\d.]+)", one)))
    lines = (ROOT / "constraints-oldest.txt").read_text().splitlines()
    tested = dict(line.split("==") for line in lines if not line.startswith("#"))
    assert {row["constraints"] for row in CI["jobs"]["test"]["strategy"]["matrix"]["include"]} == {
        "constraints-oldest.txt"
    }
    assert {"torch", "transformers", "numpy", "scipy"} <= set(tested)
    assert all((tested[name] + ".").startswith(allowed[name] + ".") for name in tested if name in allowed)


def test_no_file_to_install_from_names_a_host():
    """Where packages come from is the user's choice."""
    files = [ROOT / "Makefile", *ROOT.glob("constraints*.txt"), *ROOT.glob(".github/**/*.yml")]
    assert [path.name for path in files if re.search(r"https?://|--\S*index-url", path.read_text())] == []


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_issue_forms_are_complete(path):
    form = yaml.safe_load(path.read_text())
    assert set(form) == {"name", "description", "labels", "body"}
    fields = form["body"]
    assert {field["type"] for field in fields} <= {"textarea", "input", "checkboxes"}
    assert len({field["id"] for field in fields}) == len(fields)
    assert all(field["attributes"]["label"] for field in fields)


def test_there_is_a_form_for_each_kind_of_issue():
    assert [path.stem for path in FORMS] == ["bug", "model", "question"]


NEWER = {
    "typing": {"Self", "Never", "LiteralString", "Required", "NotRequired", "Unpack", "assert_never", "override"},
    "enum": {"StrEnum"},
    "datetime": {"UTC"},
    "itertools": {"batched"},
    "contextlib": {"chdir"},
}
"""What Python 3.10 lacks, by module."""


@pytest.mark.parametrize("path", sorted((ROOT / "src").rglob("*.py")), ids=lambda path: path.stem)
def test_the_oldest_python_can_read_the_sources(path):
    """Syntax as of 3.10, and no name that came later."""
    tree = ast.parse(path.read_text(), feature_version=(3, 10))
    for node in ast.walk(tree):
        assert type(node).__name__ not in {"TryStar", "TypeAlias"}, f"{path.name}:{node.lineno}"
        if isinstance(node, ast.ImportFrom):
            newer = {name.name for name in node.names} & NEWER.get(node.module or "", set())
            assert not newer, f"{path.name}:{node.lineno} {newer}"
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            assert node.attr not in NEWER.get(node.value.id, set()), f"{path.name}:{node.lineno} {node.attr}"
