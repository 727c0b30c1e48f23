"""What `infodis.score` costs over `infodis.nll` on the same tokens: the ratio of their times, within one run.

    python benchmarks/api_overhead.py --texts 1000 --rounds 5

Both are called in turn. Processor time is measured, so that other work on the machine matters little; the least counts.
"""

import argparse
import time
from collections.abc import Callable

import torch

import infodis
from infodis.rng import stream

WORDS = ("the", "of", "and", "one", "in", "to", "zero", "was", "with", "that", "city", "river", "north", "war")


def texts(count: int) -> list[str]:
    """Short texts, all different."""
    draws = torch.randint(len(WORDS), (count, 6), generator=stream(0, "api overhead"))
    return [" ".join(WORDS[word] for word in row) for row in draws.tolist()]


def seconds(call: Callable[[], object]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--evaluations", type=int, default=16)
    options = parser.parse_args()
    model = infodis.load("text8-tiny", device="cpu")
    some = texts(options.texts)
    tokens = [model.encode(text) for text in some]
    calls = {
        "nll": lambda: infodis.nll(model, tokens, evaluations=options.evaluations),
        "score": lambda: infodis.score(model, some, evaluations=options.evaluations),
    }
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(options.rounds):
        for name, call in calls.items():
            taken[name].append(seconds(call))
    least = {name: min(times) for name, times in taken.items()}
    print(f"nll on tokens {least['nll']:.3f} s, score on text {least['score']:.3f} s, {options.texts} texts")
    print(f"ratio {least['score'] / least['nll']:.4f}")


if __name__ == "__main__":
    main()
