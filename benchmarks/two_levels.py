"""Would a cheaper network of the same family pay as a surrogate?

    OMP_NUM_THREADS=1 python benchmarks/two_levels.py data/text8_valid.txt.gz --model text8-tiny --sibling runs/small

Its own nll has no closed form. But with masks of its own it can be estimated by passes that cost less: two-level Monte
Carlo. Both networks are asked about the same masks (`Tiled`, `Kernel` on each); rho is the correlation of what their
replicates are off. If a pass of the sibling costs c passes of the network, the best division of the budget leaves

    (sqrt((1 - rho^2) (1 + c)) + |rho| sqrt(c))^2

of the variance that the network alone has for the same cost (docs/theory.md, Surrogates).
"""

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

import torch

import infodis
from infodis.apps.bench.texts import windows
from infodis.control import Kernel
from infodis.design import Tiled
from infodis.evaluate import Batching, ItemBatch, run
from infodis.item import Item
from infodis.models.model import Model
from infodis.models.text_files import encode_file
from infodis.rng import key
from infodis.sample import Sample

COSTS = (1 / 2, 1 / 4, 1 / 8, 1 / 16)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path)
    parser.add_argument("--model", default="text8-tiny")
    parser.add_argument("--sibling", required=True, help="another network with the same tokens")
    parser.add_argument("--texts", type=int, default=8)
    parser.add_argument("--runs", type=int, default=16)
    parser.add_argument("--rows", type=int, nargs="+", default=[32, 128])
    given = parser.parse_args(arguments)
    model, sibling = infodis.load(given.model), infodis.load(given.sibling)
    tokens = torch.from_numpy(encode_file(given.text, model.tokenizer)).long()
    items = windows(tokens, count=given.texts, context=16, target=48)
    for rows in given.rows:
        sides = [torch.cat([off(one, item, rows, given.runs) for item in items]) for one in (model, sibling)]
        rho = float(torch.corrcoef(torch.stack(sides))[0, 1])
        left = {cost: (math.sqrt((1 - rho**2) * (1 + cost)) + abs(rho) * math.sqrt(cost)) ** 2 for cost in COSTS}
        told = ", ".join(f"{share:.2f} at c = 1/{1 / cost:.0f}" for cost, share in left.items())
        print(f"{rows} passes: rho {rho:.3f} (rho^2 {rho**2:.2f}); of the variance is left {told}", flush=True)


def off(model: Model, item: Item, rows: int, runs: int) -> torch.Tensor:
    """What the estimates of a text are off from their mean, with the same masks for every model."""
    names = [key(item.key, "two levels", rows, number) for number in range(runs)]
    items, design = [item] * runs, Tiled()
    layout = design.layout(item.target.numel(), rows)
    sample = Sample.of(items, names, ItemBatch.of(model, items), design, layout, control=Kernel(), seed=0)
    values = run(sample.extend(layout.replicates), Batching()).values.mean(1)
    return values - values.mean()


if __name__ == "__main__":
    main()
