"""What an experiment is, its result, and a workspace that keeps what was computed, so that runs can be resumed."""

import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

from infodis.apps.report.values import ReportTable
from infodis.device import resolve_device
from infodis.errors import InputError
from infodis.figures import Figure
from infodis.journal import Journal
from infodis.models.model import Model
from infodis.models.options import ModelOptions
from infodis.models.spec import ModelSpec
from infodis.result import Measured
from infodis.train.config import Config
from infodis.train.loop import train
from infodis.train.records import Progress

Size = Literal["smoke", "laptop", "full"]
SIZES: tuple[Size, ...] = ("smoke", "laptop", "full")

Verdict = Literal["holds", "holds in part", "undecided", "does not hold", "not tested here"]
"""In part: in some of the cases. Undecided: the numbers are not sure enough to say."""

Cell = TypeVar("Cell", bound=tuple)

SHARED = Path("..") / "shared" / "data"
"""Where data may lie beside a checkout."""

OUR_MODEL, LLADA = "text8-tiny", "GSAI-ML/LLaDA-8B-Instruct"
"""What texts are scored by: on a laptop, and in the paper's size."""
LLADA_WEIGHTS = 8e9


def at_least(found: Measured, bound: float) -> Verdict:
    """Whether a number is so large, or is not, beyond two standard errors."""
    if found.value - 2 * found.standard_error >= bound:
        return "holds"
    return "does not hold" if found.value + 2 * found.standard_error < bound else "undecided"


def verdict_of_all(verdicts: Sequence[Verdict]) -> Verdict:
    """Of several cases: their common verdict, or else that the claim holds in part."""
    return verdicts[0] if len(set(verdicts)) == 1 else "holds in part"


@dataclasses.dataclass(frozen=True)
class Claim:
    """Something the paper says, and what came out."""

    paper: str
    found: str
    verdict: Verdict


@dataclasses.dataclass(frozen=True)
class ExperimentResult:
    """Claims, tables, figures and numbers of an experiment."""

    about: str
    """What was run, in one or two sentences."""
    claims: tuple[Claim, ...]
    why: str
    """One paragraph: where the numbers come from, and what they say of the claims."""
    tables: tuple[ReportTable, ...] = ()
    figures: tuple[Figure, ...] = ()
    numbers: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """The main ones, by name, as JSON has them."""
    minutes: float | None = None
    """That the run took; of one that was interrupted, its last part."""


def settings_table(rows: Iterable[tuple[str, object, object]]) -> ReportTable:
    """Those of the paper beside those of a run, where they differ."""
    told = tuple((name, str(paper), str(here)) for name, paper, here in rows if str(paper) != str(here))
    return ReportTable("Settings that differ from the paper's", ("setting", "the paper", "here"), told)


def name_of(model: Model | ModelSpec) -> str:
    """A model's name with its weights: shipped models are replaced by better ones under the same name."""
    return f"{model.name} (weights {model.fingerprint[:8]})"


@dataclasses.dataclass(frozen=True)
class Cost:
    """What a run takes, at most, before it is run."""

    passes: int
    """Forward passes of the model that is asked."""
    tokens: int
    """In them."""
    trained: int = 0
    """Tokens of training."""
    weights: float = 0.0
    """Of the model that is asked; 0 if it is ours and small."""

    FLOPS = 1.2e14
    """A second on a GPU of the data centre: a third of what an A100 does at most in bfloat16."""

    @property
    def gpu_hours(self) -> float:
        """Two operations a weight and token, on one GPU."""
        return 2 * self.weights * self.tokens / self.FLOPS / 3600

    def __str__(self) -> str:
        told = f"{self.passes:,} forward passes, {self.tokens / 1e6:,.1f} M tokens"
        if self.trained:
            told += f", training on {self.trained / 1e6:,.1f} M tokens"
        return f"{told}, about {self.gpu_hours:,.1f} GPU-hours" if self.weights else told


@dataclasses.dataclass(frozen=True)
class StandIn:
    """For tests of the paper's size: tiny networks, few steps, and a share of the texts; all else as in the paper."""

    texts: int
    """Of a group, at most."""
    model: str | None = None
    """In place of a model of billions of weights."""


@dataclasses.dataclass(frozen=True)
class Workspace:
    """Where an experiment runs: its directory, its size, and what it may use."""

    directory: Path
    size: Size = "laptop"
    seed: int = 0
    data: Path | None = None
    """A directory of files that cannot be shipped; or one file, where an experiment asks for one only."""
    model: str | None = None
    """Another model than the experiment's own."""
    device: str = "auto"
    authors: Path | None = None
    """A clone of the authors' repository, whose data take the place of ours."""
    train: bool = False
    """Train toy networks here, instead of scoring those that ship."""
    designs: tuple[str, ...] = ()
    """Those that are run repeatedly; all of them if none is named."""
    stand_in: StandIn | None = None
    progress: Callable[[str, int, int], None] = lambda what, done, total: None
    """Called with what is under way, how much of it is done, and of how much."""
    notice: Callable[[str], None] = lambda text: None
    """Called with what the user should know before the work begins."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "device", resolve_device(self.device))

    def pick(self, smoke: Any, laptop: Any, full: Any) -> Any:
        """The value for the size of this run."""
        return dict(zip(SIZES, (smoke, laptop, full), strict=True))[self.size]

    @property
    def exact(self) -> "Workspace":
        """Where work that asks no model is done: as small as it gets in a test of the paper's size."""
        return self if self.stand_in is None else dataclasses.replace(self, size="smoke")

    @property
    def trains(self) -> bool:
        """Whether toy networks are trained by this run: asked for, or none ships for its size and data."""
        return self.train or self.size == "full" or self.seed != 0 or self.authors is not None

    def shrunk(self, recipe: Any) -> Any:
        """A recipe with a tiny network and a few steps if this is a test of the paper's size; else as it is."""
        if self.stand_in is None:
            return recipe
        model = dataclasses.replace(recipe.model, size=None, width=16, blocks=1, heads=2)
        optim = dataclasses.replace(recipe.optim, steps=2, warmup=1)
        return dataclasses.replace(recipe, model=model, optim=optim, letters=min(recipe.letters, 64_000))

    def few(self, count: int) -> int:
        """So many texts, or fewer in a test of the paper's size."""
        return count if self.stand_in is None else min(count, self.stand_in.texts)

    def tell_missing(self, found: int, wanted: int, what: str) -> None:
        """Before the work begins: that there are fewer texts than the experiment wants."""
        if found < wanted:
            self.notice(f"{what}: {found} where {wanted} are wanted. There are no more of the right length.")

    def keep(self, name: str, settings: Mapping[str, Any], make: Callable[[], Any]) -> Any:
        """Something that JSON can hold: made now, or as an earlier run with the same settings made it."""
        return self.keep_each(name, settings, [name], lambda _: make())[0]

    def keep_each(
        self, name: str, settings: Mapping[str, Any], keys: Sequence[str], make: Callable[[str], Any]
    ) -> list[Any]:
        """The same for many values, one by one. Rerun an interrupted run to resume behind the last one.

        Values that were made under other settings are refused, not overwritten.
        """
        path = self.directory / f"{name}.jsonl"
        head = json.loads(json.dumps({**settings, "seed": self.seed}))
        journal = Journal(path, {"settings": head})
        before = journal.read_head()
        if before is not None and (not isinstance(before, dict) or "settings" not in before):
            raise InputError(f"{path} is there already, and is not ours. Move it away, or choose another --out.")
        if before not in (None, journal.head):
            _refuse(path, before["settings"], head)
        known = {entry["key"]: entry["value"] for entry in journal.entries() if entry is not None}
        self.directory.mkdir(parents=True, exist_ok=True)
        for number, key in enumerate(keys):
            if key not in known:
                self.progress(name, number, len(keys))
                known[key] = json.loads(json.dumps(make(key)))
                journal.append({"key": key, "value": known[key]})
        return [known[key] for key in keys]

    def keep_cells(
        self, name: str, settings: Mapping[str, Any], cells: Iterable[Cell], make: Callable[..., Any]
    ) -> dict[Cell, Any]:
        """A value for every cell of a table, as `keep_each` keeps them: `make` takes the coordinates of a cell."""
        keys = {"/".join(map(str, cell)): cell for cell in cells}
        made = self.keep_each(name, settings, list(keys), lambda key: make(*keys[key]))
        return dict(zip(keys.values(), made, strict=True))

    def trained(self, name: str, config: Config, base: Path | None = None) -> Path:
        """A training run in the directory, from where it is; `config` names its files relative to `base`, or to it."""
        place = base or self.directory
        out, reporter = place / name, _TrainingReporter(name, self.progress)
        train(config, out, base=place, resume=out.exists(), reporter=reporter)
        return out

    def find(self, name: str) -> Path | None:
        """A data file, if there is one of that name."""
        return next((place / name for place in self._places if (place / name).is_file()), None)

    @property
    def searched(self) -> str:
        """The directories in which files are looked for."""
        return " or ".join(str(place) for place in self._places)

    @property
    def _places(self) -> list[Path]:
        return [self.data] if self.data is not None else [Path("data"), SHARED]

    def model_spec(self, large: str = LLADA) -> ModelSpec:
        """The model that the user named, or that of the size."""
        stand_in = None if self.stand_in is None else self.stand_in.model
        name = self.model or stand_in or self.pick(OUR_MODEL, OUR_MODEL, large)
        dtype = "float32" if self.device == "cpu" else "bfloat16"
        return ModelSpec(name, ModelOptions(device=self.device, dtype=dtype))

    @property
    def weights(self) -> float:
        """Of the model that texts are scored by, as far as costs are told in advance."""
        return LLADA_WEIGHTS if self.model_spec().name == LLADA else 0.0


def _refuse(path: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    changed = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    told = "; ".join(f"{name} was {before.get(name)}, is {now.get(name)}" for name in changed)
    raise InputError(f"{path} was made under other settings ({told}). Choose another --out, or delete the file.")


@dataclasses.dataclass(frozen=True)
class _TrainingReporter:
    """The progress of a training run."""

    name: str
    tell: Callable[[str, int, int], None]

    def progress(self, report: Progress) -> None:
        self.tell(f"{self.name}: loss {report.nats / math.log(2):.4f} bits/token", report.step, report.steps)

    def validation(self, report: object) -> None: ...

    def message(self, text: str) -> None: ...


@runtime_checkable
class Experiment(Protocol):
    """One figure or table of the paper."""

    name: str
    title: str
    paper: str
    """Where in the paper it is."""
    own_model: bool
    """Whether it makes its own, and takes no other."""
    has_authors_data: bool
    """Whether the authors' repository holds data for it."""

    def check(self, workspace: Workspace) -> None:
        """Raise `InputError` if data are missing that `run` will need."""

    def cost(self, workspace: Workspace) -> Cost:
        """What `run` will take, at most."""

    def run(self, workspace: Workspace) -> ExperimentResult: ...
