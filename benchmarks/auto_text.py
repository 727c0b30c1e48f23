"""`Auto` on held-out English, beside the two designs that it chooses from and LLaDA's sampler, at 16 to 512 rows.

    OMP_NUM_THREADS=1 python benchmarks/auto_text.py --text data/text8_valid.txt.gz

Everything that text8-tiny says about 12 characters after 40 is tabulated once, for a few pieces; the runs are then
cheap. Prints mean squared errors over all runs and pieces, and how far `Auto` is behind the better of the two designs.
"""

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

from infodis.apps.bench.experiments import EQUAL, auto
from infodis.apps.bench.problems import Problem
from infodis.item import Item
from infodis.models.loading import load
from infodis.models.text_files import opened_text
from infodis.testing import Tabulated

PROMPT, TARGET, APART = 40, 12, 3000
BUDGETS = (16, 32, 64, 128, 256, 512)
NAMES = ("Tiled", "Orders", "LLaDA's sampler", "Auto")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, required=True, help="held-out text8, plain or .gz")
    parser.add_argument("--pieces", type=int, default=4)
    parser.add_argument("--runs", type=int, default=250, help="of every piece")
    given = parser.parse_args(arguments)
    problem = text_problem(given.text, given.pieces)
    print("rows  " + "  ".join(f"{name:>15}" for name in NAMES) + "  Auto / better")
    ratios = [print_row(problem, rows, given.runs) for rows in BUDGETS]
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    print(f"Auto / better: {mean:.2f} (geometric mean), {max(ratios):.2f} at worst, {given.runs} runs of every piece.")


def text_problem(path: Path, pieces: int) -> Problem:
    """Pieces of a text under text8-tiny, some thousand characters apart."""
    model = load("text8-tiny")
    with opened_text(path) as file:
        text = file.read(APART * pieces)
    rows = [model.tokenizer.encode(text[start:][: PROMPT + TARGET]) for start in range(0, APART * pieces, APART)]
    return Problem("text", [Tabulated.of(model, Item.read(row, context=range(PROMPT))) for row in rows])


def print_row(problem: Problem, rows: int, runs: int) -> float:
    """Measure one budget; returns the error of `Auto` over that of the better design."""
    errors = {found.design: found.mean_squared_error for found in auto([problem], budgets=[rows], runs=runs)}
    better = min(error for name, error in errors.items() if name in ("Tiled", "Orders"))
    ratio = max(errors["Auto"], EQUAL) / max(better, EQUAL)
    shown = (f"{errors[name]:15.4g}" if name in errors else " " * 15 for name in NAMES)
    print(f"{rows:4}  " + "  ".join(shown) + f"  {ratio:13.2f}", flush=True)
    return ratio


if __name__ == "__main__":
    main()
