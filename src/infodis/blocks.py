"""Blocks of a block diffusion model: where they begin and end in a row.

Such a model generates text block after block, each by masked diffusion given the clean blocks before it. What it says
about a token depends on those blocks and on what is visible inside the token's own block, and on nothing else. An
autoregressive model is the limiting case: blocks of one token.
"""

import dataclasses

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from infodis.errors import InputError

ORIGINS = ("global", "response")


@dataclasses.dataclass(frozen=True)
class BlockLayout:
    """Blocks of `size` tokens, counted from the first token of a row (`global`) or from the first target token
    (`response`).

    >>> BlockLayout(4).sizes(torch.arange(6, 13)), BlockLayout(4, "response").sizes(torch.arange(6, 13))
    ((2, 4, 1), (4, 3))
    """

    size: int
    origin: str = "global"

    def __post_init__(self) -> None:
        if isinstance(self.size, bool) or not isinstance(self.size, int) or self.size < 1:
            raise InputError(f"A block size must be a whole number and at least 1, got {self.size!r}.")
        if self.origin not in ORIGINS:
            raise InputError(f"A block origin is one of {' or '.join(ORIGINS)}; got {self.origin!r}.")

    def starts(self, target: Int[Tensor, "rows target"]) -> Int[Tensor, " rows"]:
        """The position that blocks are counted from, for rows with these target positions in rising order."""
        return target[:, 0] if self.origin == "response" else torch.zeros(len(target), dtype=torch.int64)

    def gap_starts(self, masked: Bool[Tensor, "rows length"]) -> Int[Tensor, " rows"]:
        """The same for rows with gaps to be filled at these positions."""
        return masked.int().argmax(-1) if self.origin == "response" else torch.zeros(len(masked), dtype=torch.int64)

    def numbers(self, length: int, starts: Int[Tensor, " rows"]) -> Int[Tensor, "rows length"]:
        """The block of every position. Blocks before the start have negative numbers."""
        places = torch.arange(length, device=starts.device) - starts.unsqueeze(-1)
        return places.div(self.size, rounding_mode="floor")

    def sizes(self, target: Int[Tensor, " target"]) -> tuple[int, ...]:
        """How many target positions lie in each block that holds one; prompt or end may cut a block short."""
        start = int(self.starts(target.unsqueeze(0)))
        numbers = (target - start).div(self.size, rounding_mode="floor")
        return tuple(numbers.unique_consecutive(return_counts=True)[1].tolist())

    def ends(self, masked: Bool[Tensor, "rows length"], starts: Int[Tensor, " rows"]) -> Int[Tensor, " rows"]:
        """Where the block ends that the last masked position of each row is in; at least 1."""
        numbers = self.numbers(masked.shape[1], starts)
        last = numbers.where(masked, torch.iinfo(numbers.dtype).min).amax(-1, keepdim=True)
        return (numbers <= last).sum(-1).clamp(min=1)

    def divides(self, other: "BlockLayout | None") -> bool:
        """Whether each of these blocks lies inside one of the others; None is one block of all that there is.

        >>> BlockLayout(2).divides(BlockLayout(4)), BlockLayout(4).divides(BlockLayout(2)), BlockLayout(4).divides(None)
        (True, False, True)
        """
        return other is None or self.size == 1 or (self.origin == other.origin and other.size % self.size == 0)

    def check(self, target: Int[Tensor, " target"], context: Int[Tensor, " context"], *, length: int) -> None:
        """Raise `InputError` unless the context lies before the target, and no position is in neither."""
        if target.numel() + context.numel() < length:
            raise InputError(
                f"A block diffusion model cannot sum positions out: every position must be target or context; "
                f"{length - target.numel() - context.numel()} of {length} are in neither. Leave them out of the row."
            )
        if context.numel() and int(context[-1]) > int(target[0]):
            raise InputError(
                "A block diffusion model sees what comes before a token and nothing behind its block: all context must "
                f"lie before the target; position {int(context[-1])} is context, position {int(target[0])} is target. "
                "Leave out what follows the target, or use a model that sees both sides."
            )

    def check_gaps(self, masked: Bool[Tensor, "rows length"], there: Bool[Tensor, "rows length"]) -> None:
        """Raise `InputError` if a gap to be filled comes before tokens of a later block, which it would not see."""
        numbers = self.numbers(masked.shape[1], self.gap_starts(masked))
        limits = torch.iinfo(numbers.dtype)
        first = numbers.where(masked, limits.max).amin(-1)
        last = numbers.where(there & ~masked, limits.min).amax(-1)
        unseen = (first < last).nonzero().flatten().tolist()
        if unseen:
            raise InputError(
                "A block diffusion model sees what comes before a token and nothing behind its block: a gap must reach "
                f"to the end of the row, or to that of its block; row {unseen[0]} has a gap in block "
                f"{int(first[unseen[0]])} and tokens in block {int(last[unseen[0]])}. Leave out what follows the gap, "
                "or use a model that sees both sides."
            )


def check_sees_all(predictor: object, what: str) -> None:
    """Raise `InputError` for a model of blocks, which sees nothing behind a block and all that is before it."""
    if blocks_of(predictor) is not None:
        raise InputError(
            f"{what} needs a model that sees any part of a row, got one that sees only the blocks before a token, and "
            "all of them. Ask for nll, or take a masked language model."
        )


def blocks_of(predictor: object) -> BlockLayout | None:
    """The blocks of a predictor that works block by block; None for one that sees whole rows."""
    found = getattr(predictor, "blocks", None)
    return found if isinstance(found, BlockLayout) else None  # networks call their layers so
