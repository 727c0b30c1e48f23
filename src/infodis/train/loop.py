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
from typing import Any, cast

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from infodis import __version__, rng
from infodis.control import Neighbours
from infodis.design import Tiled
from infodis.errors import InfodisError, InputError
from infodis.estimate import Request, estimate_items
from infodis.files import atomic_directory, atomic_text, check_apart, locked, remove_unfinished
from infodis.item import Item
from infodis.models import checkpoint
from infodis.models.adapters import LoadedModel
from infodis.models.checkpoint import Spec
from infodis.models.files import POINTER, locate, read_pointer
from infodis.models.model import Model
from infodis.models.nets import initialise
from infodis.models.nets.network import Network
from infodis.models.tokenizers import tokenizer_named
from infodis.noise.schedule import SCHEDULES
from infodis.predictor import Predictor
from infodis.result import standard_error
from infodis.train import losses as loss
from infodis.train.config import Config
from infodis.train.devices import Devices
from infodis.train.optimizers import REMEMBERED, learning_rate, make_optimizers
from infodis.train.records import BOARD, METRICS, MetricsFile, Progress, Reporter, Validation
from infodis.train.token_files import TokenFile, open_tokens

SETTINGS, STATE, DATA, LOCK = "settings.json", "training.safetensors", "data", ".infodis-train.lock"
CHECKPOINTS = "step-" + 8 * "[0-9]"
NAMES = (POINTER, METRICS, SETTINGS, DATA, BOARD, CHECKPOINTS)
"""What a run writes to its directory, as patterns."""


class TrainingError(InfodisError):
    """Training cannot go on; the last good checkpoint is kept."""


def train(
    config: Config, out: Path, *, base: Path, resume: bool, reporter: Reporter, teacher: Predictor | None = None
) -> Path:
    """Train, writing checkpoints and metrics to `out`; the directory of the best checkpoint.

    With a teacher, what it says about masked tokens is learned, instead of the tokens themselves.
    """
    devices = Devices(config.run.device)
    with contextlib.ExitStack() as stack:
        stack.callback(devices.close)
        if devices.first:
            check_apart(reads=_sources(config, base), writes=[*map(out.joinpath, NAMES), *out.glob(CHECKPOINTS)])
            stack.enter_context(locked(out, name=LOCK, writes=NAMES))
            for place in (out, out / DATA):
                remove_unfinished(place)
        return _Run(config, out, base, devices, reporter, teacher, resume=resume).go()


class _Objective(nn.Module):
    """Network and loss as one module, so that everything happens in its forward pass (and can be wrapped)."""

    def __init__(self, network: nn.Module, function: loss.Loss) -> None:
        super().__init__()
        self.network, self.function = network, function

    def forward(self, tokens: Tensor, noise: tuple[Tensor, ...]) -> Tensor:
        return self.function.value(self.network, tokens, noise).mean() / tokens.shape[1]


class _Run:
    def __init__(
        self,
        config: Config,
        out: Path,
        base: Path,
        devices: Devices,
        reporter: Reporter,
        teacher: Predictor | None,
        *,
        resume: bool,
    ) -> None:
        self.config, self.out, self.base, self.devices, self.reporter = config, out, base, devices, reporter
        self.pointer = _pointer(out, resume=resume)
        model = config.model
        _check_shares(config, devices.count)
        tokenizer = tokenizer_named(config.data.tokenizer, base=base)
        self.spec = Spec(
            model.network, tokenizer.vocab_size, model.shape, model.length, model.noise, tokenizer=tokenizer
        )
        with devices.first_goes_first():
            self.train_tokens, self.valid_tokens = (self._open(base / name, part) for name, part in self._files())
        self.loss = _loss_of(config, teacher)
        self.network = self.spec.build()
        initialise(self.network, generator=rng.stream(config.run.seed, "weights"))
        if model.start is not None and self.pointer is None:
            self._start(base / model.start)
        self.network.to(devices.device)
        self.average = {name: value.detach().clone() for name, value in self.network.state_dict().items()}
        self.optimizers = make_optimizers(self.network, config.optim)
        objective = devices.wrap(_Objective(self.network, self.loss))
        if config.run.compile:
            objective.compile()
        self.objective = objective
        self.step = 0
        self.since_report = (0.0, 0)  # the sum of losses, and how many
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

    def _files(self) -> list[tuple[str, str]]:
        return [(self.config.data.train, "train"), (self.config.data.valid, "valid")]

    def _open(self, source: Path, part: str) -> TokenFile:
        cache = self.out / DATA / f"{part}.tokens"
        tokenizer = self.spec.tokenizer
        assert tokenizer is not None
        return open_tokens(source, tokenizer, cache=cache, length=self.spec.length, field=self.config.data.field)

    def go(self) -> Path:
        self._begin()
        optim, run = self.config.optim, self.config.run
        with MetricsFile(self.out, self.step, active=self.devices.first) as metrics:
            began, since = self.step, time.perf_counter()
            while self.step < optim.steps:
                nats, norm = self._advance()
                total, taken = self.since_report = self.since_report[0] + nats, self.since_report[1] + 1
                if self.step % run.log_every == 0 or self.step == optim.steps:
                    each = (time.perf_counter() - since) / (self.step - began)
                    speed = optim.batch * self.spec.length / each
                    report = Progress(
                        self.step, optim.steps, total / taken, learning_rate(optim, self.step), norm, speed, each
                    )
                    metrics.write(report)
                    self._report("progress", report)
                    self.since_report = (0.0, 0)
                due = self.step == optim.steps
                if due or self.step % run.validate_every == 0:
                    found = self._validate()
                    metrics.write(found)
                    self._report("validation", found)
                    due = due or found.best
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

    def _advance(self) -> tuple[float, float]:
        """One step of the optimizer: the loss in nats per token and the norm of its gradient."""
        optim, devices = self.config.optim, self.devices
        mine = range(devices.rank, optim.batch // optim.rows, devices.count)
        self.network.zero_grad(set_to_none=True)
        total = torch.zeros((), device=devices.device)
        for number in mine:
            with devices.accumulating(self.objective, more=number != mine[-1]):
                value = self._loss(number) / len(mine)
                value.backward()
            total += value.detach()
        nats = float(devices.mean(total))
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
        return nats, norm

    def _loss(self, number: int) -> Tensor:
        """The loss of one micro-batch of the coming step: nats per token."""
        seed, step, spec, device = self.config.run.seed, self.step, self.spec, self.devices.device
        tokens = self.train_tokens.random(
            self.config.optim.rows,
            spec.length,
            aligned=self.config.data.aligned,
            generator=rng.stream(seed, "batch", step, number),
        )
        noise = self.loss.draw(tokens, vocab_size=spec.vocab_size, generator=rng.stream(seed, "noise", step, number))
        if spec.shape.dropout:
            rng.seed_global(seed, "dropout", step, number)
        lower = self.config.run.precision == "bfloat16"
        with torch.autocast(device.type, torch.bfloat16, enabled=lower):
            return self.objective(tokens.to(device), tuple(part.to(device) for part in noise))

    @torch.no_grad()
    def _average(self) -> None:
        """Move the averaged weights; slowly only once there is something to average."""
        decay = min(self.config.optim.ema, (1 + self.step) / (10 + self.step))
        for name, value in self.network.state_dict().items():
            self.average[name].lerp_(value, 1 - decay)

    def _validate(self) -> Validation:
        """Validation `nll` of the averaged weights; a score network is validated by its loss."""
        mean, error = self.devices.from_first(self._measure)
        scale = 1 / (math.log(2) * self.spec.length)
        best = mean < self.best.nats
        if best:
            self.best = _Best(mean, self.step, error)
        quantity = "nll" if self.spec.network == "radd" else self.config.optim.loss
        return Validation(self.step, quantity, mean * scale, error * scale, best)

    def _measure(self) -> tuple[float, float]:
        """Nats per validation window, and their standard error."""
        run = self.config.run
        windows = self.valid_tokens.spread(run.valid_windows, self.spec.length)
        with self._averaged() as network:
            if self.spec.network == "sedd":
                return self._validation_loss(network, windows)
            request = Request(Tiled(), Neighbours(), run.valid_evaluations, batch_size=self.config.optim.rows)
            items = [Item.read(window, target=None, context=None) for window in windows]
            names = list(range(len(items)))  # equal windows must not share their masks
            found = estimate_items(self._predictor(network), items, request, seed=run.seed, names=names)
        values = torch.tensor([estimate.value for estimate in found])
        errors = torch.tensor([estimate.standard_error for estimate in found])
        return float(values.mean()), float(errors.square().sum().sqrt()) / len(found)

    @torch.no_grad()
    def _validation_loss(self, network: nn.Module, windows: Tensor) -> tuple[float, float]:
        rounds = []
        for number in range(self.config.run.valid_evaluations):
            generator = rng.stream(self.config.run.seed, "validation", number)
            noise = self.loss.draw(windows, vocab_size=self.spec.vocab_size, generator=generator)
            parts = [part.split(self.config.optim.rows) for part in (windows, *noise)]
            rounds.append(torch.cat([self._value(network, *batch) for batch in zip(*parts, strict=True)]).mean())
        values = torch.stack(rounds).double()
        return float(values.mean()), float(standard_error(values))

    def _value(self, network: nn.Module, tokens: Tensor, *noise: Tensor) -> Tensor:
        device = self.devices.device
        return self.loss.value(network, tokens.to(device), tuple(part.to(device) for part in noise)).cpu()

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

    def _predictor(self, network: nn.Module) -> Model:
        loaded = LoadedModel("radd", cast(Network, network), self.spec.tokenizer, self.spec.length, limit=None)
        return Model("in training", loaded, self.devices.device)

    def _save(self) -> None:
        """Write a checkpoint of this step, point to it, and drop those that nobody points to."""
        name = f"step-{self.step:08d}"
        best = name if self.best.step in (0, self.step) else self.named["best"]
        self.named = {"last": name, "best": best}
        if self.devices.first:
            with atomic_directory(self.out / name, replace=True) as directory:  # nobody points to one of this step
                checkpoint.save(directory, dataclasses.replace(self.spec, about=self._about()), self.average)
                save_file(self._state(), directory / STATE)
            pointer = {**self.named, "step": self.step, "best_step": self.best.step, "since_report": self.since_report}
            if self.best.step:
                pointer |= {"best_nats": self.best.nats, "best_error": self.best.error}
            atomic_text(self.out / POINTER, json.dumps(pointer, indent=2) + "\n")
            for old in self.out.glob(CHECKPOINTS):
                if old.name not in self.named.values():
                    shutil.rmtree(old, ignore_errors=True)
        self.devices.wait()

    def _about(self) -> dict[str, Any]:
        """What a checkpoint says about itself."""
        about = {"steps": self.step, "seed": self.config.run.seed, "loss": self.config.optim.loss}
        if isinstance(self.loss, loss.Taught):
            about["teacher"] = type(self.loss.teacher).__name__
        if self.best.step == self.step:
            scale = 1 / (math.log(2) * self.spec.length)
            about["validation_bits_per_token"] = [self.best.nats * scale, self.best.error * scale]
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
        total, taken = pointer.get("since_report", (0.0, 0))
        self.since_report = (float(total), int(taken))
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


def _sources(config: Config, base: Path) -> list[Path]:
    """Files and directories that a run reads."""
    named = (config.data.train, config.data.valid, config.data.tokenizer, config.model.start)
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


def _loss_of(config: Config, teacher: Predictor | None) -> loss.Loss:
    optim = config.optim
    schedule = SCHEDULES[optim.schedule or "log-linear"]
    found = loss.loss_named(optim.loss, schedule=schedule, noise=config.model.noise, top=optim.top_level)
    if teacher is None:
        return found
    if not isinstance(found, loss.CrossEntropy):
        raise InputError(f"A teacher speaks of masked tokens: it needs a cross-entropy, not {optim.loss!r}.")
    return loss.Taught(found, teacher)
