"""Toy networks: what they are trained on, how, and how far their estimates are from what is true.

Training is plain: random weights, drawn letters, AdamW, one loss from the first step to the last. `recipes/` holds the
same settings for `infodis train`.
"""

import bisect
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float64, UInt8
from torch import Tensor

from infodis.apps.reproduce.experiment import Workspace
from infodis.estimate import Request, estimate_items
from infodis.files import atomic_file
from infodis.item import Item
from infodis.models.loading import load
from infodis.models.model import Model
from infodis.oracle import MarkovChain, Oracle
from infodis.predictor import Predictor
from infodis.result import Measured, jackknife
from infodis.rng import key, stream, uniforms
from infodis.train.config import Config, DataConfig, ModelConfig, OptimConfig, RunConfig

Numbers = Float64[Tensor, " items"]

BATCH = 8
"""Sequences that are scored at a time."""
VALID = 100_000
"""Letters that a training is validated on."""


@dataclasses.dataclass(frozen=True)
class ToyRecipe:
    """A network, its training and the size of its data."""

    model: ModelConfig
    optim: OptimConfig
    letters: int
    """That it is trained on."""
    aligned: bool = False
    """Windows are whole rows of the data, not any part of one long sequence."""
    validate_every: int = 1_000

    def config(self, seed: int, device: str) -> Config:
        """Of a run beside its data, train.npy and valid.npy."""
        data = DataConfig("train.npy", "valid.npy", "dna", aligned=self.aligned)
        steps = self.optim.steps
        every = min(steps, self.validate_every)
        run = RunConfig(
            seed, device, log_every=100, validate_every=every, valid_windows=64, checkpoint_every=min(250, every)
        )
        return Config(self.model, data, self.optim, run)

    @property
    def tokens(self) -> int:
        """That are seen in all steps, each as often as it is."""
        return self.optim.steps * self.optim.batch * self.model.length

    @property
    def about(self) -> str:
        shape, optim = self.model.shape, self.optim
        blocks = "1 block" if shape.blocks == 1 else f"{shape.blocks} blocks"
        return (
            f"RADD of {blocks} of width {shape.width}, {optim.steps:,} steps of {optim.batch} windows from random "
            f"weights with AdamW at {optim.learning_rate:g} ({optim.loss}): {self.tokens / 1e6:,.0f} M tokens"
        )


def plain(steps: int, batch: int, rate: float) -> OptimConfig:
    """Our own training of a toy: k-DCE, the rate going down to zero."""
    return OptimConfig(
        "k-dce", steps=steps, batch=batch, learning_rate=rate, warmup=min(500, max(1, steps // 5)), ema=0.998
    )


def papers(steps: int, batch: int, rate: float, *, weight_decay: float) -> OptimConfig:
    """The paper's training, with what it leaves open as the authors' public configuration has it."""
    return OptimConfig(
        "lambda-dce",
        steps=steps,
        batch=batch,
        learning_rate=rate,
        warmup=2_500,
        final_rate=1.0,
        weight_decay=weight_decay,
        beta2=0.999,
        ema=0.9999,
    )


def papers_network(length: int) -> ModelConfig:
    """Of the authors' public configuration."""
    return ModelConfig(length=length, width=256, blocks=8, heads=8, dropout=0.02)


def one_sequence(chain: MarkovChain, length: int, *, generator: torch.Generator) -> UInt8[np.ndarray, " length"]:
    """One long sequence of a chain. Letter by letter in plain numbers: tensors of one element would take minutes."""
    vocab, table = chain.vocab_size, chain.transitions.reshape(-1, chain.vocab_size).cumsum(-1).tolist()
    first, *levels = uniforms(length + 1, generator=generator).tolist()
    state = min(bisect.bisect_right(chain.start.flatten().cumsum(-1).tolist(), first), len(table) - 1)
    letters = bytearray(state // vocab**place % vocab for place in reversed(range(chain.order)))
    for level in levels[: length - chain.order]:
        letter = min(bisect.bisect_right(table[state], level), vocab - 1)
        letters.append(letter)
        state = (state * vocab + letter) % len(table)
    return np.frombuffer(bytes(letters), dtype=np.uint8)


def draw_letters(oracle: Oracle, count: int, length: int, *, generator: torch.Generator) -> UInt8[np.ndarray, " count"]:
    """One sequence of a chain, or rows of the given length end to end."""
    if isinstance(oracle, MarkovChain):
        return one_sequence(oracle, count, generator=generator)
    return oracle.sample(count // length, length=length, generator=generator).flatten().numpy().astype(np.uint8)


def trained(workspace: Workspace, name: str, oracle: Oracle, recipe: ToyRecipe) -> Model:
    """The network of a recipe, from where an earlier run left its training."""
    place = workspace.directory / name
    settings = {field.name: repr(getattr(recipe, field.name)) for field in dataclasses.fields(recipe)}
    workspace.keep(f"{name}-recipe", {**settings, "size": workspace.size}, lambda: None)  # another one is refused
    place.mkdir(parents=True, exist_ok=True)
    for part, count in (("train", recipe.letters), ("valid", min(VALID, recipe.letters))):
        _save(place / f"{part}.npy", oracle, count, recipe.model.length, stream(workspace.seed, "dna", part))
    run = workspace.trained("network", recipe.config(workspace.seed, workspace.device), base=place)
    return load(run, device=workspace.device)


def _save(path: Path, oracle: Oracle, count: int, length: int, generator: torch.Generator) -> None:
    if not path.exists():
        letters = draw_letters(oracle, count, length, generator=generator)
        with atomic_file(path) as unfinished, unfinished.open("wb") as file:
            np.save(file, letters)


def shipped_or_trained(workspace: Workspace, name: str, oracle: Oracle, recipe: ToyRecipe) -> Model:
    """The checkpoint that ships; where none ships for the data, or training is asked for, one of this run."""
    if workspace.trains:
        return trained(workspace, name, oracle, recipe)
    return load(name, device=workspace.device)


class Fit(NamedTuple):
    """Estimates beside truths."""

    true: Numbers
    found: Numbers
    errors: Numbers
    """Monte Carlo standard errors of `found`."""
    evaluations: float
    letters: int = 16
    """Of a target."""

    @property
    def distance(self) -> Numbers:
        return (self.found - self.true).abs()

    @property
    def mean(self) -> Measured:
        """Of the distances."""
        return Measured.mean(self.distance)

    @property
    def correlation(self) -> Measured:
        def of(kept: slice | Tensor) -> float:
            return float(torch.corrcoef(torch.stack([self.true[kept], self.found[kept]]))[0, 1])

        return jackknife(len(self.true), of)

    def row(self, name: str) -> tuple[str | float, ...]:
        bias = Measured.mean(self.found - self.true)
        return (
            name,
            len(self.true),
            round(self.evaluations),
            str(self.mean),
            float(self.distance.max()),
            str(bias),
            self.noise,
            str(self.correlation),
        )

    @property
    def noise(self) -> float:
        """Root mean square of the standard errors."""
        return float(self.errors.square().mean().sqrt())

    def numbers(self) -> dict[str, float]:
        return {
            "sequences": len(self.true),
            "evaluations": self.evaluations,
            "mean_absolute_error": self.mean.value,
            "standard_error": self.mean.standard_error,
            "correlation": self.correlation.value,
            "correlation_standard_error": self.correlation.standard_error,
            "monte_carlo_error": self.noise,
        }


def fit(
    workspace: Workspace, name: str, model: Predictor, oracle: Oracle, items: Sequence[Item], request: Request
) -> Fit:
    """Estimate every item, a few at a time, and look up what is true."""

    def score(start: str) -> list[tuple[float, float, int]]:
        some = items[int(start) : int(start) + BATCH]
        found = estimate_items(model, some, request, seed=workspace.seed)
        return [(one.value, one.standard_error, one.evaluations) for one in found]

    settings = {
        "items": key(*(token for item in items for token in item.tokens.tolist())),
        "request": repr(request),
        "model": model.fingerprint if isinstance(model, Model) else type(model).__name__,
    }
    starts = [str(start) for start in range(0, len(items), BATCH)]
    found = [row for rows in workspace.keep_each(name, settings, starts, score) for row in rows]
    values, errors, spent = torch.tensor(found, dtype=torch.float64).T
    true = [-oracle.log_prob(item.tokens, target=item.target.tolist(), context=item.context.tolist()) for item in items]
    letters = items[0].target.numel()
    return Fit(torch.tensor(true, dtype=torch.float64), values, errors, float(spent.mean()), letters)
