"""What a second Ray worker adds, beside a second process without Ray, and whether all write the same file.

    python benchmarks/ray_workers.py

Rows a second while all workers are busy: from when each has done two shards until the first has nothing left to do.
Starting Ray and loading models is not in it. On two quiet cores two workers should do at least 1.6 times what one does.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

import torch

from infodis.estimate import Request
from infodis.jobs.inputs import InputSpec
from infodis.jobs.local import LocalProcesses
from infodis.jobs.ray import RayActors
from infodis.jobs.run import Executor, RunPlan, RunProgress, run
from infodis.jobs.scores import ScoreJob
from infodis.models.spec import ModelSpec
from infodis.rng import stream

LETTERS = "abcdefghijklmnopqrstuvwxyz "
CHARACTERS = 200


def write_rows(path: Path, count: int) -> None:
    letters = torch.randint(27, (count, CHARACTERS), generator=stream(0, "rows"))
    with path.open("w") as file:
        for number, row in enumerate(letters.tolist()):
            file.write(json.dumps({"id": number, "text": "".join(LETTERS[letter] for letter in row)}) + "\n")


def measure(rows: Path, out: Path, executor: Executor, arguments: argparse.Namespace) -> list[float]:
    """When each shard was finished."""
    job = ScoreJob(ModelSpec("text8-tiny"), Request(evaluations=arguments.evaluations))
    plan = RunPlan(
        out=out,
        job=job,
        input=InputSpec(str(rows), arguments.shard_rows),
        executor=executor,
        threads=1,
    )
    times: list[float] = []

    def watch(state: RunProgress) -> None:
        if state.done:
            times.append(time.monotonic())

    run(plan, watch)
    return times


def rows_per_second(times: list[float], workers: int, shard_rows: int) -> float:
    busy = times[2 * workers - 1 : len(times) - workers + 1]
    return shard_rows * (len(busy) - 1) / (busy[-1] - busy[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=320)
    parser.add_argument("--shard-rows", type=int, default=8)
    parser.add_argument("--evaluations", type=int, default=64)
    arguments = parser.parse_args()
    crews: dict[str, tuple[Executor, int]] = {
        "one Ray worker": (RayActors(1), 1),
        "two Ray workers": (RayActors(2), 2),
        "two processes": (LocalProcesses(2), 2),
    }
    if arguments.rows < 8 * arguments.shard_rows:
        parser.error("At least 8 shards are needed: more --rows, or fewer --shard-rows.")
    rates, contents = {}, set()
    with tempfile.TemporaryDirectory() as directory:
        rows = Path(directory) / "rows.jsonl"
        write_rows(rows, arguments.rows)
        for number, (name, (executor, workers)) in enumerate(crews.items()):
            out = Path(directory) / f"{number}.jsonl"
            begin = time.monotonic()
            times = measure(rows, out, executor, arguments)
            rates[name] = rows_per_second(times, workers, arguments.shard_rows)
            contents.add(out.read_bytes())
            print(
                f"{name}: {rates[name]:.2f} rows/s, {rates[name] * arguments.evaluations:.0f} forward passes/s; "
                f"first shard after {times[0] - begin:.1f} s, all after {times[-1] - begin:.1f} s",
                flush=True,
            )
    for name in ("two Ray workers", "two processes"):
        print(f"{name}: {rates[name] / rates['one Ray worker']:.2f} times one Ray worker")
    print(f"The files are {'identical' if len(contents) == 1 else 'DIFFERENT'}.")


if __name__ == "__main__":
    main()
