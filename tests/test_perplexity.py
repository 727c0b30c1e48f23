"""Rolling likelihoods against exact ones."""

import math

import pytest
import torch

from infodis.design import Enumerate
from infodis.errors import InputError
from infodis.oracle import MarkovChain
from infodis.perplexity import Windows, perplexity
from infodis.rng import stream

CHAIN = MarkovChain.random(order=1, vocab_size=3, temperature=0.3)
TEXT = CHAIN.sample(1, length=50, generator=stream(0))[0]


def test_windows_cover_every_token_once():
    for length, stride in ((8, None), (8, 8), (8, 3), (8, 1), (50, 10), (60, 60)):
        scored = []
        for window, context in Windows(length, stride).cut(torch.arange(50)):
            scored += window[context:].tolist()
            assert len(window) <= length
        assert scored == list(range(50)), (length, stride)


def test_against_exact_with_and_without_context():
    for length, stride in ((8, None), (8, 3)):
        windows = Windows(length, stride)
        found = perplexity(CHAIN, TEXT, windows=windows, evaluations=255, design=Enumerate())
        exact = 0.0
        for window, context in windows.cut(TEXT):
            places = range(len(window))
            exact -= float(CHAIN.log_prob(window, target=places[context:], context=places[:context]))
        assert found.nats == pytest.approx(exact, rel=1e-8)
        assert found.tokens == 50
        assert found.bits_per_token == pytest.approx(exact / 50 / math.log(2))


def test_errors_cover_masks_and_text():
    found = perplexity(CHAIN, TEXT, windows=Windows(10), evaluations=16)
    assert found.sampling_error is not None
    assert found.sampling_error > found.monte_carlo_error >= 0
    assert perplexity(CHAIN, TEXT, windows=Windows(50), evaluations=16).sampling_error is None


def test_limit_spreads_windows():
    found = perplexity(CHAIN, TEXT, windows=Windows(5), limit=4, evaluations=31)
    assert (found.windows, found.tokens) == (4, 20)


def test_bad_input_is_told():
    with pytest.raises(InputError, match=r"1\.\.8"):
        Windows(8, 9)
    with pytest.raises(InputError, match="at least one token"):
        Windows(0)
    with pytest.raises(InputError, match="empty"):
        perplexity(CHAIN, TEXT[:0], windows=Windows(8))
