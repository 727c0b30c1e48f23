"""Files of lines: JSONL, text, CSV and TSV. Where their rows begin and end, and what a row says.

The same code cuts a whole file and reads a piece of it, so both agree on every row, broken ones included.
"""

import abc
import collections
import csv
import dataclasses
import functools
import json
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol, runtime_checkable

from infodis.errors import InputError
from infodis.jobs.inputs.entry import KEEP_ALL, Entry
from infodis.jobs.inputs.reading import FIELDS
from infodis.jobs.inputs.rejected import Rejected, beginning, excerpt_of, kind_of

LONGEST = 2**26
"""Bytes of the longest row that is read."""

KEPT = 1024
"""Bytes kept of a longer one."""

MOST_LINES = 2**20
"""Of a record in a table, whose quoted fields may hold line ends."""

MARK = b"\xef\xbb\xbf"
"""The byte order mark that some editors put at the beginning of a file."""

JQ = "{} Rows must be objects, one a line: jq -c '{}' makes such a file."


@runtime_checkable
class Readable(Protocol):
    """All that is asked of a file."""

    def readline(self, size: int, /) -> bytes: ...


class Record(NamedTuple):
    """A row of a file, not yet read."""

    line: int
    offset: int
    data: bytes
    """With its line end; only the beginning if the row is too long."""
    size: int
    """Bytes in the file."""
    cells: list[str] | None = None
    """Of a row of a table, if it is well-formed."""


def physical(file: Readable, line: int = 1, *, mark: bool = False, blanks: bool = False) -> Iterator[Record]:
    """The lines of a file, blank ones if wanted. `mark` leaves out a byte order mark at the beginning."""
    offset = 0
    while data := file.readline(LONGEST + 1):
        size = len(data)
        if size > LONGEST:
            size += 0 if data.endswith(b"\n") else _skipped(file)
            data = data[:KEPT]
        if mark and offset == 0 and data.startswith(MARK):
            data, size, offset = data[len(MARK) :], size - len(MARK), len(MARK)
        if blanks or size > LONGEST or data.strip():
            yield Record(line, offset, data, size)
        line += 1
        offset += size


def _skipped(file: Readable) -> int:
    """Go to the end of a line; returns how far that was."""
    size = 0
    while piece := file.readline(2**20):
        size += len(piece)
        if piece.endswith(b"\n"):
            break
    return size


@dataclasses.dataclass(frozen=True)
class LineFormat(abc.ABC):
    """How rows lie in a file of lines."""

    names: dict[str, str]

    def records(self, file: Readable, line: int = 1, *, mark: bool = False) -> Iterator[Record]:
        """The rows of a file, or of a piece of it that begins with a row."""
        return physical(file, line, mark=mark)

    def read(self, record: Record) -> Entry | Rejected:
        """What a row says."""
        found = self._found(record)
        if isinstance(found, str):
            return Rejected(record.line, None, None, found, beginning(record.data))
        return entry_of(record.line, found, self.names)

    def id_of(self, record: Record) -> int | str | None:
        """The id of a row if it has one of its own, and is one that can be read."""
        if not self.may_have_id(record):
            return None
        found = self._found(record)
        id = None if isinstance(found, str) else found.get(self.names.get("id", "id"))
        return None if id is None or _wrong_id(id) else id

    def _found(self, record: Record) -> dict[str, Any] | str:
        if record.size > LONGEST:
            return f"The row has {record.size:,} bytes, at most {LONGEST:,} are read."
        try:
            return self.fields(record.data.decode(), record)
        except UnicodeDecodeError as error:
            return f"Not UTF-8: byte {error.start} is {error.object[error.start]:#04x} ({error.reason})."

    @abc.abstractmethod
    def fields(self, text: str, record: Record) -> dict[str, Any] | str:
        """The fields of a row; or, as a string, why it has none."""

    @abc.abstractmethod
    def may_have(self, name: str, record: Record) -> bool:
        """False if the row surely has no field of this name."""

    def may_have_id(self, record: Record) -> bool:
        """False if the row surely has no id of its own."""
        return self.may_have(self.names.get("id", "id"), record)


def entry_of(line: int, fields: dict[str, Any], names: dict[str, str]) -> Entry | Rejected:
    """A row with these fields, if its id is one."""
    name = names.get("id", "id")
    if name not in fields:
        return Entry(line, line, fields, names)
    wrong = _wrong_id(fields[name])
    return (
        Rejected(line, None, name, wrong, excerpt_of(fields[name]))
        if wrong
        else Entry(line, fields[name], fields, names)
    )


def _wrong_id(id: Any) -> str | None:
    """Why this is no id; None if it is one."""
    if isinstance(id, bool) or not isinstance(id, int | str):
        return f"An id must be a text or a whole number; it is {kind_of(id)}."
    if isinstance(id, str) and not id.isascii():
        try:
            id.encode()
        except UnicodeEncodeError:
            return "The id is not Unicode: it holds half of a surrogate pair."
    return None


@dataclasses.dataclass(frozen=True)
class TextLines(LineFormat):
    """Every line that is not blank is a text."""

    def fields(self, text: str, record: Record) -> dict[str, Any] | str:
        return {"text": text.removesuffix("\n").removesuffix("\r")}

    def may_have(self, name: str, record: Record) -> bool:
        return name == "text"


class _NotANumber(ValueError):
    """NaN and Infinity, which Python reads and JSON does not know."""


def _refuse(constant: str) -> Any:
    raise _NotANumber(f"{constant} is no JSON")


_JSON: Any = json.JSONDecoder(parse_constant=_refuse)


@dataclasses.dataclass(frozen=True)
class Jsonl(LineFormat):
    """Every line that is not blank is a JSON object."""

    def fields(self, text: str, record: Record) -> dict[str, Any] | str:
        text = text.strip(" \t\r\n")
        try:
            found, end = _JSON.scan_once(text, 0)  # a third of the time of _JSON.decode
        except StopIteration as error:
            return _hinted(text, f"Not JSON: Expecting value at character {error.value}.")
        except RecursionError:
            return "Not JSON that can be read: it is nested too deeply."
        except json.JSONDecodeError as error:
            return _hinted(text, f"Not JSON: {error.msg} at character {error.pos}.")
        except _NotANumber as error:
            return f"Not JSON: {error}."
        except ValueError:
            return "Not JSON that can be read: a number has too many digits."
        if end < len(text):
            return f"Not JSON: something follows at character {end}."
        return found if isinstance(found, dict) else _hinted(text, f"Not an object but {kind_of(found)}.")

    def may_have(self, name: str, record: Record) -> bool:
        return _quoted(name) in record.data or b"\\u" in record.data


@functools.lru_cache(maxsize=256)
def _quoted(name: str) -> bytes:
    """The name of a field as lines hold it, unless with a Unicode escape in it; nothing if there are other ways."""
    plain = name.isprintable() and not set(name) & set('"\\/')
    return f'"{name}"'.encode() if plain else b""


def _hinted(text: str, reason: str) -> str:
    """The first line of a file that is one large value says what to do."""
    if text.startswith("["):
        return JQ.format(reason, ".[]")
    return JQ.format(reason, ".") if text == "{" else reason


@dataclasses.dataclass(frozen=True)
class CsvTable(LineFormat):
    """CSV or TSV: the first record names the columns. A quoted field may hold separators, quotes and line ends."""

    separator: str
    header: tuple[str, ...] = ()

    def records(self, file: Readable, line: int = 1, *, mark: bool = False) -> Iterator[Record]:
        """A record whose quotes do not close is one line: what follows it is read on its own."""
        csv.field_size_limit(max(csv.field_size_limit(), LONGEST))
        feed = _Feed(physical(file, line, mark=mark, blanks=True))
        reader = csv.reader(feed, delimiter=self.separator, strict=True)
        while (first := feed.begin()) is not None:
            try:
                cells = next(reader)
            except csv.Error:
                feed.take_back()
                yield first
            else:
                yield feed.record(first, cells)

    def fields(self, text: str, record: Record) -> dict[str, Any] | str:
        cells = record.cells
        if cells is None:
            return "The quotes of a field do not close, or something stands behind them."
        if len(cells) != len(self.header):
            return f"The row has {len(cells)} columns, the header {len(self.header)}."
        return dict(zip(self.header, cells, strict=True))

    def may_have(self, name: str, record: Record) -> bool:
        return name in self.header

    def with_header(self, record: Record, where: str) -> "CsvTable":
        """Knows its columns."""
        header = tuple(cell.strip() for cell in record.cells or ())
        if not header or not "".join(header).isprintable():
            raise InputError(f"{where}: the names of the columns, in the first row, cannot be read.")
        if len(set(header)) < len(header):
            raise InputError(f"{where}: every column needs a name of its own, got {', '.join(header)[:200]}.")
        return dataclasses.replace(self, header=header)


SEPARATORS = {"csv": (",", ";", "\t"), "tsv": ("\t",)}
"""Of columns, by the kind of a table. Spreadsheets write semicolons where a comma is the decimal point."""


def separator_of(header: bytes, kind: str, names: dict[str, str]) -> str:
    """What separates columns, by their names: the first that finds a field of ours, or else the most columns.

    >>> separator_of(b"id;text", "csv", {})
    ';'
    """
    known = {names.get(name, name) for name in FIELDS}
    found = {one: _header_cells(header, one) for one in SEPARATORS[kind]}
    ours = next((one for one, cells in found.items() if known & set(cells)), None)
    return ours or max(found, key=lambda one: len(found[one]))


def _header_cells(header: bytes, separator: str) -> list[str]:
    text = header.removeprefix(MARK).decode("utf-8", "surrogateescape")
    try:
        return [cell.strip() for cell in next(csv.reader([text], delimiter=separator), [])]
    except csv.Error:
        return []


def check_kept(missing: set[str], where: str) -> None:
    """Raise `InputError` if there are fields to keep that no row has."""
    if missing := missing - {KEEP_ALL}:
        raise InputError(
            f"--keep must name fields of the input; no row of {where} has {', '.join(sorted(missing))}. Name others, "
            "or all."
        )


class _Feed:
    """Lines for a csv.reader, which can be taken back if they turn out not to be a record."""

    def __init__(self, lines: Iterator[Record]) -> None:
        self._lines = lines
        self._back: collections.deque[Record] = collections.deque()
        self._first: Record | None = None
        self._more: list[Record] = []
        self._size = 0

    def begin(self) -> Record | None:
        """The line that the next record begins with: the next that is not blank."""
        self._size = 0
        self._more.clear()
        while (record := self._next()) is not None and record.size <= LONGEST and not record.data.strip():
            pass
        self._first = record
        return record

    def _next(self) -> Record | None:
        return self._back.popleft() if self._back else next(self._lines, None)

    def __iter__(self) -> "_Feed":
        return self

    def __next__(self) -> str:
        record = self._first if self._size == 0 else self._next()
        if record is None:
            raise StopIteration
        if self._size:
            self._more.append(record)
        self._size += record.size
        if self._size > LONGEST or len(self._more) > MOST_LINES:
            raise csv.Error("too long")
        return record.data.decode("utf-8", "surrogateescape")

    def take_back(self) -> None:
        """All lines of the record but the first are to come again."""
        self._back.extendleft(reversed(self._more))

    def record(self, first: Record, cells: list[str]) -> Record:
        """The lines of a record as one."""
        data = b"".join([first.data, *(line.data for line in self._more)]) if self._more else first.data
        return Record(first.line, first.offset, data, self._size, cells)
