"""Files that are old or new after a crash, never half of one. Only what we wrote is ever replaced or removed.

A result beside files of others is ours if the manifest of its directory (`.infodis-manifest.jsonl`) names it with the
hash that it has. A directory to work in is ours if our lock lies in it.
"""

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import stat
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

from infodis.errors import InputError
from infodis.journal import append_lines

LOCK, MANIFEST = ".infodis.lock", ".infodis-manifest.jsonl"
UNFINISHED = ".infodis-tmp."
"""How the names of files begin that are being written."""

HEAD = {"infodis": "Results that were written to this directory; no other file in it is ever replaced."}


@contextlib.contextmanager
def atomic_directory(path: Path, *, replace: bool = False) -> Iterator[Path]:
    """A fresh directory to write into, which becomes `path` when all is written and on disk.

    There must be nothing at `path`: no system replaces a directory in one step. With `replace` the old one is removed
    right before, and a crash in between leaves neither; that is for what can be made again.
    """
    unfinished = path.parent / _unfinished(path)
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    try:
        yield unfinished
        for file in (*unfinished.iterdir(), unfinished):
            sync(file)
        if replace:
            shutil.rmtree(path, ignore_errors=True)
        os.rename(unfinished, path)
        sync(path.parent)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


@contextlib.contextmanager
def atomic_file(path: Path, *, within: Path | None = None) -> Iterator[Path]:
    """A path to write to, which becomes `path` when all is written and on disk. It has the same suffix.

    `within` is a directory for it to lie in meanwhile; by default where `path` will be.
    """
    unfinished = (within or path.parent) / _unfinished(path)
    try:
        yield unfinished
        sync(unfinished)
        _move(unfinished, path)
        sync(path.parent)
    finally:
        unfinished.unlink(missing_ok=True)


def _move(unfinished: Path, path: Path) -> None:
    """Replace a file at once, also by one of another file system."""
    try:
        os.replace(unfinished, path)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        with atomic_file(path) as near:
            shutil.copyfile(unfinished, near)


def _unfinished(path: Path) -> str:
    """A name that no other process uses, on this machine or on one that shares its files."""
    return f"{UNFINISHED}{os.uname().nodename}.{os.getpid()}.{path.name}"


def atomic_text(path: Path, text: str, *, within: Path | None = None) -> None:
    """Replace a small file at once."""
    with atomic_file(path, within=within) as unfinished:
        unfinished.write_text(text, encoding="utf-8")


def remove_unfinished(directory: Path) -> None:
    """Drop what killed processes left in a directory of ours. Call it inside `locked`."""
    for left in directory.glob(f"{UNFINISHED}*"):
        shutil.rmtree(left) if left.is_dir() else left.unlink()


def remove_unfinished_of(path: Path) -> None:
    """Drop what processes of this machine left beside a file when they were killed. Call it inside its lock."""
    for left in path.parent.glob(f"{UNFINISHED}*"):
        if re.fullmatch(re.escape(f"{UNFINISHED}{os.uname().nodename}.") + r"\d+\." + re.escape(path.name), left.name):
            left.unlink()


def digest_of(path: Path) -> str:
    """The SHA-256 of a file's content."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(2**20):
            digest.update(piece)
    return digest.hexdigest()


def read_json(path: Path) -> Any:
    """What a JSON file holds. Whatever is wrong with it is an `InputError` about that file."""
    try:
        return parse_json(path.read_bytes())
    except ValueError as error:
        raise InputError(
            f"{path} must hold JSON; it does not: {error}. Write it anew, or take it from where it came."
        ) from error


def parse_json(content: bytes) -> Any:
    """As `json.loads`, but all that is wrong is a `ValueError`, and NaN and Infinity, which JSON does not know, are."""
    try:
        return json.loads(content, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"it holds {name}")


def sync(path: Path) -> None:
    """Wait until a file or directory is on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# Whose file is it?


def check_apart(*, reads: Iterable[Path] = (), writes: Iterable[Path]) -> None:
    """Refuse a command that would write to what it reads, or twice to one place, whatever the names.

    Every file and directory that a command writes is in `writes`; none of them may be, or lie in, another. Symbolic
    links, hard links and second mounts are seen through.
    """
    taken = [(path, True) for path in reads]
    for path in writes:
        for other, read in taken:
            if _is_in(other, path) or (not read and _is_in(path, other)):
                what = f"{other} is read" if read else f"{other} is written too"
                raise InputError(f"{path} cannot be written: {what} by the same command. Choose another output.")
        taken.append((path, False))


def _is_in(path: Path, place: Path) -> bool:
    """Whether a path is a place, or lies in it."""
    real, wanted = Path(os.path.realpath(path)), _identities(place)
    return any(wanted & _identities(one) for one in (real, *real.parents))


def _identities(path: Path) -> set[object]:
    """What a path has in common with other names of the same thing, even if it is not there yet."""
    real = Path(os.path.realpath(path))
    found: set[object] = {real}
    with contextlib.suppress(OSError):
        parent = real.parent.stat()
        found.add((parent.st_dev, parent.st_ino, real.name))
        there = real.stat()
        found.add((there.st_dev, there.st_ino))
    return found


def check_own(path: Path, hashes: Collection[str] | None = None) -> None:
    """Refuse to replace a file unless we wrote it: unless its hash is one of these, or in its directory's manifest."""
    if not os.path.lexists(path):
        return
    if path.is_symlink() or not path.is_file():
        raise InputError(f"{path} must be a file, and is a link, a directory or a device. Choose another name.")
    if digest_of(path) not in (_written(path) if hashes is None else hashes):
        raise InputError(
            f"{path} is there already, and is not what infodis wrote. Move it away, or choose another name."
        )


@contextlib.contextmanager
def result_file(path: Path) -> Iterator[Path]:
    """As `atomic_file`, for a result beside files of others: it replaces nothing but an earlier result."""
    check_own(path)
    with atomic_file(path) as unfinished:
        yield unfinished
        check_own(path)
        _note(path, digest_of(unfinished))  # before it is there: killed in between, it is known all the same


def result_text(path: Path, text: str) -> None:
    """A small result."""
    with result_file(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8")


def _written(path: Path) -> set[str]:
    """The hashes of all that we wrote to a path."""
    manifest = path.parent / MANIFEST
    if not os.path.lexists(manifest):
        return set()
    lines = [] if manifest.is_symlink() or not manifest.is_file() else manifest.read_bytes().splitlines()
    if not lines or lines[0] != json.dumps(HEAD).encode():
        raise InputError(f"{manifest} must list what infodis wrote there, and is something else. Move it away.")
    found = set()
    for line in lines[1:]:
        with contextlib.suppress(ValueError, KeyError, TypeError):  # the last one may be half a line
            about = json.loads(line)
            if about["file"] == path.name:
                found.add(about["sha256"])
    return found


def _note(path: Path, digest: str) -> None:
    """Add a line to the manifest of a directory, in one piece: others may add to it at the same time."""
    if digest in _written(path):
        return
    line = json.dumps({"file": path.name, "sha256": digest}).encode() + b"\n"
    append_lines(path.parent / MANIFEST, line, json.dumps(HEAD).encode() + b"\n")


# Directories to work in


def locked(
    directory: Path, *, name: str = LOCK, writes: Iterable[str] = ("*",)
) -> contextlib.AbstractContextManager[object]:
    """Keep other processes out of a directory of ours. The lock goes with the process, even if that is killed.

    Its file stays, and says that the directory is ours. Without it there must be nothing of what will be written, which
    is given by patterns; a directory that may hold other things too needs a lock of another `name`.
    """
    import filelock

    lock = directory / name
    while True:  # whoever had the lock may take it away with its directory: then both are made anew
        _make_ours(lock, writes)
        try:
            return filelock.FileLock(lock, thread_local=False, fallback_to_soft=False).acquire(blocking=False)
        except FileNotFoundError:
            continue
        except filelock.Timeout:
            if lock.exists():
                raise InputError(
                    f"Another process is at work in {directory}. Wait until it ends, or choose another place."
                ) from None


def _make_ours(lock: Path, writes: Iterable[str]) -> None:
    """Make a directory, or see that it is ours."""
    directory = lock.parent
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise InputError(f"{directory} must be a directory; it is a file. Choose another place.") from None
    if os.path.lexists(lock):
        with contextlib.suppress(FileNotFoundError):  # its owner has just ended
            there = lock.lstat()
            if not stat.S_ISREG(there.st_mode) or there.st_size:
                raise InputError(f"{lock} must be an empty file, and is something else. Choose another place.")
        return
    foreign = next((path.name for pattern in writes for path in directory.glob(pattern)), None)
    if foreign is not None and not os.path.lexists(lock):  # which another process may have made just now
        raise InputError(
            f"{directory} was not made by infodis: it holds {foreign}, and no {lock.name}. Move it away, or choose "
            "another place."
        )
