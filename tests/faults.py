"""Kill `infodis score` again and again, and see that the finished file is the same, byte for byte.

    python tests/faults.py --kills 200
    python tests/faults.py --kills 10 --engine ray

Rows are scored by a network (text8-tiny). SIGKILL comes at random moments between the start of the process and its end.
"""

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROWS = 400
WORDS = (
    "the",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "a",
    "lazy",
    "dog",
    "while",
    "seven",
    "wizards",
    "box",
    "wine",
)


def write_rows(path: Path, draw: random.Random) -> None:
    """Short texts, every fortieth of them bad."""
    with path.open("w") as file:
        for number in range(ROWS):
            text = " ".join(draw.choices(WORDS, k=draw.randint(2, 6)))
            file.write(json.dumps({"id": number, "text": text if number % 40 else None}) + "\n")


def command(rows: Path, out: Path, engine: list[str]) -> list[str]:
    how = ["--evaluations", "8", "--shard-rows", "16", "--threads", "1", *engine]
    return [sys.executable, "-m", "infodis", "score", str(rows), "--out", str(out), *how]


def start(arguments: list[str]) -> subprocess.Popen:
    return subprocess.Popen(arguments, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def finish(arguments: list[str], work: Path) -> float:
    """Run to the end; the seconds until the first shard was finished."""
    begin, first = time.monotonic(), 0.0
    process = start(arguments)
    while process.poll() is None:
        time.sleep(0.02)
        if not first and any(work.glob("parts/*/*.jsonl")):
            first = time.monotonic() - begin
    told = process.communicate()[1]
    assert process.returncode == 3, f"exit code {process.returncode}: {told.decode()}"
    return first


def kill(process: subprocess.Popen, *, after: float) -> bool:
    """Whether it was still there to be killed."""
    try:
        process.wait(after)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        process.communicate()
        return True
    return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--engine", choices=["local", "processes", "ray"], default="local")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    engine = {
        "local": [],
        "processes": ["--workers", "2"],
        "ray": ["--engine", "ray", "--workers", "2"],
    }[given.engine]
    draw = random.Random(given.seed)
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        write_rows(place / "rows.jsonl", draw)
        whole = place / "whole.jsonl"
        until_first = finish(command(place / "rows.jsonl", whole, []), place / "whole.jsonl.work")
        killed = runs = 0
        while killed < given.kills:
            runs += 1
            out = place / f"out{runs}.jsonl"
            arguments = command(place / "rows.jsonl", out, engine)
            while killed < given.kills and kill(start(arguments), after=draw.uniform(0.6, 1.3) * until_first):
                killed += 1
            finish(arguments, place / "none")
            for name in ("{}.jsonl", "{}.jsonl.rejected.jsonl"):
                assert (place / name.format(out.stem)).read_bytes() == (place / name.format("whole")).read_bytes(), out
            left = [path.name for path in place.glob(f"*out{runs}*") if path.suffix not in (".jsonl", ".json")]
            assert not left, f"left behind: {left}"
            print(f"{killed} kills, {runs} files finished, each the same as the undisturbed one", flush=True)


if __name__ == "__main__":
    main()
