"""Every tutorial runs from top to bottom and still says what its committed outputs say."""

import nbformat
import notebooks
import pytest

EMPTY = """
import infodis
model = infodis.load("text8-tiny")
infodis.nll(model, "the capital of france")
"""


@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore")  # of the kernel's own libraries
@pytest.mark.parametrize("path", notebooks.TUTORIALS, ids=lambda path: path.stem)
def test_tutorials_run_and_say_what_they_said(path, tmp_path):
    committed = nbformat.read(path, as_version=4)
    fresh = notebooks.executed(committed, tmp_path)
    for before, now in zip(notebooks.printed(committed), notebooks.printed(fresh), strict=True):
        assert notebooks.words(now) == notebooks.words(before), "run `make tutorials` and look at what changed"


@pytest.mark.filterwarnings("ignore")
def test_from_an_empty_notebook_to_an_error_bar_in_three_lines(tmp_path):
    lines = EMPTY.strip().splitlines()
    assert len(lines) == 3
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(line) for line in lines])
    shown = notebooks.executed(notebook, tmp_path).cells[-1].outputs[0]["data"]
    assert "standard_error=0." in shown["text/plain"]
    assert "±" in shown["text/html"]


def test_all_outputs_are_committed():
    assert len(notebooks.TUTORIALS) == 7
    for path in notebooks.TUTORIALS:
        cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
        assert all(cell.execution_count for cell in cells), f"{path.name} was not run: make tutorials"
