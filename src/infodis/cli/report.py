"""`infodis report`: a page to open from the records of a run."""

import contextlib
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from infodis import __version__
from infodis.cli.screen import check_places, console
from infodis.errors import InputError

if TYPE_CHECKING:
    from infodis.jobs.outputs import Columns

MOST = 20_000
"""Rows that a page takes without becoming slow."""


def report(
    results: Annotated[
        Path, typer.Argument(help="Records of infodis score, attribute or pairs: .jsonl, .csv or .parquet.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The page, .html.")] = Path("report.html"),
    title: Annotated[str | None, typer.Option(help="Of the page. Default: the name of the file.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="At most so many rows.")] = None,
    figures: Annotated[Path | None, typer.Option(help="A directory for figures as SVG, PNG and CSV.")] = None,
) -> None:
    """One HTML file that opens by double click: findings, histogram, rows with a heat map of their tokens.

    Nothing in it is loaded from elsewhere. For heat maps score with --per-token.

    Examples:
    [bold]infodis score texts.jsonl --per-token --out scores.jsonl[/bold]

    [bold]infodis report scores.jsonl --out scores.html --figures figures[/bold]
    """
    write_report(results, out, title=title, limit=limit, figures=figures)
    console.print(f"Report: {out}")


def write_report(
    results: Path, out: Path, *, title: str | None = None, limit: int | None = None, figures: Path | None = None
) -> None:
    """The page of a results file, and its figures if a directory is named."""
    check_page(out, reads=[results])
    from infodis.apps.report.page import write
    from infodis.apps.report.pairs import pair_report
    from infodis.apps.report.scores import score_report
    from infodis.figures import save

    records = read_records(results, limit)
    made = pair_report if _is_pair(records[0]) else score_report
    page = made(records, title=title or results.name, provenance=provenance([results]))
    for figure in page.figures if figures is not None else ():
        save(figure, figures or Path())
    write(page, out)


def check_page(out: Path, *, reads: Iterable[Path]) -> None:
    """Raise an error before the work, not after it, if the page cannot be written."""
    from infodis.figures import load_vega

    check_places(out, reads=reads)
    if out.suffix not in (".html", ".htm"):
        raise InputError(f"A page's name ends in .html; got {out.name}.")
    load_vega()


def read_records(path: Path, limit: int | None) -> list[dict[str, Any]]:
    """What `infodis score` and its like wrote."""
    if not path.is_file():
        raise InputError(f"There is no file {path}. Give the records that infodis score wrote.")
    records = {".parquet": _parquet, ".csv": _table}.get(path.suffix, _lines)(path)
    if not records or not all(isinstance(record, dict) and _is_record(record) for record in records):
        raise InputError(f"{path} does not hold records of infodis score: lines of JSON with a value each.")
    if len({_is_pair(record) for record in records}) > 1:
        raise InputError(f"{path} must hold records of one kind, got pairs and others. Report them apart.")
    _check_records(path, records)
    if limit is None and len(records) > MOST:
        raise InputError(f"{path} has {len(records):,} rows; a page takes {MOST:,}. Give --limit {MOST}.")
    return records[:limit]


def _is_record(record: dict[str, Any]) -> bool:
    return "value" in record or _is_pair(record)


def _is_pair(record: dict[str, Any]) -> bool:
    return record.get("quantity") == "pair"


def _lines(path: Path) -> list[Any]:
    """Only a line feed ends a record: texts may hold what others take for line ends."""
    from infodis.files import parse_json

    try:
        return [parse_json(line) for line in path.read_bytes().split(b"\n") if line.strip()]
    except ValueError as error:
        raise InputError(f"{path} is not JSON lines: {error}.") from None


def _check_records(path: Path, records: Sequence[dict[str, Any]]) -> None:
    from infodis.jobs.outputs import wrong_field

    columns = _columns(pairs=_is_pair(records[0]))
    for number, record in enumerate(records, start=1):
        wrong = wrong_field(record, columns)
        if wrong is not None:
            raise InputError(f"{path} does not hold records of infodis score: record {number}, {wrong}.")


def _columns(*, pairs: bool) -> "Columns":
    """Of minimal pairs, or of all other records that a page can be made of."""
    from infodis.jobs.attributions import ATTRIBUTION_COLUMNS
    from infodis.jobs.job import ESTIMATE_COLUMNS, TOKEN_COLUMNS
    from infodis.jobs.pairs import PAIR_COLUMNS

    if pairs:
        return PAIR_COLUMNS
    return {**ATTRIBUTION_COLUMNS, **ESTIMATE_COLUMNS, **TOKEN_COLUMNS, "text": "text"}


def _table(path: Path) -> list[Any]:
    from infodis.jobs.outputs import read_csv

    try:
        return read_csv(path, {**_columns(pairs=True), **_columns(pairs=False)})
    except ValueError as error:
        raise InputError(f"{path} does not hold records as infodis writes them to CSV: {error}.") from None


def _parquet(path: Path) -> list[Any]:
    from infodis.jobs.outputs import load_arrow

    arrow = load_arrow()
    try:
        return arrow.parquet.read_table(path).to_pylist()
    except (arrow.ArrowInvalid, OSError) as error:
        raise InputError(f"{path} is not a Parquet file: {str(error).splitlines()[0]}") from None


def provenance(results: Sequence[Path]) -> dict[str, Any]:
    """How records came about, as far as their manifests tell; what is alike for all of them, once."""
    from infodis.jobs.store import read_manifest

    known = {}
    for path in results:
        with contextlib.suppress(InputError):  # what lies there may be somebody else's
            if (manifest := read_manifest(path)) is not None:
                known[path.stem] = _settings_of(manifest)
    common = dict.fromkeys(name for settings in known.values() for name in settings)
    found: dict[str, Any] = {}
    for name in common:
        values = {which: settings.get(name) for which, settings in known.items()}
        alike = len({*map(str, values.values())}) == 1
        found[name] = next(iter(values.values())) if alike else values
    return {"infodis": __version__, **found}


def _settings_of(manifest: dict[str, Any]) -> dict[str, Any]:
    command = shlex.join(["infodis", *map(str, manifest.get("command_line") or [])])
    return {
        "command": command,
        **{name: value for name, value in manifest.get("settings", {}).items() if name != "command"},
        "forward passes": manifest.get("totals", {}).get("evaluations"),
        "sha256 of records": manifest.get("sha256"),
        "python": manifest.get("python"),
    }
