"""`Auto`, the default design: it looks at a few masks first, then takes `Enumerate`, `Tiled` or `Orders`.

On a block diffusion model it does so inside every block: `Blocks`. Also the table of all designs by name.
"""

import dataclasses
import functools
import math

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float64, Int
from torch import Tensor

from infodis.control import FEWEST_PARTS
from infodis.design import (
    FEWEST_REPLICATES,
    LONGEST_ENUMERATION,
    SMALLEST_STAGE,
    Enumerate,
    Keys,
    Layout,
    Levels,
    MaskDesign,
    Orders,
    Pairs,
    StratifiedCount,
    Tiled,
    TimeFree,
    TimeIntegral,
    UniformCount,
    WeightedMasks,
    ranks,
)
from infodis.errors import InputError
from infodis.rng import stream, uniforms

LEAVES = 7
"""Positions that a pilot star reveals, one at a time; three where rows are few."""

FEWEST_ROWS = 16
"""Below which there is no pilot: its four rows would be missed more than its advice is worth."""

LONGEST_BLIND = 4
"""Tokens of blocks in which orders are taken without a pilot: in blocks of six, `Tiled` is as good."""

TYPICAL_CHANGE = 0.5
"""The mean square of what revealing one token changes about another, in text, in nats squared."""

TYPICAL = 0.5
"""Variance of `Tiled` with its control, times rows, per token, where a token has eight rows: in nats squared."""


@dataclasses.dataclass(frozen=True)
class Auto(MaskDesign):
    """The default: `Enumerate` if it fits the budget, else `Tiled`, or `Orders` if a pilot finds that it varies less.

    `Orders` is exact when the conditionals of a predictor agree with each other, and poor when they do not. The pilot
    looks at **stars**: a mask, and the same mask with one of a few positions revealed. Revealing b changes the
    surprisal of a by some amount, revealing a changes that of b by another; if the conditionals agree, the two amounts
    are equal [eq:commutator]. The mean square of their difference predicts the variance of `Orders`, which spans orders
    of magnitude. The variance of `Tiled` hardly does: it is taken to be a typical one [eq:auto]. Stars reveal
    neighbours and positions far apart in turn, of masks of all sizes.

    `Orders` is taken only if its predicted variance is below `margin` times the typical one of `Tiled`: a wrong
    `Orders` costs more than a wrong `Tiled`. The margin is stricter for small stars. Orders come with their reverses
    where eight such pairs fit, which takes out of their variance what depends on the order of pairs alone.

    The pilot's masks are fixed, not drawn, and its rows do not enter the estimate: looking at them cannot bias it. They
    count towards the budget. Only where that leaves `Orders` less than two orders, the pilot comes on top, by at most
    four rows.

    On a block diffusion model it draws in every block by itself, see `Blocks`. With too few rows for all masks of
    blocks of four, it takes `Orders` without a pilot: with the control `Evened` they vary less whether conditionals
    agree or not. That needs four blocks or more.

    >>> import infodis
    >>> from infodis.oracle import MarkovChain
    >>> chain = MarkovChain.random(order=1, vocab_size=3)
    >>> infodis.nll(chain, [0, 1, 2]).design, infodis.nll(chain, [0, 1, 2] * 6, evaluations=256).design
    (Enumerate(), Orders(antithetic=False))
    """

    tiled: Tiled = Tiled()
    margin: float = 0.4

    def __post_init__(self) -> None:
        if not 0 < self.margin < math.inf:
            raise InputError(f"Auto needs a positive margin, got {self.margin}.")

    def layout(self, length: int, rows: int) -> Layout:
        """Without a predictor to ask: `Enumerate` or `Tiled`."""
        return self._blind(length, rows).layout(length, rows)

    def first_stage(self, length: int, rows: int) -> Layout:
        return self._blind(length, rows).first_stage(length, rows)

    def fewest_replicates(self, length: int, rows: int) -> Layout:
        return self._blind(length, rows).fewest_replicates(length, rows)

    def masks(self, levels: Levels, keys: Keys) -> WeightedMasks:
        rows, length = keys.shape[-2:]
        return self._blind(length, rows if rows == 2**length - 1 else 0).masks(levels, keys)

    def _blind(self, length: int, rows: int) -> MaskDesign:
        return Enumerate() if length <= LONGEST_ENUMERATION and 2**length - 1 <= rows else self.tiled

    def over(self, sizes: tuple[int, ...]) -> MaskDesign:
        return in_blocks(self, sizes)

    def pilot(self, length: int, rows: int) -> Bool[Tensor, "pilot length"]:
        smallest = Orders().smallest(length)
        if length < 4 or rows < max(smallest, FEWEST_ROWS) or isinstance(self._blind(length, rows), Enumerate):
            return torch.zeros(0, length, dtype=torch.bool)
        leaves = LEAVES if length >= 12 and rows >= max(64, smallest + LEAVES + 1) else 3
        stars = max(1, min(4, rows // (12 * (1 + leaves)), (rows - smallest) // (1 + leaves)))
        return _stars(length, stars, leaves)[0].flatten(0, 1)

    def choose_design(
        self,
        length: int,
        rows: int,
        surprisal: Float64[Tensor, "*all pilot length"],
        *,
        precision: float | None = None,
    ) -> tuple[MaskDesign, int]:
        """Of several pilots at once, the mean of what they saw decides."""
        spent = surprisal.shape[-2]
        if spent == 0:
            blind, parts = self._blind(length, rows), math.prod(surprisal.shape[:-2])
            few = precision is None and Orders().smallest(length) <= rows < 2**length - 1
            evened = few and length <= LONGEST_BLIND and parts >= FEWEST_PARTS
            return (Orders() if evened else blind), rows
        left = max(rows - spent, Orders().smallest(length))
        pairs = 0 if precision is not None else (left - 1) // (2 * (length - 1))
        orders = Orders(antithetic=pairs >= 8)  # a few pairs leave too many rows over
        disagreement, change = _disagreement(length, surprisal)
        each = length / 4 * disagreement * (0.75 if orders.antithetic else 1.0)
        predicted = each / (pairs if orders.antithetic else (left - 1) // (length - 1))
        typical = TYPICAL * length / left * (0.12 + 0.5 * length / left) / (0.12 + 0.5 / 8)  # [eq:auto]
        enough = precision is None
        if precision is not None:
            rows = _first_rows(rows, change)
            cheap = FEWEST_REPLICATES * (length - 1) < max(rows, _tiled_rows(length, precision, change))
            enough = cheap and 2 * each <= precision**2  # so that the fewest replicates will do
        margin = self.margin * _leaves(length, spent) / LEAVES
        if enough and predicted < margin * typical:  # false if it is not a number
            return orders, left
        return self.tiled, max(rows - spent, 2)


@functools.lru_cache(maxsize=64)
def _stars(
    length: int, count: int, leaves: int
) -> tuple[Bool[Tensor, "stars rows length"], Int[Tensor, "stars leaves"]]:
    """Fixed masks for a pilot: stars of a mask and `leaves` masks with one position revealed, and these positions.

    Every other star reveals neighbours; the others reveal positions spread over the target.
    """
    place = (torch.arange(count) + 0.5).unsqueeze(-1) / count
    near = (place * (length - leaves + 1)).long() + torch.arange(leaves)
    far = ((torch.arange(leaves) + place) * length / leaves).long().clamp(max=length - 1)
    revealed = torch.where(torch.arange(count).unsqueeze(-1) % 2 == 0, near, far)
    keys = uniforms(count, length, generator=stream(0, "pilot", length))
    turn = ranks(keys.scatter(1, revealed, -1.0))
    shares = torch.tensor([0.5, 0.4, 0.8, 0.6])[:count].unsqueeze(-1)
    base = (turn < (shares * length).round().clamp(min=leaves)).unsqueeze(1)
    return torch.cat([base, base & (revealed.unsqueeze(-1) != torch.arange(length))], dim=1), revealed


def _disagreement(length: int, surprisal: Float64[Tensor, "*all pilot length"]) -> tuple[float, float]:
    """The mean squares of the commutators that a pilot saw [eq:commutator], and of the changes themselves.

    The change of a by b is f(M, a) - f(M - b, a); the commutator is the change of a by b less that of b by a.
    """
    leaves = _leaves(length, surprisal.shape[-2])
    rows = surprisal.unflatten(-2, (-1, 1 + leaves))
    revealed = _stars(length, rows.shape[-3], leaves)[1]
    at = rows.take_along_dim(revealed.unsqueeze(1).view(*[1] * (rows.ndim - 3), -1, 1, leaves), dim=-1)
    changes = at[..., :1, :] - at[..., 1:, :]
    pairs = ~torch.eye(leaves, dtype=torch.bool)
    commutators = (changes - changes.transpose(-1, -2))[..., pairs]
    return float(commutators.square().mean()), float(changes[..., pairs].square().mean())


def _first_rows(rows: int, change: float) -> int:
    """A first stage was meant for text, and grows with the square root of what is needed: less where little changes."""
    return min(rows, max(SMALLEST_STAGE, round(rows * math.sqrt(min(1.0, change / TYPICAL_CHANGE)))))


def _tiled_rows(length: int, precision: float, change: float) -> float:
    """What `Tiled` needs for a standard error, if its variance is typical; less where little depends on masks."""
    scale = TYPICAL * length / (0.12 + 0.5 / 8) * min(1.0, change / TYPICAL_CHANGE)
    # [eq:auto]: scale / rows * (0.12 + length / (2 rows)) = precision^2
    return scale / precision**2 * (0.06 + math.sqrt(0.06**2 + length * precision**2 / (2 * scale))) if scale else 0.0


def _leaves(length: int, rows: int) -> int:
    """How many positions each star of a pilot of so many rows reveals."""
    return LEAVES if length >= 12 and rows % (1 + LEAVES) == 0 else 3


@dataclasses.dataclass(frozen=True)
class Blocks(MaskDesign):
    """For block diffusion models: `inner`, drawn independently in every block of the target [eq:blocks].

    What such a model says about a token depends on the masks inside the token's own block alone. So one row evaluates
    one mask in every block at once, and a target takes as many rows as its largest block: with blocks of 4 tokens, 15
    rows hold all masks of every block, and the result is exact at any length. Blocks with so few tokens that a
    replicate has rows for all their masks get them all.

    Which blocks there are, the predictor knows: `sizes` is filled in. `Auto` takes this design by itself.

    >>> import infodis
    >>> from infodis.testing import Blockwise
    >>> from infodis.oracle import MarkovChain
    >>> chain = Blockwise(MarkovChain.random(order=1, vocab_size=3), infodis.BlockLayout(4))
    >>> estimate = infodis.nll(chain, [0, 1, 2] * 20, design=infodis.Blocks())
    >>> estimate.stopped, estimate.evaluations
    ('exact', 15)
    """

    inner: MaskDesign = Auto()
    sizes: tuple[int, ...] = dataclasses.field(default=(), repr=False)
    """Target tokens in every block."""

    def __post_init__(self) -> None:
        if not isinstance(self.inner, MaskDesign) or isinstance(self.inner, Blocks):
            raise InputError(f"Blocks needs a design to draw from in every block, like Tiled(), got {self.inner!r}.")

    @property
    def telescoping(self) -> bool:
        return self.inner.telescoping

    def parts(self, length: int) -> tuple[int, ...]:
        return self.sizes

    def over(self, sizes: tuple[int, ...]) -> "Blocks":
        return dataclasses.replace(self, sizes=sizes)

    def exhaustive(self) -> "Blocks":
        return dataclasses.replace(self, inner=Enumerate())

    def layout(self, length: int, rows: int) -> Layout:
        found = self.inner.layout(self._largest(length), rows)
        return dataclasses.replace(found, together=1)  # a plan may hold all masks of a block, which parts do not

    def first_stage(self, length: int, rows: int) -> Layout:
        return self.inner.first_stage(self._largest(length), rows)

    def fewest_replicates(self, length: int, rows: int) -> Layout:
        return self.inner.fewest_replicates(self._largest(length), rows)

    def masks(self, levels: Levels, keys: Float64[Tensor, "batch rows keys"]) -> WeightedMasks:
        drawn = torch.cat([levels.unsqueeze(-1), keys], dim=-1)
        pieces = drawn.split([1 + size for size in self.sizes], dim=-1)
        found: list[WeightedMasks | None] = [None] * len(pieces)
        for size in set(self.sizes):
            numbers = [number for number, its in enumerate(self.sizes) if its == size]
            masked, weight = self._within(torch.stack([pieces[number] for number in numbers]))
            for number, *its in zip(numbers, masked, weight, strict=True):
                found[number] = (its[0], its[1])
        masked, weight = (torch.cat(part, dim=-1) for part in zip(*found, strict=True))
        return masked, weight

    def _within(self, drawn: Float64[Tensor, "blocks batch rows numbers"]) -> tuple[Tensor, Tensor]:
        """Masks of blocks of one size. Rows that are left over mask nothing there."""
        rows, size = drawn.shape[-2], drawn.shape[-1] - 1
        design = Enumerate() if size <= LONGEST_ENUMERATION and 2**size - 1 <= rows else self.inner
        taken = design.layout(size, 2**LONGEST_ENUMERATION).rows if design.telescoping else rows
        numbers = drawn[..., :taken, :].flatten(0, 1)
        parts = design.masks(numbers[..., 0], numbers[..., 1:])
        masked, weight = (F.pad(part, (0, 0, 0, rows - taken)).view(*drawn.shape[:3], size) for part in parts)
        return masked, weight

    def pilot(self, length: int, rows: int) -> Bool[Tensor, "pilot length"]:
        """The pilot of a block, in all of them at once."""
        masked = self.inner.pilot(self._largest(length), rows)
        return torch.cat([masked[:, :size] for size in self.sizes], dim=1)

    def choose_design(
        self, length: int, rows: int, surprisal: Float64[Tensor, "pilot length"], *, precision: float | None = None
    ) -> tuple["Blocks", int]:
        """What whole blocks saw decides for all."""
        largest = self._largest(length)
        whole = [piece for piece in surprisal.split(self.sizes, dim=-1) if piece.shape[-1] == largest]
        each = None if precision is None else precision / math.sqrt(len(whole))
        chosen, left = self.inner.choose_design(largest, rows, torch.stack(whole), precision=each)
        return dataclasses.replace(self, inner=chosen), left

    def _largest(self, length: int) -> int:
        if sum(self.sizes) != length:
            raise InputError(
                "Blocks draws inside the blocks of a block diffusion model; this predictor sees whole rows. Use "
                f"{self.inner} itself, or load the model with its block_size."
            )
        return max(self.sizes)


def in_blocks(design: MaskDesign, sizes: tuple[int, ...]) -> MaskDesign:
    """A design, drawn in every block if there are any."""
    return Blocks(design, sizes) if sizes else design


def auto_in(design: MaskDesign) -> Auto | None:
    """The `Auto` that decides, if one does: a design itself, or what it draws from inside blocks."""
    inner = design.inner if isinstance(design, Blocks) else design
    return inner if isinstance(inner, Auto) else None


NAMED: dict[str, MaskDesign] = {
    "auto": Auto(),
    "blocks": Blocks(),
    "tiled": Tiled(),
    "orders": Orders(),
    "enumerate": Enumerate(),
    "pairs": Pairs(),
    "stratified": StratifiedCount(),
    "uniform": UniformCount(),
    "time-free": TimeFree(),
    "time-integral": TimeIntegral(),
}
"""Designs as the command line calls them."""


def design_named(name: str) -> MaskDesign:
    """The design of that name, with its defaults."""
    if name not in NAMED:
        raise InputError(f"A design is one of {', '.join(NAMED)}; got {name!r}.")
    return NAMED[name]
