"""Accuracies on minimal pairs against exact signs, and their intervals against known accuracies."""

import math

import pytest
import torch
from scipy.special import stdtr
from scipy.stats import binom, norm

from infodis.blocks import BlockLayout
from infodis.errors import InputError
from infodis.item import Item
from infodis.oracle import MarkovChain
from infodis.quantities.accuracy import PAIR_SCORES, AccuracySum, PairRequest, PairScore, SentencePair, one_sided
from infodis.quantities.choose import Race

CHAIN = MarkovChain.random(order=1, vocab_size=3, temperature=0.3, seed=1)


def chain_pairs(count, length=10):
    draw = torch.Generator().manual_seed(0)
    return [
        SentencePair(*(Item.read(torch.randint(3, (length - n,), generator=draw)) for n in (0, number % 2)))
        for number in range(count)
    ]


def test_signs_of_races_against_exact():
    pairs = chain_pairs(24)
    exact = [CHAIN.log_prob(pair.good.tokens) - CHAIN.log_prob(pair.bad.tokens) for pair in pairs]
    found = PairRequest(("nll",)).measure(CHAIN, pairs)
    scores = [one.by_name["nll"] for one in found]
    for score, truth in zip(scores, exact, strict=True):
        assert score.right == (truth > 0) or not score.decided  # a wrong decision has a chance of 0.01
        assert abs(score.margin - truth) <= 6 * score.standard_error + 1e-6
    assert sum(score.decided for score in scores) > 8
    assert all(0 < score.p_value <= 0.5 for score in scores if not score.decided)


def test_pll_against_exact():
    pairs = chain_pairs(6)

    def pll(item):
        tokens = item.tokens.tolist()
        return -sum(
            CHAIN.log_prob(tokens, context=[n for n in range(len(tokens)) if n != place])
            for place in range(len(tokens))
        )

    for pair, one in zip(pairs, PairRequest(("pll",)).measure(CHAIN, pairs), strict=True):
        good, bad = map(pll, pair.items)
        score = one.by_name["pll"]
        assert score.nats == pytest.approx((good, bad), abs=1e-5)
        assert score.margin == pytest.approx(bad - good, abs=1e-5)
        assert (score.right, score.decided, score.p_value) == (bad > good, True, 0.0)
        assert one.evaluations == sum(item.length for item in pair.items)


def test_sizes_divide():
    (pair,) = chain_pairs(1)
    halved = SentencePair(pair.good, pair.bad, (1.0, 2.0))
    (one,) = PairRequest(("pll",)).measure(CHAIN, [halved])
    good, bad = one.by_name["pll"].nats
    assert one.by_name["pll"].margin == pytest.approx(bad / 2 - good)


def test_equal_sentences_are_tied_and_not_right():
    pair = SentencePair(Item.read([0, 1, 2, 0, 1, 1]), Item.read([0, 1, 2, 0, 1, 1]))
    (found,) = PairRequest(("nll", "pll")).measure(CHAIN, [pair])
    for score in found.by_name.values():
        assert (score.margin, score.right, score.tied, score.decided) == (0.0, False, True, True)


def test_impossible_sentences():
    assert PairScore.exact((math.inf, 3.0), (1.0, 1.0)).margin == -math.inf
    assert PairScore.exact((3.0, math.inf), (1.0, 1.0)).right
    assert PairScore.exact((math.inf, math.inf), (1.0, 1.0)).tied


def test_few_draws_say_little():
    (pair,) = chain_pairs(1)
    (found,) = PairRequest(("nll",), Race(evaluations=2)).measure(CHAIN, [pair])
    score = found.by_name["nll"]
    assert (score.decided, score.degrees_of_freedom) == (False, 1)
    assert score.p_value > 0.01
    assert one_sided(1.0, 0.0, 0) == 0.5
    with pytest.raises(InputError, match="evaluations=2 or more"):
        PairRequest(("nll",), Race(evaluations=1))


def accuracy(margins, errors, degrees, *, believed=False):
    """Of margins with Student's errors; `believed` takes every sign for certain, as is usual. Summed all at once."""
    p_values = torch.from_numpy(stdtr(degrees, -(margins.abs() / errors).numpy())) * (not believed)
    right = margins > 0
    return AccuracySum(
        len(margins), int(right.sum()), chance=tuple(float(p_values[one].sum()) for one in (~right, right))
    ).result()


def coverage(mean, noise, *, believed=False, runs=200, pairs=1000, degrees=15):
    """How often the interval holds the accuracy of pairs whose margins are normal with that mean and deviation 1."""
    draw = torch.Generator().manual_seed(round(100 * mean + noise))
    held = 0
    for _ in range(runs):
        true = mean + torch.randn(pairs, generator=draw, dtype=torch.float64)
        drawn = true.unsqueeze(1) + noise * math.sqrt(degrees + 1) * torch.randn(
            pairs, degrees + 1, generator=draw, dtype=torch.float64
        )
        found = accuracy(drawn.mean(1), drawn.std(1) / math.sqrt(degrees + 1), degrees, believed=believed)
        held += found.low <= norm.cdf(mean) <= found.high
    return held


LEAST = int(binom.ppf(1e-3, 200, 0.95))
"""Of 200 intervals at their nominal rate, all but one run in a thousand holds more."""


@pytest.mark.parametrize("mean", [0.0, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("noise", [0.1, 0.5])
def test_intervals_cover_in_spite_of_noise(mean, noise):
    assert coverage(mean, noise) >= LEAST


def test_an_interval_that_believes_every_sign_does_not_cover():
    assert coverage(1.0, 0.5, believed=True) < 0.6 * 200


def test_without_noise_it_is_wilsons():
    total = AccuracySum()
    for number in range(100):
        total.add(number < 80)
    found = total.result()
    assert (found.low, found.high) == pytest.approx((0.7112, 0.8666), abs=5e-4)  # of a table
    assert found.sampling_error == pytest.approx(math.sqrt(0.8 * 0.2 / 99))
    assert (found.value, found.monte_carlo_error, found.pairs) == (0.8, 0.0, 100)
    assert total.result(level=0.5).low > found.low


def test_sums_count_what_is_in_doubt():
    total = AccuracySum()
    total.add(True, p_value=0.3, decided=False)
    total.add(False, tied=True)
    found = total.result()
    assert (found.undecided, found.tied, found.monte_carlo_error) == (1, 1, pytest.approx(math.sqrt(0.21) / 2))
    with pytest.raises(InputError, match="at least one pair"):
        AccuracySum().result()


def test_bad_requests_are_told():
    with pytest.raises(InputError, match=r"some of nll, pll, pll_within_words; got 'ppl'"):
        PairRequest(("ppl",))
    with pytest.raises(InputError, match="At least one score"):
        PairRequest(())
    blocks = MarkovChain.random(order=1, vocab_size=3, seed=1)
    object.__setattr__(blocks, "blocks", BlockLayout(2))
    with pytest.raises(InputError, match=r"pll needs a model that sees any part of a row.*Ask for nll"):
        PairRequest(PAIR_SCORES).check_predictor(blocks)
    PairRequest(("nll",)).check_predictor(blocks)
