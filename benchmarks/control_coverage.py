"""Controls against exact answers: squared errors, how well standard errors tell them, and coverage of 95 % intervals.

    OMP_NUM_THREADS=1 python benchmarks/control_coverage.py --runs 1000

`Tiled` on tables of 12 tokens under text8-tiny, under a chain with noise on its conditionals and under a random
network, at 8, 32 and 128 passes. At 8 passes also with four independent replicates instead of halves of plans.
"""

import argparse
from collections.abc import Sequence

import torch

from infodis.apps.bench.problems import chain_problem, random_problem, text_problem
from infodis.control import Kernel, Neighbours, Regression
from infodis.design import Layout, Tiled
from infodis.evaluate import Batching, ItemBatch, run
from infodis.result import Estimate
from infodis.rng import key
from infodis.sample import Sample
from infodis.testing import Tabulated

BUDGETS = (8, 32, 128)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000)
    runs = parser.parse_args(arguments).runs
    print(
        f"{'problem':30} passes  layout  {'control':12} squared error  z of bias  SE^2 / error^2  coverage  half width"
    )
    for problem in (text_problem(count=1), chain_problem(0.5, count=1, noise=0.3, target=12), random_problem(count=1)):
        table = problem.tables[0]
        for passes in BUDGETS:
            default = Tiled().layout(table.item.target.numel(), passes)
            for layout in dict.fromkeys((default, Layout(default.replicates, default.rows))):
                for control in (Neighbours(), Kernel()):
                    print(f"{problem.name:34} {passes:6}  {row(table, layout, control, runs)}", flush=True)


def row(table: Tabulated, layout: Layout, control: Regression, runs: int) -> str:
    found = estimates(table, layout, control, runs)
    error = torch.tensor([one.value - table.exact for one in found])
    told = torch.tensor([one.standard_error for one in found]).square().mean()
    intervals = [one.interval(0.95) for one in found]
    covered = sum(low <= table.exact <= high for low, high in intervals) / runs
    width = sum(high - low for low, high in intervals) / (2 * runs)
    square, z = error.square().mean(), error.mean() / error.std() * runs**0.5
    drawn = "halves" if layout.together > 1 else "four"
    name = type(control).__name__
    return f"{drawn:6}  {name:12} {square:13.4f}  {z:9.1f}  {told / square:14.2f}  {covered:8.3f}  {width:10.3f}"


def estimates(table: Tabulated, layout: Layout, control: Regression, runs: int) -> list[Estimate]:
    names = [key(table.item.key, "coverage", number) for number in range(runs)]
    items = [table.item] * runs
    sample = Sample.of(items, names, ItemBatch.of(table, items), Tiled(), layout, control=control, seed=0)
    return run(sample.extend(layout.replicates), Batching()).estimates(None, "budget spent")


if __name__ == "__main__":
    main()
