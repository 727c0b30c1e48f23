"""From groups of records to numbers: separations by every score, confounds, p-values of single rows."""

import dataclasses
import importlib.util
import math
from collections.abc import Sequence

import torch
from jaxtyping import Float64
from torch import Tensor

from infodis.apps.audit import confounds
from infodis.apps.audit.confounds import Confounds
from infodis.apps.audit.records import PRIMARY, DetectionScore, Group, available, by_id, by_prompt, clusters
from infodis.apps.audit.separation import RocCurve, Separation, conformal_p, holm, roc, separate
from infodis.errors import InputError

LEVEL = 0.05
"""Below this a p-value, or a share of false discoveries, is called clear."""

Values = Float64[Tensor, " rows"]


@dataclasses.dataclass(frozen=True)
class Task:
    """A question about two groups. A row is flagged when its score, times `sign`, is high."""

    name: str
    title: str
    groups: tuple[str, str]
    """What A and B are called unless names are given."""
    positive: int
    """Which of them (0 or 1) is to be found: its rows are the positives."""
    question: str

    @property
    def sign(self) -> int:
        """1 if the positives should be stranger to the model than the others, -1 if they should be more familiar."""
        return 1 if self.positive == 1 else -1


_TASKS = (
    Task(
        "ood",
        "Out of distribution?",
        ("in", "out"),
        1,
        "Does the model find the rows of {1} stranger than those of {0}?",
    ),
    Task("shift", "Has the distribution shifted?", ("before", "after"), 1, "Do {0} and {1} look alike to the model?"),
    Task(
        *("membership", "Was it in the training data?", ("members", "nonmembers"), 0),
        "Does the model find the rows of {0} more familiar than those of {1}?",
    ),
)
TASKS = {task.name: task for task in _TASKS}


def task_named(name: str) -> Task:
    """The task that a word on the command line stands for."""
    if name not in TASKS:
        raise InputError(f"--task is one of {', '.join(TASKS)}; got {name!r}.")
    return TASKS[name]


@dataclasses.dataclass(frozen=True, eq=False)
class QuestionedRows:
    """Rows whose membership is asked about, against known non-members."""

    group: Group
    score: DetectionScore
    p_values: Values
    """Of single rows: the chance that a non-member looks as familiar."""
    q_values: Values
    """The same, as shares of false discoveries (Benjamini and Hochberg)."""
    separation: Separation
    """Of all of them together from the non-members."""

    @property
    def rows(self) -> list[tuple[int | str, float, float]]:
        """Id, p-value and q-value of every row."""
        ids = [record["id"] for record in self.group.records]
        return list(zip(ids, self.p_values.tolist(), self.q_values.tolist(), strict=True))

    @property
    def called(self) -> int:
        """Rows that are called members with at most a share of `LEVEL` false discoveries."""
        return int((self.q_values <= LEVEL).sum())


@dataclasses.dataclass(frozen=True, eq=False)
class Audit:
    """What two groups of rows look like to a model."""

    task: Task
    groups: tuple[Group, Group]
    paired: bool
    scores: tuple[DetectionScore, ...]
    separations: tuple[Separation, ...]
    """One for each score, the primary one first."""
    adjusted: tuple[float, ...]
    """p-values of the separations, adjusted for their number (Holm)."""
    curve: RocCurve
    """Of the primary score."""
    confounds: Confounds
    noise: float
    """The share of the spread of the primary score within groups that comes from the masks drawn."""
    questioned: QuestionedRows | None = None
    seed: int = 0

    @property
    def main(self) -> Separation:
        return self.separations[0]

    @property
    def reversed(self) -> bool:
        """Whether the difference goes the other way than the task asks: AUROC below 0.5."""
        return self.main.auroc.value < 0.5

    @property
    def high_is_positive(self) -> bool:
        """Whether rows of a high score are flagged by the rule that does better than chance."""
        return (self.task.sign == 1) != self.reversed

    @property
    def positive(self) -> Group:
        """The group that is to be found."""
        return self.groups[self.task.positive]

    @property
    def negative(self) -> Group:
        return self.groups[1 - self.task.positive]


def analyse(task: Task, groups: Sequence[Group], *, same_rows: bool = False, seed: int = 0) -> Audit:
    """Compare two groups; a third one is of rows in question, whose membership is asked about.

    `same_rows` says that the groups are two fields of one file: then rows of one id are partners. Otherwise rows that
    share a prompt are, if most rows have such a partner.
    """
    a, b, *more = groups
    matched = by_id(a, b) if same_rows else by_prompt(a, b)
    a, b = matched or (a, b)
    scores = tuple(available([group.records for group in (a, b, *more)]))
    if PRIMARY not in scores:
        raise InputError("Some rows have no nll per token: this is not what an audit writes.")
    negative, positive = (a, b) if task.positive == 1 else (b, a)
    paired = matched is not None
    units = None if paired else clusters(negative, positive)
    sides = {score.name: [_values(task, score, group) for group in (negative, positive)] for score in scores}
    found = tuple(
        separate(*values, score=name, paired=paired, clusters=units, seed=seed) for name, values in sides.items()
    )
    curve = roc(*sides[PRIMARY.name], paired=paired, clusters=units)
    names = negative.name, positive.name
    checks = confounds.check(negative.texts(), positive.texts(), names=names, seed=seed)
    questioned = _questioned(task, scores, more[0], b, seed=seed) if more else None
    adjusted = tuple(holm([one.p_value for one in found]))
    return Audit(task, (a, b), paired, scores, found, adjusted, curve, checks, noise_share((a, b)), questioned, seed)


def _values(task: Task, score: DetectionScore, group: Group) -> Values:
    """High for what is to be found."""
    found = [score.of(record) for record in group.records]
    return torch.tensor([task.sign * one for one in found if one is not None], dtype=torch.float64)


def _questioned(
    task: Task, scores: Sequence[DetectionScore], rows: Group, nonmembers: Group, *, seed: int
) -> QuestionedRows:
    """By the score beyond the reference if there is one: what is rare is then not taken for what is unknown."""
    score = next((one for one in scores if one.name == "beyond the reference"), PRIMARY)
    from scipy.stats import false_discovery_control

    known, asked = _values(task, score, nonmembers), _values(task, score, rows)
    p_values = conformal_p(known, asked)
    q_values = torch.from_numpy(false_discovery_control(p_values.numpy()))  # valid for conformal p-values too
    return QuestionedRows(rows, score, p_values, q_values, separate(known, asked, score=score.name, seed=seed))


def noise_share(groups: Sequence[Group]) -> float:
    """Mean variance of the masks over the mean variance within groups, of nats per token."""
    spread = noise = 0.0
    for group in groups:
        values = torch.tensor([record["value"] / record["tokens"] for record in group.records], dtype=torch.float64)
        errors = [(record["standard_error"] / record["tokens"]) ** 2 for record in group.records]
        spread += float(values.var()) * (len(values) - 1)
        noise += math.fsum(errors) / len(errors) * (len(values) - 1)
    return min(1.0, noise / spread) if spread else 0.0


def check_extra() -> None:
    """Raise an error before the work, not after it, if a library is missing."""
    if any(importlib.util.find_spec(name) is None for name in ("sklearn", "vl_convert", "jinja2")):
        raise InputError("An audit needs scikit-learn, jinja2 and vl-convert-python: pip install 'infodis[audit]'.")
