"""What is on disk is what was written: files as they were at one moment, and JSON objects with a checksum."""

import dataclasses
import functools
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from infodis.errors import InputError

State = tuple[int, int]
"""Size in bytes, and time of the last change in nanoseconds."""


def state_of(path: Path) -> State | None:
    """By what a change of a file is noticed; None if it is not there."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """Some files, in order, and the state that each was in."""

    paths: tuple[Path, ...]
    states: tuple[State | None, ...]
    more: str = ""
    """What else their hash stands for."""

    @staticmethod
    def of(paths: Sequence[Path], more: str = "") -> "Snapshot":
        """Of files as they are now."""
        return Snapshot(tuple(paths), tuple(map(state_of, paths)), more)

    @property
    def changed(self) -> bool:
        """Whether a file is no longer what it was."""
        return any(state_of(path) != state for path, state in zip(self.paths, self.states, strict=True))

    @functools.cached_property
    def digest(self) -> str:
        """A hash of all that they held, computed once: it travels with this value to other processes."""
        digest = hashlib.blake2b(self.more.encode(), digest_size=16)
        for path in self.paths:
            with path.open("rb") as file:
                while piece := file.read(2**20):
                    digest.update(piece)
        if self.changed:
            raise InputError(
                f"Files in {self.paths[0].parent} were changed after they were looked at first: what was used cannot "
                "be told any more. Leave them alone, and start over."
            )
        return digest.hexdigest()

    def same(self, other: "Snapshot") -> bool:
        """Whether both hold the same. Content is read only where sizes or times differ: perhaps it is a copy."""
        return (self.states, self.more) == (other.states, other.more) or self.digest == other.digest


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
