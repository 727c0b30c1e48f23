"""Show a training run: a progress bar on a terminal, plain lines elsewhere."""

import contextlib
import math
from collections.abc import Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from infodis.train.records import PreferenceProgress, PreferenceValidation, Progress, Reporter, Validation


@contextlib.contextmanager
def console_reporter(console: Console) -> Iterator[Reporter]:
    """A reporter that fits the console."""
    if not console.is_terminal:
        yield _LineReporter(console)
        return
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.description}", markup=False),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=console) as bar:
        yield _BarReporter(bar)


def _numbers(report: Progress) -> str:
    speed = f"{report.tokens_per_second:,.0f} tokens/s"
    if isinstance(report, PreferenceProgress):
        return f"loss {report.nats:.4f}, {_preferences(report)}, {speed}"
    return f"loss {report.nats / math.log(2):.4f} bits/token, {speed}"


def _preferences(report: PreferenceProgress | PreferenceValidation) -> str:
    log_p = f"log p chosen {report.chosen_log_p:.2f}, rejected {report.rejected_log_p:.2f}"
    return f"margin {report.margin:+.3f}, accuracy {report.accuracy:.3f}, {log_p}"


def _validated(report: Validation | PreferenceValidation) -> str:
    note = " (best)" if report.best else ""
    if isinstance(report, PreferenceValidation):
        value = f"dpo {report.loss:.4f} ± {report.standard_error:.4f}, {_preferences(report)}"
    else:
        value = f"{report.quantity} {report.bits_per_token:.4f} ± {report.standard_error:.4f} bits/token"
    return f"step {report.step}: validation {value}{note}"


class _LineReporter:
    def __init__(self, console: Console) -> None:
        self._console = console

    def progress(self, report: Progress) -> None:
        left = (report.steps - report.step) * report.seconds_per_step
        self.message(f"step {report.step}/{report.steps}: {_numbers(report)}, {_duration(left)} left")

    def validation(self, report: Validation | PreferenceValidation) -> None:
        self.message(_validated(report))

    def message(self, text: str) -> None:
        self._console.print(text, soft_wrap=True)


class _BarReporter(_LineReporter):
    def __init__(self, bar: Bar) -> None:
        super().__init__(bar.console)
        self._bar, self._task = bar, bar.add_task("", total=None)

    def progress(self, report: Progress) -> None:
        self._bar.update(self._task, completed=report.step, total=report.steps, description=_numbers(report))


def _duration(seconds: float) -> str:
    hours, rest = divmod(int(seconds), 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}"
