"""Small training runs: a chain to learn, a configuration, and what a run leaves behind."""

import functools
import json
import time
from pathlib import Path

import forks

from infodis.oracle import MarkovChain
from infodis.rng import stream
from infodis.train import read_config, train

CHAIN = MarkovChain.random(order=1, vocab_size=4, temperature=0.2)

CONFIG = """
[model]
network = "{network}"
width = 16
blocks = 1
heads = 2
length = 12
dropout = 0.1

[data]
train = "train.txt"
valid = "valid.txt"
tokenizer = "dna"

[optim]
loss = "{loss}"
steps = {steps}
batch = 8
micro_batch = 4
warmup = 5
learning_rate = 0.01

[run]
device = "cpu"
log_every = {log_every}
validate_every = 5
valid_windows = 4
valid_evaluations = 4
checkpoint_every = 3
"""


class Silent:
    def __init__(self):
        self.messages = []

    def progress(self, report): ...
    def validation(self, report): ...
    def message(self, text):
        self.messages.append(text)


@functools.cache
def text_of_chain(part: str, count: int) -> str:
    return "".join("ACGT"[token] for token in CHAIN.sample(1, length=count, generator=stream(0, part))[0])


def prepare(directory: Path, *, network="radd", loss="k-dce", steps=14, log_every=1) -> Path:
    directory.mkdir(exist_ok=True)
    for part, count in (("train", 20_000), ("valid", 500)):
        (directory / f"{part}.txt").write_text(text_of_chain(part, count))
    path = directory / "config.toml"
    path.write_text(CONFIG.format(network=network, loss=loss, steps=steps, log_every=log_every))
    return path


def run(path: Path, out: Path, *, resume: bool = False, reporter=None) -> Path:
    return train(read_config(path), out, base=path.parent, resume=resume, reporter=reporter or Silent())


def records(out: Path) -> list[dict]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def losses(out: Path) -> list[tuple[int, float]]:
    return [(r["step"], r["nats"]) for r in records(out) if r["kind"] == "progress"]


def run_and_kill(path: Path, out: Path, *, moment: float) -> None:
    """SIGKILL so many seconds after the first checkpoint: in a step, in a validation, while files are written."""
    process = forks.start(run, path, out)
    while process.is_alive() and not (out / "checkpoints.json").is_file():
        time.sleep(0.001)
    time.sleep(moment)
    process.kill()
    process.join()
    assert (out / "checkpoints.json").is_file()
