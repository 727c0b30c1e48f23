"""How toy networks are reported: errors, figures, claims, and settings beside the paper's."""

import dataclasses
import math
from collections.abc import Mapping, Sequence

from torch import Tensor

from infodis import figures
from infodis.apps.report.values import ReportTable
from infodis.apps.reproduce.experiment import Claim, Verdict, Workspace, at_least
from infodis.apps.reproduce.toys import Fit, ToyRecipe
from infodis.figures import Figure
from infodis.result import Measured, jackknife

DRAWN = 64
"""Sequences in a figure, as in the paper's."""

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


def errors_table(fits: Mapping[str, Fit], title: str = "Errors") -> ReportTable:
    """A row for each estimator."""
    return ReportTable(title, COLUMNS, tuple(one.row(name) for name, one in fits.items()), CAPTION)


def calibration(fits: Mapping[str, Fit], title: str, caption: str, name: str = "calibration") -> Figure:
    """Estimates against truths."""
    points = {
        label: list(zip(one.true.tolist(), one.found.tolist(), one.errors.tolist(), strict=True))
        for label, one in fits.items()
    }
    return figures.calibration(
        points, axes=("true nll, nats", "estimate, nats"), title=title, caption=caption, name=name
    )


def side_by_side(one: Fit, labels: Sequence[str], title: str, name: str = "sequences") -> Figure:
    """The paper's figure: true and estimated nll of every sequence, side by side."""
    return figures.columns(
        {"true": one.true.tolist()[:DRAWN], "estimate": one.found.tolist()[:DRAWN]},
        labels=labels[:DRAWN],
        axis="nll, nats",
        name=name,
        title=title,
        caption=f"{min(DRAWN, len(labels))} sequences, as in the paper's figure.",
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

    def claim(self, says: str, one: Fit, over: str, share: float) -> Claim:
        """By a network that saw a share of the paper's tokens: with less, one that has not learned says nothing."""
        verdict = self.verdict(one)
        if share < 1 and verdict == "does not hold":
            verdict = "undecided"
        return Claim(
            says,
            f"Mean |error| {one.mean} nats over {over}; correlation {one.correlation}. (Taken to hold if the first is "
            f"below {self.close:g} and the second above {self.alike:g}.) Trained on {100 * share:.2g} % of the paper's "
            f"tokens, {learned(one)}.",
            verdict,
        )


def training_tokens(workspace: Workspace, recipe: ToyRecipe) -> int:
    """That a run trains on: none if it scores what ships."""
    return recipe.tokens if workspace.trains else 0


def training_settings(recipe: ToyRecipe, papers: ToyRecipe) -> list[tuple[str, str, str]]:
    """Those of the paper and of its authors' public configuration beside ours."""
    ours, theirs = _training(recipe), _training(papers)
    return [(name, theirs[name], ours[name]) for name in theirs]


def _training(recipe: ToyRecipe) -> dict[str, str]:
    optim, shape = recipe.optim, recipe.model.shape
    return {
        "network": f"{shape.blocks} blocks of {shape.width}, {shape.heads} heads",
        "loss": optim.loss,
        "steps x windows": f"{optim.steps:,} x {optim.batch:,}",
        "learning rate": f"{optim.learning_rate:g}, {'constant' if optim.final_rate == 1 else 'to 0'}",
        "warm-up, averaging": f"{optim.warmup:,}, {optim.ema:g}",
        "dropout, weight decay": f"{shape.dropout:g}, {optim.weight_decay:g}",
    }


def origin(workspace: Workspace, *names: str) -> str:
    """Where networks come from."""
    if workspace.trains:
        return "Trained by this run."
    return (
        f"Scored: {' and '.join(names)}, which ship{'s' if len(names) == 1 else ''} with infodis; --train repeats the "
        "training."
    )


def learned(one: Fit) -> str:
    """The share of what can be known about the letters, beyond that there are four, that the estimates show."""
    nothing = one.letters * math.log(4)
    share = Measured.ratio((nothing - one.found).tolist(), (nothing - one.true).tolist())
    percent = Measured(100 * share.value, 100 * share.standard_error)
    return f"the network has learned {percent} % of what there is to know beyond four letters"


def why_errors(network: Fit, exact: Fit, whose: str = "the true conditionals") -> str:
    """What errors are made of: what a network has not learned, what is left to chance, and what the estimator adds."""
    return (
        f"An error has three parts. The choice of masks: {network.noise:.2g} nats (root mean square of the standard "
        f"errors) of {network.mean}. The estimator: with {whose} in the network's place, the same estimator is off by "
        f"{float(exact.distance.mean()):.1g} nats. The network: the rest. {learned(network).capitalize()}, and what it "
        "has not learned stays whatever the estimator."
    )


def draws_claim(draws: int, paper: Fit, exact: Fit) -> Claim:
    """Whether so many draws are as good as all masks: what is left to chance against how sequences differ."""
    noise, spread = float((paper.found - exact.found).square().mean().sqrt()), float(exact.true.std())
    return Claim(
        "2^15 draws of masks estimate the likelihood accurately.",
        f"{draws:,} draws are off by {noise:.4f} nats (root mean square) from all {exact.evaluations:.0f} masks, which "
        f"leave nothing to chance; sequences differ by {spread:.2f} (standard deviation). (Taken to hold up to a tenth "
        "of that, in part up to a half.)",
        "holds" if noise < spread / 10 else "holds in part" if noise < spread / 2 else "does not hold",
    )


def order_claim(hundred: Fit, ours: Fit) -> Claim:
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
