"""Groups of texts, scored and compared: by the paper's estimator and by ours, and beside baselines without a model."""

import dataclasses
import functools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor

from infodis import figures
from infodis.apps.audit.analysis import noise_share
from infodis.apps.audit.confounds import Confounds, check
from infodis.apps.audit.measure import AuditJob
from infodis.apps.audit.records import PRIMARY, SCORES, DetectionScore, Group, by_prompt
from infodis.apps.audit.reporting import interval_text, percent
from infodis.apps.audit.separation import Clusters, RocCurve, Separation, roc, separate
from infodis.apps.reproduce.experiment import Verdict, Workspace
from infodis.apps.reproduce.prompts import Row, unit_of
from infodis.design import TimeFree
from infodis.errors import InputError
from infodis.estimate import Request
from infodis.figures import Figure
from infodis.files import atomic_text
from infodis.jobs import scores
from infodis.jobs.inputs import InputSpec, Reading
from infodis.jobs.job import Job
from infodis.jobs.run import InProcess, RunPlan, run
from infodis.models.spec import ModelSpec
from infodis.result import Interval, Measured
from infodis.rng import key

TOGETHER = 8
"""Rows of a shard: so many texts are lost, at most, when a run is killed."""

PROMPT_HELPS = next(score for score in SCORES if score.name == "prompt does not help")

RELIABLE = 0.9
"""AUROC from which on a separation is called clear, all of its interval."""

Values = Float64[Tensor, " rows"]


def paper_job(model: ModelSpec, samples: int, seed: int) -> Job:
    """Conditional nll by the time-free estimator as it is printed: independent masks, nothing subtracted."""
    return scores.ScoreJob(model, Request(TimeFree(), control=None, evaluations=samples), seed=seed, per_token=True)


def our_job(model: ModelSpec, evaluations: int, seed: int) -> Job:
    """What an audit does: tiled masks, each with the prompt and without it."""
    return AuditJob(model, Request(evaluations=evaluations), Reading(), seed, None)


def score_rows(workspace: Workspace, name: str, rows: Sequence[Row], job: Job) -> Group:
    """Run a job on rows; records are kept in the workspace, so that a killed run can be resumed."""
    workspace.directory.mkdir(parents=True, exist_ok=True)
    source = workspace.directory / f"{name}.rows.jsonl"
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    workspace.keep(f"{name}-settings", {**job.settings(), "texts": key(text)}, lambda: None)  # others are refused
    if not source.exists() or source.read_text(encoding="utf-8") != text:
        atomic_text(source, text)
    plan = RunPlan(
        out=workspace.directory / f"{name}.jsonl",
        job=job,
        input=InputSpec(str(source), TOGETHER),
        executor=InProcess(),
    )
    finished = run(plan, lambda state: workspace.progress(name, state.done, state.rows))
    if finished.rejected is not None:
        reason = json.loads(finished.rejected.read_text(encoding="utf-8").splitlines()[0])["reason"]
        raise InputError(f"{name}: {finished.totals['rejected']} of {len(rows)} texts cannot be scored: {reason}")
    return Group.read(name, plan.out)


@dataclasses.dataclass(frozen=True, eq=False)
class GroupComparison:
    """Two groups of scored texts, row beside row if they share prompts."""

    negative: Group
    positive: Group
    paired: bool
    clusters: Clusters | None
    """Where several rows were cut from one document: its name, for these rows and their partners."""
    seed: int

    @staticmethod
    def of(
        negative: Group,
        positive: Group,
        *,
        seed: int,
        match: Callable[[Group, Group], tuple[Group, Group] | None] = by_prompt,
    ) -> "GroupComparison":
        """Partners are rows that `match` finds: what they share is no difference between the groups."""
        matched = match(negative, positive)
        if matched is None:
            return GroupComparison(negative, positive, False, None, seed)
        units = [unit_of(str(record["id"])) for record in matched[1].records]
        alone = len(set(units)) == len(units)
        return GroupComparison(*matched, alone, None if alone else (units, units), seed)

    def values(self, score: DetectionScore = PRIMARY) -> tuple[Values, Values]:
        return self._of(self.negative, score), self._of(self.positive, score)

    def _of(self, group: Group, score: DetectionScore) -> Values:
        return torch.tensor([score.of(record) for record in group.records], dtype=torch.float64)

    def separation(self, score: DetectionScore = PRIMARY) -> Separation:
        """Of positives from negatives, high scores first."""
        sides = self.values(score)
        found = separate(*sides, score=score.name, paired=self.paired, clusters=self.clusters, seed=self.seed)
        if self.clusters is None:
            return found
        # labels permuted within a document take its rows for strangers to each other: its means are swapped instead
        means = [_means(values, units) for values, units in zip(sides, self.clusters, strict=True)]
        return dataclasses.replace(
            found, p_value=separate(*means, score=score.name, paired=True, seed=self.seed).p_value
        )

    @functools.cached_property
    def nll(self) -> Separation:
        """By nats per token."""
        return self.separation()

    @functools.cached_property
    def prompt(self) -> Separation:
        """By how little the prompt helps, which the paper's estimator does not look at."""
        return self.separation(PROMPT_HELPS)

    def curve(self, score: DetectionScore = PRIMARY) -> RocCurve:
        return roc(*self.values(score), paired=self.paired, clusters=self.clusters)

    @functools.cached_property
    def confounds(self) -> Confounds:
        """What tells them apart without a model. Rows of one document are never on both sides of a fold."""
        sides = [group.texts() for group in (self.negative, self.positive)]
        if self.clusters is not None:
            sides = [
                [dataclasses.replace(text, prompt=str(unit)) for text, unit in zip(texts, units, strict=True)]
                for texts, units in zip(sides, self.clusters, strict=True)
            ]
        return check(*sides, names=(self.negative.name, self.positive.name), seed=self.seed)

    @property
    def trivial(self) -> Interval | None:
        """AUROC of a classifier that counts characters; None if there are too few texts for one."""
        ngrams = self.confounds.ngrams
        return None if ngrams is None else ngrams.auroc


def _means(values: Values, units: Sequence[Any]) -> Float64[Tensor, " units"]:
    """Of the rows of every unit, in the order in which units come."""
    place = {unit: n for n, unit in enumerate(dict.fromkeys(units))}
    index = torch.tensor([place[unit] for unit in units])
    total = torch.zeros(len(place), dtype=torch.float64).index_add(0, index, values)
    return total / index.bincount()


@dataclasses.dataclass(frozen=True)
class Precision:
    """How sure estimates of some texts are."""

    evaluations: int
    """Forward passes of an estimate."""
    error: Measured
    """Root mean square of the standard errors, in nats per text."""
    noise: float
    """The share of the variance of nats per token within groups that comes from the masks drawn."""

    @staticmethod
    def of(comparison: GroupComparison, evaluations: int) -> "Precision":
        groups = comparison.negative, comparison.positive
        square = Measured.mean([record["standard_error"] ** 2 for group in groups for record in group.records])
        error = math.sqrt(square.value)
        spread = square.standard_error / (2 * error) if error > 0 else 0.0
        return Precision(evaluations, Measured(error, spread), noise_share(groups))

    def __str__(self) -> str:
        return f"{self.error.value:.3g} ± {self.error.standard_error:.1g} nats"

    @property
    def cells(self) -> tuple[float, str, str]:
        """Under `PRECISION_COLUMNS`."""
        return float(self.evaluations), str(self), percent(self.noise)

    def numbers(self) -> dict[str, float]:
        error = self.error
        return {
            "evaluations": self.evaluations,
            "error": error.value,
            "error_of_it": error.standard_error,
            "noise": self.noise,
        }

    def passes_for(self, other: "Precision") -> Measured:
        """How many forward passes of a text it would take to be as sure as the other is."""
        mine, wanted = self.error, other.error
        if not wanted.value > 0:
            return Measured(math.inf, math.nan)
        passes = (mine.value / wanted.value) ** 2 * self.evaluations
        relative = [one.standard_error / one.value for one in (mine, wanted)] if mine.value > 0 else [0.0]
        return Measured(passes, 2 * passes * math.hypot(*relative))


PRECISION_COLUMNS = ("rows a text", "standard error a text", "noise, share of variance")


@dataclasses.dataclass(frozen=True, eq=False)
class TwoEstimators:
    """The same two groups, scored by the paper's estimator and by ours."""

    paper: GroupComparison
    ours: GroupComparison
    samples: int
    """Masks of a text by the paper's estimator."""
    evaluations: int
    """Masks of a text by ours, with the prompt and again without it."""

    @functools.cached_property
    def precision(self) -> tuple[Precision, Precision]:
        return Precision.of(self.paper, self.samples), Precision.of(self.ours, self.evaluations)

    @property
    def named(self) -> dict[str, tuple[GroupComparison, Precision]]:
        """For a table."""
        names = ("time-free, as printed", "ours: tiled, with a control")
        return dict(zip(names, zip((self.paper, self.ours), self.precision, strict=True), strict=True))

    def numbers(self) -> dict[str, dict[str, float]]:
        return dict(zip(("time_free", "ours"), (one.numbers() for one in self.precision), strict=True))

    def difference(self) -> Measured:
        """Nats per token by the paper's estimator minus ours, over the same texts."""
        return Measured.mean(torch.cat(self.paper.values()) - torch.cat(self.ours.values()))


def strongest_confound(found: Confounds) -> tuple[str, Interval] | None:
    """What separates most without a model, counted from the group that has more; None if nothing does."""
    baselines = [*found.features, *([] if found.ngrams is None else [found.ngrams])]
    if not baselines:
        return None
    best = max(baselines, key=lambda one: abs(one.auroc.value - 0.5))
    area = best.auroc
    return best.score, area if area.value >= 0.5 else Interval(1 - area.value, 1 - area.high, 1 - area.low, area.level)


def undecided(area: Interval) -> bool:
    """Whether there are too few texts to tell chance from a reliable separation."""
    return area.low <= 0.5 and area.high >= RELIABLE


def separation_verdict(area: Interval) -> Verdict:
    """Whether scores tell groups apart: reliably, at all, or not."""
    if area.low > 0.5:
        return "holds" if area.low >= RELIABLE else "holds in part"
    return "undecided" if undecided(area) else "does not hold"


def auroc_text(area: Interval | None) -> str | None:
    """For a table."""
    return None if area is None else interval_text(area)


def signed_text(one: Interval) -> str:
    """A difference with its interval."""
    return f"{one.value:+.3f} [{one.low:+.3f}, {one.high:+.3f}]"


def interval_json(area: Interval | None) -> dict[str, Any] | None:
    """For `ExperimentResult.numbers`."""
    return None if area is None else dataclasses.asdict(area)


def nll_histogram(groups: Mapping[str, Group], *, name: str, title: str) -> Figure:
    """Nats per token of groups, by their names."""
    found = {label: [PRIMARY.of(record) for record in group.records] for label, group in groups.items()}
    return figures.histogram(found, axis="nats per token", name=f"histogram-{name}", title=title)


def auroc_bars(areas: Mapping[str, Interval | None], *, axis: str, name: str, caption: str = "") -> Figure:
    """The model and baselines without a model, which is labelled 'characters'."""
    known = {label: area for label, area in areas.items() if area is not None}
    return figures.bars(
        {label: (area.value, area.low, area.high) for label, area in known.items()},
        axis=axis,
        kinds={label: "trivial" if label.endswith("characters") else "model" for label in known},
        reference=0.5,
        name=name,
        title="The model and baselines without a model",
        caption=caption,
    )
