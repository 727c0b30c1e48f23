"""Finished records as a file: JSON lines, or a table in CSV or Parquet."""

import csv
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Protocol, runtime_checkable

from infodis.errors import InputError

Kind = Literal["text", "whole", "number", "flag", "texts", "wholes", "numbers", "table", "json"]
Columns = dict[str, Kind]
"""The fields that a record may have."""

MOST = 1e100
"""Of a number in a record that is read back: squares and sums of more overflow, and NaN would come out."""

GROUP = 2**16
"""Rows of a Parquet row group."""


@runtime_checkable
class RecordWriter(Protocol):
    """A file that takes records one by one. A context: leaving it writes the end."""

    def write(self, line: bytes, /) -> object: ...
    def __enter__(self) -> "RecordWriter": ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def writer_for(out: Path) -> Callable[[Path, Columns], RecordWriter]:
    """What writes files of this suffix."""
    if out.suffix in (".jsonl", ".ndjson"):
        return lambda path, columns: path.open("wb")
    if out.suffix == ".csv":
        return CsvWriter
    if out.suffix == ".parquet":
        load_arrow()
        return ParquetWriter
    raise InputError(f"An output ends in .jsonl, .csv or .parquet, got {out.name!r}.")


def load_arrow() -> Any:
    """pyarrow, where it is installed."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise InputError("Parquet needs pyarrow: pip install 'infodis[data]'.") from error
    return pyarrow


def wrong_field(record: dict[str, Any], columns: Columns) -> str | None:
    """What is wrong with the first field that does not hold what its column says; None if all do."""
    for name, kind in columns.items():
        value = record.get(name)
        if value is not None and not (_holds(value, kind) or (name == "id" and _holds(value, "whole"))):
            return f"{name} must be {_KINDS[kind]}"
    return None


_KINDS: dict[Kind, str] = {
    "text": "a text",
    "whole": "a whole number",
    "number": "a finite number",
    "flag": "true or false",
    "texts": "a list of texts",
    "wholes": "a list of whole numbers",
    "numbers": "a list of finite numbers",
    "table": "a list of lists of finite numbers",
    "json": "anything",
}
_MEMBERS: dict[Kind, Kind] = {"texts": "text", "wholes": "whole", "numbers": "number", "table": "numbers"}


def _holds(value: Any, kind: Kind) -> bool:
    if kind in _MEMBERS:
        return isinstance(value, list) and all(one is None or _holds(one, _MEMBERS[kind]) for one in value)
    if kind == "number":
        return type(value) in (int, float) and abs(value) <= (MOST if type(value) is float else 2**53)
    if kind == "whole":
        return type(value) is int and -(2**63) <= value < 2**63
    return kind == "json" or type(value) is {"text": str, "flag": bool}[kind]


INFERRED: tuple[Kind, ...] = ("text", "flag", "whole", "number", "texts", "wholes", "numbers", "table")


def other_columns(lines: Iterable[bytes], known: Columns) -> Columns:
    """Columns of fields that are not known beforehand: each of the first kind that holds all of its values.

    >>> other_columns([b'{"id": 1, "year": 1990}', b'{"id": 2, "year": 0.5, "tags": ["a"]}'], {"id": "text"})
    {'year': 'number', 'tags': 'texts'}
    """
    kinds: dict[str, list[Kind]] = {}
    for line in lines:
        for name, value in json.loads(line).items():
            if name not in known:
                left = kinds.setdefault(name, list(INFERRED))
                kinds[name] = left if value is None else [kind for kind in left if _holds(value, kind)]
    return {name: left[0] if left else "json" for name, left in kinds.items()}


class CsvWriter:
    """A column a field, empty where a record lacks it. Lists are JSON in their cell."""

    def __init__(self, path: Path, columns: Columns) -> None:
        self._file = path.open("w", encoding="utf-8", newline="")
        self._columns = tuple(columns)
        self._rows = csv.writer(self._file, lineterminator="\n")
        self._rows.writerow(self._columns)

    def write(self, line: bytes, /) -> None:
        record = json.loads(line)
        self._rows.writerow([_cell(record.get(name)) for name in self._columns])

    def __enter__(self) -> "CsvWriter":
        return self

    def __exit__(self, *problem: object) -> None:
        self._file.close()


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def read_csv(path: Path, columns: Columns) -> list[dict[str, Any]]:
    """Records as `CsvWriter` wrote them; columns that are not known are texts. `ValueError` for what it did not."""
    csv.field_size_limit(max(csv.field_size_limit(), 2**26))
    with path.open(encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file, strict=True)
        try:
            return [{name: _value(cell, columns.get(name, "text")) for name, cell in row.items()} for row in rows]
        except csv.Error as error:
            raise ValueError(str(error)) from None


def _value(cell: Any, kind: Kind) -> Any:
    if not isinstance(cell, str):
        raise ValueError("a row has more or fewer cells than the header")
    return None if not cell else cell if kind == "text" else json.loads(cell)


class ParquetWriter:
    """A column a field, nulls where a record lacks it. Ids are strings."""

    def __init__(self, path: Path, columns: Columns) -> None:
        self._arrow = load_arrow()
        self._schema = self._arrow.schema([(name, _arrow_kind(self._arrow, kind)) for name, kind in columns.items()])
        self._writer = self._arrow.parquet.ParquetWriter(path, self._schema)
        self._waiting: list[dict[str, Any]] = []
        self._json = [name for name, kind in columns.items() if kind == "json"]

    def write(self, line: bytes, /) -> None:
        record = json.loads(line)
        told = {name: json.dumps(record[name], ensure_ascii=False) for name in self._json if name in record}
        self._waiting.append({**record, **told, "id": str(record["id"])})
        if len(self._waiting) == GROUP:
            self._flush()

    def _flush(self) -> None:
        self._writer.write_table(self._arrow.Table.from_pylist(self._waiting, schema=self._schema))
        self._waiting = []

    def __enter__(self) -> "ParquetWriter":
        return self

    def __exit__(self, kind: object, *problem: object) -> None:
        if kind is None:
            self._flush()
        self._writer.close()


def _arrow_kind(arrow: Any, kind: Kind) -> Any:
    kinds = {
        "text": arrow.string(),
        "whole": arrow.int64(),
        "number": arrow.float64(),
        "flag": arrow.bool_(),
        "texts": arrow.list_(arrow.string()),
        "wholes": arrow.list_(arrow.int64()),
        "numbers": arrow.list_(arrow.float64()),
        "table": arrow.list_(arrow.list_(arrow.float64())),
        "json": arrow.string(),
    }
    return kinds[kind]
