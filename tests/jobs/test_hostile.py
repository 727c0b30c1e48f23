"""What files and command lines may hold, and what must not come of it: whatever it is, one clear line, at once."""

import csv
import io
import json
import logging
import math
import shutil
import subprocess
import sys
import time
import unicodedata
import warnings
from pathlib import Path

import pytest
import torch
from rich.table import Table
from rich.text import Text
from typer.testing import CliRunner

import infodis
from infodis.cli import app, main
from infodis.cli.report import read_records
from infodis.cli.screen import Screen, tame_libraries
from infodis.errors import InfodisError, InputError, PredictorError
from infodis.figures import Figure, csv_text
from infodis.jobs.inputs.places import find
from infodis.models.files import POINTER, locate
from infodis.noise.gaussian import gaussian_nll
from infodis.predictor import from_function
from infodis.terminal import printable

REFERENCES = Path(__file__).parents[1] / "references"
HOSTILE = "\x1b]0;title\x07\x1b[31m \x9b2J \x85\u2028\u2029 \u202eback\u2066 [/red] [bold]x :bomb: \udc80\r"


def harmless(text: str) -> bool:
    return text.replace("\n", "").isprintable()


# --- The screen


def test_no_character_that_does_something_is_printable():
    """By the categories of Unicode: control, format, surrogate, line and paragraph separator."""
    for code in range(0x110000):
        character = chr(code)
        if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp"):
            assert printable(character) != character
            assert harmless(printable(character))
    assert printable("Grüße, 你好\n", keep="\n") == "Grüße, 你好\n"
    assert printable("\x1b" * 10, 6) == "\\x1b\\x"


def test_whatever_a_console_shows_is_text():
    screen = Screen(width=400)
    screen.file = io.StringIO()
    shown = Table("column", HOSTILE, title=HOSTILE, caption=HOSTILE)
    shown.add_row(HOSTILE, Text(HOSTILE, "bold"))
    for what in (HOSTILE, shown, Text.assemble("said: ", (HOSTILE, "red"))):
        screen.print(what)
    screen.error(HOSTILE)
    found = screen.file.getvalue()
    assert harmless(found)
    for literal in ("\\x1b[31m", "[/red] [bold]x :bomb:", "\\u202e"):
        assert found.count(literal) >= 7


@pytest.fixture
def process(monkeypatch):
    """What `main` changes of a process, changed back."""
    for module, name in ((sys, "excepthook"), (warnings, "formatwarning"), (sys, "argv")):
        monkeypatch.setattr(module, name, getattr(module, name))
    make = logging.getLogRecordFactory()
    yield monkeypatch
    logging.setLogRecordFactory(make)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(["score", f"a{HOSTILE}\nError: b"], 1), (["score", "a", f"--x{HOSTILE}"], 2), (["score", "a", HOSTILE], 2)],
    ids=["no such file", "no such option", "one argument too many"],
)
def test_a_mistake_is_one_harmless_line(process, capsys, arguments, code):
    process.setattr(sys, "argv", ["infodis", *arguments])
    with pytest.raises(SystemExit) as left:
        main()
    told = capsys.readouterr().err
    assert left.value.code == code
    assert told.startswith("Error: ")
    assert told.count("\n") == 1
    assert harmless(told)


def test_what_libraries_say_is_harmless(process, capsys):
    tame_libraries()
    assert harmless(warnings.formatwarning(HOSTILE, UserWarning, HOSTILE, 1, HOSTILE))
    record = logging.getLogger("some").makeRecord("some", logging.INFO, "", 1, "%s", (HOSTILE,), None)
    assert harmless(record.getMessage())
    sys.excepthook(ValueError, ValueError(HOSTILE), None)
    told = capsys.readouterr().err
    assert "ValueError" in told
    assert harmless(told)


def test_a_dry_run_quotes_fields_as_they_are(tmp_path):
    (tmp_path / "rows.jsonl").write_text(json.dumps({"[/red]": 1, "\x1b[31m": 2}) + "\n")
    done = CliRunner().invoke(app, ["score", str(tmp_path / "rows.jsonl"), "--dry-run"])
    assert done.exit_code == 0, done.exception
    assert "[/red]" in done.output
    assert harmless(done.output)


def test_closed_streams_are_told_before_the_work(monkeypatch):
    done = subprocess.run(
        ["sh", "-c", f"{sys.executable} -m infodis version >&-"], stderr=subprocess.PIPE, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr == "Error: Standard output is closed. Leave it open, or discard it: > /dev/null.\n"
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(InputError, match="Standard input is closed"), find("-").opened():
        pass


COMMANDS = {
    **{name: ["rows"] for name in ("score", "ratio", "choose", "perplexity", "attribute", "bounds", "curve")},
    "audit": ["rows", "rows"],
    "sample": [],
    "reproduce": ["all"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_seed_that_no_column_holds_is_refused(command):
    done = CliRunner().invoke(app, [command, *COMMANDS[command], "--seed", str(2**70)])
    assert done.exit_code == 2
    assert "--seed" in done.output


# --- Records and figures


def test_only_a_line_feed_ends_a_record(tmp_path):
    text = "one\u2028two\x85three\x1cfour\x0bfive"
    (tmp_path / "r.jsonl").write_text(json.dumps({"id": text, "value": 1.0}, ensure_ascii=False) + "\n", "utf-8")
    assert read_records(tmp_path / "r.jsonl", None) == [{"id": text, "value": 1.0}]


@pytest.mark.parametrize(
    ("record", "told"),
    [
        ('{"value": NaN}', "it holds NaN"),
        ('{"value": -Infinity}', "it holds -Infinity"),
        ('{"value": 1e999}', "value must be a finite number"),
        ('{"value": -1e300}', "value must be a finite number"),
        ('{"value": "1"}', "value must be a finite number"),
        ('{"value": true}', "value must be a finite number"),
        ('{"value": 1, "tokens": 1.5}', "tokens must be a whole number"),
        ('{"value": 1, "per_token": [1, "x"]}', "per_token must be a list of finite numbers"),
        ('{"value": 1, "influence": [1]}', "influence must be a list of lists"),
        ('{"value": 1, "pieces": "abc"}', "pieces must be a list of texts"),
        ("[" * 100_000, "nested too deeply"),
    ],
    ids=lambda text: text[:30],
)
def test_records_that_hold_no_numbers_are_refused(tmp_path, record, told):
    (tmp_path / "r.jsonl").write_text(record + "\n")
    with pytest.raises(InputError, match=told):
        read_records(tmp_path / "r.jsonl", None)


def test_cells_of_figures_are_no_formulas():
    texts = ("=1+1", "+1", "-1", "@x", "\t=1", "\n=1", "fine")
    figure = Figure("name", "title", "caption", {}, tuple({"text": text, "number": -1.5} for text in texts))
    rows = list(csv.DictReader(io.StringIO(csv_text(figure), newline="")))
    assert [row["text"] for row in rows] == [*(f"'{text}" for text in texts[:-1]), "fine"]
    assert {row["number"] for row in rows} == {"-1.5"}
    assert "\r" not in csv_text(Figure("name", "title", "caption", {}, ({"text": "a\r=1"},)))


@pytest.mark.parametrize("low", [-1e300, -1e39])
def test_a_number_that_would_overflow_is_an_error_and_no_value(low):
    known = torch.tensor([0.0, low, -math.inf], dtype=torch.float64)
    predictor = from_function(lambda rows: known.expand(*rows.shape, 3), vocab_size=3, mask_token=3)
    with pytest.raises(PredictorError, match="surprisal must be"):
        infodis.nll(predictor, [0, 1, 0, 1, 1])
    with pytest.raises(PredictorError, match="surprisal must be"):
        infodis.order_nll(predictor, [0, 1, 1], order="most-confident")
    assert infodis.nll(predictor, [0, 0, 0]).value == 0  # what is never asked for may be as small as it likes
    assert infodis.nll(predictor, [0, 2, 0]).impossible
    with pytest.raises(PredictorError, match="gaussian_nll must be a number"):
        gaussian_nll(lambda z, snr: z * 0, [-1e150, 0.0])


# --- Models


def spoilt(tmp_path: Path, source: Path, key: str, value: object) -> Path:
    """A copy of a model with another value in its configuration; dots lead into tables."""
    shutil.copytree(source, tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    *path, last = key.split(".")
    inner = config
    for name in path:
        inner = inner[name]
    inner[last] = value
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    return tmp_path / "model"


def refused(directory: Path) -> str:
    """What is said about a model, and that it is said at once: an absurd network takes minutes, or all memory."""
    start = time.process_time()
    with pytest.raises(InfodisError) as caught:
        infodis.load(directory)
    assert time.process_time() - start < 5
    return str(caught.value)


@pytest.mark.parametrize(
    ("source", "key", "value", "told"),  # nothing where type checks, which only tests have, come first
    [
        ("text8-tiny", "vocab_size", 10**10, "too much for weights"),
        ("text8-tiny", "shape.blocks", 10**6, "too much for weights"),
        ("text8-tiny", "shape.feed", 10**6, "does not fit"),
        ("text8-tiny", "vocab_size", "27", ""),
        ("text8-tiny", "vocab_size", True, "must be a whole number"),
        ("text8-tiny", "shape.heads", 6.0, ""),
        ("text8-tiny", "shape", 5, "another type"),
        ("text8-tiny", "shape.dropout", "x", "another type"),
        ("text8-tiny", "length", -1, "A network needs"),
        ("text8-tiny", "tokenizer", 5, ""),
        ("text8-tiny", "tokenizer.alphabet", [1], "alphabet, a text"),
        ("radd", "model.n_blocks", 10**6, "too much for weights"),
        ("radd", "model.type", 5, "another type"),
        ("llada", "vocab_size", 10**30, "too much for weights"),
        ("llada", "n_layers", 10**6, "too much for weights"),
        ("llada", "rope_theta", "x", ""),
        ("llada", "mask_token_id", "x", "wrong type"),
        ("llada", "max_sequence_length", "x", ""),
        ("llada", "pad_token_id", 10**9, "pad token must be"),
        ("dream", "num_hidden_layers", 10**6, "too much for weights"),
        ("dream", "bos_token_id", "x", ""),
        ("mdlm", "n_blocks", 10**6, "too much for weights"),
        ("mdlm", "vocab_size", "x", "wrong type"),
    ],
)
def test_absurd_configurations_are_told_at_once(tmp_path, source, key, value, told):
    where = locate(source) if source == "text8-tiny" else REFERENCES / source
    assert told in refused(spoilt(tmp_path, where, key, value))


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    transformers = pytest.importorskip("transformers")
    transformers.utils.logging.disable_progress_bar()
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    path = tmp_path_factory.mktemp("bert")
    config = transformers.BertConfig(vocab_size=11, mask_token_id=4, max_position_embeddings=32, **sizes)
    transformers.BertForMaskedLM(config).save_pretrained(path)
    infodis.load(path)
    return path


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("vocab_size", value) for value in (10**10, "x", None)),
        *(("num_hidden_layers", value) for value in (10**6, "x")),
        *(("max_position_embeddings", value) for value in (10**10, "x", -5)),
        *(("model_type", value) for value in ([1], 5)),
        *(("num_labels", 10**7), ("num_attention_heads", 0), ("auto_map", 5), ("pad_token_id", "x")),
        *(("mask_token_id", "x"), ("id2label", 5)),
    ],
)
def test_absurd_configurations_of_transformers_are_told_at_once(tmp_path, bert, key, value):
    refused(spoilt(tmp_path, bert, key, value))


@pytest.mark.parametrize("name", ["../../secret", "/etc/passwd", "a/../../b", "", 5, None, ["a"], "a\x00b"], ids=str)
def test_a_model_names_only_files_of_its_own(tmp_path, name):
    shutil.copytree(REFERENCES / "llada", tmp_path / "model")
    (tmp_path / "model" / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    assert "model.safetensors.index.json" in refused(tmp_path / "model")
    shutil.copytree(locate("text8-tiny"), tmp_path / "run")
    pointer = {"last": name, "best": name, "step": 1, "best_step": 1}
    (tmp_path / "run" / POINTER).write_text(json.dumps(pointer))
    assert POINTER in refused(tmp_path / "run")


@pytest.mark.parametrize("content", ["[" * 100_000, "5", '"x"', "[]", "{}", "NaN", '{"a": ' + "9" * 5000 + "}", "\xff"])
@pytest.mark.parametrize("file", ["config.json", POINTER, "model.safetensors.index.json"])
def test_files_that_are_not_what_they_should_be_are_named(tmp_path, file, content):
    shutil.copytree(REFERENCES / "llada", tmp_path / "model")
    (tmp_path / "model" / file).write_text(content, "latin-1")
    assert file in refused(tmp_path / "model")


@pytest.mark.parametrize(
    ("template", "told"),
    [
        ("{{ raise_exception('no \x1b[31m users') }}", "TemplateError"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ messages[0]['content'].__class__.__mro__ }}", "SecurityError"),
        ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "TimeoutError"),
        ("{% for", "TemplateSyntaxError"),
    ],
)
def test_chat_templates_that_fail_are_told_before_the_work(tmp_path, template, told):
    pytest.importorskip("transformers")
    from tokenizers import Tokenizer, models, pre_tokenizers

    shutil.copytree(REFERENCES / "llada", tmp_path / "model")
    words = Tokenizer(models.WordLevel({"<s>": 0, "hi": 1, "there": 2}, unk_token="<s>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.save(str(tmp_path / "model" / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": template}
    (tmp_path / "model" / "tokenizer_config.json").write_text(json.dumps(settings))
    (tmp_path / "rows.jsonl").write_text(json.dumps({"prompt": "hi", "response": "there"}) + "\n")
    asked = ["score", str(tmp_path / "rows.jsonl"), "-m", str(tmp_path / "model"), "--chat-template"]
    found = CliRunner().invoke(app, asked).exception
    assert isinstance(found, InputError)
    assert f"fails: {told}" in str(found)
