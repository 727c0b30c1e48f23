"""Figure 2 of the paper: networks trained on toy DNA, whose estimated likelihoods are compared with the true ones."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float64, Int
from torch import Tensor

from infodis import figures
from infodis.apps.report.values import ReportTable
from infodis.apps.reproduce.experiment import Claim, ExperimentResult, Verdict, Workspace, at_least
from infodis.apps.reproduce.start import Memories, NeighbourUnits, begin
from infodis.design import Enumerate, TimeFree
from infodis.estimate import Request, estimate_items
from infodis.figures import Figure
from infodis.files import atomic_file
from infodis.item import Item
from infodis.models.checkpoint import Spec
from infodis.models.loading import load
from infodis.models.model import Model
from infodis.models.tokenizers import tokenizer_named
from infodis.oracle import MarkovChain, Oracle
from infodis.oracle import Table as Listed
from infodis.predictor import Predictor
from infodis.result import Measured, jackknife
from infodis.rng import stream
from infodis.train.config import Config, DataConfig, ModelConfig, OptimConfig, RunConfig

Rows = Int[Tensor, "rows length"]
Numbers = Float64[Tensor, " items"]

PAPER_DRAWS = 2**15
OURS = Request()
START = "start"
TRUE, UNTRAINED = "true conditionals instead of the network's, ours, 128 rows", "before training"
TEACHER = "the chain that was counted, and taught the network, ours, 128 rows"
REMEMBERED = 20_000
"""Sequences of the training data that a start may look at."""
BATCH = 8
"""Sequences that are scored, and remembered, at a time."""


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A network, and the stages of its training; each begins with the weights of the one before."""

    model: ModelConfig
    stages: tuple[OptimConfig, ...]
    sequences: int
    """That it is trained on."""
    start: NeighbourUnits | Memories | None = None
    """Where heads look, and what units answer to, at the beginning; nothing in particular if None."""
    taught: int | None = None
    """Learn what the Markov chain of this order, counted in the same sequences, says about masked letters; if None, the
    letters themselves."""


class Fit(NamedTuple):
    """Estimates beside truths."""

    true: Numbers
    found: Numbers
    errors: Numbers
    """Monte Carlo standard errors of `found`."""
    evaluations: float

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


COLUMNS = (
    "estimator",
    "sequences",
    "forward passes each",
    "mean |error|, nats",
    "largest",
    "mean error",
    "Monte Carlo error",
    "correlation",
)
CAPTION = (
    "Errors are against the distribution that made the data, so that they hold what the network has not learned; ± is "
    "the standard error over sequences. The Monte Carlo error is the root mean square of the standard errors that "
    "the estimates report: what is left to the choice of masks."
)


def trained(workspace: Workspace, oracle: Oracle, recipe: Recipe) -> Model:
    """The network of a recipe, from where an earlier run left its training."""
    fields = {field.name: repr(getattr(recipe, field.name)) for field in dataclasses.fields(recipe)}
    workspace.keep("recipe", {**fields, "size": workspace.size}, lambda: None)  # another one is refused
    for part, count in (("train", recipe.sequences), ("valid", 256)):
        _drawn(
            workspace.directory / f"{part}.npy", oracle, count, recipe.model.length, stream(workspace.seed, "dna", part)
        )
    start = None if recipe.start is None else START
    if recipe.start is not None and not (workspace.directory / START).exists():
        tokenizer = tokenizer_named("dna", base=workspace.directory)
        spec = Spec("radd", tokenizer.vocab_size, recipe.model.shape, recipe.model.length, tokenizer=tokenizer)
        begin(
            spec, workspace.directory / START, recipe.start, _seen(workspace, recipe)[:REMEMBERED], seed=workspace.seed
        )
    teacher = _teacher(workspace, recipe, oracle)
    data = DataConfig("train.npy", "valid.npy", "dna", aligned=True)
    for number, optim in enumerate(recipe.stages, 1):
        name = f"stage-{number}"  # validated at its end only: a chance best of before would be taken for it
        run = RunConfig(workspace.seed, workspace.device, validate_every=optim.steps, checkpoint_every=250)
        workspace.trained(name, Config(dataclasses.replace(recipe.model, start=start), data, optim, run), teacher)
        start = name
    return load(workspace.directory / name, device=workspace.device)


def _seen(workspace: Workspace, recipe: Recipe) -> Rows:
    """The sequences that are trained on."""
    return torch.from_numpy(np.load(workspace.directory / "train.npy").astype(np.int64)).view(-1, recipe.model.length)


def _teacher(workspace: Workspace, recipe: Recipe, oracle: Oracle) -> MarkovChain | None:
    if recipe.taught is None:
        return None
    return MarkovChain.counted(_seen(workspace, recipe), order=recipe.taught, vocab_size=oracle.vocab_size)


def _drawn(path: Path, oracle: Oracle, count: int, length: int, generator: torch.Generator) -> None:
    if not path.exists():
        tokens = oracle.sample(count, length=length, generator=generator).flatten().numpy().astype(np.uint8)
        with atomic_file(path) as place, place.open("wb") as file:
            np.save(file, tokens)


def fit(
    workspace: Workspace, name: str, model: Predictor, oracle: Oracle, items: Sequence[Item], request: Request
) -> Fit:
    """Estimate every item, a few at a time, and look up what is true."""

    def score(key: str) -> list[tuple[float, float, int]]:
        some = items[int(key) : int(key) + BATCH]
        found = estimate_items(model, some, request, seed=workspace.seed)
        return [(one.value, one.standard_error, one.evaluations) for one in found]

    settings = {"items": len(items), "request": repr(request), "size": workspace.size}
    keys = [str(start) for start in range(0, len(items), BATCH)]
    found = [row for rows in workspace.keep_each(name, settings, keys, score) for row in rows]
    values, errors, spent = torch.tensor(found, dtype=torch.float64).T
    true = [-oracle.log_prob(item.tokens, target=item.target.tolist(), context=item.context.tolist()) for item in items]
    return Fit(torch.tensor(true, dtype=torch.float64), values, errors, float(spent.mean()))


def beside(
    workspace: Workspace, recipe: Recipe, oracle: Oracle, items: Sequence[Item], request: Request
) -> dict[str, Fit]:
    """What to hold the network against, by our default: the true conditionals, which leave the estimator's error alone.

    Also those of its teacher, if it had one: how near could it come? And, by `request`, the weights that a training
    began with if they were no usual ones: what did it have to learn?
    """
    found = {TRUE: fit(workspace, "true", oracle, oracle, items, OURS)}
    if (teacher := _teacher(workspace, recipe, oracle)) is not None:
        found[TEACHER] = fit(workspace, "teacher", teacher, oracle, items, OURS)
    if recipe.start is not None:
        found[UNTRAINED] = fit(workspace, "before", load(workspace.directory / START), oracle, items, request)
    return found


def _errors(fits: dict[str, Fit]) -> ReportTable:
    return ReportTable("Errors", COLUMNS, tuple(one.row(name) for name, one in fits.items()), CAPTION)


def _calibration(fits: dict[str, Fit], title: str, caption: str) -> Figure:
    points = {
        name: list(zip(one.true.tolist(), one.found.tolist(), one.errors.tolist(), strict=True))
        for name, one in fits.items()
    }
    return figures.calibration(points, axes=("true nll, nats", "estimate, nats"), title=title, caption=caption)


def _ranked(one: Fit, what: str) -> Figure:
    """The figures of the appendix: every sequence, the likeliest first."""
    order = one.true.argsort().tolist()
    series = {
        "true": [(float(place), float(one.true[number])) for place, number in enumerate(order, 1)],
        "estimate": [(float(place), float(one.found[number])) for place, number in enumerate(order, 1)],
    }
    return figures.lines(
        series,
        axes=(what, "nll, nats"),
        wide=True,
        name="ranked",
        title=f"Every {what.split(',')[0]}",
        caption="The truth, and our estimate of what the network makes of it.",
    )


@dataclasses.dataclass(frozen=True)
class Match:
    """When estimates are said to match the truth: their mean distance, and the correlation."""

    close: float
    alike: float

    def verdict(self, one: Fit) -> Verdict:
        near, together = one.mean.value < self.close, one.correlation.value > self.alike
        if near and together:
            return "holds"
        return "holds in part" if near or together else "does not hold"

    def claim(self, says: str, one: Fit, over: str) -> Claim:
        return Claim(
            says,
            f"Mean |error| {one.mean} nats over {over}; correlation {one.correlation}. (Taken to hold if the first is "
            f"below {self.close:g} and the second above {self.alike:g}.)",
            self.verdict(one),
        )


class DnaUnconditional:
    """All 128 sequences of the paper's list."""

    name = "dna-unconditional"
    title = "True and estimated likelihood: 128 DNA sequences"
    paper = "Figure 2(a) and its appendix"
    own_model = True

    def recipe(self, workspace: Workspace) -> Recipe:
        small = ModelConfig(length=8, width=64, blocks=2, heads=8, positions=True, feed=16)
        full = ModelConfig(length=8, size="tiny", positions=True)
        return workspace.pick(
            Recipe(small, (_steps(40, 64, 3e-3),), 2_000, Memories()),
            Recipe(small, (_steps(6_000, 256, 3e-3),), 1_000_000, Memories()),
            Recipe(full, (_steps(70_000, 512, 3e-4),), 1_000_000),
        )

    def run(self, workspace: Workspace) -> ExperimentResult:
        oracle = Listed.dna(workspace.seed)
        recipe = self.recipe(workspace)
        model = trained(workspace, oracle, recipe)
        items = [Item.read(row) for row in oracle.sequences]
        draws = workspace.pick(256, PAPER_DRAWS, PAPER_DRAWS)
        fits = {
            "all 255 masks": fit(workspace, "all", model, oracle, items, Request(Enumerate(), evaluations=255)),
            f"the paper's, {draws:,} draws": fit(workspace, "paper", model, oracle, items, _paper(draws)),
            "ours, 128 rows": fit(workspace, "ours", model, oracle, items, OURS),
        }
        exact, paper, ours = fits.values()
        others = beside(workspace, recipe, oracle, items, Request(Enumerate(), evaluations=255))
        return ExperimentResult(
            _about(recipe, "drawn from a list of 128 sequences of 8 letters, softmax of uniform scores at 0.5"),
            (
                Match(close=0.05, alike=0.95).claim(
                    "Estimated likelihoods of a trained network closely match the true ones.",
                    exact,
                    f"all {len(items)}, by all masks",
                ),
                _draws_claim(draws, paper, exact),
            ),
            (_errors({**fits, **others}),),
            (
                _calibration(fits, "All 128 sequences", "On the diagonal the network, and the estimator, are right."),
                _ranked(ours, "sequence, likeliest first"),
            ),
            {name: one.numbers() for name, one in {**fits, **others}.items()},
        )


class DnaConditional:
    """Responses of 16 letters given prompts of 16."""

    name = "dna-conditional"
    title = "True and estimated conditional likelihood: a Markov chain of DNA"
    paper = "Figure 2(b) and its appendix"
    own_model = True
    PROMPT, LENGTH = 16, 32

    def recipe(self, workspace: Workspace) -> Recipe:
        small = ModelConfig(length=self.LENGTH, width=120, blocks=2, heads=12, feed=16)
        full = ModelConfig(length=self.LENGTH, size="tiny")
        rows = 5_000_000 // self.LENGTH
        return workspace.pick(
            Recipe(small, (_steps(20, 16, 3e-3, flat=0.5),), 1_000, NeighbourUnits(4), taught=4),
            Recipe(small, (_steps(5_000, 64, 3e-3, flat=0.5),), rows, NeighbourUnits(4), taught=4),
            Recipe(full, (_steps(80_000, 1_024, 6e-4),), rows),
        )

    def run(self, workspace: Workspace) -> ExperimentResult:
        oracle = MarkovChain.random(order=4, vocab_size=4, temperature=0.5, seed=workspace.seed)
        recipe = self.recipe(workspace)
        model = trained(workspace, oracle, recipe)
        count = workspace.pick(4, 256, 256)
        fresh = oracle.sample(count, length=self.LENGTH, generator=stream(workspace.seed, "dna", "test"))
        items = [Item.read(row, context=range(self.PROMPT)) for row in fresh]
        few = items[: workspace.pick(3, 16, 64)]
        draws = workspace.pick(64, PAPER_DRAWS, PAPER_DRAWS)
        rows = workspace.pick(64, 1_024, 1_024)
        fits = {
            f"ours, {rows:,} rows": fit(workspace, "sharp", model, oracle, items, Request(evaluations=rows)),
            "ours, 128 rows": fit(workspace, "ours", model, oracle, items, OURS),
            f"the paper's, {draws:,} draws": fit(workspace, "paper", model, oracle, few, _paper(draws)),
            "the paper's, 100 draws": fit(workspace, "hundred", model, oracle, items, _paper(100)),
        }
        sharp, _, _, hundred = fits.values()
        others = beside(workspace, recipe, oracle, items, OURS)
        return ExperimentResult(
            _about(recipe, "of 32 letters, 5 M together, of a Markov chain of order 4; scored as 16 given 16"),
            (
                Match(close=0.15, alike=0.99).claim(
                    "Estimated conditional likelihoods closely match the true ones.",
                    sharp,
                    f"{count} fresh windows, by {round(sharp.evaluations):,} rows each",
                ),
                _order_claim(hundred, sharp),
            ),
            (_errors({**fits, **others}),),
            (
                _calibration(
                    {name: fits[name] for name in (next(iter(fits)), list(fits)[2])},
                    "Held-out windows",
                    "Responses of 16 letters given 16. On the diagonal the network, and the estimator, are right.",
                ),
                _ranked(sharp, "window, likeliest first"),
            ),
            {name: one.numbers() for name, one in {**fits, **others}.items()},
        )


def _steps(steps: int, batch: int, rate: float, *, flat: float | None = None, left: float = 0.0) -> OptimConfig:
    """A stage of training, at whose end a share of the learning rate is `left`.

    `flat` masks at most that share of a window, and every masked token counts the same: less noise than an estimate of
    the likelihood has, with the same optimum where those masks are all that is asked.
    """
    given: dict[str, Any] = {"loss": "k-dce"} if flat is None else {"loss": "flat-dce", "top_level": flat}
    warmup = min(200, steps // 5)
    return OptimConfig(steps=steps, batch=batch, learning_rate=rate, warmup=warmup, final_rate=left, ema=0.995, **given)


def _loss(optim: OptimConfig) -> str:
    return optim.loss if optim.top_level == 1 else f"{optim.loss}, up to {optim.top_level:g} of a window masked"


def _about(recipe: Recipe, data: str) -> str:
    shape, first, steps = recipe.model.shape, recipe.stages[0], sum(stage.steps for stage in recipe.stages)
    begun = ""
    if recipe.start is not None:
        begun = (
            f" To be done on two cores its feed-forward layers are {shape.feed} times as wide as the network, and it "
            f"begins with {recipe.start.about};{_taught(recipe)} the paper's own training is that of --full."
        )
    blocks = "1 block" if shape.blocks == 1 else f"{shape.blocks} blocks"
    return (
        f"RADD of {blocks} of width {shape.width}, trained for {steps:,} steps of {first.batch} with "
        f"AdamW at {first.learning_rate:g} ({_loss(first)}) on {recipe.sequences:,} sequences {data}.{begun}"
    )


def _taught(recipe: Recipe) -> str:
    if recipe.taught is None:
        return ""
    return (
        f" it learns what a Markov chain of order {recipe.taught}, counted in the same sequences, says about masked "
        "letters, not the letters themselves, so that it need not average over their noise;"
    )


def _paper(draws: int) -> Request:
    """The paper's time-free estimator: every row by itself, nothing subtracted."""
    return Request(TimeFree(), None, draws)


def _draws_claim(draws: int, paper: Fit, exact: Fit) -> Claim:
    """Whether so many draws are as good as all masks: what is left to chance against how sequences differ."""
    noise, spread = float((paper.found - exact.found).square().mean().sqrt()), float(exact.true.std())
    return Claim(
        "2^15 draws of masks estimate the likelihood accurately.",
        f"{draws:,} draws are off by {noise:.4f} nats (root mean square) from all {exact.evaluations:.0f} masks, which "
        f"leave nothing to chance; sequences differ by {spread:.2f} (standard deviation). (Taken to hold up to a tenth "
        "of that, in part up to a half.)",
        "holds" if noise < spread / 10 else "holds in part" if noise < spread / 2 else "does not hold",
    )


def _order_claim(hundred: Fit, ours: Fit) -> Claim:
    """How often differences of two windows have the right sign: ours stands for what the network says."""

    def ordered(kept: slice | Tensor) -> float:
        one, other = hundred.found[kept], ours.found[kept]
        same = (one.unsqueeze(0) > one.unsqueeze(1)) == (other.unsqueeze(0) > other.unsqueeze(1))
        return (float(same.sum()) - len(one)) / (len(one) * (len(one) - 1))  # nothing is before itself

    right, spread = jackknife(len(ours.found), ordered), float(ours.found.std())
    percent = Measured(100 * right.value, 100 * right.standard_error)
    return Claim(
        "100 draws are typically sufficient to evaluate relative differences.",
        f"They order {percent} % of pairs of windows as our estimates do: standard error {hundred.noise:.2f} nats "
        f"where windows differ by {spread:.2f} (standard deviation); ours has {ours.noise:.3f}. (Taken to hold from "
        "95 % on, and not below, beyond two standard errors.)",
        at_least(percent, 95),
    )
