"""Samplers against exact distributions: chi-square tests at a false-alarm rate of 1e-4 each, fixed seeds."""

import itertools
import math

import pytest
import torch
from scipy.stats import chisquare

from infodis.errors import InputError, PredictorError
from infodis.oracle import Independent, MarkovChain, Table
from infodis.predictor import Counting
from infodis.reveal import (
    AboveThreshold,
    InBlocks,
    LargestMargin,
    LeftToRight,
    LowestEntropy,
    MostConfident,
    RandomOrder,
    RightToLeft,
)
from infodis.sampling import Ancestral, ReverseStep, categorical, sample, sample_uniform, sampler_named

DNA = Table.dna(seed=0)
CHAIN = MarkovChain.random(order=2, vocab_size=3, temperature=0.3)


def p_value_on_dna(rule, rows=6000):
    """Of the hypothesis that samples follow Table.dna; 0 if something outside its support was drawn."""
    drawn = sample(DNA, torch.full((rows, 8), DNA.mask_token), rule=rule, batch_size=2000)
    code = (drawn * 4 ** torch.arange(8)).sum(-1)
    known = (DNA.sequences * 4 ** torch.arange(8)).sum(-1)
    counts = (code.unsqueeze(-1) == known).sum(0)
    if int(counts.sum()) < rows:
        return 0.0
    probability = DNA.probabilities
    return float(chisquare(counts.numpy(), (rows * probability / probability.sum()).numpy()).pvalue)


@pytest.mark.parametrize(
    "rule",
    [
        *(RandomOrder(), MostConfident(), LowestEntropy(), LargestMargin(), RightToLeft(), AboveThreshold(1.0)),
        *(InBlocks(RandomOrder(), 3), InBlocks(MostConfident(), 4), InBlocks(LeftToRight(), 3, "response")),
    ],
    ids=repr,
)
def test_one_at_a_time_follows_the_exact_distribution(rule):
    """A threshold of 1 reveals at once only what is certain."""
    assert p_value_on_dna(rule) > 1e-4


def test_all_at_once_does_not():
    """Negative control: the same test rejects tokens drawn as if they were independent."""
    assert p_value_on_dna(Ancestral(1), rows=1000) < 1e-4


def test_ancestral_sampling_of_independent_tokens_is_exact():
    coin = Independent(torch.tensor([0.2, 0.3, 0.5]))
    drawn = sample(coin, torch.full((500, 20), coin.mask_token), rule=Ancestral(5))
    counts = torch.bincount(drawn.flatten(), minlength=3)
    assert chisquare(counts.numpy(), 10_000 * torch.tensor([0.2, 0.3, 0.5]).numpy()).pvalue > 1e-4


class Recording(Counting):
    """Keeps how many positions are masked in every row it is asked about."""

    def log_conditionals(self, tokens):
        self.left = [*getattr(self, "left", []), (tokens == self.mask_token).sum().item()]
        return super().log_conditionals(tokens)


def test_ancestral_sampling_takes_its_steps():
    """Seven calls, and at call s a share 1 - s / 7 of 4 x 3000 positions is masked: within 4.5 standard errors.

    The schedule ends at a level of 0.999, where the first call starts from all masked.
    """
    coin = Independent(torch.tensor([0.2, 0.3, 0.5]))
    counted = Recording(coin)
    sample(counted, torch.full((4, 3000), coin.mask_token), rule=Ancestral(7))
    assert counted.calls == 7
    for step, left in enumerate(counted.left):
        share = 1 - step / 7
        assert abs(left - 12_000 * share) <= 4.5 * math.sqrt(12_000 * share * (1 - share)), (step, left)
    counted = Counting(CHAIN)
    sample(counted, torch.full((1, 12), CHAIN.mask_token), rule=MostConfident(4))
    assert counted.calls == 3


def test_more_ancestral_steps_come_nearer_to_the_exact_distribution():
    """Total variation distance of 2000 samples from the chain, over all 81 sequences: one step against 64."""
    ways = torch.cartesian_prod(*[torch.arange(3)] * 4)
    exact = torch.tensor([CHAIN.log_prob(row) for row in ways], dtype=torch.float64).exp()

    def distance(steps):
        drawn = sample(CHAIN, torch.full((2000, 4), CHAIN.mask_token), rule=Ancestral(steps), batch_size=2000)
        share = (drawn.unsqueeze(1) == ways).all(-1).double().mean(0)
        return float((share - exact).abs().sum()) / 2

    assert distance(64) < 0.5 * distance(1)


def test_infilling_follows_the_exact_conditional():
    """Two free positions between fixed ones, against the conditional by enumeration."""
    row = torch.tensor([0, 2, CHAIN.mask_token, CHAIN.mask_token, 1, 0])
    drawn = sample(CHAIN, row.expand(4000, -1), batch_size=4000)
    assert (drawn[:, [0, 1, 4, 5]] == row[[0, 1, 4, 5]]).all()
    ways = list(itertools.product(range(3), repeat=2))
    weights = [math.exp(float(CHAIN.log_prob(torch.tensor([0, 2, a, b, 1, 0])))) for a, b in ways]
    counts = [int(((drawn[:, 2] == a) & (drawn[:, 3] == b)).sum()) for a, b in ways]
    expected = [4000 * w / sum(weights) for w in weights]
    assert chisquare(counts, expected).pvalue > 1e-4


def test_a_row_does_not_depend_on_its_batch():
    start = torch.full((7, 9), CHAIN.mask_token)
    start[0, :5] = 1  # a row that is done early in some blocks must not hurry or delay the others
    rules = (RandomOrder(), Ancestral(4), MostConfident(2), AboveThreshold(0.5), InBlocks(Ancestral(3), 4))
    for rule in (*rules, InBlocks(RandomOrder(), 4)):
        one = sample(CHAIN, start, rule=rule, seed=3, batch_size=7)
        two = sample(CHAIN, start, rule=rule, seed=3, batch_size=2)
        assert torch.equal(one, two)
        assert not torch.equal(one, sample(CHAIN, start, rule=rule, seed=4))


def test_greedy_takes_the_likeliest():
    coin = Independent(torch.tensor([0.2, 0.5, 0.3]))
    for rule in (RandomOrder(), InBlocks(InBlocks(RandomOrder(), 2), 4)):
        assert (sample(coin, torch.full((3, 5), coin.mask_token), rule=rule, greedy=True) == 1).all()


def test_categorical_never_draws_the_impossible():
    weights = torch.tensor([0.0, 0.3, 0.0, 0.7, 0.0], dtype=torch.float64).expand(1, 3, 5)
    uniform = torch.tensor([[0.0, 0.3, 1 - 2**-53]], dtype=torch.float64)
    assert categorical(weights, uniform).tolist() == [[1, 3, 3]]


P = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)


def exact_uniform_scores(tokens, sigma):
    """Scores of independent tokens under uniform noise."""
    stay = torch.exp(-sigma.double())[:, None]
    noisy = stay * P + (1 - stay) / 3
    here = noisy.gather(1, tokens)
    return (noisy.unsqueeze(1) / here.unsqueeze(-1)).log()


def p_value_uniform(reverse):
    drawn = sample_uniform(exact_uniform_scores, 500, 40, vocab_size=3, reverse=reverse)
    return float(chisquare(torch.bincount(drawn.flatten(), minlength=3).numpy(), (20_000 * P).numpy()).pvalue)


def test_tweedie_steps_are_exact_for_independent_tokens():
    for steps in (2, 8):
        assert p_value_uniform(ReverseStep("tweedie", steps)) > 1e-4


def test_tau_leaping_is_right_with_many_steps_and_wrong_with_few():
    assert p_value_uniform(ReverseStep("tau-leaping", 400)) > 1e-4
    assert p_value_uniform(ReverseStep("tau-leaping", 6)) < 1e-4


def test_uniform_sampling_keeps_fixed_positions():
    fixed = (torch.tensor([[True, False, False]]), torch.tensor([[2, 0, 0]]))
    drawn = sample_uniform(exact_uniform_scores, 50, 3, vocab_size=3, fixed=fixed)
    assert (drawn[:, 0] == 2).all()
    assert len(drawn[:, 1].unique()) > 1


def test_a_row_of_uniform_noise_does_not_depend_on_its_batch():
    drawn = [sample_uniform(exact_uniform_scores, 5, 6, vocab_size=3, batch_size=size) for size in (5, 2)]
    assert torch.equal(*drawn)


def test_uniform_sampling_checks_scores_and_fixed_tokens():
    with pytest.raises(PredictorError, match=r"\(2, 3, 4\); got shape \(2, 3, 3\)"):
        sample_uniform(lambda t, s: torch.zeros(2, 3, 3), 2, 3, vocab_size=4)
    with pytest.raises(PredictorError, match="18 numbers not finite"):
        sample_uniform(lambda t, s: torch.full((*t.shape, 3), math.nan), 2, 3, vocab_size=3)
    fixed = (torch.tensor([[True, False]]), torch.tensor([[3, 0]]))
    with pytest.raises(InputError, match=r"0\.\.2"):
        sample_uniform(exact_uniform_scores, 2, 2, vocab_size=3, fixed=fixed)


def test_bad_input_is_told():
    with pytest.raises(InputError, match=r"Row 0, position 1 holds token 9; it must be the mask token 3"):
        sample(CHAIN, torch.tensor([[0, 9]]))
    with pytest.raises(InputError, match="rows x length"):
        sample(CHAIN, torch.tensor([0, 1]))
    with pytest.raises(InputError, match=r"random, most-confident, .*ancestral"):
        sampler_named("gibbs")
    for make in (
        lambda: Ancestral(0),
        lambda: MostConfident(0),
        lambda: InBlocks(size=0),
        lambda: ReverseStep(steps=0),
        lambda: AboveThreshold(0.0),
        lambda: AboveThreshold(1.1),
        lambda: sampler_named("most-confident=1.5"),
        lambda: sampler_named("most-confident=2:"),
        lambda: sampler_named("above-threshold", steps=3, tokens=9),
    ):
        with pytest.raises(InputError):
            make()
    assert sampler_named("most-confident=2:16") == InBlocks(MostConfident(2), 16)
    assert sampler_named("above-threshold=1") == AboveThreshold(1.0)
    assert sampler_named("ancestral", steps=3) == Ancestral(3)
    assert sampler_named("random:4", steps=3, tokens=10) == InBlocks(RandomOrder(4), 4)


def test_nothing_to_fill_is_nothing_to_do():
    counted = Counting(CHAIN)
    row = torch.tensor([[0, 1, 2]])
    assert torch.equal(sample(counted, row), row)
    assert counted.calls == 0
    assert sample(CHAIN, torch.zeros(0, 4, dtype=torch.int64)).shape == (0, 4)
