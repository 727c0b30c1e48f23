"""Results on disk while a run is going on: parts that are whole or absent, and a list of those that count.

Beside OUT lies `OUT.work/` with what the run was asked for (`settings.json`), a part for every finished shard, and
`manifest.jsonl`, a journal with the hash of every part. A part counts once its line is on disk. At the end the
parts are joined into OUT, and `OUT.manifest.json` says how OUT came about. Killed at any moment, the next run finds all
finished shards. All but the parts and OUT carry checksums: a part whose line is damaged is done again.

What an earlier run left at OUT stays until the new result is complete, and is replaced only if it is ours: if
`OUT.manifest.json` names its hash, or `OUT.work/result.json` does, which lists what is about to be put there.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64

from infodis.errors import InputError
from infodis.files import (
    LOCK,
    atomic_file,
    atomic_text,
    check_own,
    locked,
    remove_unfinished,
    remove_unfinished_of,
    sync,
)
from infodis.journal import CHECK, Journal, sealed, unsealed

SETTINGS, MANIFEST, PARTS = "settings.json", "manifest.jsonl", "parts"
SOURCE, RESULT = "source", "result.json"
JSON = json.JSONEncoder(ensure_ascii=False, allow_nan=False)
FOLDER_PARTS = 1000
"""Parts in a folder: file systems slow down when one holds millions."""


@dataclasses.dataclass(frozen=True)
class Done:
    """A finished shard: its part's hash, and what it adds to the totals."""

    shard: int
    digest: str
    rows: int
    """Records in the part; lines behind them are rejected rows."""
    rejected: int
    totals: dict[str, float]
    """Sums over the records, for progress: evaluations and standard errors."""


@dataclasses.dataclass(frozen=True)
class Parts:
    """Where workers put finished shards. Small, and the same in every process."""

    directory: Path

    def path(self, shard: int) -> Path:
        return self.directory / f"{shard // FOLDER_PARTS:06d}" / f"{shard:09d}.jsonl"

    def commit(self, shard: int, lines: Iterable[dict[str, Any]]) -> str:
        """Write a part so that it is there as a whole or not at all. Returns its hash."""
        path = self.path(shard)
        path.parent.mkdir(parents=True, exist_ok=True)
        content = b"".join(map(encode, lines))
        with atomic_file(path) as unfinished:
            unfinished.write_bytes(content)
        return hashlib.sha256(content).hexdigest()

    def lines(self, shard: int, digest: str) -> list[bytes]:
        """The lines of a part; raises `Corrupted` unless it has this hash."""
        content = self.path(shard).read_bytes()
        if hashlib.sha256(content).hexdigest() != digest:
            raise Corrupted(f"{self.path(shard)} changed while it was read. Run the command again: it is redone.")
        return content.splitlines(keepends=True)

    def holds(self, shard: int, digest: str) -> bool:
        """Whether the part is there and is what was written."""
        try:
            self.lines(shard, digest)
        except (OSError, Corrupted):
            return False
        return True


class Corrupted(InputError):
    """A part is not what was written."""


def encode(record: dict[str, Any]) -> bytes:
    """A line of JSON. Numbers are written so that they read back the same; infinities and NaN must not get here."""
    return JSON.encode(record).encode() + b"\n"


class Store:
    """The finished shards of a run, in a work directory that is locked and whose settings were checked."""

    def __init__(self, directory: Path, shards: int) -> None:
        """Find and verify what an earlier run has finished."""
        remove_unfinished(directory)
        for folder in (directory / PARTS).glob("*"):
            remove_unfinished(folder)
        self.directory, self.shards, self.parts = directory, shards, Parts(directory / PARTS)
        self.totals: dict[str, float] = {}
        self._journal = Journal(directory / MANIFEST)
        self._digests = np.zeros(shards, dtype="S64")  # of what may be millions of shards, 80 bytes each are kept
        self._rows, self._rejected = np.full(shards, -1), np.zeros(shards, dtype=np.int64)
        self.redone = self._recall()
        """Parts that were found damaged, and lines of the journal: their shards are done again."""

    def _recall(self) -> int:
        """Count what an earlier run has finished, as it was noted last; returns how much of it is damaged."""
        lines, parts = 0, set()
        for fields in self._journal.entries():
            done = None if fields is None else _done(fields)
            if done is None:
                lines += 1
            elif 0 <= done.shard < self.shards and self.parts.holds(done.shard, done.digest):
                self._count(done)
            elif 0 <= done.shard < self.shards:
                parts.add(done.shard)
        return lines + sum(bool(self._rows[shard] < 0) for shard in parts)

    @property
    def missing(self) -> Int64[np.ndarray, " missing"]:
        """Shards still to do, lowest first."""
        return np.flatnonzero(self._rows < 0)

    @property
    def done_rows(self) -> int:
        """Rows that are scored or rejected."""
        return int(self.totals.get("rows", 0) + self.totals.get("rejected", 0))

    def add(self, done: Done) -> None:
        """From now on this shard counts."""
        self._journal.append(dataclasses.asdict(done))
        self._count(done)

    def _count(self, done: Done) -> None:
        if self._rows[done.shard] >= 0:
            return
        self._digests[done.shard], self._rows[done.shard] = done.digest, done.rows
        self._rejected[done.shard] = done.rejected
        for name, value in {"rows": done.rows, "rejected": done.rejected, **done.totals}.items():
            self.totals[name] = self.totals.get(name, 0) + value

    def lines(self, shard: int) -> tuple[list[bytes], list[bytes]]:
        """The records of a finished shard, and its rejected rows."""
        lines, rows = self.parts.lines(shard, self._digests[shard].decode()), int(self._rows[shard])
        return lines[:rows], lines[rows:]

    def first_rejected(self) -> dict[str, Any] | None:
        """The first row that could not be scored, if there is one."""
        shard = int(np.argmax(self._rejected > 0))
        return json.loads(self.lines(shard)[1][0]) if self._rejected[shard] else None


def _done(fields: dict[str, Any]) -> Done | None:
    try:
        return Done(**fields)
    except TypeError:
        return None


def work_directory(out: Path) -> Path:
    """Where a run keeps what it has finished."""
    return out.with_name(out.name + ".work")


def manifest_path(out: Path) -> Path:
    """Where a finished run says how its output came about."""
    return out.with_name(out.name + ".manifest.json")


def rejected_path(out: Path) -> Path:
    """Where rows go that could not be scored."""
    return out.with_name(out.name + ".rejected.jsonl")


def places(out: Path) -> tuple[Path, ...]:
    """Everything that a run writes."""
    return out, rejected_path(out), manifest_path(out), work_directory(out)


@contextlib.contextmanager
def claimed(out: Path) -> Iterator[Path]:
    """The work directory of an output, which no other run may use meanwhile."""
    directory = work_directory(out)
    with locked(directory):
        for path in places(out):
            remove_unfinished_of(path)
        yield directory


def check_replaceable(out: Path) -> None:
    """Refuse to replace anything that is not a result of ours, as it was written."""
    manifest = read_manifest(out) or {}
    named = {manifest.get("sha256", ""), manifest.get("rejected_sha256", ""), *_announced(work_directory(out))}
    for path in (out, rejected_path(out)):
        check_own(path, named)


def announce(directory: Path, *hashes: str) -> None:
    """Note what is about to replace OUT and its rejected rows: killed in between, the next run knows it for ours."""
    atomic_text(directory / RESULT, json.dumps(sorted({*hashes, *_announced(directory)})) + "\n")


def _announced(directory: Path) -> list[str]:
    path = directory / RESULT
    return list(json.loads(path.read_text())) if path.exists() else []


def read_manifest(out: Path) -> dict[str, Any] | None:
    """How a finished output came about, if there is one."""
    path = manifest_path(out)
    if not os.path.lexists(path):
        return None
    try:
        found = None if path.is_symlink() else _as_written(path.read_bytes())
    except (OSError, ValueError):
        found = None
    if not isinstance(found, dict) or not isinstance(found.get("settings"), dict) or "sha256" not in found:
        raise InputError(
            f"{path} is there already, and is not what infodis wrote. Move it away, or choose another output."
        )
    return found


def check_settings(known: dict[str, Any], asked: dict[str, Any], *, where: Path) -> None:
    """Refuse to go on with something else: numbers of two kinds must not meet in one file."""
    names = [name for name in dict.fromkeys((*known, *asked)) if known.get(name) != asked.get(name)]
    if names:
        told = "; ".join(f"{name}: was {_shown(known.get(name))}, is {_shown(asked.get(name))}" for name in names)
        raise InputError(
            f"{where} was begun with other settings ({told}). Give the same to go on, choose another output, or start "
            "over with --no-resume."
        )


def _shown(value: Any) -> str:
    return "not set" if value is None else str(value)


def read_settings(path: Path) -> dict[str, Any] | None:
    """What an earlier run was asked for, if there was one."""
    if not path.exists():
        return None
    try:
        return dict(_as_written(path.read_bytes()))
    except ValueError as error:
        raise InputError(f"{path} is damaged ({error}). Start over with --no-resume.") from error


def _as_written(content: bytes) -> Any:
    """A JSON object, if its checksum is right; earlier versions wrote none."""
    found = json.loads(content)
    return unsealed(found) if isinstance(found, dict) and CHECK in found else found


def settled(out: Path, name: str) -> Any:
    """A setting of the run that an output was begun with, if there was one."""
    known = read_settings(work_directory(out) / SETTINGS)
    finished = read_manifest(out) or {}
    return (known or finished.get("settings", {})).get(name)


def has_parts(directory: Path) -> bool:
    """Whether a run has finished a shard here. One that failed before that binds nobody to its settings."""
    manifest = directory / MANIFEST
    return manifest.is_file() and manifest.stat().st_size > 0


def write_settings(path: Path, settings: dict[str, Any]) -> None:
    """Note what a run was asked for."""
    atomic_text(path, json.dumps(sealed(settings), indent=2, ensure_ascii=False) + "\n")


def discard(directory: Path) -> None:
    """Forget the finished shards in a work directory."""
    _remove(directory, MANIFEST, PARTS, SETTINGS)  # the list first: a part that is not on it does not count


def remove(directory: Path) -> None:
    """Take a work directory away, unless somebody has put something into it."""
    remove_unfinished(directory)
    _remove(directory, MANIFEST, PARTS, SOURCE, RESULT, SETTINGS, LOCK)
    with contextlib.suppress(OSError):
        directory.rmdir()


def _remove(directory: Path, *names: str) -> None:
    for path in (directory / name for name in names):
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    sync(directory)
