"""Feed-forward layers: one for all tokens, or a mixture of experts of which each token takes a few."""

import dataclasses
import math
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from infodis.errors import InputError
from infodis.models.nets.network import Features
from infodis.models.nets.transformer import check_wholes

Scoring = Literal["softmax", "sigmoid"]


@dataclasses.dataclass(frozen=True)
class ExpertShape:
    """How many experts there are, and how a token chooses among them."""

    count: int
    chosen: int
    """How many a token takes."""
    inner: int
    """Width of an expert between its two halves."""
    shared: int = 0
    """Width of one more that every token takes; 0 for none."""
    scoring: Scoring = "softmax"
    """How a router's outputs become scores. Under `sigmoid` a learned bias helps to choose, and is not in the score."""
    groups: int = 1
    """Experts lie in so many groups of equal size,"""
    groups_kept: int = 1
    """of which a token keeps so many: those whose two best experts have the largest sum of scores."""
    normalised: bool = True
    """Whether the scores of the chosen are divided by their sum."""
    scale: float = 1.0
    """What the sum of the chosen is multiplied by."""

    def __post_init__(self) -> None:
        check_wholes(self, "count", "chosen", "inner", "shared", "groups", "groups_kept")
        if min(self.count, self.chosen, self.inner, self.groups, self.groups_kept, 1 + self.shared) < 1:
            raise InputError(f"Experts need positive sizes, got {self}.")
        if self.scoring not in get_args(Scoring):
            raise InputError(f"Experts are scored by {' or '.join(get_args(Scoring))}, got {self.scoring!r}.")
        if type(self.scale) not in (int, float) or not 0 < self.scale < math.inf:
            raise InputError(f"The scale of experts must be a positive number, got {self.scale!r}.")
        size = self.count // self.groups
        if self.count % self.groups or self.groups_kept > self.groups or self.chosen > size * self.groups_kept:
            raise InputError(
                f"Experts must lie in groups of equal size, and a token choose among those it keeps, got {self}."
            )
        if self.groups_kept < self.groups and size < 2:
            raise InputError(f"Groups are judged by their two best experts, got groups of {size}: {self}.")


class GatedFeed(nn.Module):
    """Two layers, wider between them, where one half opens the other."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, inner, bias=False)
        self.up = nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Features) -> Features:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Experts(nn.Module):
    """A mixture of feed-forward layers. The router computes in float32."""

    def __init__(self, width: int, shape: ExpertShape) -> None:
        super().__init__()
        self.shape = shape
        self.router = nn.Linear(width, shape.count, bias=False)
        self.experts = nn.ModuleList([GatedFeed(width, shape.inner) for _ in range(shape.count)])
        if shape.scoring == "sigmoid":
            self.bias = nn.Parameter(torch.zeros(shape.count))
        if shape.shared:
            self.shared = GatedFeed(width, shape.shared)

    def forward(self, x: Features) -> Features:
        flat = x.flatten(0, -2)
        weights, chosen = self.route(flat)
        found = torch.zeros_like(flat, dtype=torch.float32)
        for number, expert in enumerate(self.experts):
            rows, slots = (chosen == number).nonzero(as_tuple=True)
            if len(rows):
                found.index_add_(0, rows, expert(flat[rows]).float() * weights[rows, slots].unsqueeze(-1))
        found = found.to(x.dtype).view_as(x)
        return found + self.shared(x) if self.shape.shared else found

    def route(
        self, x: Float[Tensor, "tokens width"]
    ) -> tuple[Float[Tensor, "tokens chosen"], Int[Tensor, "tokens chosen"]]:
        """Which experts each token takes, and how much of each."""
        logits = F.linear(x.float(), self.router.weight.float())
        scores = logits.softmax(-1) if self.shape.scoring == "softmax" else logits.sigmoid()
        for_choice = scores if self.shape.scoring == "softmax" else scores + self.bias
        chosen = self._within_groups(for_choice).topk(self.shape.chosen, dim=-1).indices
        weights = scores.gather(-1, chosen)
        if self.shape.normalised:
            weights = weights / weights.sum(-1, keepdim=True)
        return weights * self.shape.scale, chosen

    def _within_groups(self, scores: Float[Tensor, "tokens experts"]) -> Float[Tensor, "tokens experts"]:
        """Scores, minus infinity outside of the groups that a token keeps."""
        if self.shape.groups_kept == self.shape.groups:
            return scores
        grouped = scores.unflatten(-1, (self.shape.groups, -1))
        best = grouped.topk(2, dim=-1).values.sum(-1).topk(self.shape.groups_kept, dim=-1).indices
        lost = torch.ones_like(grouped[..., 0], dtype=torch.bool).scatter(-1, best, False)
        return grouped.masked_fill(lost.unsqueeze(-1), -math.inf).flatten(-2)
