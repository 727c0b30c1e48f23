"""What `Auto` takes for short pieces of English, and what `Tiled` and `Orders` would have given.

    OMP_NUM_THREADS=1 python benchmarks/auto_text.py --text data/text8_valid.txt.gz

Prints, for every piece, the variance of both designs over repeats, and which of them the default took.
"""

import argparse
import statistics
from pathlib import Path

from infodis.design import MaskDesign, Orders, Tiled
from infodis.estimate import Request, estimate_items
from infodis.item import Item
from infodis.models.loading import load
from infodis.models.text_files import opened_text
from infodis.rng import key

LENGTHS, PROMPT, APART, ROWS, REPEATS = (16, 20, 24, 28, 32, 36, 40, 44, 48, 52, 56, 60), 40, 3000, 128, 8
DESIGNS: tuple[MaskDesign, ...] = (Tiled(), Orders())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, required=True, help="held-out text8, plain or .gz")
    given = parser.parse_args()
    model = load("text8-tiny")
    with opened_text(given.text) as file:
        text = file.read(APART * len(LENGTHS))
    right, above = 0, []
    print("tokens  Tiled  Orders  Auto took")
    for number, length in enumerate(LENGTHS):
        piece = text[number * APART :][: PROMPT + length]
        item = Item.read(model.tokenizer.encode(piece), context=range(PROMPT))
        names = [key(item.key, repeat) for repeat in range(REPEATS)]
        tiled, orders = (
            statistics.variance(
                one.value
                for one in estimate_items(
                    model, [item] * REPEATS, Request(design, evaluations=ROWS), seed=0, names=names
                )
            )
            for design in DESIGNS
        )
        taken = estimate_items(model, [item], Request(evaluations=ROWS), seed=0)[0].design
        right += isinstance(taken, Tiled) == (tiled < orders)
        above.append(orders / tiled)
        print(f"{length:6}  {tiled:5.3f}  {orders:6.3f}  {type(taken).__name__}", flush=True)
    print(
        f"Auto took the better one {right} times of {len(LENGTHS)}. Orders vary {min(above):.1f} to {max(above):.1f} "
        f"times as much as Tiled, {statistics.geometric_mean(above):.1f} on (geometric) average."
    )


if __name__ == "__main__":
    main()
