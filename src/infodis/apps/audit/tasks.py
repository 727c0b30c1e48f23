"""What an audit is about: which group is to be found, in which direction, and in which words."""

import dataclasses

from infodis.errors import InputError


@dataclasses.dataclass(frozen=True)
class Task:
    """A question about two groups. A row is flagged when its score, times `sign`, is high."""

    name: str
    title: str
    groups: tuple[str, str]
    """What A and B are called unless names are given."""
    found: int
    """Which of them (0 or 1) is to be found: its rows are the positives."""
    sign: int
    """1 if these should be stranger to the model than the others, -1 if they should be less strange."""
    question: str

    def orient(self, score: float) -> float:
        """High for rows of the group that is to be found."""
        return self.sign * score


TASKS = {
    "ood": Task(
        "ood",
        "Out of distribution?",
        ("in", "out"),
        found=1,
        sign=1,
        question="Does the model find the rows of {1} stranger than those of {0}?",
    ),
    "shift": Task(
        "shift",
        "Has the distribution shifted?",
        ("before", "after"),
        found=1,
        sign=1,
        question="Do {0} and {1} look alike to the model?",
    ),
    "membership": Task(
        "membership",
        "Was it in the training data?",
        ("members", "nonmembers"),
        found=0,
        sign=-1,
        question="Does the model find the rows of {0} more familiar than those of {1}?",
    ),
}


def task_named(name: str) -> Task:
    """The task that a word on the command line stands for."""
    if name not in TASKS:
        raise InputError(f"--task is one of {', '.join(TASKS)}; got {name!r}.")
    return TASKS[name]
