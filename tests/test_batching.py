"""Rows to batches: every row is answered once, with its neighbours or without, and padding is not seen."""

import itertools

import pytest
import torch

import infodis
from infodis.errors import InputError, PredictorError
from infodis.nets import RADD, Shape, initialise
from infodis.oracle import Independent, MarkovChain
from infodis.predictor import Counting, Predictor
from infodis.rng import stream

CHAIN = MarkovChain.random(order=1, vocab_size=4, temperature=0.3)


class Rowwise(Predictor):
    """An oracle that answers about wanted positions, keeps the shapes of its batches, and has little memory."""

    def __init__(self, oracle, *, pads=True, tokens_at_once=40, memory=10**9):
        self.oracle, self.pads, self.tokens_at_once, self.memory = oracle, pads, tokens_at_once, memory
        self.vocab_size, self.mask_token = oracle.vocab_size, oracle.mask_token
        self.shapes = []

    def log_conditionals(self, tokens):
        return self.oracle.log_conditionals(tokens)

    def surprisals(self, rows):
        self.shapes.append(tuple(rows.tokens.shape))
        if rows.tokens.numel() > self.memory:
            raise torch.OutOfMemoryError
        assert not bool((rows.wanted & ~rows.hidden).any())
        found = []
        for row, hidden, wanted, length in zip(rows.tokens, rows.hidden, rows.wanted, rows.lengths, strict=True):
            assert not bool(hidden[length:].any())
            alone = self.oracle.surprisal(row[None, :length], hidden[None, :length])[0]
            found.append(alone[wanted[:length]])
        return torch.cat(found)


TEXTS = [CHAIN.sample(1, length=length, generator=stream(0, length))[0] for length in (9, 5, 12, 5, 7, 30, 2)]


@pytest.mark.parametrize("pads", [True, False])
@pytest.mark.parametrize("batch_size", [None, 3])
def test_batches_change_no_number(pads, batch_size):
    """Sequences of many lengths, some with context and some summed out, together and one by one."""
    how = {"evaluations": 24, "target": [range(1, len(t) - (len(t) > 6)) for t in TEXTS], "context": [[0]] * len(TEXTS)}
    predictor = Rowwise(CHAIN, pads=pads)
    together = infodis.nll(predictor, TEXTS, **how, batch_size=batch_size)
    for number, text in enumerate(TEXTS):
        sets = {"target": how["target"][number], "context": [0]}
        alone = infodis.nll(CHAIN, text, evaluations=24, **sets)
        torch.testing.assert_close(together[number].replicates, alone.replicates, rtol=1e-12, atol=1e-12)
        assert together[number].evaluations == alone.evaluations
    for rows, length in predictor.shapes:
        assert rows * length <= 40 or rows == 1 or batch_size is not None
        assert batch_size is None or rows <= batch_size
    if pads and batch_size is None:  # lengths share batches
        assert len({length for _, length in predictor.shapes}) < len({len(text) for text in TEXTS})


def test_batches_are_full():
    predictor = Rowwise(CHAIN, tokens_at_once=64)
    infodis.nll(predictor, TEXTS * 5, evaluations=16)
    spent = sum(rows * length for rows, length in predictor.shapes)
    assert len(predictor.shapes) < 1.3 * spent / 64 + 2


def test_a_batch_that_does_not_fit_is_halved():
    small = Rowwise(CHAIN, tokens_at_once=300, memory=64)
    found = infodis.nll(small, TEXTS * 4, evaluations=16)
    exact = infodis.nll(CHAIN, TEXTS * 4, evaluations=16)
    assert [e.value for e in found] == pytest.approx([e.value for e in exact], rel=1e-12)
    sizes = [rows * length for rows, length in small.shapes]
    assert 1 <= sum(size > 64 for size in sizes) <= 4  # later batches start smaller,
    assert sum(sizes[4:]) / len(sizes[4:]) > 24  # but not as small as can be
    with pytest.raises(PredictorError, match="A row of 30 tokens does not fit"):
        infodis.nll(Rowwise(CHAIN, memory=20), TEXTS, evaluations=16)


def test_rows_of_many_sequences_share_calls():
    counted = Counting(Independent(torch.tensor([0.5, 0.5])))
    infodis.nll(counted, [[0, 1, 0, 1, 1, 0, 1, 0, 1]] * 1 + [[n % 2] * 9 for n in range(20)], evaluations=8)
    assert counted.calls <= 3


def test_batch_sizes_are_checked():
    for wrong in (0, -1):
        with pytest.raises(InputError, match="batch_size"):
            infodis.nll(CHAIN, [0, 1, 2], batch_size=wrong)


def test_padding_does_not_leak_into_our_networks():
    from infodis.nets import SEDD
    from infodis.nets.llama import Llama, LlamaShape

    shape = Shape(width=16, blocks=2, heads=2)
    llama = Llama(LlamaShape(9, 16, 2, 4, 2, 24, 1e4, 1e-5), mask_token=8, tokens=9)
    for network in (RADD(8, shape), SEDD(8, shape), llama):
        initialise(network, generator=stream(0))
        for parameter in network.parameters():
            if not bool(parameter.any()):
                torch.nn.init.normal_(parameter, std=0.3, generator=stream(1))
        network.eval()
        tokens = torch.randint(8, (2, 9), generator=stream(2))
        tokens[:, ::3] = 8
        alone = network.log_conditionals(tokens[:1, :5])
        visible = torch.ones(2, 9, dtype=torch.bool)
        visible[0, 5:] = False
        padded = torch.log_softmax(network.logits(network.features(tokens, visible=visible)), -1)
        torch.testing.assert_close(padded[:1, :5], alone, atol=1e-5, rtol=1e-5)
        leaking = torch.log_softmax(network.logits(network.features(tokens)), -1)
        assert (leaking[:1, :5] - alone).nan_to_num().abs().max() > 1e-3
        assert all(a.isfinite().any() for a in itertools.chain(padded, alone))
