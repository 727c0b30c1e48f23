"""SEDD: log-scores log p_t(y) / p_t(x) for every token y at every position, given the noise (Lou et al., 2024)."""

import math
from typing import Literal, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Float64, Int
from torch import Tensor, nn

from infodis.models.nets.network import Features, NoiseNetwork, Places, Tokens
from infodis.models.nets.transformer import (
    Embedding,
    Hidden,
    NetworkShape,
    Rotation,
    attention,
    feed_forward,
    project,
    rotation,
)
from infodis.noise.schedule import log_expm1

Noise = Literal["absorbing", "uniform"]
Condition = Float[Tensor, "rows condition"]

FREQUENCIES = 128
"""Of the time embedding."""

LAST_SURVIVORS = 1e-3
"""The share of tokens that is not masked at the end of training's schedule: no network has seen more noise."""


class SEDD(NoiseNetwork):
    """A score network. With absorbing noise the mask is token vocab_size; uniform noise has no mask.

    Under absorbing noise it is a predictor too: scores of masked tokens, normalised, are their conditionals
    [eq:score-conditional]. The time that they should not depend on is then the one at which as many tokens are masked
    as in the row.
    """

    def __init__(
        self, vocab_size: int, shape: NetworkShape, *, noise: Noise = "absorbing", scaled: bool = True
    ) -> None:
        super().__init__()
        self.vocab_size = self.tokens = self.mask_token = vocab_size
        self.shape, self.noise = shape, noise
        self.scaled = scaled and noise == "absorbing"
        states = vocab_size + (noise == "absorbing")
        self.vocab_embed = Embedding(states, shape.width)
        self.sigma_map = TimeEmbedding(shape.condition)
        self.blocks = nn.ModuleList([ModulatedBlock(shape) for _ in range(shape.blocks)])
        self.output_layer = ModulatedOutput(shape, states)

    def forward(self, tokens: Tokens, sigma: Float[Tensor, " rows"]) -> Float[Tensor, "rows length states"]:
        """Log-scores at total noise `sigma` (the integral of the rate); 0 for the token that is there.

        `scaled` subtracts log(exp(sigma) - 1) and log(states - 1): the size that absorbing scores have on average.
        """
        scores = self.output_layer.linear(self.hidden(tokens, sigma)).float()
        if self.scaled:
            offset = log_expm1(sigma.float()) + math.log(scores.shape[-1] - 1)
            scores = scores - offset[:, None, None]
        return scores.scatter(-1, tokens.unsqueeze(-1), 0.0)

    def hidden(self, tokens: Tokens, sigma: Float[Tensor, " rows"], visible: Places | None = None) -> Hidden:
        """What the last layer turns into scores."""
        x = self.vocab_embed(tokens)
        condition = F.silu(self.sigma_map(sigma))
        rotated = rotation(torch.arange(tokens.shape[1], device=x.device), self.shape.width // self.shape.heads)
        for block in self.blocks:
            x = block(x, rotated, condition, visible)
        return self.output_layer(x, condition)

    def features(self, tokens: Tokens, *, visible: Places | None = None, at: Places | None = None) -> Features:
        found = self.hidden(tokens, -torch.log1p(-self.level(tokens, visible, 1 - LAST_SURVIVORS)), visible)
        return found if at is None else found[at]

    def level(self, tokens: Tokens, visible: Places | None, last: float) -> Float[Tensor, " rows"]:
        """The level at which as many tokens are masked as in a row: half a token at least, and `last` at most."""
        there = torch.ones_like(tokens, dtype=torch.bool) if visible is None else visible
        length = there.sum(-1)
        share = ((tokens == self.mask_token) & there).sum(-1) / length
        return torch.minimum(torch.maximum(share, 0.5 / length), torch.full_like(share, last))

    def noised_features(
        self,
        tokens: Tokens,
        totals: Float[Tensor, " rows"],
        *,
        visible: Places | None = None,
        at: Places | None = None,
    ) -> Features:
        found = self.hidden(tokens, totals, visible)
        return found if at is None else found[at]

    def log_scores(
        self,
        features: Float[Tensor, "places width"],
        noised: Int[Tensor, " places"],
        totals: Float64[Tensor, " places"],
    ) -> Float[Tensor, "places states"]:
        layer = self.last_layer()
        scores = layer(features.to(layer.weight.dtype)).float()
        offset = log_expm1(totals) + math.log(scores.shape[-1] - 1) if self.scaled else torch.zeros_like(totals)
        return scores - offset.float().to(scores.device).unsqueeze(-1)

    def last_layer(self) -> nn.Linear:
        return self.output_layer.linear


class TimedByMasks(SEDD):
    """A masked predictor that is told the time: the one at which as many tokens are masked as in the row.

    It hears of the total noise of that time (MDLM), or of the `level` itself, which is t where that grows linearly.
    """

    def __init__(
        self,
        vocab_size: int,
        shape: NetworkShape,
        *,
        told: Literal["total", "level"] = "total",
        last: float = 1 - LAST_SURVIVORS,
    ) -> None:
        super().__init__(vocab_size, shape, scaled=False)
        self.told, self.last = told, last

    def features(self, tokens: Tokens, *, visible: Places | None = None, at: Places | None = None) -> Features:
        level = self.level(tokens, visible, self.last)
        found = self.hidden(tokens, -torch.log1p(-level) if self.told == "total" else level, visible)
        return found if at is None else found[at]


class TimeEmbedding(nn.Module):
    """Cosines and sines of the noise, through two layers."""

    def __init__(self, condition: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(2 * FREQUENCIES, condition), nn.SiLU(), nn.Linear(condition, condition))

    def forward(self, sigma: Float[Tensor, " rows"]) -> Condition:
        exponent = torch.arange(FREQUENCIES, device=sigma.device, dtype=torch.float32) / FREQUENCIES
        angle = torch.outer(sigma.float(), 10_000**-exponent)
        first = cast(nn.Linear, self.mlp[0])
        return self.mlp(torch.cat([angle.cos(), angle.sin()], dim=-1).to(first.weight.dtype))


class ModulatedBlock(nn.Module):
    """RADD's block, with shifts, scales and gates that depend on the noise and start at zero."""

    def __init__(self, shape: NetworkShape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.norm1 = nn.LayerNorm(shape.width, bias=False)
        self.attn_qkv = nn.Linear(shape.width, 3 * shape.width, bias=False)
        self.attn_out = nn.Linear(shape.width, shape.width, bias=False)
        self.norm2 = nn.LayerNorm(shape.width, bias=False)
        self.mlp = feed_forward(shape)
        self.adaLN_modulation = _zero(nn.Linear(shape.condition, 6 * shape.width))
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, x: Hidden, rotated: Rotation, condition: Condition, visible: Places | None) -> Hidden:
        parts = self.adaLN_modulation(condition).unsqueeze(1).chunk(6, dim=-1)
        shift_attention, scale_attention, gate_attention, shift_mlp, scale_mlp, gate_mlp = parts
        qkv = self.attn_qkv(_modulate(self.norm1(x), shift_attention, scale_attention))
        seen = None if visible is None else visible[:, None, None, :]
        found = attention(*project(qkv, self.heads, rotated), seen, training=self.training)
        x = x + gate_attention * self.dropout(self.attn_out(found))
        return x + gate_mlp * self.dropout(self.mlp(_modulate(self.norm2(x), shift_mlp, scale_mlp)))


class ModulatedOutput(nn.Module):
    """Normalise, shift and scale by the noise; `linear` then projects to log-scores."""

    def __init__(self, shape: NetworkShape, states: int) -> None:
        super().__init__()
        self.norm_final = nn.LayerNorm(shape.width, bias=False)
        self.linear = _zero(nn.Linear(shape.width, states))
        self.adaLN_modulation = _zero(nn.Linear(shape.condition, 2 * shape.width))

    def forward(self, x: Hidden, condition: Condition) -> Hidden:
        shift, scale = self.adaLN_modulation(condition).unsqueeze(1).chunk(2, dim=-1)
        return _modulate(self.norm_final(x), shift, scale)


def _modulate(x: Hidden, shift: Tensor, scale: Tensor) -> Hidden:
    return x * (1 + scale) + shift


def _zero(layer: nn.Linear) -> nn.Linear:
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer
