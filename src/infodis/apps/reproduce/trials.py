"""Texts to estimate again and again, and what the spread over texts says about averages and ratios of variances."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from infodis.apps.reproduce.experiment import Bench, Verdict
from infodis.apps.reproduce.material import PIQA, TRIPLETS, Material, Rows
from infodis.errors import InputError
from infodis.item import Item
from infodis.models.model import Model
from infodis.models.tokenizers import ALPHABETS, Characters, text8_style
from infodis.rng import key, stream

MODEL, PAPERS_MODEL = "text8-tiny", "GSAI-ML/LLaDA-8B-Instruct"
ROOM = 32
"""Tokens of a window that are left to the prompt, at least."""


@dataclasses.dataclass(frozen=True)
class Question:
    """A prompt, the right way to go on, and a wrong one."""

    id: str
    prompt: str
    right: str
    wrong: str

    @property
    def both(self) -> str:
        """As the paper has it, so that a response has some structure to estimate."""
        return f"Correct: {self.right} | Incorrect: {self.wrong}"


BUILT_IN = (
    Question("tea", "Tea is made", "with hot water.", "with dry sand."),
    Question("rain", "In the rain", "she got wet.", "she got rich."),
    Question("ice", "Ice in the sun", "turns to water.", "turns to stone."),
    Question("door", "To open a door", "turn the key.", "turn the page."),
)
"""For runs without any data: a few that were written for the purpose."""


def questions(bench: Bench, data: Material[Rows]) -> list[Question]:
    """Questions with choices, each with its right choice and one of the wrong ones."""
    return list(BUILT_IN) if bench.size == "smoke" else [_question(row, bench.seed) for row in data.get(bench)]


def _question(row: dict[str, Any], seed: int) -> Question:
    choices, label = row["choices"], row["label"]
    if not all(isinstance(choice, str) for choice in choices):
        raise InputError(f"Question {row['id']}: choices must be texts.")
    if not 0 <= label < len(choices):
        raise InputError(f"Question {row['id']}: label must be the number of one of its choices, got {label!r}.")
    wrong = [choice for number, choice in enumerate(choices) if number != label]
    if not wrong:
        raise InputError(f"Question {row['id']} has no wrong choice: it needs two choices and the label of one.")
    return Question(row["id"], row["x"], choices[label], wrong[key(seed, "wrong", row["id"]) % len(wrong)])


def triplets(bench: Bench) -> tuple[str, list[Question]]:
    """Prompts with a preferred response and another one, and what they are called.

    Those of a user's file come first; a laptop's run without it takes the answers of PIQA.
    """
    if bench.size == "smoke":
        return "our own", list(BUILT_IN)
    given = bench.data if bench.data is not None and bench.data.is_file() else bench.find(TRIPLETS.file)
    if given is None and bench.size == "laptop":
        return "PIQA", questions(bench, PIQA)
    rows = TRIPLETS.get(bench) if given is None else TRIPLETS.read(given)
    name = "BeaverTails" if given is None else given.name
    return name, [Question(row["id"], row["prompt"], row["chosen"], row["rejected"]) for row in rows]


def chosen(found: Sequence[Question], fits: Callable[[Question], bool], *, count: int, seed: int) -> list[Question]:
    """The first `count` that fit, in an order of chance."""
    order = torch.randperm(len(found), generator=stream(seed, "texts")).tolist()
    kept = [question for question in (found[n] for n in order) if fits(question)][:count]
    if len(kept) < 2:
        raise InputError(f"At least 2 of {len(found)} texts must fit the model's window, {len(kept)} do.")
    return kept


def digest(texts: Iterable[Question]) -> int:
    """A number that other texts do not have."""
    return key(*(part for one in texts for part in (one.id, one.prompt, one.right, one.wrong)))


def spelled(model: Model, text: str) -> str:
    """As the model can read it: in the letters of text8, if it has no others."""
    tokenizer = model.tokenizer
    plain = isinstance(tokenizer, Characters) and tokenizer.alphabet == ALPHABETS["text8"]
    return text8_style(text) if plain else text


def read(model: Model, prompt: str, response: str, *, window: int) -> Item | None:
    """A response after as much of the end of its prompt as fits; None if that leaves the prompt less than `ROOM`.

    Nor is there one if nothing of the response can be spelled.
    """
    if not (wanted := spelled(model, response)):
        return None
    row = model.read(wanted, prompt=spelled(model, prompt) + " ")
    if len(row.target) > window - ROOM:
        return None
    cut = max(0, len(row.tokens) - window)
    before = len(model.around()[0])
    tokens = torch.cat([row.tokens[:before], row.tokens[before + cut :]])
    target = row.target - cut
    free = torch.ones(len(tokens), dtype=torch.bool)
    free[target] = False
    return Item.read(tokens, target=target, context=free)


@dataclasses.dataclass(frozen=True)
class Measured:
    """A number and its standard error."""

    value: float
    error: float

    def __str__(self) -> str:
        if not 1e-4 < self.error < math.inf:
            return f"{self.value:.3g} ± {self.error:.2g}"
        decimals = max(0, 1 - math.floor(math.log10(self.error)))  # two digits of the error
        return f"{self.value:.{decimals}f} ± {self.error:.{decimals}f}"

    @property
    def point(self) -> tuple[float, float, float]:
        """Value, and two standard errors to both sides."""
        return self.value, self.value - 2 * self.error, self.value + 2 * self.error

    def at_least(self, bound: float) -> Verdict:
        """Whether it is so large, or is not, beyond two standard errors."""
        if self.value - 2 * self.error >= bound:
            return "holds"
        return "does not hold" if self.value + 2 * self.error < bound else "undecided"


def together(verdicts: Sequence[Verdict]) -> Verdict:
    """Of several cases: what they agree on, or else that it holds in part."""
    return verdicts[0] if len(set(verdicts)) == 1 else "holds in part"


def mean_of(values: Sequence[float]) -> Measured:
    """An average over texts."""
    read = torch.tensor(list(values), dtype=torch.float64)
    return Measured(float(read.mean()), float(read.std()) / math.sqrt(len(read)) if len(read) > 1 else math.nan)


def ratio_of(above: Sequence[float], below: Sequence[float]) -> Measured:
    """An average over texts divided by another one over the same texts; the error by leaving out one text at a time."""
    top, bottom = (torch.tensor(list(values), dtype=torch.float64) for values in (above, below))
    return without_one(len(top), lambda kept: float(top[kept].sum() / bottom[kept].sum()))


def without_one(count: int, of: Callable[[slice | Tensor], float]) -> Measured:
    """Something of `count` texts, and its standard error by leaving out one at a time: `of` is told which to keep."""
    if count < 2:
        return Measured(of(slice(None)), math.nan)
    every = torch.arange(count)
    without = torch.tensor([of(every[every != one]) for one in range(count)], dtype=torch.float64)
    spread = float((without - without.mean()).square().sum()) * (count - 1) / count
    return Measured(of(slice(None)), math.sqrt(spread))


def spread_of(values: Sequence[float]) -> float:
    """The variance over repeats."""
    return float(torch.tensor(list(values), dtype=torch.float64).var())


def repeated(start: int, count: int) -> Iterator[int]:
    """Names of independent repeats in random streams."""
    return (key(start, "repeat", number) for number in range(count))
