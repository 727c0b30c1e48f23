"""The Llama architecture without its causal mask: what LLaDA and Dream are made of.

Root-mean-square norms, rotary positions, fewer key than query heads, gated feed-forward layers. Parameters have plain
names here; an adapter says what a checkpoint calls them.
"""

import dataclasses
import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from infodis.errors import InputError
from infodis.models.nets.network import Features, Network, Places, Tokens
from infodis.models.nets.transformer import Hidden, Rotation, check_wholes, rotation, turn


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

    def __post_init__(self) -> None:
        check_wholes(self, "columns", "width", "blocks", "heads", "key_heads", "inner")
        if min(self.columns, self.width, self.blocks, self.heads, self.key_heads, self.inner) < 1:
            raise InputError(f"A network needs positive sizes, got {self}.")
        for name, number in (("base", self.base), ("epsilon", self.epsilon)):
            if type(number) not in (int, float) or not 0 < number < math.inf:
                raise InputError(f"A network's {name} must be a positive number, got {number!r}.")
        if self.width % (2 * self.heads) or self.heads % self.key_heads:
            raise InputError(
                f"width {self.width} must be a multiple of 2 x heads = {2 * self.heads}, and heads a multiple of "
                f"key_heads = {self.key_heads}."
            )


class Llama(Network):
    """`shifted`: the output at a position is about the next one, so nothing is said about the first."""

    def __init__(self, shape: LlamaShape, *, mask_token: int, tokens: int, shifted: bool = False) -> None:
        super().__init__()
        if not 0 <= mask_token < shape.columns or not 0 < tokens <= shape.columns:
            raise InputError(
                f"The mask token {mask_token} and the {tokens} tokens must lie within the {shape.columns} columns."
            )
        self.shape, self.shifted = shape, shifted
        self.vocab_size, self.mask_token, self.tokens = shape.columns, mask_token, tokens
        self.first_predicted = int(shifted)
        self.embed = nn.Embedding(shape.columns, shape.width)
        self.blocks = nn.ModuleList([LlamaBlock(shape) for _ in range(shape.blocks)])
        self.norm = RootMeanSquare(shape)
        self.head = nn.Linear(shape.width, shape.columns, bias=False)

    def features(self, tokens: Tokens, *, visible: Places | None = None, at: Places | None = None) -> Features:
        x = self.embed(tokens)
        rotated = rotation(tokens.shape[1], self.shape.width // self.shape.heads, device=x.device, base=self.shape.base)
        for block in self.blocks:
            x = block(x, rotated, visible)
        if self.shifted:
            x = torch.cat([x[:, :1], x[:, :-1]], dim=1)
        return self.norm(x if at is None else x[at])

    def last_layer(self) -> nn.Linear:
        return self.head


class LlamaBlock(nn.Module):
    """Attention with shared keys, then a gated feed-forward layer."""

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.shape = shape
        kept = shape.width // shape.heads * shape.key_heads
        self.norm1, self.norm2 = RootMeanSquare(shape), RootMeanSquare(shape)
        self.query = nn.Linear(shape.width, shape.width, bias=shape.query_bias)
        self.key = nn.Linear(shape.width, kept, bias=shape.query_bias)
        self.value = nn.Linear(shape.width, kept, bias=shape.query_bias)
        self.out = nn.Linear(shape.width, shape.width, bias=False)
        self.gate = nn.Linear(shape.width, shape.inner, bias=False)
        self.up = nn.Linear(shape.width, shape.inner, bias=False)
        self.down = nn.Linear(shape.inner, shape.width, bias=False)

    def forward(self, x: Hidden, rotated: Rotation, visible: Places | None) -> Hidden:
        n = self.norm1(x)
        query, key, value = (self._heads(layer(n)) for layer in (self.query, self.key, self.value))
        seen = None if visible is None else visible[:, None, None, :]
        found = F.scaled_dot_product_attention(
            self._turn(query, rotated), self._turn(key, rotated), value, attn_mask=seen, enable_gqa=True
        )
        x = x + self.out(found.transpose(1, 2).reshape(x.shape))
        n = self.norm2(x)
        return x + self.down(F.silu(self.gate(n)) * self.up(n))

    def _heads(self, x: Hidden) -> Float[Tensor, "rows heads length head_width"]:
        return x.unflatten(-1, (-1, self.shape.width // self.shape.heads)).transpose(1, 2)

    def _turn(self, x: Tensor, rotated: Rotation) -> Tensor:
        return turn(x.float(), rotated).to(x.dtype) if self.shape.exact_rotation else turn(x, rotated)


class RootMeanSquare(nn.Module):
    """Statistics in float32, then the weight in the network's own precision."""

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(shape.width))
        self.epsilon = shape.epsilon

    def forward(self, x: Features) -> Features:
        exact = x.float()
        scaled = exact * torch.rsqrt(exact.square().mean(-1, keepdim=True) + self.epsilon)
        return self.weight * scaled.to(x.dtype)
