"""Devices that are not here: everything runs on a pretend one, with the CPU's numbers; and what fits into memory."""

import json
from pathlib import Path

import pytest
import torch
import typer
from command_line import invoke
from pretend import OnDevice, pretend_device
from tiny_models import build
from training_runs import Silent, losses, prepare

import infodis
from infodis import evaluate
from infodis.cli import app
from infodis.device import resolve_device
from infodis.errors import InputError
from infodis.models import checkpoint
from infodis.models.doctor import examine, with_examples
from infodis.models.nets import RADD, SEDD, NetworkShape, initialise, products
from infodis.models.options import ModelOptions
from infodis.models.spec import ModelSpec
from infodis.noise.dse import from_denoiser, from_network, from_predictor, mdce
from infodis.noise.process import Absorbing, Uniform
from infodis.quantities.bounds import bounds
from infodis.reveal import InBlocks, MostConfident
from infodis.rng import stream
from infodis.sampling import Ancestral, ReverseStep, sample, sample_uniform
from infodis.train import losses as loss
from infodis.train import read_config, train

REFERENCES = Path(__file__).parents[1] / "references"
TOKENS = [torch.tensor([1, 7, 2, 9, 0, 5]), torch.tensor([3, 6, 8, 2])]


@pytest.fixture(autouse=True)
def one_library(monkeypatch):
    """Which library computes a product depends on the device, and each rounds in its own way."""
    monkeypatch.setattr(products, "onednn_is_faster", lambda: False)


def on_both(compute):
    """What `compute(device)` gives on the CPU and on the pretend device: lists of numbers, equal to the last digit."""
    with pretend_device():
        there = compute("mps")
    assert there == compute("cpu")


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    made = tmp_path_factory.mktemp("bert")
    build("bert", made)
    return {**{name: REFERENCES / name for name in ("llada", "dream", "mdlm", "radd", "sedd-absorb")}, "bert": made}


def test_the_pretend_device_refuses_what_mps_refuses():
    """Negative control: each line is how a result was once read, or noise once met a network."""
    with pretend_device():
        x, mask, loud = torch.ones(2, 3, device="mps"), torch.ones(2, 3).bool(), torch.tensor(2.0).double()
        for refused in (
            lambda: x.double(),
            lambda: x.to("cpu", torch.float64),
            lambda: x.to(torch.float64),
            lambda: mask.double().to(x.device),
            lambda: torch.zeros(2, dtype=torch.float64, device="mps"),
            lambda: torch.tensor([1.0], dtype=torch.float64, device="mps"),
            lambda: torch.mul(x.sum(), loud),
            lambda: x + torch.ones(3),
            lambda: torch.where(mask, x, 0.0),
            lambda: torch.cat([x, torch.ones(1, 3)]),
        ):
            with pytest.raises((TypeError, RuntimeError), match=r"float64|on the same device"):
                refused()
        assert type(x * loud) is OnDevice
        assert type(x.cpu().double()) is torch.Tensor
        assert x[mask].tolist() == mask.double().to(x)[mask.to("mps")].tolist() == [1.0] * 6


def test_the_code_as_it_was_fails_on_the_pretend_device(monkeypatch):
    """Negative control: results were cast on the device, and noise stayed on the CPU."""

    def checked(rows, found):
        return torch.zeros(rows.wanted.shape).double().masked_scatter(rows.wanted, found[0].to("cpu", torch.float64))

    with pretend_device():
        model = infodis.load(REFERENCES / "radd", device="mps")
        noise = loss.K_DCE.draw(TOKENS[0][None], vocab_size=model.vocab_size, generator=stream(0))
        with pytest.raises(RuntimeError, match="on the same device"):
            loss.K_DCE.value(model.network, TOKENS[0][None].to("mps"), noise)
        monkeypatch.setattr(evaluate, "_checked", checked)
        with pytest.raises(TypeError, match="float64"):
            infodis.nll(model, TOKENS[0], evaluations=8)
    assert infodis.nll(infodis.load(REFERENCES / "radd", device="cpu"), TOKENS[0], evaluations=8).value > 0


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["llada", "dream", "mdlm", "radd", "sedd-absorb", "bert"])
def test_models_score_on_a_device_without_float64(name, directories):
    def scores(device):
        model = infodis.load(directories[name], device=device)
        found = infodis.nll(model, TOKENS, context=[0], evaluations=8)
        ratio = infodis.log_ratio(model, TOKENS[0], TOKENS[0].roll(1), context=[0], evaluations=8)
        row = torch.tensor([[1, model.mask_token, 2, model.mask_token]])
        return [*(one.replicates.tolist() for one in found), ratio.value, sample(model, row).tolist()]

    on_both(scores)


@pytest.mark.parametrize("name", ["text8-block4", "text8-causal"])
def test_models_of_blocks_run_on_a_device_without_float64(name):
    """Two texts that begin alike, then a text that goes on: kept states lie on the device."""

    def scores(device):
        model = infodis.load(name, device=device)
        texts = torch.arange(24).repeat(2, 1) % 26
        texts[1, 22] = 3
        found = infodis.nll(model, list(texts), context=range(18))
        row = torch.cat([texts[:1, :18], torch.full((1, 6), model.mask_token)], 1)
        return [*(round(one.value, 4) for one in found), sample(model, row, greedy=True).tolist()]

    on_both(scores)


def test_whatever_asks_a_model_runs_on_a_device_without_float64():
    """Products of a single row are added up in another order there: the last digit of float32 may differ."""

    def asked(device):
        model = infodis.load(REFERENCES / "radd", device=device)
        row = torch.full((2, 6), model.mask_token)
        row[:, 0] = 3
        rules = (Ancestral(steps=3), MostConfident(per_step=2), InBlocks(size=3))
        process = Absorbing(model.vocab_size)
        found = bounds(model, TOKENS[0], orders=4, particles=2)
        likelihood = infodis.dse_nll(from_predictor(model), TOKENS[1], process=process, evaluations=16, nodes=8)
        return [
            [sample(model, row, rule=rule).tolist() for rule in rules],
            [found.nll.value, found.tangent_nll.value, round(found.most_confident_first.value, 5)],
            [likelihood.value, mdce(model, TOKENS[1], 0.5, evaluations=8).value],
            [
                round(infodis.order_nll(model, TOKENS[1], order=order).value, 5)
                for order in ("most-confident", "random")
            ],
            [finding.verdict for finding in examine(with_examples(model))],
        ]

    on_both(asked)


def test_scores_of_networks_on_a_device():
    """`from_network` and `sample_uniform` ask a network where it is; a denoiser may answer from anywhere."""

    def scored(device):
        masking, _ = checkpoint.load(REFERENCES / "sedd-absorb")
        uniform, spec = checkpoint.load(REFERENCES / "sedd-uniform")
        masking.to(device), uniform.to(device)
        vocab_size = spec.vocab_size
        flat = torch.full((vocab_size,), 1 / vocab_size).log().to(device)
        denoiser = from_denoiser(lambda noised, total, where: flat.expand(*noised.shape, -1), Uniform(vocab_size))
        few = {"evaluations": 16, "nodes": 8}
        with torch.no_grad():
            return [
                infodis.dse_nll(from_network(masking), TOKENS[1], process=Absorbing(vocab_size), **few).value,
                infodis.dse_nll(denoiser, TOKENS[1], process=Uniform(vocab_size), **few).value,
                sample_uniform(uniform, 2, 5, vocab_size=vocab_size, reverse=ReverseStep(steps=4)).tolist(),
            ]

    on_both(scored)


LOSSES = {
    "k-dce": loss.K_DCE,
    "lambda-dce": loss.LAMBDA_DCE,
    "t-dce": loss.TimeDCE(),
    "t-dse": loss.ScoreEntropy(),
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses_of_tokens_on_a_device(name):
    """Noise is drawn on the CPU and meets tokens and network where they are."""

    def gradients(device):
        network = (SEDD if name == "t-dse" else RADD)(8, NetworkShape(width=8, blocks=1, heads=2))
        initialise(network, generator=stream(0))
        network.to(device)
        function = LOSSES[name]
        value = function(network, torch.tensor([[1, 2, 3, 4], [5, 6, 7, 0]]).to(device), generator=stream(1))
        value.sum().backward()
        return [value.tolist(), [p.grad.sum().item() for p in network.parameters() if p.grad is not None]]

    on_both(gradients)


def test_training_on_a_device_without_float64(tmp_path):
    """Steps, validation, checkpoints and a resumed run: the losses of the CPU, digit for digit."""
    path = prepare(tmp_path, steps="STEPS")
    text = path.read_text().replace("dropout = 0.1\n", "").replace('"cpu"', '"DEVICE"')

    def trained(device):
        out = tmp_path / device
        for steps in (1, 2):
            path.write_text(text.replace("STEPS", str(steps)).replace("DEVICE", device))
            train(read_config(path), out, base=tmp_path, resume=out.exists(), reporter=Silent())
        assert json.loads((out / "settings.json").read_text())["run"]["device"].startswith(device)
        return losses(out)

    on_both(trained)


@pytest.fixture
def apple(monkeypatch):
    """A machine with an Apple GPU."""
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    with pretend_device():
        yield


def test_auto_is_the_first_device_that_is_there(monkeypatch):
    for cuda, mps, expected in ((True, True, "cuda"), (False, True, "mps"), (False, False, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=cuda: there)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda there=mps: there)
        assert resolve_device("auto") == ModelSpec("text8-tiny").options.device == expected
        assert (
            resolve_device("cuda:1")
            == ModelSpec("text8-tiny", ModelOptions(device="cuda:1")).options.device
            == "cuda:1"
        )
    with pytest.raises(InputError, match="'nowhere' cannot be used"):
        infodis.load("dna-tiny", device="nowhere")


def test_every_command_computes_on_the_device_that_is_there():
    commands = typer.main.get_command(app).commands
    found = {name: param.default for name, one in commands.items() for param in one.params if param.name == "device"}
    assert len(found) >= 10
    assert set(found.values()) == {"auto"}


def test_records_are_settled_on_the_device_that_auto_was(apple, monkeypatch, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"text": "some text"}\n')
    assert infodis.load("dna-tiny").device.type == "mps"
    score = ["score", rows, "--out", tmp_path / "out.jsonl", "--evaluations", "8", "--threads", "1"]
    invoke(*score)
    assert json.loads((tmp_path / "out.jsonl.manifest.json").read_text())["settings"]["device"] == "mps"
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(InputError, match="device"):
        invoke(*score)


@pytest.mark.parametrize(("device", "gpus", "told"), [("cuda", "0", "--worker-gpus 1"), ("cpu", "1", "--device cuda")])
def test_workers_of_ray_compute_on_what_they_are_given(device, gpus, told, tmp_path):
    (tmp_path / "rows.txt").write_text("some text\n")
    how = ("--engine", "ray", "--device", device, "--worker-gpus", gpus)
    with pytest.raises(InputError, match=told):
        invoke("score", tmp_path / "rows.txt", "--out", tmp_path / "out.jsonl", *how)
