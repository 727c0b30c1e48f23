"""Preferences: pairs of texts, the better one of which a network learns to find likelier than its reference does."""

import dataclasses
import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from infodis import rng
from infodis.errors import InputError
from infodis.gradients import log_likelihood
from infodis.item import Item
from infodis.models import checkpoint
from infodis.models.adapters.radd_sedd import recognises
from infodis.models.checkpoint import read_config
from infodis.models.files import locate
from infodis.models.loading import load_with
from infodis.models.model import Model
from infodis.models.nets.network import Network
from infodis.models.options import ModelOptions
from infodis.models.text_files import opened_text
from infodis.plan import MaskPlan, draw_plan
from infodis.result import standard_error
from infodis.train.config import Config
from infodis.train.objectives import LossReport, dpo_loss
from infodis.train.records import PreferenceProgress, PreferenceValidation, Progress
from infodis.train.tasks import Measures, TrainingTask, device_of

Pair = tuple[Item, Item]
"""The chosen and the rejected text."""

VALIDATION = -1
"""The step that names the masks of validation; training has none of this number."""


class Preferences(TrainingTask):
    """Direct preference optimisation, on masks that policy and reference share. Without dropout."""

    measures = 5

    def __init__(self, config: Config, base: Path, device: torch.device) -> None:
        self.config, optim = config, config.optim
        assert config.model.reference is not None  # `Config` has seen that they are given
        assert config.data.pairs is not None
        assert config.data.valid is not None
        self.reference = _load_reference(config, reference_place(config.model.reference, base), base, device)
        assert self.reference.directory is not None
        spec = checkpoint.read_spec(self.reference.directory)
        self.spec = dataclasses.replace(spec, tokenizer=self.reference.tokenizer, about={})
        self.pairs = read_pairs(base / config.data.pairs, self.reference)
        self.valid_pairs = _spread(read_pairs(base / config.data.valid, self.reference), config.run.valid_windows)
        tokens = sum(item.length for pair in self.pairs for item in pair) / len(self.pairs)
        self.step_tokens = tokens * optim.batch * optim.draws

    def initialise(self, network: nn.Module) -> None:
        network.load_state_dict(self.reference.network.state_dict())

    def objective(self, network: nn.Module) -> nn.Module:
        return _PreferenceLoss(network, self)

    def batch(self, step: int, number: int, *, device: torch.device) -> tuple[Any, ...]:
        """Pairs in the order of a shuffle for every epoch; masks are moved where the network is when it runs."""
        optim, seed = self.config.optim, self.config.run.seed
        first = step * optim.batch + number * optim.rows
        chosen = [self.pairs[self._place(seed, place)] for place in range(first, first + optim.rows)]
        return (self._plan(chosen, optim.draws, step),)

    def _place(self, seed: int, place: int) -> int:
        epoch, within = divmod(place, len(self.pairs))
        return _shuffled(seed, epoch, len(self.pairs))[within]

    def _plan(self, pairs: list[Pair], evaluations: int, step: int) -> MaskPlan:
        rows = [item for pair in pairs for item in pair]
        return draw_plan(self.reference, rows, evaluations=evaluations, seed=self.config.run.seed, step=step)

    def policy(self, network: nn.Module) -> Model:
        """A network in the place of the reference's."""
        loaded = dataclasses.replace(self.reference.loaded, network=cast(Network, network))
        return Model("policy", loaded, device_of(network))

    def log_p(self, model: Model, plan: MaskPlan) -> Tensor:
        """As many rows at a time as a micro-batch has texts."""
        return log_likelihood(model, plan, micro_batch=2 * self.config.optim.rows)

    def measure(self, network: nn.Module) -> tuple[float, ...]:
        plan, reference_log_p = self._validation_plan
        with torch.no_grad():
            log_p = self.log_p(self.policy(network), plan)
        _, found = dpo_loss(log_p, reference_log_p, beta=self.config.optim.beta, report=True)
        each = -F.logsigmoid(self.config.optim.beta * found.margin).double().cpu()
        error = float(standard_error(each)) if len(each) > 1 else 0.0
        return float(each.mean()), error, *_logged(found).tolist()

    @functools.cached_property
    def _validation_plan(self) -> tuple[MaskPlan, Tensor]:
        """The same masks at every validation, and what the reference says on them."""
        plan = self._plan(self.valid_pairs, self.config.run.valid_evaluations, VALIDATION)
        with torch.no_grad():
            return plan, self.log_p(self.reference, plan)

    def progress(self, means: list[float], **common: Any) -> Progress:
        nats, margin, accuracy, chosen, rejected = means
        return PreferenceProgress(
            nats=nats, margin=margin, accuracy=accuracy, chosen_log_p=chosen, rejected_log_p=rejected, **common
        )

    def validation(self, step: int, measured: tuple[float, ...], *, best: bool) -> PreferenceValidation:
        return PreferenceValidation(step, *measured, best=best)  # type: ignore[misc, arg-type]  # its numbers, in order

    def about(self) -> dict[str, Any]:
        return {"reference": self.reference.fingerprint, "beta": self.config.optim.beta}


class _PreferenceLoss(nn.Module):
    """The reference is no part of it: it has nothing to learn, and is in no checkpoint."""

    def __init__(self, network: nn.Module, task: Preferences) -> None:
        super().__init__()
        self.network, self.task, self.policy = network, task, task.policy(network)

    def forward(self, plan: MaskPlan) -> Measures:
        with torch.no_grad():
            reference_log_p = self.task.log_p(self.task.reference, plan)
        log_p = self.task.log_p(self.policy, plan)
        loss, found = dpo_loss(log_p, reference_log_p, beta=self.task.config.optim.beta, report=True)
        return torch.cat([loss.unsqueeze(0), _logged(found).to(loss)])


def _logged(found: LossReport) -> Tensor:
    """Margin, accuracy, both log p: averages."""
    means = [part.mean() for part in (found.margin, found.chosen_log_p, found.rejected_log_p)]
    return torch.stack([means[0], means[0].new_tensor(found.accuracy), *means[1:]])


@functools.lru_cache(maxsize=4)
def _shuffled(seed: int, epoch: int, count: int) -> list[int]:
    return torch.randperm(count, generator=rng.stream(seed, "pairs", epoch)).tolist()


def _spread(pairs: list[Pair], count: int) -> list[Pair]:
    """Up to so many of them, evenly spread."""
    places = torch.linspace(0, len(pairs) - 1, min(count, len(pairs)), dtype=torch.float64).long()
    return [pairs[place] for place in places.tolist()]


def reference_place(name: str, base: Path) -> str | Path:
    """A directory beside the configuration, or the name of a model."""
    return base / name if (base / name).is_dir() else name


def _load_reference(config: Config, place: str | Path, base: Path, device: torch.device) -> Model:
    """The reference: a network that can be trained here, with a tokenizer."""
    directory = locate(place)
    if not recognises(read_config(directory)):
        raise InputError(
            f"model.reference must be a RADD or SEDD network, got {directory}. Train others with infodis.draw_plan, "
            "infodis.log_likelihood and infodis.dpo_loss in a loop of yours."
        )
    tokenizer = config.data.tokenizer
    if tokenizer is not None and (base / tokenizer).is_file():
        tokenizer = str(base / tokenizer)
    model = load_with(place, ModelOptions(device=str(device), tokenizer=tokenizer))
    model.tokenizer  # noqa: B018 - a missing one is told now
    return model


def read_pairs(path: Path, model: Model) -> list[Pair]:
    """Pairs of a JSONL file, plain or gzipped: `chosen`, `rejected`, and the `prompt` that they come after, if any."""
    found = []
    for where, row in _rows(path):
        prompt, *texts = (row.get(name, "") for name in ("prompt", "chosen", "rejected"))
        if not all(isinstance(text, str) for text in (prompt, *texts)) or not all(texts):
            raise InputError(
                f"{where}: a pair must have the texts `chosen` and `rejected`, not empty, and may have a `prompt`; got "
                f"{', '.join(sorted(map(str, row))) or 'nothing'}. Leave the row out, or mend it."
            )
        try:
            chosen, rejected = (_read(model, text, prompt) for text in texts)
        except InputError as error:
            raise InputError(f"{where}: {error}") from error
        found.append((chosen, rejected))
    if not found:
        raise InputError(f"{path} must hold pairs, one JSON object a line; it holds none.")
    return found


def _read(model: Model, text: str, prompt: str) -> Item:
    item = model.read(text, prompt=prompt)
    limit = model.loaded.limit
    if limit is not None and item.length > limit:
        raise InputError(f"{model.name} takes rows of at most {limit} tokens, got {item.length}. Cut the text.")
    item.check_vocabulary(vocab_size=model.vocab_size, mask_token=model.mask_token)
    return item


def _rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    with opened_text(path) as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            where = f"{path}, line {number}"
            try:
                row = json.loads(line)
            except ValueError as error:
                raise InputError(f"{where}: a line must be a JSON object; it is not: {error}.") from error
            if not isinstance(row, dict):
                raise InputError(f"{where}: a line must be a JSON object, got {type(row).__name__}.")
            yield where, row
