"""All experiments, in the order of the paper."""

from infodis.apps.reproduce.audit_llada import AuditLlada
from infodis.apps.reproduce.dna import DnaConditional, DnaOrder2, DnaUnconditional
from infodis.apps.reproduce.experiment import Experiment
from infodis.apps.reproduce.ood import OodText8
from infodis.apps.reproduce.ratio import VarianceRatio
from infodis.apps.reproduce.theory import Theory
from infodis.apps.reproduce.variance import VarianceTimeFree
from infodis.errors import InputError

EXPERIMENTS: tuple[Experiment, ...] = (
    Theory(),
    DnaUnconditional(),
    DnaConditional(),
    DnaOrder2(),
    VarianceTimeFree(),
    VarianceRatio(),
    OodText8(),
    AuditLlada(),
)
ALL = "all"


def experiments_named(name: str) -> tuple[Experiment, ...]:
    """One, or all of them."""
    found = EXPERIMENTS if name == ALL else tuple(one for one in EXPERIMENTS if one.name == name)
    if not found:
        known = ", ".join(one.name for one in EXPERIMENTS)
        raise InputError(f"There is no experiment {name!r}. It is one of {known}; or {ALL}.")
    return found
