"""Append-only files of JSON lines, each with a checksum.

Lines are added in one write, so that several processes may add to a journal at the same time, and are on disk before
`append` returns. A killed process, or a full disk, leaves at most half a line: it is never read, and the next line
begins behind it. A line that was changed later is seen by its checksum.
"""

import dataclasses
import errno
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from infodis.errors import InputError

CHECK = "check"


def sealed(fields: dict[str, Any]) -> dict[str, Any]:
    """A JSON object with a checksum of its other fields.

    >>> unsealed(sealed({"nats": 1.5}))
    {'nats': 1.5}
    """
    return {**fields, CHECK: _checksum(fields)}


def unsealed(found: Any) -> dict[str, Any]:
    """The fields of a sealed object; `ValueError` if one was changed."""
    fields = {name: value for name, value in found.items() if name != CHECK} if isinstance(found, dict) else {}
    if not fields or found.get(CHECK) != _checksum(fields):
        raise ValueError("its checksum is wrong")
    return fields


def _checksum(fields: dict[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(fields, sort_keys=True).encode(), digest_size=8).hexdigest()


@dataclasses.dataclass(frozen=True)
class Journal:
    """JSON objects in a file, in the order in which they were added. With a `head`, a first line says what they are."""

    path: Path
    head: dict[str, Any] | None = None

    def append(self, *entries: dict[str, Any]) -> None:
        """Add some entries: they are on disk when this returns."""
        append_lines(self.path, b"".join(_line(sealed(entry)) for entry in entries), self._first)

    def entries(self) -> Iterator[dict[str, Any] | None]:
        """What was added; None for a line that is damaged."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            if self._first:
                file.readline()
            for line in file:
                if line.endswith(b"\n") and line != b"\n":
                    yield _entry(line)

    def read_head(self) -> Any:
        """The head that the file has; None if there is no file yet, or not all of its head."""
        if not os.path.lexists(self.path):
            return None
        try:
            with open(os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
                first = file.readline()
            torn = self._first.startswith(first) and first != self._first
            return None if torn else json.loads(first)
        except (OSError, ValueError) as error:
            raise InputError(f"{self.path} must be a file that infodis wrote, and is not. Move it away.") from error

    @property
    def _first(self) -> bytes:
        return b"" if self.head is None else _line(self.head)


def append_lines(path: Path, lines: bytes, first: bytes = b"") -> None:
    """Add whole lines in one write, to a new file behind a first line."""
    handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        size = os.fstat(handle).st_size
        if size < len(first) and os.pread(handle, size, 0) == first[:size]:
            lines = first[size:] + lines
        elif size and os.pread(handle, 1, size - 1) != b"\n":
            lines = b"\n" + lines
        if os.write(handle, lines) < len(lines):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        os.fsync(handle)
    finally:
        os.close(handle)


def _line(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, ensure_ascii=False, allow_nan=False).encode() + b"\n"


def _entry(line: bytes) -> dict[str, Any] | None:
    try:
        return unsealed(json.loads(line))
    except ValueError:
        return None
