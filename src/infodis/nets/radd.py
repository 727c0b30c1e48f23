"""RADD: the conditional distribution of every masked token, with no time input.

Absorbing diffusion needs none: how a masked token is distributed given the visible ones does not depend on when it was
masked (Ou et al., 2025). The network is therefore a `Predictor` as it stands.
"""

from collections.abc import Iterable
from typing import cast

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from infodis.nets.transformer import Embedding, Hidden, Rotation, Shape, attend, feed_forward, rotation

Tokens = Int[Tensor, "rows length"]


class RADD(nn.Module):
    """Tokens 0 .. vocab_size - 1 are data, token vocab_size is the mask."""

    def __init__(self, vocab_size: int, shape: Shape) -> None:
        super().__init__()
        self.vocab_size, self.mask_token, self.shape = vocab_size, vocab_size, shape
        self.vocab_embed = Embedding(vocab_size + 1, shape.width)
        self.blocks = nn.ModuleList([Block(shape) for _ in range(shape.blocks)])
        self.output_layer = Output(shape.width, vocab_size + 1)

    def forward(self, tokens: Tokens) -> Float[Tensor, "rows length vocab"]:
        """Log p(x_i = v | visible tokens) for every position."""
        logits = self.output_layer(self.hidden(tokens))[..., : self.vocab_size]
        return F.log_softmax(logits.float(), dim=-1)

    def log_conditionals(self, tokens: Tokens) -> Float[Tensor, "rows length vocab"]:
        return self(tokens)

    def surprisal(self, tokens: Tokens, masked: Bool[Tensor, "rows length"]) -> Float[Tensor, "rows length"]:
        """-log p of the masked tokens. What follows the last attention runs at masked positions only."""
        hidden = self.hidden(torch.where(masked, self.mask_token, tokens), at=masked)
        logits = self.output_layer(hidden)[..., : self.vocab_size]
        found = F.cross_entropy(logits.float(), tokens[masked], reduction="none")
        return torch.zeros(masked.shape, dtype=found.dtype, device=found.device).index_put((masked,), found)

    def hidden(self, tokens: Tokens, at: Bool[Tensor, "rows length"] | None = None) -> Float[Tensor, "... width"]:
        """What the output layer sees: at all positions, or at some of them in one long row."""
        x = self.vocab_embed(tokens)
        rotated = rotation(tokens.shape[1], self.shape.width // self.shape.heads, device=x.device)
        last = len(self.blocks) - 1
        for number, block in enumerate(cast(Iterable[Block], self.blocks)):
            x = block.mix(x, rotated)
            x = block.feed(x if at is None or number < last else x[at])
        return x


class Block(nn.Module):
    """Attention, then a feed-forward layer, each normalised before and added after."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.norm1 = nn.LayerNorm(shape.width)
        self.attn_qkv = nn.Linear(shape.width, 3 * shape.width, bias=False)
        self.attn_out = nn.Linear(shape.width, shape.width, bias=False)
        self.norm2 = nn.LayerNorm(shape.width)
        self.mlp = feed_forward(shape)
        self.dropout = nn.Dropout(shape.dropout)

    def mix(self, x: Hidden, rotated: Rotation) -> Hidden:
        """Between positions."""
        return x + self.dropout(self.attn_out(attend(self.attn_qkv(self.norm1(x)), self.heads, rotated)))

    def feed(self, x: Float[Tensor, "... width"]) -> Float[Tensor, "... width"]:
        """At each position by itself."""
        return x + self.dropout(self.mlp(self.norm2(x)))


class Output(nn.Module):
    """Normalise and project to logits. Starts at zero: every token equally likely."""

    def __init__(self, width: int, tokens: int) -> None:
        super().__init__()
        self.norm_final = nn.LayerNorm(width)
        self.linear = nn.Linear(width, tokens)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Float[Tensor, "... width"]) -> Float[Tensor, "... tokens"]:
        return self.linear(self.norm_final(x))
