"""The models that ship, and how models are found."""

import json
import os
import pickle
import shutil
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import infodis
from infodis.cli import app
from infodis.design import Enumerate
from infodis.errors import InputError
from infodis.models import adapters, checkpoint
from infodis.models.files import locate, shipped
from infodis.models.spec import ModelSpec
from infodis.oracle import Table
from infodis.rng import stream

SHELF = locate("dna-tiny").parent


def test_dna_tiny_knows_the_papers_toy_against_exact():
    """All 128 sequences, all 255 masks of each: mean error below 0.05 nats, correlation above 0.99."""
    table = Table.dna(seed=0)
    found = infodis.nll(infodis.load("dna-tiny"), table.sequences, design=Enumerate(), evaluations=255)
    mine = torch.tensor([estimate.value for estimate in found])
    exact = -table.probabilities.log().float()
    assert float((mine - exact).abs().mean()) < 0.05
    assert float(torch.corrcoef(torch.stack([mine, exact]))[0, 1]) > 0.99


def test_text8_tiny_prefers_text():
    loaded = infodis.load("text8-tiny")
    text = "the river flows through the north of the country and into the sea near the old city"
    order = torch.randperm(len(text), generator=stream(0)).tolist()
    shuffled = "".join(text[place] for place in order)
    ratio = infodis.log_ratio(loaded, loaded.encode(text), loaded.encode(shuffled), evaluations=64)
    assert ratio.value > 20
    assert ratio.value > 6 * ratio.standard_error


def test_models_are_small_and_have_cards():
    total = 0
    assert shipped() == ["bits-tiny", "dna-chain", "dna-list", "dna-tiny", "text8-block4", "text8-causal", "text8-tiny"]
    for name in shipped():
        size = sum(file.stat().st_size for file in (SHELF / name).iterdir())
        assert size < 4e6
        total += size
        card = (SHELF / name / "README.md").read_text()
        assert "infodis train" in card
    assert total < 24e6


def test_fingerprints_follow_weights(tmp_path):
    shutil.copytree(SHELF / "dna-tiny", tmp_path / "copy")
    assert infodis.load(tmp_path / "copy").fingerprint == infodis.load("dna-tiny").fingerprint
    network, spec = checkpoint.load(tmp_path / "copy")
    weights = dict(network.state_dict())
    weights["output_layer.linear.bias"] = weights["output_layer.linear.bias"] + 1
    checkpoint.save(tmp_path / "copy", spec, weights)
    assert infodis.load(tmp_path / "copy").fingerprint != infodis.load("dna-tiny").fingerprint


# A hash is of what was loaded


def other_weights(directory):
    network, spec = checkpoint.load(directory)
    weights = dict(network.state_dict())
    weights["output_layer.linear.bias"] = weights["output_layer.linear.bias"] + 1
    checkpoint.save(directory, spec, weights)


@pytest.fixture
def copy(tmp_path):
    return Path(shutil.copytree(SHELF / "dna-tiny", tmp_path / "copy"))


def scoring(copy, tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"text": "ACGT"}\n')
    how = ["--model", str(copy), "--threads", "1", "--evaluations", "16"]
    return CliRunner().invoke(app, ["score", str(tmp_path / "rows.jsonl"), "--out", str(tmp_path / "out.jsonl"), *how])


def test_weights_are_hashed_once_a_run(copy, tmp_path, monkeypatch):
    read, plain = [], Path.open
    monkeypatch.setattr(Path, "open", lambda path, *how, **more: [read.append(path.name), plain(path, *how, **more)][1])
    assert scoring(copy, tmp_path).exit_code == 0
    assert read.count("model.safetensors") == 1
    monkeypatch.undo()
    manifest = json.loads((tmp_path / "out.jsonl.manifest.json").read_text())
    record = json.loads((tmp_path / "out.jsonl").read_text())
    assert record["model"] == manifest["settings"]["model"] == infodis.load(copy).fingerprint


@pytest.mark.parametrize("moment", ["before it is read", "after it is read"])
def test_a_model_replaced_between_hash_and_load_is_noticed(copy, tmp_path, monkeypatch, moment):
    plain = adapters.load_model

    def replacing(directory, options):
        found = plain(directory, options) if moment == "after it is read" else None
        other_weights(directory)
        return found or plain(directory, options)

    monkeypatch.setattr(adapters, "load_model", replacing)
    found = scoring(copy, tmp_path)
    assert isinstance(found.exception, InputError)
    assert "changed while it was loaded" in str(found.exception)
    assert not (tmp_path / "out.jsonl").exists()


def test_workers_load_what_the_run_was_begun_with(copy):
    """A job that was begun travels to a worker, which finds another model there, or the same elsewhere."""
    begun = ModelSpec(str(copy))
    fingerprint = begun.settings()["model"]
    travelled = pickle.loads(pickle.dumps(begun))
    touched = copy / "model.safetensors"
    os.utime(touched, ns=(0, touched.stat().st_mtime_ns + 10**9))  # a copy of the same, as another machine may have
    travelled.load()
    assert travelled.fingerprint == fingerprint
    other_weights(copy)
    with pytest.raises(InputError, match="not the one that was there when this began"):
        travelled.load()


def test_a_fingerprint_asked_for_too_late_is_refused(copy):
    loaded = infodis.load(copy)
    other_weights(copy)
    with pytest.raises(InputError, match="changed after they were looked at"):
        loaded.fingerprint  # noqa: B018


def test_unknown_models_are_told(tmp_path):
    with pytest.raises(InputError, match=rf"ships with infodis \({', '.join(shipped())}\)"):
        infodis.load("gpt-5")
    with pytest.raises(InputError, match=r"no config\.json"):
        infodis.load(tmp_path)


def test_text_outside_the_alphabet_is_told():
    with pytest.raises(InputError, match="The alphabet is"):
        infodis.load("dna-tiny").encode("ACGU")


def test_perplexity_command(tmp_path):
    file = tmp_path / "dna.txt"
    sequences = Table.dna(seed=0).sample(20, length=8, generator=stream(0))
    file.write_text("\n".join("".join("ACGT"[t] for t in row) for row in sequences))
    result = CliRunner().invoke(app, ["perplexity", str(file), "--model", "dna-tiny", "--evaluations", "255"])
    assert result.exit_code == 0, result.output
    assert "windows of 8 tokens" in result.output
    bits = float(result.output.split("bits per token")[1].split("│")[1])
    assert 0.7 < bits < 1.1  # 128 nearly equally likely sequences of 8: a little under 7 / 8
