"""Outcomes as files: numbers, figures, a page for each experiment, and one document for all of them."""

import dataclasses
import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from infodis import __version__, figures
from infodis.apps.report.page import cell, write
from infodis.apps.report.values import Report, ReportFinding, ReportTable
from infodis.apps.reproduce.experiment import Experiment, ExperimentResult, Workspace
from infodis.errors import InputError
from infodis.figures import Figure
from infodis.files import atomic_text, result_text

PAGE = "report.html"
IMAGES = "images/reproduction"
"""Figures of a document, from where it lies."""

Done = tuple[Experiment, ExperimentResult, Workspace]
MARKS = {"holds": "✓", "holds in part": "~", "undecided": "?", "does not hold": "✗", "not tested here": "–"}


def write_result(experiment: Experiment, result: ExperimentResult, workspace: Workspace) -> None:
    """outcome.json, figures/ and report.html in the directory of the workspace."""
    record = {
        "name": experiment.name,
        "paper": experiment.paper,
        "size": workspace.size,
        "seed": workspace.seed,
        "infodis": __version__,
        "about": result.about,
        "claims": [dataclasses.asdict(claim) for claim in result.claims],
        "why": result.why,
        "numbers": dict(result.numbers),
    }
    result_text(workspace.directory / "outcome.json", json.dumps(record, indent=2, ensure_ascii=False) + "\n")
    for figure in result.figures:
        figures.save(figure, workspace.directory / "figures")
    write(_page(experiment, result, workspace), workspace.directory / PAGE)


def _page(experiment: Experiment, result: ExperimentResult, workspace: Workspace) -> Report:
    return Report(
        title=experiment.title,
        about=f"{experiment.paper} of the paper. {result.about} {result.why}",
        findings=tuple(
            ReportFinding(f"The paper: {claim.paper} Here: {claim.found}", warning=claim.verdict == "does not hold")
            for claim in result.claims
        ),
        tables=(_claims(result), *result.tables),
        figures=result.figures,
        provenance={
            "experiment": experiment.name,
            "size": workspace.size,
            "seed": workspace.seed,
            "infodis": __version__,
        },
    )


def _claims(result: ExperimentResult) -> ReportTable:
    rows = tuple((claim.paper, claim.found, f"{MARKS[claim.verdict]} {claim.verdict}") for claim in result.claims)
    return ReportTable("Claims", ("the paper", "here", "verdict"), rows)


def write_all(done: Sequence[Done], path: Path) -> None:
    """One page with every experiment."""
    counts = Counter(claim.verdict for _, result, _ in done for claim in result.claims)
    rows = tuple(
        (experiment.name, claim.paper, claim.found, f"{MARKS[claim.verdict]} {claim.verdict}")
        for experiment, result, _ in done
        for claim in result.claims
    )
    size, seed = done[0][2].size, done[0][2].seed
    page = Report(
        title="The paper, reproduced",
        about=" ".join(f"{count} {verdict}." for verdict, count in counts.items()),
        tables=(
            ReportTable("Claims", ("experiment", "the paper", "here", "verdict"), rows),
            *(replace(table, title=f"{one.name}: {table.title}") for one, result, _ in done for table in result.tables),
        ),
        figures=tuple(
            replace(figure, name=f"{one.name}-{figure.name}", title=f"{one.name}: {figure.title}")
            for one, result, _ in done
            for figure in result.figures
        ),
        provenance={"size": size, "seed": seed, "infodis": __version__},
    )
    write(page, path)


def write_document(done: Sequence[Done], path: Path, *, order: Sequence[str]) -> None:
    """Outcomes in Markdown, with figures in images/reproduction beside it; sections of other experiments stay."""
    sections = {**sections_of(path), **{one[0].name: _section(*one) for one in done}}
    images = path.parent / IMAGES
    images.mkdir(parents=True, exist_ok=True)
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    pictures = {images / _file(one, figure): figure for one, result, _ in done for figure in result.figures}
    for picture in pictures:
        if picture.exists() and f"({IMAGES}/{picture.name})" not in before:
            raise InputError(f"{picture} is there already, and {path} does not show it. Move it away.")
    for picture, figure in pictures.items():
        atomic_text(picture, figures.svg(figure))
    ordered = (_MARK.format(name) + sections[name] for name in order if name in sections)
    atomic_text(path, "\n\n".join([_HEAD, *ordered]) + "\n")


_HEAD = """# The paper, reproduced

A section for each experiment: what the paper claims, the number that came out with its error, a verdict, and why. All
of it is written by `infodis reproduce NAME --document docs/reproduction.md`. Every section names the version that it
was measured with, and the weights where texts are scored: one of an older version was not run again since.

`infodis reproduce all` runs everything, in the size of a laptop with two cores; `--full` is the paper's own size
(`--dry-run` says what it takes), `--smoke` shows that it runs. Rerun a killed command to resume. Texts that cannot be
shipped are taken from `--data DIR`, from `data`, or fetched from the Hugging Face hub (`pip install
'infodis[reproduce]'`); two files are on no hub, and the message says where they are to be had.

Toy networks are trained plainly: random weights, drawn letters, AdamW, one loss. In the size of a laptop those that
ship are scored, and `--train` repeats their training. `--authors DIR` takes the data of the authors' own repository
(`git clone https://github.com/Dongjae0324/infodis DIR`); nothing of it is shipped, and networks are trained on it.

To renew a section after a change of weights, run its command with `--out` at a new place, so that nothing is taken
from before, and `--document docs/reproduction.md`. `text8-tiny` is asked by variance-time-free, variance-ratio,
ood-text8 and audit-llada, `dna-list` by dna-unconditional, `dna-chain` by dna-conditional; the others ask none that
ships."""
_MARK = "<!-- experiment: {} -->\n\n"


def sections_of(path: Path) -> dict[str, str]:
    """What a document holds so far, by experiment; raises `InputError` if the file is no such document."""
    if path.is_dir():
        raise InputError(f"{path} is a directory; a document is a file. Name one in it.")
    if not path.exists() or not path.stat().st_size:
        return {}
    head, *parts = re.split(_MARK.format("(.*?)"), path.read_text(encoding="utf-8", errors="replace"))
    if head.strip() != _HEAD:
        raise InputError(f"{path} was written by something else. Name a new file, or one of an earlier --document.")
    return {name: text.strip() for name, text in zip(parts[::2], parts[1::2], strict=True)}


def _section(experiment: Experiment, result: ExperimentResult, workspace: Workspace) -> str:
    parts = [
        f"## {experiment.title}",
        f"`{_command(experiment, workspace)}` ({_told(result, workspace)}) · {experiment.paper}",
        result.about,
        markdown(_claims(result)),
        f"**Why.** {result.why}",
        *(f"### {table.title}\n\n{markdown(table)}" for table in result.tables),
        *(_picture(experiment, figure) for figure in result.figures),
    ]
    return "\n\n".join(parts)


def _command(experiment: Experiment, workspace: Workspace) -> str:
    words = ["infodis reproduce", experiment.name, *(["--full"] if workspace.size == "full" else [])]
    words += ["--train"] if workspace.train else []
    words += ["--authors DIR"] if workspace.authors is not None else []
    words += [f"--model {workspace.model}"] if workspace.model is not None else []
    words += [f"--designs {','.join(workspace.designs)}"] if workspace.designs else []
    words += [f"--seed {workspace.seed}"] if workspace.seed else []
    return " ".join(words)


def _told(result: ExperimentResult, workspace: Workspace) -> str:
    time = "" if result.minutes is None else f", {result.minutes:.1f} minutes"
    return f"{workspace.size}, seed {workspace.seed}, infodis {__version__}{time}"


def _picture(experiment: Experiment, figure: Figure) -> str:
    return f"![{figure.title}]({IMAGES}/{_file(experiment, figure)})\n\n{figure.caption}"


def _file(experiment: Experiment, figure: Figure) -> str:
    return f"{experiment.name}-{figure.name}.svg"


def markdown(table: ReportTable) -> str:
    """A table as Markdown has it; bars inside cells are escaped."""
    rows = [table.columns, ("---",) * len(table.columns), *table.rows]
    lines = ["| " + " | ".join(cell(one).replace("|", "\\|") for one in row) + " |" for row in rows]
    return "\n".join(lines) + (f"\n\n{table.caption}" if table.caption else "")
