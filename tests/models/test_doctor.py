"""The doctor: healthy predictors pass, each broken one is caught by the check that is meant for it."""

import json
import math
import os
import signal

import pytest
import torch
from typer.testing import CliRunner

from infodis.cli import app
from infodis.models.doctor import ModelUnderTest, examine, with_examples
from infodis.models.loading import load
from infodis.oracle import MarkovChain
from infodis.predictor import Predictor, from_function
from infodis.rng import seed_global, stream

CHAIN = MarkovChain.random(order=1, vocab_size=6, temperature=0.15)
ROWS = list(CHAIN.sample(12, length=24, generator=stream(0)))


class Wired(Predictor):
    """The chain, wired by its keyword arguments."""

    def __init__(self, **fault):
        self.vocab_size, self.mask_token = 7, 6  # the mask has a column
        self.fault = fault
        self.pads, self.tokens_at_once = True, 4096

    def log_conditionals(self, tokens):
        true_mask = self.fault.get("true_mask", 6)
        read = torch.where(tokens == 6, 0, tokens)  # an ordinary token to whoever takes another one for the mask
        read = torch.where(tokens == true_mask, 6, read)
        found = CHAIN.log_conditionals(read).roll(self.fault.get("shift", 0), dims=1)
        if self.fault.get("blind"):
            found = CHAIN.log_conditionals(torch.full_like(tokens, 6))
        column = torch.full((*found.shape[:2], 1), self.fault.get("mask_column", -math.inf), dtype=found.dtype)
        found = torch.cat([found, column], dim=-1).log_softmax(-1) + self.fault.get("offset", 0.0)
        if self.fault.get("half"):
            found = found.bfloat16().log_softmax(-1).double()
        much = (tokens == 6).double().mean(1) >= self.fault.get("nan_at", 2.0)
        return torch.where(much[:, None, None], math.nan, found)

    def surprisals(self, rows):
        """Rows of one length together, without their padding, unless that leaks."""
        lengths = torch.full_like(rows.lengths, rows.tokens.shape[1]) if self.fault.get("leaking") else rows.lengths
        nats = torch.zeros(rows.tokens.shape, dtype=torch.float64)
        for stop in lengths.unique().tolist():
            mine = lengths == stop
            tokens = rows.tokens[mine, :stop]
            found = self.log_conditionals(torch.where(rows.hidden[mine, :stop], 6, tokens))
            nats[mine, :stop] = -found.gather(-1, tokens.unsqueeze(-1)).squeeze(-1).double()
        return nats[rows.wanted]


def verdicts(predictor, rows=ROWS):
    return {finding.check: finding.verdict for finding in examine(ModelUnderTest(predictor, rows))}


def test_a_healthy_predictor_passes():
    found = verdicts(Wired())
    assert "wrong" not in found.values(), found
    assert found["alignment"] == found["context"] == found["padding"] == found["distributions"] == "ok"
    assert "wrong" not in verdicts(CHAIN).values()


@pytest.mark.parametrize(
    ("fault", "check"),
    [
        ({"shift": -1}, "alignment"),
        ({"shift": 1}, "alignment"),
        ({"offset": 0.1}, "distributions"),
        ({"nan_at": 0.8}, "distributions"),
        ({"half": True}, "distributions"),
        ({"mask_column": -3.0}, "probability of the mask"),
        ({"blind": True}, "context"),
        ({"leaking": True}, "padding"),
    ],
    ids=str,
)
def test_broken_ones_are_caught(fault, check):
    assert verdicts(Wired(**fault))[check] == "wrong"


def test_a_wrong_mask_token_is_caught_by_what_explains_data_better():
    rows = [row[row != 4] for row in ROWS]  # token 4 is free to be the true mask
    assert verdicts(Wired(true_mask=4), rows)["mask token"] == "wrong"
    assert verdicts(Wired(), rows)["mask token"] == "cannot tell"


def test_a_hidden_token_that_is_seen_is_caught():
    class Peeking(Wired):
        def surprisal(self, tokens, masked):
            return super().surprisal(tokens, masked) + masked * tokens.sum() * 0.01

    assert verdicts(Peeking())["secrecy"] == "wrong"


def test_too_little_knowledge_is_not_taken_for_health():
    flat = from_function(lambda t: torch.full((*t.shape, 6), -math.log(6)), vocab_size=6, mask_token=6)
    found = verdicts(flat)
    assert found["alignment"] == "cannot tell"
    assert found["context"] == "wrong"


PROTEINS = (
    "EVQLVESGGGLVQPGGSLRLSCAASGFTFSSYAMSWVRQAPGKGLEWVSAISGSGG",
    "QVQLVQSGAEVKKPGASVKVSCKASGYTFTSYYMHWVRQAPGQGLEWMGIINPSGG",
    "DIQMTQSPSSLSASVGDRVTITCRASQSISSYLNWYQQKPGKAPKLLIYAASSLQS",
    "MKTAYIAKQRQISFVKSHFSRQLEERLGLIEVQAPILSRVGDGTQDNLSGAEKAVQ",
)
BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"ACDEFGHIKLMNPQRSTVWY"]
ESM = ["<cls>", "<pad>", "<eos>", "<unk>", *"LAGVSERTIDPKQNFYMHWCXBUZO", ".", "-", "<null_1>", "<mask>"]


@pytest.fixture(scope="module", params=["bert", "esm"])
def untrained(request, tmp_path_factory):
    """Models of proteins, to which English is unknown: one in AntiBERTy's style, and an ESM. Neither was trained."""
    transformers = pytest.importorskip("transformers")
    transformers.utils.logging.disable_progress_bar()
    small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    path = tmp_path_factory.mktemp(request.param)
    seed_global(3)
    if request.param == "bert":
        kind, words, config = "BertTokenizer", BERT, transformers.BertConfig(vocab_size=len(BERT), **small)
        model = transformers.BertForMaskedLM(config)
    else:
        more = {"mask_token_id": 32, "pad_token_id": 1, "max_position_embeddings": 128}
        kind, words = "EsmTokenizer", ESM
        config = transformers.EsmConfig(vocab_size=len(ESM), position_embedding_type="rotary", **small, **more)
        model = transformers.EsmForMaskedLM(config)
    model.save_pretrained(path)
    (path / "vocab.txt").write_text("\n".join(words) + "\n")
    (path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": kind, "do_lower_case": False}))
    apart = " " if request.param == "bert" else ""
    return load(path), [apart.join(protein) for protein in PROTEINS]


JUDGED = ("alignment", "tokenizer")


def test_nothing_is_judged_by_text_that_the_model_cannot_read(untrained):
    """And nothing is advised: the tokenizer's mask stays, whatever an amino acid in its place would explain."""
    model, _ = untrained
    found = {finding.check: finding for finding in examine(with_examples(model))}
    assert "wrong" not in {finding.verdict for finding in found.values()}, found
    for check in JUDGED:
        assert found[check].verdict == "cannot tell"
        assert "unknown to its tokenizer" in found[check].detail
        assert "--text" in found[check].hint
    assert found["mask token"].verdict == "ok"
    assert "[UNK]" not in found["tokenizer"].detail


def test_a_model_that_knows_nothing_is_not_advised_to_change(untrained):
    model, texts = untrained
    found = {finding.check: finding for finding in examine(with_examples(model, texts))}
    assert "wrong" not in {finding.verdict for finding in found.values()}, found
    assert found["alignment"].verdict == "cannot tell"
    assert "does not tell the examples from noise" in found["alignment"].detail
    assert "--text" in found["alignment"].hint
    assert found["tokenizer"].verdict == "ok"  # by the texts that were given


def test_texts_out_of_the_alphabet_are_not_judged_by():
    found = {finding.check: finding for finding in examine(with_examples(load("dna-tiny")))}
    for check in JUDGED:
        assert found[check].verdict == "cannot tell"
        assert "not of its alphabet" in found[check].detail
        assert "--text" in found[check].hint


def test_the_tokenizer_is_judged_by_the_given_texts():
    subject = with_examples(load("text8-tiny"), ["all of this can be read", "some of this, not"])
    found = {finding.check: finding for finding in examine(subject)}
    assert found["tokenizer"].verdict == "wrong"
    assert "some of this, not" in found["tokenizer"].detail


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no processes of this kind")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_who_dies_of_bfloat16_does_not_take_the_doctor_along(monkeypatch, dtype):
    model, doctor = load("text8-tiny", dtype=dtype), os.getpid()
    features = model.network.features

    def deadly(*arguments, **options):
        if torch.is_autocast_enabled("cpu") or dtype == "bfloat16":
            if os.getpid() == doctor:
                raise AssertionError("bfloat16 in the doctor's own process")
            os.kill(os.getpid(), signal.SIGKILL)
        return features(*arguments, **options)

    monkeypatch.setattr(model.network, "features", deadly)
    found = {finding.check: finding for finding in examine(with_examples(model, ["some words to look at"]))}
    assert found["precision"].verdict == ("wrong" if dtype == "bfloat16" else "cannot tell")
    assert "died of SIGKILL" in found["precision"].detail
    assert ("alignment" in found) == (dtype == "float32")  # what cannot run cannot be looked at


def test_command(tmp_path):
    from test_adapters import REFERENCES

    done = CliRunner().invoke(app, ["doctor", str(REFERENCES / "llada")])
    assert done.exit_code == 0, done.output
    assert "cannot tell" in done.output
    assert "distributions" in done.output
    done = CliRunner().invoke(app, ["doctor", str(REFERENCES / "llada"), "--dtype", "bfloat16"])
    assert "against float32" in done.output
    asked = ["doctor", str(REFERENCES / "llada"), "--text", str(tmp_path / "no")]
    assert "There is no file" in str(CliRunner().invoke(app, asked).exception)
