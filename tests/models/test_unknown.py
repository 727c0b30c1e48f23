"""Texts that a tokenizer does not know: refused beyond a tenth, counted below."""

import json

import pytest
from command_line import invoke
from tiny_models import build

import infodis
from infodis.errors import InputError

AMINO = "ACDEFGHIKLMNPQRSTVWY"
PROTEIN = " ".join("MKTAYIAKQRQISFVKSHFS")


@pytest.fixture(scope="module")
def proteins(tmp_path_factory):
    """A vocabulary of capital letters in a tokenizer that makes small ones of them, as public models have it."""
    directory = tmp_path_factory.mktemp("proteins")
    build("bert", directory)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *AMINO]
    (directory / "vocab.txt").write_text("\n".join(words))
    (directory / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer"}))
    return directory


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_text_of_unknown_tokens_is_refused_everywhere(proteins):
    model = infodis.load(proteins, device="cpu")
    words = r"At most a tenth of a text .* got 20 of 2[01] tokens.*--allow-unknown"
    for call in (
        lambda: infodis.nll(model, PROTEIN),
        lambda: infodis.log_ratio(model, PROTEIN, PROTEIN[::-1]),
        lambda: infodis.score(model, [PROTEIN]),
        lambda: infodis.perplexity(model, PROTEIN),
        lambda: infodis.nll(model, "[MASK]", prompt=PROTEIN),
    ):
        with pytest.raises(InputError, match=words):
            call()
    allowed = infodis.load(proteins, device="cpu", allow_unknown=True)
    one, other = infodis.score(allowed, [PROTEIN, PROTEIN[::-1]])
    assert (one.unknown, one.value) == (20, other.value)


def test_a_protein_and_its_shuffle_do_not_both_score_in_silence(proteins, tmp_path):
    """From the command line, whatever is asked for: their tokens are the same."""
    shuffled = PROTEIN[::-1]
    how = ("--model", proteins, "--device", "cpu", "--threads", "1")
    rows, out = tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    row = {"good": PROTEIN, "bad": shuffled, "chosen": PROTEIN, "rejected": shuffled, "choices": [PROTEIN, shuffled]}
    rows.write_text("".join(json.dumps({"text": text, **row}) + "\n" for text in (PROTEIN, shuffled)))
    for command, *more in (("score",), ("score", "--quantity", "pll"), ("pairs",), ("ratio",), ("choose",)):
        found = invoke(command, rows, *how, *more, "--out", tmp_path / f"{'-'.join((command, *more))}.jsonl", code=3)
        assert "All rows were rejected" in found.output
        assert "got 20 of 20 tokens" in found.output
    (tmp_path / "wt.fasta").write_text(f">a\n{PROTEIN.replace(' ', '')}\n")
    (tmp_path / "mutants.csv").write_text("mutant\nK2R\n")
    line = ("variants", tmp_path / "wt.fasta", tmp_path / "mutants.csv", *how, "--scores", "wt_marginals")
    with pytest.raises(InputError, match="At most a tenth"):
        invoke(*line, "--out", tmp_path / "refused.jsonl")
    found = invoke(*line, "--allow-unknown", "--out", out)
    assert [record["unknown"] for record in read(out)] == [20]
    assert "20 in 1 rows" in found.output
    (tmp_path / "pair.jsonl").write_text(json.dumps(row) + "\n")
    invoke(
        "pairs",
        tmp_path / "pair.jsonl",
        *how,
        "--scores",
        "pll",
        "--allow-unknown",
        "--out",
        tmp_path / "pair.out.jsonl",
    )
    (pair,) = read(tmp_path / "pair.out.jsonl")
    assert (pair["unknown"], pair["pll_margin"], pair["pll_right"]) == (40, 0.0, False)


def test_files_set_such_rows_aside_and_count_the_others(proteins, tmp_path):
    (proteins / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "BertTokenizer", "do_lower_case": False})
    )
    rows, out = tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    some = f"{PROTEIN} x"
    rows.write_text("".join(json.dumps({"text": text}) + "\n" for text in (PROTEIN, some, PROTEIN.lower())))
    how = ("--model", proteins, "--device", "cpu", "--evaluations", "8", "--threads", "1")
    found = invoke("score", rows, "--out", out, *how, code=3)
    assert [record.get("unknown") for record in read(out)] == [None, 1]
    (rejected,) = read(tmp_path / "out.jsonl.rejected.jsonl")
    assert (rejected["field"], rejected["line"]) == ("text", 3)
    assert "got 20 of 20 tokens" in rejected["reason"]
    assert "1 in 1 rows" in found.output
    every = tmp_path / "every.jsonl"
    found = invoke("score", rows, "--out", every, *how, "--allow-unknown")
    assert [record.get("unknown") for record in read(every)] == [None, 1, 20]
    assert "21 in 2 rows" in found.output
    documents = invoke("perplexity", rows, "--out", tmp_path / "windows.jsonl", *how, code=3)
    assert "unknown to the tokenizer" in documents.output
