"""Answers that survive: a run that was killed goes on where it was.

A cache is a directory with a file for every combination of model, estimator, seed and dtype. The first line of a file
says which; every other line is an answer under the hash of what was asked. Lines are appended whole, by any number of
processes, each with a checksum: a damaged one is dropped, and asked again.
"""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from infodis.errors import InputError
from infodis.snapshot import sealed, unsealed

Answers = dict[str, dict[str, Any]]


def digest(*path: Any) -> str:
    """The hash of what was asked."""
    return hashlib.blake2b(json.dumps(path, ensure_ascii=True).encode(), digest_size=16).hexdigest()


class Cache:
    """Answers by the hash of what was asked. Without a directory they are kept for this run only."""

    def __init__(self, directory: Path | None, about: dict[str, Any]) -> None:
        self._header = json.dumps(about, sort_keys=True).encode() + b"\n"
        self._file = None if directory is None else directory / f"{digest(about)}.jsonl"
        self._known: Answers = {}
        if directory is not None and self._file is not None:
            if directory.exists() and not directory.is_dir():
                raise InputError(f"The cache must be a directory; {directory} is a file. Choose another place.")
            directory.mkdir(parents=True, exist_ok=True)
            self._known = self._read(self._file)

    def __len__(self) -> int:
        return len(self._known)

    def get(self, key: str) -> dict[str, Any] | None:
        """An earlier answer."""
        return self._known.get(key)

    def add(self, answers: Answers) -> None:
        """Keep answers: they are on disk when this returns."""
        import fcntl  # imported here: not every system has it

        self._known |= answers
        if self._file is None or not answers:
            return
        lines = b"".join(json.dumps(sealed({"key": key, **fields})).encode() + b"\n" for key, fields in answers.items())
        with open(self._file, "a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            size = _whole(file)
            file.truncate(size)
            file.write(lines if size else self._header + lines)
            file.flush()
            os.fsync(file.fileno())

    def _read(self, path: Path) -> Answers:
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return {}
        lines = content.split(b"\n")[:-1]  # what is behind the last line end was never finished
        if path.is_symlink() or not (content.startswith(self._header) or self._header.startswith(content)):
            raise InputError(f"{path} is not what this program wrote: its first line is another one. Move it away.")
        found: Answers = {}
        for line in lines[1:]:
            try:
                fields = unsealed(json.loads(line))
                found[fields.pop("key")] = fields
            except (ValueError, KeyError):
                continue  # damaged: asked again
        return found


def _whole(file: Any) -> int:
    """Where the last whole line of a file ends."""
    size = end = file.seek(0, os.SEEK_END)
    while end:
        start = max(0, end - 2**16)
        file.seek(start)
        place = file.read(end - start).rfind(b"\n")
        if place >= 0:
            return min(size, start + place + 1)
        end = start
    return 0
