"""Likelihoods of decoders: against exact distributions, against walks by hand, and as distributions that sum to one."""

import functools
import itertools
import math

import pytest
import torch

import infodis
from infodis import (
    AboveThreshold,
    InBlocks,
    LargestMargin,
    LeftToRight,
    LowestEntropy,
    MostConfident,
    RandomOrder,
    RightToLeft,
)
from infodis.blocks import BlockLayout
from infodis.errors import InputError
from infodis.evaluate import ItemBatch, run
from infodis.item import Item
from infodis.oracle import Independent, MarkovChain, Table
from infodis.predictor import Counting, from_function
from infodis.quantities.orders import OrderNll, all_masks, decode, sum_orders
from infodis.reveal import GivenOrder, confidence, margin, negative_entropy, rule_named
from infodis.rng import stream
from infodis.sampling import Ancestral, sample
from infodis.testing import Blockwise, Perturbed, Tabulated

CHAIN = MarkovChain.random(order=1, vocab_size=3, temperature=0.5, seed=0)
NOISY = Perturbed(CHAIN, scale=1.0)
X = CHAIN.sample(4, length=12, generator=stream(0, "orders"))
WAYS = torch.cartesian_prod(*[torch.arange(3)] * 4)

ONE_BY_ONE = [
    *(LeftToRight(), RightToLeft(), RandomOrder(), MostConfident(), LowestEntropy(), LargestMargin()),
    *(AboveThreshold(1.0), GivenOrder((3, 1, 0, 2))),
    *(InBlocks(MostConfident(), 3), InBlocks(RandomOrder(), 2, "response"), InBlocks(InBlocks(RightToLeft(), 2), 3)),
]
PARALLEL = [
    *(LeftToRight(2), RandomOrder(3), MostConfident(2), LowestEntropy(4), LargestMargin(3), AboveThreshold(0.6)),
    *(InBlocks(AboveThreshold(0.5), 3), InBlocks(MostConfident(2), 3), Ancestral(2)),
]


@pytest.mark.parametrize("rule", ONE_BY_ONE, ids=repr)
def test_one_at_a_time_against_exact(rule):
    """The conditionals of an oracle agree: every order gives the same."""
    if isinstance(rule, GivenOrder):
        rule = GivenOrder((9, 4, 3, 11, 5, 6, 10, 7, 8))
    sets = {"target": range(3, 12), "context": [0, 2]}
    found = infodis.order_nll(CHAIN, X[0], order=rule, **sets)
    assert found.value == pytest.approx(-CHAIN.log_prob(X[0], **sets), rel=1e-8)
    assert float(found.per_token.sum()) == pytest.approx(found.value)
    assert (found.evaluations, found.design, found.stopped) == (9, rule, "exact")


CERTAIN = {
    MostConfident: lambda table, i: float(table[i].exp().max()),
    AboveThreshold: lambda table, i: float(table[i].exp().max()),
    LowestEntropy: lambda table, i: float((table[i].exp() * table[i]).sum()),
    LargestMargin: lambda table, i: float(table[i].exp().sort().values[-2:].diff()),
    LeftToRight: lambda table, i: -i,
    RightToLeft: lambda table, i: i,
}


def walk(x, rule):
    """What a decoder does with a text, written out: at each step the positions by hand, and -log p of their tokens."""
    row = torch.full((1, len(x)), CHAIN.mask_token)
    total, steps = 0.0, 0
    while (row == CHAIN.mask_token).any():
        table = NOISY.log_conditionals(row)[0].double()
        left = [i for i in range(len(x)) if row[0, i] == CHAIN.mask_token]
        if isinstance(rule, InBlocks):
            left = [i for i in left if i // rule.size == left[0] // rule.size]
        inner = rule.inner if isinstance(rule, InBlocks) else rule
        certain = functools.partial(CERTAIN[type(inner)], table)
        ranked = sorted(left, key=certain, reverse=True)
        if isinstance(inner, AboveThreshold):
            shown = [i for i in ranked if certain(i) >= inner.threshold] or ranked[:1]
        else:
            shown = ranked[: inner.per_step]
        total -= sum(float(table[i, x[i]]) for i in shown)
        row[0, shown] = x[shown]
        steps += 1
    return total, steps


BY_HAND = [
    *(kind(n) for kind in (LeftToRight, RightToLeft, MostConfident, LowestEntropy, LargestMargin) for n in (1, 3)),
    *(AboveThreshold(t) for t in (0.4, 0.6, 0.8)),
    *(InBlocks(MostConfident(2), 3), InBlocks(AboveThreshold(0.5), 5)),
]


@pytest.mark.parametrize("rule", BY_HAND, ids=repr)
def test_rules_against_a_walk_by_hand(rule):
    """Conditionals that disagree: every rule has a number of its own."""
    for x in X[:3]:
        found = infodis.order_nll(NOISY, x, order=rule)
        assert (found.value, found.evaluations) == (pytest.approx(walk(x, rule)[0], abs=1e-6), walk(x, rule)[1])


def test_certainties_choose_different_positions():
    """One position has the lowest entropy, one the likeliest token, one the largest margin."""
    rows = [[0.5, 0.5, 0, 0, 0], [0.55, 0.15, 0.1, 0.1, 0.1], [0.54, 0.115, 0.115, 0.115, 0.115]]
    fixed = from_function(lambda tokens: torch.tensor(rows).log().expand(len(tokens), 3, 5), vocab_size=5, mask_token=5)
    item = Item.read([0, 0, 0])
    first = [
        run(decode(ItemBatch.of(fixed, [item]), item, rule)).turns.tolist().index(0)
        for rule in (LowestEntropy(), MostConfident(), LargestMargin())
    ]
    assert first == [0, 1, 2]


@pytest.mark.parametrize("rule", [rule for rule in (*ONE_BY_ONE, *PARALLEL) if not rule.draws], ids=repr)
def test_likelihoods_of_all_texts_sum_to_one(rule):
    """A rule does not see what it will reveal: the decoder's texts have a distribution, whatever the predictor says."""
    found = infodis.order_nll(NOISY, WAYS, order=rule)
    assert sum(math.exp(-one.value) for one in found) == pytest.approx(1.0, abs=1e-5)


def test_the_best_order_of_each_text_does_not_sum_to_one():
    """Negative control: an order that is chosen knowing the text is no decoder."""
    best = [infodis.bounds(NOISY, row).best_order.value for row in WAYS]
    assert sum(math.exp(-value) for value in best) > 1.1


@pytest.mark.parametrize("rule", [MostConfident(2), AboveThreshold(0.6), InBlocks(LowestEntropy(2), 3)], ids=repr)
def test_samples_follow_the_likelihood(rule):
    """Chi-square of 4,000 texts over all 81, at a false-alarm rate of 1e-4; another rule's likelihood is rejected."""
    from scipy.stats import chisquare

    drawn = sample(NOISY, torch.full((4000, 4), NOISY.mask_token), rule=rule, batch_size=2000)
    counts = (drawn.unsqueeze(1) == WAYS).all(-1).sum(0)

    def p_value(order):
        expected = torch.tensor([math.exp(-one.value) for one in infodis.order_nll(NOISY, WAYS, order=order)]).double()
        return chisquare(counts.numpy(), (4000 * expected / expected.sum()).numpy()).pvalue

    assert p_value(rule) > 1e-4
    assert p_value(RightToLeft(2)) < 1e-4


def test_several_at_once_are_no_chain_rule():
    """Negative control: all tokens at once cost the sum of their marginals, which is no likelihood of the chain."""
    x = X[0][:6]
    found = infodis.order_nll(CHAIN, x, order=LeftToRight(6))
    marginals = sum(-CHAIN.log_prob(x, target=[i]) for i in range(6))
    assert (found.value, found.evaluations) == (pytest.approx(marginals, rel=1e-6), 1)
    assert abs(found.value + CHAIN.log_prob(x)) > 0.1
    coin = Independent(torch.tensor([0.2, 0.3, 0.5]))
    assert infodis.order_nll(coin, x, order=LeftToRight(6)).value == pytest.approx(-coin.log_prob(x))


def test_a_random_order_is_a_replicate_of_nll():
    """The mean over seeds against enumeration, within 4.5 standard errors; and seeds give other orders."""
    values = torch.tensor([infodis.order_nll(NOISY, X[0][:6], order="random", seed=s).value for s in range(200)])
    exact = infodis.nll(NOISY, X[0][:6], design=infodis.Enumerate()).value
    assert abs(float(values.mean()) - exact) < 4.5 * float(values.std()) / math.sqrt(200)
    assert len(set(values.tolist())) > 100


def test_many_texts_share_batches_and_are_as_each_alone():
    texts = [X[0], X[1][:5], X[2][:9], X[0], X[3]]
    for rule in (MostConfident(), AboveThreshold(0.6), InBlocks(LargestMargin(2), 4), RandomOrder()):
        counting = Counting(NOISY)
        found = infodis.order_nll(counting, texts, order=rule, seed=3)
        assert counting.rows == sum(found[n].evaluations for n in (0, 1, 2, 4))  # equal texts once
        for one, text in zip(found, texts, strict=True):
            alone = infodis.order_nll(NOISY, text, order=rule, seed=3)
            assert (one.value, one.evaluations) == (pytest.approx(alone.value), alone.evaluations)
    assert counting.calls <= 3  # three lengths
    looking = Counting(NOISY)
    infodis.order_nll(looking, list(X), order=MostConfident())
    assert (looking.calls, looking.rows) == (12, 48)


def test_a_model_pads_and_answers_alike():
    """Rows of unequal lengths share a batch, and are as each alone."""
    model = infodis.load("text8-tiny")
    texts = ["the capital of france", "paris", "one two three"]
    for rule in (MostConfident(2), LowestEntropy(), AboveThreshold(0.3), InBlocks(LargestMargin(), 8)):
        together = infodis.order_nll(model, texts, order=rule, prompt="in ")
        for one, text in zip(together, texts, strict=True):
            alone = infodis.order_nll(model, text, order=rule, prompt="in ", batch_size=1)
            assert (one.value, one.evaluations) == (pytest.approx(alone.value, abs=1e-3), alone.evaluations)


def test_a_models_certainties_are_those_of_its_distributions():
    model = infodis.load("text8-tiny")
    tokens = model.encode("the river flows")
    hidden = torch.zeros(1, len(tokens), dtype=torch.bool)
    hidden[0, [1, 4, 7]] = True
    answer = model.log_conditionals(torch.where(hidden, model.mask_token, tokens))
    from infodis.predictor import Rows

    rows = Rows(tokens[None], hidden, hidden, torch.tensor([len(tokens)]), torch.zeros(1, dtype=torch.int64))
    for certainty in (confidence, negative_entropy, margin):
        surprisal, certain = model.certainties(rows, certainty)
        torch.testing.assert_close(certain, certainty(answer)[hidden], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(surprisal, model.surprisals(rows), rtol=1e-4, atol=1e-5)


def test_certainties_against_closed_form():
    p = torch.tensor([[0.5, 0.25, 0.25, 0.0], [1.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
    assert confidence(p.log()).exp().tolist() == [0.5, 1.0]
    assert negative_entropy(p.log()).tolist() == pytest.approx([-1.5 * math.log(2), 0.0])
    assert margin(p.log()).tolist() == [0.25, 1.0]
    assert margin(torch.zeros(2, 1)).tolist() == [1.0, 1.0]


def test_impossible_texts():
    """It stops where nothing can be conditional on what cannot happen."""
    table = Table(torch.tensor([[0, 0, 1], [1, 1, 0]]), torch.tensor([0.5, 0.5]))
    for rule in (LeftToRight(), MostConfident(), AboveThreshold(0.9), RandomOrder()):
        assert infodis.order_nll(table, [0, 1, 1], order=rule).impossible


def all_orders(table, length):
    """The chain rule along every order, from surprisals of masks by number."""
    return {
        order: sum(float(table[sum(2**i for i in order[step:]), order[step]]) for step in range(length))
        for order in itertools.permutations(range(length))
    }


@pytest.mark.parametrize("length", [1, 2, 4, 6])
def test_all_orders_against_brute_force(length):
    item = Item.read(X[1][: length + 2], context=[0, length + 1])
    table = Tabulated.of(NOISY, item).table
    every = all_orders(table, length)
    values = torch.tensor(list(every.values()), dtype=torch.float64)
    found = sum_orders(table[1:])
    assert found.mean == pytest.approx(float(values.mean()), rel=1e-12)
    assert found.variance == pytest.approx(float(values.var(correction=0)), rel=1e-9, abs=1e-12)
    assert found.mixture == pytest.approx(-float(torch.logsumexp(-values, 0)) + math.log(len(values)), rel=1e-12)
    assert found.best == pytest.approx(min(every.values()), rel=1e-12)
    order = tuple(sorted(range(length), key=lambda i: found.best_turns[i]))
    assert every[order] == pytest.approx(found.best, rel=1e-12)


def test_the_best_order_is_reached_by_order_nll():
    found = infodis.bounds(NOISY, X[1][:5])
    masks = all_masks(5)[1:]
    table = Tabulated.of(NOISY, Item.read(X[1][:5])).table[1:]
    assert len(table) == len(masks)
    turns = sum_orders(table).best_turns
    order = sorted(range(5), key=lambda i: turns[i])
    assert infodis.order_nll(NOISY, X[1][:5], order=order).value == pytest.approx(found.best_order.value)
    assert found.best_order.value <= min(found.left_to_right.value, found.most_confident_first.value)
    assert infodis.bounds(NOISY, X[1], orders=4, particles=2).best_order is None  # not all orders were looked at


def test_rules_by_name():
    assert rule_named("lowest-entropy=3:8") == InBlocks(LowestEntropy(3), 8)
    assert rule_named("above-threshold=0.75") == AboveThreshold(0.75)
    left = infodis.order_nll(NOISY, X[0], order="left-to-right=2")
    assert left.value == infodis.order_nll(NOISY, X[0], order=LeftToRight(2)).value
    for name in ("backwards", "random=0", "random=1.5", "random:0", "random:", "above-threshold=2", "random=-1"):
        with pytest.raises(InputError):
            rule_named(name)
    with pytest.raises(InputError, match="each of the 12"):
        infodis.order_nll(NOISY, X[0], order=[0, 1])


def test_scores_take_it_as_a_quantity():
    rule = InBlocks(MostConfident(2), 8)
    found = infodis.score("text8-tiny", ["paris", "the river"], quantity=OrderNll(rule))
    peer = infodis.order_nll(infodis.load("text8-tiny"), ["paris", "the river"], order=rule)
    assert [one.value for one in found] == pytest.approx([one.value for one in peer], abs=1e-4)
    assert found.quantity == "order_nll"
    with pytest.raises(InputError, match="order_nll is exact"):
        infodis.score("text8-tiny", "paris", quantity="order_nll", evaluations=32)


BLOCK_RULES = [MostConfident(2), AboveThreshold(0.6), LowestEntropy(), LeftToRight(), RightToLeft(3)]


@pytest.mark.parametrize("rule", BLOCK_RULES, ids=repr)
@pytest.mark.parametrize("layout", [BlockLayout(4), BlockLayout(3, "response")], ids=repr)
def test_a_model_of_blocks_decodes_each_of_them(rule, layout):
    """Against each block alone, given the clean ones before it: equal, in as many passes as the slowest block takes."""
    x, context = X[1], range(2)
    target = torch.arange(2, 12)
    found = infodis.order_nll(Blockwise(NOISY, layout), x, context=context, order=rule)
    parts = [
        infodis.order_nll(NOISY, x, target=places, context=range(int(places[0])), order=rule)
        for places in target.split(list(layout.sizes(target)))
    ]
    assert found.value == pytest.approx(sum(part.value for part in parts), abs=1e-6)
    assert found.evaluations == max(part.evaluations for part in parts)


def test_blocks_of_four_hold_all_their_orders_in_fifteen_passes():
    """Best order, mixture and mean against brute force in every block; a target that begins and ends inside a block."""
    blockwise, item = Blockwise(NOISY, BlockLayout(4)), Item.read(X[2], context=range(2))
    found = infodis.bounds(blockwise, X[2], context=range(2))
    parts = []
    for places in item.target.split([2, 4, 4]):
        sub = Item.read(X[2], target=places, context=range(int(places[0])))
        values = all_orders(Tabulated.of(NOISY, sub).table, len(places)).values()
        parts.append(torch.tensor(list(values), dtype=torch.float64))
    assert found.nll.evaluations == 15
    assert found.nll.value == pytest.approx(sum(float(part.mean()) for part in parts), rel=1e-9)
    assert found.best_order.value == pytest.approx(sum(float(part.min()) for part in parts), rel=1e-9)
    mixture = sum(-float(torch.logsumexp(-part, 0)) + math.log(len(part)) for part in parts)
    assert found.mixture_nll.value == pytest.approx(mixture, rel=1e-9)
    assert found.spread.value == pytest.approx(
        math.sqrt(sum(float(part.var(correction=0)) for part in parts)), rel=1e-9
    )
    left = infodis.order_nll(blockwise, X[2], context=range(2))
    assert (found.left_to_right.value, found.left_to_right.evaluations) == (pytest.approx(left.value), left.evaluations)
