"""Everything that decides a number is compared when a run goes on: every field of every settings type, every option.

The cases are read off the types and the commands. A new field or option fails here until this file says another value
for it, which a resume must refuse, or why no number depends on it.
"""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from infodis.apps.audit.measure import AuditJob
from infodis.cli import app
from infodis.control import Neighbours
from infodis.design import Tiled
from infodis.errors import InputError
from infodis.estimate import Request
from infodis.jobs.attributions import AttributionJob
from infodis.jobs.choices import ChoiceJob
from infodis.jobs.comparisons import RatioJob
from infodis.jobs.documents import DocumentsSpec
from infodis.jobs.inputs import InputSpec
from infodis.jobs.pairs import PairJob
from infodis.jobs.rolling import PerplexityJob
from infodis.jobs.scores import ScoreJob
from infodis.jobs.store import check_settings
from infodis.jobs.variants import VariantJob
from infodis.models import checkpoint
from infodis.models.files import locate
from infodis.models.loading import load
from infodis.models.options import WIRING, ModelOptions
from infodis.models.spec import ModelSpec
from infodis.mutants import WildType
from infodis.quantities.perplexity import Windows
from infodis.quantities.pseudo import Pll
from infodis.settings import UNCOMPARED, settings_of

SHELF = locate("dna-tiny").parent


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Two models that differ in one weight; neither has a tokenizer, so that one can be named."""
    directory = tmp_path_factory.mktemp("models")
    network, spec = checkpoint.load(SHELF / "dna-tiny")
    weights = network.state_dict()
    for name in ("one", "other"):
        (directory / name).mkdir()
        checkpoint.save(directory / name, dataclasses.replace(spec, tokenizer=None), weights)
        weights["output_layer.linear.bias"] = weights["output_layer.linear.bias"] + 1
    return directory


# Every field of every type


ONE = ModelSpec("one", ModelOptions(tokenizer="dna"))
VALUES = [
    ScoreJob(ONE),
    RatioJob(ONE, reference=ONE),
    ChoiceJob(ONE),
    PerplexityJob(ONE, Request()),
    AttributionJob(ONE),
    PairJob(ONE),
    VariantJob(ONE, WildType("ACGT")),
    AuditJob(ONE, reference=ONE),
    InputSpec("rows.jsonl", 16),
    DocumentsSpec(InputSpec("rows.jsonl", 16), Windows(8), None, load("dna-tiny")),
]
OTHER = {
    "ModelSpec": {"name": "other"},
    "ModelOptions": {
        "device": "cpu:0",
        "dtype": "bfloat16",
        "tokenizer": "characters:TGCA",
        "trust_remote_code": True,
        "autocast": True,
        "compile": True,
        "batch_tokens": 64,
        "block_size": 4,
        "block_origin": "response",
        "mask_token": 3,
        "causal": True,
        "allow_unknown": True,
    },
    "Request": {
        "design": Tiled(),
        "control": Neighbours(7),
        "evaluations": 64,
        "standard_error": 0.5,
        "batch_size": 3,
        "replicates": 3,
        "relative": 0.1,
    },
    "Reading": {"chat": True, "max_length": 7, "truncate": "left"},
    "Race": {
        "alpha": 0.1,
        "evaluations": 64,
        "design": Tiled(),
        "rows": 2,
        "control": None,
        "chance": 0.1,
    },
    "ScoreJob": {"seed": 1, "per_token": True, "quantity": Pll()},
    "RatioJob": {"seed": 1, "coupled": False},
    "ChoiceJob": {"seed": 1, "normalise": "token"},
    "PerplexityJob": {"seed": 1},
    "AttributionJob": {"seed": 1},
    "AuditJob": {"seed": 1},
    "PairJob": {"normalise": "token", "labelled": True},
    "PairRequest": {"scores": ("pll",), "seed": 1},
    "VariantJob": {},
    "WildType": {"sequence": "ACGA", "offset": 2},
    "EffectRequest": {"methods": ("wt_marginals",), "seed": 1},
    "InputSpec": {"shard_rows": 17, "limit": 3, "format": "text", "fields": {"text": "b"}, "keep": ("b",)},
    "Windows": {"length": 7, "stride": 3},
    "DocumentsSpec": {"windows": 3},
}
NO_NUMBER_DEPENDS_ON = {("InputSpec", "input"), ("DocumentsSpec", "model")}


def leaves(value, path=()):
    """The fields of a value and of the values in it: by path, with the type that each belongs to."""
    for field in dataclasses.fields(value):
        part, kind = getattr(value, field.name), type(value).__name__
        if UNCOMPARED in field.metadata:
            assert (kind, field.name) in NO_NUMBER_DEPENDS_ON
        elif dataclasses.is_dataclass(part) and type(part).__name__ in OTHER:
            yield from leaves(part, (*path, field.name))
        else:
            yield (*path, field.name), kind


def changed(value, path, other):
    name, *rest = path
    return dataclasses.replace(value, **{name: changed(getattr(value, name), rest, other) if rest else other})


CASES = [(value, path, kind) for value in VALUES for path, kind in leaves(value)]


@pytest.mark.parametrize(
    ("value", "path", "kind"), CASES, ids=[f"{type(v).__name__}.{'.'.join(path)}" for v, path, _ in CASES]
)
def test_a_change_of_any_field_is_refused(models, monkeypatch, value, path, kind):
    monkeypatch.chdir(models)
    assert path[-1] in OTHER[kind], f"{kind}.{path[-1]} is new: say another value for it in this test"
    other = changed(value, path, OTHER[kind][path[-1]])
    known = json.loads(json.dumps(value.settings()))
    check_settings(known, value.settings(), where=Path())
    with pytest.raises(InputError, match="was begun with other settings"):
        check_settings(known, other.settings(), where=Path())


def test_settings_of_one_name_would_be_seen():
    @dataclasses.dataclass(frozen=True)
    class Twice:
        windows: Windows = Windows(8)
        length: int = 3

    with pytest.raises(ValueError, match="two settings called length"):
        settings_of(Twice())


def test_a_tokenizer_is_known_by_its_content(models, tmp_path, monkeypatch):
    """Its files beside the weights, and a file that is named."""
    shutil.copytree(models / "one", tmp_path / "one")
    monkeypatch.chdir(tmp_path)
    plain = ModelSpec("one").settings()
    (tmp_path / "one" / "chat_template.jinja").write_text("{{ messages }}")
    assert {name for name, value in ModelSpec("one").settings().items() if plain[name] != value} == {"tokenizer"}
    pytest.importorskip("tokenizers")
    told = []
    for pieces in ({"A": 0, "C": 1}, {"C": 0, "A": 1}):
        made = {"version": "1.0", "added_tokens": [], "model": {"type": "WordLevel", "vocab": pieces, "unk_token": "A"}}
        (tmp_path / "words.json").write_text(json.dumps(made))
        told.append(ModelSpec("one", ModelOptions(tokenizer="words.json")).settings()["tokenizer"])
    assert len({plain["tokenizer"], *told}) == 3


# Every option of every command


ROW = {"prompt": "AC", "text": "GATTA", "other": "TTTT", "chosen": "GAT", "rejected": "CA", "choices": ["G", "TA"]}
ROW |= {"good": "GAT", "bad": "TAG", "third": "CCC", "linguistics_term": "x", "mutant": "A2C"}
FIXED = ["--tokenizer", "dna", "--threads", "1"]
COMMANDS = ("score", "ratio", "choose", "perplexity", "attribute", "audit", "pairs", "variants")
CHANGES = {
    "name": ["--model", "other"],
    "tokenizer": ["--tokenizer", "characters:TGCA"],
    "device": ["--device", "cpu:0"],
    "dtype": ["--dtype", "bfloat16"],
    "autocast": ["--autocast"],
    "compile": ["--compile"],
    "batch_tokens": ["--batch-tokens", "64"],
    "trust_remote_code": ["--trust-remote-code"],
    "block_size": ["--block-size", "4"],
    "block_origin": ["--block-origin", "response"],
    "mask_token": ["--mask-token", "3"],
    "causal": ["--causal"],
    "evaluations": ["--evaluations", "20"],
    "standard_error": ["--standard-error", "0.5"],
    "relative": ["--relative", "0.5"],
    "design": ["--design", "tiled"],
    "seed": ["--seed", "1"],
    "fields": ["--field", "text=other"],
    "keep": ["--keep", "other"],
    "format": ["--format", "jsonl"],
    "chat_template": ["--chat-template"],
    "max_length": ["--max-length", "7"],
    "truncate": ["--truncate", "left"],
    "limit": ["--limit", "1"],
    "shard_rows": ["--shard-rows", "3"],
    "threads": ["--threads", "2"],
    "per_token": ["--per-token"],
    "allow_unknown": ["--allow-unknown"],
    "quantity": ["--quantity", "nll"],  # another one would be refused for its options
    "reference": ["--reference", "other"],
    "coupled": ["--no-coupled"],
    "alpha": ["--alpha", "0.1"],
    "give_up": ["--give-up", "0.1"],
    "normalise": ["--normalise", "token"],
    "length": ["--length", "5"],
    "stride": ["--stride", "3"],
    "windows": ["--windows", "1"],
    "good": ["--good", "third"],
    "bad": ["--bad", "third"],
    "by": ["--by", "other"],
    ("pairs", "scores"): ["--scores", "pll"],
    ("variants", "scores"): ["--scores", "log_ratio"],
    "offset": ["--offset", "2"],
}
CALLED = {"name": "model", "fields": "fields", "chat_template": "chat", "give_up": "chance"}
CALLED |= dict.fromkeys(("good", "bad", "by"), "fields") | {("variants", "scores"): "methods"}
"""Settings that are not called like their options."""

HARMLESS = {
    **dict.fromkeys(("input", "a", "b", "text", "prompt", "members", "nonmembers"), "inputs: their content is hashed"),
    **dict.fromkeys(("task", "names"), "what is done with finished records"),
    **dict.fromkeys(("workers", "engine", "ray_address", "worker_cpus", "worker_gpus"), "who does it"),
    **dict.fromkeys(("out", "resume", "dry_run", "strict"), "whether and where it is done"),
    "wild_type": "its sequence is compared",
    "report": "implies --per-token",
    "order": "names a quantity, which is compared",
    "against": "every model has an output of its own",
    "responses": "names fields, which are compared",
}


def options_of(command):
    return [parameter.name for parameter in typer.main.get_command(app).commands[command].params]


def line_of(command, place):
    """A command on two rows. An audit ends when it does not find its second file, and has done the first."""
    if command == "audit":
        return [command, "rows.jsonl", "absent.jsonl", "--model", "one", "--out", place / "audit", *FIXED]
    reads = ["wt.fasta", "rows.jsonl"] if command == "variants" else ["rows.jsonl"]
    return [command, *reads, "--model", "one", "--out", place / f"{command}.jsonl", *FIXED]


def outcome(arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def finished(models, tmp_path_factory):
    """A finished run of every command."""
    place = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(models)
        Path("rows.jsonl").write_text("".join(json.dumps({"id": n, **ROW}) + "\n" for n in range(2)))
        Path("wt.fasta").write_text(">wild\nGATTA\n")
        pytest.importorskip("sklearn")  # for audits
        for command in COMMANDS:
            found = outcome([*line_of(command, place)])
            assert found.exit_code == 0 or "absent.jsonl" in str(found.exception), found.output
    return place


@pytest.mark.parametrize("command", COMMANDS)
def test_a_change_of_any_option_is_refused(models, finished, monkeypatch, command):
    monkeypatch.chdir(models)
    before = {path: path.read_bytes() for path in finished.rglob("*.json*") if path.is_file()}
    for option in options_of(command):
        if option in HARMLESS or (command, option) == ("perplexity", "compile"):  # it compiles before it compares
            continue
        change = CHANGES.get(option, CHANGES.get((command, option)))
        assert change, f"{command} has a new option {option}: say in this test how a resume refuses another"
        told = str(outcome([*line_of(command, finished), *change]).exception)
        if command == "perplexity" and option in ("chat_template", "truncate", "keep"):
            assert "leave --chat-template, --truncate and --keep out" in told
            continue
        if command == "variants" and option in ("chat_template", "truncate", "max_length"):
            assert "leave --chat-template, --truncate and --max-length out" in told
            continue
        if command == "perplexity" and option in WIRING:  # it loads the model before it compares
            assert f"{option} must be an option that the model can honour" in told
            continue
        name = "length" if (command, option) == ("perplexity", "max_length") else CALLED.get(option, option)
        name = CALLED.get((command, option), name)
        assert "was begun with other settings" in told, (command, option, told)
        assert f"{name}: was" in told, (command, option, told)
    assert {path: path.read_bytes() for path in finished.rglob("*.json*") if path.is_file()} == before
