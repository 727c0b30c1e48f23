"""Draw the losses of training runs that follow one another.

python recipes/curve.py runs/text8-tiny-1 runs/text8-tiny-2 --out curve.svg
"""

import argparse
import json
import math
from pathlib import Path

import matplotlib.pyplot as plt


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    figure, axes = plt.subplots(figsize=(6, 3), layout="constrained")
    before = 0
    for number, run in enumerate(given.runs):
        records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        progress = [r for r in records if r["kind"] == "progress"]
        group = max(1, len(progress) // 150)  # the mean of some reports: a line that can be read
        groups = [progress[n : n + group] for n in range(0, len(progress), group)]
        steps = [before + part[-1]["step"] for part in groups]
        bits = [sum(r["nats"] for r in part) / len(part) / math.log(2) for part in groups]
        loss = json.loads((run / "settings.json").read_text())["optim"]["loss"]
        axes.plot(steps, bits, linewidth=0.8, color=f"C{number}", label=f"training loss, {loss}")
        checks = [r for r in records if r["kind"] == "validation"]
        places, values = [before + r["step"] for r in checks], [r["bits_per_token"] for r in checks]
        axes.plot(places, values, "k.-", markersize=3, linewidth=0.8, label="validation nll" if number == 0 else None)
        before += progress[-1]["step"]
    axes.set(xlabel="step", ylabel="bits per token")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    plt.rcParams["svg.hashsalt"] = "infodis"
    figure.savefig(given.out, metadata={"Date": None})
    print(given.out)


if __name__ == "__main__":
    main()
