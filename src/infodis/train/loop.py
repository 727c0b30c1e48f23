"""The training loop.

All randomness of a step has a name (seed, step, micro-batch), so a run that was killed and resumed goes through the
same losses as one that was not, and the number of processes does not matter either.
"""

import contextlib
import dataclasses
import json
import math
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from infodis import __version__, rng
from infodis.errors import InfodisError, InputError
from infodis.files import atomic_directory, atomic_text, check_apart, locked, remove_unfinished
from infodis.models import checkpoint
from infodis.models.files import POINTER, locate, read_pointer
from infodis.train.config import DPO, Config
from infodis.train.devices import Devices
from infodis.train.optimizers import REMEMBERED, learning_rate, make_optimizers
from infodis.train.preferences import Preferences
from infodis.train.records import BOARD, METRICS, MetricsFile, PreferenceValidation, Reporter, Validation
from infodis.train.tasks import Pretraining, TrainingTask

SETTINGS, STATE, DATA, LOCK = "settings.json", "training.safetensors", "data", ".infodis-train.lock"
CHECKPOINTS = "step-" + 8 * "[0-9]"
NAMES = (POINTER, METRICS, SETTINGS, DATA, BOARD, CHECKPOINTS)
"""What a run writes to its directory, as patterns."""


class TrainingError(InfodisError):
    """Training cannot go on; the last good checkpoint is kept."""


def train(config: Config, out: Path, *, base: Path, resume: bool, reporter: Reporter) -> Path:
    """Train, writing checkpoints and metrics to `out`; the directory of the best checkpoint."""
    devices = Devices(config.run.device)
    with contextlib.ExitStack() as stack:
        stack.callback(devices.close)
        if devices.first:
            check_apart(reads=_sources(config, base), writes=[*map(out.joinpath, NAMES), *out.glob(CHECKPOINTS)])
            stack.enter_context(locked(out, name=LOCK, writes=NAMES))
            for place in (out, out / DATA):
                remove_unfinished(place)
        return _Run(config, out, base, devices, reporter, resume=resume).go()


class _Run:
    def __init__(
        self, config: Config, out: Path, base: Path, devices: Devices, reporter: Reporter, *, resume: bool
    ) -> None:
        self.config, self.out, self.devices, self.reporter = config, out, devices, reporter
        self.pointer = _pointer(out, resume=resume)
        _check_shares(config, devices.count)
        with devices.first_goes_first():
            self.task = _task(config, base, out, devices.device)
        self.spec = self.task.spec
        self.network = self.spec.build()
        self.task.initialise(self.network)
        if config.model.start is not None and self.pointer is None:
            self._start(base / config.model.start)
        self.network.to(devices.device)
        self.average = {name: value.detach().clone() for name, value in self.network.state_dict().items()}
        self.optimizers = make_optimizers(self.network, config.optim)
        objective = devices.wrap(self.task.objective(self.network))
        if config.run.compile:
            objective.compile()
        self.objective = objective
        self.step = 0
        self.since_report = (torch.zeros(self.task.measures, dtype=torch.float64), 0)  # sums, and of how many steps
        self.best = _Best(math.inf, step=0)
        self.named: dict[str, str] = {}

    def _start(self, place: Path) -> None:
        """Begin with the weights of another run."""
        directory = locate(place)
        found = checkpoint.read_spec(directory)
        if (found.network, found.vocab_size, found.noise) != (self.spec.network, self.spec.vocab_size, self.spec.noise):
            raise InputError(f"model.start: {directory} is another kind of network, or has another vocabulary.")
        if found.tokenizer is not None and found.tokenizer != self.spec.tokenizer:
            raise InputError(f"model.start: {directory} was trained with another tokenizer.")
        path = directory / checkpoint.WEIGHTS
        checkpoint.set_weights(self.network, [(path, checkpoint.read_weights(path))], assign=False)

    def go(self) -> Path:
        self._begin()
        optim, run = self.config.optim, self.config.run
        with MetricsFile(self.out, self.step, active=self.devices.first) as metrics:
            began, since = self.step, time.perf_counter()
            while self.step < optim.steps:
                found, norm = self._advance()
                total, taken = self.since_report = self.since_report[0] + found, self.since_report[1] + 1
                if self.step % run.log_every == 0 or self.step == optim.steps:
                    each = (time.perf_counter() - since) / (self.step - began)
                    report = self.task.progress(
                        (total / taken).tolist(),
                        step=self.step,
                        steps=optim.steps,
                        learning_rate=learning_rate(optim, self.step),
                        gradient_norm=norm,
                        tokens_per_second=self.task.step_tokens / each,
                        seconds_per_step=each,
                    )
                    metrics.write(report)
                    self._report("progress", report)
                    self.since_report = (torch.zeros_like(total), 0)
                due = self.step == optim.steps
                if due or self.step % run.validate_every == 0:
                    validated = self._validate()
                    metrics.write(validated)
                    self._report("validation", validated)
                    due = due or validated.best
                if due or self.step % run.checkpoint_every == 0:
                    self._save()
                if self.step % run.log_every == 0:
                    began, since = self.step, time.perf_counter()
        return self.out / self.named["best"]

    def _begin(self) -> None:
        asked, note = dataclasses.asdict(self.config), self.out / SETTINGS
        asked["run"]["device"] = str(self.devices.device)  # not auto: it is what the numbers depend on
        if self.pointer is not None:
            self._restore(self.pointer)
            self._report("message", f"Resuming after step {self.step} of {self.config.optim.steps}.")
            changed = _changes(_read_settings(note), asked)
            if changed:
                self._report("message", f"Settings have changed since the run began: {'; '.join(changed)}.")
        self.devices.wait()
        if self.devices.first:
            atomic_text(note, json.dumps(asked, indent=2) + "\n")

    def _advance(self) -> tuple[Tensor, float]:
        """One step of the optimizer: the loss and what is logged beside it, and the norm of the gradient."""
        optim, devices = self.config.optim, self.devices
        mine = range(devices.rank, optim.batch // optim.rows, devices.count)
        self.network.zero_grad(set_to_none=True)
        total = torch.zeros(self.task.measures, device=devices.device)
        for number in mine:
            with devices.accumulating(self.objective, more=number != mine[-1]):
                found = self._measures(number) / len(mine)
                found[0].backward()
            total += found.detach()
        means = devices.mean(total).cpu().double()
        nats = float(means[0])
        norm = float(torch.nn.utils.clip_grad_norm_(self.network.parameters(), optim.clip))
        if not (math.isfinite(nats) and math.isfinite(norm)):
            raise TrainingError(
                f"The loss or its gradient is not finite at step {self.step + 1} (loss {nats}, gradient {norm}). "
                f"The last good checkpoint is {self.out / self.named['last'] if self.named else 'none yet'}. "
                "Lower optim.learning_rate or optim.clip, and go on with --resume."
            )
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(optim, self.step + 1)
            optimizer.step()
        self.step += 1
        self._average()
        return means, norm

    def _measures(self, number: int) -> Tensor:
        """The objective of one micro-batch of the coming step."""
        seed, device = self.config.run.seed, self.devices.device
        batch = self.task.batch(self.step, number, device=device)
        if self.spec.shape.dropout:
            rng.seed_global(seed, "dropout", self.step, number)
        lower = self.config.run.precision == "bfloat16"
        with torch.autocast(device.type, torch.bfloat16, enabled=lower):
            return self.objective(*batch)

    @torch.no_grad()
    def _average(self) -> None:
        """Move the averaged weights; slowly only once there is something to average."""
        decay = min(self.config.optim.ema, (1 + self.step) / (10 + self.step))
        for name, value in self.network.state_dict().items():
            self.average[name].lerp_(value, 1 - decay)

    def _validate(self) -> Validation | PreferenceValidation:
        """How the averaged weights do."""
        measured = self.devices.from_first(self._measure)
        best = measured[0] < self.best.nats
        if best:
            self.best = _Best(measured[0], self.step, measured[1])
        return self.task.validation(self.step, measured, best=best)

    def _measure(self) -> tuple[float, ...]:
        with self._averaged() as network:
            return self.task.measure(network)

    @contextlib.contextmanager
    def _averaged(self) -> Iterator[nn.Module]:
        """The network with its averaged weights, for a while."""
        kept = {name: value.clone() for name, value in self.network.state_dict().items()}
        self.network.load_state_dict(self.average)
        self.network.eval()
        try:
            yield self.network
        finally:
            self.network.load_state_dict(kept)
            self.network.train()

    def _save(self) -> None:
        """Write a checkpoint of this step, point to it, and drop those that nobody points to."""
        name = f"step-{self.step:08d}"
        best = name if self.best.step in (0, self.step) else self.named["best"]
        self.named = {"last": name, "best": best}
        if self.devices.first:
            with atomic_directory(self.out / name, replace=True) as directory:  # nobody points to one of this step
                checkpoint.save(directory, dataclasses.replace(self.spec, about=self._about()), self.average)
                save_file(self._state(), directory / STATE)
            sums, taken = self.since_report
            begun = [*sums.tolist(), taken]
            pointer = {**self.named, "step": self.step, "best_step": self.best.step, "since_report": begun}
            if self.best.step:
                pointer |= {"best_nats": self.best.nats, "best_error": self.best.error}
            atomic_text(self.out / POINTER, json.dumps(pointer, indent=2) + "\n")
            for old in self.out.glob(CHECKPOINTS):
                if old.name not in self.named.values():
                    shutil.rmtree(old, ignore_errors=True)
        self.devices.wait()

    def _about(self) -> dict[str, Any]:
        """What a checkpoint says about itself."""
        about = {"steps": self.step, "seed": self.config.run.seed, "loss": self.config.optim.loss} | self.task.about()
        if self.best.step == self.step:
            about |= self.task.about_best(self.best.nats, self.best.error)
        return about | {"versions": {"infodis": __version__, "torch": torch.__version__}}

    def _state(self) -> dict[str, Tensor]:
        """What a resumed run needs besides the averaged weights: the weights and what optimizers remember."""
        state = {f"weights.{name}": value for name, value in self.network.state_dict().items()}
        for name, parameter, optimizer in self._owned():
            for key in REMEMBERED[type(optimizer).__name__]:
                state[f"optimizer.{key}.{name}"] = optimizer.state[parameter][key]
        return {name: value.detach().cpu().contiguous() for name, value in state.items()}

    def _owned(self) -> Iterator[tuple[str, nn.Parameter, torch.optim.Optimizer]]:
        """Every parameter with its name and the optimizer that moves it."""
        owners = {p: o for o in self.optimizers for group in o.param_groups for p in group["params"]}
        for name, parameter in self.network.named_parameters():
            yield name, parameter, owners[parameter]

    def _restore(self, pointer: dict[str, Any]) -> None:
        directory = self.out / pointer["last"]
        if checkpoint.read_spec(directory).to_json() | {"about": None} != self.spec.to_json() | {"about": None}:
            raise InputError(
                f"{directory} was trained with another network or tokenizer than the configuration asks for. Choose "
                f"another --out, or go back to its settings ({self.out / SETTINGS})."
            )
        device = self.devices.device
        self.average = {
            name: t.to(device) for name, t in checkpoint.read_weights(directory / checkpoint.WEIGHTS).items()
        }
        state = {name: t.to(device) for name, t in checkpoint.read_weights(directory / STATE).items()}
        weights = {name.removeprefix("weights."): t for name, t in state.items() if name.startswith("weights.")}
        checkpoint.set_weights(self.network, [(directory / STATE, weights)], assign=False)
        try:
            for name, parameter, optimizer in self._owned():
                keys = REMEMBERED[type(optimizer).__name__]
                optimizer.state[parameter] = {key: state[f"optimizer.{key}.{name}"] for key in keys}
        except KeyError as error:
            raise InputError(
                f"A run must be resumed with its own optimizer; {directory} was not trained with "
                f"{self.config.optim.optimizer}. Set optim.optimizer back, or begin a new run with its weights "
                "(model.start)."
            ) from error
        self.step = pointer["step"]
        *sums, taken = pointer.get("since_report", [*[0.0] * self.task.measures, 0])
        self.since_report = (torch.tensor(sums, dtype=torch.float64), int(taken))
        self.best = _Best(pointer.get("best_nats", math.inf), pointer["best_step"], pointer.get("best_error", 0.0))
        self.named = {"last": pointer["last"], "best": pointer["best"]}

    def _report(self, kind: str, report: Any) -> None:
        if self.devices.first:
            getattr(self.reporter, kind)(report)


@dataclasses.dataclass(frozen=True)
class _Best:
    """The lowest validation so far, and when; step 0 for none."""

    nats: float
    step: int
    error: float = 0.0


def _task(config: Config, base: Path, out: Path, device: torch.device) -> TrainingTask:
    return Preferences(config, base, device) if config.optim.loss == DPO else Pretraining(config, base, out / DATA)


def _sources(config: Config, base: Path) -> list[Path]:
    """Files and directories that a run reads."""
    data, model = config.data, config.model
    named = (data.train, data.pairs, data.valid, data.tokenizer, model.start, model.reference)
    return [base / name for name in named if name is not None]


def _pointer(out: Path, *, resume: bool) -> dict[str, Any] | None:
    """What to go on from; None for a run that begins."""
    if not (out / POINTER).is_file():
        return None
    if not resume:
        raise InputError(f"{out} already holds a training run. Go on with it by --resume, or choose another --out.")
    return read_pointer(out)


def _check_shares(config: Config, processes: int) -> None:
    optim = config.optim
    if (optim.batch // optim.rows) % processes == 0:
        return
    if optim.batch % processes:
        raise InputError(f"optim.batch must be a multiple of the {processes} processes, got {optim.batch}.")
    fitting = (n for n in range(optim.batch // processes, 0, -1) if optim.batch % (n * processes) == 0)
    raise InputError(
        f"{optim.batch // optim.rows} forward passes a step (optim.batch / optim.micro_batch) cannot be shared equally "
        f"by {processes} processes. Set optim.micro_batch to {next(n for n in fitting if n <= optim.rows)}."
    )


def _read_settings(note: Path) -> dict[str, Any]:
    try:
        return json.loads(note.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def _changes(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Settings that differ, as `optim.steps 100 -> 200`."""
    return [
        f"{table}.{key} {before[table][key]} -> {value}"
        for table, settings in now.items()
        for key, value in settings.items()
        if key in before.get(table, {}) and before[table][key] != value
    ]
