"""What the harness does not keep: the Monte Carlo error of every request, and what it means for the scores of a task.

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

from infodis.apps.lm_eval.arguments import METRICS, ModelArgs
from infodis.apps.lm_eval.requests import DECIDED, RequestGroup, Response, RollingRequest
from infodis.errors import InputError
from infodis.files import check_own, result_text
from infodis.result import RateSum

NODES = 48
"""Of the quadrature over the error of the leader."""

Record = dict[str, Any]
Errors = dict[str, dict[str, float]]
"""Monte Carlo standard errors by task and metric."""


@dataclasses.dataclass(frozen=True)
class MonteCarloError:
    """What one document adds to the Monte Carlo error of a task's metric."""

    task: str
    metric: str
    variance: float
    weight: float = 1.0
    """What the sum over documents is divided by: documents, or bytes."""


def flip_probability(scores: Sequence[float], errors: Sequence[float]) -> float:
    """The probability that the lowest of some scores is another one when normal errors are added to them.

    >>> round(flip_probability([1.0, 1.0], [0.1, 0.1]), 6), flip_probability([1.0, 2.0], [0.0, 0.0])
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


def group_errors(group: RequestGroup, responses: Sequence[Response], args: ModelArgs) -> list[MonteCarloError]:
    """Of multiple choice, for every metric of the harness; of a single continuation, in log perplexity."""
    task = group.requests[0].id.task
    if task is None:
        return []
    if len(responses) == 1:
        return [MonteCarloError(task, "log_perplexity", responses[0].nll.standard_error ** 2)]
    if not group.is_choice:
        return []
    found = []
    for metric in METRICS:
        sizes = group.sizes(metric)
        scores = [one.nll.value / size for one, size in zip(responses, sizes, strict=True)]
        errors = [one.nll.standard_error / size for one, size in zip(responses, sizes, strict=True)]
        p = min(0.5, flip_probability(scores, errors))
        if responses[0].stopped == DECIDED and metric == args.raced:
            p = min(p, args.alpha)
        found.append(MonteCarloError(task, metric, p * (1 - p)))
    return found


def rolling_errors(request: RollingRequest, response: Response) -> list[MonteCarloError]:
    """Of a long text, in bits per byte."""
    task, bits = request.id.task, response.nll.standard_error / math.log(2)
    return [] if task is None else [MonteCarloError(task, "bits_per_byte", bits**2, request.bytes)]


def monte_carlo_errors(errors: Iterable[MonteCarloError]) -> Errors:
    """Of the score of every task."""
    sums: dict[tuple[str, str], RateSum] = {}
    for one in errors:
        sums.setdefault((one.task, one.metric), RateSum()).add(0.0, one.weight, one.variance)
    found: Errors = {}
    for (task, metric), total in sums.items():
        found.setdefault(task, {})[metric] = math.sqrt(total.variance) / max(total.below, 1.0)
    return found


def summary(results: dict[str, Any]) -> list[str]:
    """A line for every score that has a Monte Carlo error, from what the harness's `simple_evaluate` returns."""
    errors: Errors = results.get("config", {}).get("monte_carlo_error") or {}
    lines = []
    for task, scores in results.get("results", {}).items():
        mine = errors.get(task, {})
        for score, value in scores.items():
            metric = score.partition(",")[0]
            if metric == "perplexity" and "log_perplexity" in mine:
                share = f"{100 * math.expm1(mine['log_perplexity']):.1f} %"
                lines.append(f"{task}: {metric} {value:.4f}, of which Monte Carlo error {share}")
            elif metric in mine:
                name, bound = ("accuracy" if metric == "acc" else metric), ("at most " if metric in METRICS else "")
                lines.append(f"{task}: {name} {value:.4f}, of which Monte Carlo error {bound}{mine[metric]:.4f}")
    return lines


class RequestLog:
    """A JSON line for every request, with its error and its forward passes. Written again after every call."""

    def __init__(self, path: Path | None, settings: Record) -> None:
        self.path = path
        self._records: list[Record] = [{"about": settings}]
        if path is not None and path.is_dir():
            raise InputError(f"out must be a file, such as errors.jsonl; {path} is a directory.")
        if path is not None:
            check_own(path)
            path.parent.mkdir(parents=True, exist_ok=True)

    def add(self, records: Iterable[Record]) -> None:
        """Write the file again, with some more requests."""
        if self.path is not None:
            self._records += records
            result_text(self.path, "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in self._records))
