"""The settings of a training run: a TOML file, read into values, every key checked."""

import dataclasses
import difflib
import operator
import sys
import types
import typing
from pathlib import Path
from typing import Any, Literal

from infodis.errors import InputError
from infodis.models.nets import SIZES, NetworkShape
from infodis.noise.schedule import SCHEDULES
from infodis.train.losses import LOSSES

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


DPO = "dpo"
"""The loss that is not about text but about pairs of texts, one of which is preferred."""


def _demand(holds: bool, message: str) -> None:
    if not holds:
        raise InputError(message)


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """Which network, and how large: a named size, or width, blocks and heads."""

    network: Literal["radd", "sedd"] = "radd"
    length: int = 256
    size: str | None = None
    width: int | None = None
    blocks: int | None = None
    heads: int | None = None
    dropout: float | None = None
    noise: Literal["absorbing", "uniform"] = "absorbing"
    positions: bool = False
    """Learn a vector for every position of a window, besides the rotary ones: for rows of fixed length (radd only)."""
    feed: int = 4
    """How many times wider feed-forward layers are between their two halves."""
    block_size: int = 0
    """Tokens of a block of block diffusion (radd only): each block is learned given the clean ones before it. 1 is a
    causal network, 0 is neither."""
    start: str | None = None
    """A checkpoint or run to begin with, instead of random weights. The same network and tokenizer."""
    reference: str | None = None
    """Of dpo: a checkpoint, a run or a model that ships. What the policy begins as, and what it is compared with."""

    def __post_init__(self) -> None:
        _demand(self.length >= 1, f"model.length must be at least 1, got {self.length}.")
        _demand(not (self.network == "radd" and self.noise == "uniform"), "RADD knows absorbing noise only; use sedd.")
        _demand(not (self.network == "sedd" and self.positions), "model.positions is an option of radd.")
        _demand(not (self.network == "sedd" and self.block_size), "model.block_size is an option of radd.")
        _demand(self.block_size >= 0, f"model.block_size must not be negative, got {self.block_size}.")
        _demand(
            not self.block_size or self.length % self.block_size == 0,
            f"model.length must be a multiple of model.block_size = {self.block_size}, got {self.length}.",
        )
        if self.reference is None:
            self.shape  # noqa: B018 - a wrong shape is reported when the file is read
        else:
            sized = [name for name in ("size", "width", "blocks", "heads") if getattr(self, name) is not None]
            _demand(not sized, f"The network is that of model.reference; leave out model.{', model.'.join(sized)}.")

    @property
    def shape(self) -> NetworkShape:
        given = {name: getattr(self, name) for name in ("width", "blocks", "heads")}
        if self.size is not None:
            _demand(self.size in SIZES, f"model.size is one of {', '.join(SIZES)}; got {self.size!r}.")
            _demand(not any(given.values()), "Give model.size, or width, blocks and heads; not both.")
            shape = SIZES[self.size]
        else:
            _demand(all(given.values()), "model needs a size, or width, blocks and heads.")
            shape = NetworkShape(**given)
        return dataclasses.replace(
            shape,
            dropout=shape.dropout if self.dropout is None else self.dropout,
            positions=self.length if self.positions else 0,
            feed=self.feed,
            block_size=self.block_size,
        )


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """Where tokens come from. Paths are relative to the configuration file."""

    train: str | None = None
    valid: str | None = None
    tokenizer: str | None = None
    pairs: str | None = None
    """Of dpo, instead of `train`: JSONL rows with `chosen`, `rejected` and, if there is one, their `prompt`."""
    field: str = "text"
    """Of JSONL rows."""
    aligned: bool = False
    """Windows start at multiples of model.length: for data of equally long rows."""


@dataclasses.dataclass(frozen=True)
class OptimConfig:
    """How to minimise what."""

    loss: str = "k-dce"
    schedule: str | None = None
    """Of losses that draw a time (t-dce, t-dse); log-linear unless given."""
    top_level: float = 1.0
    """The largest share of a sequence that flat-dce masks."""
    draws: int = 4
    """Of dpo: forward passes for the log-likelihood of a sequence."""
    beta: float = 0.1
    """Of dpo: how dearly moving away from the reference is paid for."""
    steps: int = 10_000
    batch: int = 32
    """Sequences per step, over all devices; pairs of them in the case of dpo."""
    micro_batch: int | None = None
    """Sequences (pairs) per forward pass; the gradients of batch / micro_batch passes are added up."""
    optimizer: Literal["adamw", "muon"] = "adamw"
    """Muon moves the matrices inside blocks, AdamW the rest."""
    learning_rate: float = 1e-3
    warmup: int = 200
    final_rate: float = 0.0
    """The share of the learning rate that is left at the last step."""
    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.99
    clip: float = 1.0
    """Largest norm of a gradient."""
    ema: float = 0.999
    """Decay of the averaged weights, which are the ones that are validated and shipped."""

    def __post_init__(self) -> None:
        known = (*LOSSES, DPO)
        _demand(self.loss in known, f"optim.loss is one of {', '.join(known)}; got {self.loss!r}.")
        if self.schedule is not None:
            names = ", ".join(SCHEDULES)
            _demand(self.schedule in SCHEDULES, f"optim.schedule is one of {names}; got {self.schedule!r}.")
            timed = self.loss in ("t-dce", "t-dse")
            _demand(timed, f"optim.schedule is an option of t-dce and t-dse; optim.loss is {self.loss!r}.")
        for name in ("steps", "batch", "learning_rate", "clip", "draws", "beta"):
            _demand(getattr(self, name) > 0, f"optim.{name} must be positive, got {getattr(self, name)}.")
        _demand(
            self.top_level == 1 or self.loss == "flat-dce",
            f"optim.top_level is an option of flat-dce; optim.loss is {self.loss!r}.",
        )
        _demand(
            self.loss == DPO or (self.draws, self.beta) == (4, 0.1),
            f"optim.draws and optim.beta are options of dpo; optim.loss is {self.loss!r}.",
        )
        for name in ("ema", "beta1", "beta2"):
            _demand(0 <= getattr(self, name) < 1, f"optim.{name} must be in [0, 1), got {getattr(self, name)}.")
        for name in ("warmup", "weight_decay", "final_rate"):
            _demand(getattr(self, name) >= 0, f"optim.{name} must not be negative, got {getattr(self, name)}.")
        _demand(
            self.rows >= 1 and self.batch % self.rows == 0,
            f"optim.micro_batch must divide optim.batch = {self.batch}, got {self.micro_batch}.",
        )

    @property
    def rows(self) -> int:
        """Sequences per forward pass."""
        return self.batch if self.micro_batch is None else self.micro_batch


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """How to go about it."""

    seed: int = 0
    device: str = "auto"
    precision: Literal["float32", "bfloat16"] = "float32"
    compile: bool = False
    log_every: int = 20
    validate_every: int = 500
    valid_windows: int = 32
    valid_evaluations: int = 32
    """Forward passes for the `nll` of a validation window."""
    checkpoint_every: int = 200

    def __post_init__(self) -> None:
        for name in ("log_every", "validate_every", "valid_windows", "checkpoint_every"):
            _demand(getattr(self, name) >= 1, f"run.{name} must be at least 1, got {getattr(self, name)}.")
        _demand(self.valid_evaluations >= 2, "run.valid_evaluations must be at least 2: a standard error needs two.")


@dataclasses.dataclass(frozen=True)
class Config:
    """A whole training run."""

    model: ModelConfig
    data: DataConfig
    optim: OptimConfig = OptimConfig()
    run: RunConfig = RunConfig()

    def __post_init__(self) -> None:
        if self.optim.loss == DPO:
            self._check_preferences()
        else:
            self._check_pretraining()

    def _check_given(self, *names: str) -> None:
        missing = [name for name in names if operator.attrgetter(name)(self) is None]
        _demand(not missing, f"{', '.join(missing)} must be given; optim.loss is {self.optim.loss!r}.")

    def _check_pretraining(self) -> None:
        self._check_given("data.train", "data.valid", "data.tokenizer")
        for name, value in (("model.reference", self.model.reference), ("data.pairs", self.data.pairs)):
            _demand(value is None, f"{name} is an option of dpo; optim.loss is {self.optim.loss!r}.")
        needed = "t-dse" if self.model.network == "sedd" else "a cross-entropy (k-dce, lambda-dce, t-dce, flat-dce)"
        fits = (self.optim.loss == "t-dse") == (self.model.network == "sedd")
        _demand(fits, f"A {self.model.network} network trains with {needed}; optim.loss is {self.optim.loss!r}.")

    def _check_preferences(self) -> None:
        self._check_given("model.reference", "data.pairs", "data.valid")
        _demand(self.data.train is None, "optim.loss is 'dpo', which reads data.pairs. Leave data.train out.")
        _demand(not self.run.compile, "run.compile must be false where optim.loss is 'dpo'.")


def read_config(path: Path) -> Config:
    """Read and check a configuration file."""
    if not path.is_file():
        raise InputError(f"There is no configuration file {path}.")
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not TOML: {error}.") from error
    try:
        return _build(Config, content, "")
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def _build(kind: type, content: dict[str, Any], where: str) -> Any:
    """A dataclass from a table: every key known, none missing, every value of its type."""
    hints = typing.get_type_hints(kind)
    fields = {field.name: field for field in dataclasses.fields(kind)}
    for key in content:
        if key not in fields:
            close = difflib.get_close_matches(key, fields, n=1)
            hint = f" Did you mean {close[0]!r}?" if close else f" Known keys: {', '.join(fields)}."
            raise InputError(f"unknown key {where}{key}.{hint}")
    missing = [name for name, field in fields.items() if name not in content and field.default is dataclasses.MISSING]
    if missing:
        raise InputError(f"{', '.join(where + name for name in missing)} must be given.")
    return kind(**{key: _value(hints[key], value, where + key) for key, value in content.items()})


def _value(hint: Any, value: Any, where: str) -> Any:
    if dataclasses.is_dataclass(hint):
        _demand(isinstance(value, dict), f"{where} must be a table, [{where}].")
        return _build(typing.cast(type, hint), value, f"{where}.")
    if typing.get_origin(hint) is Literal:
        legal = typing.get_args(hint)
        _demand(value in legal, f"{where} is one of {', '.join(legal)}; got {value!r}.")
        return value
    kinds = [
        k for k in (typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)) if k is not type(None)
    ]
    if float in kinds and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    right = type(value) in kinds
    _demand(right, f"{where} must be of type {kinds[0].__name__}, got {value!r}.")
    return value
