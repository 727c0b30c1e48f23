"""Preference training by `infodis train`: it learns what is preferred, survives being killed, says what is wrong."""

import gzip
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from training_runs import losses, records, run, run_and_kill
from typer.testing import CliRunner

import infodis
from infodis.cli import app
from infodis.errors import InputError
from infodis.models import checkpoint
from infodis.models.nets import NetworkShape, initialise
from infodis.models.tokenizers import tokenizer_named
from infodis.rng import stream
from infodis.train import preferences, read_config

CONFIG = """
[model]
reference = "reference"

[data]
pairs = "pairs.jsonl"
valid = "valid.jsonl"

[optim]
loss = "dpo"
draws = 4
beta = 0.5
steps = {steps}
batch = 4
micro_batch = 2
warmup = 2
learning_rate = 0.003
ema = 0.9

[run]
device = "cpu"
log_every = {log_every}
validate_every = 5
valid_windows = 6
valid_evaluations = 4
checkpoint_every = 3
"""


def write_reference(directory: Path, **changes) -> None:
    """A small network that finds all letters about equally likely."""
    shape = NetworkShape(16, 1, 2, **changes)
    spec = checkpoint.Spec("radd", 4, shape, 12, tokenizer=tokenizer_named("dna", base=directory))
    network = spec.build()
    initialise(network, generator=stream(0, "weights"))
    directory.mkdir(parents=True)
    checkpoint.save(directory, spec, network.state_dict())


def write_pairs(path: Path, count: int) -> None:
    """What is chosen has many As; lengths differ, some texts come after a prompt."""
    generator, rows = stream(1, path.name), []
    for number in range(count):
        draws = torch.rand(2, 8, generator=generator)
        chosen, rejected = (
            "".join("ACGT"[int(4 * u**power)] for u in row)[: 5 + number % 4]
            for row, power in zip(draws, (2.5, 1), strict=True)
        )
        rows.append({"chosen": chosen, "rejected": rejected} | ({"prompt": "GT"} if number % 2 else {}))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def prepare(directory: Path, *, steps=14, log_every=1) -> Path:
    directory.mkdir(exist_ok=True)
    write_reference(directory / "reference")
    write_pairs(directory / "pairs.jsonl", 11)
    write_pairs(directory / "valid.jsonl", 9)
    path = directory / "config.toml"
    path.write_text(CONFIG.format(steps=steps, log_every=log_every))
    return path


def test_learns_what_is_preferred(tmp_path):
    """The first step begins at the reference: a margin of exactly zero. In the end held-out margins are positive."""
    path = prepare(tmp_path, steps=60)
    best = run(path, tmp_path / "run")
    found = records(tmp_path / "run")
    first = next(r for r in found if r["kind"] == "progress")
    assert first["nats"] == pytest.approx(math.log(2), rel=1e-7)
    assert first["margin"] == 0
    assert first["accuracy"] == 0.5
    last = [r for r in found if r["kind"] == "validation"][-1]
    assert last["accuracy"] > 0.8
    assert last["margin"] > 1
    assert last["loss"] + 2 * last["standard_error"] < math.log(2)
    policy, reference = infodis.load(best), infodis.load(tmp_path / "reference")
    assert infodis.nll(policy, "AAAAAA").value < infodis.nll(reference, "AAAAAA").value
    about = checkpoint.read_spec(best).about
    assert about["loss"] == "dpo"
    assert about["reference"] == reference.fingerprint


def test_margins_and_both_log_p_are_logged_and_shown(tmp_path):
    path = prepare(tmp_path, steps=5)
    done = CliRunner().invoke(app, ["train", str(path), "--out", str(tmp_path / "run")])
    assert done.exit_code == 0, done.exception
    for record in records(tmp_path / "run"):
        assert {"margin", "accuracy", "chosen_log_p", "rejected_log_p"} <= set(record)
        assert record["chosen_log_p"] < 0
    assert "step 5/5: loss 0." in done.stderr
    assert "margin +" in done.stderr
    assert "validation dpo" in done.stderr


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nobody killed, which reports every fourth step and saves every third."""
    directory = tmp_path_factory.mktemp("whole")
    path = prepare(directory, log_every=4)
    run(path, directory / "run")
    return path, directory / "run"


def same_as(out: Path, reference: Path) -> bool:
    kept = ("model.safetensors", "training.safetensors")
    numbers = [
        [{k: v for k, v in r.items() if "second" not in k} for r in records(place)] for place in (out, reference)
    ]
    files = [[(place / "step-00000014" / name).read_bytes() for name in kept] for place in (out, reference)]
    return numbers[0] == numbers[1] and files[0] == files[1]


def test_stopped_before_some_step_it_goes_on_with_the_same_losses(whole, tmp_path, monkeypatch):
    path, reference = whole
    right = preferences._PreferenceLoss.forward
    for last in (1, 3, 4, 8, 13):
        out, calls = tmp_path / f"stopped-{last}", iter(range(1000))

        def failing(self, plan, calls=calls, last=last):
            if next(calls) >= 2 * last:  # two micro-batches a step
                raise KeyboardInterrupt
            return right(self, plan)

        monkeypatch.setattr(preferences._PreferenceLoss, "forward", failing)
        with pytest.raises(KeyboardInterrupt):
            run(path, out)
        monkeypatch.undo()
        run(path, out, resume=True)
        assert same_as(out, reference), last


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.parametrize("moment", [0.0, 0.03, 0.1])
def test_killed_at_some_moment_it_goes_on_with_the_same_losses(whole, tmp_path, moment):
    path, reference = whole
    out = tmp_path / "killed"
    run_and_kill(path, out, moment=moment)
    run(path, out, resume=True)
    assert same_as(out, reference)


@pytest.mark.slow
def test_two_processes_go_through_the_same_losses(tmp_path):
    """Masks are named by content, seed and step: the process that draws them does not matter.

    The loop is that of other trainings, whose processes are compared by default; plans are in `core/test_plan.py`.
    """
    pytest.importorskip("accelerate")
    path = prepare(tmp_path, steps=6)
    run(path, tmp_path / "one")
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--cpu", "--num_processes", "2"]
    rest = ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0"]
    asked = [*launch, *rest, "-m", "infodis", "train", str(path), "--out", str(tmp_path / "two")]
    quiet = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(asked, env=quiet, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    one, two = (torch.tensor([nats for _, nats in losses(tmp_path / name)]) for name in ("one", "two"))
    torch.testing.assert_close(two, one, rtol=1e-4, atol=1e-5)


def test_every_pair_comes_up_once_in_an_epoch(tmp_path):
    task = preferences.Preferences(read_config(prepare(tmp_path)), tmp_path, torch.device("cpu"))
    task.pairs = task.pairs[:8]
    device = torch.device("cpu")
    for epoch in range(2):
        keys = [
            item.key
            for step in range(2 * epoch, 2 * epoch + 2)
            for number in range(2)
            for item in task.batch(step, number, device=device)[0].items
        ]
        assert sorted(keys) == sorted(item.key for pair in task.pairs for item in pair)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('reference = "reference"\n', ""), "model needs a size"),
        (('reference = "reference"', 'size = "tiny"'), r"model\.reference must be given; optim\.loss is 'dpo'"),
        (('pairs = "pairs.jsonl"\n', ""), r"data\.pairs must be given"),
        (('valid = "valid.jsonl"\n', ""), r"data\.valid must be given"),
        (('reference = "reference"', 'reference = "reference"\nwidth = 8'), r"leave out model\.width"),
        (('reference = "reference"', 'reference = "nothing"'), "There is no model 'nothing'"),
        (('pairs = "pairs.jsonl"', 'pairs = "none.jsonl"'), "There is no file"),
        (('pairs = "pairs.jsonl"', 'pairs = "bad.jsonl"'), r"bad\.jsonl, line 2: a pair must have the texts"),
        (('pairs = "pairs.jsonl"', 'pairs = "letters.jsonl"'), r"letters\.jsonl, line 1: .*the text holds 'X'"),
        (('pairs = "pairs.jsonl"', 'pairs = "torn.jsonl"'), r"torn\.jsonl, line 1: a line must be a JSON object"),
        (('pairs = "pairs.jsonl"', 'pairs = "pairs.jsonl"\ntrain = "x"'), r"Leave data\.train out"),
        (("draws = 4", "draws = 0"), r"optim\.draws must be positive"),
        (('loss = "dpo"', 'loss = "k-dce"'), r"optim\.draws and optim\.beta are options of dpo"),
    ],
)
def test_wrong_configurations_are_told(tmp_path, change, message):
    path = prepare(tmp_path)
    pair = {"chosen": "AC", "rejected": "GT"}
    for name, lines in (
        ("bad", [json.dumps(pair), json.dumps(pair | {"rejected": ""})]),
        ("letters", [json.dumps(pair | {"chosen": "AX"})]),
        ("torn", ['{"chosen": "A']),
    ):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    assert change[0] in path.read_text()
    path.write_text(path.read_text().replace(*change))
    with pytest.raises(InputError, match=message):
        run(path, tmp_path / "run")


def test_options_of_preferences_are_refused_elsewhere(tmp_path):
    path = prepare(tmp_path)
    text = path.read_text().replace("[run]", "[run]\ncompile = true")
    path.write_text(text)
    with pytest.raises(InputError, match=r"run\.compile must be false"):
        read_config(path)


def test_pairs_may_be_gzipped_and_long_ones_are_told(tmp_path):
    prepare(tmp_path)
    model = infodis.load(tmp_path / "reference")
    packed = tmp_path / "pairs.jsonl.gz"
    packed.write_bytes(gzip.compress((tmp_path / "pairs.jsonl").read_bytes()))
    plain, found = (preferences.read_pairs(p, model) for p in (tmp_path / "pairs.jsonl", packed))
    assert [[item.key for item in pair] for pair in plain] == [[item.key for item in pair] for pair in found]
    write_reference(tmp_path / "few positions", positions=6)
    with pytest.raises(InputError, match=r"line 2: .* at most 6 tokens, got 8"):
        preferences.read_pairs(tmp_path / "pairs.jsonl", infodis.load(tmp_path / "few positions"))
