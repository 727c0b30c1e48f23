"""Masks drawn in every block against masks drawn over the whole target, on block diffusion models.

    python benchmarks/block_designs.py [--data data/text8_valid.txt.gz] [--texts 8] [--runs 200]

Three models: text8-block4 on held-out text; surprisals in blocks of four that are drawn at random, so that conditionals
disagree as much as can be; and a Markov chain in blocks of eight whose conditionals disagree a little, as those of a
network do. Everything that they say about a text is tabulated once, so the exact answer is known (all
masks of every block: 15 passes for blocks of four, 255 for eight) and runs cost next to nothing. For each design and
number of forward passes: the mean squared error in nats squared with its standard error, how many times that is above
the best with as many passes, the bias in standard errors, and how often 95 % intervals hold the exact answer.
"""

import argparse
import contextlib
import gzip
from collections.abc import Iterable

import torch

import infodis
from infodis import Auto, BlockLayout, Blocks, Neighbours, Orders, StratifiedCount, Tiled, TimeFree, UniformCount
from infodis.errors import InputError
from infodis.estimate import Request, estimate_items
from infodis.item import Item
from infodis.oracle import MarkovChain
from infodis.result import Measured
from infodis.rng import key, stream, uniforms
from infodis.testing import Blockwise, Perturbed, TabulatedBlocks

DESIGNS = {
    "Auto, Neighbours (default)": (Auto(), Neighbours()),
    "Blocks(Tiled), Neighbours": (Blocks(Tiled()), Neighbours()),
    "Blocks(Tiled)": (Blocks(Tiled()), None),
    "Blocks(Orders)": (Blocks(Orders()), None),
    "Blocks(StratifiedCount)": (Blocks(StratifiedCount()), None),
    "Blocks(UniformCount)": (Blocks(UniformCount()), None),
    "Blocks(TimeFree)": (Blocks(TimeFree()), None),
    "Tiled, Neighbours, whole target": (Tiled(), Neighbours()),
    "Tiled, whole target": (Tiled(), None),
    "StratifiedCount, whole target": (StratifiedCount(), None),
    "UniformCount, whole target": (UniformCount(), None),
    "TimeFree, whole target": (TimeFree(), None),
}


BUDGETS = (4, 8, 10, 13)
"""With blocks of four; 15 passes would hold all masks."""


def text8(file: str, texts: int, length: int) -> list[TabulatedBlocks]:
    model = infodis.load("text8-block4")
    with gzip.open(file, "rt") as opened:
        text = opened.read(1000 * (texts + 2))
    starts = [1000 * (n + 1) for n in range(texts)]
    return [TabulatedBlocks.of(model, model.read(text[start : start + length])) for start in starts]


def chain(texts: int, length: int) -> list[TabulatedBlocks]:
    exact = MarkovChain.random(order=2, vocab_size=4, temperature=0.5, seed=1)
    network = Blockwise(Perturbed(exact, scale=0.2), BlockLayout(8))
    rows = exact.sample(texts, length=length, generator=stream(0, "block designs"))
    return [TabulatedBlocks.of(network, Item.read(row)) for row in rows]


def noise(texts: int, length: int, size: int = 4) -> list[TabulatedBlocks]:
    """Exponential surprisals, all independent of each other, of random texts."""
    masked, found = torch.arange(2**size).unsqueeze(1) >> torch.arange(size) & 1, []
    for text in range(texts):
        generator = stream(0, "noise", text)
        item = Item.read((4 * uniforms(length, generator=generator)).long())
        drawn = uniforms(length // size, 2**size, size, generator=generator)
        found.append(TabulatedBlocks(item, 4, 4, BlockLayout(size), tuple(-drawn.log() * masked)))
    return found


def errors(tables: Iterable[TabulatedBlocks], request: Request, runs: int) -> tuple[torch.Tensor, float, float]:
    """What runs are off by; how many passes they took; how often intervals hold the truth."""
    off, spent, covered = [], [], []
    for table in tables:
        names = [key(table.item.key, run) for run in range(runs)]
        for one in estimate_items(table, [table.item] * runs, request, seed=0, names=names):
            low, high = one.interval(0.95)
            off.append(one.value - table.exact)
            spent.append(one.evaluations)
            covered.append(low - 1e-9 <= table.exact <= high + 1e-9)
    return torch.tensor(off, dtype=torch.float64), sum(spent) / len(spent), sum(covered) / len(covered)


def compare(name: str, tables: list[TabulatedBlocks], budgets: Iterable[int], runs: int) -> None:
    print(f"\n### {name}\n\n| passes | design | spent | mean squared error | times the best | z of bias | coverage |")
    print("|---|---|---|---|---|---|---|")
    for evaluations in budgets:
        found = {}
        for design, (masks, control) in DESIGNS.items():
            with contextlib.suppress(InputError):  # too few passes for two orders
                found[design] = errors(tables, Request(masks, control, evaluations), runs)
        squares = {design: Measured.mean(off.square()) for design, (off, _, _) in found.items()}
        best = min(square.value for square in squares.values())
        for design, (off, spent, covered) in found.items():
            square, bias = squares[design], Measured.mean(off)
            z = bias.value / bias.standard_error if bias.standard_error else 0.0
            print(
                f"| {evaluations} | {design} | {spent:.1f} | {square.value:.3g} ± {square.standard_error:.1g} "
                f"| {square.value / best if best else 1:.1f} | {z:+.1f} | {covered:.3f} |",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="data/text8_valid.txt.gz")
    parser.add_argument("--texts", type=int, default=8)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--runs", type=int, default=200)
    options = parser.parse_args()
    about = f"{options.texts} texts of {options.length} tokens, {options.runs} runs each"
    compare(f"text8-block4: {about}", text8(options.data, options.texts, options.length), BUDGETS, options.runs)
    compare(f"Random surprisals: {about}", noise(options.texts, options.length), BUDGETS, options.runs)
    compare(f"Chain in blocks of 8: {about}", chain(options.texts, options.length), (16, 32, 64, 128), options.runs)


if __name__ == "__main__":
    main()
