"""Scores of mutants against loops, oracles and enumeration that share no code with them."""

import math
from pathlib import Path

import pytest
import torch
from tiny_models import MASK, build, transformers

import infodis
from infodis import predictor as predictors
from infodis.design import Enumerate
from infodis.errors import InputError
from infodis.estimate import Request
from infodis.item import Item
from infodis.oracle import MarkovChain, Table
from infodis.predictor import Counting, SharedRows
from infodis.quantities.effects import METHODS, EffectRequest

REACTIONS = Path(__file__).parents[3] / "shared/data/weights/rxnmapper_albert"
WILD = [2, 7, 9, 11, 9, 8, 20, 33, 3]
MUTANTS = [[2, 7, 10, 11, 9, 8, 20, 33, 3], [2, 8, 9, 11, 9, 8, 21, 33, 3], WILD, [2, 7, 9, 3]]


def item(tokens):
    return Item.read(tokens, context=[0, len(tokens) - 1])


@torch.no_grad()
def log_p(network, row, hidden, place, token, *, mask=MASK):
    """As people write it, over all columns: a ratio does not see what the softmax is taken over."""
    asked = torch.tensor(row)
    asked[list(hidden)] = mask
    return float(torch.log_softmax(network(input_ids=asked.unsqueeze(0)).logits[0, place].double(), -1)[token])


def by_loop(network, wild, mutant, *, mask=MASK):
    at = [place for place in range(len(wild)) if wild[place] != mutant[place]]

    def effect(hidden_for):
        both = ((log_p(network, wild, hidden_for(t), t, x[t], mask=mask) for x in (mutant, wild)) for t in at)
        return sum(new - own for new, own in both)

    def pll(row):
        return sum(log_p(network, row, [place], place, row[place], mask=mask) for place in range(1, len(row) - 1))

    return {
        "wt_marginals": effect(lambda place: ()),
        "masked_marginals": effect(lambda place: (place,)),
        "masked_marginals_joint": effect(lambda place: at),
    }, pll(mutant) - pll(wild)


@pytest.mark.parametrize("kind", ["bert", "esm", "albert"])
def test_marginals_and_pll_against_loop(kind, tmp_path):
    network = build(kind, tmp_path)
    model = infodis.load(tmp_path, device="cpu")
    found = EffectRequest(METHODS[:4]).measure(model, item(WILD), [item(row) for row in MUTANTS])
    for mutant, effect in zip(MUTANTS[:3], found.found, strict=False):
        marginals, _ = by_loop(network, WILD, mutant)
        assert {name: effect.scores[name] for name in marginals} == pytest.approx(marginals, abs=1e-4)
    assert found.found[3].scores == dict.fromkeys(METHODS[:4])  # lengths differ
    assert (found.found[3].mutations, found.found[1].mutations) == (None, 2)
    without_mask = [by_pll(network, row) for row in MUTANTS[:3]]
    ratios = [one - without_mask[2] for one in without_mask]
    assert [one.scores["pll_ratio"] for one in found.found[:3]] == pytest.approx(ratios, abs=1e-4)


@torch.no_grad()
def by_pll(network, row, *, mask=MASK):
    """Without the column of the mask, which no data holds."""
    total = 0.0
    for place in range(1, len(row) - 1):
        asked = torch.tensor(row)
        asked[place] = mask
        logits = network(input_ids=asked.unsqueeze(0)).logits[0, place].double()
        logits[mask] = -math.inf
        total += float(torch.log_softmax(logits, -1)[row[place]])
    return total


@pytest.mark.skipif(not REACTIONS.is_dir(), reason="the weights are not here")
def test_marginals_of_a_trained_model_against_loop():
    network = transformers.AutoModelForMaskedLM.from_pretrained(REACTIONS).eval()
    model = infodis.load(REACTIONS, device="cpu")
    wild, mutant = [12, 16, 15, 16, 21, 17, 30, 16, 13], [12, 16, 18, 16, 21, 17, 31, 16, 13]
    (effect,) = EffectRequest(METHODS[:4]).measure(model, item(wild), [item(mutant)]).found
    marginals, _ = by_loop(network, wild, mutant, mask=model.mask_token)
    marginals["pll_ratio"] = by_pll(network, mutant, mask=14) - by_pll(network, wild, mask=14)
    assert effect.scores == pytest.approx(marginals, abs=1e-4)


def test_log_ratios_of_double_mutants_against_exact():
    chain = MarkovChain.random(order=2, vocab_size=4, seed=3)
    wild = [0, 1, 2, 3, 0, 1]
    mutants = [[3, 1, 2, 3, 0, 2], [0, 2, 1, 3, 0, 1], [0, 1, 2, 3]]
    asked = EffectRequest(("log_ratio",), Request(Enumerate()))
    found = asked.measure(chain, Item.read(wild), [Item.read(row) for row in mutants])
    exact = [chain.log_prob(row) - chain.log_prob(wild) for row in mutants]
    assert [one.scores["log_ratio"] for one in found.found] == pytest.approx(exact, abs=1e-6)


def test_log_ratios_of_double_mutants_against_enumeration(tmp_path):
    """A learned network: the mask averages of both sides over all masks, one after another."""
    build("esm", tmp_path)
    model = infodis.load(tmp_path, device="cpu")
    wild, mutant = item(WILD), item(MUTANTS[1])
    apart = [infodis.nll(model, one, design=Enumerate()).value for one in (wild, mutant)]
    (effect,) = EffectRequest(("log_ratio",), Request(evaluations=127)).measure(model, wild, [mutant]).found
    assert effect.ratio.exact
    assert effect.ratio.value == pytest.approx(apart[0] - apart[1], abs=1e-5)
    drawn = EffectRequest(("log_ratio",), Request(evaluations=64)).measure(model, wild, [mutant]).found[0].ratio
    assert abs(drawn.value - effect.ratio.value) < 4 * drawn.standard_error


def single_mutants(wild, letters):
    return [
        [*wild[:place], letter, *wild[place + 1 :]]
        for place in range(len(wild))
        for letter in range(letters)
        if letter != wild[place]
    ]


def test_marginals_of_all_single_mutants_take_a_pass_a_position():
    chain = Counting(MarkovChain.random(order=1, vocab_size=5, seed=0))
    wild = [0, 1, 2, 3, 4, 3, 2, 1, 0, 2]
    mutants = [Item.read(row) for row in single_mutants(wild, 5)]
    found = EffectRequest(METHODS[:3]).measure(chain, Item.read(wild), mutants)
    assert len(mutants) == 40
    assert found.passes == chain.rows == len(wild) + 1
    assert sum(one.evaluations for one in found.found) == 3 * 40


def test_rows_that_are_shared_change_no_number(monkeypatch):
    table = Table.dna(seed=0)
    wild, *others = ([int(token) for token in row] for row in table.sequences[:6])
    asked = EffectRequest(METHODS[3:], Request(evaluations=48))
    items = [Item.read(row) for row in others]
    found = asked.measure(table, Item.read(wild), items)
    alone = [infodis.log_ratio(table, row, wild, evaluations=48) for row in others]
    assert [one.ratio.value for one in found.found] == pytest.approx([one.value for one in alone], abs=1e-5)
    assert found.passes < sum(one.evaluations for one in found.found)
    monkeypatch.setattr(predictors, "REMEMBERED", 50)
    forgetful = asked.measure(table, Item.read(wild), items)
    assert [one.scores for one in forgetful.found] == [one.scores for one in found.found]
    assert forgetful.passes > found.passes


def test_shared_rows_are_counted():
    shared = SharedRows(MarkovChain.random(order=1, vocab_size=3, seed=0))
    items = [Item.read([0, token, 2], target=[1], context=[0, 2]) for token in (0, 1, 2, 1)]
    nats = [one.value for one in infodis.nll(shared, items)]
    assert (shared.made, shared.asked) == (1, 4) or (shared.made, shared.asked) == (1, 3)
    assert math.fsum(math.exp(-one) for one in nats[:3]) == pytest.approx(1.0, abs=1e-5)


def test_bad_requests_are_told():
    with pytest.raises(InputError, match=r"one of wt_marginals, .*; got 'esm'"):
        EffectRequest(("esm",))
    with pytest.raises(InputError, match="At least one score"):
        EffectRequest(())
