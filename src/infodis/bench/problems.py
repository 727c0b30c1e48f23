"""Problems with exact answers: chains, perturbed chains, and tables of everything a predictor says about one item."""

import dataclasses
import math
from collections.abc import Iterator

import torch
from jaxtyping import Float64
from torch import Tensor

from infodis.batching import Batching, run
from infodis.design import Enumerate
from infodis.errors import InputError
from infodis.item import Item
from infodis.observe import Asker
from infodis.oracle import MarkovChain
from infodis.predictor import LogConditionals, Masks, Predictor, Surprisals, Tokens, Wrapper
from infodis.rng import stream


@dataclasses.dataclass(frozen=True)
class Perturbed(Wrapper):
    """`predictor` with normal noise of standard deviation `scale` on every logit, a fixed function of what is visible.

    Its conditionals no longer agree with each other, as those of a learned network do not.
    """

    scale: float = 0.1
    seed: int = 0

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
        return math.sqrt(2) * torch.erfinv(2 * uniform - 1)


def _mix(values: Tensor) -> Tensor:
    """The finaliser of splitmix64, on signed 64-bit integers."""
    for shift, multiplier in ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15)):
        values = (values ^ ((values >> shift) & (2 ** (64 - shift) - 1))) * multiplier
    return values ^ ((values >> 31) & (2**33 - 1))


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
