"""Files that are old or new after a crash, never half of one; and directories that one process at a time works in."""

import contextlib
import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from infodis.errors import InputError

LOCK = ".lock"


@contextlib.contextmanager
def atomic_directory(path: Path) -> Iterator[Path]:
    """A fresh directory to write into, which becomes `path` when all is written and on disk."""
    unfinished = path.parent / _unfinished(path)
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    try:
        yield unfinished
        for file in unfinished.iterdir():
            sync(file)
        shutil.rmtree(path, ignore_errors=True)
        os.rename(unfinished, path)
        sync(path.parent)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


@contextlib.contextmanager
def atomic_file(path: Path, *, within: Path | None = None) -> Iterator[Path]:
    """A path to write to, which becomes `path` when all is written and on disk.

    `within` is a directory of the same file system for it to lie in meanwhile; by default where `path` will be.
    """
    unfinished = (within or path.parent) / _unfinished(path)
    try:
        yield unfinished
        sync(unfinished)
        os.replace(unfinished, path)
        sync(path.parent)
    finally:
        unfinished.unlink(missing_ok=True)


def _unfinished(path: Path) -> str:
    """A name that no other process uses, on this machine or on one that shares its files."""
    return f".{path.name}.{os.uname().nodename}.{os.getpid()}.tmp"


def atomic_text(path: Path, text: str, *, within: Path | None = None) -> None:
    """Replace a small file at once."""
    with atomic_file(path, within=within) as unfinished:
        unfinished.write_text(text, encoding="utf-8")


def digest_of(path: Path) -> str:
    """The SHA-256 of a file's content."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(2**20):
            digest.update(piece)
    return digest.hexdigest()


def sync(path: Path) -> None:
    """Wait until a file or directory is on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Keep other processes out of a directory. The lock goes with the process, even if that is killed."""
    import fcntl

    if directory.exists() and not directory.is_dir():
        raise InputError(f"{directory} must be a directory; it is a file. Choose another place.")
    while True:
        directory.mkdir(parents=True, exist_ok=True)
        with (directory / LOCK).open("w") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise InputError(
                    f"Another process is at work in {directory}. Wait until it ends, or choose another place."
                ) from None
            if not _is_at(handle.fileno(), directory / LOCK):
                continue  # whoever had the lock took the directory away
            yield
            return


def _is_at(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


def remove_unfinished(directory: Path) -> None:
    """Drop what killed processes left behind. Call it inside `locked`."""
    for left in directory.glob(".*.tmp"):
        if re.fullmatch(r"\..+\.\d+\.tmp", left.name):
            shutil.rmtree(left) if left.is_dir() else left.unlink()
