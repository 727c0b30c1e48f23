"""Groups of texts, scored and compared: by the paper's estimator and by ours, and beside what needs no model."""

import dataclasses
import functools
import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor

from infodis.apps.audit.analysis import noise_share
from infodis.apps.audit.confounds import Confounds, ScoredText, check
from infodis.apps.audit.measure import AuditJob
from infodis.apps.audit.records import PRIMARY, SCORES, DetectionScore, Group, by_prompt
from infodis.apps.audit.reporting import interval_text
from infodis.apps.audit.separation import Clusters, RocCurve, Separation, roc, separate
from infodis.apps.reproduce.experiment import Bench, Verdict
from infodis.apps.reproduce.groups import Row, unit_of
from infodis.design import TimeFree
from infodis.errors import InputError
from infodis.estimate import Request
from infodis.files import atomic_text
from infodis.jobs import scores
from infodis.jobs.inputs import InputSpec, Reading
from infodis.jobs.jobs import ModelSpec
from infodis.jobs.local import InProcess
from infodis.jobs.run import Plan, run
from infodis.jobs.work import Job
from infodis.result import Interval
from infodis.rng import key

TOGETHER = 8
"""Rows of a shard: so many texts are lost, at most, when a run is killed."""

PROMPT_HELPS = next(score for score in SCORES if score.name == "prompt does not help")

RELIABLE = 0.9
"""AUROC from which on a separation is called clear, all of its interval."""

Values = Float64[Tensor, " rows"]


def the_papers(model: ModelSpec, samples: int, seed: int) -> Job:
    """Conditional nll by the time-free estimator as it is printed: independent masks, nothing subtracted."""
    return scores.Score(model, Request(TimeFree(), control=None, evaluations=samples), seed=seed, per_token=True)


def ours(model: ModelSpec, evaluations: int, seed: int) -> Job:
    """What an audit does: tiled masks, each with the prompt and without it."""
    return AuditJob(model, Request(evaluations=evaluations), Reading(), seed, None)


def measured(bench: Bench, name: str, rows: Sequence[Row], job: Job) -> Group:
    """Rows through the engine, records in the directory of the bench: killed, the same run goes on."""
    bench.directory.mkdir(parents=True, exist_ok=True)
    source = bench.directory / f"{name}.rows.jsonl"
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    bench.keep(f"{name}-settings", {**job.settings(), "texts": key(text)}, lambda: None)  # others are refused
    if not source.exists() or source.read_text(encoding="utf-8") != text:
        atomic_text(source, text)
    plan = Plan(
        out=bench.directory / f"{name}.jsonl",
        job=job,
        cut=InputSpec(str(source), TOGETHER),
        executor=InProcess(),
    )
    finished = run(plan, lambda state: bench.tell(name, state.done, state.rows))
    if finished.rejected is not None:
        reason = json.loads(finished.rejected.read_text(encoding="utf-8").splitlines()[0])["reason"]
        raise InputError(f"{name}: {finished.totals['rejected']} of {len(rows)} texts cannot be scored: {reason}")
    return Group.read(name, plan.out)


@dataclasses.dataclass(frozen=True, eq=False)
class Versus:
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
    ) -> "Versus":
        """Partners are rows that `match` finds: what they share is no difference between the groups."""
        matched = match(negative, positive)
        if matched is None:
            return Versus(negative, positive, False, None, seed)
        units = [unit_of(str(record["id"])) for record in matched[1].records]
        alone = len(set(units)) == len(units)
        return Versus(*matched, alone, None if alone else (units, units), seed)

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


def best_without_a_model(found: Confounds) -> tuple[str, Interval] | None:
    """What separates most of all that was looked at, counted from the group that has more; None if nothing does."""
    baselines = [*found.features, *([] if found.ngrams is None else [found.ngrams])]
    if not baselines:
        return None
    best = max(baselines, key=lambda one: abs(one.auroc.value - 0.5))
    area = best.auroc
    return best.score, area if area.value >= 0.5 else Interval(1 - area.value, 1 - area.high, 1 - area.low, area.level)


def looked_at(responses: Sequence[str]) -> list[ScoredText]:
    """Responses alone, each its own document."""
    return [ScoredText("", response) for response in responses]


@dataclasses.dataclass(frozen=True)
class Precision:
    """How sure estimates of some texts are."""

    evaluations: int
    """Forward rows of an estimate."""
    error: float
    """Root mean square of the standard errors, in nats per text."""
    error_of_it: float
    noise: float
    """The share of the variance of nats per token within groups that comes from the masks drawn."""

    @staticmethod
    def of(versus: Versus, evaluations: int) -> "Precision":
        groups = versus.negative, versus.positive
        squares = torch.tensor(
            [record["standard_error"] ** 2 for group in groups for record in group.records], dtype=torch.float64
        )
        error = math.sqrt(float(squares.mean()))
        spread = float(squares.std()) / math.sqrt(len(squares)) / (2 * error) if error > 0 else 0.0
        return Precision(evaluations, error, spread, noise_share(groups))

    @property
    def told(self) -> str:
        return f"{self.error:.3g} ± {self.error_of_it:.1g} nats"

    def rows_for(self, other: "Precision") -> tuple[float, float]:
        """How many rows of a text it would take to be as sure as the other is, with the standard error of that."""
        if not other.error > 0:
            return math.inf, math.nan
        rows = (self.error / other.error) ** 2 * self.evaluations
        relative = math.hypot(self.error_of_it / self.error, other.error_of_it / other.error) if self.error > 0 else 0.0
        return rows, 2 * rows * relative


def mean_difference(one: Versus, other: Versus) -> tuple[float, float]:
    """Nats per token by one estimator minus another over the same texts, with its standard error."""
    first, second = (torch.cat(versus.values()) for versus in (one, other))
    gap = first - second
    return float(gap.mean()), float(gap.std()) / math.sqrt(len(gap))


def undecided(area: Interval) -> bool:
    """Whether there are too few texts to tell chance from a reliable separation."""
    return area.low <= 0.5 and area.high >= RELIABLE


def separated(area: Interval) -> Verdict:
    """Whether scores tell groups apart: reliably, at all, or not."""
    if area.low > 0.5:
        return "holds" if area.low >= RELIABLE else "holds in part"
    return "undecided" if undecided(area) else "does not hold"


def told(area: Interval | None) -> str | None:
    """For a table."""
    return None if area is None else interval_text(area)


def plain(area: Interval | None) -> dict[str, Any] | None:
    """As JSON has it."""
    return None if area is None else dataclasses.asdict(area)
