"""An input as a value: what to read, and what decides which rows come out of it."""

import dataclasses
from pathlib import Path
from typing import Any

from infodis.jobs.inputs.cutting import cut
from infodis.jobs.inputs.source import Source
from infodis.settings import settings_of, uncompared


@dataclasses.dataclass(frozen=True)
class InputSpec:
    """An input by name, and how it is read; called with a work directory, it is cut into shards. See `cut`."""

    input: str = dataclasses.field(metadata=uncompared("its content is hashed, wherever it lies"))
    shard_rows: int
    limit: int | None = None
    format: str | None = None
    fields: dict[str, str] = dataclasses.field(default_factory=dict)
    """What fields are called in the file, where that is something else."""

    def settings(self) -> dict[str, Any]:
        """Everything that the rows depend on, by name."""
        return settings_of(self)

    def __call__(self, work: Path) -> Source:
        return cut(
            self.input, work, rows=self.shard_rows, limit=self.limit, format=self.format, fields=dict(self.fields)
        )
