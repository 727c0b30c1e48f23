"""Rows to batches: every row is answered once, with its neighbours or without, and padding is not seen."""

import itertools
import weakref

import pytest
import torch

import infodis
from infodis.device import fits
from infodis.errors import InputError, PredictorError
from infodis.models.nets import RADD, NetworkShape, initialise
from infodis.oracle import Independent, MarkovChain
from infodis.predictor import Counting, Predictor
from infodis.rng import stream

CHAIN = MarkovChain.random(order=1, vocab_size=4, temperature=0.3)


class Rowwise(Predictor):
    """An oracle that answers about wanted positions, keeps the shapes of its batches, and has little memory."""

    def __init__(self, oracle, *, pads=True, tokens_at_once=40, memory=10**9, fault=None, late=False):
        self.oracle, self.pads, self.tokens_at_once, self.memory = oracle, pads, tokens_at_once, memory
        self.fault, self.late = fault or torch.OutOfMemoryError(), late
        self.vocab_size, self.mask_token = oracle.vocab_size, oracle.mask_token
        self.shapes = []

    def log_conditionals(self, tokens):
        return self.oracle.log_conditionals(tokens)

    def surprisals(self, rows):
        self.shapes.append(tuple(rows.tokens.shape))
        fits = rows.tokens.numel() <= self.memory
        if not (fits or self.late):
            raise self.fault
        assert not bool((rows.wanted & ~rows.hidden).any())
        found = []
        for row, hidden, wanted, length in zip(rows.tokens, rows.hidden, rows.wanted, rows.lengths, strict=True):
            assert not bool(hidden[length:].any())
            alone = self.oracle.surprisal(row[None, :length], hidden[None, :length])[0]
            found.append(alone[wanted[:length]])
        return torch.cat(found) if fits else Unread(torch.cat(found), self.fault)


class Unread(torch.Tensor):
    """A result that was asked for, and cannot be had: devices tell some faults not before somebody waits for them."""

    def __new__(cls, tensor, fault):
        made = tensor.as_subclass(cls)
        made.fault = fault
        return made

    def cpu(self):
        raise self.fault

    def to(self, *_, **__):
        raise self.fault


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


FAULTS = {
    "cuda": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    "mps": RuntimeError("MPS backend out of memory (MPS allocated: 9.06 GB, max allowed: 9.07 GB)."),
    "mps buffer": RuntimeError("Invalid buffer size: 14.90 GiB"),
    "cublas": RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    "linux": RuntimeError("[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory"),
    "windows": RuntimeError("[enforce fail at alloc_cpu.cpp:80] data. DefaultCPUAllocator: not enough memory"),
    "numpy": MemoryError("Unable to allocate 14.9 GiB for an array"),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_a_lack_of_memory_is_known_by_what_devices_say(fault):
    def step():
        raise fault

    assert not fits(step)


@pytest.mark.parametrize("late", [False, True], ids=["asked", "waited for"])
def test_a_batch_that_does_not_fit_is_halved(late):
    """Whether it is told at once or when its result is waited for; and no row that was answered is asked again."""
    fault = FAULTS["mps"]
    small = Rowwise(CHAIN, tokens_at_once=300, memory=64, fault=fault, late=late)
    found = infodis.nll(small, TEXTS * 4, evaluations=16)
    large = Rowwise(CHAIN, tokens_at_once=300)
    exact = infodis.nll(large, TEXTS * 4, evaluations=16)
    assert [e.value for e in found] == pytest.approx([e.value for e in exact], rel=1e-12)
    sizes = [rows * length for rows, length in small.shapes]
    assert 1 <= sum(size > 64 for size in sizes) <= (9 if late else 4)  # later batches start smaller,
    assert sum(sizes[9:]) / len(sizes[9:]) > 24  # but not as small as can be
    assert sum(rows for rows, length in small.shapes if rows * length <= 64) == sum(rows for rows, _ in large.shapes)
    with pytest.raises(PredictorError, match="A row of 30 tokens does not fit"):
        infodis.nll(Rowwise(CHAIN, memory=20, fault=fault, late=late), TEXTS, evaluations=16)


@pytest.mark.parametrize("late", [False, True])
def test_other_faults_are_not_taken_for_a_lack_of_memory(late):
    broken = Rowwise(CHAIN, memory=64, tokens_at_once=300, fault=RuntimeError("device-side assert"), late=late)
    with pytest.raises(RuntimeError, match="device-side assert"):
        infodis.nll(broken, TEXTS, evaluations=16)


def test_memory_is_given_back_before_the_next_try(monkeypatch):
    """An error holds on to the tensors of the code that it came from: only without it there is room again."""
    held, told = [], []

    def step():
        tensor = torch.zeros(3)
        held.append(weakref.ref(tensor))
        raise RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: told.append(held[0]()))
    assert not fits(step)
    assert told == [None]


def test_the_processors_own_lack_of_memory_is_known():
    assert not fits(torch.empty, 2**56)
    assert fits(torch.empty, 2)


def test_rows_of_many_sequences_share_calls():
    counted = Counting(Independent(torch.tensor([0.5, 0.5])))
    infodis.nll(counted, [[0, 1, 0, 1, 1, 0, 1, 0, 1]] * 1 + [[n % 2] * 9 for n in range(20)], evaluations=8)
    assert counted.calls <= 3


def test_batch_sizes_are_checked():
    for wrong in (0, -1):
        with pytest.raises(InputError, match="batch_size"):
            infodis.nll(CHAIN, [0, 1, 2], batch_size=wrong)


def test_padding_does_not_leak_into_our_networks():
    from infodis.models.nets import SEDD
    from infodis.models.nets.llama import Llama, LlamaShape

    shape = NetworkShape(width=16, blocks=2, heads=2)
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
