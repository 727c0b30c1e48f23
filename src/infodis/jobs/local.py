"""Shards done on this machine by several processes."""

import contextlib
import dataclasses
import itertools
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
from infodis.evaluate import Passed
from infodis.jobs.run import Work
from infodis.jobs.store import Done

MAX_DEATHS = 3
"""Workers that may die in a row, without a finished shard in between, before the run gives up."""


@dataclasses.dataclass(frozen=True)
class LocalProcesses:
    """Several processes, each with the model. One that dies is replaced, and its shard is done again."""

    workers: int

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise InputError(f"There must be at least one worker, got {self.workers}.")

    def run(self, work: Work, shards: Iterable[int], passed: Passed) -> Iterator[Done]:
        left = iter(shards)
        busy: dict[Connection, _Worker] = {}
        deaths = 0
        try:
            for shard in itertools.islice(left, self.workers):
                _assign(busy, _start(work), shard)
            while busy:
                for pipe in wait(list(busy)):
                    worker = busy.pop(pipe)  # type: ignore[call-overload]  # `wait` gives back what it was given
                    try:
                        answer = worker.pipe.recv()
                    except (EOFError, OSError):
                        deaths += 1
                        self._check_deaths(deaths, worker)
                        _assign(busy, _start(work), worker.shard)
                        continue
                    if isinstance(answer, _Failure):
                        raise answer.error()
                    if isinstance(answer, int):
                        busy[worker.pipe] = worker
                        passed(answer)
                        continue
                    deaths = 0
                    yield answer
                    _assign(busy, worker, next(left, None))
        finally:
            for worker in busy.values():
                worker.process.kill()

    def _check_deaths(self, deaths: int, worker: "_Worker") -> None:
        worker.process.join()
        if deaths >= MAX_DEATHS:
            raise InfodisError(
                f"{deaths} workers died one after another (the last with exit code {worker.process.exitcode}): too "
                f"little memory for --workers {self.workers}?"
            )


@dataclasses.dataclass
class _Worker:
    """A process, the pipe to it, and the shard that it is doing."""

    process: Any
    pipe: Connection
    shard: int = -1


@dataclasses.dataclass(frozen=True)
class _Failure:
    """An error that crosses to another process as text."""

    text: str
    expected: bool

    def error(self) -> Exception:
        return InfodisError(self.text) if self.expected else RuntimeError(self.text)


def _start(work: Work) -> _Worker:
    context = multiprocessing.get_context("spawn")
    mine, its = context.Pipe()
    process = context.Process(target=_work, args=(its, work, os.getpid()), daemon=True)
    process.start()
    its.close()
    return _Worker(process, mine)


def _assign(busy: dict[Connection, _Worker], worker: _Worker, shard: int | None) -> None:
    """Hand out the next shard, or end the worker if there is none."""
    with contextlib.suppress(OSError):  # it died meanwhile: noticed when its answer is read
        worker.pipe.send(shard)
    if shard is None:
        worker.process.join()
        return
    worker.shard = shard
    busy[worker.pipe] = worker


def _work(pipe: Connection, work: Work, parent: int) -> None:
    """What a worker runs: shards in, forward passes and results out, until there are no more or the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which ends its workers
    threading.Thread(target=_exit_with, args=(parent,), daemon=True).start()
    try:
        while (shard := pipe.recv()) is not None:
            pipe.send(work.do(shard, pipe.send))
    except EOFError:
        pass
    except (InfodisError, OSError) as error:
        pipe.send(_Failure(str(error), expected=True))
    except Exception:
        pipe.send(_Failure(traceback.format_exc(), expected=False))


def _exit_with(parent: int) -> None:
    """A killed parent takes its workers with it."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)
