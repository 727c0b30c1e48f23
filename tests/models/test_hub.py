"""Models by their name on the hub: against a stand-in on loopback, which also fails as hubs do."""

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from loopback_hub import LoopbackHub, serving
from safetensors.torch import load_file

import infodis
from infodis.errors import InputError

pytest.importorskip("huggingface_hub")
from huggingface_hub import constants, file_download, utils

REFERENCES = Path(__file__).parents[1] / "references"
SHARDS = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub with a model whose weights are in two shards; nothing in the cache, nobody logged in."""
    model = tmp_path / "served"
    shutil.copytree(REFERENCES / "llada", model)
    (model / "answer.safetensors").unlink()
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # between attempts
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with serving(LoopbackHub({"owner/tiny": model})) as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        for module in (constants, file_download):  # versions before 1 keep it twice
            template = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
            monkeypatch.setattr(module, "HUGGINGFACE_CO_URL_TEMPLATE", template, raising=False)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
        connect(monkeypatch)
        yield hub


def connect(monkeypatch, *, offline=False):
    """Versions before 1 look at HF_HUB_OFFLINE when they begin a session, and keep that."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
    getattr(utils, "reset_sessions", lambda: None)()


def refused(match):
    return pytest.raises(InputError, match=match)


def check_loaded(name="owner/tiny"):
    """What the name gives is what the directory gives, to the last bit."""
    tokens = torch.tensor([[3, 7, 1, 9, 0]])
    expected = infodis.load(REFERENCES / "llada").log_conditionals(tokens)
    assert torch.equal(infodis.load(name).log_conditionals(tokens), expected)


def test_a_model_in_shards_is_that_of_its_directory(hub):
    check_loaded()
    assert set(SHARDS) <= set(hub.downloaded())


def test_files_in_the_cache_are_not_downloaded_again(hub):
    infodis.load("owner/tiny")
    hub.requests.clear()
    check_loaded()
    assert hub.downloaded() == []


def test_only_what_is_read_is_downloaded(hub):
    """Weights in two formats, copies for other programs: the safetensors of the top directory are enough."""
    model = hub.models["owner/tiny"]
    for other in ("pytorch_model.bin", "flax_model.msgpack", "original/model.safetensors", "onnx/config.json"):
        (model / other).parent.mkdir(exist_ok=True)
        (model / other).write_bytes(f"large {other}".encode())
    check_loaded()
    assert hub.downloaded() == ["config.json", *SHARDS, "model.safetensors.index.json"]


def test_pickled_weights_are_downloaded_where_there_are_no_others(hub, tmp_path):
    build = pytest.importorskip("tiny_models").build
    build("bert", hub.models.setdefault("owner/bert", tmp_path / "bert"))
    weights = tmp_path / "bert" / "model.safetensors"
    torch.save(load_file(weights), weights.with_name("pytorch_model.bin"))
    tokens = torch.tensor([[5, 6, 7, 8]])
    expected = infodis.load(tmp_path / "bert").log_conditionals(tokens)
    weights.unlink()
    assert torch.equal(infodis.load("owner/bert").log_conditionals(tokens), expected)
    assert "pytorch_model.bin" in hub.downloaded()


def test_a_shard_that_the_hub_lacks(hub):
    (hub.models["owner/tiny"] / SHARDS[1]).unlink()
    with refused(f"lacks {SHARDS[1]}, which model.safetensors.index.json names"):
        infodis.load("owner/tiny")


def test_a_model_without_configuration(hub):
    (hub.models["owner/tiny"] / "config.json").unlink()
    with refused(r"is not a model: it has no config\.json\. .+ must"):
        infodis.load("owner/tiny")


def test_a_repository_with_nothing_to_read(hub, tmp_path):
    hub.models["owner/other"] = tmp_path / "other"
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "model.gguf").write_bytes(b"another format")
    with refused(r"is not a model: it has no config\.json"):
        infodis.load("owner/other")
    assert hub.downloaded() == []


def test_a_file_that_is_listed_and_gone(hub):
    hub.lost = (SHARDS[0],)
    with refused(r"owner/tiny, and its download from the hub did not finish \(404 .+Try again"):
        infodis.load("owner/tiny")


def test_an_interrupted_download_goes_on_where_it_stopped(hub, monkeypatch):
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 100)
    hub.cuts = {SHARDS[0]: [1000]}
    with contextlib.suppress(InputError):  # versions before 1 leave it to the next call
        infodis.load("owner/tiny")
    check_loaded()
    assert [path.endswith(SHARDS[0]) for path in hub.resumed()] == [True]


def test_half_a_file_is_never_used(hub, monkeypatch):
    """The connection breaks until the download is given up; without the hub and with it again."""
    hub.cuts = {SHARDS[0]: [1000, *[0] * 20]}
    with refused(r"did not finish \(.+\)\. Try again"):
        infodis.load("owner/tiny")
    hub.cuts.clear()
    connect(monkeypatch, offline=True)
    with refused(f"cache lacks files of this model|lacks {SHARDS[0]}"):
        infodis.load("owner/tiny")
    connect(monkeypatch)
    check_loaded()


@pytest.mark.parametrize("status", [401, 403])
def test_a_gated_model_names_the_login(hub, status):
    hub.refusal = (status, "GatedRepo")
    with refused("gated. Accept its terms on its page there, then log in with `hf auth login` or set HF_TOKEN"):
        infodis.load("owner/tiny")


@pytest.mark.parametrize("status", [401, 404])
def test_an_unknown_model(hub, status):
    hub.refusal = (status, "RepoNotFound")
    with refused("There is no directory owner/unknown, and the hub shows no model of this name. Check the spelling"):
        infodis.load("owner/unknown")


def test_without_a_hub_the_cache_serves(hub, monkeypatch):
    infodis.load("owner/tiny")
    nobody = "http://127.0.0.1:9"  # refuses connections
    monkeypatch.setattr(constants, "ENDPOINT", nobody)
    check_loaded()
    with refused("the hub cannot be reached while its cache lacks files .+ Connect and try again"):
        infodis.load("owner/new")


def test_offline_by_choice(hub, monkeypatch):
    infodis.load("owner/tiny")
    hub.requests.clear()
    connect(monkeypatch, offline=True)
    check_loaded()
    with refused("the hub cannot be reached while its cache lacks files .+ Connect and try again"):
        infodis.load("owner/new")
    assert hub.requests == []


def test_the_command_line_takes_a_name(hub, tmp_path):
    """In a process of its own, as users set it: HF_ENDPOINT, HF_HOME."""
    environment = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home")}
    command = [sys.executable, "-m", "infodis", "doctor", "owner/tiny"]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=tmp_path, timeout=280)
    assert found.returncode == 0, found.stderr
    assert "llada" in found.stdout
