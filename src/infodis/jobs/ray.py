"""Shards done by Ray, on this machine or on a cluster: actors hold the model, and shard numbers go to them.

Only numbers and short answers travel through Ray. An actor reads its rows from the input and commits its part by
itself, so both must lie on a file system that every node sees.
"""

import contextlib
import dataclasses
import ipaddress
import itertools
import json
import logging
import math
import os
import re
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from infodis import __version__
from infodis.errors import InfodisError, InputError
from infodis.evaluate import Passed
from infodis.files import UNFINISHED
from infodis.jobs.run import Work
from infodis.jobs.store import Done

TRIES = 3
"""Workers that may die of a shard before the run gives up. Ray by itself would replace them for ever."""

WINDOW, WINDOW_PER_WORKER = 10_000, 100
"""Shards that Ray is told about at a time, at least: it takes some 8 kB of memory for each."""

OBJECT_STORE = 2**27
"""Bytes that a local Ray sets aside for objects. Ours are small."""

LOOPBACK = "127.0.0.1"
"""Where a Ray of our own listens: who reaches one can run code as its user."""

KNOCK_SECONDS = 10.0
"""For a cluster to answer."""

BLOCK = 2**20
"""Bytes that Ray Data expects of a result. By its own guess, 128 MB, few workers would fit into the object store."""


@dataclasses.dataclass(frozen=True)
class RayActors:
    """Actors of Ray, each with the model. One that dies is replaced, and its shard is done again.

    Without an address, and without one in RAY_ADDRESS, a Ray is started for this run, and ended with it.
    """

    workers: int
    address: str | None = None
    """`host:port` of a cluster, or `auto`."""
    cpus: float = 1.0
    """Of a worker, as Ray counts them."""
    gpus: float = 0.0

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise InputError(f"There must be at least one worker, got {self.workers}.")
        for name, share, least in (("CPUs", self.cpus, 0.001), ("GPUs", self.gpus, 0.0)):
            if not least <= share < math.inf or (share > 1 and share != int(share)):
                raise InputError(
                    f"A worker takes a share of one or a whole number of {name}, like 0.5, 1 or 2; got {share:g}."
                )

    def run(self, work: Work, shards: Iterable[int], passed: Passed) -> Iterator[Done]:
        """Ray tells of finished shards only."""
        left = iter(shards)
        size = max(WINDOW, WINDOW_PER_WORKER * self.workers)
        with _marked(work) as home, self._connected():
            while window := list(itertools.islice(left, size)):
                yield from self._do(work, window, home)

    def _do(self, work: Work, shards: list[int], home: "_Home") -> Iterator[Done]:
        """A block of Ray Data holds one number, so that a shard is what is done again when a worker dies."""
        import ray

        crew = ray.data.ActorPoolStrategy(size=min(self.workers, len(shards)), max_tasks_in_flight_per_actor=1)
        dataset = ray.data.from_items([{"shard": shard} for shard in shards], override_num_blocks=len(shards)).map(
            _Actor,
            fn_constructor_args=(work, home),
            compute=crew,
            num_cpus=self.cpus,
            num_gpus=self.gpus or None,
        )
        dataset.context.target_max_block_size = BLOCK
        dataset.context.execution_no_progress_timeout_s = -1  # a shard may take long
        dataset.context.wait_for_min_actors_s = -1  # begin with those that are there
        dataset.context.enable_progress_bars = False
        try:
            for batch in dataset.iter_batches(batch_size=None, batch_format="numpy", prefetch_batches=0):
                for answer in batch["answer"]:
                    yield _read(answer)
        except ray.exceptions.RayError as error:
            raise InfodisError(f"Ray gave up: {_one_line(error)}") from error

    @contextlib.contextmanager
    def _connected(self) -> Iterator[None]:
        """Ray, started or joined; left again unless the caller had it before."""
        ray = _load()
        if ray.is_initialized():
            self._check_room("the Ray that is running")
            yield
            return
        address = self.address or os.environ.get("RAY_ADDRESS") or "local"
        own = address == "local"
        try:
            _knock(address)
            with _silent(), _signals_kept(), _without_clusters() if own else contextlib.nullcontext():
                ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **self._local(own))
        except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            ray.shutdown()
            where = "No Ray could be started here" if own else f"No Ray could be joined at {address}"
            raise InputError(f"{where}: {_one_line(error)}") from error
        screen = ray._private.worker
        try:
            screen._worker_logs_enabled = False  # else standard output, where records go, is told of every lost worker
            if own:
                _check_loopback()
            self._check_room("this machine" if own else f"the Ray at {address}")
            yield
        finally:
            ray.shutdown()
            screen._worker_logs_enabled = True

    def _local(self, own: bool) -> dict[str, Any]:
        """How a Ray of our own is started: as small as can be, and out of reach of other machines.

        It counts one CPU more than the workers take, since it waits for ever if they take all.
        """
        if not own:
            return {}
        return {
            "num_cpus": math.ceil(self.workers * self.cpus) + 1,
            "object_store_memory": OBJECT_STORE,
            "include_dashboard": False,
            "_node_ip_address": LOOPBACK,
        }

    def _check_room(self, where: str) -> None:
        """Ray waits without a word for what it does not have."""
        import ray

        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        cpus = sum(node.get("CPU", 0.0) for node in nodes)
        if self.workers * self.cpus >= cpus:
            raise InputError(
                f"{self.workers} workers of {self.cpus:g} CPUs would take all {cpus:g} CPUs of {where}, and Ray would "
                f"wait for ever: one must be left. Ask for at most {max(0, math.ceil(cpus / self.cpus) - 1)} workers "
                "(--workers), give each a smaller share (--worker-cpus), or add nodes."
            )
        places = sum(_places(node, self.cpus, self.gpus) for node in nodes)
        if places < self.workers:
            raise InputError(
                f"{self.workers} workers of {self.cpus:g} CPUs and {self.gpus:g} GPUs each do not fit on {where}, "
                f"{places} do. Ask for fewer (--workers), give each less (--worker-cpus, --worker-gpus), or add nodes."
            )


def _places(node: dict[str, float], cpus: float, gpus: float) -> int:
    """How many workers fit on a node."""
    fits = [node.get("CPU", 0.0) / cpus]
    if gpus:
        fits.append(node.get("GPU", 0.0) / gpus)
    return int(min(fits) + 1e-9)


def _load() -> Any:
    """Ray with its data library, where it is installed; it reports to nobody, and says nothing but errors."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_DATA_DISABLE_PROGRESS_BARS", "1")
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise InputError(f"--engine ray needs Ray ({error}): pip install 'infodis[ray]'.") from error
    for handler in logging.getLogger("ray.data").handlers:
        handler.setLevel(logging.CRITICAL)
    return ray


def _knock(address: str) -> None:
    """Ray tries for minutes where nobody answers, and is of little use through its client (ray://)."""
    if address in ("local", "auto"):
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or "://" in address:
        raise ValueError("An address is host:port of the head, or auto on a node of the cluster.")
    socket.create_connection((host.strip("[]"), int(port)), timeout=KNOCK_SECONDS).close()


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Keep what Ray's own code writes about its start, or about actors that may restart, off the screen."""
    level = os.environ.get("RAY_BACKEND_LOG_LEVEL")
    os.environ["RAY_BACKEND_LOG_LEVEL"] = level or "fatal"
    sys.stderr.flush()
    screen = os.dup(2)
    try:
        with open(os.devnull, "w") as nothing:
            os.dup2(nothing.fileno(), 2)
        yield
    finally:
        os.dup2(screen, 2)
        os.close(screen)
        if level is None:
            del os.environ["RAY_BACKEND_LOG_LEVEL"]


@contextlib.contextmanager
def _without_clusters() -> Iterator[None]:
    """Ray takes loopback for an address of this machine only where it has no clusters, as on macOS."""
    from ray._private import ray_constants

    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


def _check_loopback() -> None:
    """How Ray chooses its address is its own business, and may change: better no run than an open door."""
    import ray

    where = {node["NodeManagerAddress"] for node in ray.nodes()}
    if not all(ipaddress.ip_address(address).is_loopback for address in where):
        raise InfodisError(
            f"The Ray that was started listens on {', '.join(sorted(where))}, where other machines reach it. Take "
            "another version of Ray, or --engine local."
        )


@contextlib.contextmanager
def _signals_kept() -> Iterator[None]:
    """Ray puts its own answer to SIGTERM in place of ours."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


@dataclasses.dataclass(frozen=True)
class _Home:
    """Where a run was started, and what was there: a worker on another node must find the same."""

    directory: Path
    mark: Path
    text: str
    versions: tuple[str, str]

    def enter(self) -> None:
        """Make names of files mean here what they mean there."""
        here = socket.gethostname()
        try:
            os.chdir(self.directory)
            same = self.mark.read_text() == self.text
        except OSError:
            same = False
        if not same:
            raise InputError(
                f"A worker on {here} does not see {self.mark.parent} as it is where the run was started. Input, output "
                "and current directory must be on a file system that all nodes share."
            )
        if _versions() != self.versions:
            raise InputError(
                f"infodis and torch are {' and '.join(_versions())} on {here}, but {' and '.join(self.versions)} where "
                "the run was started. Install the same on every node."
            )

    @contextlib.contextmanager
    def trying(self, shard: int) -> Iterator[None]:
        """Keep count of who began a shard and died before its end, in a file, which outlives them."""
        note = self.mark.with_name(f"{UNFINISHED}shard.{shard}")
        with note.open("ab") as file:
            file.write(b".")
            count = file.tell()
        try:
            if count > TRIES:
                raise InfodisError(
                    f"{TRIES} workers died of shard {shard}, one after another, the last before one on "
                    f"{socket.gethostname()}: too little memory there? Fewer workers, or a larger --worker-cpus, leave "
                    "more for each."
                )
            yield
        finally:
            note.unlink(missing_ok=True)


@contextlib.contextmanager
def _marked(work: Work) -> Iterator[_Home]:
    """Put a mark beside the parts by which workers know that they are at the right place."""
    directory = work.parts.directory.resolve().parent
    mark = directory / f"{UNFINISHED}ray.{os.getpid()}"  # named so that the next run removes it if this one is killed
    text = f"{socket.gethostname()} {os.getpid()} {time.time_ns()}"
    mark.write_text(text)
    try:
        yield _Home(Path.cwd(), mark, text, _versions())
    finally:
        mark.unlink(missing_ok=True)


def _versions() -> tuple[str, str]:
    import torch

    return __version__, torch.__version__


class _Actor:
    """A worker in an actor. It answers with JSON: of a finished shard, or of why there is none.

    The model is loaded with the first shard and not before: if that kills the process, it counts as a try of the shard.
    """

    def __init__(self, work: Work, home: _Home) -> None:
        self._work, self._home = work, home
        self._entered = False

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        try:
            answer = dataclasses.asdict(self._done(int(row["shard"])))
        except (InfodisError, OSError) as error:
            answer = {"error": "disk" if isinstance(error, OSError) else "told", "text": str(error)}
        except Exception:
            answer = {"error": "fault", "text": traceback.format_exc()}
        return {"answer": json.dumps(answer)}

    def _done(self, shard: int) -> Done:
        if not self._entered:
            self._home.enter()
            self._entered = True
        with self._home.trying(shard):
            return self._work.do(shard)


def _read(answer: str) -> Done:
    """What an actor answered; an error there is one here."""
    found = json.loads(answer)
    kinds: dict[str, type[Exception]] = {"disk": OSError, "told": InfodisError, "fault": RuntimeError}
    if "error" in found:
        raise kinds[found["error"]](found["text"])
    return Done(**found)


def _one_line(error: Exception) -> str:
    """Ray's errors are pages; they begin with what happened and end with why."""
    lines = re.sub(r"\x1b\[\d*m", "", str(error)).split("\n")
    told = [line.strip() for line in lines if line.strip()] or [type(error).__name__]
    return told[0] if len(told) == 1 else f"{told[0]} ... {told[-1]}"
