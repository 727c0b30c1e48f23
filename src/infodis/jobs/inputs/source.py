"""An input of any size in shards, which any process can read."""

import dataclasses
import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from infodis.errors import InputError
from infodis.jobs.inputs.duplicates import repeated
from infodis.jobs.inputs.entry import Entry
from infodis.jobs.inputs.lines import KEPT, LONGEST, LineFormat, Record, TextLines
from infodis.jobs.inputs.parquet import ParquetRows
from infodis.jobs.inputs.rejected import Rejected
from infodis.snapshot import Snapshot, State, state_of

INDEX, DUPLICATES = "index", "duplicates"


class Shard(NamedTuple):
    """A line of the index."""

    offset: int
    """Where it begins; in Parquet, the number of its row group."""
    size: int
    """Its bytes; in Parquet, its first row within the group."""
    line: int
    """Its first line."""
    rows: int
    check: int
    """CRC-32 of its rows; 0 in Parquet."""


@dataclasses.dataclass(frozen=True)
class RowShards:
    """Rows in shards. Small and picklable: every process reads for itself, one shard at a time."""

    name: str
    """Of the input, for messages."""
    path: Path
    """What is read: the input, or a plain copy of it."""
    directory: Path
    """Where the index is."""
    layout: LineFormat | ParquetRows
    shards: int
    rows: int
    digest: str
    """A hash of the kind of input and of its content, up to the last row that was wanted."""
    state: State = dataclasses.field(compare=False)
    """Of what is read: whoever reads a shard looks whether it is still the same."""
    noted: Snapshot = dataclasses.field(compare=False)
    """The index, and ids that are used twice."""
    keep: tuple[str, ...] = ()
    """Fields that records carry along."""

    @property
    def is_text(self) -> bool:
        """Whether rows are lines of text, and could as well be one long text."""
        return isinstance(self.layout, TextLines)

    def read(self, shard: int) -> list[Entry | Rejected]:
        """The rows of a shard, good and bad, in the order of the file."""
        if not 0 <= shard < self.shards:
            raise IndexError(f"There are {self.shards} shards, {shard} is none of them.")
        self.check_unchanged()
        index = np.memmap(self.directory / INDEX, dtype=np.int64, mode="r").reshape(-1, len(Shard._fields))
        found = self._rows(Shard(*index[shard].tolist()))
        again = repeated(self.directory / DUPLICATES, found[0].line, found[-1].line)
        self.check_unchanged()  # it may have been replaced in between
        found = [_refused(one, again) for one in found] if again else found
        return [_keeping(one, self.keep) for one in found] if self.keep else found

    def check_unchanged(self) -> None:
        """Raise if the input, or what was noted about it, is not what it was. (That it is gone, its reader tells.)"""
        if state_of(self.path) not in (None, self.state):
            raise InputError(f"{self.name} was changed after it was cut into shards. Leave it alone, and start over.")
        if self.noted.changed:
            raise InputError(
                f"What was noted about {self.name} in {self.directory} was changed meanwhile. Run the same command "
                "again: it is noted anew."
            )

    def __iter__(self) -> Iterator[Entry | Rejected]:
        """All rows, one shard after another."""
        for shard in range(self.shards):
            yield from self.read(shard)

    def _rows(self, shard: Shard) -> list[Entry | Rejected]:
        if isinstance(self.layout, ParquetRows):
            return self.layout.read(self.path, shard.offset, shard.size, shard.rows, line=shard.line)
        records = list(self._records(self.layout, shard))
        check = 0
        for record in records:
            check = zlib.crc32(record.data, check)
        if len(records) != shard.rows or check != shard.check:
            raise InputError(f"{self.name} was changed after it was cut into shards. Leave it alone, and start over.")
        return [self.layout.read(record) for record in records]

    def _records(self, layout: LineFormat, shard: Shard) -> Iterator[Record]:
        too_long = shard.size > LONGEST  # then it is the only row
        try:
            with self.path.open("rb", buffering=0) as file:
                file.seek(shard.offset)
                data = file.read(KEPT if too_long else shard.size)
        except OSError as error:
            raise InputError(f"{self.path} cannot be read: {error.strerror}. Every worker must see it.") from error
        return (
            iter([Record(shard.line, 0, data, shard.size)])
            if too_long
            else layout.records(io.BytesIO(data), shard.line)
        )


def _keeping(found: Entry | Rejected, keep: tuple[str, ...]) -> Entry | Rejected:
    return found if isinstance(found, Rejected) else dataclasses.replace(found, keep=keep)


def _refused(found: Entry | Rejected, again: dict[int, int]) -> Entry | Rejected:
    """Without rows whose id was used before."""
    if isinstance(found, Rejected) or found.line not in again:
        return found
    field = found.names.get("id", "id")
    return found.rejected(field, f"The id was used before, on line {again[found.line]}.")
