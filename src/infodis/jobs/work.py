"""One shard of work: read its rows, score them, commit the part. The same for every executor."""

import dataclasses
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from infodis.jobs.outputs import Columns
from infodis.jobs.store import Done, Parts
from infodis.jobs.summary import Summary


@dataclasses.dataclass(frozen=True)
class Part:
    """What came of a shard."""

    records: list[dict[str, Any]]
    rejected: list[dict[str, Any]]
    totals: dict[str, float]


@runtime_checkable
class Source(Protocol):
    """Rows in shards. Small and picklable: every process reads its own shards."""

    @property
    def shards(self) -> int: ...
    @property
    def rows(self) -> int: ...
    @property
    def digest(self) -> str:
        """Of the content and of how it is cut."""
        ...

    def read(self, shard: int) -> list[Any]: ...


@runtime_checkable
class Cut(Protocol):
    """An input and how it becomes shards, as a value."""

    def settings(self) -> dict[str, Any]:
        """Everything that the rows depend on beside the content of the input, by name."""
        ...

    def __call__(self, work: Path) -> Source:
        """The shards, with what there is to know about them in a work directory."""
        ...


@runtime_checkable
class Scorer(Protocol):
    """A loaded model that turns the rows of a shard into records."""

    def score(self, rows: list[Any]) -> Part: ...


@runtime_checkable
class Job(Protocol):
    """What to do with rows: a small picklable value that every worker opens for itself."""

    @property
    def columns(self) -> Columns:
        """The fields of its records."""
        ...

    def open(self) -> Scorer: ...
    def summary(self) -> Summary: ...
    def settings(self) -> dict[str, Any]:
        """Everything that the results depend on, by name."""
        ...


@dataclasses.dataclass(frozen=True)
class Work:
    """Everything that a worker needs to know."""

    source: Source
    job: Job
    parts: Parts
    threads: int | None = None
    """Of a worker on the processor; None leaves it to torch."""

    def begin(self) -> "Worker":
        """Load the model."""
        if self.threads is not None:
            import torch

            torch.set_num_threads(self.threads)
        return Worker(self, self.job.open())


@dataclasses.dataclass(frozen=True, eq=False)
class Worker:
    """A process that does shards."""

    work: Work
    scorer: Scorer

    def do(self, shard: int) -> Done:
        part = self.scorer.score(self.work.source.read(shard))
        digest = self.work.parts.commit(shard, part.records, part.rejected)
        return Done(shard, digest, len(part.records), len(part.rejected), part.totals)


@runtime_checkable
class Executor(Protocol):
    """Who does the shards. They may come back in any order; each is committed before it comes back."""

    def run(self, work: Work, shards: Iterable[int]) -> Iterator[Done]: ...
