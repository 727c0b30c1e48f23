import math

import pytest
import torch

from infodis.errors import InputError, PredictorError
from infodis.oracle import Independent, MarkovChain
from infodis.predictor import Counting, Guided, Predictor, Tempered, check_surprisal, from_function
from infodis.rng import stream

CHAIN = MarkovChain.random(order=2, vocab_size=3, seed=0)
X = CHAIN.sample(4, length=7, generator=stream(0, "x"))
MASKED = torch.rand(4, 7, generator=stream(1, "m")) < 0.6


def test_from_function_agrees_with_the_oracle_itself():
    wrapped = from_function(CHAIN.log_conditionals, vocab_size=3, mask_token=3)
    assert isinstance(wrapped, Predictor)
    assert torch.allclose(wrapped.surprisal(X, MASKED), CHAIN.surprisal(X, MASKED))


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (
            lambda p: p.index_put((torch.tensor(1), torch.tensor(2)), torch.tensor(math.nan)),
            "row 1, position 2 holds NaN",
        ),
        (lambda p: p.index_put((torch.tensor(1), torch.tensor(2)), torch.tensor(math.inf)), r"holds \+inf"),
        (lambda p: p + math.log(2), "sum to 2"),
        (lambda p: p[..., :2], "rows x length x vocab"),
        (lambda p: (p * 0).long(), "floating point"),
    ],
)
def test_what_is_not_a_log_probability_is_named(change, found):
    masked = torch.zeros(4, 7, dtype=torch.bool)
    masked[1, 2] = masked[3, 3] = True
    broken = from_function(lambda t: change(CHAIN.log_conditionals(t).float()), vocab_size=3, mask_token=3)
    with pytest.raises(PredictorError, match=found):
        broken.surprisal(X, masked)


def test_garbage_at_visible_positions_does_not_matter():
    def spoil(tokens):
        clean = CHAIN.log_conditionals(tokens)
        return torch.where((tokens == 3).unsqueeze(-1), clean, math.nan)

    spoiled = from_function(spoil, vocab_size=3, mask_token=3)
    assert torch.allclose(spoiled.surprisal(X, MASKED), CHAIN.surprisal(X, MASKED))


def test_surprisals_are_checked():
    with pytest.raises(PredictorError, match="row 0, position 1 holds nan"):
        check_surprisal(torch.tensor([[0.0, math.nan]]), torch.tensor([[False, True]]))
    with pytest.raises(PredictorError, match="at least 0"):
        check_surprisal(torch.tensor([[-0.5, 0.0]]), torch.tensor([[True, True]]))
    with pytest.raises(PredictorError, match="rows x length"):
        check_surprisal(torch.zeros(1, 3), torch.tensor([[True, True]]))


def test_tempered_against_closed_form():
    coin = Independent(torch.tensor([0.2, 0.8]))
    cold = Tempered(coin, temperature=0.5)
    found = cold.log_conditionals(torch.tensor([[2]])).exp()
    assert found.flatten().tolist() == pytest.approx([0.04 / 0.68, 0.64 / 0.68])
    with pytest.raises(InputError, match="temperature"):
        Tempered(coin, temperature=0)


def test_guided_against_closed_form():
    rows = torch.where(MASKED, 3, X)
    given = CHAIN.log_conditionals(rows)
    hidden = rows.clone()
    hidden[:, :2] = 3
    free = CHAIN.log_conditionals(hidden)
    wanted = torch.log_softmax(2.5 * given - 1.5 * free, -1)
    found = Guided(CHAIN, prompt=(0, 1), scale=1.5).log_conditionals(rows)
    masked = rows == 3
    assert torch.allclose(found[masked], wanted[masked])
    plain = Guided(CHAIN, prompt=(0, 1), scale=0.0).log_conditionals(rows)
    assert torch.allclose(plain[masked], given[masked])
    certain = Independent(torch.tensor([0.0, 1.0]))
    assert Guided(certain, scale=0.0).log_conditionals(torch.tensor([[2]])).exp().flatten().tolist() == [0.0, 1.0]
    with pytest.raises(InputError, match="prompt positions"):
        Guided(CHAIN, prompt=(9,), scale=1.0).log_conditionals(rows)


def test_counting_counts_rows_and_calls():
    counting = Counting(CHAIN)
    counting.surprisal(X, MASKED)
    counting.log_conditionals(X[:1])
    assert (counting.calls, counting.rows) == (2, 5)
