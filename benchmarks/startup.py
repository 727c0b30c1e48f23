"""Processor seconds to start: importing infodis beside importing torch, `infodis --help`, and a usage error.

    python benchmarks/startup.py

The median of some runs of each, taken in turns.
"""

import resource
import statistics
import subprocess
import sys

COMMANDS = {
    "import torch": ["-c", "import torch"],
    "import infodis": ["-c", "import infodis"],
    "import infodis, and use it": ["-c", "import infodis; infodis.nll"],
    "infodis --help": ["-m", "infodis", "--help"],
    "infodis with a wrong option": ["-m", "infodis", "doctor", "--nonsense"],
}
RUNS = 7


def seconds(arguments: list[str]) -> float:
    """Of one run: user and system time of the child."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def main() -> None:
    taken: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(RUNS):
        for name, arguments in COMMANDS.items():
            taken[name].append(seconds(arguments))
    middle = {name: statistics.median(values) for name, values in taken.items()}
    for name, value in middle.items():
        print(f"{name}: {value:.2f} s, {value / middle['import torch']:.2f} of importing torch")


if __name__ == "__main__":
    main()
