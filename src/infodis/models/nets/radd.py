"""RADD: the conditional distribution of every masked token, with no time input.

Absorbing diffusion needs none: how a masked token is distributed given the visible ones does not depend on when it was
masked (Ou et al., 2025). The network is therefore a `Predictor` as it stands.
"""

from collections.abc import Iterable
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from infodis.errors import InputError
from infodis.models.nets.network import Features, Network, Places, Tokens
from infodis.models.nets.transformer import (
    Embedding,
    Hidden,
    NetworkShape,
    Rotation,
    attend,
    feed_forward,
    rotation,
)


class RADD(Network):
    """Tokens 0 .. vocab_size - 1 are data, token vocab_size is the mask."""

    def __init__(self, vocab_size: int, shape: NetworkShape) -> None:
        super().__init__()
        self.vocab_size = self.tokens = self.mask_token = vocab_size
        self.shape = shape
        self.vocab_embed = Embedding(vocab_size + 1, shape.width)
        if shape.positions:
            self.position_embed = nn.Parameter(torch.zeros(shape.positions, shape.width))
        self.blocks = nn.ModuleList([Block(shape) for _ in range(shape.blocks)])
        self.output_layer = OutputLayer(shape.width, vocab_size + 1)

    def forward(self, tokens: Tokens) -> Float[Tensor, "rows length vocab"]:
        return self.log_conditionals(tokens)

    def features(self, tokens: Tokens, *, visible: Places | None = None, at: Places | None = None) -> Features:
        """The hidden states, normalised. What follows the last attention runs at the wanted positions only."""
        x = self.vocab_embed(tokens)
        if self.shape.positions:
            x = x + self.position_embed[: self._within(tokens.shape[1])]
        rotated = rotation(tokens.shape[1], self.shape.width // self.shape.heads, device=x.device)
        last = len(self.blocks) - 1
        for number, block in enumerate(cast(Iterable[Block], self.blocks)):
            x = block.mix(x, rotated, visible)
            x = block.feed(x if at is None or number < last else x[at])
        return self.output_layer.norm_final(x)

    def last_layer(self) -> nn.Linear:
        return self.output_layer.linear

    def _within(self, length: int) -> int:
        if length > self.shape.positions:
            raise InputError(f"This network knows {self.shape.positions} positions, a row has {length}.")
        return length


class Block(nn.Module):
    """Attention, then a feed-forward layer, each normalised before and added after."""

    def __init__(self, shape: NetworkShape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.norm1 = nn.LayerNorm(shape.width)
        self.attn_qkv = nn.Linear(shape.width, 3 * shape.width, bias=False)
        self.attn_out = nn.Linear(shape.width, shape.width, bias=False)
        self.norm2 = nn.LayerNorm(shape.width)
        self.mlp = feed_forward(shape)
        self.dropout = nn.Dropout(shape.dropout)

    def mix(self, x: Hidden, rotated: Rotation, visible: Places | None) -> Hidden:
        """Between positions."""
        return x + self.dropout(self.attn_out(attend(self.attn_qkv(self.norm1(x)), self.heads, rotated, visible)))

    def feed(self, x: Features) -> Features:
        """At each position by itself."""
        return x + self.dropout(self.mlp(self.norm2(x)))


class OutputLayer(nn.Module):
    """Normalise and project to logits. Starts at zero: every token equally likely."""

    def __init__(self, width: int, tokens: int) -> None:
        super().__init__()
        self.norm_final = nn.LayerNorm(width)
        self.linear = nn.Linear(width, tokens)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)
