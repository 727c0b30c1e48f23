"""Training: it learns, it survives being killed, and it says what is wrong."""

import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from training_runs import CHAIN, Silent, losses, prepare, records, run, run_and_kill
from typer.testing import CliRunner

import infodis
from infodis.cli import app
from infodis.errors import InputError
from infodis.files import UNFINISHED, locked
from infodis.models import checkpoint
from infodis.models.files import locate
from infodis.models.loading import load
from infodis.models.nets import RADD, NetworkShape, initialise
from infodis.rng import stream
from infodis.train import TrainingError
from infodis.train import losses as loss
from infodis.train.config import Config, DataConfig, ModelConfig, OptimConfig
from infodis.train.devices import Devices
from infodis.train.loop import LOCK, _check_shares
from infodis.train.optimizers import make_optimizers


def with_optimizer(path: Path, name: str) -> Path:
    path.write_text(path.read_text().replace("[optim]", f'[optim]\noptimizer = "{name}"'))
    return path


def command(path: Path, out: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "infodis", "train", str(path), "--out", str(out), *more]


QUIET = {**os.environ, "OMP_NUM_THREADS": "1"}


def test_learns_a_chain(tmp_path):
    """300 steps bring a tiny network near the entropy of the data: within 0.1 nats a token of the exact nll."""
    path = prepare(tmp_path, steps=300)
    text = path.read_text().replace("dropout = 0.1\n", "").replace("validate_every = 5", "validate_every = 150")
    path.write_text(text.replace("width = 16", "width = 32").replace("batch = 8\nmicro_batch = 4", "batch = 32"))
    run(path, tmp_path / "run")
    model = load(tmp_path / "run")
    held_out = CHAIN.sample(40, length=12, generator=stream(1, "held out"))
    mine = sum(e.value for e in infodis.nll(model, held_out, evaluations=32)) / 40 / 12
    exact = -sum(float(CHAIN.log_prob(row)) for row in held_out) / 40 / 12
    assert mine < exact + 0.1
    assert mine > exact - 0.02


@pytest.fixture(scope="module", params=["adamw"])
def whole(tmp_path_factory, request):
    """A run that nobody killed, which reports every fourth step and saves every third."""
    directory = tmp_path_factory.mktemp("whole")
    path = with_optimizer(prepare(directory, steps=14, log_every=4), request.param)
    run(path, directory / "run")
    return path, directory / "run"


@pytest.mark.parametrize("whole", ["adamw", "muon"], indirect=True)
def test_resumed_after_any_step_it_goes_on_with_the_same_losses(whole, tmp_path, monkeypatch):
    """Stopped by an error before each step in turn; reports between checkpoints average over both lives of the run."""
    path, reference = whole
    right = loss.CrossEntropy.value
    for last in range(1, 14):
        out = tmp_path / f"stopped-{last}"
        calls = iter(range(1000))

        def failing(self, *arguments, calls=calls, last=last):
            if next(calls) >= 2 * last:  # two forward passes a step
                raise KeyboardInterrupt
            return right(self, *arguments)

        monkeypatch.setattr(loss.CrossEntropy, "value", failing)
        with pytest.raises(KeyboardInterrupt):
            run(path, out)
        monkeypatch.undo()
        run(path, out, resume=True)
        assert losses(out) == losses(reference), last
        for name in ("model.safetensors", "training.safetensors"):
            assert (out / "step-00000014" / name).read_bytes() == (reference / "step-00000014" / name).read_bytes()


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.parametrize(
    ("whole", "moment"),
    [("adamw", 0.0), ("adamw", 0.02), ("adamw", 0.05), ("adamw", 0.1), ("muon", 0.02)],
    indirect=["whole"],
)
def test_killed_at_some_moment_it_goes_on_with_the_same_losses(whole, tmp_path, moment):
    path, reference = whole
    out = tmp_path / "killed"
    run_and_kill(path, out, moment=moment)
    with (out / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "progress", "st')  # a line that was being written
    run(path, out, resume=True)
    assert losses(out) == losses(reference)
    assert not list(out.glob(f"{UNFINISHED}*"))
    for name in ("model.safetensors", "training.safetensors"):
        assert (out / "step-00000014" / name).read_bytes() == (reference / "step-00000014" / name).read_bytes()


def test_muon_steps_are_orthogonal_inside_blocks_and_adamw_elsewhere():
    """The first step: singular values near one (but the tiniest), times rate and AdamW's scale; elsewhere the rate."""
    network = RADD(4, NetworkShape(16, 1, 2))
    initialise(network, generator=stream(0, "weights"))
    before = {name: value.clone() for name, value in network.state_dict().items()}
    for parameter in network.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=stream(1, "gradient"))
    for optimizer in make_optimizers(network, OptimConfig(optimizer="muon", learning_rate=0.01)):
        optimizer.step()
    for name, after in network.state_dict().items():
        moved = (after - before[name]).abs()
        if name.startswith("blocks.") and after.ndim == 2:
            scale = 0.01 * 0.2 * max(after.shape) ** 0.5
            found = torch.linalg.svdvals(after - before[name]) / scale
            assert found.median() > 0.6, name
            assert found.max() < 1.3, name
        else:
            torch.testing.assert_close(moved, torch.full_like(moved, 0.01), rtol=1e-3, atol=0)


@pytest.mark.parametrize(("first", "second"), [("adamw", "muon"), ("muon", "adamw")])
def test_a_run_keeps_its_optimizer(tmp_path, first, second):
    path = with_optimizer(prepare(tmp_path, steps=3), first)
    run(path, tmp_path / "run")
    path.write_text(path.read_text().replace(f'"{first}"', f'"{second}"').replace("steps = 3", "steps = 5"))
    with pytest.raises(InputError, match=f"with its own optimizer; .*step-00000003 was not trained with {second}"):
        run(path, tmp_path / "run", resume=True)


def test_muon_needs_a_torch_that_has_it(tmp_path, monkeypatch):
    monkeypatch.delattr(torch.optim, "Muon", raising=False)
    path = with_optimizer(prepare(tmp_path), "muon")
    with pytest.raises(InputError, match=r"needs torch 2\.9 or newer, got .* use .adamw."):
        run(path, tmp_path / "run")


def test_two_processes_go_through_the_same_losses(tmp_path):
    """Micro-batches are numbered over all processes, dropout included, so only the order of summing differs."""
    pytest.importorskip("accelerate")
    path = prepare(tmp_path, steps=6)
    run(path, tmp_path / "one")
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--cpu", "--num_processes", "2"]
    rest = ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0"]
    done = subprocess.run(
        [*launch, *rest, *command(path, tmp_path / "two")[1:]], env=QUIET, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Best checkpoint") == 1
    assert done.stderr.count("step 6/6") == 1
    one, two = losses(tmp_path / "one"), losses(tmp_path / "two")
    assert [step for step, _ in two] == [step for step, _ in one]
    torch.testing.assert_close(
        torch.tensor([n for _, n in two]), torch.tensor([n for _, n in one]), rtol=1e-4, atol=1e-5
    )


def test_passes_are_shared_equally():
    config = Config(ModelConfig(size="tiny"), DataConfig(train="a", valid="b", tokenizer="dna"), OptimConfig(batch=12))
    with pytest.raises(InputError, match=r"cannot be shared equally by 2 processes\. Set optim.micro_batch to 6"):
        _check_shares(config, 2)
    with pytest.raises(InputError, match="must be a multiple of the 5 processes, got 12"):
        _check_shares(config, 5)


def test_one_run_at_a_time_in_a_directory(tmp_path):
    path = prepare(tmp_path, steps=2)
    with locked(tmp_path / "run", name=LOCK), pytest.raises(InputError, match="Another process is at work"):
        run(path, tmp_path / "run")
    run(path, tmp_path / "run")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="must be a directory"):
        run(path, tmp_path / "file")


def test_commands_sample_and_score_with_a_run(tmp_path):
    path = prepare(tmp_path, steps=4)
    run(path, tmp_path / "run")
    asked = [
        "sample",
        "--model",
        str(tmp_path / "run"),
        "--template",
        "AC____GT",
        "-n",
        "3",
        "--sampler",
        "most-confident",
    ]
    result = CliRunner().invoke(app, asked)
    assert result.exit_code == 0, result.output
    rows = result.stdout.split()
    assert len(rows) == 3
    assert all(row.startswith("AC") and row.endswith("GT") and len(row) == 8 for row in rows)
    asked = ["perplexity", str(tmp_path / "valid.txt"), "--model", str(tmp_path / "run"), "--evaluations", "4"]
    result = CliRunner().invoke(app, asked)
    assert result.exit_code == 0, result.output
    assert re.search(r"tokens +│ 500 .*windows of 12 tokens +│ 42 ", result.output, re.DOTALL), result.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--template", "AC_", "--length", "3"], "has its own length"),
        (["--template", ""], "--template is empty"),
        (["--template", "AC__", "--gap", "__"], "--gap is one character"),
        (["--template", "XY_"], "the text holds 'X'"),
        (["--steps", "3", "--sampler", "above-threshold"], "decides by itself"),
        (["--sampler", "tweedie"], "left-to-right, right-to-left, random"),
        (["--tokenizer", "text8"], "has a tokenizer of its own"),
        (["--device", "gpu"], "device 'gpu' cannot be used"),
        (["--temperature", "0"], "temperature must be positive"),
    ],
)
def test_sampling_options_without_effect_or_sense_are_told(whole, options, message):
    done = CliRunner().invoke(app, ["sample", "-m", str(whole[1]), *options])
    assert isinstance(done.exception, InputError)
    assert message in str(done.exception)


def test_a_tokenizer_can_be_named_for_a_checkpoint_without_one(whole, tmp_path):
    network, spec = checkpoint.load(locate(whole[1]))
    (tmp_path / "bare").mkdir()
    checkpoint.save(tmp_path / "bare", dataclasses.replace(spec, tokenizer=None), network.state_dict())
    asked = ["sample", "-m", str(tmp_path / "bare"), "-n", "2", "--length", "5"]
    assert "Name one by --tokenizer" in str(CliRunner().invoke(app, asked).exception)
    done = CliRunner().invoke(app, [*asked, "--tokenizer", "dna"])
    assert [len(row) for row in done.stdout.split()] == [5, 5]
    assert "knows 27 tokens" in str(CliRunner().invoke(app, [*asked, "--tokenizer", "text8"]).exception)
    valid = str(whole[0].parent / "valid.txt")
    asked = ["perplexity", valid, "-m", str(tmp_path / "bare"), "--tokenizer", "dna", "--windows", "3"]
    assert re.search(r"windows of 12 tokens +│ 3 ", CliRunner().invoke(app, asked).output)


def test_keeps_the_last_and_the_best(tmp_path):
    path = prepare(tmp_path, steps=7)
    best = run(path, tmp_path / "run")
    kept = {p.name for p in (tmp_path / "run").glob("step-*")}
    pointer = json.loads((tmp_path / "run" / "checkpoints.json").read_text())
    assert kept == {pointer["last"], pointer["best"]} == {pointer["last"], best.name}
    assert pointer["last"] == "step-00000007"
    assert load(tmp_path / "run").decode(torch.tensor([0, 1, 2, 3])) == "ACGT"


@pytest.mark.parametrize("noise", ["absorbing", "uniform"])
def test_score_networks_train_and_sample(tmp_path, noise):
    path = prepare(tmp_path, network="sedd", loss="t-dse", steps=40)
    path.write_text(path.read_text().replace("dropout = 0.1", f'noise = "{noise}"'))
    run(path, tmp_path / "run")
    found = [nats for _, nats in losses(tmp_path / "run")]
    assert sum(found[-10:]) < sum(found[:10])
    kinds = {r["quantity"] for r in records(tmp_path / "run") if r["kind"] == "validation"}
    assert kinds == {"t-dse"}
    asked = ["sample", "-m", str(tmp_path / "run"), "--template", "AC____GT", "-n", "3", "--steps", "8"]
    done = CliRunner().invoke(app, [*asked, "--sampler", "ancestral" if noise == "absorbing" else "tau-leaping"])
    assert done.exit_code == 0, done.exception
    assert all(row.startswith("AC") and row.endswith("GT") and len(row) == 8 for row in done.stdout.split())
    if noise == "uniform":
        held_out = CHAIN.sample(4, length=12, generator=stream(1, "held out"))
        assert {one.quantity for one in infodis.score(load(tmp_path / "run"), held_out, evaluations=16)} == {"dse_nll"}
        assert isinstance(CliRunner().invoke(app, [*asked, "--greedy"]).exception, InputError)
    else:
        model = load(tmp_path / "run")
        held_out = CHAIN.sample(4, length=12, generator=stream(1, "held out"))
        assert all(e.value > 0 for e in infodis.nll(model, held_out, evaluations=16))


def test_a_loss_that_is_not_finite_stops_and_keeps_the_checkpoint(tmp_path, monkeypatch):
    path = prepare(tmp_path, steps=14)
    right = loss.CrossEntropy.value
    calls = iter(range(1000))

    def wrong(self, network, tokens, noise):
        found = right(self, network, tokens, noise)
        return found * float("nan") if next(calls) >= 14 else found  # two passes a step: the eighth step

    monkeypatch.setattr(loss.CrossEntropy, "value", wrong)
    with pytest.raises(TrainingError, match=r"not finite at step 8 .*step-00000006"):
        run(path, tmp_path / "run")
    monkeypatch.undo()
    run(path, tmp_path / "run", resume=True)
    assert [step for step, _ in losses(tmp_path / "run")] == list(range(1, 15))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("steps = 14", "step = 14"), r"unknown key optim\.step\. Did you mean 'steps'"),
        (("steps = 14", 'steps = "many"'), r"optim\.steps must be of type int, got 'many'"),
        (("steps = 14", "steps = 0"), r"optim\.steps must be positive"),
        (("micro_batch = 4", "micro_batch = 3"), r"must divide optim\.batch = 8"),
        (('loss = "k-dce"', 'loss = "t-dse"'), "A radd network trains with a cross-entropy"),
        (('loss = "k-dce"', 'loss = "mse"'), "optim.loss is one of k-dce"),
        (("width = 16", "width = 15"), "even width per head"),
        (("width = 16", 'size = "tiny"'), "not both"),
        (("width = 16", 'size = "huge"'), "one of tiny, small, medium"),
        (('network = "radd"', 'network = "gpt"'), "model.network is one of radd, sedd"),
        (('train = "train.txt"\n', ""), r"data\.train must be given"),
        (('train = "train.txt"', 'train = "none.txt"'), "no data file"),
        (('tokenizer = "dna"', 'tokenizer = "characters:AC"'), "the text holds"),
        (("[data]", "[data"), "not TOML"),
        (("valid_evaluations = 4", "valid_evaluations = 1"), "a standard error needs two"),
        (('device = "cpu"', 'device = "gpu"'), "device 'gpu' cannot be used"),
        (("steps = 14", 'steps = 14\nschedule = "cosine"'), "option of t-dce and t-dse; optim.loss is 'k-dce'"),
        (("steps = 14", 'steps = 14\nschedule = "linear"'), "log-linear, geometric, cosine"),
    ],
)
def test_wrong_configurations_are_told(tmp_path, change, message):
    path = prepare(tmp_path)
    assert change[0] in path.read_text()
    path.write_text(path.read_text().replace(*change))
    with pytest.raises(InputError, match=message):
        run(path, tmp_path / "run")


def test_an_existing_run_is_neither_overwritten_nor_continued_with_another_network(tmp_path):
    path = prepare(tmp_path, steps=3)
    run(path, tmp_path / "run")
    with pytest.raises(InputError, match="already holds a training run"):
        run(path, tmp_path / "run")
    path.write_text(path.read_text().replace("width = 16", "width = 32"))
    with pytest.raises(InputError, match="another network or tokenizer"):
        run(path, tmp_path / "run", resume=True)
    (tmp_path / "train.txt").unlink()
    with pytest.raises(InputError, match="already holds a training run"):  # told before any file is read
        run(path, tmp_path / "run")


def test_changed_settings_are_told_and_damaged_pointers_too(tmp_path):
    path = prepare(tmp_path, steps=3)
    run(path, tmp_path / "run")
    path.write_text(path.read_text().replace("steps = 3", "steps = 5"))
    reporter = Silent()
    run(path, tmp_path / "run", resume=True, reporter=reporter)
    assert reporter.messages == [
        "Resuming after step 3 of 5.",
        "Settings have changed since the run began: optim.steps 3 -> 5.",
    ]
    about = checkpoint.read_spec(tmp_path / "run" / "step-00000005").about
    assert about["versions"]["infodis"] == infodis.__version__
    assert len(about["validation_bits_per_token"]) == 2
    for damage, message in (("{", "must hold JSON"), ("{}", "it must hold last, best")):
        (tmp_path / "run" / "checkpoints.json").write_text(damage)
        with pytest.raises(InputError, match=message):
            load(tmp_path / "run")


def test_a_second_stage_starts_where_the_first_ended(tmp_path):
    first = prepare(tmp_path, loss="flat-dce", steps=30)
    first.write_text(first.read_text().replace("steps = 30", "steps = 30\ntop_level = 0.5"))
    run(first, tmp_path / "first")
    second = tmp_path / "second.toml"
    text = (
        first.read_text()
        .replace("flat-dce", "k-dce")
        .replace("\ntop_level = 0.5", "")
        .replace("steps = 30", "steps = 3")
    )
    second.write_text(text.replace("dropout = 0.1", 'start = "first"'))
    run(second, tmp_path / "second")
    fresh = tmp_path / "fresh.toml"
    fresh.write_text(text)
    run(fresh, tmp_path / "fresh")
    assert losses(tmp_path / "second")[0][1] < losses(tmp_path / "fresh")[0][1]
    second.write_text(second.read_text().replace('tokenizer = "dna"', 'tokenizer = "characters:GTCA"'))
    with pytest.raises(InputError, match="another tokenizer"):
        run(second, tmp_path / "third")


def test_command_line_tells_mistakes_in_one_line(tmp_path):
    done = subprocess.run(command(tmp_path / "no.toml", tmp_path), capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "There is no configuration file" in done.stderr
    assert "Traceback" not in done.stderr


def test_export_stores_fewer_bytes(tmp_path):
    path = prepare(tmp_path, steps=3)
    run(path, tmp_path / "run")
    result = CliRunner().invoke(app, ["export", str(tmp_path / "run"), str(tmp_path / "half"), "--dtype", "float16"])
    assert result.exit_code == 0, result.output
    whole, half = load(tmp_path / "run"), load(tmp_path / "half")
    tokens = torch.tensor([[0, 1, 2, 4]])
    torch.testing.assert_close(half.log_conditionals(tokens), whole.log_conditionals(tokens), atol=5e-3, rtol=0)
    assert (tmp_path / "half" / "model.safetensors").stat().st_size < 0.7 * (
        checkpoint_size := (tmp_path / "run" / "step-00000003" / "model.safetensors").stat().st_size
    ), checkpoint_size
    assert checkpoint.read_spec(tmp_path / "half").about["steps"] == 3


@pytest.mark.parametrize(("device", "on_processor"), [("auto", True), ("cpu", True)])
def test_processes_without_a_gpu_share_the_processor(monkeypatch, device, on_processor):
    """accelerate has to be told: else each process takes itself for the only one."""
    accelerate = pytest.importorskip("accelerate")
    asked = []

    class Told:
        device, process_index, num_processes = torch.device("cpu"), 1, 2

        def __init__(self, *, cpu):
            asked.append(cpu)

    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(accelerate, "Accelerator", Told)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert not Devices(device).first
    assert asked == [on_processor]
