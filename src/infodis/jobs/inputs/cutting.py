"""One pass over an input finds where its rows begin, hashes its content and notes ids that are used twice.

What it finds lies in the work directory, in `input/`, which is there as a whole or not at all:

    index       a `Shard` after another, as 64-bit numbers
    duplicates  lines of rows whose id was used before, and where
    copy        the content, if the input is packed, a pipe or standard input
    about.json  what was cut, and how; and hashes of the others
"""

import collections
import contextlib
import dataclasses
import hashlib
import io
import itertools
import json
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from infodis.errors import InputError
from infodis.files import atomic_directory
from infodis.jobs.inputs.duplicates import Ids
from infodis.jobs.inputs.entry import KEEP_ALL, Entry
from infodis.jobs.inputs.lines import (
    LONGEST,
    MARK,
    SEPARATORS,
    CsvTable,
    Jsonl,
    LineFormat,
    Record,
    TextLines,
    check_kept,
    separator_of,
)
from infodis.jobs.inputs.parquet import ParquetRows
from infodis.jobs.inputs.places import BUFFER, InputFile, find
from infodis.jobs.inputs.rejected import Rejected
from infodis.jobs.inputs.source import DUPLICATES, INDEX, RowShards, Shard
from infodis.journal import sealed, unsealed
from infodis.settings import settings_of, uncompared
from infodis.snapshot import Snapshot, state_of

DIRECTORY, COPY, ABOUT, SCRATCH = "input", "copy", "about.json", "scratch"

SHARD_BYTES = 2**23
"""A shard of more than one row holds no more than this."""

GZIP = b"\x1f\x8b"
"""How packed files begin."""

FORM = 2
"""Of the files in the directory; another one is cut again."""


class Empty(InputError):
    """An input has no rows."""


@dataclasses.dataclass(frozen=True)
class InputSpec:
    """An input by name, and how it is read."""

    input: str = dataclasses.field(metadata=uncompared("its content is hashed, wherever it lies"))
    """A file, a pipe, or `-` for standard input."""
    shard_rows: int
    """Rows of a shard; of large rows it holds fewer."""
    limit: int | None = None
    """At most so many rows."""
    format: str | None = None
    """jsonl, csv, tsv, parquet or text, where the suffix does not say it."""
    fields: dict[str, str] = dataclasses.field(default_factory=dict)
    """What fields are called in the file, where that is something else, like {"text": "sentence"}."""
    keep: tuple[str, ...] = ()
    """Other fields that records carry along; `all` for every one."""

    def __post_init__(self) -> None:
        for name, number in (("shard_rows", self.shard_rows), ("limit", self.limit)):
            if number is not None and number < 1:
                raise InputError(f"{name} must be at least 1, got {number}.")

    def settings(self) -> dict[str, Any]:
        """Everything that the rows depend on, by name."""
        return settings_of(self)

    def cut(self, work: Path) -> RowShards:
        """Cut the input into shards, or find it cut already.

        What is found goes into a directory. One process at a time may cut in it; others may read. What an earlier run
        left is used again if it was of the same input, in size and time of change. A pipe has neither: it is read
        again, unless nothing comes.
        """
        place, directory = find(self.input, self.format), work / DIRECTORY
        about = {
            "form": FORM,
            "input": None if place.path is None else str(place.path.resolve()),
            "state": place.state(),
            "kind": place.kind,
            "rows": self.shard_rows,
            "limit": self.limit,
            "fields": self.fields,
            "keep": list(self.keep),
        }
        known = _known(place, directory, about)
        if known is not None and place.regular:
            return _shards(place, directory, known)
        with place.told(), place.opened() as file:
            if known is not None and (file.isatty() or not file.peek(1)):
                return _shards(place, directory, known)
            with atomic_directory(directory, replace=True) as unfinished:
                cutting = _Cutting(place, unfinished, self)
                found = cutting.parquet(file) if place.kind == "parquet" else cutting.lines(file)
                if place.state() != about["state"]:
                    raise InputError(f"{place.name} was changed while it was read. Start when it is complete.")
                (unfinished / ABOUT).write_text(json.dumps(sealed({**about, **found})))
        return _shards(place, directory, {**about, **found})


def entries(input: str | Path, *, limit: int | None = None) -> Iterator[Entry]:
    """The rows of an input, one after another, at most `limit`. The first that cannot be read is an `InputError`."""
    with tempfile.TemporaryDirectory() as work:
        try:
            source = InputSpec(str(input), 2**10, limit).cut(Path(work))
        except Empty:
            return
        for found in source:
            if isinstance(found, Rejected):
                raise InputError(f"{source.name}, line {found.line}: {found.reason}")
            yield found


def _known(place: InputFile, directory: Path, about: dict[str, Any]) -> dict[str, Any] | None:
    """What an earlier cut found, if it was of the same thing and is all there."""
    try:
        known = unsealed(json.loads((directory / ABOUT).read_text()))
        same = all(known[key] == value for key, value in about.items())
        whole = same and _read_state(place, directory) == known["read"] and _noted(directory).digest == known["noted"]
    except (OSError, ValueError, KeyError):
        return None
    return known if whole else None


def _noted(directory: Path) -> Snapshot:
    return Snapshot.of([directory / INDEX, directory / DUPLICATES])


def _read_state(place: InputFile, directory: Path) -> list[int] | None:
    """Of what rows are read from: the input, or its copy. As JSON gives it back."""
    found = state_of(place.plain(directory / COPY))
    return None if found is None else list(found)


def _shards(place: InputFile, directory: Path, known: dict[str, Any]) -> RowShards:
    names, columns = known["fields"], tuple(known["columns"])
    is_parquet = place.kind == "parquet"
    if is_parquet:
        layout: LineFormat | ParquetRows = ParquetRows(names, columns, known["footer"])
    else:
        layout = _layout(place.kind, names, known["separator"], columns)
    path, (size, time) = place.plain(directory / COPY), known["read"]
    counts = known["shards"], known["found"]
    keep = tuple(known["keep"])
    return RowShards(
        place.name, path, directory, layout, *counts, known["digest"], (size, time), _noted(directory), keep
    )


def _layout(kind: str, names: dict[str, str], separator: str | None, columns: tuple[str, ...] = ()) -> LineFormat:
    """Of a file of lines. Tables have a separator."""
    if separator is not None:
        return CsvTable(names, separator, columns)
    return TextLines({}) if kind == "text" else Jsonl(names)


class _Shards:
    """Rows to shards, and shards to the index."""

    def __init__(self, index: BinaryIO, most: int) -> None:
        self._index, self._most = index, most
        self.rows = self.shards = 0
        self._first: Record | None = None
        self._count = self._end = self._check = 0

    def add(self, record: Record) -> None:
        end = record.offset + record.size
        if self._first is not None and (self._count == self._most or end - self._first.offset > SHARD_BYTES):
            self.close()
        if self._first is None:
            self._first, self._count, self._check = record, 0, 0
        self._count += 1
        self._end = end
        self._check = zlib.crc32(record.data, self._check)

    def close(self) -> None:
        """End a shard."""
        if self._first is not None:
            first, size = self._first, self._end - self._first.offset
            self.write(Shard(first.offset, size, first.line, self._count, self._check))
            self._first = None

    def write(self, shard: Shard) -> None:
        self._index.write(np.array(shard, dtype=np.int64).tobytes())
        self.rows += shard.rows
        self.shards += 1


class _Tape:
    """Hands on the lines of a file, and keeps account of them: a hash, and a copy where one is wanted."""

    def __init__(self, file: io.BufferedReader, kind: str, copy: BinaryIO | None) -> None:
        self._readline, self._copy = file.readline, copy
        self._hash = hashlib.blake2b(kind.encode() + b"\n", digest_size=16)
        self._waiting: list[bytes] = []
        self._ahead: collections.deque[bytes] = collections.deque()
        self._size = 0

    def first_line(self) -> bytes:
        """The first line that is not blank. All lines are still to be read."""
        while line := self._readline(LONGEST + 1):
            self._ahead.append(line)
            if line.removeprefix(MARK).strip():
                break
        return line

    def readline(self, size: int, /) -> bytes:
        line = self._ahead.popleft() if self._ahead else self._readline(size)
        self._waiting.append(line)
        self._size += len(line)
        if self._size >= BUFFER:
            self._settle()
        return line

    def _settle(self) -> None:
        data = b"".join(self._waiting)
        self._waiting, self._size = [], 0
        self._hash.update(data)
        if self._copy is not None:
            self._copy.write(data)

    def digest(self) -> str:
        self._settle()
        return self._hash.hexdigest()


@dataclasses.dataclass(frozen=True)
class _Cutting:
    """One pass over an input."""

    place: InputFile
    directory: Path
    spec: InputSpec

    def lines(self, file: io.BufferedReader) -> dict[str, Any]:
        """Cut a file of lines; returns what there is to know about it."""
        kind, ids = self.place.kind, Ids(self.directory / SCRATCH)
        with (self.directory / INDEX).open("wb") as index, self._copy() as copy:
            tape = _Tape(file, kind, copy)
            separator = separator_of(tape.first_line(), kind, self.spec.fields) if kind in SEPARATORS else None
            layout = _layout(kind, self.spec.fields, separator)
            records = layout.records(tape, mark=True)
            if isinstance(layout, CsvTable) and (header := next(records, None)) is not None:
                layout = layout.with_header(header, self.place.name)
            shards = _Shards(index, self.spec.shard_rows)
            missing = {*self.spec.keep} - {KEEP_ALL}
            for record in itertools.islice(records, self.spec.limit):
                if record.offset == 0 and record.data.startswith(GZIP):
                    raise InputError(f"{self.place.name} is packed with gzip: unpack it, or let its name end in .gz.")
                shards.add(record)
                if missing:
                    missing = {name for name in missing if not layout.may_have(name, record)}
                id = layout.id_of(record)
                if id is not None:
                    ids.add(id, record.line)
            shards.close()
            digest = tape.digest()
        if shards.rows:
            check_kept(missing, self.place.name)
        names = layout.header if isinstance(layout, CsvTable) else ()
        return {**self._found(shards, ids, digest, columns=names), "separator": separator}

    def parquet(self, file: io.BufferedReader) -> dict[str, Any]:
        """Cut a Parquet file, copied if it comes through a pipe."""
        digest = hashlib.blake2b(b"parquet\n", digest_size=16)
        with self._copy() as copy:
            while piece := file.read(BUFFER):
                digest.update(piece)
                if copy is not None:
                    copy.write(piece)
        path = self.place.plain(self.directory / COPY)
        layout = ParquetRows.open(path, self.spec.fields, self.spec.keep, self.place.name)
        ids = Ids(self.directory / SCRATCH)
        with (self.directory / INDEX).open("wb") as index:
            shards = _Shards(index, self.spec.shard_rows)
            for group, (rows, size) in enumerate(layout.groups(path, self.place.name)):
                step = min(self.spec.shard_rows, max(1, SHARD_BYTES * rows // max(1, size)))
                wanted = rows if self.spec.limit is None else min(rows, self.spec.limit - shards.rows)
                for start in range(0, wanted, step):
                    shards.write(Shard(group, start, shards.rows + 1, min(step, wanted - start), 0))
        for line, id in enumerate(itertools.islice(layout.ids(path, self.place.name), shards.rows), start=1):
            if isinstance(id, int | str) and not isinstance(id, bool):
                ids.add(id, line)
        return self._found(shards, ids, digest.hexdigest(), columns=layout.columns, footer=layout.footer)

    def _copy(self) -> contextlib.AbstractContextManager[BinaryIO | None]:
        if not self.place.copied:
            return contextlib.nullcontext()
        return (self.directory / COPY).open("wb", BUFFER)

    def _found(
        self, shards: _Shards, ids: Ids, digest: str, *, columns: tuple[str, ...], footer: str | None = None
    ) -> dict[str, Any]:
        if not shards.rows:
            raise Empty(f"{self.place.name} holds no rows.")
        ids.write(self.directory / DUPLICATES)
        return {
            "shards": shards.shards,
            "found": shards.rows,
            "digest": digest,
            "columns": list(columns),
            "footer": footer,
            "read": _read_state(self.place, self.directory),
            "noted": _noted(self.directory).digest,
        }
