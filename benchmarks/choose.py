"""Multiple choice as a race: what it costs, and how often it is wrong.

    OMP_NUM_THREADS=1 python benchmarks/choose.py                                  # races with known answers
    OMP_NUM_THREADS=1 python benchmarks/choose.py --data DIR --reference FILE      # HellaSwag, ARC and PIQA

The first races sequences of a Markov chain, most of them near ties, and counts how often the wrong one is decided on;
and the same with naive stopping.

The second runs text8-tiny on files `hellaswag_300.jsonl`, `arc_challenge_300.jsonl` and `piqa_300.jsonl` in DIR, whose
lines hold a prompt `x` and `choices`; text is brought to a-z and space with digits spelled out. It prints the forward
passes per choice, the share of decided questions, and how many of those decisions agree with `nll` at up to 2,048 rows
per choice: blocks of 64 rows, fewer than 32 of them where the best is 6 standard errors ahead (`--clear inf` for all).
FILE keeps them, so that an interrupted run can be resumed.
"""

import argparse
import contextlib
import dataclasses
import functools
import hashlib
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import torch
from torch import Tensor

import infodis
from infodis.estimate import Request, estimate_items
from infodis.evaluate import Batching, run_batched
from infodis.item import Item
from infodis.models.model import Model
from infodis.models.tokenizers import text8_style
from infodis.oracle import MarkovChain
from infodis.predictor import Predictor, RowPredictor, Rows
from infodis.quantities import choose as racing
from infodis.quantities.choose import Race, Verdict, race_coroutine
from infodis.result import Measured, standard_error
from infodis.rng import stream


@dataclasses.dataclass(frozen=True, eq=False)
class Question:
    """Some choices, what their `nll`s are divided by, and their true scores where these are known."""

    items: list[Item]
    sizes: list[float]
    truth: list[float] = dataclasses.field(default_factory=list)

    def wrong(self, verdict: Verdict) -> bool:
        """Whether another choice than the best was decided on; equal ones are equally good."""
        return verdict.decided and self.truth[verdict.leader] > min(self.truth) + 1e-9


CHAIN = MarkovChain.random(order=1, vocab_size=4, temperature=0.2, seed=3)
LENGTHS = (3, 8, 12, 16, 24)


@functools.cache
def pool(count: int = 600, prompt: int = 2) -> list[tuple[float, float, Item]]:
    """Sequences of the chain, some so short that they are exact: score, size and item, the likeliest first."""
    found = []
    for number in range(count):
        generator = stream(0, "pool", number)
        length = prompt + LENGTHS[number % len(LENGTHS)]
        tokens = CHAIN.sample(1, length=length, generator=generator)[0]
        size = float(length - prompt) if number // len(LENGTHS) % 2 else 1.0
        nats = -CHAIN.log_prob(tokens, context=range(prompt))
        found.append((nats / size, size, Item.read(tokens, context=range(prompt))))
    return sorted(found, key=lambda one: one[0])


def questions(count: int, *, most: int = 4) -> Iterator[Question]:
    """Two or more choices each. In three of four questions they are neighbours in the list of scores: near ties."""
    for number in range(count):
        generator = stream(1, "questions", number)
        choices = 2 + number % (most - 1)
        first = int(torch.randint(len(pool()) - choices, (1,), generator=generator))
        chosen = list(range(first, first + choices)) if number % 4 else range(len(pool()))
        order = torch.randperm(len(chosen), generator=generator)[:choices].tolist()
        scores, sizes, items = zip(*(pool()[chosen[n]] for n in order), strict=True)
        yield Question(list(items), list(sizes), list(scores))


def races(predictor: Predictor, asked: list[Question], race: Race, *, seed: int = 0) -> list[Verdict]:
    """All of them side by side."""
    going = (
        race_coroutine(predictor, one.items, one.sizes, race, seed=seed, name=number)
        for number, one in enumerate(asked)
    )
    return list(run_batched(going, Batching(together=1024)))


def naive(scores: Tensor, exact: Tensor) -> Tensor:
    """Stop at the first t beyond 2.576, as if it were the only look."""
    excess = scores.unsqueeze(1) - scores.unsqueeze(0)
    error = standard_error(excess, dim=-1)
    return torch.where(excess.mean(-1) > 2.576 * error, math.inf, -math.inf).double()


def synthetic(count: int) -> None:
    asked = list(questions(count))
    for name, race in (("race", Race()), ("race, all of the budget", Race(chance=0)), ("naive stopping", None)):
        begin = time.perf_counter()
        with contextlib.ExitStack() as patches:
            if race is None:
                patches.enter_context(mock.patch.object(racing, "_evidence", naive))
                patches.enter_context(mock.patch.object(racing, "FEWEST", 3))
            found = races(CHAIN, asked, race or Race(chance=0))
        wrong = sum(one.wrong(verdict) for one, verdict in zip(asked, found, strict=True))
        rows = sum(verdict.evaluations for verdict in found) / sum(len(one.items) for one in asked)
        decided = sum(verdict.decided for verdict in found)
        print(
            f"{name}: {wrong} wrong of {count:,} races ({wrong / count:.2%}), {decided / count:.0%} decided, "
            f"{rows:.1f} forward passes per choice, {time.perf_counter() - begin:.0f} s",
            flush=True,
        )


FILES = ("hellaswag_300", "arc_challenge_300", "piqa_300")
BLOCK = 64
"""Rows of the reference at a time."""


class Remembering(RowPredictor):
    """A model that is asked about every row once, however often it is raced."""

    def __init__(self, model: Model, file: Path | None) -> None:
        self.model, self.file = model, file
        self.vocab_size, self.mask_token, self.pads = model.vocab_size, model.mask_token, model.pads
        self.tokens_at_once = model.tokens_at_once
        self.known: dict[bytes, Tensor] = {}
        if file is not None and file.exists():
            self.known = torch.load(file, weights_only=True)

    def log_conditionals(self, tokens: Tensor) -> Tensor:
        return self.model.log_conditionals(tokens)

    def surprisals(self, rows: Rows) -> Tensor:
        names = [
            hashlib.blake2b(torch.stack([part[:length] for part in parts]).numpy().tobytes(), digest_size=16).digest()
            for *parts, length in zip(rows.tokens, rows.hidden.long(), rows.wanted.long(), rows.lengths, strict=True)
        ]
        new = torch.tensor([n for n, name in enumerate(names) if name not in self.known], dtype=torch.int64)
        if len(new):
            fresh = Rows(rows.tokens[new], rows.hidden[new], rows.wanted[new], rows.lengths[new])
            found = self.model.surprisals(fresh).split(fresh.wanted.sum(1).tolist())
            self.known |= {names[n]: part.clone() for n, part in zip(new.tolist(), found, strict=True)}
        return torch.cat([self.known[name] for name in names])

    def save(self) -> None:
        if self.file is not None:
            torch.save(self.known, self.file)


def read(file: Path, model: Model, limit: int) -> dict[str, list[Question]]:
    """The questions of a file, by what scores are divided by. Prompts lose their beginning if they are too long."""
    assert model.length is not None
    asked: dict[str, list[Question]] = {"nothing": [], "tokens": [], "bytes": []}
    for line in file.read_text(encoding="utf-8").splitlines()[:limit]:
        record = json.loads(line)
        items = []
        for choice in record["choices"]:
            text = f" {text8_style(choice)}"[: model.length]
            room = model.length - len(text)
            prompt = text8_style(record["x"])[-room:] if room else ""
            items.append(Item.read(model.encode(prompt + text), context=range(len(prompt))))
        tokens = [float(item.target.numel()) for item in items]
        lengths = [float(max(1, len(choice.encode()))) for choice in record["choices"]]
        for name, sizes in (("nothing", [1.0] * len(items)), ("tokens", tokens), ("bytes", lengths)):
            asked[name].append(Question(items, sizes))
    return asked


class Reference:
    """`nll` of single choices in blocks of rows, each with a seed of its own; kept in a file."""

    def __init__(self, predictor: Predictor, file: Path) -> None:
        self.predictor, self.file = predictor, file
        self.known: dict[tuple[int, int], list[float]] = {}
        if file.exists():
            for line in file.read_text().splitlines():
                key, seed, replicates = json.loads(line)
                self.known[key, seed] = replicates

    def add(self, items: list[Item], *, seed: int) -> None:
        """Another block for every item."""
        lacking = [item for item in {item.key: item for item in items}.values() if (item.key, seed) not in self.known]
        for start in range(0, len(lacking), 64):
            some = lacking[start : start + 64]
            found = estimate_items(self.predictor, some, Request(evaluations=BLOCK), seed=seed)
            with self.file.open("a") as file:
                for item, estimate in zip(some, found, strict=True):
                    self.known[item.key, seed] = estimate.replicates.tolist()
                    print(json.dumps([item.key, seed, self.known[item.key, seed]]), file=file)

    def score(self, item: Item, size: float, blocks: int) -> tuple[float, float]:
        """Mean and standard error."""
        parts = [self.known[item.key, seed] for seed in range(1, blocks + 1) if (item.key, seed) in self.known]
        values = torch.tensor([value for part in parts for value in part], dtype=torch.float64) / size
        found = Measured.mean(values)
        return found.value, found.standard_error

    def lead(self, question: Question, blocks: int) -> tuple[int, list[float]]:
        """The best choice, and how many standard errors each of the others is behind it."""
        scores = [self.score(item, size, blocks) for item, size in zip(question.items, question.sizes, strict=True)]
        best = min(range(len(scores)), key=lambda n: scores[n][0])
        behind = [
            0.0 if n == best else (mean - scores[best][0]) / max(1e-9, math.hypot(error, scores[best][1]))
            for n, (mean, error) in enumerate(scores)
        ]
        return best, behind

    def settle(self, asked: list[Question], rows: int, clear: float) -> None:
        """Blocks for all choices, until the best of a question is `clear` standard errors ahead or rows are spent."""
        self.add([item for question in asked for item in question.items], seed=1)
        for blocks in range(1, rows // BLOCK):
            close = []
            for question in asked:
                _, behind = self.lead(question, blocks)
                rivals = [item for item, errors in zip(question.items, behind, strict=True) if errors < clear]
                close += rivals if len(rivals) > 1 else []
            if close:
                print(f"  reference: {len(close)} choices are close after {blocks * BLOCK} rows", flush=True)
                self.add(close, seed=blocks + 1)


def real(given: argparse.Namespace) -> None:
    model = Remembering(infodis.load("text8-tiny"), given.memory)
    for name in FILES:
        begin = time.perf_counter()
        asked = read(given.data / f"{name}.jsonl", model.model, given.limit)
        found = {size: races(model, some, Race(chance=given.chance)) for size, some in asked.items()}
        model.save()
        for size, verdicts in found.items():
            rows = [choice.evaluations for verdict in verdicts for choice in verdict.choices]
            decided = sum(verdict.decided for verdict in verdicts)
            print(
                f"{name}, nll per {size}: {sum(rows) / len(rows):.1f} forward passes per choice, {decided} of "
                f"{len(verdicts)} decided, {time.perf_counter() - begin:.0f} s",
                flush=True,
            )
        if given.reference is not None:
            compare(name, asked, found, given)


def compare(
    name: str, asked: dict[str, list[Question]], found: dict[str, list[Verdict]], given: argparse.Namespace
) -> None:
    """Decisions with those of the reference."""
    begin = time.perf_counter()
    reference = Reference(infodis.load("text8-tiny"), given.reference)
    sure = {
        size: [pair for pair in list(zip(asked[size], verdicts, strict=True))[: given.compare] if pair[1].decided]
        for size, verdicts in found.items()
    }
    reference.settle([one for pairs in sure.values() for one, _ in pairs], given.rows, given.clear)
    for size, pairs in sure.items():
        leads = [(reference.lead(one, given.rows), verdict) for one, verdict in pairs]
        other = [behind[verdict.leader] for (best, behind), verdict in leads if best != verdict.leader]
        print(
            f"{name}, nll per {size}: {len(pairs) - len(other)} of {len(pairs)} decisions agree with the reference "
            f"({1 - len(other) / max(1, len(pairs)):.1%}); of the others {sum(errors < 2 for errors in other)} are "
            f"within two standard errors of a tie there; {time.perf_counter() - begin:.0f} s",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--races", type=int, default=10_000, help="races with known answers")
    parser.add_argument("--data", type=Path, help="directory of the files")
    parser.add_argument("--reference", type=Path, help="compare with a reference, and keep it in this file")
    parser.add_argument("--memory", type=Path, help="file that keeps what the model said while racing")
    parser.add_argument("--limit", type=int, default=300, help="questions of each file")
    parser.add_argument("--compare", type=int, help="questions of each file to compare with the reference; default all")
    parser.add_argument("--rows", type=int, default=2048, help="of the reference, at most")
    parser.add_argument("--clear", type=float, default=6.0, help="standard errors at which the reference stops earlier")
    parser.add_argument("--chance", type=float, default=Race().chance)
    given = parser.parse_args()
    if given.data is None:
        synthetic(given.races)
    else:
        real(given)


if __name__ == "__main__":
    main()
