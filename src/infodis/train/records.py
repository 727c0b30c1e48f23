"""What a training run reports, and the file that keeps it."""

import dataclasses
import importlib.util
import json
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

from infodis.files import atomic_text

METRICS, BOARD = "metrics.jsonl", "tensorboard"


@dataclasses.dataclass(frozen=True)
class Progress:
    """What the loop reports after some steps."""

    kind: ClassVar[str] = "progress"

    step: int
    steps: int
    nats: float
    """The training loss, per token or, of preferences, per pair; averaged since the last report."""
    learning_rate: float
    gradient_norm: float
    tokens_per_second: float
    seconds_per_step: float


@dataclasses.dataclass(frozen=True)
class PreferenceProgress(Progress):
    """The same of a run on preferences. Averages of pairs, since the last report; margins and log p in nats."""

    margin: float
    accuracy: float
    chosen_log_p: float
    rejected_log_p: float


@dataclasses.dataclass(frozen=True)
class Validation:
    """How the averaged weights do on fixed windows."""

    kind: ClassVar[str] = "validation"

    step: int
    quantity: str
    """`nll`, or the loss that a score network minimises."""
    bits_per_token: float
    standard_error: float
    best: bool


@dataclasses.dataclass(frozen=True)
class PreferenceValidation:
    """How the averaged weights do on fixed pairs, on fixed masks: averages of pairs, in nats."""

    kind: ClassVar[str] = "validation"

    step: int
    loss: float
    standard_error: float
    """Of the loss, by the spread of pairs."""
    margin: float
    accuracy: float
    chosen_log_p: float
    rejected_log_p: float
    best: bool


@runtime_checkable
class Reporter(Protocol):
    """Shows the progress of a run."""

    def progress(self, report: Progress) -> None: ...
    def validation(self, report: Validation | PreferenceValidation) -> None: ...
    def message(self, text: str) -> None: ...


class MetricsFile:
    """Records of a run: JSON lines, and TensorBoard if it is installed. A resumed run drops what it will redo."""

    def __init__(self, out: Path, step: int, *, active: bool) -> None:
        self._path, self._active = out / METRICS, active
        self._board: Any = None
        if not active:
            return
        kept = self._path.read_text(encoding="utf-8").splitlines() if self._path.is_file() else []
        atomic_text(self._path, "".join(line + "\n" for line in kept if _step_of(line) <= step))
        if importlib.util.find_spec("tensorboard") is not None:
            from torch.utils.tensorboard import SummaryWriter

            self._board = SummaryWriter(str(out / BOARD), purge_step=step + 1)

    def __enter__(self) -> "MetricsFile":
        return self

    def __exit__(self, *_: object) -> None:
        if self._board is not None:
            self._board.close()

    def write(self, report: Progress | Validation | PreferenceValidation) -> None:
        if not self._active:
            return
        record = {"kind": report.kind, **dataclasses.asdict(report)}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        if self._board is not None:
            for name, value in dataclasses.asdict(report).items():
                if name not in ("step", "steps", "best"):
                    self._board.add_scalar(f"{report.kind}/{name}", value, report.step)


def _step_of(line: str) -> int:
    """The step of a record; one that a crash cut short is dropped by giving it the last of all steps."""
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return 2**62
