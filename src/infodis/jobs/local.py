"""Shards done on this machine: in this process, or in several."""

import contextlib
import dataclasses
import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Iterable, Iterator
from multiprocessing.connection import Connection, wait
from typing import Any

from infodis.errors import InfodisError, InputError
from infodis.jobs.store import Done
from infodis.jobs.work import Work

DEATHS = 3
"""Workers that may die in a row, without a finished shard in between, before the run gives up."""


@dataclasses.dataclass(frozen=True)
class InProcess:
    """One shard after another, here."""

    def run(self, work: Work, shards: Iterable[int]) -> Iterator[Done]:
        worker = work.begin()
        return (worker.do(shard) for shard in shards)


@dataclasses.dataclass(frozen=True)
class Processes:
    """Several processes, each with the model. One that dies is replaced, and its shard is done again."""

    workers: int

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise InputError(f"There must be at least one worker, got {self.workers}.")

    def run(self, work: Work, shards: Iterable[int]) -> Iterator[Done]:
        left = iter(shards)
        crew: dict[Connection, _Member] = {}
        deaths = 0
        try:
            for _ in range(self.workers):
                _hire(crew, work, next(left, None))
            while crew:
                for line in wait(list(crew)):
                    member = crew.pop(line)  # type: ignore[call-overload]
                    try:
                        found = member.line.recv()
                    except (EOFError, OSError):
                        member.process.join()
                        deaths += 1
                        if deaths >= DEATHS:
                            raise InfodisError(
                                f"{deaths} workers died one after another (the last with exit code "
                                f"{member.process.exitcode}): too little memory for --workers {self.workers}?"
                            ) from None
                        _hire(crew, work, member.shard)
                        continue
                    if isinstance(found, _Failure):
                        raise found.error()
                    deaths = 0
                    yield found
                    _give(crew, member, next(left, None))
        finally:
            for member in crew.values():
                member.process.kill()


@dataclasses.dataclass
class _Member:
    process: Any
    line: Connection
    shard: int


@dataclasses.dataclass(frozen=True)
class _Failure:
    """An error that crosses to another process as text."""

    text: str
    told: bool

    def error(self) -> Exception:
        return InfodisError(self.text) if self.told else RuntimeError(self.text)


def _hire(crew: dict[Connection, _Member], work: Work, shard: int | None) -> None:
    if shard is None:
        return
    context = multiprocessing.get_context("spawn")
    mine, its = context.Pipe()
    process = context.Process(target=_labour, args=(its, work, os.getpid()), daemon=True)
    process.start()
    its.close()
    _give(crew, _Member(process, mine, shard), shard)


def _give(crew: dict[Connection, _Member], member: _Member, shard: int | None) -> None:
    """Hand out the next shard, or let the worker go."""
    with contextlib.suppress(OSError):  # it died meanwhile: noticed when its answer is read
        member.line.send(shard)
    if shard is None:
        member.process.join()
        return
    member.shard = shard
    crew[member.line] = member


def _labour(line: Connection, work: Work, parent: int) -> None:
    """A worker's life: shards in, results out, until told to go or left alone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent is told, and tells
    threading.Thread(target=_leave_with, args=(parent,), daemon=True).start()
    try:
        worker = work.begin()
        while (shard := line.recv()) is not None:
            line.send(worker.do(shard))
    except EOFError:
        pass
    except (InfodisError, OSError) as error:
        line.send(_Failure(str(error), told=True))
    except Exception:
        line.send(_Failure(traceback.format_exc(), told=False))


def _leave_with(parent: int) -> None:
    """A killed parent takes its workers with it."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)
