"""Weights to begin a training with that look at neighbours: a long search on small machines, done beforehand.

In a Markov chain of high order no single neighbour says much; only several together do. A network with the usual small
random weights attends to all positions alike, sees none of this, and stays with the frequencies of single letters for
tens of thousands of steps. Here the heads of the first block begin at fixed distances, one for each neighbour, and
weights are large enough that combinations of them matter from the first step. Units of feed-forward layers begin with a
threshold, so that each answers to a few combinations only. All of it is trained afterwards.
"""

import itertools
import math
from pathlib import Path
from typing import cast

import torch
from torch import nn

from infodis import checkpoint
from infodis.checkpoint import Spec
from infodis.files import atomic_directory
from infodis.nets import RADD, initialise
from infodis.nets.radd import Block
from infodis.nets.transformer import rotation
from infodis.rng import stream

SHARPNESS = 60.0
"""How many nats, roughly, the wanted distance is ahead of those beside it."""
VALUES, FEED = 1.5, 2.0
"""How much larger than usual the weights of attention's values and of feed-forward layers are."""
THRESHOLD = 1.5
"""Of feed-forward units, in standard deviations of what they are given."""


def neighbourly(spec: Spec, directory: Path, *, seed: int) -> None:
    """A checkpoint of `spec` whose first block attends to the nearest positions: its heads to -1, 1, -2, 2, ..."""
    network = cast(RADD, spec.build())
    initialise(network, generator=stream(seed, "weights"))
    with torch.no_grad():
        for block in cast(list[Block], network.blocks):
            _enlarge(block)
        _look_around(cast(Block, network.blocks[0]), spec.shape.heads)
    with atomic_directory(directory) as place:
        checkpoint.save(place, spec, network.state_dict())


def _enlarge(block: Block) -> None:
    width = block.attn_out.weight.shape[0]
    block.attn_qkv.weight[2 * width :] *= VALUES
    block.attn_out.weight *= VALUES
    first, last = cast(nn.Linear, block.mlp[0]), cast(nn.Linear, block.mlp[2])
    for layer in (first, last):
        layer.weight *= FEED
    first.bias.copy_(-THRESHOLD * first.weight.norm(dim=1))


def _look_around(block: Block, heads: int) -> None:
    """Queries and keys that are the same for all tokens, a distance apart by their rotations.

    The part of a normalised state along (1, ..., 1) is zero but for the bias, which thus carries what tokens do not.
    """
    width = block.attn_out.weight.shape[0]
    each = width // heads
    block.norm1.bias.fill_(1.0)
    queries, keys, _ = block.attn_qkv.weight.view(3, heads, each, width)
    cosine, sine = rotation(heads, each, device=torch.device("cpu"))
    scale = math.sqrt(SHARPNESS * math.sqrt(each)) / width
    for head, (distance, sign) in enumerate(itertools.islice(itertools.product(range(1, heads + 1), (-1, 1)), heads)):
        turned = torch.cat([cosine[distance], sign * sine[distance]])
        still = torch.cat([torch.ones_like(cosine[distance]), torch.zeros_like(sine[distance])])
        for weights, wanted in ((queries, turned), (keys, still)):
            weights[head] = scale * wanted.unsqueeze(-1)
