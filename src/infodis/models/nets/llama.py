"""The Llama architecture without its causal mask: what LLaDA, Dream and the block diffusion models are made of.

Root-mean-square norms, rotary positions, fewer key than query heads, gated feed-forward layers or a mixture of them.
Parameters have plain names here; an adapter says what a checkpoint calls them.
"""

import dataclasses
import math
from typing import cast

import torch
from torch import nn

from infodis.errors import InputError
from infodis.models.nets.block_network import BlockNetwork, Layer, Positions
from infodis.models.nets.experts import Experts, ExpertShape, GatedFeed
from infodis.models.nets.network import Features, Tokens
from infodis.models.nets.transformer import Found, Heads, Hidden, Projected, Rotation, check_wholes, rotation, turn


@dataclasses.dataclass(frozen=True)
class LlamaShape:
    """How large, and the few things in which models differ."""

    columns: int
    """Rows of the embedding and columns of the output: the vocabulary with its padding."""
    width: int
    blocks: int
    heads: int
    key_heads: int
    inner: int
    base: float
    """Of the rotary frequencies."""
    epsilon: float
    query_bias: bool = False
    """Whether queries, keys and values have a bias."""
    exact_rotation: bool = True
    """Turn queries and keys in float32, whatever the network computes in."""
    head_width: int = 0
    """Of one head; 0 for width / heads."""
    query_norms: bool = False
    """Whether queries and keys are normalised, head by head, before they are turned."""
    turned: float = 1.0
    """Which share of a head is turned by its position; the rest does not know where it is."""
    experts: ExpertShape | None = None
    """In place of feed-forward layers,"""
    dense: int = 0
    """but for those of so many first layers."""

    def __post_init__(self) -> None:
        check_wholes(self, "columns", "width", "blocks", "heads", "key_heads", "inner", "head_width", "dense")
        if min(self.columns, self.width, self.blocks, self.heads, self.key_heads, self.inner) < 1:
            raise InputError(f"A network needs positive sizes, got {self}.")
        for name, number in (("base", self.base), ("epsilon", self.epsilon), ("turned", self.turned)):
            if type(number) not in (int, float) or not 0 < number < math.inf:
                raise InputError(f"A network's {name} must be a positive number, got {number!r}.")
        if (not self.head_width and self.width % self.heads) or self.heads % self.key_heads:
            raise InputError(
                f"width {self.width} must be a multiple of heads = {self.heads}, and heads of key_heads = "
                f"{self.key_heads}."
            )
        if self.head_width < 0 or self.dense < 0 or self.turned > 1 or self.angles < 1 or self.angles % 2:
            raise InputError(f"A network must turn an even part of each head by its position, got {self}.")

    @property
    def head(self) -> int:
        """The width of one head."""
        return self.head_width or self.width // self.heads

    @property
    def angles(self) -> int:
        """How many numbers of a head are turned, two by each angle."""
        return int(self.head * self.turned)


class Llama(BlockNetwork):
    """`shifted`: the output at a position is about the next one, so nothing is said about the first."""

    def __init__(
        self, shape: LlamaShape, *, mask_token: int, tokens: int, shifted: bool = False, block_size: int = 0
    ) -> None:
        super().__init__()
        if not 0 <= mask_token < shape.columns or not 0 < tokens <= shape.columns:
            raise InputError(
                f"The mask token {mask_token} and the {tokens} tokens must lie within the {shape.columns} columns."
            )
        self.shape, self.shifted, self.block_size = shape, shifted, block_size
        self.vocab_size, self.mask_token, self.tokens = shape.columns, mask_token, tokens
        self.first_predicted = int(shifted)
        self.embed = nn.Embedding(shape.columns, shape.width)
        self.blocks = nn.ModuleList([LlamaBlock(shape, number) for number in range(shape.blocks)])
        self.norm = RootMeanSquare(shape.width, shape.epsilon)
        self.head = nn.Linear(shape.width, shape.columns, bias=False)

    def embedded(self, tokens: Tokens, positions: Positions) -> Hidden:
        return self.embed(tokens)

    def rotated(self, positions: Positions) -> Rotation:
        return rotation(positions.unsqueeze(1), self.shape.angles, base=self.shape.base)

    def layers(self) -> list["LlamaBlock"]:
        return [cast(LlamaBlock, block) for block in self.blocks]

    def normalised(self, x: Features) -> Features:
        return self.norm(x)

    def last_layer(self) -> nn.Linear:
        return self.head


class LlamaBlock(Layer):
    """Attention with shared keys, then a gated feed-forward layer or experts."""

    def __init__(self, shape: LlamaShape, number: int) -> None:
        super().__init__()
        self.shape = shape
        asked, kept = shape.head * shape.heads, shape.head * shape.key_heads
        self.norm1, self.norm2 = (RootMeanSquare(shape.width, shape.epsilon) for _ in range(2))
        self.query = nn.Linear(shape.width, asked, bias=shape.query_bias)
        self.key = nn.Linear(shape.width, kept, bias=shape.query_bias)
        self.value = nn.Linear(shape.width, kept, bias=shape.query_bias)
        if shape.query_norms:
            self.query_norm, self.key_norm = (RootMeanSquare(shape.head, shape.epsilon) for _ in range(2))
        self.out = nn.Linear(asked, shape.width, bias=False)
        experts = None if number < shape.dense else shape.experts
        self.mlp = GatedFeed(shape.width, shape.inner) if experts is None else Experts(shape.width, experts)

    def project(self, x: Hidden, rotated: Rotation) -> Projected:
        n = self.norm1(x)
        query, key, value = (self._heads(layer(n)) for layer in (self.query, self.key, self.value))
        if self.shape.query_norms:
            query, key = self.query_norm(query), self.key_norm(key)
        return self._turn(query, rotated), self._turn(key, rotated), value

    def mix(self, x: Hidden, found: Found) -> Hidden:
        return x + self.out(found)

    def feed(self, x: Features) -> Features:
        return x + self.mlp(self.norm2(x))

    def _heads(self, x: Hidden) -> Heads:
        return x.unflatten(-1, (-1, self.shape.head)).transpose(1, 2)

    def _turn(self, x: Heads, rotated: Rotation) -> Heads:
        first, rest = x[..., : self.shape.angles], x[..., self.shape.angles :]
        exact = first.float() if self.shape.exact_rotation else first
        turned = turn(exact, rotated).to(x.dtype)
        return torch.cat([turned, rest], -1) if rest.shape[-1] else turned


class RootMeanSquare(nn.Module):
    """Statistics in float32, then the weight in the network's own precision."""

    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.epsilon = epsilon

    def forward(self, x: Features) -> Features:
        exact = x.float()
        scaled = exact * torch.rsqrt(exact.square().mean(-1, keepdim=True) + self.epsilon)
        return self.weight * scaled.to(x.dtype)
