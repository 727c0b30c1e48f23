"""Weights to begin a training with that know where to look: a long search on small machines, done beforehand.

In a Markov chain of high order no single neighbour says much; only several together do. A network with the usual small
random weights attends to all positions alike, sees none of this, and stays with the frequencies of single letters for
tens of thousands of steps. Here each head of the first block begins with one place to look at, and copies the token
there to entries of its own; each unit of the first feed-forward layer answers to one combination of these. What a
combination says about a masked letter is for training to find out, and all weights are trained.
"""

import dataclasses
import itertools
import math
from pathlib import Path
from typing import cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from infodis import checkpoint
from infodis.checkpoint import Spec
from infodis.errors import InputError
from infodis.files import atomic_directory
from infodis.nets import RADD, Shape, initialise
from infodis.nets.radd import Block
from infodis.nets.transformer import rotation
from infodis.rng import stream

LOOK = 20.0
"""How sharply heads look: roughly in nats, of which the place beside the wanted one gets half less."""
ANSWER = 3.0
"""What a unit is given for each part of its combination."""
ENLARGED, THRESHOLD = 2.0, 1.5
"""Of feed-forward layers behind the first: how much larger than usual weights are, and how many standard deviations
units are above what they are given, so that each answers to few states."""

Units = Float[Tensor, "units width"]
Rows = Int[Tensor, "rows length"]


@dataclasses.dataclass(frozen=True)
class Axes:
    """Which entry of a hidden state means what, at the beginning."""

    shape: Shape
    vocab_size: int

    def __post_init__(self) -> None:
        if self.shape.width < (needed := self.answer(self.vocab_size - 1) + 1):
            raise InputError(f"A width of {needed} is needed to keep apart what heads see; got {self.shape.width}.")

    @property
    def tokens(self) -> int:
        return self.vocab_size + 1

    def seen(self, head: int, token: int = 0) -> int:
        """That a head looks at this token."""
        return self.tokens * (1 + head) + token

    def place(self, place: int) -> int:
        return self.seen(self.shape.heads) + place

    def answer(self, token: int) -> int:
        return self.place(self.shape.positions) + token


@dataclasses.dataclass(frozen=True)
class Neighbours:
    """Heads look at distances -1, 1, -2, 2, ...; units answer to so many letters side by side, a gap at the centre.

    All such combinations come first; units that are left answer to parts of them.
    """

    letters: int

    @property
    def about(self) -> str:
        return f"heads that look at neighbours and units that each answer to {self.letters} neighbouring letters"

    def set(self, network: RADD, axes: Axes, rows: Rows, generator: torch.Generator) -> None:
        del rows
        block, distances = _first(network), self._distances(axes.shape.heads)
        _look_at_distances(block, axes.shape, distances)
        units = torch.zeros(len(_layer(block, 0).bias), axes.shape.width)
        all_of_them = (self.letters + 1) * axes.vocab_size**self.letters
        for number, unit in enumerate(units):
            left, code = number % (self.letters + 1), number // (self.letters + 1)
            kept = torch.rand(self.letters, generator=generator) < (1.0 if number < all_of_them else 0.7)
            places = [*range(-left, 0), *range(1, self.letters - left + 1)]
            for order, distance in enumerate(places):
                if kept[order]:
                    letter = code // axes.vocab_size**order % axes.vocab_size
                    unit[axes.seen(distances.index(distance), letter)] = 1.0
        _answer_to(network, units, units.sum(1))

    @staticmethod
    def _distances(heads: int) -> list[int]:
        return [sign * far for far, sign in itertools.islice(itertools.product(range(1, heads + 1), (-1, 1)), heads)]


@dataclasses.dataclass(frozen=True)
class Memories:
    """Heads look at one place of the row each; units answer where all that is visible agrees with a remembered row.

    Each unit has its row, of those to train on, and its place, and votes for the letter that the row has there.
    """

    about = "heads that look at one place each and units that each remember a row of the training data"

    def set(self, network: RADD, axes: Axes, rows: Rows, generator: torch.Generator) -> None:
        del generator
        block, shape = _first(network), axes.shape
        network.position_embed[:, axes.place(0) : axes.place(shape.positions)] = torch.eye(shape.positions)
        _look_at_places(block, axes)
        units = torch.zeros(len(_layer(block, 0).bias), shape.width)
        pairs = list(itertools.product(rows.unique(dim=0).tolist(), range(shape.positions)))
        for number, unit in enumerate(units):
            row, here = pairs[number % len(pairs)]
            unit[axes.place(here)] = 1.0
            for place, letter in enumerate(row):
                if place != here:
                    unit[axes.seen(place, letter)] = unit[axes.seen(place, axes.vocab_size)] = 1.0
            _layer(block, 2).weight[axes.answer(row[here]), number] = 1.0
        _answer_to(network, units, torch.full((len(units),), float(shape.positions)))


def begin(spec: Spec, directory: Path, start: Neighbours | Memories, rows: Rows, *, seed: int) -> None:
    """Write a checkpoint of `spec` to begin a training on such rows with."""
    network, axes = cast(RADD, spec.build()), Axes(spec.shape, spec.vocab_size)
    generator = stream(seed, "weights")
    initialise(network, generator=generator)
    with torch.no_grad():
        _copy_what_is_seen(network, axes)
        for block in cast(list[Block], network.blocks)[1:]:
            _enlarge(block)
        start.set(network, axes, rows, generator)
    with atomic_directory(directory) as place:
        checkpoint.save(place, spec, network.state_dict())


def _first(network: RADD) -> Block:
    return cast(Block, network.blocks[0])


def _layer(block: Block, number: int) -> nn.Linear:
    return cast(nn.Linear, block.mlp[number])


def _copy_what_is_seen(network: RADD, axes: Axes) -> None:
    """Each token has an entry, each head entries for what it sees, and each letter one for the answer."""
    block, shape, tokens = _first(network), axes.shape, axes.tokens
    network.vocab_embed.embedding.copy_(torch.eye(tokens, shape.width))
    block.norm1.bias.fill_(1.0)  # along (1, ..., 1), where normalised states have nothing else
    _, _, values = block.attn_qkv.weight.zero_().view(3, shape.heads, -1, shape.width)
    values[:, :tokens] = (torch.eye(tokens, shape.width) - 1 / shape.width) / _height(shape)
    out = block.attn_out.weight.zero_().view(shape.width, shape.heads, -1)
    for head in range(shape.heads):
        out[axes.seen(head) : axes.seen(head + 1), head, :tokens] = torch.eye(tokens)
    last = _layer(block, 2).weight
    last.mul_(0.1 / (last.std() * math.sqrt(last.shape[1])))
    answers = slice(axes.answer(0), axes.answer(axes.vocab_size))
    network.last_layer().weight[: axes.vocab_size, answers] = torch.eye(axes.vocab_size)


def _height(shape: Shape) -> float:
    """Of the entries that are not zero, once a state is normalised: its token, and its place if that is learned."""
    return math.sqrt(shape.width / (2 if shape.positions else 1))


def _look_at_distances(block: Block, shape: Shape, distances: list[int]) -> None:
    """Queries and keys that are the same for all tokens, a distance apart by their rotations.

    A slow rotation counts for more than a fast one, which comes round again within a window.
    """
    each = shape.width // shape.heads
    queries, keys, _ = block.attn_qkv.weight.view(3, shape.heads, each, shape.width)
    cosine, sine = rotation(max(distances) + 1, each, device=torch.device("cpu"))
    speed = sine[1].asin()
    much = torch.where(speed > 0.05, LOOK * math.sqrt(each) / speed, 0.0).sqrt() / shape.width
    for head, distance in enumerate(distances):
        far, sign = abs(distance), math.copysign(1.0, distance)
        queries[head] = torch.cat([much * cosine[far], sign * much * sine[far]]).unsqueeze(-1)
        keys[head] = torch.cat([much, 0 * much]).unsqueeze(-1)


def _look_at_places(block: Block, axes: Axes) -> None:
    """Keys that tell their place, to heads that all ask for one: in the slowest rotation, which hardly turns."""
    shape = axes.shape
    each = shape.width // shape.heads
    queries, keys, _ = block.attn_qkv.weight.view(3, shape.heads, each, shape.width)
    slowest = each // 2 - 1
    for head in range(shape.heads):
        queries[head, slowest] = 1 / shape.width
        keys[head, slowest] = -LOOK * math.sqrt(each) / _height(shape) / shape.width
        keys[head, slowest, axes.place(head)] += LOOK * math.sqrt(each) / _height(shape)


def _answer_to(network: RADD, units: Units, parts: Float[Tensor, " units"]) -> None:
    """Let each unit answer if all parts of its combination are there: not if one of them is missing."""
    block, width = _first(network), units.shape[1]
    entries = 1 + (network.shape.positions > 0) + network.shape.heads  # that are one in every state; others are zero
    mean = entries / width
    deviation = math.sqrt(mean * (1 - mean))
    _layer(block, 0).weight.copy_(ANSWER * deviation * units)
    _layer(block, 0).bias.copy_(ANSWER * (mean * units.sum(1) - parts + 0.5))


def _enlarge(block: Block) -> None:
    first, last = _layer(block, 0), _layer(block, 2)
    for layer in (first, last):
        layer.weight *= ENLARGED
    first.bias.copy_(-THRESHOLD * first.weight.norm(dim=1))
