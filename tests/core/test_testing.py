"""The public checks pass what is right and catch what is wrong."""

import dataclasses

import pytest
import torch
from laws import ALL_DESIGNS

from infodis.apps.bench.peers import LladaSampler, PaperSampler
from infodis.design import Enumerate, Pairs, TimeIntegral
from infodis.errors import PredictorError
from infodis.oracle import MarkovChain
from infodis.predictor import Predictor, Wrapper, from_function
from infodis.testing import Perturbed, check_design, check_predictor

CHAIN = MarkovChain.random(order=1, vocab_size=3, seed=0)
TOKENS = [0, 2, 1, 1, 0, 2]


@pytest.mark.parametrize("design", ALL_DESIGNS, ids=repr)
def test_designs_pass(design):
    """Fixed seeds; the bias is judged at four standard errors, so that one correct design in 16,000 would fail."""
    least = 0.0 if isinstance(design, TimeIntegral) else 0.9  # whose variance is infinite
    budget = 255 if isinstance(design, Enumerate) else 32
    report = check_design(design, lengths=(1, 2, 3), evaluations=budget, runs=100, least_coverage=least)
    assert (report.certificate_error is None) == isinstance(design, TimeIntegral)


@pytest.mark.parametrize(
    ("wrong", "length"), [(PaperSampler(), 3), (LladaSampler(batch=4), 6)], ids=["no full mask", "rounded strata"]
)
def test_wrong_weights_are_caught(wrong, length):
    with pytest.raises(AssertionError, match="must be 1 / "):
        check_design(wrong, lengths=[length])


def test_bias_is_caught():
    with pytest.raises(AssertionError, match="must be unbiased"):
        check_design(PaperSampler(), lengths=(), runs=500)


def test_intervals_that_cover_too_little_are_caught():
    with pytest.raises(AssertionError, match="must cover at least 100%"):
        check_design(Pairs(), lengths=(2,), least_coverage=1.0)


def test_predictors_pass():
    check_predictor(CHAIN, TOKENS)
    check_predictor(Perturbed(CHAIN, scale=1.0), TOKENS)


@dataclasses.dataclass(frozen=True)
class SeesTheBatch(Wrapper):
    """Negative control: answers depend on the other rows."""

    def log_conditionals(self, tokens):
        return torch.log_softmax(self.predictor.log_conditionals(tokens) * len(tokens), -1)


@dataclasses.dataclass(frozen=True)
class SeesTheTarget(Wrapper):
    """Negative control: looks under the mask."""

    def log_conditionals(self, tokens):
        return self.predictor.log_conditionals(tokens)

    def surprisal(self, tokens, masked):
        return Predictor.surprisal(self, tokens, masked) * (1 + (tokens == 1))


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        (SeesTheBatch(CHAIN), AssertionError, "alone as among others"),
        (SeesTheTarget(CHAIN), AssertionError, "surprisal must be"),
        (from_function(lambda t: torch.zeros(*t.shape, 3), vocab_size=3, mask_token=3), PredictorError, "sum to 3"),
    ],
    ids=["sees the batch", "sees the target", "not normalised"],
)
def test_wrong_predictors_are_caught(wrong, error, words):
    with pytest.raises(error, match=words):
        check_predictor(wrong, TOKENS)
