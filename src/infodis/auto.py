"""`Auto`, the default design: it looks at a few masks first, then takes `Enumerate`, `Tiled` or `Orders`.

Also the table of all designs by name.
"""

import dataclasses
import functools
import math

import torch
from jaxtyping import Bool, Float64, Int
from torch import Tensor

from infodis.design import (
    LONGEST_ENUMERATION,
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

    def masks(self, levels: Levels, keys: Keys) -> WeightedMasks:
        rows, length = keys.shape[-2:]
        return self._blind(length, rows if rows == 2**length - 1 else 0).masks(levels, keys)

    def _blind(self, length: int, rows: int) -> MaskDesign:
        return Enumerate() if length <= LONGEST_ENUMERATION and 2**length - 1 <= rows else self.tiled

    def pilot(self, length: int, rows: int) -> Bool[Tensor, "pilot length"]:
        smallest = Orders().smallest(length)
        if length < 4 or rows < smallest or isinstance(self._blind(length, rows), Enumerate):
            return torch.zeros(0, length, dtype=torch.bool)
        leaves = LEAVES if length >= 12 and rows >= max(64, smallest + LEAVES + 1) else 3
        stars = max(1, min(4, rows // (12 * (1 + leaves)), (rows - smallest) // (1 + leaves)))
        return _stars(length, stars, leaves)[0].flatten(0, 1)

    def choose_design(
        self, length: int, rows: int, surprisal: Float64[Tensor, "pilot length"], *, precision: float | None = None
    ) -> tuple[MaskDesign, int]:
        spent = surprisal.shape[0]
        if spent == 0:
            return self._blind(length, rows), rows
        left = max(rows - spent, Orders().smallest(length))
        pairs = 0 if precision is not None else (left - 1) // (2 * (length - 1))
        orders = Orders(antithetic=pairs >= 8)  # a few pairs leave too many rows over
        each = length / 4 * _disagreement(length, surprisal) * (0.75 if orders.antithetic else 1.0)
        predicted = each / (pairs if orders.antithetic else (left - 1) // (length - 1))
        typical = TYPICAL * length / left * (0.12 + 0.5 * length / left) / (0.12 + 0.5 / 8)  # [eq:auto]
        enough = precision is None or 2 * each <= precision**2  # so that the fewest replicates will do
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


def _disagreement(length: int, surprisal: Float64[Tensor, "pilot length"]) -> float:
    """The mean square of the commutators that a pilot saw [eq:commutator].

    The change of a by b is f(M, a) - f(M - b, a); the commutator is the change of a by b less that of b by a.
    """
    leaves = _leaves(length, surprisal.shape[0])
    rows = surprisal.unflatten(0, (-1, 1 + leaves))
    revealed = _stars(length, rows.shape[0], leaves)[1]
    at = rows.gather(2, revealed.unsqueeze(1).expand(-1, 1 + leaves, -1))
    changes = at[:, :1] - at[:, 1:]
    commutators = (changes - changes.transpose(1, 2))[:, ~torch.eye(leaves, dtype=torch.bool)]
    return float(commutators.square().mean())


def _leaves(length: int, rows: int) -> int:
    """How many positions each star of a pilot of so many rows reveals."""
    return LEAVES if length >= 12 and rows % (1 + LEAVES) == 0 else 3


NAMED: dict[str, MaskDesign] = {
    "auto": Auto(),
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
