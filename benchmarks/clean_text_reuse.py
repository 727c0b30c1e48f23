"""What it saves to compute the clean keys and values of a text once, beside the plain form [noisy ; clean].

    python benchmarks/clean_text_reuse.py --rows 15 --rows 64

A random network of blocks of 4 tokens, as large as text8-tiny; masked rows of one text. `Model.surprisals` runs the
clean text once, the plain form beside every masked row. The two take turns, so that a busy machine slows both alike;
times are of the processor, and each ratio is of one turn. Both must give the same numbers.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from infodis.blocks import BlockLayout
from infodis.models.adapters import LoadedModel
from infodis.models.model import TOKENS_AT_ONCE, Model
from infodis.models.nets import RADD, NetworkShape, initialise
from infodis.predictor import Rows
from infodis.rng import stream

VOCAB, SIZE = 27, 4
SHAPE = NetworkShape(width=192, blocks=4, heads=3, block_size=SIZE)


def network() -> RADD:
    made = RADD(VOCAB, SHAPE)
    initialise(made, generator=stream(0))
    torch.nn.init.normal_(made.output_layer.linear.weight, std=0.05, generator=stream(1))
    return made.eval().requires_grad_(False)


def reused(made: RADD, text: Tensor, masked: Tensor) -> tuple[Tensor, int]:
    """Surprisals of all masked tokens, and how many tokens went through the network."""
    model = Model("random", LoadedModel("radd", made, None, None, None, blocks=BlockLayout(SIZE)), torch.device("cpu"))
    parts = masked.split(TOKENS_AT_ONCE // len(text))
    found = torch.cat([model.surprisals(_rows(text, part)) for part in parts])
    assert model.clean_texts is not None
    return found, masked.numel() + model.clean_texts.tokens


def _rows(text: Tensor, masked: Tensor) -> Rows:
    count, length = masked.shape
    starts = torch.zeros(count, dtype=torch.int64)
    return Rows(text.expand(count, -1), masked, masked, torch.full((count,), length), starts)


def plain(made: RADD, text: Tensor, masked: Tensor) -> tuple[Tensor, int]:
    """The same by rows [noisy ; clean], as many tokens in a batch."""
    blocks = (torch.arange(len(text)) // SIZE).unsqueeze(0)
    found = []
    for part in masked.split(TOKENS_AT_ONCE // (2 * len(text))):
        clean = text.expand(len(part), -1)
        features = made.plain_features(torch.where(part, VOCAB, clean), clean, blocks=blocks, at=part)
        found.append(made.token_nll(features, clean[part]))
    return torch.cat(found), 2 * masked.numel()


def seconds(way: Callable[..., tuple[Tensor, int]], *given: object) -> float:
    begin = time.process_time()
    way(*given)
    return time.process_time() - begin


@torch.no_grad()
def measure(rows: int, length: int, turns: int) -> dict[str, object]:
    made = network()
    text = torch.randint(VOCAB, (length,), generator=stream(2))
    masked = torch.rand(rows, length, generator=stream(3)) < 0.5
    (mine, few), (its, many) = reused(made, text, masked), plain(made, text, masked)
    times = [(seconds(plain, made, text, masked), seconds(reused, made, text, masked)) for _ in range(turns)]
    ratios = sorted(before / now for before, now in times)
    return {
        "rows": rows,
        "length": length,
        "token passes, plain": many,
        "token passes, reused": few,
        "token passes, ratio": round(many / few, 3),
        "seconds, plain": round(statistics.median(before for before, _ in times), 4),
        "seconds, reused": round(statistics.median(now for _, now in times), 4),
        "seconds, ratio": round(statistics.median(ratios), 2),
        "ratio of turns, from": round(ratios[0], 2),
        "ratio of turns, to": round(ratios[-1], 2),
        "largest difference, nats": float((mine - its).abs().max()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, action="append", help="masked rows of the text; may be repeated")
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, help="a JSONL file for the records")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    found = [measure(rows, given.length, given.turns) for rows in given.rows or [15, 64]]
    for record in found:
        print("\n".join(f"{name:28} {value}" for name, value in record.items()) + "\n")
    if given.out is not None:
        given.out.write_text("".join(json.dumps(record) + "\n" for record in found))


if __name__ == "__main__":
    main()
