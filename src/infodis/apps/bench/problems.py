"""Problems with exact answers: chains, perturbed chains, and tables of everything a predictor says about one item."""

import dataclasses
import math
from collections.abc import Iterator

import torch
from jaxtyping import Float64, Int
from torch import Tensor

from infodis.batching import Batching, run
from infodis.design import Enumerate
from infodis.errors import InputError
from infodis.item import Item
from infodis.models.model import load
from infodis.observe import Asker
from infodis.oracle import MarkovChain, Table
from infodis.predictor import LogConditionals, Masks, Predictor, Surprisals, Tokens, Wrapper, from_function
from infodis.rng import stream


@dataclasses.dataclass(frozen=True)
class Perturbed(Wrapper):
    """`predictor` with normal noise of standard deviation `scale` on every logit, a fixed function of what is visible.

    Its conditionals no longer agree with each other, as those of a learned network do not. A `power` above 1 raises the
    size of every number to it: long tails.
    """

    scale: float = 0.1
    seed: int = 0
    power: int = 1

    def log_conditionals(self, tokens: Tokens) -> LogConditionals:
        clean = self.predictor.log_conditionals(tokens)
        return torch.log_softmax(clean + self.scale * self._noise(tokens), dim=-1)

    def _noise(self, tokens: Tokens) -> Float64[Tensor, "rows length vocab"]:
        """Hash (row, position, token) to a normal number: integers wrap around, as the mixing wants."""
        length = tokens.shape[1]
        multipliers = torch.randint(2**62, (length,), generator=stream(self.seed, "Perturbed", length)) * 2 + 1
        row = ((tokens + 1) * multipliers).sum(-1)
        cell = torch.arange(length * self.vocab_size).view(length, self.vocab_size) + 1
        mixed = _mix(row[:, None, None] + cell * 0x1E3779B97F4A7C15)
        uniform = ((mixed >> 11) & (2**53 - 1)).double() / 2**53 + 2.0**-54
        normal = math.sqrt(2) * torch.erfinv(2 * uniform - 1)
        return normal * normal.abs() ** (self.power - 1)


def _mix(values: Tensor) -> Tensor:
    """The finaliser of splitmix64, on signed 64-bit integers."""
    for shift, multiplier in ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15)):
        values = (values ^ ((values >> shift) & (2 ** (64 - shift) - 1))) * multiplier
    return values ^ ((values >> 31) & (2**33 - 1))


def random_network(length: int, *, vocab_size: int = 4, width: int = 64, seed: int = 0) -> Predictor:
    """A network of one hidden layer with random weights: smooth, without locality, its conditionals do not agree."""
    generator = stream(seed, "random network")
    inside = torch.randn(length * (vocab_size + 1), width, generator=generator) * 1.5 / math.sqrt(length)
    bias = torch.randn(width, generator=generator) / 2
    outside = torch.randn(width, length * vocab_size, generator=generator) * 2 / math.sqrt(width)

    def log_conditionals(tokens: Tokens) -> LogConditionals:
        seen = torch.nn.functional.one_hot(tokens, vocab_size + 1).float().flatten(1)
        logits = torch.tanh(seen @ inside + bias) @ outside
        return logits.unflatten(1, (length, vocab_size)).log_softmax(-1)

    return from_function(log_conditionals, vocab_size=vocab_size, mask_token=vocab_size)


@dataclasses.dataclass(frozen=True, eq=False)
class Tabulated(Predictor):
    """Everything a predictor says about one item: surprisals for all masks of its target, and the exact `nll`."""

    item: Item
    vocab_size: int
    mask_token: int
    table: Float64[Tensor, "masks target"]

    @staticmethod
    def of(predictor: Predictor, item: Item, *, batch_size: int = 1024) -> "Tabulated":
        target = item.target.numel()
        asker = Asker.of(predictor, [item])
        masked, _ = _enumeration(target)
        answer = run(asker.ask(torch.zeros(len(masked), dtype=torch.int64), masked), Batching(batch_size))
        table = torch.cat([torch.zeros(1, target, dtype=torch.float64), answer])
        return Tabulated(item, predictor.vocab_size, predictor.mask_token, table)

    @property
    def exact(self) -> float:
        """The `nll` by enumeration."""
        return float((_enumeration(self.item.target.numel())[1] * self.table[1:]).sum())

    def log_conditionals(self, tokens: Tokens) -> LogConditionals:
        raise InputError("A table of surprisals knows the data's tokens only, not whole distributions.")

    def surprisal(self, tokens: Tokens, masked: Masks) -> Surprisals:
        inside = masked[:, self.item.target]
        code = (inside * 2 ** torch.arange(inside.shape[1])).sum(-1)
        return torch.zeros(masked.shape, dtype=torch.float64).index_copy(1, self.item.target, self.table[code])


def _enumeration(target: int) -> tuple[Tensor, Tensor]:
    """All masks of a target and their exact weights."""
    blank = torch.zeros(1, 1, 1, dtype=torch.float64).expand(1, 2**target - 1, target)
    masked, weight = Enumerate().masks(blank[..., 0], blank)
    return masked[0], weight[0]


@dataclasses.dataclass(frozen=True, eq=False)
class Problem:
    """A name and some tabulated items that share it."""

    name: str
    tables: list[Tabulated]


def chain_items(
    temperature: float, *, count: int, seed: int = 0, length: int = 32, context: int = 16
) -> Iterator[tuple[MarkovChain, Item]]:
    """Sequences of the paper's order-4 chain at a temperature, to be scored given their first half."""
    chain = MarkovChain.random(order=4, vocab_size=4, temperature=temperature, seed=seed)
    for tokens in chain.sample(count, length=length, generator=stream(seed, "bench", str(temperature))):
        yield chain, Item.read(tokens, context=range(context))


def chain_problem(temperature: float, *, count: int, noise: float = 0.0, target: int = 16) -> Problem:
    """The chain at a temperature, with or without noise on its conditionals, tabulated."""
    name = f"chain, temperature {temperature:g}" + (f", noise {noise:g}" if noise else "")
    items = chain_items(temperature, count=count, length=16 + target)
    tables = [Tabulated.of(Perturbed(chain, scale=noise) if noise else chain, item) for chain, item in items]
    return Problem(name, tables)


TEXTS = (
    "the history of the city begins with a small settlement on the river",
    "in mathematics a group is a set with an operation that is associative",
    "he was born in london and studied law before he became a writer",
)


def text_problem(*, count: int = 2, prompt: int = 40, target: int = 12) -> Problem:
    """Sentences under text8-tiny: some characters given those before them."""
    model = load("text8-tiny")
    rows = [model.encode(text)[: prompt + target] for text in TEXTS[:count]]
    return Problem("text8-tiny", [Tabulated.of(model, Item.read(row, context=range(prompt))) for row in rows])


def dna_problem(*, count: int = 2) -> Problem:
    """Sequences of the paper's list under dna-tiny."""
    rows = Table.dna(seed=0).sequences[:count]
    return Problem("dna-tiny", [Tabulated.of(load("dna-tiny"), Item.read(row)) for row in rows])


def bits_problem(*, count: int = 2) -> Problem:
    """Strings of 16 bits under bits-tiny, which all obey the same constraints."""
    rows = balanced_strings()[5 :: 270 // count][:count]
    return Problem("bits-tiny", [Tabulated.of(load("bits-tiny"), Item.read(row)) for row in rows])


def balanced_strings() -> Int[Tensor, "strings bits"]:
    """The 270 strings of 16 bits with eight ones, no three equal bits in a row, whose number is a multiple of five."""
    numbers = torch.arange(0, 2**16, 5)
    bits = (numbers.unsqueeze(1) >> torch.arange(15, -1, -1)) & 1
    triples = (bits[:, 2:] == bits[:, 1:-1]) & (bits[:, 1:-1] == bits[:, :-2])
    return bits[(bits.sum(1) == 8) & ~triples.any(1)]


def random_problem(*, count: int = 2, target: int = 12) -> Problem:
    """Random tokens under random networks."""
    tables = []
    for seed in range(count):
        tokens = torch.randint(4, (target,), generator=stream(seed, "random tokens"))
        tables.append(Tabulated.of(random_network(target, seed=seed), Item.read(tokens)))
    return Problem("random network", tables)


def heavy_problem(*, count: int = 2, target: int = 12) -> Problem:
    """The chain under noise with long tails: most logits are right, some are off by tens of nats."""
    items = chain_items(0.5, count=count, length=16 + target)
    return Problem("long tails", [Tabulated.of(Perturbed(chain, scale=0.3, power=4), item) for chain, item in items])
