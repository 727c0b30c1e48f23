"""Control variates: what to subtract from the surprisals before averaging, because its average is known exactly.

A control predicts f(M, i) from the mask alone by h(M, i) = a_i + b_i . phi(M, i). Under the law that
defines `nll` (size uniform on 1..m, mask uniform given its size) the mean of h over the masks that hold i is known in
closed form [eq:control-means]; features are centred by it, so that the mean is a_i. The estimate becomes

    sum of w (f - h)  +  sum of a_i                                                                    [eq:control]

which has the same expectation as sum of w f for any fixed coefficients, good or bad, since the weights are unbiased.
Coefficients for one fold of replicates come from the other folds (cross-fitting), so they are fixed as far as that
fold's masks are concerned: the estimate stays unbiased. Each item is fitted by itself, so that an item's number does
not depend on what else is scored.

The fit is a shrunken regression in two steps: slopes that all positions share, then each position's own intercept a_i
and slopes b_i, which a few pseudo-observations pull towards the shared ones. The shrinkage keeps it harmless at small
budgets and on predictors that follow no pattern.
"""

import abc
import dataclasses
import functools
import itertools

import torch
from jaxtyping import Bool, Float32, Float64, Int
from torch import Tensor

from infodis.errors import InputError

FOLDS = 4
"""At most so many folds: designs whose every row is a replicate are fitted in groups."""

VARIANCE = 0.25
"""Of an indicator that a neighbour is masked: turns pseudo-observations into a penalty on slopes."""

FEW_ROWS = 12
"""With fewer rows, positions have no slopes of their own: most of the time of a fit, for a few percent of variance."""

Rows = Bool[Tensor, "items length rows"]
Values = Float64[Tensor, "items length rows"]
Features = Float32[Tensor, "items length features rows"]  # coefficients need no more, and this is the costly part
Indicators = Float32[Tensor, "items length neighbours rows"]
Present = Float32[Tensor, "items length neighbours one"]
Maps = Int[Tensor, "items length neighbours"]


@dataclasses.dataclass(frozen=True)
class Control(abc.ABC):
    """What h may depend on besides the position."""

    intercept_prior: float = 8.0
    """Pseudo-observations that pull a position's intercept towards the common one."""
    slope_prior: float = 16.0
    """Pseudo-observations that pull a position's own slopes towards the shared ones."""
    shared_prior: float = 64.0
    """Pseudo-observations that pull the shared slopes towards zero."""

    def __post_init__(self) -> None:
        if not (min(self.intercept_prior, self.slope_prior, self.shared_prior) > 0):
            raise InputError("A control's priors must be positive.")

    @property
    @abc.abstractmethod
    def offsets(self) -> tuple[int, ...]:
        """Distances to the neighbours that features look at."""

    @abc.abstractmethod
    def features(self, masked: Rows, neighbours: Indicators, present: Present) -> Features:
        """phi, centred.

        `neighbours` says whether the neighbour at each offset is masked, `present` whether it is in the target.
        """


@dataclasses.dataclass(frozen=True)
class Positions(Control):
    """Only intercepts: some tokens are more surprising than others, however often the masks happen to hit them.

    >>> import infodis
    >>> from infodis.oracle import MarkovChain
    >>> chain, tokens = MarkovChain.random(order=1, vocab_size=3), [0, 1, 2, 0, 1, 2, 0, 1]
    >>> without = infodis.nll(chain, tokens, design=infodis.Tiled(), control=None)
    >>> beside = infodis.nll(chain, tokens, design=infodis.Tiled(), control=infodis.Positions())
    >>> beside.standard_error < without.standard_error  # at the same cost
    True
    """

    @property
    def offsets(self) -> tuple[int, ...]:
        return ()

    def features(self, masked: Rows, neighbours: Indicators, present: Present) -> Features:
        return neighbours


@dataclasses.dataclass(frozen=True)
class Neighbours(Control):
    """Intercepts, which neighbours up to `radius` away are masked too (and pairs of them), and the size of the mask.

    Neighbours are places in the sequence; those outside the target never change and are left out.

    >>> import infodis
    >>> from infodis.oracle import MarkovChain
    >>> chain, tokens = MarkovChain.random(order=1, vocab_size=3), [0, 1, 2, 0, 1, 2, 0, 1]
    >>> without = infodis.nll(chain, tokens, design=infodis.Tiled(), control=None)
    >>> beside = infodis.nll(chain, tokens, design=infodis.Tiled(), control=infodis.Neighbours())
    >>> beside.standard_error < without.standard_error  # at the same cost
    True
    """

    radius: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.radius < 1:
            raise InputError(f"Neighbours needs radius >= 1, got {self.radius}. Positions() looks at no neighbours.")

    @property
    def offsets(self) -> tuple[int, ...]:
        return tuple(sign * distance for distance in range(1, self.radius + 1) for sign in (1, -1))

    def features(self, masked: Rows, neighbours: Indicators, present: Present) -> Features:
        length = masked.shape[1]
        share = (masked.sum(1, keepdim=True).float() / length).expand(masked.shape).unsqueeze(2)
        return torch.cat(
            [
                neighbours - present / 2,
                _pairs(neighbours) - _pairs(present) / 3,
                share - (length + 1) / (2 * length),
                share**2 - (length + 1) * (2 * length + 1) / (6 * length**2),
            ],
            dim=2,
        )  # [eq:control-means]


def _pairs(values: Tensor) -> Tensor:
    """Products of neighbours that stand side by side, seen from the position between or beyond them.

    Neighbours come in the order 1, -1, 2, -2, ...: the next one outwards is two columns on.
    """
    return torch.cat([values[:, :, :1] * values[:, :, 1:2], values[:, :, :-2] * values[:, :, 2:]], dim=2)


def neighbour_maps(targets: Int[Tensor, "items length"], offsets: tuple[int, ...]) -> Maps:
    """For every target position the place in the target of its neighbour at each offset; the length if it has none."""
    length = targets.shape[1]
    if bool((targets[:, -1] - targets[:, 0] + 1 == length).all()):  # without gaps, where it begins does not matter
        return _map_of_range(length, offsets).expand(len(targets), -1, -1)
    return torch.stack([_map(target, offsets) for target in targets])


@functools.lru_cache(maxsize=512)
def _map_of_range(length: int, offsets: tuple[int, ...]) -> Int[Tensor, "length neighbours"]:
    return _map(torch.arange(length), offsets)


def _map(target: Int[Tensor, " length"], offsets: tuple[int, ...]) -> Int[Tensor, "length neighbours"]:
    wanted = target.unsqueeze(-1) + torch.tensor(offsets, dtype=torch.int64)
    place = torch.searchsorted(target, wanted).clamp(max=len(target) - 1)
    return torch.where(target[place] == wanted, place, len(target))


def fold_bounds(replicates: int, rows: int) -> list[tuple[int, int]]:
    """Where the rows of each fold begin and end: folds are blocks of whole replicates."""
    folds = min(replicates, FOLDS)
    edges = [n * replicates // folds * rows for n in range(folds + 1)]
    return list(itertools.pairwise(edges))


def predict(
    control: Control, masked: Rows, weight: Values, surprisal: Values, *, folds: list[tuple[int, int]], maps: Maps
) -> tuple[Values, Values]:
    """Cross-fitted h at every masked entry, and its known mean a_i for every position and row.

    Rows of a fold are predicted from those of the other folds, rows behind all folds from all. At least two folds.
    """
    features = control.features(masked, *neighbour_values(masked, maps)) * masked.float().unsqueeze(2)
    few = masked.shape[-1] < FEW_ROWS
    moments = [
        _Moments.of(masked[..., a:b], weight[..., a:b], surprisal[..., a:b], features[..., a:b], few=few)
        for a, b in folds
    ]
    total = _Moments.sum(moments)
    predictions, means = [], []
    others = [(bounds, total.minus(mine)) for bounds, mine in zip(folds, moments, strict=True)]
    behind = (folds[-1][1], masked.shape[-1])
    for (start, end), known in [*others, (behind, total)] if behind[0] < behind[1] else others:
        slope, intercept = _fit(control, known.scaled())
        change = (slope.float().unsqueeze(-1) * features[..., start:end]).sum(2)
        predictions.append(change.double() + intercept.unsqueeze(-1))
        means.append(intercept.unsqueeze(-1).expand(-1, -1, end - start))
    return torch.cat(predictions, dim=-1) * masked, torch.cat(means, dim=-1)


def neighbour_values(masked: Rows, maps: Maps) -> tuple[Indicators, Present]:
    """Whether each neighbour is masked, and whether it is there at all."""
    items, length, rows = masked.shape
    padded = torch.cat([masked, masked.new_zeros(items, 1, rows)], dim=1).float()
    index = (maps + torch.arange(items)[:, None, None] * (length + 1)).flatten()
    found = padded.flatten(0, 1).index_select(0, index).view(*maps.shape, rows)
    return found, (maps < length).float().unsqueeze(-1)


@dataclasses.dataclass(frozen=True, eq=False)
class _Moments:
    """Weighted sums over the rows of a fold, per item and position: all that the regression needs.

    Where rows are few, products of features are summed over positions too, and `places` is 1.
    """

    entries: Float64[Tensor, "items length"]
    weight: Float64[Tensor, "items length"]
    f: Float64[Tensor, "items length"]
    x: Float64[Tensor, "items length features"]
    xx: Float64[Tensor, "items places features features"]
    xf: Float64[Tensor, "items places features"]

    @staticmethod
    def of(masked: Rows, weight: Values, surprisal: Values, features: Features, *, few: bool) -> "_Moments":
        weighted = features * weight.float().unsqueeze(2)
        own = (masked.double().sum(-1), weight.sum(-1), (weight * surprisal).sum(-1), weighted.sum(-1))
        value = surprisal.float()
        if few:
            features, weighted = (part.transpose(1, 2).flatten(2).unsqueeze(1) for part in (features, weighted))
            value = value.flatten(1).unsqueeze(1)
        square = weighted @ features.contiguous().transpose(-1, -2)
        sums = (*own, square, (weighted * value.unsqueeze(2)).sum(-1))
        return _Moments(*(each.double() for each in sums))

    @staticmethod
    def sum(parts: "list[_Moments]") -> "_Moments":
        return functools.reduce(lambda a, b: a._with(b, 1), parts)

    def minus(self, other: "_Moments") -> "_Moments":
        return self._with(other, -1)

    def scaled(self) -> "_Moments":
        """With weights of mean 1 per entry, the unit in which priors count. Only these rows decide on the scale."""
        scale = self.entries.sum(-1) / self.weight.sum(-1).clamp(min=torch.finfo(torch.float64).tiny)
        parts = (getattr(self, field.name) for field in dataclasses.fields(self)[1:])
        return _Moments(self.entries, *(part * scale.view(-1, *[1] * (part.ndim - 1)) for part in parts))

    def _with(self, other: "_Moments", sign: int) -> "_Moments":
        names = (field.name for field in dataclasses.fields(self))
        return _Moments(*(torch.add(getattr(self, n), getattr(other, n), alpha=sign) for n in names))


def _fit(control: Control, known: _Moments) -> tuple[Float64[Tensor, "items length features"], Tensor]:
    """Slopes and intercepts of every position: what all share first, then each one's own, shrunk towards it."""
    weight = known.weight.clamp(min=1e-9)
    x_mean = known.x / weight.unsqueeze(-1)
    spread = known.xx.sum(1) - x_mean.transpose(1, 2) @ known.x
    together = known.xf.sum(1) - (x_mean * known.f.unsqueeze(-1)).sum(1)
    unit = torch.eye(spread.shape[-1], dtype=torch.float64)
    shared = torch.linalg.solve(spread + control.shared_prior * VARIANCE * unit, together)
    rest = known.f - (known.x * shared.unsqueeze(1)).sum(-1)
    common = rest.sum(-1, keepdim=True) / known.weight.sum(-1, keepdim=True).clamp(min=1e-9)
    intercept = (rest + control.intercept_prior * common) / (known.weight + control.intercept_prior)
    if known.xx.shape[1] < known.x.shape[1]:
        return shared.unsqueeze(1).expand(known.x.shape), intercept
    left = rest - intercept * known.weight
    left_x = known.xf - (known.xx * shared[:, None, None, :]).sum(-1) - intercept.unsqueeze(-1) * known.x
    corner = (known.weight + control.slope_prior)[..., None, None]
    block = known.xx + control.slope_prior * VARIANCE * unit
    system = torch.cat(
        [
            torch.cat([corner, known.x.unsqueeze(-2)], dim=-1),
            torch.cat([known.x.unsqueeze(-1), block], dim=-1),
        ],
        dim=-2,
    )
    own = torch.linalg.solve(system, torch.cat([left.unsqueeze(-1), left_x], dim=-1))
    return shared.unsqueeze(1) + own[..., 1:], intercept + own[..., 0]
