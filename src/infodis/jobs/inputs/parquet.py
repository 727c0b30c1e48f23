"""Parquet: rows by their number, within the row groups of the file."""

import contextlib
import dataclasses
import hashlib
import importlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from infodis.errors import InputError
from infodis.jobs.inputs.entry import KEEP_ALL, Entry
from infodis.jobs.inputs.lines import check_kept, entry_of
from infodis.jobs.inputs.places import BUFFER
from infodis.jobs.inputs.reading import FIELDS
from infodis.jobs.inputs.rejected import Rejected

AT_ONCE = 2**14
"""Ids read at a time."""


@dataclasses.dataclass(frozen=True)
class ParquetRows:
    """The columns of a Parquet file that are looked at."""

    names: dict[str, str]
    columns: tuple[str, ...]
    footer: str
    """A hash of what the file says about itself at its end."""

    @staticmethod
    def open(path: Path, names: dict[str, str], keep: tuple[str, ...], where: str) -> "ParquetRows":
        with _opened(path, where) as file:
            columns = tuple(file.schema_arrow.names)
        check_kept(set(keep) - set(columns), where)
        used = {*(names.get(name, name) for name in FIELDS), *keep}
        if KEEP_ALL in keep or not used.difference([names.get("id", "id")]) & set(columns):
            used = set(columns)  # all are kept; or rows are rejected, and the reason says what they hold
        return ParquetRows(names, tuple(column for column in columns if column in used), _footer(path))

    def groups(self, path: Path, where: str) -> Iterator[tuple[int, int]]:
        """Rows of every row group, and their bytes."""
        with _opened(path, where) as file:
            about = file.metadata
        for number in range(about.num_row_groups):
            group = about.row_group(number)
            yield group.num_rows, group.total_byte_size

    def ids(self, path: Path, where: str) -> Iterator[Any]:
        """The id of every row, None where there is none."""
        name = self.names.get("id", "id")
        if name in self.columns:
            with _opened(path, where) as file:
                for batch in file.iter_batches(AT_ONCE, columns=[name], use_threads=False):
                    for row in _rows(batch):
                        yield None if isinstance(row, str) else row[name]

    def read(self, path: Path, group: int, start: int, rows: int, *, line: int) -> list[Entry | Rejected]:
        """Some rows of a row group. Those that follow what was read last come at once, others take a search."""
        with _told(str(path)):
            key = (str(path), path.stat().st_mtime_ns, group, self.columns)
            cursor: _Cursor | None = getattr(_here, "cursor", None)
            if cursor is None or cursor.key != key or start < cursor.begin:
                _here.cursor = cursor = _Cursor(key, rows)
                if _footer(path) != self.footer:
                    raise InputError(f"{path} was changed after it was cut into shards: it says so at its end.")
            found = cursor.rows(start, rows)
        return [self._entry(row, line + number) for number, row in enumerate(found)]

    def _entry(self, row: dict[str, Any] | str, line: int) -> Entry | Rejected:
        if isinstance(row, str):
            return Rejected(line, None, None, row)
        return entry_of(line, {name: value for name, value in row.items() if value is not None}, self.names)


class _Cursor:
    """A place in a row group, from which reading goes on: Parquet has no way to a row but through those before it."""

    def __init__(self, key: tuple[str, int, int, tuple[str, ...]], at_once: int) -> None:
        self.key = key
        path, _, group, columns = key
        self._file = _library().ParquetFile(path, buffer_size=BUFFER)
        self._batches = self._file.iter_batches(at_once, row_groups=[group], columns=list(columns), use_threads=False)
        self._batch: Any = None
        self.begin = self._end = 0

    def rows(self, start: int, count: int) -> list[Any]:
        """So many rows from `start`, which does not lie before `begin`."""
        found: list[Any] = []
        while len(found) < count:
            place = start + len(found)
            if place < self._end:
                found += _rows(self._batch.slice(place - self.begin, count - len(found)))
                continue
            self._batch = next(self._batches, None)
            if self._batch is None:
                raise InputError(f"{self.key[0]} was changed after it was cut into shards: it has fewer rows.")
            self.begin, self._end = self._end, self._end + self._batch.num_rows
        return found


_here = threading.local()


def _footer(path: Path) -> str:
    """A hash of the end of a file: where its row groups are, and what is in them. Its size is before the last word."""
    with path.open("rb") as file:
        file.seek(-8, os.SEEK_END)
        size = int.from_bytes(file.read(4), "little")
        file.seek(-8 - size, os.SEEK_END)
        return hashlib.blake2b(file.read(), digest_size=16).hexdigest()


def _library() -> Any:
    try:
        return importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise InputError("Parquet needs the pyarrow library: pip install 'infodis[data]'.") from error


@contextlib.contextmanager
def _opened(path: Path, where: str) -> Iterator[Any]:
    with _told(where), _library().ParquetFile(path, buffer_size=BUFFER) as file:
        yield file


@contextlib.contextmanager
def _told(where: str) -> Iterator[None]:
    """What goes wrong with a Parquet file is told as a mistake in the input."""
    _library()
    arrow = importlib.import_module("pyarrow")
    try:
        yield
    except (arrow.ArrowException, OSError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"{where} cannot be read as Parquet: {reason}") from error


def _rows(batch: Any) -> list[Any]:
    """Rows as dictionaries; where there is one that Python cannot hold, why not."""
    try:
        return list(batch.to_pylist())
    except (ValueError, OverflowError) as error:
        if batch.num_rows == 1:
            return [f"Not UTF-8 ({error})." if isinstance(error, UnicodeDecodeError) else f"Not readable: {error}."]
        return [row for number in range(batch.num_rows) for row in _rows(batch.slice(number, 1))]
