"""Weights to begin a training with that know where to look: a long search on small machines, done beforehand.

In a Markov chain of high order no single neighbour says much; only several together do. A network with the usual small
random weights attends to all positions alike, sees none of this, and stays with the frequencies of single letters for
tens of thousands of steps. Here each head of the first block begins with one place to look at, and copies the token
there to entries of its own; each unit of the first feed-forward layer answers to one combination of these. Where a
neighbour is masked too, a second block can use what the first made of it. What a combination says about a masked
letter is for training to find out, and all weights are trained.
"""

import dataclasses
import itertools
import math
from pathlib import Path
from typing import cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from infodis.errors import InputError
from infodis.files import atomic_directory
from infodis.models import checkpoint
from infodis.models.checkpoint import Spec
from infodis.models.nets import RADD, NetworkShape, initialise
from infodis.models.nets.radd import Block
from infodis.models.nets.transformer import rotation
from infodis.rng import stream

LOOK = 20.0
"""How sharply heads look: roughly in nats, of which the place beside the wanted one gets half less."""
ANSWER = 3.0
"""What a unit is given for each part of its combination."""
BELIEF = 0.5
"""How much of what the first block made of a masked neighbour, compared with a letter that is seen."""
ENLARGED, THRESHOLD = 2.0, 1.5
"""Of feed-forward layers behind the first: how much larger than usual weights are, and how many standard deviations
units are above what they are given, so that each answers to few states."""

Units = Float[Tensor, "units width"]
Rows = Int[Tensor, "rows length"]


@dataclasses.dataclass(frozen=True)
class Axes:
    """Which entry of a hidden state means what, at the beginning."""

    shape: NetworkShape
    vocab_size: int

    def demand(self, last: int) -> None:
        """That there is such an entry."""
        if self.shape.width <= last:
            raise InputError(f"A width of {last + 1} is needed to keep apart what heads see; got {self.shape.width}.")

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

    def belief(self, head: int, token: int = 0) -> int:
        """What earlier blocks made of the masked token that a head looks at."""
        return self.answer(self.vocab_size) + self.vocab_size * head + token


@dataclasses.dataclass(frozen=True)
class NeighbourUnits:
    """Heads look at distances -1, 1, -2, 2, ...; units answer to so many letters side by side, a gap at the centre.

    The gap is the masked token itself: units are silent where a token is visible. All combinations come first; units
    that are left answer to parts of them. Further blocks look at the same places, and units there take what the blocks
    before made of a masked neighbour for the letter: it was masked, but may be guessed.
    """

    letters: int

    @property
    def about(self) -> str:
        return f"heads that look at neighbours and units that each answer to {self.letters} letters, seen or guessed"

    def set(self, network: RADD, axes: Axes, rows: Rows, generator: torch.Generator) -> None:
        del rows
        shape, distances = axes.shape, self._distances(axes.shape.heads)
        if shape.blocks > 1:
            axes.demand(axes.belief(shape.heads - 1, axes.vocab_size - 1))
        for number, block in enumerate(cast(list[Block], network.blocks)):
            if number:
                _copy_beliefs(block, axes)
            _look_at_distances(block, shape, distances)
            seen, guessed = self._units(axes, len(_layer(block, 0).bias), generator)
            _answer_to(block, axes, seen, seen.sum(1), also=guessed if number else None)

    def _units(self, axes: Axes, count: int, generator: torch.Generator) -> tuple[Units, Units]:
        """Which entries belong to each unit's combination: letters that are seen, and letters that are guessed."""
        seen, guessed = torch.zeros(2, count, axes.shape.width)
        distances = self._distances(axes.shape.heads)
        all_of_them = (self.letters + 1) * axes.vocab_size**self.letters
        seen[:, axes.vocab_size] = 1.0  # masked itself
        for number in range(count):
            left, code = number % (self.letters + 1), number // (self.letters + 1)
            kept = torch.rand(self.letters, generator=generator) < (1.0 if number < all_of_them else 0.7)
            places = [*range(-left, 0), *range(1, self.letters - left + 1)]
            for order, distance in enumerate(places):
                if kept[order]:
                    head, letter = distances.index(distance), code // axes.vocab_size**order % axes.vocab_size
                    seen[number, axes.seen(head, letter)] = 1.0
                    if axes.shape.blocks > 1:
                        guessed[number, axes.belief(head, letter)] = 1.0
        return seen, guessed

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
        for further in cast(list[Block], network.blocks)[1:]:
            _enlarge(further)
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
        _answer_to(block, axes, units, torch.full((len(units),), float(shape.positions)))


def begin(spec: Spec, directory: Path, start: NeighbourUnits | Memories, rows: Rows, *, seed: int) -> None:
    """Write a checkpoint of `spec` to begin a training on such rows with."""
    network, axes = cast(RADD, spec.build()), Axes(spec.shape, spec.vocab_size)
    axes.demand(axes.answer(spec.vocab_size - 1))
    generator = stream(seed, "weights")
    initialise(network, generator=generator)
    with torch.no_grad():
        _copy_what_is_seen(network, axes)
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
    values, out = _blank(block, shape)
    values[:, :tokens] = (torch.eye(tokens, shape.width) - 1 / shape.width) / _height(shape)
    for head in range(shape.heads):
        out[axes.seen(head) : axes.seen(head + 1), head, :tokens] = torch.eye(tokens)
    answers = slice(axes.answer(0), axes.answer(axes.vocab_size))
    network.last_layer().weight[: axes.vocab_size, answers] = torch.eye(axes.vocab_size)


def _copy_beliefs(block: Block, axes: Axes) -> None:
    """Each head has entries for what the blocks before made of the token it looks at."""
    shape, letters = axes.shape, axes.vocab_size
    values, out = _blank(block, shape)
    values[:, :letters, axes.answer(0) : axes.answer(letters)] = torch.eye(letters) - 1 / letters
    for head in range(shape.heads):
        out[axes.belief(head) : axes.belief(head + 1), head, :letters] = BELIEF * torch.eye(letters)


def _blank(block: Block, shape: NetworkShape) -> tuple[Tensor, Tensor]:
    """Nothing attended to, nothing copied; views of the values' weights and of those that put them into entries.

    What feed-forward layers add begins small.
    """
    block.norm1.bias.fill_(1.0)  # along (1, ..., 1), where normalised states have nothing else
    _, _, values = block.attn_qkv.weight.zero_().view(3, shape.heads, -1, shape.width)
    last = _layer(block, 2).weight
    last.mul_(0.1 / (last.std() * math.sqrt(last.shape[1])))
    return values, block.attn_out.weight.zero_().view(shape.width, shape.heads, -1)


def _height(shape: NetworkShape) -> float:
    """Of the entries that are not zero, once a state is normalised: its token, and its place if that is learned."""
    return math.sqrt(shape.width / (2 if shape.positions else 1))


def _look_at_distances(block: Block, shape: NetworkShape, distances: list[int]) -> None:
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


def _answer_to(
    block: Block, axes: Axes, units: Units, parts: Float[Tensor, " units"], *, also: Units | None = None
) -> None:
    """Let each unit answer if all parts of its combination are there: not if one of them is missing.

    Entries of `also` count as well, but need not be there.
    """
    shape = axes.shape
    entries = 1 + (shape.positions > 0) + shape.heads  # that are one in every state; others are zero
    mean = entries / shape.width
    deviation = math.sqrt(mean * (1 - mean))
    _layer(block, 0).weight.copy_(ANSWER * deviation * (units if also is None else units + also))
    _layer(block, 0).bias.copy_(ANSWER * (mean * units.sum(1) - parts + 0.5))


def _enlarge(block: Block) -> None:
    first, last = _layer(block, 0), _layer(block, 2)
    for layer in (first, last):
        layer.weight *= ENLARGED
    first.bias.copy_(-THRESHOLD * first.weight.norm(dim=1))
