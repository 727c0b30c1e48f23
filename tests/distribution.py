"""What people install: everything is in the sdist and the wheel, and the wheel works in an empty environment.

    python -m build --outdir dist
    python tests/distribution.py dist

The wheel is installed into an environment of its own, and scores a sentence in a directory that is not the project's.
"""

import argparse
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
SDIST = ("CHANGELOG.md", "LICENSE", "Makefile", "README.md", "constraints.txt", "docs/theory.md", "examples/demo.py")
SENTENCE = "the river flows through the north of the country"
SCORE = (
    f"import infodis; model = infodis.load('text8-tiny'); print(infodis.nll(model, model.encode({SENTENCE!r})).value)"
)


def below(directory: Path) -> set[str]:
    """The files of a directory by their paths from its parent, without what Python writes there."""
    files = (path for path in directory.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(directory.parent).as_posix() for path in files}


def check_wheel(wheel: Path) -> None:
    """All of the package, weights and pages included, and nothing else."""
    found = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    wanted = below(ROOT / "src" / "infodis")
    assert found == wanted, f"{wheel.name} lacks {wanted - found}, and should not hold {found - wanted}."


def check_sdist(sdist: Path) -> None:
    """The sources, and the tests with what they are compared with."""
    with tarfile.open(sdist) as archive:
        found = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {f"src/{name}" for name in below(ROOT / "src" / "infodis")} | below(ROOT / "tests") | {*SDIST}
    assert wanted <= found, f"{sdist.name} lacks {wanted - found}."


def install(environment: Path, *what: str) -> None:
    """With the versions that everything else is tested with. PyTorch is named, so that the pinned build is taken."""
    options = ("--quiet", "--disable-pip-version-check", "--no-compile", "--constraint", str(ROOT / constraints()))
    subprocess.run([environment / "bin" / "python", "-m", "pip", "install", *options, "torch", *what], check=True)


def constraints() -> str:
    return os.environ.get("CONSTRAINTS", "constraints.txt")


def run(place: Path, *command: str | Path) -> str:
    """Without anything that could lead back to the project."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, check=True).stdout


def check_install(wheel: Path, place: Path) -> None:
    """The plain wheel scores as the sources do; with its extra, it writes a page."""
    bin = place / "environment" / "bin"
    venv.create(bin.parent, with_pip=True)
    install(bin.parent, str(wheel))
    rows, scores = place / "rows.jsonl", place / "scores.jsonl"
    rows.write_text(json.dumps({"text": SENTENCE}) + "\n")
    home = run(place, bin / "python", "-c", "import infodis; print(infodis.__file__)")
    assert Path(home.strip()).is_relative_to(bin.parent), home
    assert run(place, bin / "python", "-c", SCORE) == run(ROOT, sys.executable, "-c", SCORE)
    run(place, bin / "infodis", "score", rows, "--out", scores)
    [record] = map(json.loads, scores.read_text().splitlines())
    print(f"{wheel.name} scores {SENTENCE!r}: {record['value']:.2f} ± {record['standard_error']:.2f} nats")
    install(bin.parent, f"{wheel}[report]")
    run(place, bin / "infodis", "score", rows, "--out", place / "again.jsonl", "--report", place / "page.html")
    assert "</html>" in (place / "page.html").read_text()


def main() -> None:
    """Check what is in a directory."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("directory", type=Path)
    directory = arguments.parse_args().directory.resolve()
    [wheel], [sdist] = directory.glob("*.whl"), directory.glob("*.tar.gz")
    check_wheel(wheel)
    check_sdist(sdist)
    with tempfile.TemporaryDirectory() as place:
        check_install(wheel, Path(place))


if __name__ == "__main__":
    main()
