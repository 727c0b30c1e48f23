"""What it saves to read a prompt once for all choices of a question, with models of blocks and causal ones.

    python benchmarks/shared_prompts.py --data text8_valid_500k.txt.gz

Questions are a prompt and four texts from elsewhere, of unequal length. They are scored one choice at a time, with
nothing kept in between, and all choices of a question together. The two take turns, so that a busy machine slows both
alike; times are of the processor. Both must give the same numbers.
"""

import argparse
import gzip
import statistics
import time

import torch

import infodis
from infodis.estimate import Request, estimate_items
from infodis.item import Item
from infodis.models.model import Model


def questions(model: Model, text: str, count: int, prompt: int, choice: int) -> list[list[Item]]:
    """Four choices each."""
    found = []
    for start in range(1000, 1000 * (count + 1), 1000):
        begin, rest = text[start : start + prompt], [start + prompt + 100 * n for n in range(4)]
        found.append([model.read(text[at : at + choice - n], prompt=begin) for n, at in enumerate(rest)])
    return found


def scored(name: str, groups: list[list[Item]]) -> tuple[list[float], int, float]:
    """Values, clean tokens that went through the network, and seconds. Each group meets a model that knows nothing."""
    values, tokens, seconds = [], 0, 0.0
    for items in groups:
        model = infodis.load(name)
        begin = time.process_time()
        values += [one.value for one in estimate_items(model, items, Request(), seed=0)]
        seconds += time.process_time() - begin
        assert model.clean_texts is not None
        tokens += model.clean_texts.tokens
    return values, tokens, seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="data/text8_valid_500k.txt.gz")
    parser.add_argument("--questions", type=int, default=12)
    parser.add_argument("--prompt", type=int, default=200)
    parser.add_argument("--choice", type=int, default=16)
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with gzip.open(options.data, "rt") as file:
        text = file.read(2000 * (options.questions + 1))
    for name in ("text8-block4", "text8-causal"):
        asked = questions(infodis.load(name), text, options.questions, options.prompt, options.choice)
        alone = [[item] for group in asked for item in group]
        turns = [(scored(name, alone), scored(name, asked)) for _ in range(options.turns)]
        (mine, few, _), (its, many, _) = turns[0][1], turns[0][0]
        before, now = (statistics.median(turn[n][2] for turn in turns) for n in range(2))
        apart = max(abs(one - other) for one, other in zip(mine, its, strict=True))
        print(f"{name}: {options.questions} questions, 4 choices of {options.choice - 3}-{options.choice} tokens")
        print(f"  clean tokens {many} one at a time, {few} together: {many / few:.2f} times fewer")
        print(f"  seconds {before:.3f} and {now:.3f}: {before / now:.2f} times")
        print(f"  largest difference of a value {apart:.1e} nats", flush=True)


if __name__ == "__main__":
    main()
