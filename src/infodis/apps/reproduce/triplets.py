"""Triplets of a prompt, a right response and a wrong one: where they come from, how a model reads them, repeats."""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from infodis import figures
from infodis.apps.reproduce.data import PIQA, TRIPLETS, DataFile, Rows
from infodis.apps.reproduce.experiment import Cost, Workspace
from infodis.errors import InputError
from infodis.figures import Figure
from infodis.item import Item
from infodis.models.model import Model
from infodis.models.tokenizers import ALPHABETS, Characters, text8_style
from infodis.result import Measured
from infodis.rng import key, stream

LONGEST = 4096
"""Tokens of a window, for models that do not say how long their rows are."""
TYPICAL = 160
"""Tokens of a row of such texts, by a generous guess: for costs told in advance."""
ROOM = 32
"""Tokens of a window that are left to the prompt, at least."""


@dataclasses.dataclass(frozen=True)
class Triplet:
    """A prompt, the right way to go on, and a wrong one."""

    id: str
    prompt: str
    right: str
    wrong: str

    def __str__(self) -> str:
        return self.id

    @property
    def both(self) -> str:
        """As the paper has it, so that a response has some structure to estimate."""
        return f"Correct: {self.right} | Incorrect: {self.wrong}"


BUILT_IN = (
    Triplet("tea", "Tea is made", "with hot water.", "with dry sand."),
    Triplet("rain", "In the rain", "she got wet.", "she got rich."),
    Triplet("ice", "Ice in the sun", "turns to water.", "turns to stone."),
    Triplet("door", "To open a door", "turn the key.", "turn the page."),
)
"""For runs without any data: a few that were written for the purpose."""


def questions(workspace: Workspace, data: DataFile[Rows]) -> list[Triplet]:
    """Questions with choices, each with its right choice and one of the wrong ones."""
    return (
        list(BUILT_IN) if workspace.size == "smoke" else [question(row, workspace.seed) for row in data.get(workspace)]
    )


def question(row: dict[str, Any], seed: int) -> Triplet:
    """A row of multiple choice, with one of its wrong choices."""
    choices, label = row["choices"], row["label"]
    if not all(isinstance(choice, str) for choice in choices):
        raise InputError(f"Question {row['id']}: choices must be texts.")
    if not 0 <= label < len(choices):
        raise InputError(f"Question {row['id']}: label must be the number of one of its choices, got {label!r}.")
    wrong = [choice for number, choice in enumerate(choices) if number != label]
    if not wrong:
        raise InputError(f"Question {row['id']} has no wrong choice: it needs two choices and the label of one.")
    return Triplet(row["id"], row["x"], choices[label], wrong[key(seed, "wrong", row["id"]) % len(wrong)])


def triplets(workspace: Workspace) -> tuple[str, list[Triplet]]:
    """Prompts with a preferred response and another one, and what they are called.

    Those of a user's file come first; a laptop's run without it takes the answers of PIQA.
    """
    if workspace.size == "smoke":
        return "our own", list(BUILT_IN)
    given = workspace.data if workspace.data is not None and workspace.data.is_file() else workspace.find(TRIPLETS.file)
    if given is None and workspace.size == "laptop":
        return "PIQA", questions(workspace, PIQA)
    rows = TRIPLETS.get(workspace) if given is None else TRIPLETS.read(given)
    name = "BeaverTails" if given is None else given.name
    return name, [Triplet(row["id"], row["prompt"], row["chosen"], row["rejected"]) for row in rows]


def choose_fitting(
    found: Sequence[Triplet], fits: Callable[[Triplet], bool], *, count: int, seed: int
) -> list[Triplet]:
    """The first `count` that fit, in random order."""
    order = torch.randperm(len(found), generator=stream(seed, "texts")).tolist()
    kept = [question for question in (found[n] for n in order) if fits(question)][:count]
    if len(kept) < 2:
        raise InputError(f"At least 2 of {len(found)} texts must fit the model's window, {len(kept)} do.")
    return kept


def triplets_key(texts: Iterable[Triplet]) -> int:
    """A number that other texts do not have."""
    return key(*(part for one in texts for part in (one.id, one.prompt, one.right, one.wrong)))


@dataclasses.dataclass(frozen=True)
class ResponseReader:
    """The model of a workspace, and how it reads responses in a window of tokens."""

    workspace: Workspace
    most: int | None
    """Tokens of a window, unless the model takes fewer; None for as many as it takes."""

    @functools.cached_property
    def model(self) -> Model:
        return self.workspace.model_spec().load()

    @property
    def window(self) -> int:
        limit = self.model.length or LONGEST
        return min(self.most or limit, limit)

    def fits(self, prompt: str, response: str) -> bool:
        return read_response(self.model, prompt, response, window=self.window) is not None

    def read(self, prompt: str, response: str) -> Item:
        item = read_response(self.model, prompt, response, window=self.window)
        if item is None:
            raise InputError(f"A response must fit a window of {self.window} tokens; {response[:40]!r} does not.")
        return item


def read_response(model: Model, prompt: str, response: str, *, window: int) -> Item | None:
    """A response after as much of the end of its prompt as fits; None if that leaves the prompt less than `ROOM`.

    Nor is there one if nothing of the response can be spelled.
    """
    if not (wanted := _spelled(model, response)):
        return None
    row = model.read(wanted, prompt=_spelled(model, prompt) + " ")
    if len(row.target) > window - ROOM:
        return None
    cut = max(0, len(row.tokens) - window)
    before = len(model.around()[0])
    tokens = torch.cat([row.tokens[:before], row.tokens[before + cut :]])
    target = row.target - cut
    free = torch.ones(len(tokens), dtype=torch.bool)
    free[target] = False
    return Item.read(tokens, target=target, context=free)


def in_text8_letters(model: Model) -> bool:
    """Whether the model knows the letters of text8 and nothing else."""
    return model.tokenizer == Characters(ALPHABETS["text8"])


def _spelled(model: Model, text: str) -> str:
    return text8_style(text) if in_text8_letters(model) else text


def cost_of(workspace: Workspace, passes: int) -> Cost:
    """Of so many forward passes on such texts."""
    return Cost(passes, passes * TYPICAL, weights=workspace.weights)


def passes_of(made: Mapping[Any, Mapping[str, Any]]) -> int:
    """Forward passes of all cells of a table."""
    return sum(int(one["evaluations"]) for one in made.values())


def off_by(found: Sequence[float], printed: Sequence[float]) -> float:
    """The factor by which numbers miss others, in the root mean square of logarithms; infinite if one is not positive.

    >>> off_by([2.0, 8.0], [4.0, 4.0])
    2.0
    """
    if min(found) <= 0:
        return math.inf
    squares = [math.log(one / other) ** 2 for one, other in zip(found, printed, strict=True)]
    return math.exp(math.sqrt(math.fsum(squares) / len(squares)))


def sample_variance(values: Sequence[float]) -> float:
    """Over repeats."""
    return float(torch.tensor(list(values), dtype=torch.float64).var())


def repeat_names(start: int, count: int) -> Iterator[int]:
    """Names of independent repeats in random streams."""
    return (key(start, "repeat", number) for number in range(count))


def variance_lines(means: Mapping[str, Mapping[int, Measured]], *, over: str, title: str) -> Figure:
    """Mean variances by forward passes, a line for every name."""
    return figures.lines(
        {name: [(float(rows), *one.band) for rows, one in by_rows.items()] for name, by_rows in means.items()},
        axes=("forward passes", "variance, nats squared"),
        log=(True, True),
        points=True,
        wide=True,
        name="variance",
        title=title,
        caption=f"Averages over {over}; bands are two standard errors.",
    )
