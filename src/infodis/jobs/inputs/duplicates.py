"""Ids that are used twice, found in memory that does not grow with their number.

Ids are hashed to 128 bits and dealt by one byte to 256 files, each of which is sorted by itself, or dealt on by another
byte if it is too large. What comes out is a table of lines: of each row whose id was used before, and of an earlier row
with the same id.
"""

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from jaxtyping import Int64, UInt64

AT_ONCE = 2**16
"""Ids in memory before they are dealt to files."""

MOST = 2**22
"""Ids of a file that is sorted as a whole: 100 MB."""

LINES = 2**22
"""Lines of the input in one file of pairs."""

Uses = UInt64[np.ndarray, "_ 3"]
"""Two halves of a hash, and the line."""

Pairs = Int64[np.ndarray, "_ 2"]
"""A line, and an earlier one with the same id."""


class Ids:
    """Takes ids with their lines, in the order of lines; then writes the table of those used twice."""

    def __init__(self, scratch: Path, *, at_once: int = AT_ONCE, most: int = MOST, lines: int = LINES) -> None:
        self._scratch, self._at_once, self._most, self._lines = scratch, at_once, most, lines
        self._waiting, self._dealt = bytearray(), False

    def add(self, id: int | str, line: int) -> None:
        name = f"text {id}" if isinstance(id, str) else f"number {id}"
        self._waiting += hashlib.blake2b(name.encode(), digest_size=16).digest() + line.to_bytes(8, "little")
        if len(self._waiting) >= 24 * self._at_once:
            self._deal()

    def write(self, path: Path) -> int:
        """The table, sorted by line: all lines, then all earlier ones. Returns how many there are."""
        if self._dealt:
            self._deal()
        elif self._waiting:
            self._once(self._taken())
        for bucket in sorted(self._scratch.glob("ids-*")):
            self._sort(bucket, depth=1)
        with path.open("wb") as file:
            for column in (0, 1):
                for pairs in self._pairs():
                    file.write(pairs[:, column].tobytes())
        shutil.rmtree(self._scratch, ignore_errors=True)
        return path.stat().st_size // 16

    def _taken(self) -> Uses:
        uses = np.frombuffer(bytes(self._waiting), dtype="<u8").reshape(-1, 3)
        self._waiting.clear()
        return uses

    def _deal(self) -> None:
        self._dealt = True
        if self._waiting:
            self._put(self._once(self._taken()), "ids", depth=0)

    def _sort(self, bucket: Path, *, depth: int) -> None:
        """Find what is twice in a file; if that is too large, deal it on, as long as there are bytes to deal by."""
        deal = bucket.stat().st_size > 24 * self._most and depth < 8
        with bucket.open("rb") as file:
            while len(piece := np.fromfile(file, dtype="<u8", count=3 * self._most if deal else -1)):
                once = self._once(piece.reshape(-1, 3))
                if deal:
                    self._put(once, f"part-{bucket.name}", depth=depth)
        bucket.unlink()
        for part in sorted(self._scratch.glob(f"part-{bucket.name}-*")):
            self._sort(part, depth=depth + 1)

    def _once(self, uses: Uses) -> Uses:
        """The first use of every id, sorted by hash; the others are put aside with the line of the first."""
        uses = uses[np.lexsort((uses[:, 2], uses[:, 1], uses[:, 0]))]
        again = np.zeros(len(uses), dtype=bool)
        again[1:] = (uses[1:, :2] == uses[:-1, :2]).all(1)
        first = np.maximum.accumulate(np.where(again, 0, np.arange(len(uses))))
        pairs = np.stack([uses[again, 2], uses[first[again], 2]], axis=1).astype(np.int64)
        for number in np.unique(pairs[:, 0] // self._lines):
            self._append(f"pairs-{number:012d}", pairs[pairs[:, 0] // self._lines == number])
        return uses[~again]

    def _put(self, uses: Uses, name: str, *, depth: int) -> None:
        """Deal uses to files by a byte of their hash."""
        byte = (uses[:, 0] >> np.uint64(8 * depth)).astype(np.uint8)
        for value in np.unique(byte):
            self._append(f"{name}-{value:03d}", uses[byte == value])

    def _append(self, name: str, rows: np.ndarray) -> None:
        self._scratch.mkdir(parents=True, exist_ok=True)
        with (self._scratch / name).open("ab") as file:
            file.write(rows.tobytes())

    def _pairs(self) -> Iterator[Pairs]:
        for path in sorted(self._scratch.glob("pairs-*")):
            pairs = np.fromfile(path, dtype=np.int64).reshape(-1, 2)
            yield pairs[np.argsort(pairs[:, 0])]


def repeated(path: Path, first: int, last: int) -> dict[int, int]:
    """Rows from line `first` to line `last` whose id was used before, and the line of its first use."""
    if path.stat().st_size == 0:
        return {}
    lines, earlier = np.memmap(path, dtype=np.int64, mode="r").reshape(2, -1)
    begin, end = np.searchsorted(lines, [first, last + 1])
    used = earlier[begin:end]
    while True:  # an earlier line may itself be a repetition
        places = np.searchsorted(lines, used).clip(max=len(lines) - 1)
        again = lines[places] == used
        if not again.any():
            return dict(zip(lines[begin:end].tolist(), used.tolist(), strict=True))
        used = np.where(again, earlier[places], used)
