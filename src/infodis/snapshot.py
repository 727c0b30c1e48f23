"""Files as they were at one moment: whether they were changed since, and a hash of what they held."""

import dataclasses
import functools
import hashlib
from collections.abc import Sequence
from pathlib import Path

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
