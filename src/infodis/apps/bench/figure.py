"""Pictures of benchmark records. Needs matplotlib: pip install 'infodis[plot]'."""

from collections.abc import Sequence
from pathlib import Path

from infodis.apps.bench.experiments import BASELINE, Outcome
from infodis.plotting import load_pyplot

COLOURS = {"one plan": "#9db4c0", "none": "#5c6b73", "control": "#e07a5f"}
LABELS = {
    "one plan": "one plan, no standard error",
    "none": "replicated, no control",
    "control": "replicated, with control",
}


def draw_variance(outcomes: Sequence[Outcome], path: Path) -> None:
    """Mean squared error of every design relative to the paper's, one panel per problem, on a log scale."""
    pyplot = load_pyplot()
    problems = list(dict.fromkeys(outcome.problem for outcome in outcomes))
    figure, panels = pyplot.subplots(
        1, len(problems), figsize=(5.2 * len(problems), 6.4), sharey=True, squeeze=False, layout="constrained"
    )
    for panel, problem in zip(panels[0], problems, strict=True):
        mine = [outcome for outcome in outcomes if outcome.problem == problem]
        names = list(dict.fromkeys(outcome.design for outcome in mine))[::-1]
        reference = next(o.mean_squared_error for o in mine if o.design == BASELINE and o.control == "none")
        for outcome in mine:
            kind = outcome.control if outcome.control in COLOURS else "control"
            shift = {"one plan": 0.26, "none": 0.0, "control": -0.26}[kind]
            gain = min(reference / max(outcome.mean_squared_error, 1e-12), 1e4)
            panel.barh(names.index(outcome.design) + shift, gain, height=0.24, color=COLOURS[kind], label=LABELS[kind])
            biased = abs(outcome.bias_z) > 4
            text = "exact" if gain >= 1e4 else f"{gain:.3g}" + (" biased" if biased else "")
            panel.text(gain * 1.08, names.index(outcome.design) + shift, text, va="center", fontsize=7)
        panel.set(xscale="log", title=problem, yticks=range(len(names)), yticklabels=names)
        panel.set_xlim(right=panel.get_xlim()[1] * 4)
        panel.spines[["top", "right"]].set_visible(False)
    figure.suptitle("Mean squared error at equal rows: times below the paper's time-free estimator", fontsize=11)
    handles = {label: handle for handle, label in zip(*panels[0][0].get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)
