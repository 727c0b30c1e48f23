"""What was seen of some items: masked rows with their surprisals, each distinct mask of an item once.

Whoever wants surprisals does not call a predictor but **yields a question** and is resumed with the answer (see
`batching`). So many estimates can be under way at once, and their rows share batches.
"""

import dataclasses
from collections.abc import Generator
from typing import TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int
from torch import Tensor

from infodis.item import Item
from infodis.predictor import Predictor

Masked = Bool[Tensor, "items rows target"]
Surprisal = Float64[Tensor, "items rows target"]
Answer = Float64[Tensor, "rows target"]
Result = TypeVar("Result")


@dataclasses.dataclass(frozen=True, eq=False)
class Question:
    """Clean rows of one length, which of their positions are hidden, and the target positions to answer about."""

    predictor: Predictor
    tokens: Int[Tensor, "rows length"]
    hidden: Bool[Tensor, "rows length"]
    target: Int[Tensor, "rows target"]


Conversation = Generator[Question, Tensor, Result]
"""Questions out, answers in, a result at the end."""


@dataclasses.dataclass(frozen=True, eq=False)
class Asker:
    """Items of one length and one target size, and the predictor that knows about them."""

    predictor: Predictor
    tokens: Int[Tensor, "items length"]
    target: Int[Tensor, "items target"]
    hidden: Bool[Tensor, "items length"]

    @staticmethod
    def of(predictor: Predictor, items: list[Item]) -> "Asker":
        tokens = torch.stack([item.clean for item in items])
        target = torch.stack([item.target for item in items])
        hidden = torch.zeros(tokens.shape, dtype=torch.bool)
        if not all(item.complete for item in items):
            hidden = torch.stack([item.hidden for item in items])
        return Asker(predictor, tokens, target, hidden)

    def subset(self, items: Int[Tensor, " some"]) -> "Asker":
        return dataclasses.replace(
            self, tokens=self.tokens[items], target=self.target[items], hidden=self.hidden[items]
        )

    @staticmethod
    def joined(askers: "list[Asker]") -> "Asker":
        parts = (torch.cat([getattr(asker, name) for asker in askers]) for name in ("tokens", "target", "hidden"))
        return Asker(askers[0].predictor, *parts)

    def ask(self, item: Int[Tensor, " rows"], masked: Bool[Tensor, "rows target"]) -> Conversation[Answer]:
        """Surprisals at the target positions of single rows, zero where a position is not masked."""
        if len(item) == 0:
            return masked.double()
        target = self.target[item]
        hidden = self.hidden[item].scatter(1, target, masked)
        answer = yield Question(self.predictor, self.tokens[item], hidden, target)
        return torch.where(masked, answer, 0.0)


@dataclasses.dataclass(frozen=True, eq=False)
class Observations:
    """What is known about some items: masked rows with their surprisals, and how many forward rows each item cost."""

    masked: Masked
    surprisal: Surprisal
    cost: Int[Tensor, " items"]

    @staticmethod
    def none(items: int, target: int) -> "Observations":
        empty = torch.zeros(items, 0, target)
        return Observations(empty.bool(), empty.double(), torch.zeros(items, dtype=torch.int64))

    def subset(self, items: Int[Tensor, " some"]) -> "Observations":
        return Observations(self.masked[items], self.surprisal[items], self.cost[items])

    @staticmethod
    def joined(seen: "list[Observations]") -> "Observations":
        return Observations(*(torch.cat([getattr(one, f.name) for one in seen]) for f in dataclasses.fields(seen[0])))

    def extend(self, asker: Asker, masked: Masked) -> "Conversation[Observations]":
        """Add rows. A mask that an item has met before, here or in an earlier row, is not asked again."""
        items, old, target = self.masked.shape
        rows = torch.cat([self.masked, masked], dim=1)
        first, same_as = _distinct(rows)
        fresh = first[(first % rows.shape[1] >= old) & rows.flatten(0, 1)[first].any(-1)]
        known = torch.cat([self.surprisal, torch.zeros(masked.shape, dtype=torch.float64)], dim=1).flatten(0, 1)
        item = fresh // rows.shape[1]
        known[fresh] = yield from asker.ask(item, rows.flatten(0, 1)[fresh])
        cost = self.cost + torch.bincount(item, minlength=items)
        return Observations(rows, known[first[same_as]].view(items, -1, target), cost)


def _distinct(rows: Masked) -> tuple[Int[Tensor, " distinct"], Int[Tensor, " all"]]:
    """Where each distinct row of an item first stands among all rows, and for every row the number of its double."""
    items, count, target = rows.shape
    bits = np.packbits(rows.numpy().reshape(items * count, target), axis=1)
    words = -(-bits.shape[1] // 8)
    codes = np.zeros((items * count, 8 * words), dtype=np.uint8)
    codes[:, : bits.shape[1]] = bits
    columns = [np.repeat(np.arange(items), count), *codes.view(np.uint64).T]
    order = np.lexsort(columns[::-1])  # stable: the first occurrence comes first
    changed = np.zeros(items * count, dtype=bool)
    changed[:1] = True
    for column in columns:
        ordered = column[order]
        changed[1:] |= ordered[1:] != ordered[:-1]
    same_as = np.empty(items * count, dtype=np.int64)
    same_as[order] = np.cumsum(changed) - 1
    return torch.from_numpy(order[changed]), torch.from_numpy(same_as)
