"""Surrogates beside models: how they are made, stored, found and told of."""

import shutil
from pathlib import Path

import pytest
import torch
from command_line import invoke
from safetensors.torch import save_file

import infodis
from infodis.control import Surrogate
from infodis.design import Tiled
from infodis.errors import InputError
from infodis.models.calibration import calibrate, order_for
from infodis.models.files import locate
from infodis.models.options import ModelOptions
from infodis.models.spec import ModelSpec
from infodis.models.surrogate_file import SURROGATE, SurrogateFile
from infodis.oracle import Independent, MarkovChain
from infodis.rng import stream
from infodis.testing import Perturbed

CHAIN = MarkovChain.random(order=2, vocab_size=4, temperature=0.3)


def stored(path: Path, *, model: str = "fingerprint") -> SurrogateFile:
    chain = MarkovChain.counted(
        CHAIN.sample(8, length=200, generator=stream(0, "corpus")), order=3, vocab_size=4, classes=2
    )
    SurrogateFile(Surrogate(chain, beta=0.5), model, {"corpus": "letters"}).save(path)
    return SurrogateFile.load(path)


def test_a_calibrated_chain_lowers_the_variance():
    """Counted in other text of the same kind, for a predictor that stands for a network."""
    network = Perturbed(CHAIN, scale=0.1)
    corpus = CHAIN.sample(1, length=12_000, generator=stream(1, "corpus"))[0]
    surrogate = calibrate(network, corpus, texts=8)
    assert surrogate.beta is not None
    assert 0.6 < surrogate.beta <= 1.0
    tokens = CHAIN.sample(12, length=40, generator=stream(2, "corpus"))
    plain, beside = (
        sum(one.standard_error**2 for one in infodis.nll(network, tokens, design=Tiled(), control=control))
        for control in (infodis.Neighbours(), surrogate)
    )
    assert beside < plain / 1.3


def test_what_cannot_be_calibrated_is_told():
    with pytest.raises(InputError, match=r"at least 2,048 tokens.*got 100"):
        calibrate(CHAIN, torch.zeros(100, dtype=torch.int64), texts=8)
    with pytest.raises(InputError, match=r"at most 4,096 tokens, this model has 30,522"):
        order_for(30_522)
    assert order_for(591) == (1, None)


def test_a_file_gives_back_the_chain_that_it_stands_for(tmp_path: Path):
    """Float16 decides which chain that is; its conditionals and its likelihood agree exactly."""
    found = stored(tmp_path / SURROGATE)
    chain = found.surrogate.predictor
    assert isinstance(chain, MarkovChain)
    assert int(chain.classes.max()) == 1
    tokens = CHAIN.sample(1, length=9, generator=stream(3, "corpus"))[0]
    orders = infodis.nll(chain, tokens, design=infodis.Orders(), evaluations=64)
    assert orders.value == pytest.approx(-chain.log_prob(tokens), abs=1e-4)  # surprisals are float32
    assert found.about == {"corpus": "letters"}


def test_beta_belongs_to_one_model(tmp_path: Path):
    found = stored(tmp_path / SURROGATE, model="this one")
    assert found.for_model("this one").beta == 0.5
    assert found.for_model("another one").beta is None


def test_what_is_no_surrogate_is_refused(tmp_path: Path):
    path = tmp_path / SURROGATE
    path.write_bytes(b"")
    with pytest.raises(InputError, match="no surrogate of infodis"):
        SurrogateFile.load(path)
    save_file({"log_transitions": torch.zeros(2, 2)}, path)
    with pytest.raises(InputError, match="no surrogate of infodis"):
        SurrogateFile.load(path)
    with pytest.raises(InputError, match="Only chains are stored"):
        SurrogateFile(Surrogate(Independent(torch.tensor([0.5, 0.5])), beta=1.0), "").save(path)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A copy of text8-tiny."""
    return Path(shutil.copytree(locate("text8-tiny"), tmp_path / "model"))


def test_the_command_stores_it_and_scores_take_it(model: Path, tmp_path: Path):
    text = "the cat sat on the mat while the dog ran to the end of the long road "
    (tmp_path / "corpus.txt").write_text(text * 40)
    without = infodis.nll(infodis.load(model), "the dog sat on the long road", design=Tiled(), evaluations=16)
    settings = ModelSpec(str(model), ModelOptions(device="cpu")).settings()
    assert without.control == infodis.Neighbours()
    assert settings["surrogate"] is None
    invoke("calibrate", model, tmp_path / "corpus.txt", "--texts", 8, "--device", "cpu")
    loaded = infodis.load(model)
    found = infodis.nll(loaded, "the dog sat on the long road", design=Tiled(), evaluations=16)
    assert isinstance(found.control, Surrogate)
    assert loaded.fingerprint == infodis.load("text8-tiny").fingerprint  # it is no part of the model
    named = ModelSpec(str(model), ModelOptions(device="cpu")).settings()["surrogate"]
    assert loaded.wiring["surrogate"] == named == found.control.fingerprint
