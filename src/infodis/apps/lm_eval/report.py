"""What a harness does not keep: the Monte Carlo error of every request, and what it means for the scores of a task.

A benchmark's score depends on which masks were drawn. For multiple choice let p be the probability that another run
would choose otherwise: errors of the choices taken as independent and normal, the present values as true. Whatever the
right answer is, the score of the question then has a variance of at most p (1 - p), or 1/4 where p is larger than 1/2.
The root of the sum over questions, divided by their number, bounds the Monte Carlo standard error of the accuracy.
A race that was decided is wrong with probability at most alpha: there p is alpha, for the metric it was about.
Choices of a question share their random numbers, so their differences are surer than that: the bound is on the safe
side.
"""

import dataclasses
import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from infodis.apps.lm_eval.questions import DECIDED, Answer, Document, Question
from infodis.apps.lm_eval.settings import METRICS, Settings
from infodis.errors import InputError
from infodis.files import check_own, result_text

NODES = 48
"""Of the quadrature over the error of the leader."""

Record = dict[str, Any]
Errors = dict[str, dict[str, float]]
"""Monte Carlo standard errors by task and metric."""


@dataclasses.dataclass(frozen=True)
class Doubt:
    """What one document adds to the Monte Carlo error of its task."""

    task: str
    metric: str
    variance: float
    weight: float = 1.0
    """What the sum over documents is divided by: documents, or bytes."""


def flips(scores: Sequence[float], errors: Sequence[float]) -> float:
    """The probability that the lowest of some scores is another one when normal errors are added to them.

    >>> round(flips([1.0, 1.0], [0.1, 0.1]), 6), flips([1.0, 2.0], [0.0, 0.0])
    (0.5, 0.0)
    """
    from scipy.special import ndtr  # imported here: it takes longer than the rest

    values, spread = np.array(scores), np.array(errors)
    leader = int(values.argmin())
    if math.isinf(values[leader]):
        return 0.0
    others = np.arange(len(values)) != leader
    nodes, weights = np.polynomial.hermite_e.hermegauss(NODES)
    drawn = values[leader] + spread[leader] * nodes[:, None]
    gap = values[others] - drawn
    with np.errstate(divide="ignore", invalid="ignore"):
        stays = np.where(spread[others] > 0, ndtr(gap / spread[others]), gap >= 0)
    return float(1 - (weights * stays.prod(1)).sum() / weights.sum())


def question_doubts(question: Question, answers: Sequence[Answer], settings: Settings) -> list[Doubt]:
    """Of multiple choice, for every way in which the harness compares; of a single continuation, in log perplexity."""
    task = question.asked[0].place.task
    if task is None:
        return []
    if len(answers) == 1:
        return [Doubt(task, "log_perplexity", answers[0].standard_error ** 2)]
    if not question.is_choice:
        return []
    found = []
    for metric in METRICS:
        sizes = question.sizes(metric)
        scores = [one.nll / size for one, size in zip(answers, sizes, strict=True)]
        errors = [one.standard_error / size for one, size in zip(answers, sizes, strict=True)]
        p = min(0.5, flips(scores, errors))
        if answers[0].stopped == DECIDED and metric == settings.raced:
            p = min(p, settings.alpha)
        found.append(Doubt(task, metric, p * (1 - p)))
    return found


def document_doubts(document: Document, answer: Answer) -> list[Doubt]:
    """Of a long text, in bits per byte."""
    task, bits = document.place.task, answer.standard_error / math.log(2)
    return [] if task is None else [Doubt(task, "bits_per_byte", bits**2, document.bytes)]


def monte_carlo_errors(doubts: Iterable[Doubt]) -> Errors:
    """Of the score of every task."""
    sums: dict[tuple[str, str], tuple[float, float]] = {}
    for one in doubts:
        variance, weight = sums.get((one.task, one.metric), (0.0, 0.0))
        sums[one.task, one.metric] = variance + one.variance, weight + one.weight
    found: Errors = {}
    for (task, metric), (variance, weight) in sums.items():
        found.setdefault(task, {})[metric] = math.sqrt(variance) / max(weight, 1.0)
    return found


def summary(results: dict[str, Any]) -> list[str]:
    """A line for every score that has a Monte Carlo error, from what the harness's `simple_evaluate` gives back."""
    errors: Errors = results.get("config", {}).get("monte_carlo_error") or {}
    lines = []
    for task, scores in results.get("results", {}).items():
        mine = errors.get(task, {})
        for score, value in scores.items():
            metric = score.partition(",")[0]
            if metric == "perplexity" and "log_perplexity" in mine:
                lines.append(f"{task}: {metric} {value:.4f}, of which Monte Carlo error {_share(mine)}")
            elif metric in mine:
                name, bound = ("accuracy" if metric == "acc" else metric), ("at most " if metric in METRICS else "")
                lines.append(f"{task}: {name} {value:.4f}, of which Monte Carlo error {bound}{mine[metric]:.4f}")
    return lines


def _share(errors: dict[str, float]) -> str:
    return f"{100 * math.expm1(errors['log_perplexity']):.1f} %"


class SideFile:
    """A JSON line for every request, with its error and its forward rows. Written whole after every kind of request."""

    def __init__(self, path: Path | None, about: Record) -> None:
        self.path = path
        self._about = about
        self._records: list[Record] = []
        if path is not None and path.is_dir():
            raise InputError(f"out must be a file, such as errors.jsonl; {path} is a directory.")
        if path is not None:
            check_own(path)
            path.parent.mkdir(parents=True, exist_ok=True)

    def add(self, records: Iterable[Record]) -> None:
        """With some more requests."""
        if self.path is None:
            return
        self._records += records
        lines = [json.dumps(record, ensure_ascii=False) for record in [self._about, *self._records]]
        result_text(self.path, "\n".join(lines) + "\n")
