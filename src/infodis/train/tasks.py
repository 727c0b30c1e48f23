"""What a run trains for: its data, its loss and its validation. The loop does the rest.

A task names all of its randomness by the step and the number of the micro-batch, never by what was drawn before.
"""

import abc
import math
from pathlib import Path
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from infodis import rng
from infodis.auto import Blocks
from infodis.blocks import BlockLayout
from infodis.control import Neighbours
from infodis.design import Tiled
from infodis.estimate import Request, estimate_items
from infodis.item import Item
from infodis.models.adapters import LoadedModel
from infodis.models.checkpoint import Spec
from infodis.models.model import Model
from infodis.models.nets import initialise
from infodis.models.nets.network import Network
from infodis.models.tokenizers import tokenizer_named
from infodis.noise.schedule import SCHEDULES
from infodis.result import standard_error
from infodis.train import losses as loss
from infodis.train.config import Config
from infodis.train.records import PreferenceValidation, Progress, Validation
from infodis.train.token_files import TokenFile, open_tokens

Measures = Float[Tensor, " measures"]
"""The loss, which has gradients, and what is logged beside it."""


class TrainingTask(abc.ABC):
    """What a run trains for.

    Attributes:
        spec: the network that is trained.
        measures: how many numbers the objective gives.
        step_tokens: of a step, about: to say how fast it goes.
    """

    spec: Spec
    measures: int = 1
    step_tokens: float

    @abc.abstractmethod
    def initialise(self, network: nn.Module) -> None:
        """Give a network the weights to begin with."""

    @abc.abstractmethod
    def objective(self, network: nn.Module) -> nn.Module:
        """Network and loss as one module, so that everything happens in its forward pass (and can be wrapped)."""

    @abc.abstractmethod
    def batch(self, step: int, number: int, *, device: torch.device) -> tuple[Any, ...]:
        """What the objective takes for one micro-batch of a step."""

    @abc.abstractmethod
    def measure(self, network: nn.Module) -> tuple[float, ...]:
        """Validation: nats, their standard error, and what is logged beside them."""

    def progress(self, means: list[float], **common: Any) -> Progress:
        """A report of what the objective gave on average."""
        return Progress(nats=means[0], **common)

    @abc.abstractmethod
    def validation(self, step: int, measured: tuple[float, ...], *, best: bool) -> Validation | PreferenceValidation:
        """A report of what `measure` found."""

    def about(self) -> dict[str, Any]:
        """What a checkpoint says about how it came to be, besides what all of them say."""
        return {}

    def about_best(self, nats: float, error: float) -> dict[str, Any]:
        """What the best checkpoint says about its validation."""
        return {"validation_nats": [nats, error]}


class Pretraining(TrainingTask):
    """The likelihood of windows of text."""

    def __init__(self, config: Config, base: Path, cache: Path) -> None:
        self.config, model, data = config, config.model, config.data
        assert data.train is not None  # `Config` has seen that they are given
        assert data.valid is not None
        assert data.tokenizer is not None
        tokenizer = tokenizer_named(data.tokenizer, base=base)
        self.spec = Spec(
            model.network, tokenizer.vocab_size, model.shape, model.length, model.noise, tokenizer=tokenizer
        )
        self.step_tokens = config.optim.batch * model.length

        def opened(name: str, part: str) -> TokenFile:
            where = cache / f"{part}.tokens"
            return open_tokens(base / name, tokenizer, cache=where, length=model.length, field=data.field)

        self.train_tokens, self.valid_tokens = opened(data.train, "train"), opened(data.valid, "valid")
        self.loss = _loss_of(config)

    def initialise(self, network: nn.Module) -> None:
        initialise(network, generator=rng.stream(self.config.run.seed, "weights"))

    def objective(self, network: nn.Module) -> nn.Module:
        return _NatsPerToken(network, self.loss)

    def batch(self, step: int, number: int, *, device: torch.device) -> tuple[Any, ...]:
        seed, spec = self.config.run.seed, self.spec
        tokens = self.train_tokens.random(
            self.config.optim.rows,
            spec.length,
            aligned=self.config.data.aligned,
            generator=rng.stream(seed, "batch", step, number),
        )
        noise = self.loss.draw(tokens, vocab_size=spec.vocab_size, generator=rng.stream(seed, "noise", step, number))
        return tokens.to(device), tuple(part.to(device) for part in noise)

    def measure(self, network: nn.Module) -> tuple[float, ...]:
        """Validation `nll` of windows; a score network is validated by its loss."""
        run = self.config.run
        windows = self.valid_tokens.spread(run.valid_windows, self.spec.length)
        if self.spec.network == "sedd":
            return self._validation_loss(network, windows)
        design = Blocks() if self.spec.shape.block_size else Tiled()
        request = Request(design, Neighbours(), run.valid_evaluations, batch_size=self.config.optim.rows)
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
        device = device_of(network)
        return self.loss.value(network, tokens.to(device), tuple(part.to(device) for part in noise)).cpu()

    def _predictor(self, network: nn.Module) -> Model:
        size, length = self.spec.shape.block_size, self.spec.length
        blocks = BlockLayout(size) if size else None
        loaded = LoadedModel("radd", cast(Network, network), self.spec.tokenizer, length, limit=None, blocks=blocks)
        return Model("in training", loaded, device_of(network))

    def validation(self, step: int, measured: tuple[float, ...], *, best: bool) -> Validation:
        quantity = "nll" if self.spec.network == "radd" else self.config.optim.loss
        mean, error = (number * self._bits_per_token for number in measured)
        return Validation(step, quantity, mean, error, best)

    @property
    def _bits_per_token(self) -> float:
        """Of a nat per window."""
        return 1 / (math.log(2) * self.spec.length)

    def about_best(self, nats: float, error: float) -> dict[str, Any]:
        return {"validation_bits_per_token": [nats * self._bits_per_token, error * self._bits_per_token]}


class _NatsPerToken(nn.Module):
    def __init__(self, network: nn.Module, function: loss.Loss) -> None:
        super().__init__()
        self.network, self.function = network, function

    def forward(self, tokens: Tensor, noise: tuple[Tensor, ...]) -> Measures:
        return (self.function.value(self.network, tokens, noise).mean() / tokens.shape[1]).unsqueeze(0)


def device_of(network: nn.Module) -> torch.device:
    """Where its weights are."""
    return next(network.parameters()).device


def _loss_of(config: Config) -> loss.Loss:
    optim = config.optim
    schedule = SCHEDULES[optim.schedule or "log-linear"]
    found = loss.loss_named(optim.loss, schedule=schedule, noise=config.model.noise, top=optim.top_level)
    if config.model.block_size and isinstance(found, loss.CrossEntropy):
        return loss.BlockDCE(found, config.model.block_size)
    return found
