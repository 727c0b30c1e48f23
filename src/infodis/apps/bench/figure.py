"""Pictures of benchmark records."""

from collections.abc import Sequence

from infodis.apps.bench.experiments import BASELINE, DesignResult
from infodis.figures import Figure, beside, grouped_bars

KINDS = {
    "one plan": "one plan, no standard error",
    "none": "replicated, no control",
    "control": "replicated, with control",
}
LARGEST, BIASED = 1e4, 4
"""Gains beyond the first are called exact; biases beyond so many standard errors are named."""


def variance_figure(results: Sequence[DesignResult]) -> Figure:
    """Mean squared error of every design relative to the paper's, one panel per problem, on a log scale."""
    problems = dict.fromkeys(result.problem for result in results)
    panels = [_panel(problem, [one for one in results if one.problem == problem]) for problem in problems]
    title = "Mean squared error at equal rows: times below the paper's time-free estimator"
    return beside(panels, name="variance", title=title)


def _panel(problem: str, results: Sequence[DesignResult]) -> Figure:
    reference = next(o.mean_squared_error for o in results if o.design == BASELINE and o.control == "none")
    bars = []
    for result in results:
        gain = min(reference / max(result.mean_squared_error, 1e-12), LARGEST)
        biased = " biased" if abs(result.bias_z) > BIASED else ""
        label = "exact" if gain >= LARGEST else f"{gain:.3g}{biased}"
        bars.append((result.design, KINDS.get(result.control, KINDS["control"]), gain, label))
    return grouped_bars(bars, axis="times below", kinds=list(KINDS.values()), title=problem)
