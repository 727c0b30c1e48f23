"""Quantities of block diffusion models: right, or clearly refused."""

import itertools
import math

import pytest
import torch

import infodis
from infodis import BlockLayout
from infodis.apps.audit.measure import PromptedItem
from infodis.errors import InputError
from infodis.item import Item
from infodis.noise.dse import from_predictor, mdce
from infodis.oracle import MarkovChain
from infodis.quantities.consistency import audit
from infodis.quantities.influence import influence, mutual_information
from infodis.quantities.information import profile
from infodis.rng import stream
from infodis.testing import Blockwise, Perturbed, TabulatedBlocks

CHAIN = MarkovChain.random(order=2, vocab_size=4, temperature=0.5, seed=1)
TEXT = CHAIN.sample(1, length=14, generator=stream(0, "block quantities"))[0]
NOISY = Blockwise(Perturbed(CHAIN, scale=1.0), BlockLayout(4))


def circulations(table: torch.Tensor) -> list[tuple[float, float]]:
    """Of all pairs and masks of one block: the circulation and its probability, for each pair 1 in all."""
    size, found = table.shape[1], []
    for a, b in itertools.combinations(range(size), 2):
        rest = [place for place in range(size) if place not in (a, b)]
        for count in range(size - 1):
            for more in itertools.combinations(rest, count):
                code = sum(2**place for place in (a, b, *more))
                value = table[code, a] + table[code - 2**a, b] - table[code, b] - table[code - 2**b, a]
                found.append((float(value), 1 / (size - 1) / math.comb(len(rest), count)))
    return found


@pytest.mark.parametrize("layout", [BlockLayout(4), BlockLayout(5, "response")])
def test_circulations_lie_inside_blocks_against_enumeration(layout):
    """Of a block cut short by the prompt, whole ones, and one cut short by the end: |z| < 4."""
    network, context = Blockwise(NOISY.predictor, layout), range(2)
    table = TabulatedBlocks.of(network, Item.read(TEXT, context=context))
    every = [found for block in table.tables for found in circulations(block)]
    pairs = sum(math.comb(block.shape[1], 2) for block in table.tables)
    exact = math.sqrt(sum(value**2 * chance for value, chance in every) / pairs)
    found = audit(network, TEXT.tolist(), context=context, pairs=3000).root_mean_square
    assert abs(found.value - exact) < 4 * found.standard_error
    assert found.standard_error < 0.05 * exact


def test_an_oracle_in_blocks_agrees_with_itself():
    found = audit(Blockwise(CHAIN, BlockLayout(4)), TEXT.tolist(), pairs=32)
    assert found.root_mean_square.value < 1e-9
    assert found.most_gap_per_token.value < 1e-9


def test_blocks_of_one_token_have_no_pairs():
    with pytest.raises(InputError, match="no block of this model holds two target tokens"):
        audit(Blockwise(CHAIN, BlockLayout(1)), TEXT.tolist())


@pytest.mark.parametrize(
    "asked",
    [
        lambda: influence(NOISY, TEXT, context=range(4)),
        lambda: mutual_information(NOISY, TEXT, a=range(4, 8), b=range(4)),
        lambda: profile(NOISY, TEXT.tolist()),
        lambda: mdce(NOISY, TEXT, 0.5),
        lambda: from_predictor(NOISY),
    ],
    ids=["influence", "mutual_information", "profile", "mdce", "from_predictor"],
)
def test_what_needs_parts_of_rows_is_refused(asked):
    with pytest.raises(
        InputError, match=r"needs a model that sees any part of a row, got one that sees only the blocks"
    ):
        asked()


def test_an_audit_takes_the_prompt_out_of_the_row():
    """A full model is asked with the prompt masked; a model of blocks would still see it beside the masked row."""
    model, full = infodis.load("text8-block4"), infodis.load("text8-tiny")
    with_prompt = model.read("nce is paris", prompt="the capital of fra")
    bare = PromptedItem.of(model, with_prompt).without_prompt
    assert bare.tokens.tolist() == model.read("nce is paris").tokens.tolist()
    assert bare.target.tolist() == list(range(12))
    hidden = PromptedItem.of(full, with_prompt).without_prompt
    assert (hidden.length, hidden.context.numel()) == (30, 0)
