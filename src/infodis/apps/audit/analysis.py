"""From groups of records to numbers: separations by every score, confounds, p-values of single rows."""

import dataclasses
import math
from collections.abc import Sequence

import torch
from jaxtyping import Float64
from torch import Tensor

from infodis.apps.audit import confounds as trivial
from infodis.apps.audit.confounds import Confounds
from infodis.apps.audit.groups import Group, by_id, by_prompt, clusters
from infodis.apps.audit.scores import PRIMARY, Score, available
from infodis.apps.audit.separation import RocCurve, Separation, conformal_p, holm, roc, separate
from infodis.apps.audit.tasks import Task
from infodis.errors import InputError

LEVEL = 0.05
"""Below this a p-value, or a share of false discoveries, is called clear."""

Values = Float64[Tensor, " rows"]


@dataclasses.dataclass(frozen=True, eq=False)
class Suspects:
    """Rows in question against known non-members."""

    group: Group
    score: Score
    p_values: Values
    """Of single rows: the chance that a non-member looks as familiar."""
    q_values: Values
    """The same, as shares of false discoveries (Benjamini and Hochberg)."""
    separation: Separation
    """Of all of them together from the non-members."""

    @property
    def clear(self) -> int:
        """Rows that are called members with at most a share of `LEVEL` false discoveries."""
        return int((self.q_values <= LEVEL).sum())


@dataclasses.dataclass(frozen=True, eq=False)
class Audit:
    """What two groups of rows look like to a model."""

    task: Task
    groups: tuple[Group, Group]
    paired: bool
    scores: tuple[Score, ...]
    separations: tuple[Separation, ...]
    """One for each score, the primary one first."""
    adjusted: tuple[float, ...]
    """p-values of the separations, adjusted for their number (Holm)."""
    curve: RocCurve
    """Of the primary score."""
    confounds: Confounds
    noise: float
    """The share of the spread of the primary score within groups that comes from the masks drawn."""
    suspects: Suspects | None = None
    seed: int = 0

    @property
    def main(self) -> Separation:
        return self.separations[0]

    @property
    def positive(self) -> Group:
        """The group that is to be found."""
        return self.groups[self.task.found]

    @property
    def negative(self) -> Group:
        return self.groups[1 - self.task.found]


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
    negative, positive = (a, b) if task.found == 1 else (b, a)
    paired = matched is not None
    units = None if paired else clusters(negative, positive)
    sides = {score.name: [_values(task, score, group) for group in (negative, positive)] for score in scores}
    found = tuple(
        separate(*values, score=name, paired=paired, clusters=units, seed=seed) for name, values in sides.items()
    )
    curve = roc(*sides[PRIMARY.name], paired=paired, clusters=units)
    names = negative.name, positive.name
    checks = trivial.check(negative.texts(), positive.texts(), names=names, seed=seed)
    suspects = _suspects(task, scores, more[0], b, seed=seed) if more else None
    adjusted = tuple(holm([one.p_value for one in found]))
    return Audit(task, (a, b), paired, scores, found, adjusted, curve, checks, noise_share((a, b)), suspects, seed)


def _values(task: Task, score: Score, group: Group) -> Values:
    """High for what is to be found."""
    found = [score.of(record) for record in group.records]
    return torch.tensor([task.orient(one) for one in found if one is not None], dtype=torch.float64)


def _suspects(task: Task, scores: Sequence[Score], questioned: Group, fresh: Group, *, seed: int) -> Suspects:
    """By the score beyond the reference if there is one: what is rare is then not taken for what is unknown."""
    score = next((one for one in scores if one.name == "beyond the reference"), PRIMARY)
    from scipy.stats import false_discovery_control

    known, asked = _values(task, score, fresh), _values(task, score, questioned)
    p_values = conformal_p(known, asked)
    q_values = torch.from_numpy(false_discovery_control(p_values.numpy()))  # valid for conformal p-values too
    return Suspects(questioned, score, p_values, q_values, separate(known, asked, score=score.name, seed=seed))


def noise_share(groups: Sequence[Group]) -> float:
    """Mean variance of the masks over the mean variance within groups, of nats per token."""
    spread = noise = 0.0
    for group in groups:
        values = torch.tensor([record["value"] / record["tokens"] for record in group.records], dtype=torch.float64)
        errors = [(record["standard_error"] / record["tokens"]) ** 2 for record in group.records]
        spread += float(values.var()) * (len(values) - 1)
        noise += math.fsum(errors) / len(errors) * (len(values) - 1)
    return min(1.0, noise / spread) if spread else 0.0
