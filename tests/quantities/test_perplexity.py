"""Rolling likelihoods against exact ones."""

import math

import pytest
import torch

from infodis.design import Enumerate, TimeFree
from infodis.errors import InputError
from infodis.oracle import MarkovChain
from infodis.predictor import Tempered
from infodis.quantities.perplexity import Windows, perplexity, window_item
from infodis.rng import stream

CHAIN = MarkovChain.random(order=1, vocab_size=3, temperature=0.3)
TEXT = CHAIN.sample(1, length=50, generator=stream(0))[0]


def cut(tokens, windows):
    """Windows and their context, one by one."""
    spans = windows.spans(len(tokens))
    for number in range(len(spans)):
        span, context = spans[number]
        yield tokens[span.start : span.stop], context


def test_windows_cover_every_token_once():
    for length, stride in ((8, None), (8, 8), (8, 3), (8, 1), (50, 10), (60, 60)):
        scored = []
        for window, context in cut(torch.arange(50), Windows(length, stride)):
            scored += window[context:].tolist()
            assert len(window) <= length
        assert scored == list(range(50)), (length, stride)


def test_against_exact_with_and_without_context():
    for length, stride in ((8, None), (8, 3)):
        windows = Windows(length, stride)
        found = perplexity(CHAIN, TEXT, windows=windows, evaluations=255, design=Enumerate())
        exact = 0.0
        for window, context in cut(TEXT, windows):
            places = range(len(window))
            exact -= float(CHAIN.log_prob(window, target=places[context:], context=places[:context]))
        assert found.nats == pytest.approx(exact, rel=1e-8)
        assert found.tokens == 50
        assert found.bits_per_token == pytest.approx(exact / 50 / math.log(2))


def test_special_tokens_around_a_window_are_context():
    item = window_item(torch.tensor([5, 6, 7]), 1, around=([1, 2], [3]))
    assert item.tokens.tolist() == [1, 2, 5, 6, 7, 3]
    assert (item.target.tolist(), item.context.tolist()) == ([3, 4], [0, 1, 2, 5])


def test_errors_cover_masks_and_text():
    found = perplexity(CHAIN, TEXT, windows=Windows(10), evaluations=16)
    assert found.sampling_error is not None
    assert found.sampling_error > found.monte_carlo_error >= 0
    assert perplexity(CHAIN, TEXT, windows=Windows(50), evaluations=16).sampling_error is None


@pytest.mark.parametrize("text", [TEXT, TEXT[:10].repeat(5)], ids=["text", "the same window again and again"])
def test_the_error_from_masks_is_the_spread_over_seeds(text):
    """Sample variance over 200 seeds against the mean of squared errors: a ratio within 4 of its standard errors.

    The second text fails if equal windows share their masks: their errors would add up instead of averaging out.
    """
    noisy = Tempered(CHAIN, 1.7)  # conditionals of no joint distribution, so that masks matter
    how = {"windows": Windows(10), "evaluations": 8, "design": TimeFree(), "control": None}
    runs = [perplexity(noisy, text, **how, seed=seed) for seed in range(200)]
    spread = torch.tensor([run.nats for run in runs], dtype=torch.float64).var()
    claimed = torch.tensor([run.monte_carlo_error**2 for run in runs], dtype=torch.float64).mean()
    assert abs(float(spread / claimed) - 1) < 4 * math.sqrt(2 / 199)


def test_limit_spreads_windows():
    found = perplexity(CHAIN, TEXT, windows=Windows(5), limit=4, evaluations=31)
    assert (found.windows, found.tokens) == (4, 20)


def test_bad_input_is_told():
    with pytest.raises(InputError, match=r"1\.\.8"):
        Windows(8, 9)
    with pytest.raises(InputError, match="at least one token"):
        Windows(0)
    with pytest.raises(InputError, match="nothing to score"):
        perplexity(CHAIN, TEXT[:0], windows=Windows(8))
