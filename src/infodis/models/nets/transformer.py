"""What RADD and SEDD have in common: a bidirectional transformer with rotary positions.

Parameters have the names of the public checkpoints, so that those load as they are.
"""

import dataclasses
import math
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from infodis.errors import InputError

Hidden = Float[Tensor, "rows length width"]
Heads = Float[Tensor, "rows heads length head_width"]
Projected = tuple[
    Heads, Float[Tensor, "rows key_heads length head_width"], Float[Tensor, "rows key_heads length head_width"]
]
"""Queries, keys and values."""
Found = Float[Tensor, "rows length all_heads"]
"""What attention finds, the heads side by side."""
UNFUSED_KEYS = 512
"""Attention to more keys than that is never computed in parts: its scores would fill the memory."""

Rotation = tuple[Float[Tensor, "... length half"], Float[Tensor, "... length half"]]


def check_wholes(shape: Any, *names: str) -> None:
    """Sizes come from files: each must be a whole number, and neither true nor 8.0."""
    for name in names:
        if type(getattr(shape, name)) is not int:
            raise InputError(f"A network's {name} must be a whole number, got {getattr(shape, name)!r}.")


@dataclasses.dataclass(frozen=True)
class NetworkShape:
    """How large a network is."""

    width: int
    blocks: int
    heads: int
    dropout: float = 0.0
    condition: int = 128
    """Width of the time embedding; only SEDD has one."""
    positions: int = 0
    """Learned vectors for so many places in a row; only RADD, and only if asked. Without them a network knows tokens by
    their distances alone, and if all are masked cannot tell one place from another."""
    feed: int = 4
    """How many times wider feed-forward layers are between their two halves."""
    block_size: int = 0
    """Tokens of a block of block diffusion: a token sees its own block and those before. 1 is a causal network; 0 is
    none of this, and every token sees every other. Only RADD."""

    def __post_init__(self) -> None:
        check_wholes(self, "width", "blocks", "heads", "condition", "positions", "feed", "block_size")
        if min(self.width, self.blocks, self.heads, self.condition, self.feed) < 1 or not 0 <= self.dropout < 1:
            raise InputError(f"A network needs positive sizes and 0 <= dropout < 1, got {self}.")
        if min(self.positions, self.block_size) < 0:
            raise InputError(f"A network has no or some learned positions and blocks of 0 or more tokens, got {self}.")
        if self.width % (2 * self.heads):
            raise InputError(
                f"Rotary positions need an even width per head: width {self.width} must be a multiple of "
                f"2 x heads = {2 * self.heads}."
            )


SIZES = {
    "tiny": NetworkShape(width=192, blocks=4, heads=6),
    "small": NetworkShape(width=768, blocks=12, heads=12, dropout=0.02),
    "medium": NetworkShape(width=1024, blocks=24, heads=16, dropout=0.02),
}
"""`small` and `medium` are those of the RADD and SEDD papers (SEDD trains with dropout 0.1); `tiny` is ours."""


class Embedding(nn.Module):
    """One vector per token, the mask among them."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Parameter(torch.ones(tokens, width))  # until `initialise`, or until a checkpoint is loaded

    def forward(self, tokens: Int[Tensor, "rows length"]) -> Hidden:
        return F.embedding(tokens, self.embedding)


def feed_forward(shape: NetworkShape) -> nn.Sequential:
    """Two layers, wider between them."""
    inner = shape.feed * shape.width
    return nn.Sequential(nn.Linear(shape.width, inner), nn.GELU(approximate="tanh"), nn.Linear(inner, shape.width))


def rotation(places: Int[Tensor, "... length"], head_width: int, *, base: float = 10_000.0) -> Rotation:
    """Cosines and sines of position times frequency, frequencies from 1 down to 1 / base."""
    exponent = torch.arange(0, head_width, 2, device=places.device, dtype=torch.float32) / head_width
    angle = places.float().unsqueeze(-1) * base**-exponent
    return angle.cos(), angle.sin()


def project(qkv: Float[Tensor, "rows length three_widths"], heads: int, rotated: Rotation) -> Projected:
    """Queries, keys and values of all heads, queries and keys turned by their position."""
    rows, length, width = qkv.shape[0], qkv.shape[1], qkv.shape[2] // 3
    query, key, value = qkv.view(rows, length, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
    return turn(query, rotated), turn(key, rotated), value


def attention(
    query: Heads,
    key: Float[Tensor, "rows key_heads keys head_width"],
    value: Float[Tensor, "rows key_heads keys head_width"],
    seen: Bool[Tensor, "#rows #heads #length keys"] | None,
    *,
    training: bool = False,
) -> Found:
    """What every query finds among the keys that it may see. Several query heads may share a head of keys."""
    shared = query.shape[1] != key.shape[1]
    if training and not shared and _unfused_is_faster(query, key):
        scores = (query / math.sqrt(query.shape[-1])) @ key.transpose(-1, -2)
        if seen is not None:
            scores = scores.masked_fill(~seen, -torch.inf)
        found = scores.softmax(-1) @ value
    else:
        found = F.scaled_dot_product_attention(query, key, value, attn_mask=seen, enable_gqa=shared)
    return found.transpose(1, 2).flatten(2)


def _unfused_is_faster(query: Heads, key: Float[Tensor, "rows key_heads keys head_width"]) -> bool:
    """In bfloat16 on a processor PyTorch's fused attention takes 3 to 6 times as long as plain products.

    That is for training. In evaluation it stays: it keeps scores in float32, and long rows never have all their scores
    in memory.
    """
    return query.device.type == "cpu" and query.dtype == torch.bfloat16 and key.shape[-2] <= UNFUSED_KEYS


def turn(x: Float[Tensor, "rows heads length width"], rotated: Rotation) -> Float[Tensor, "rows heads length width"]:
    """Turn each pair (x[j], x[j + half]) by its angle."""
    cosine, sine = (part.to(x.dtype) for part in rotated)
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1)


def initialise(network: nn.Module, *, generator: torch.Generator) -> None:
    """Draw all weights anew, so that a seed decides on them: normal, narrower where many are added up.

    Layers that start at zero (outputs, modulation) stay at zero.
    """
    depth = sum(name.endswith("attn_out.weight") for name, _ in network.named_parameters())
    for name, parameter in network.named_parameters():
        if parameter.ndim == 1 or not parameter.any():
            continue
        scale = 0.6 / math.sqrt(parameter.shape[1])
        if name.endswith(("attn_out.weight", "mlp.2.weight")):
            scale /= math.sqrt(2 * depth)
        nn.init.normal_(parameter, std=scale, generator=generator)
    for module in network.modules():
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
