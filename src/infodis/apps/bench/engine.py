"""The engine alone: rows scored by a network that answers at once, so that what is left is everything else."""

import dataclasses
import json
import tempfile
import time
from pathlib import Path
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from infodis.estimate import Request
from infodis.jobs.inputs import InputSpec
from infodis.jobs.run import InProcess, RunPlan, RunProgress, run
from infodis.jobs.scores import ScoreJob
from infodis.models.adapters import LoadedModel
from infodis.models.model import Model
from infodis.models.nets.network import Features, Network, Places, Tokens
from infodis.models.options import ModelOptions
from infodis.models.spec import ModelSpec
from infodis.models.tokenizers import tokenizer_named
from infodis.rng import stream

LETTERS = "abcdefghijklmnopqrstuvwxyz "


class Letters(Network):
    """Every letter is as probable as its place in the alphabet says, whatever is around it."""

    vocab_size = tokens = 27
    mask_token = 27

    def __init__(self) -> None:
        super().__init__()
        weight = torch.arange(1.0, 28.0)
        self.cost = -(weight / weight.sum()).log()

    def features(self, tokens: Tokens, *, visible: Places | None = None, at: Places | None = None) -> Features:
        return torch.zeros(int(tokens.numel() if at is None else at.sum()), 1)

    def token_nll(self, features: Features, tokens: Int[Tensor, " places"]) -> Float[Tensor, " places"]:
        return self.cost[tokens]


def instant() -> Model:
    """`Letters`, with the alphabet of text8."""
    opened = LoadedModel("instant", Letters(), tokenizer_named("text8"), length=64, limit=None)
    return Model("instant", opened, torch.device("cpu"))


@dataclasses.dataclass(frozen=True)
class InstantSpec(ModelSpec):
    """`Letters` as a model that is loaded by name."""

    name: str = "instant"
    options: ModelOptions = ModelOptions(device="cpu")
    fingerprint: ClassVar = "instant"

    def load(self) -> Model:
        return instant()

    def settings(self, name: str = "model") -> dict[str, Any]:
        return {name: self.fingerprint}


@dataclasses.dataclass(frozen=True)
class InstantScore(ScoreJob):
    """`ScoreJob` with `Letters`."""

    model: ModelSpec = InstantSpec()


@dataclasses.dataclass(frozen=True)
class EngineResult:
    """What a run took."""

    rows: int
    seconds: float
    rows_per_second: float
    early_mebibytes: float
    """Resident memory when `EARLY` rows were done."""
    mebibytes: float
    """The most after that."""


EARLY = 10_000


def engine(rows: int, *, evaluations: int = 8) -> EngineResult:
    """Score so many short rows on one core, from a JSONL file to a JSONL file."""
    torch.set_num_threads(1)
    sizes: dict[int, float] = {}

    def note_memory(progress: RunProgress) -> None:
        sizes[progress.done] = memory_mebibytes()

    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        _write(place / "rows.jsonl", rows)
        job = InstantScore(request=Request(evaluations=evaluations))
        plan = RunPlan(
            out=place / "out.jsonl",
            job=job,
            input=InputSpec(str(place / "rows.jsonl"), 4096),
            executor=InProcess(),
        )
        begin = time.perf_counter()
        run(plan, note_memory)
        seconds = time.perf_counter() - begin
    early = max(size for done, size in sizes.items() if done <= max(EARLY, min(sizes)))
    late = max(size for done, size in sizes.items())
    return EngineResult(rows, seconds, rows / seconds, early, late)


def _write(path: Path, rows: int) -> None:
    lengths = torch.randint(5, 31, (rows,), generator=stream(0, "lengths")).tolist()
    letters = torch.randint(27, (rows, 30), generator=stream(0, "letters")).tolist()
    with path.open("w") as file:
        for number, (length, row) in enumerate(zip(lengths, letters, strict=True)):
            text = "".join(LETTERS[letter] for letter in row[:length])
            file.write(json.dumps({"id": f"row-{number}", "text": text}) + "\n")
