"""The models that ship, and how models are found."""

import shutil
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import infodis
from infodis import checkpoint, model
from infodis.cli import app
from infodis.design import Enumerate
from infodis.errors import InputError
from infodis.oracle import Table
from infodis.rng import stream

SHELF = Path(model.__file__).parent / "models"


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
    assert model.shipped() == ["dna-tiny", "text8-tiny"]
    for name in model.shipped():
        size = sum(file.stat().st_size for file in (SHELF / name).iterdir())
        assert size < 4e6
        total += size
        card = (SHELF / name / "README.md").read_text()
        assert "infodis train" in card
    assert total < 8e6


def test_fingerprints_follow_weights(tmp_path):
    shutil.copytree(SHELF / "dna-tiny", tmp_path / "copy")
    assert infodis.load(tmp_path / "copy").fingerprint == infodis.load("dna-tiny").fingerprint
    network, spec = checkpoint.load(tmp_path / "copy")
    weights = dict(network.state_dict())
    weights["output_layer.linear.bias"] = weights["output_layer.linear.bias"] + 1
    checkpoint.save(tmp_path / "copy", spec, weights)
    assert infodis.load(tmp_path / "copy").fingerprint != infodis.load("dna-tiny").fingerprint


def test_unknown_models_are_told(tmp_path):
    with pytest.raises(InputError, match=r"ships with infodis \(dna-tiny, text8-tiny\)"):
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
