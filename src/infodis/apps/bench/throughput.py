"""Scoring many texts with a network, beside the way people score today. Each side runs in a process of its own.

Today's way is LLaDA's script: one sequence at a time, batches of 16 copies of it, logits at all positions, 128 draws.
"""

import dataclasses
import json
import math
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from infodis.apps.bench.memory import CLEAR, forget_peak, memory_mebibytes
from infodis.apps.bench.peers import LladaSampler
from infodis.apps.bench.texts import windows
from infodis.design import numbers
from infodis.errors import InputError
from infodis.estimate import nll
from infodis.item import Item
from infodis.models.loading import load
from infodis.models.model import Model
from infodis.models.text_files import encode_file
from infodis.result import Estimate, Measured
from infodis.rng import seed_global, stream

MASK = 103
SHAPE = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024}
DRAWS, COPIES = 128, 16
ASKED = 0.5
"""Nats: the standard error of a text's nll that both sides are asked for."""


@dataclasses.dataclass(frozen=True)
class ThroughputResult:
    """What one way of scoring took."""

    way: str
    texts: int
    rows: int
    seconds: float
    rows_per_second: float
    peak_mebibytes: float
    """Beyond what the loaded model needs."""
    overhead: float | None
    """The share of time that is not spent in forward passes."""
    standard_error: float
    """Of a text's nll, in the middle."""
    seconds_to_standard_error: float
    """Per text, to a standard error of half a nat."""


def throughput(texts: int, *, model: str | None = None, source: Path | None = None) -> Iterator[ThroughputResult]:
    """Both ways, one after the other, on the same model and texts: windows of a file, or random ones under a BERT."""
    if not CLEAR.exists():
        raise InputError("This benchmark asks Linux for peaks of memory; run it there.")
    with tempfile.TemporaryDirectory() as place:
        if model is None:
            _build(Path(place))
        for way in ("today", "infodis"):
            context = multiprocessing.get_context("spawn")
            with context.Pool(1) as pool:  # a fresh process, so that its peak of memory is its own
                yield pool.apply(_measure, (way, model or place, texts, source))


def _build(directory: Path) -> None:
    try:
        import transformers
    except ImportError as error:
        raise InputError("This benchmark needs transformers: pip install 'infodis[hf]'.") from error
    transformers.utils.logging.disable_progress_bar()
    config = transformers.AutoConfig.for_model("bert", vocab_size=30522, **SHAPE)
    seed_global(0, "bert")
    transformers.AutoModelForMaskedLM.from_config(config).save_pretrained(directory)
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"mask_token_id": MASK}))


def _texts(model: Model, count: int, source: Path | None) -> list[Item]:
    """Windows of 16 + 48 tokens, spread over a file; or random ones."""
    if source is None:
        return random_texts(count)
    tokens = torch.from_numpy(encode_file(source, model.tokenizer)).long()
    return windows(tokens, count=count, context=16, target=48)


def random_texts(count: int) -> list[Item]:
    """Random tokens of a BERT, 20 to 120 of them."""
    lengths = torch.randint(20, 121, (count,), generator=stream(0, "lengths")).tolist()
    drawn = [torch.randint(1000, 30522, (n,), generator=stream(0, "text", k)) for k, n in enumerate(lengths)]
    return [Item.read(tokens) for tokens in drawn]


def _measure(way: str, name: str, count: int, source: Path | None) -> ThroughputResult:
    model = load(name)
    texts = _texts(model, count, source)
    score = _Ours(model) if way == "infodis" else _Today(model)
    model.log_conditionals(texts[0].tokens[None, :2])  # touches all weights
    before = memory_mebibytes()
    score.run(texts[:1])
    score.inside = 0.0
    forget_peak()
    begin = time.perf_counter()
    rows, errors = score.run(texts)
    seconds = time.perf_counter() - begin
    middle = statistics.median(errors)
    return ThroughputResult(
        way=way,
        texts=count,
        rows=rows,
        seconds=seconds,
        rows_per_second=rows / seconds,
        peak_mebibytes=max(0.1, memory_mebibytes("VmHWM") - before),
        overhead=1 - score.inside / seconds,
        standard_error=middle,
        seconds_to_standard_error=score.seconds_to(ASKED, texts, rows / seconds, errors),
    )


class _Ours:
    def __init__(self, model: Model) -> None:
        self.model, self.inside = model, 0.0
        right = type(model).surprisals

        def timed(rows: Any) -> Tensor:
            begin = time.perf_counter()
            found = right(model, rows)
            self.inside += time.perf_counter() - begin
            return found

        object.__setattr__(model, "surprisals", timed)

    def run(self, texts: list[Item]) -> tuple[int, list[float]]:
        found = nll(self.model, texts, evaluations=DRAWS)
        return sum(e.evaluations for e in found), [e.standard_error for e in found]

    def seconds_to(self, asked: float, texts: list[Item], speed: float, errors: list[float]) -> float:
        """By asking for it."""
        begin = time.perf_counter()
        found = nll(self.model, texts, standard_error=asked)
        assert all(isinstance(e, Estimate) and e.standard_error <= asked for e in found)
        return (time.perf_counter() - begin) / len(texts)


class _Today:
    def __init__(self, model: Model) -> None:
        self.network, self.inside = model.network.train(False), 0.0

    @torch.no_grad()
    def run(self, texts: list[Item]) -> tuple[int, list[float]]:
        sampler = LladaSampler(COPIES)
        errors = []
        for number, text in enumerate(texts):
            generators = [stream(0, "today", number, batch) for batch in range(DRAWS // COPIES)]
            length = text.target.numel()
            layout = sampler.layout(length, DRAWS)
            masked, weight = sampler.masks(*numbers(length, layout, generators))
            values = [self._batch(text, m, w) for m, w in zip(masked, weight, strict=True)]
            errors.append(Measured.mean(values).standard_error)
        return DRAWS * len(texts), errors

    def _batch(self, text: Item, masked: Tensor, weight: Tensor) -> float:
        rows = text.tokens.expand(COPIES, -1)
        hidden = torch.zeros_like(rows, dtype=torch.bool)
        hidden[:, text.target] = masked
        begin = time.perf_counter()
        logits = self.network.logits(self.network.features(torch.where(hidden, self.network.mask_token, rows)))
        cost = torch.nn.functional.cross_entropy(logits[hidden], rows[hidden], reduction="none")
        self.inside += time.perf_counter() - begin
        return float((cost * weight[masked]).sum())

    def seconds_to(self, asked: float, texts: list[Item], speed: float, errors: list[float]) -> float:
        """By the batches that their variance calls for, at least two: one has no standard error."""
        batches = [max(2, math.ceil(DRAWS / COPIES * (error / asked) ** 2)) for error in errors]
        return statistics.mean(batches) * COPIES / speed
