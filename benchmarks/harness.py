"""Requests per second in lm-evaluation-harness: ours, and a class that scores one request at a time.

    python benchmarks/harness.py --data hellaswag_300.jsonl --items 300

Both are model classes of the harness around the same network, and are handed the same requests: every choice of a
multiple choice question after its context, rows {"x", "choices", "label"} of a JSONL file, in the letters of text8. The
other class does what the harness files of diffusion models do: 128 draws a request, in batches of 16, request after
request, sizes of masks spread evenly over a batch. Ours spends fewer draws, since each tells more. Portions of the
questions alternate between the two, so that both meet the same machine; processor time is printed beside the time that
passed, since only the former is left alone by other programs.

Standard errors are those of each request: of batches of 16 for the other class, of replicates for ours. `--race` adds
our races, whose losers are known badly on purpose. `--truth` compares decisions with a long run of so many draws.
"""

import argparse
import functools
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM

import infodis
from infodis.apps.bench.peers import LladaSampler
from infodis.apps.lm_eval.harness import InfodisLM
from infodis.apps.lm_eval.requests import RequestId, RequestReader
from infodis.models.model import Model
from infodis.models.tokenizers import text8_style
from infodis.result import Measured
from infodis.rng import stream, uniforms

DRAWS, BATCH = 128, 16
PORTIONS = 15


class OneAtATime(LM):
    """A request, 128 draws in batches of 16, the next request."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model, self.reader = model, RequestReader(model)
        self.errors: list[float] = []
        self.rows = 0

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        return [(-self.nll(n, *request.args), False) for n, request in enumerate(requests)]

    def nll(self, number: int, context: str, continuation: str) -> float:
        item = self.reader.pair(RequestId(None, None, number), context, continuation).item
        assert item is not None
        tokens = item.tokens.expand(BATCH, -1)
        found = []
        for batch in range(DRAWS // BATCH):
            generator = stream(0, "one at a time", item.key, batch)
            levels = uniforms(1, BATCH, generator=generator)
            keys = uniforms(1, BATCH, len(item.target), generator=generator)
            hidden, weight = LladaSampler(BATCH).masks(levels, keys)
            masked = torch.zeros(tokens.shape, dtype=torch.bool)
            masked[:, item.target] = hidden[0]
            cost = self.model.surprisal(tokens, masked)[:, item.target]
            found.append(float((weight[0] * cost).sum()))
        self.rows += DRAWS
        nll = Measured.mean(found)
        self.errors.append(nll.standard_error)
        return nll.value

    def loglikelihood_rolling(self, requests: list[Instance]) -> list[float]:
        raise NotImplementedError

    def generate_until(self, requests: list[Instance]) -> list[str]:
        raise NotImplementedError


class Ours(InfodisLM):
    """With the errors where the benchmark finds them."""

    def __init__(self, model: Model, **given: Any) -> None:
        super().__init__(model, greedy="never", **given)
        self.errors: list[float] = []
        self.rows = 0

    def _keep(self, records: list[dict[str, Any]], errors: list[Any]) -> None:
        self.errors += [record["standard_error"] for record in records]
        self.rows += sum(record["evaluations"] for record in records)


def questions(path: Path, count: int, *, longest: int) -> list[tuple[list[Instance], int]]:
    """The requests of every question, and which choice is right. Choices longer than a row lose their end."""
    found = []
    for number, line in enumerate(path.read_text().splitlines()[:count]):
        row = json.loads(line)
        texts = [f" {text8_style(choice)}"[:longest] for choice in row["choices"]]
        requests = [
            Instance("loglikelihood", row, (text8_style(row["x"]), text), n, ("hellaswag", number, 1))
            for n, text in enumerate(texts)
        ]
        found.append((requests, int(row["label"])))
    return found


def decisions(answers: Sequence[tuple[float, bool]], asked: list[tuple[list[Instance], int]]) -> list[int]:
    """The likeliest choice of every question."""
    values = iter(answers)
    return [max(enumerate(next(values)[0] for _ in requests), key=lambda pair: pair[1])[0] for requests, _ in asked]


def print_result(name: str, lm: Any, spent: "Time", answers: list, asked: list, truth: list[int] | None) -> None:
    mine = decisions(answers, asked)
    right = sum(choice == label for choice, (_, label) in zip(mine, asked, strict=True))
    errors = torch.tensor(lm.errors, dtype=torch.float64)
    same = "" if truth is None else f"; {sum(map(int.__eq__, mine, truth))} decisions as in the long run"
    print(
        f"{name}: {len(answers) / spent.passed:.2f} requests/s ({len(answers)} in {spent.passed:.1f} s, "
        f"{spent.processor:.1f} s of processor time), "
        f"{lm.rows / len(answers):.1f} forward passes each, standard error mean {float(errors.mean()):.3f}, "
        f"root mean square {float(errors.square().mean().sqrt()):.3f} nats; "
        f"{right}/{len(asked)} right{same}"
    )


class Time:
    """What calls took, all together."""

    def __init__(self) -> None:
        self.passed = self.processor = 0.0

    def of(self, call: Callable[[], list]) -> list:
        passed, processor = time.perf_counter(), time.process_time()
        found = call()
        self.passed += time.perf_counter() - passed
        self.processor += time.process_time() - processor
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="JSONL with x, choices and label")
    parser.add_argument("--items", type=int, default=300, help="questions")
    parser.add_argument("--evaluations", type=int, default=32, help="our forward passes per request")
    parser.add_argument("--model", default="text8-tiny")
    parser.add_argument("--truth", type=int, help="draws per request of a long run to compare decisions with")
    parser.add_argument("--race", action="store_true", help="our races too")
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    model = infodis.load(given.model)
    asked = questions(given.data, given.items, longest=model.length or 256)
    rivals: dict[str, Any] = {
        "one at a time": OneAtATime(model),
        "infodis": Ours(model, evaluations=given.evaluations),
    }
    if given.race:
        rivals["infodis, race"] = Ours(model, evaluations=given.evaluations, race=True)
    spent: dict[str, Time] = {name: Time() for name in rivals}
    answers: dict[str, list] = {name: [] for name in rivals}
    step = -(-len(asked) // PORTIONS)
    for start in range(0, len(asked), step):
        requests = [one for some, _ in asked[start : start + step] for one in some]
        for name, lm in rivals.items():
            answers[name] += spent[name].of(functools.partial(lm.loglikelihood, requests))
        seconds = ", ".join(f"{name} {taken.passed:.0f} s" for name, taken in spent.items())
        print(f"{min(start + step, len(asked))} of {len(asked)} questions: {seconds}", file=sys.stderr, flush=True)
    truth = None
    if given.truth:
        whole = [one for some, _ in asked for one in some]
        truth = decisions(Ours(model, evaluations=given.truth, seed=1).loglikelihood(whole), asked)
    for name, lm in rivals.items():
        print_result(name, lm, spent[name], answers[name], asked, truth)
    for name in list(rivals)[1:]:
        other = spent["one at a time"]
        print(
            f"{name}: {other.passed / spent[name].passed:.2f} times as many requests per second, "
            f"{other.processor / spent[name].processor:.2f} times as many per second of processor time"
        )


if __name__ == "__main__":
    main()
