"""Surrogates beside models: how they are made, stored, found and told of."""

import math
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
from infodis.models.calibration import calibrate, fit_hidden_markov
from infodis.models.files import locate
from infodis.models.options import ModelOptions
from infodis.models.spec import ModelSpec
from infodis.models.surrogate_file import SURROGATE, SurrogateFile
from infodis.oracle import HiddenMarkov, Independent, MarkovChain
from infodis.rng import stream
from infodis.testing import Perturbed

CHAIN = MarkovChain.random(order=2, vocab_size=4, temperature=0.3)


def stored(path: Path, *, model: str = "fingerprint") -> SurrogateFile:
    corpus = CHAIN.sample(1, length=1600, generator=stream(0, "corpus"))[0]
    fitted = fit_hidden_markov(corpus, vocab_size=4, states=8)
    SurrogateFile(Surrogate(fitted, beta=0.5), model, {"corpus": "letters"}).save(path)
    return SurrogateFile.load(path)


def test_a_calibrated_surrogate_lowers_the_variance():
    """Fitted to other text of the same kind, for a predictor that stands for a network."""
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
    with pytest.raises(InputError, match="at least 2 states, got 1"):
        fit_hidden_markov(torch.zeros(100, dtype=torch.int64), vocab_size=2, states=1)


@pytest.mark.parametrize("states", [16, 3])
def test_fitting_learns_what_is_hidden_against_exact(states: int):
    """With clones of tokens, and with fewer states than tokens: most of what there is to know beyond frequencies."""
    source = HiddenMarkov.random(states=3, vocab_size=6, temperature=0.06, seed=1)
    corpus, held_out = source.sample(2, length=20_000, generator=stream(4, "corpus"))
    fitted = fit_hidden_markov(corpus, vocab_size=6, states=states)
    frequencies = Independent(corpus.bincount(minlength=6).double() / len(corpus))
    rows = held_out[:2000].view(20, 100)
    exact, found, apart = (
        -sum(one.log_prob(row, context=range(10)) for row in rows) / 1800 for one in (source, fitted, frequencies)
    )
    assert exact - 0.01 < found < exact + 0.15 * (apart - exact)


def test_every_text_is_possible():
    fitted = fit_hidden_markov(torch.tensor([0, 1] * 400), vocab_size=5, states=6)
    assert fitted.log_prob([4, 3, 2, 2, 0]) > -math.inf


def test_a_file_gives_back_the_model_that_it_stands_for(tmp_path: Path):
    """Float16 decides which model that is; its conditionals and its likelihood agree exactly."""
    found = stored(tmp_path / SURROGATE)
    fitted = found.surrogate.predictor
    assert isinstance(fitted, HiddenMarkov)
    tokens = CHAIN.sample(1, length=9, generator=stream(3, "corpus"))[0]
    orders = infodis.nll(fitted, tokens, design=infodis.Orders(), evaluations=64)
    assert orders.value == pytest.approx(-fitted.log_prob(tokens), abs=1e-4)  # surprisals are float32
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
    with pytest.raises(InputError, match="Only hidden Markov models are stored"):
        SurrogateFile(Surrogate(Independent(torch.tensor([0.5, 0.5])), beta=1.0), "").save(path)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A copy of text8-tiny, without its surrogate."""
    return Path(shutil.copytree(locate("text8-tiny"), tmp_path / "model", ignore=shutil.ignore_patterns(SURROGATE)))


def test_text8_tiny_ships_with_one_of_its_own():
    model = infodis.load("text8-tiny")
    assert model.surrogate.beta is not None  # None for weights that it was not calibrated with


def test_the_command_stores_it_and_scores_take_it(model: Path, tmp_path: Path):
    text = "the cat sat on the mat while the dog ran to the end of the long road "
    (tmp_path / "corpus.txt").write_text(text * 40)
    without = infodis.nll(infodis.load(model), "the dog sat on the long road", design=Tiled(), evaluations=16)
    settings = ModelSpec(str(model), ModelOptions(device="cpu")).settings()
    assert without.control == infodis.Kernel()
    assert settings["surrogate"] is None
    invoke("calibrate", model, tmp_path / "corpus.txt", "--texts", 8, "--device", "cpu")
    loaded = infodis.load(model)
    found = infodis.nll(loaded, "the dog sat on the long road", design=Tiled(), evaluations=16)
    assert isinstance(found.control, Surrogate)
    assert loaded.fingerprint == infodis.load("text8-tiny").fingerprint  # it is no part of the model
    named = ModelSpec(str(model), ModelOptions(device="cpu")).settings()["surrogate"]
    assert loaded.wiring["surrogate"] == named == found.control.fingerprint


def test_an_older_one_is_replaced_and_other_files_are_not(model: Path, tmp_path: Path):
    (tmp_path / "corpus.txt").write_text("the cat sat on the mat while the dog ran " * 60)
    calibrated = ("calibrate", model, tmp_path / "corpus.txt", "--texts", 8, "--device", "cpu", "--states")
    invoke(*calibrated, 4)
    first = (model / SURROGATE).read_bytes()
    invoke(*calibrated, 5)
    assert (model / SURROGATE).read_bytes() != first
    (model / SURROGATE).write_text("mine")
    with pytest.raises(InputError, match="not what infodis wrote"):
        invoke(*calibrated, 5)
    assert (model / SURROGATE).read_text() == "mine"
