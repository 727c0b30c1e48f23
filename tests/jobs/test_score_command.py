"""`infodis score | ratio | choose | perplexity` as people run them."""

import csv
import gzip
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command_line import invoke

import infodis
from infodis.errors import InputError
from infodis.models.files import locate

TEXTS = ["the cat sat on the mat", "seven wizards", "a", "the capital of france is paris", "zzzz qqqq"]
FEW = ["--evaluations", "16", "--threads", "1"]


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"id": n, "text": text}) + "\n" for n, text in enumerate(TEXTS)))
    return path


def test_score_is_nll_of_every_row(rows, tmp_path):
    found = invoke("score", rows, "--out", tmp_path / "out.jsonl", *FEW, "--per-token")
    model = infodis.load("text8-tiny")
    for record, text in zip(read(tmp_path / "out.jsonl"), TEXTS, strict=True):
        alone = infodis.nll(model, model.encode(text), evaluations=16)
        assert record["value"] == pytest.approx(alone.value, abs=1e-3)
        assert record["standard_error"] == pytest.approx(alone.standard_error, abs=1e-3)
        assert record["evaluations"] == alone.evaluations
        assert record["bits_per_byte"] == pytest.approx(alone.value / math.log(2) / len(text), abs=1e-3)
        assert sum(record["per_token"]) == pytest.approx(record["value"], abs=1e-4)
        assert record["model"] == model.fingerprint
    assert "bits per byte" in found.output
    assert read(tmp_path / "out.jsonl")[2]["evaluations"] == 1  # one token: one forward pass


@pytest.mark.parametrize("quantity", ["pll", "pll-within-words"])
def test_other_quantities_are_those_of_python(rows, tmp_path, quantity):
    out = tmp_path / "out.jsonl"
    found = invoke("score", rows, "--out", out, "--threads", "1", "--quantity", quantity, "--per-token")
    alone = infodis.score("text8-tiny", TEXTS, quantity=quantity)
    for record, one in zip(read(out), alone, strict=True):
        assert record["quantity"] == quantity.replace("-", "_")
        assert record["value"] == pytest.approx(one.value, abs=1e-4)
        assert (record["evaluations"], record["standard_error"], record["stopped"]) == (one.tokens, 0.0, "exact")
        assert sum(record["per_token"]) == pytest.approx(record["value"], abs=1e-4)
    summary = json.loads((tmp_path / "out.jsonl.manifest.json").read_text())["summary"]
    assert summary["pseudo_perplexity"] == pytest.approx(alone.perplexity, rel=1e-5)
    assert "pseudo-perplexity per token" in found.output
    with pytest.raises(InputError, match="Leave them out"):
        invoke("score", rows, "--out", tmp_path / "no.jsonl", "--quantity", quantity, *FEW)


def test_all_inputs_give_the_same_records(rows, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    invoke("score", rows, "--out", tmp_path / "out.jsonl", *FEW)
    expected = [record["value"] for record in read(tmp_path / "out.jsonl")]
    with (tmp_path / "rows.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("id", "text"), *enumerate(TEXTS)])
    (tmp_path / "rows.txt").write_text("\n".join(TEXTS))
    (tmp_path / "packed.jsonl.gz").write_bytes(gzip.compress(rows.read_bytes()))
    parquet.write_table(pyarrow.table({"text": TEXTS}), tmp_path / "rows.parquet")
    for name in ("rows.csv", "rows.txt", "packed.jsonl.gz", "rows.parquet"):
        out = tmp_path / f"{name}.out.jsonl"
        invoke("score", tmp_path / name, "--out", out, *FEW)
        assert [record["value"] for record in read(out)] == expected, name
    piped = invoke("score", "-", *FEW, input=rows.read_text())
    assert [json.loads(line)["value"] for line in piped.stdout.splitlines()] == expected


def test_bad_rows_are_rejected_and_the_exit_code_says_so(rows, tmp_path):
    long = "a" * 400
    bad = [
        "not json",
        '{"id": 0, "text": "again"}',
        '{"text": 3}',
        '{"text": ""}',
        json.dumps({"text": long}),
        '{"text": "A"}',
    ]
    rows.write_text(rows.read_text() + "\n".join(bad) + "\n")
    out = tmp_path / "out.jsonl"
    invoke("score", rows, "--out", out, *FEW, code=3)
    assert len(read(out)) == len(TEXTS)
    assert [row["line"] for row in read(tmp_path / "out.jsonl.rejected.jsonl")] == [6, 7, 8, 9, 10, 11]
    cut = tmp_path / "cut.jsonl"
    invoke("score", rows, "--out", cut, *FEW, "--truncate", "left", code=3)
    assert read(cut)[-1]["truncated"] == 400 - 256


def test_a_standard_error_is_reached_where_it_is_asked_for(rows, tmp_path):
    invoke("score", rows, "--out", tmp_path / "out.jsonl", "--standard-error", "1.0", "--threads", "1")
    invoke("score", rows, "--out", tmp_path / "share.jsonl", "--relative", "0.02", "--threads", "1")
    for record, other in zip(read(tmp_path / "out.jsonl"), read(tmp_path / "share.jsonl"), strict=True):
        assert record["stopped"] == "exact" or record["standard_error"] <= 1.0
        assert other["stopped"] == "exact" or other["standard_error"] <= 0.02 * other["value"]


def test_dry_run_writes_nothing(rows, tmp_path):
    found = invoke("score", rows, "--out", tmp_path / "out.jsonl", *FEW, "--dry-run")
    assert "5 in 1 shards" in found.output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows.jsonl"]


def test_other_settings_on_resume_are_named(rows, tmp_path):
    out = tmp_path / "out.jsonl"
    invoke("score", rows, "--out", out, *FEW)
    before = out.read_bytes()
    for change in (["--seed", "1"], ["--dtype", "bfloat16"], ["--design", "orders"], ["--model", "dna-tiny"]):
        with pytest.raises(infodis.errors.InputError, match=rf"{change[0].strip('-')}: was"):
            invoke("score", rows, "--out", out, *FEW, *change)
    assert out.read_bytes() == before
    assert "Nothing was left to do" in invoke("score", rows, "--out", out, *FEW).output
    invoke("score", rows, "--out", out, *FEW, "--seed", "1", "--no-resume")
    assert out.read_bytes() != before


def test_another_tokenizer_on_resume_is_named(rows, tmp_path):
    """Its tokens mean something else, though model and text are the same."""
    out, model = tmp_path / "out.jsonl", Path(__file__).parents[1] / "references" / "llada"
    alphabet = "abcdefghijklmnopqrstuvwxyz "
    how = ["score", rows, "--out", out, *FEW, "--model", model, "--tokenizer"]
    invoke(*how, f"characters:{alphabet}")
    with pytest.raises(InputError, match="tokenizer: was"):
        invoke(*how, f"characters:{alphabet[::-1]}")
    assert "Nothing was left to do" in invoke(*how, f"characters:{alphabet}").output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["score", "ROWS", "--out", "nowhere/out.jsonl"], "There is no directory"),
        (["score", "ROWS", "--out", "out.xlsx"], r"ends in .jsonl, .csv or .parquet"),
        (["score", "ROWS", "--model", "no-such-model"], "There is no model"),
        (["score", "absent.jsonl"], "absent.jsonl"),
        (["score", "ROWS", "--design", "best"], "A design is one of"),
        (["score", "ROWS", "--engine", "spark"], "local or ray"),
        (["score", "ROWS", "--field", "words"], "text=sentence"),
        (["score", "ROWS", "--truncate", "middle"], "left or right"),
        (["score", "ROWS", "--standard-error", "-1"], "must be positive"),
        (["choose", "ROWS", "--normalise", "words"], "none, token or byte"),
        (["choose", "ROWS", "--alpha", "2"], "alpha"),
        (["score", "ROWS", "--evaluations", "1"], "Ask for evaluations=2 or more"),
        (["score", "ROWS", "--evaluations", "1", "--standard-error", "1"], "Ask for evaluations=2 or more"),
        (["score", "ROWS", "--evaluations", "3", "--design", "pairs"], "Ask for evaluations=4 or more"),
        (["ratio", "ROWS", "--evaluations", "1"], "Ask for evaluations=2 or more"),
        (["choose", "ROWS", "--evaluations", "1"], "Ask for evaluations=2 or more"),
        (["perplexity", "ROWS", "--evaluations", "1"], "Ask for evaluations=2 or more"),
        (["attribute", "ROWS", "--evaluations", "7"], "evaluations must be at least 8, got 7"),
    ],
)
def test_mistakes_are_told_in_a_line(rows, tmp_path, arguments, message, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(infodis.errors.InfodisError, match=message):
        invoke(*[str(rows) if argument == "ROWS" else argument for argument in arguments])
    assert not list(tmp_path.glob("*.work"))


def test_ratio_against_log_ratio(tmp_path):
    path, out = tmp_path / "pairs.jsonl", tmp_path / "out.jsonl"
    triplets = [("the king of ", "england", "qwxzjkv"), ("two and two is ", "four", "three hundred")]
    with path.open("w") as file:
        for prompt, chosen, rejected in triplets:
            file.write(json.dumps({"prompt": prompt, "chosen": chosen, "rejected": rejected}) + "\n")
    invoke("ratio", path, "--out", out, "--evaluations", "64", "--threads", "1")
    model = infodis.load("text8-tiny")
    for record, (prompt, chosen, rejected) in zip(read(out), triplets, strict=True):
        given = range(len(prompt))
        whole = [
            infodis.nll(model, model.encode(prompt + text), context=given, evaluations=256)
            for text in (chosen, rejected)
        ]
        exact = whole[1].value - whole[0].value
        error = math.hypot(record["standard_error"], *(side.standard_error for side in whole))
        assert abs(record["value"] - exact) < 5 * error + 1e-3  # false alarms: fewer than 1 in 10^6, were errors normal
    same = tmp_path / "same.jsonl"
    invoke("ratio", path, "--out", same, "--reference", "text8-tiny", "--evaluations", "16", "--threads", "1")
    assert [record["quantity"] for record in read(same)] == ["margin"] * 2
    assert max(abs(record["value"]) for record in read(same)) < 1e-4  # but for rounding in float32


def test_choose_names_the_right_ending(tmp_path):
    path, out = tmp_path / "questions.jsonl", tmp_path / "out.jsonl"
    row = {"prompt": "the capital of ", "choices": ["xqzjv kkq", "france is", "wwwwwwwww"], "answer": 1}
    path.write_text(json.dumps(row) + "\n" + json.dumps({**row, "choices": "none"}) + "\n")
    found = invoke("choose", path, "--out", out, "--threads", "1", code=3)
    (record,) = read(out)
    assert record["choice"] == 1
    assert record["decided"]
    assert sorted(record["ranking"]) == [0, 1, 2]
    assert record["evaluations"] < 3 * 128
    assert "accuracy" in found.output


def test_perplexity_of_documents_and_of_a_text(tmp_path):
    text = " ".join(TEXTS) * 8
    (tmp_path / "novel.txt").write_text(text)
    with (tmp_path / "documents.jsonl").open("w") as file:
        for start in range(0, len(text), 200):
            file.write(json.dumps({"text": text[start : start + 200]}) + "\n")
    one = invoke("perplexity", tmp_path / "novel.txt", "--out", tmp_path / "one.jsonl", "--stride", "128", *FEW)
    assert "± windows" in one.output
    many = invoke("perplexity", tmp_path / "documents.jsonl", "--out", tmp_path / "many.jsonl", *FEW)
    assert "± documents" in many.output
    for name in ("one", "many"):
        records = read(tmp_path / f"{name}.jsonl")
        assert sum(record["tokens"] for record in records) == len(text)
        assert sum(record["bytes"] for record in records) == pytest.approx(len(text), abs=1e-3)


def test_perplexity_of_some_documents_and_of_another_field(tmp_path):
    path, out = tmp_path / "documents.jsonl", tmp_path / "out.jsonl"
    path.write_text("".join(json.dumps({"id": n, "text": text, "b": text[:4]}) + "\n" for n, text in enumerate(TEXTS)))
    invoke("perplexity", path, "--out", out, *FEW, "--limit", "2")
    assert [(record["id"], record["tokens"]) for record in read(out)] == [(0, len(TEXTS[0])), (1, len(TEXTS[1]))]
    with pytest.raises(InputError, match=r"fields: was \{\}, is \{'text': 'b'\}"):
        invoke("perplexity", path, "--out", out, *FEW, "--limit", "2", "--field", "text=b")
    (tmp_path / "novel.txt").write_text("\n".join(TEXTS))
    with pytest.raises(InputError, match="--limit counts documents"):
        invoke("perplexity", tmp_path / "novel.txt", *FEW, "--limit", "2")


def test_tokens_of_documents_must_not_change(tmp_path):
    from infodis.jobs.documents import DocumentsSpec
    from infodis.jobs.inputs import InputSpec
    from infodis.quantities.perplexity import Windows

    path = tmp_path / "documents.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    spec = DocumentsSpec(InputSpec(str(path), 4), Windows(8), None, infodis.load("text8-tiny"))
    made = spec.cut(tmp_path)
    expected = [window.item.tokens.tolist() for window in made.read(0)]
    tokens = tmp_path / "tokens.bin"
    content, written = bytearray(tokens.read_bytes()), tokens.stat().st_mtime_ns
    content[0] ^= 1
    tokens.write_bytes(content)
    with pytest.raises(InputError, match=r"Tokens in .* were changed meanwhile"):
        made.read(0)
    os.utime(tokens, ns=(0, written))  # another run takes over: it reads them
    assert [window.item.tokens.tolist() for window in spec.cut(tmp_path).read(0)] == expected


def test_sigterm_stops_a_run_and_the_rest_is_done_later(tmp_path):
    path, out = tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    path.write_text(
        "".join(json.dumps({"text": f"{text} {'abcdefghij'[n % 10]}"}) + "\n" for n in range(100) for text in TEXTS)
    )
    command = [sys.executable, "-m", "infodis", "score", path, "--out", out, "--shard-rows", "5", "--threads", "1"]
    process = subprocess.Popen([str(part) for part in command], stderr=subprocess.PIPE, text=True)
    work = tmp_path / "out.jsonl.work"
    while len(list(work.glob("parts/*/0*.jsonl"))) < 2 and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, told = process.communicate()
    assert process.returncode == 130
    assert not out.exists()
    assert "rerun the same command to resume" in told
    assert len(list(work.glob("parts/*/0*.jsonl"))) >= 2


def test_no_socket_is_opened(rows, tmp_path, monkeypatch):
    import socket

    def refused(*arguments, **options):
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket.socket, "connect", refused)
    monkeypatch.setattr(socket, "getaddrinfo", refused)
    invoke("score", rows, "--out", tmp_path / "out.jsonl", *FEW)


def test_a_row_for_which_the_model_says_nan_is_rejected_alone(rows, tmp_path, monkeypatch):
    from infodis.models.nets.network import Network

    token_nll = Network.token_nll

    def broken(self, features, tokens):
        found = token_nll(self, features, tokens)
        found[tokens == self.vocab_size - 1] = math.nan
        return found

    monkeypatch.setattr(Network, "token_nll", broken)
    out = tmp_path / "out.jsonl"
    model = infodis.load("text8-tiny")
    marked = [n for n, text in enumerate(TEXTS) if (model.encode(text) == model.vocab_size - 1).any()]
    invoke("score", rows, "--out", out, *FEW, code=3)
    assert [row["id"] for row in read(tmp_path / "out.jsonl.rejected.jsonl")] == marked
    assert len(read(out)) == len(TEXTS) - len(marked)


def test_tokens_are_told_with_pieces_and_errors(rows, tmp_path):
    out = tmp_path / "out.jsonl"
    invoke("score", rows, "--out", out, *FEW, "--report", tmp_path / "page.html")
    for record, text in zip(read(out), TEXTS, strict=True):
        assert "".join(record["pieces"]) == text
        assert len(record["per_token"]) == len(record["per_token_error"]) == len(text)
    assert read(out)[2]["per_token_error"] == [0.0]  # one token: nothing is random
    page = (tmp_path / "page.html").read_bytes()
    invoke("report", out, "--out", tmp_path / "again.html", "--title", f"{rows} under text8-tiny")
    assert (tmp_path / "again.html").read_bytes() == page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["score", "ROWS", "--report", "page.txt"], "ends in .html"),
        (["report", "missing.jsonl"], "no file missing.jsonl"),
        (["report", "ROWS"], "does not hold records"),
        (["report", "ROWS", "--out", "nowhere/page.html"], "Make it first"),
        (["attribute"], "one of them"),
        (["attribute", "ROWS", "--text", "both"], "one of them"),
        (["attribute", "--text", "Capitals"], "alphabet"),
    ],
)
def test_mistakes_with_reports_are_told(rows, tmp_path, arguments, message, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=message):
        invoke(*[str(rows) if argument == "ROWS" else argument for argument in arguments])
    assert not (tmp_path / "page.txt").exists()


def test_attributions_add_up(tmp_path):
    path, out = tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    given = [{"id": "a", "prompt": "the king of ", "response": "france"}, {"id": "b", "text": "alone"}]
    path.write_text("".join(json.dumps(row) + "\n" for row in given))
    invoke("attribute", path, "--out", out, "--evaluations", "64", "--threads", "1")
    after, alone = read(out)
    assert "".join(after["prompt_pieces"]) == "the king of "
    assert sum(map(sum, after["influence"])) == pytest.approx(after["explained"], abs=1e-4)
    assert sum(after["per_token"]) == pytest.approx(after["value"], abs=1e-4)
    assert "influence" not in alone
    assert alone["standard_error"] == 0  # five tokens: all masks
    invoke("report", out, "--out", tmp_path / "page.html")
    told = invoke("attribute", "--prompt", "the king of ", "--text", "france", "--evaluations", "64", "--threads", "1")
    assert "The prompt explains" in told.output


def test_reasons_of_rejected_rows_are_on_the_screen(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("sentence\n" + "some words\n" * 3)
    told = invoke("score", path, "--out", tmp_path / "out.jsonl", *FEW, code=3).output
    assert "All rows were rejected" in told
    assert "3 rows, first on line 2: text: A row needs text" in told
    assert "say so: --field text=NAME" in told
    (tmp_path / "some.jsonl").write_text('{"text": "a"}\n{"text": ""}\n{"text": 3}\n{"text": 4}\n[]\n{"text": null}\n')
    piped = invoke("score", tmp_path / "some.jsonl", *FEW, code=3).stderr
    assert "5 of 6 rows were rejected. Name an output with --out" in piped
    assert "2 rows, first on line 3: text: It must be a text; it is a number." in piped
    assert "and 1 other reasons" in piped
    with pytest.raises(InputError, match=r"holds no text to score\. Line 2: A row needs text"):
        invoke("perplexity", path, *FEW)


def test_undecided_questions_are_not_counted_as_decided(tmp_path):
    path, out = tmp_path / "questions.jsonl", tmp_path / "out.jsonl"
    clear = {"prompt": "the capital of ", "choices": ["xqzjv kkq", "france is", "wwwwwwwww"], "answer": "B"}
    tied = {"prompt": "the capital of ", "choices": ["france is", "france is"], "answer": "B"}
    path.write_text("".join(json.dumps(row) + "\n" for row in (clear, clear | {"prompt": "a town in "}, tied)))
    told = invoke("choose", path, "--out", out, "--threads", "1").output
    assert [record["decided"] for record in read(out)] == [True, True, False]
    summary = json.loads((tmp_path / "out.jsonl.manifest.json").read_text())["summary"]
    assert (summary["decided"], summary["undecided"], summary["answered"]) == (2, 1, 3)
    assert (summary["accuracy"], summary["undecided_best_guess_accuracy"]) == (1.0, 0.0)
    assert summary["best_guess_accuracy"] == pytest.approx(2 / 3)
    for words in ("undecided: gave up", "accuracy of decided questions", "accuracy with best guesses"):
        assert words in told


def test_perplexity_has_an_error(tmp_path):
    (tmp_path / "novel.txt").write_text(" ".join(TEXTS) * 8)
    told = invoke("perplexity", tmp_path / "novel.txt", "--out", tmp_path / "out.jsonl", "--length", "64", *FEW).output
    found = json.loads((tmp_path / "out.jsonl.manifest.json").read_text())["summary"]
    bits = found["bits_per_token"]
    assert found["perplexity"] == pytest.approx(2 ** bits["value"])
    for name in ("monte_carlo_error", "sampling_error"):
        slope = (2 ** (bits["value"] + 1e-6) - 2 ** (bits["value"] - 1e-6)) / 2e-6
        assert found[f"perplexity_{name}"] == pytest.approx(slope * bits[name], rel=1e-6)
    ends = [2 ** (bits["value"] + sign * 1.96 * bits["sampling_error"]) for sign in (-1, 1)]
    assert found["perplexity_interval"] == pytest.approx(ends)
    assert "95 % interval" in told


def test_help_names_the_true_default_of_perplexity():
    told = " ".join(re.sub(r"[^\w:; ]", " ", invoke("perplexity", "--help").output).split())
    assert "Forward passes for each window: 32" in told
    assert "for each row: 128" not in told


def test_attributions_number_their_tokens(tmp_path):
    told = invoke("attribute", "--prompt", "the king of ", "--text", "france", "--evaluations", "64", "--threads", "1")
    table = told.output.partition("What helps")[2]
    assert re.search(r"│ \d+ \S", table)


def test_perplexity_of_models_side_by_side(tmp_path):
    """Each model's line is what it says alone, in windows of one length."""
    (tmp_path / "novel.txt").write_text(" ".join(TEXTS) * 4)
    other = tmp_path / "other"
    shutil.copytree(locate("text8-tiny"), other)
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"length": 64}))
    common = [tmp_path / "novel.txt", *FEW]
    both = invoke("perplexity", *common, "--against", other, "--out", tmp_path / "both.jsonl")
    alone = invoke("perplexity", *common, "--length", "64", "--out", tmp_path / "alone.jsonl")
    assert "text8-tiny" in both.output
    assert "windows of 64 tokens" in " ".join(both.output.split())  # a title is wrapped
    assert "windows of 64 tokens" in alone.output
    invoke("perplexity", *common, "--model", other, "--length", "64", "--out", tmp_path / "other_alone.jsonl")
    for name, its in (("text8-tiny", "alone"), ("other", "other_alone")):  # another configuration, another beta
        mine = [record["value"] for record in read(tmp_path / f"both.{name}.jsonl")]
        assert mine == pytest.approx([record["value"] for record in read(tmp_path / f"{its}.jsonl")], abs=1e-3)
    with pytest.raises(InputError, match="must have different names"):
        invoke("perplexity", *common, "--against", "text8-tiny")
