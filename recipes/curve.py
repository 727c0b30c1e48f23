"""Draw the losses of training runs that follow one another.

python recipes/curve.py runs/text8-tiny-1 runs/text8-tiny-2 --out curve.svg
"""

import argparse
import json
import math
from pathlib import Path

from infodis import figures

REPORTS = 150
"""Points of a run's training loss, each the mean of some reports: a line that can be read."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    series: dict[str, list[tuple[float, float]]] = {"validation nll": []}
    before = 0
    for run in given.runs:
        records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        progress = [r for r in records if r["kind"] == "progress"]
        group = max(1, len(progress) // REPORTS)
        groups = [progress[n : n + group] for n in range(0, len(progress), group)]
        loss = json.loads((run / "settings.json").read_text())["optim"]["loss"]
        series.setdefault(f"training loss, {loss}", []).extend(
            (before + part[-1]["step"], sum(r["nats"] for r in part) / len(part) / math.log(2)) for part in groups
        )
        checks = (r for r in records if r["kind"] == "validation")
        series["validation nll"] += [(before + r["step"], r["bits_per_token"]) for r in checks]
        before += progress[-1]["step"]
    figure = figures.lines(series, axes=("step", "bits per token"), wide=True, title="Losses")
    figures.save_picture(figure, given.out)
    print(given.out)


if __name__ == "__main__":
    main()
