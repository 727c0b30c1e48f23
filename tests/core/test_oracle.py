import dataclasses
import itertools
import math

import pytest
import torch
from scipy.stats import chi2, chisquare

from infodis.errors import InputError
from infodis.oracle import HiddenMarkov, Independent, MarkovChain, Oracle, Table
from infodis.rng import stream

LENGTH = 6

ORACLES: dict[str, Oracle] = {
    "table": Table.dna(3, entries=40, length=LENGTH),
    "independent": Independent(torch.tensor([0.2, 0.5, 0.3])),
    "independent per position": Independent(torch.softmax(torch.randn(LENGTH, 3, generator=stream(0, "i")), -1)),
    "chain of order 1": MarkovChain.random(order=1, vocab_size=3, seed=1),
    "chain of order 2": MarkovChain.random(order=2, vocab_size=3, temperature=0.2, seed=2),
    "chain of order 4": MarkovChain.random(order=4, vocab_size=2, temperature=0.3, seed=3),
    "chain longer than the sequence": MarkovChain.random(order=7, vocab_size=2, seed=4),
    "hidden Markov": HiddenMarkov.random(states=5, vocab_size=3, seed=5),
}


def joint(oracle: Oracle) -> tuple[torch.Tensor, torch.Tensor]:
    """All sequences and their probabilities, written out by definition."""
    sequences = torch.tensor(list(itertools.product(range(oracle.vocab_size), repeat=LENGTH)))
    match oracle:
        case Table():
            known = {tuple(s.tolist()): float(p) for s, p in zip(oracle.sequences, oracle.probabilities, strict=True)}
            values = [known.get(tuple(s.tolist()), 0.0) for s in sequences]
        case Independent():
            table = oracle.probabilities.expand(LENGTH, -1)
            values = [math.prod(float(table[i, t]) for i, t in enumerate(s.tolist())) for s in sequences]
        case MarkovChain():
            values = [_chain(oracle, s.tolist()) for s in sequences]
        case HiddenMarkov():
            values = [_hidden(oracle, s.tolist()) for s in sequences]
    return sequences, torch.tensor(values, dtype=torch.float64)


def _chain(chain: MarkovChain, s: list[int]) -> float:
    if len(s) < chain.order:
        return float(chain.start[tuple(s)].sum())
    p = float(chain.start[tuple(s[: chain.order])])
    for i in range(chain.order, len(s)):
        p *= float(chain.transitions[tuple(s[i - chain.order : i + 1])])
    return p


def _hidden(model: HiddenMarkov, s: list[int]) -> float:
    state = model.initial * model.emissions[:, s[0]]
    for token in s[1:]:
        state = (state @ model.transitions) * model.emissions[:, token]
    return float(state.sum())


@pytest.mark.parametrize("oracle", ORACLES.values(), ids=ORACLES.keys())
def test_conditionals_and_log_prob_against_enumeration(oracle):
    sequences, probabilities = joint(oracle)
    assert float(probabilities.sum()) == pytest.approx(1, abs=1e-12)
    possible = sequences[probabilities > 0]
    picks = possible[torch.randint(len(possible), (25,), generator=stream(1, "picks"))]
    masks = torch.rand(25, LENGTH, generator=stream(2, "masks")) < 0.5
    masks[0], masks[1] = True, False
    found = oracle.log_conditionals(torch.where(masks, oracle.mask_token, picks))
    for row, (x, mask) in enumerate(zip(picks, masks, strict=True)):
        agree = ((sequences == x) | mask).all(-1)
        evidence = probabilities[agree].sum()
        for i in mask.nonzero().squeeze(1).tolist():
            for token in range(oracle.vocab_size):
                wanted = probabilities[agree & (sequences[:, i] == token)].sum() / evidence
                assert float(found[row, i, token].exp()) == pytest.approx(float(wanted), abs=1e-12)
        shown = (~mask).nonzero().squeeze(1).tolist()
        if shown:
            assert oracle.log_prob(x, target=shown) == pytest.approx(float(evidence.log()), abs=1e-10)


@pytest.mark.parametrize("oracle", ORACLES.values(), ids=ORACLES.keys())
def test_conditional_log_prob_against_enumeration(oracle):
    sequences, probabilities = joint(oracle)
    x = sequences[probabilities.argmax()]
    target, context = [1, 4], [0, 5]
    given = (sequences[:, context] == x[context]).all(-1)
    both = given & (sequences[:, target] == x[target]).all(-1)
    wanted = float((probabilities[both].sum() / probabilities[given].sum()).log())
    assert oracle.log_prob(x, target=target, context=context) == pytest.approx(wanted, abs=1e-10)
    mask = torch.zeros(LENGTH, dtype=torch.bool)
    mask[target] = True
    assert oracle.log_prob(x, target=mask, context=torch.tensor(context)) == pytest.approx(wanted, abs=1e-10)


@pytest.mark.parametrize("oracle", ORACLES.values(), ids=ORACLES.keys())
def test_samples_against_exact_probabilities(oracle):
    """Chi-square on the likeliest sequences, the rest pooled; a false alarm once in 10,000 for each oracle."""
    sequences, probabilities = joint(oracle)
    count = 4000
    drawn = oracle.sample(count, length=LENGTH, generator=stream(3, "samples"))
    base = oracle.vocab_size ** torch.arange(LENGTH)
    codes, seen = (sequences * base).sum(-1), (drawn * base).sum(-1)
    top = probabilities.argsort(descending=True)[:20]
    observed = [(seen == codes[i]).sum().item() for i in top]
    expected = [count * float(probabilities[i]) for i in top]
    if count - sum(expected) > 1e-6:
        observed, expected = [*observed, count - sum(observed)], [*expected, count - sum(expected)]
    scale = sum(observed) / sum(expected)
    assert chisquare(observed, [e * scale for e in expected]).pvalue > 1e-4


def test_paper_toys():
    dna = Table.dna(0)
    assert dna.sequences.shape == (128, 8)
    assert dna.vocab_size == 4
    ratio = float(dna.probabilities.max() / dna.probabilities.min())
    assert 1 < ratio <= math.exp(2)  # softmax(u / 0.5) with u in [0, 1)
    chain = MarkovChain.random(order=4, vocab_size=4, temperature=0.5, seed=0)
    assert chain.transitions.shape == (4,) * 5
    moved = (chain.start.unsqueeze(-1) * chain.transitions).sum(0)
    assert torch.allclose(moved, chain.start, atol=1e-14)


def test_a_chain_is_counted():
    """By hand for five tokens; from many, chi-squared of counts given their contexts (one in 10,000 by chance)."""
    counted = MarkovChain.counted(torch.tensor([[0, 1, 1, 0, 1]]), order=1, vocab_size=2)
    assert torch.allclose(counted.transitions, torch.tensor([[0.5, 2.5], [1.5, 1.5]]).double() / 3)
    chain = MarkovChain.random(order=2, vocab_size=3, temperature=0.5, seed=1)
    rows = chain.sample(20_000, length=8, generator=stream(0, "counted"))
    context = (rows[:, :-2] * 3 + rows[:, 1:-1]).flatten()
    visits = context.bincount(minlength=9).view(3, 3, 1)
    found = MarkovChain.counted(rows, order=2, vocab_size=3, prior=1e-9)
    assert chi_squared(found, chain, visits) < CHI_SQUARED_18
    assert chi_squared(found, MarkovChain(chain.transitions.transpose(0, 1)), visits) > 10 * CHI_SQUARED_18


CHI_SQUARED_18 = float(chi2.isf(1e-4, 18))


def chi_squared(found: MarkovChain, chain: MarkovChain, visits: torch.Tensor) -> float:
    return float((visits * (found.transitions - chain.transitions) ** 2 / chain.transitions).sum())


@pytest.mark.parametrize(
    ("rows", "order", "prior", "message"),
    [
        (torch.zeros(2, 2, dtype=torch.int64), 2, 0.5, "more than 2 tokens"),
        (torch.zeros(2, 4, dtype=torch.int64), 0, 0.5, "order >= 1"),
        (torch.zeros(2, 4, dtype=torch.int64), 40, 0.5, r"at most 2\^24"),
        (torch.zeros(2, 4, dtype=torch.int64), 1, 0.0, "prior > 0"),
        (torch.zeros(2, 4, dtype=torch.int64), 1, float("nan"), "prior > 0"),
        (torch.full((2, 4), 3), 1, 0.5, r"0 \.\. 2, got 3 \.\. 3"),
    ],
)
def test_what_cannot_be_counted_is_told(rows, order, prior, message):
    with pytest.raises(InputError, match=message):
        MarkovChain.counted(rows, order=order, vocab_size=3, prior=prior)


def test_a_periodic_chain_has_a_stationary_distribution():
    swap = MarkovChain(torch.tensor([[0.0, 1.0], [1.0, 0.0]]))
    assert torch.allclose(swap.start, torch.tensor([0.5, 0.5]).double())


def test_impossible_context_and_target():
    table = Table(torch.tensor([[0, 0], [1, 1]]), torch.tensor([0.5, 0.5]))
    assert table.log_prob([0, 1]) == -math.inf
    with pytest.raises(InputError, match="context has probability zero"):
        MarkovChain(torch.tensor([[0.0, 1.0], [1.0, 0.0]])).log_prob([0, 0, 1], target=[2], context=[0, 1])
    with pytest.raises(InputError, match="row 0 have probability zero"):
        Table(torch.tensor([[0, 0, 1], [1, 1, 0]]), torch.tensor([0.5, 0.5])).log_conditionals(
            torch.tensor([[0, 1, 2]])
        )
    surprisal = table.surprisal(torch.tensor([[0, 1]]), torch.tensor([[True, False]]))
    assert surprisal.tolist() == [[math.inf, 0.0]]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Table.dna(0).log_prob([0] * 9), "length 8"),
        (lambda: Table.dna(0).log_prob([0] * 7 + [4]), "mask token"),
        (lambda: Table.dna(0).log_prob([0] * 7 + [7]), "0..3"),
        (lambda: Table.dna(0).log_prob([0] * 8, target=[]), "target is empty"),
        (lambda: Table.dna(0).log_prob([0] * 8, target=[1], context=[1]), "disjoint"),
        (lambda: Table.dna(0).log_prob([0] * 8, target=[8]), "0..7"),
        (lambda: Table.dna(0).log_prob([0] * 8, target=[1, 1]), "twice"),
        (lambda: Table.dna(0).log_prob(torch.full((8,), 0.5)), "whole numbers"),
        (lambda: Table.dna(0).log_prob([]), "non-empty"),
        (lambda: Table.dna(0, entries=5, length=1), "4 sequences"),
        (lambda: Table(torch.tensor([[0], [0]]), torch.tensor([0.5, 0.5])), "distinct"),
        (lambda: Independent(torch.tensor([0.5, 0.6])), "sum to 1"),
        (lambda: MarkovChain(torch.full((2, 3), 1 / 3)), "axes of one size"),
        (lambda: MarkovChain.random(order=0), "order >= 1"),
        (lambda: HiddenMarkov(torch.ones(1), torch.ones(1, 1), torch.ones(2, 1)), "1 states"),
        (lambda: Table.dna(0).log_conditionals(torch.full((1, 8), 9)), "mask token 4"),
    ],
)
def test_bad_input_is_a_clear_error(call, words):
    with pytest.raises(InputError, match=words):
        call()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_surprisals_of_states_against_forward_backward_over_tokens(dtype: torch.dtype) -> None:
    """Without distributions over tokens: the same numbers, hidden tokens that are not asked about included."""
    model = HiddenMarkov.random(states=5, vocab_size=4, temperature=0.2, seed=2)
    quick, generator = dataclasses.replace(model, dtype=dtype), stream(0, "states")
    tokens = model.sample(60, length=11, generator=generator)
    hidden = torch.rand(60, 11, generator=generator) < torch.rand(60, 1, generator=generator)
    masked = hidden & (torch.rand(60, 11, generator=generator) < 0.7)
    _, conditionals = model.posterior(torch.where(hidden, model.mask_token, tokens))
    exact = -conditionals.gather(-1, tokens.unsqueeze(-1)).squeeze(-1).log()
    given = torch.where(hidden & ~masked, model.mask_token, tokens)
    atol = 1e-12 if dtype == torch.float64 else 1e-4
    assert torch.allclose(quick.surprisal(given, masked).double(), torch.where(masked, exact, 0.0), atol=atol)
    log_evidence, _ = model.posterior(torch.where(hidden, model.mask_token, tokens))
    found = quick.log_evidence(torch.where(hidden, model.mask_token, tokens))
    assert torch.allclose(found, log_evidence, atol=atol)
