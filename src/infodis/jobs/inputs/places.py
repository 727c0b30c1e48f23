"""Where rows come from: a file, packed or not, a pipe or standard input; and in what form."""

import contextlib
import dataclasses
import gzip
import io
import stat
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from infodis.errors import InputError

STANDARD_INPUT = "-"

KINDS = ("jsonl", "csv", "tsv", "parquet", "text")

SUFFIXES = {
    ".jsonl": "jsonl",
    ".json": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
}

PACKED = (".bz2", ".xz", ".zst", ".zip", ".7z", ".tar", ".tgz", ".lz4", ".parquet.gz")
"""Suffixes of what must be unpacked first."""

SPREADSHEETS = (".xlsx", ".xls", ".xlsm", ".ods", ".numbers")

BUFFER = 2**20


@dataclasses.dataclass(frozen=True)
class InputFile:
    """An input that is there."""

    name: str
    """For messages."""
    path: Path | None
    """None: standard input."""
    kind: str
    gzipped: bool
    regular: bool
    """Not a pipe: it can be read twice."""

    @property
    def copied(self) -> bool:
        """Whether a plain copy is needed to read any part of it at any time."""
        return self.gzipped or not self.regular

    def plain(self, copy: Path) -> Path:
        """What to read: the file itself, or its copy."""
        return copy if self.path is None or self.copied else self.path

    def state(self) -> list[int] | None:
        """Changes when the content does; None if that cannot be told."""
        if self.path is None or not self.regular:
            return None
        found = self.path.stat()
        return [found.st_size, found.st_mtime_ns]

    @contextlib.contextmanager
    def opened(self) -> Iterator[io.BufferedReader]:
        """Its content, unpacked."""
        if self.path is None:
            if sys.stdin is None:
                raise InputError("Standard input is closed: name a file, or give rows through a pipe.")
            unbuffered: Any = sys.stdin.buffer
            file: io.BufferedReader = io.BufferedReader(unbuffered, BUFFER)
            try:
                yield file
            finally:
                file.detach()  # standard input stays open
            return
        try:
            packed: Any = self.path.open("rb", BUFFER)
        except OSError as error:
            raise InputError(f"{self.path} cannot be read: {error.strerror}.") from error
        with packed:
            if not self.gzipped:
                yield packed
                return
            content: Any = gzip.GzipFile(fileobj=packed)
            with io.BufferedReader(content, BUFFER) as file:
                yield file

    @contextlib.contextmanager
    def told(self) -> Iterator[None]:
        """Tells what is wrong with a packed file as a mistake in the input."""
        try:
            yield
        except (gzip.BadGzipFile, zlib.error, EOFError) as error:
            raise InputError(f"{self.name} is not a whole gzip file: {error}.") from error


def find(input: str | Path, format: str | None = None) -> InputFile:
    """An input by its name. `format` says what it holds where the name does not."""
    if format not in (None, *KINDS):
        raise InputError(f"The format of an input is one of {', '.join(KINDS)}; got {format!r}.")
    if str(input) == STANDARD_INPUT:
        return InputFile("standard input", None, format or "jsonl", gzipped=False, regular=False)
    path = Path(input)
    try:
        mode = path.stat().st_mode
    except OSError as error:
        reason = "There is no file" if isinstance(error, FileNotFoundError) else f"{error.strerror}:"
        raise InputError(f"{reason} {path}.") from error
    if stat.S_ISDIR(mode):
        raise InputError(f"{path} is a directory. Name a file.")
    name = path.name.lower()
    if name.removesuffix(".gz").endswith(PACKED) or name.endswith(PACKED):
        raise InputError(f"{path} must be unpacked first: only .gz is read as it is, and not of Parquet.")
    if format is None and name.endswith(SPREADSHEETS):
        raise InputError(
            f"Rows must be JSONL, CSV, TSV, Parquet or text; {path} is a spreadsheet. Save it as CSV (UTF-8)."
        )
    gzipped = name.endswith(".gz")
    kind = format or SUFFIXES.get(Path(name.removesuffix(".gz")).suffix, "text")
    if gzipped and kind == "parquet":
        raise InputError(f"{path} must be unpacked first: Parquet is not read from a .gz file.")
    return InputFile(str(path), path, kind, gzipped, stat.S_ISREG(mode))


def is_table(input: str | Path, format: str | None = None) -> bool:
    """Whether an input has rows with fields; a text file has lines only."""
    return find(input, format).kind != "text"
