"""RADD: the conditional distribution of every masked token, with no time input.

Absorbing diffusion needs none: how a masked token is distributed given the visible ones does not depend on when it was
masked (Ou et al., 2025). The network is therefore a `Predictor` as it stands.
"""

from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from infodis.errors import InputError
from infodis.models.nets.block_network import BlockNetwork, Layer, Positions, clean_sees
from infodis.models.nets.network import Features, Places, Tokens
from infodis.models.nets.transformer import (
    Embedding,
    Found,
    Hidden,
    NetworkShape,
    Projected,
    Rotation,
    feed_forward,
    project,
    rotation,
)


class RADD(BlockNetwork):
    """Tokens 0 .. vocab_size - 1 are data, token vocab_size is the mask.

    With a block size the same parameters do block diffusion; with blocks of one token they are a causal network, to
    which the mask token stands for the beginning of a text.
    """

    def __init__(self, vocab_size: int, shape: NetworkShape) -> None:
        super().__init__()
        self.vocab_size = self.tokens = self.mask_token = vocab_size
        self.shape, self.block_size, self.causal = shape, shape.block_size, shape.block_size == 1
        self.vocab_embed = Embedding(vocab_size + 1, shape.width)
        if shape.positions:
            self.position_embed = nn.Parameter(torch.zeros(shape.positions, shape.width))
        self.blocks = nn.ModuleList([Block(shape) for _ in range(shape.blocks)])
        self.output_layer = OutputLayer(shape.width, vocab_size + 1)

    def for_blocks(self, size: int) -> BlockNetwork:
        found = super().for_blocks(size)
        found.causal = size == 1
        return found

    def forward(self, tokens: Tokens) -> Float[Tensor, "rows length vocab"]:
        return self.log_conditionals(tokens)

    def features(self, tokens: Tokens, *, visible: Places | None = None, at: Places | None = None) -> Features:
        """As every network's, unless it does block diffusion. A causal one takes clean tokens."""
        return self._causal_features(tokens, at) if self.causal else super().features(tokens, visible=visible, at=at)

    def _causal_features(self, tokens: Tokens, at: Places | None) -> Features:
        """Each token is answered for where the one before it stands. Padding is behind, where nobody sees it."""
        x, rotated = self._entered(self.inputs(tokens), None)
        places = torch.arange(tokens.shape[1], device=tokens.device).unsqueeze(0)
        return self.normalised(self._through(x, rotated, clean_sees(places), at=at))

    def inputs(self, tokens: Tokens) -> Tokens:
        """The mask in place of a begin token, then all tokens but the last."""
        return torch.cat([torch.full_like(tokens[:, :1], self.mask_token), tokens[:, :-1]], 1)

    def embedded(self, tokens: Tokens, positions: Positions) -> Hidden:
        x = self.vocab_embed(tokens)
        return x + self.position_embed[self._within(positions)] if self.shape.positions else x

    def rotated(self, positions: Positions) -> Rotation:
        return rotation(positions.unsqueeze(1), self.shape.width // self.shape.heads)

    def layers(self) -> list["Block"]:
        return [cast(Block, block) for block in self.blocks]

    def normalised(self, x: Features) -> Features:
        return self.output_layer.norm_final(x)

    def last_layer(self) -> nn.Linear:
        return self.output_layer.linear

    def _within(self, positions: Positions) -> Positions:
        length = int(positions.max()) + 1 if positions.numel() else 0
        if length > self.shape.positions:
            raise InputError(f"This network knows {self.shape.positions} positions, a row has {length}.")
        return positions


class Block(Layer):
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

    def project(self, x: Hidden, rotated: Rotation) -> Projected:
        return project(self.attn_qkv(self.norm1(x)), self.heads, rotated)

    def mix(self, x: Hidden, found: Found) -> Hidden:
        return x + self.dropout(self.attn_out(found))

    def feed(self, x: Features) -> Features:
        return x + self.dropout(self.mlp(self.norm2(x)))


class OutputLayer(nn.Module):
    """Normalise and project to logits. Starts at zero: every token equally likely."""

    def __init__(self, width: int, tokens: int) -> None:
        super().__init__()
        self.norm_final = nn.LayerNorm(width)
        self.linear = nn.Linear(width, tokens)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)
