"""Commands whose paths collide with files of the user, in any combination: not a byte of theirs may change.

    python tests/collisions.py --trials 300

Every trial plants files where commands may want to write, in some of the places, and links to them; then it runs some
commands, in one process, on names that collide. Whatever they do, what was planted stays, and so does what is read.
"""

import argparse
import itertools
import json
import os
import random
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from typer.testing import CliRunner

from infodis.cli import app
from infodis.errors import InfodisError

ROWS = [
    {"id": 1, "text": "some words", "prompt": "a ", "chosen": "b", "rejected": "c", "choices": ["a", "b"]},
    {"id": 2, "text": "x", "prompt": "some ", "chosen": "more", "rejected": "less", "choices": ["c", "d"]},
    {"id": 3, "text": None},
]
PLANTED = (
    "out.jsonl",
    "out.parquet",
    "out.rejected.jsonl",
    "out.jsonl.rejected.jsonl",
    "out.jsonl.manifest.json",
    "out.jsonl.work/rows.jsonl",
    "out.jsonl.work/settings.json",
    "out.jsonl.work/parts/000000/000000000.jsonl",
    "page.html",
    "plot.svg",
    ".infodis-manifest.jsonl",
    "some/histogram.csv",
    "some/figures/roc.csv",
    "some/a.jsonl",
    "some/b.jsonl.work/.infodis.lock",
    "some/report.html",
    "some/audit.json",
    "some/ratio.jsonl",
    "some/metrics.jsonl",
    "some/settings.json",
    "some/checkpoints.json",
    "some/data/train.tokens",
    "some/step-00000002/config.json",
    "some/step-by-step/notes.txt",
    "some/.notes.2024.tmp",
    "some/laptop/theory/identities.jsonl",
)
LINKS = ("link.jsonl", "out.jsonl.work/.infodis.lock", "out.jsonl.work/.lock", "some/.infodis-train.lock", "some/.lock")
LINES = ("rows.jsonl", "other.jsonl", "twin.jsonl", "link.jsonl", "new.jsonl", "out.jsonl.work/rows.jsonl")
OUTPUTS = ("out.jsonl", "out.parquet", "out.jsonl.rejected.jsonl", "out.rejected.jsonl", *LINES)
PAGES, PICTURES = ("page.html", "new.html", "rows.jsonl"), ("plot.svg", "new.svg")
DIRECTORIES = ("some", "some", "new", ".", "out.jsonl.work", "rows.jsonl")
CONFIG = """
[model]
network = "radd"
width = 8
blocks = 1
heads = 2
length = 8
[data]
train = "{train}"
valid = "other.jsonl"
tokenizer = "text8"
[optim]
loss = "k-dce"
steps = 2
batch = 2
[run]
device = "cpu"
validate_every = 1
valid_windows = 1
valid_evaluations = 2
checkpoint_every = 1
"""
Words = list[str]


def plant(draw: random.Random) -> None:
    """Files of the user, in the current directory."""
    for name in ("rows.jsonl", "other.jsonl"):
        Path(name).write_text("".join(json.dumps(row) + "\n" for row in ROWS[: 2 if name == "other.jsonl" else 3]))
    Path("scores.jsonl").write_text('{"id": 1, "value": 1.5, "standard_error": 0.5, "evaluations": 2, "tokens": 3}\n')
    train = draw.choice(("other.jsonl", "other.jsonl", "some/metrics.jsonl"))
    Path("config.toml").write_text(CONFIG.format(train=train))
    os.link("rows.jsonl", "twin.jsonl")
    share = draw.choice((0.0, 0.05, 0.3))
    for name in (*PLANTED, *LINKS):
        if draw.random() < share:
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            if name in LINKS:
                Path(name).symlink_to(Path("rows.jsonl").absolute())
            else:
                Path(name).write_text(json.dumps({"text": f"mine at {name}".replace(".", " ").lower()}))


def planted() -> dict[Path, bytes]:
    """What is there, and where links point to."""
    found = (path for path in Path().rglob("*") if path.is_symlink() or path.is_file())
    return {path: os.readlink(path).encode() if path.is_symlink() else path.read_bytes() for path in found}


def commands(draw: random.Random, *, slow: bool) -> Iterator[Words]:
    """Command lines whose files may collide, for ever; with those that take seconds, or without."""
    few = ["--evaluations", "2"]
    while True:
        lines, other = (draw.choice((*LINES, *OUTPUTS, *("rows.jsonl", "other.jsonl") * 9)) for _ in range(2))
        out = draw.choice((*OUTPUTS, *("out.jsonl", "new.jsonl") * 9))
        anew = draw.choice(([], ["--no-resume"]))
        run = ["--out", out, "--threads", "1", "--seed", draw.choice("01"), *anew]
        page, picture, place = draw.choice(PAGES), draw.choice(PICTURES), draw.choice(DIRECTORIES)
        yield draw.choice(
            (
                *(_slow(draw, lines, other, place, anew) if slow else ()),
                ["score", lines, *run, *few],
                ["score", lines, *run, *few, "--report", page],
                ["ratio", lines, *run, *few],
                ["choose", lines, *run, *few],
                ["attribute", lines, *run, *few],
                ["bounds", other, "--orders", "4", "--particles", "2", "--out", out, "--plot", picture],
                ["curve", other, "--evaluations", "16", "--out", out, "--plot", picture],
                ["report", draw.choice(("out.jsonl", "scores.jsonl", lines)), "--out", page, "--figures", place],
                ["train", "config.toml", "--out", place, *draw.choice(([], ["--resume"]))],
                ["export", "dna-tiny", place],
            )
        )


def _slow(draw: random.Random, lines: str, other: str, place: str, anew: Words) -> tuple[Words, ...]:
    return (
        ["perplexity", lines, "--evaluations", "2", "--threads", "1", "--out", draw.choice(OUTPUTS), *anew],
        ["audit", lines, other, "--evaluations", "4", "--threads", "1", "--out", place, *anew],
        ["reproduce", "theory", "--out", place, "--document", draw.choice(("new.md", "rows.jsonl", "page.html"))],
    )


def ends(words: Words) -> bool:
    """Whether a command does what it was asked for, or else says why not."""
    found = CliRunner().invoke(app, words)
    expected = found.exception is None or isinstance(found.exception, SystemExit | InfodisError | OSError)
    assert expected, f"infodis {' '.join(words)}: {found.exception!r}"
    return found.exit_code in (0, 3)


def trial(seed: int, *, count: int = 4, slow: bool = True) -> Counter[str]:
    """Some commands in a directory of planted files; how many did what, and how many refused."""
    draw, told, before = random.Random(seed), Counter[str](), Path.cwd()
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)
        try:
            plant(draw)
            mine = planted()
            for words in itertools.islice(commands(draw, slow=slow), count):
                read = {Path(word): Path(word).read_bytes() for word in words[1:3] if Path(word).is_file()}
                told["done" if ends(words) else "refused"] += 1
                now = planted()
                changed = [path for path, content in mine.items() if now.get(path) != content]
                changed += [path for path, content in read.items() if path.read_bytes() != content]
                assert not changed, f"seed {seed}: infodis {' '.join(words)} changed {changed}"
        finally:
            os.chdir(before)
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    told = Counter[str]()
    for seed in range(given.seed, given.seed + given.trials):
        told += trial(seed)
    print(f"{given.trials} trials, commands: {dict(told)}; nothing of the user's was touched")
    assert all(told[kind] for kind in ("done", "refused")), told


if __name__ == "__main__":
    main()
