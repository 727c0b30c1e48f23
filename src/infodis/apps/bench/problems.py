"""Problems with exact answers: chains, perturbed chains, and tables of everything a predictor says about one item."""

import dataclasses
import math
from collections.abc import Iterator

import torch
from jaxtyping import Int
from torch import Tensor

from infodis.item import Item
from infodis.models.loading import load
from infodis.oracle import MarkovChain, Table
from infodis.predictor import LogConditionals, Predictor, Tokens, from_function
from infodis.rng import stream
from infodis.testing import Perturbed, Tabulated


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


ENDINGS = (
    "the castle was built on a hill above the valley",
    "most of the island is covered by tropical forest",
    "the river flows through several towns to the sea",
    "a prime number has no divisors except one and itself",
    "the first printed books appeared in the fifteenth century",
    "water boils at one hundred degrees at sea level",
    "the party won the general election of that year",
    "many birds migrate south before the winter begins",
    "he published his first novel at the age of thirty",
    "the language is spoken by about two million people",
    "light travels faster in air than it does in glass",
    "the railway connected the harbour with the capital",
    "her father was a builder in a small mountain village",
    "iron is the most common element in the earth by mass",
    "the treaty ended a war that had lasted seven years",
    "some species of fish can live in salt and fresh water",
    "the museum holds a large collection of old paintings",
    "in chess each player starts the game with sixteen pieces",
    "the band recorded two albums before they broke up",
    "coffee was brought to europe by traders from the east",
    "the university was founded by the king four centuries ago",
    "a triangle with three equal sides has three equal angles",
    "the planet has two small moons and a thin atmosphere",
    "farmers in the region grow wheat and raise cattle",
    "the film was directed by a student of the old master",
    "its population doubled after the second world war",
    "the theory explains why the tides follow the moon",
    "sailors used the stars to find their way at night",
    "the bridge was destroyed by a flood and never rebuilt",
    "children learn to speak before they learn to read",
    "the court decided that the law was not constitutional",
    "gold and silver were mined in the northern mountains",
    "the machine could print a thousand pages in an hour",
    "every summer the village holds a festival of music",
    "the church stands on the ruins of a roman temple",
    "plants need light and carbon dioxide in order to grow",
    "the army crossed the desert with very little water",
    "in autumn the leaves of these trees turn yellow and red",
    "the empire was divided between the three sons",
    "a dictionary lists the words of a language in order",
)
"""Sentences whose ending is to be preferred over that of another one."""


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
