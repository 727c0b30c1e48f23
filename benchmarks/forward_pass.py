"""Where the time of a forward pass goes on a processor, and what is left to gain.

    OMP_NUM_THREADS=1 python benchmarks/forward_pass.py

text8-tiny, batches of 2,048 tokens as `nll` makes them, the ways taking turns so that a busy machine slows all alike;
the median counts. Padding is that of the random texts of `infodis bench throughput`.
"""

import argparse
import contextlib
import statistics
import time
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

import infodis
from infodis.apps.bench.throughput import random_texts
from infodis.evaluate import rounded
from infodis.models.model import TOKENS_AT_ONCE
from infodis.models.nets.products import ByOneDNN, linear, onednn_is_faster
from infodis.rng import stream

LENGTHS = (64, 128, 256)
SHAPES = ((2048, 192, 576), (2048, 192, 768), (2048, 768, 192), (512, 256, 2048), (512, 4096, 4096))
"""Rows, inputs and outputs of products: those of text8-tiny, of the last layer of a BERT in parts, of LLaDA."""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=15)
    turns = parser.parse_args(arguments).turns
    products(turns)
    passes(turns)
    padding()


def products(turns: int) -> None:
    """GFLOP/s of the libraries."""
    for rows, inputs, outputs in SHAPES:
        x, weight = (torch.randn(n, inputs, generator=stream(0, "products", n)) for n in (rows, outputs))
        low = x.bfloat16(), weight.bfloat16()
        ways: dict[str, Callable[[], object]] = {"MKL": lambda x=x, w=weight: F.linear(x, w)}
        if onednn_is_faster():
            packed = torch.ops.mkldnn._reorder_linear_weight(weight, rows)
            ways["oneDNN"] = lambda x=x, w=weight: linear(x, w)
            ways["oneDNN, packed"] = lambda x=x, w=packed: torch.ops.mkldnn._linear_pointwise(
                x, w, None, "none", [], ""
            )
        ways["bfloat16"] = lambda low=low: F.linear(*low)
        seconds = timed(ways, turns)
        speed = {name: 2 * rows * inputs * outputs / taken / 1e9 for name, taken in seconds.items()}
        print(
            f"{rows} x {inputs} x {outputs}: " + ", ".join(f"{n} {s:.0f} GFLOP/s" for n, s in speed.items()), flush=True
        )


def passes(turns: int) -> None:
    """Tokens a second through the network, last layer included."""
    network = infodis.load("text8-tiny").network.train(False)
    half = infodis.load("text8-tiny", dtype="bfloat16").network.train(False)
    for length in LENGTHS:
        tokens = torch.randint(27, (TOKENS_AT_ONCE // length, length), generator=stream(0, "tokens"))
        masked = torch.rand(tokens.shape, generator=stream(0, "masks")) < 0.5
        noisy = tokens.masked_fill(masked, 27)
        compiled = torch.compile(lambda noisy: network(noisy))
        ways = {
            "as it is": lambda n=noisy: network(n),
            "oneDNN": lambda n=noisy: within(ByOneDNN(), network, n),
            "torch.compile": lambda n=noisy, c=compiled: c(n),
            "bfloat16": lambda n=noisy: half(n),
        }
        seconds = timed(ways, turns)
        print(
            f"rows of {length}: " + ", ".join(f"{n} {tokens.numel() / s:,.0f} tokens/s" for n, s in seconds.items()),
            flush=True,
        )


def within(
    mode: contextlib.AbstractContextManager[object], network: Callable[[Tensor], Tensor], noisy: Tensor
) -> Tensor:
    with mode:
        return network(noisy)


def padding() -> None:
    """The share of tokens that only fill a batch, where texts of 20 to 120 tokens have 128 rows each."""
    lengths = sorted((item.length for item in random_texts(200) for _ in range(128)), reverse=True)
    held = padded = place = 0
    while place < len(lengths):
        width = rounded(lengths[place])
        batch = lengths[place : place + TOKENS_AT_ONCE // width]
        held, padded, place = held + sum(batch), padded + width * len(batch), place + len(batch)
    print(f"padding: {1 - held / padded:.1%} of the tokens")


@torch.no_grad()
def timed(ways: dict[str, Callable[[], object]], turns: int) -> dict[str, float]:
    """The median of seconds, after two rounds that do not count."""
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(turns + 2):
        for name, way in ways.items():
            begin = time.perf_counter()
            way()
            taken[name].append(time.perf_counter() - begin)
    return {name: statistics.median(seconds[2:]) for name, seconds in taken.items()}


if __name__ == "__main__":
    main()
