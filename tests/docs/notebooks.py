"""Run the tutorials and keep what they print: `make tutorials`.

Each notebook runs in a kernel of its own and in an empty directory, so that it can lean on nothing but the package.
"""

import os
import re
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.ipynb"))
SECONDS = 240
"""For a cell: far more than any takes, on a busy machine too."""
SURROUNDINGS = {
    "OMP_NUM_THREADS": "1",  # small networks: more threads only wait for each other
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "COLUMNS": "110",
    "TTY_COMPATIBLE": "0",
    "PYTHONWARNINGS": "ignore",  # of libraries, about notebooks
}


def executed(notebook: nbformat.NotebookNode, directory: Path) -> nbformat.NotebookNode:
    """The notebook with the outputs of a fresh run in `directory`."""
    fresh = nbformat.from_dict(notebook)
    os.environ.update(SURROUNDINGS)
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # `!python` is this one
    client = NotebookClient(
        fresh, timeout=SECONDS, record_timing=False, resources={"metadata": {"path": str(directory)}}
    )
    client.execute()
    return fresh


def printed(notebook: nbformat.NotebookNode) -> list[str]:
    """What each code cell shows as plain text."""
    return [
        "".join(one.get("text", "") or one.get("data", {}).get("text/plain", "") for one in cell.outputs)
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


def words(text: str) -> list[str]:
    """Without numbers, spaces and lines of tables, which differ from machine to machine."""
    return re.findall(r"[a-zA-Z]{3,}", text)


def main() -> None:
    for path in TUTORIALS:
        if sys.argv[1:] and path.stem not in sys.argv[1:]:
            continue
        with tempfile.TemporaryDirectory() as directory:
            nbformat.write(executed(nbformat.read(path, as_version=4), Path(directory)), path)
        print(f"{path.relative_to(ROOT)}: run")


if __name__ == "__main__":
    main()
