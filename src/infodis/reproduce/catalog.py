"""All experiments, in the order of the paper."""

from infodis.errors import InputError
from infodis.reproduce.audit_llada import AuditLlada
from infodis.reproduce.dna import DnaConditional, DnaUnconditional
from infodis.reproduce.experiment import Experiment
from infodis.reproduce.ood import OodText8
from infodis.reproduce.ratio import VarianceRatio
from infodis.reproduce.theory import Theory
from infodis.reproduce.variance import VarianceTimeFree

EXPERIMENTS: tuple[Experiment, ...] = (
    Theory(),
    DnaUnconditional(),
    DnaConditional(),
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
