"""Texts to estimate again and again, and what the spread over texts says about averages and ratios of variances."""

import dataclasses
import json
import math
from collections.abc import Callable, Iterator, Sequence

import torch

from infodis.data import ALPHABETS, Characters, text8_style
from infodis.errors import InputError
from infodis.item import Item
from infodis.model import Model
from infodis.reproduce.experiment import Bench, Verdict
from infodis.rng import key, stream

MODEL = "text8-tiny"
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


def questions(bench: Bench, data: str) -> list[Question]:
    """The questions of data/NAME_300.jsonl ({id, x, choices, label}), with one of the wrong choices each."""
    if bench.size == "smoke":
        return list(BUILT_IN)
    path = bench.file(
        f"{data}_300.jsonl", where="It holds one {id, x, choices, label} a line, made from the public data set."
    )
    return [_question(json.loads(line), bench.seed) for line in path.read_text(encoding="utf-8").splitlines()]


def _question(row: dict, seed: int) -> Question:
    wrong = [choice for number, choice in enumerate(row["choices"]) if number != row["label"]]
    if not wrong:
        raise InputError(f"Question {row['id']} has no wrong choice: it needs two choices and the label of one.")
    return Question(
        row["id"], row["x"], row["choices"][row["label"]], wrong[key(seed, "wrong", row["id"]) % len(wrong)]
    )


def chosen(found: Sequence[Question], fits: Callable[[Question], bool], *, count: int, seed: int) -> list[Question]:
    """The first `count` that fit, in an order of chance."""
    order = torch.randperm(len(found), generator=stream(seed, "texts")).tolist()
    kept = [question for question in (found[n] for n in order) if fits(question)][:count]
    if len(kept) < 2:
        raise InputError(f"At least 2 of {len(found)} texts must fit the model's window, {len(kept)} do.")
    return kept


def spelled(model: Model, text: str) -> str:
    """As the model can read it: in the letters of text8, if it has no others."""
    tokenizer = model.tokenizer
    plain = isinstance(tokenizer, Characters) and tokenizer.alphabet == ALPHABETS["text8"]
    return text8_style(text) if plain else text


def read(model: Model, prompt: str, response: str, *, window: int) -> Item | None:
    """A response after as much of the end of its prompt as fits; None if that leaves the prompt less than `ROOM`."""
    row = model.read(spelled(model, response), prompt=spelled(model, prompt) + " ")
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
        """Whether it is so large, beyond two standard errors; in part, if only as it stands."""
        if self.value < bound:
            return "does not hold"
        return "holds" if self.value - 2 * self.error >= bound else "holds in part"


def mean_of(values: Sequence[float]) -> Measured:
    """An average over texts."""
    read = torch.tensor(list(values), dtype=torch.float64)
    return Measured(float(read.mean()), float(read.std()) / math.sqrt(len(read)) if len(read) > 1 else math.nan)


def ratio_of(above: Sequence[float], below: Sequence[float]) -> Measured:
    """An average over texts divided by another one over the same texts; the error by leaving out one text at a time."""
    top, bottom = (torch.tensor(list(values), dtype=torch.float64) for values in (above, below))
    value = float(top.sum() / bottom.sum())
    count = len(top)
    without = (top.sum() - top) / (bottom.sum() - bottom)
    spread = float((without - without.mean()).square().sum()) * (count - 1) / count
    return Measured(value, math.sqrt(spread) if count > 1 else math.nan)


def spread_of(values: Sequence[float]) -> float:
    """The variance over repeats."""
    return float(torch.tensor(list(values), dtype=torch.float64).var())


def repeated(start: int, count: int) -> Iterator[int]:
    """Names of independent repeats in random streams."""
    return (key(start, "repeat", number) for number in range(count))
