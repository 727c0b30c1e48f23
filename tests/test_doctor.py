"""The doctor: healthy predictors pass, each broken one is caught by the check that is meant for it."""

import math

import pytest
import torch
from typer.testing import CliRunner

from infodis.cli import app
from infodis.doctor import Patient, examine
from infodis.oracle import MarkovChain
from infodis.predictor import Predictor, from_function
from infodis.rng import stream

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
    return {finding.check: finding.verdict for finding in examine(Patient(predictor, rows))}


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
