"""Control variates: what to subtract from the surprisals before averaging, because its average is known exactly.

A control predicts f(M, i) from the mask alone by h(M, i) = a_i + b_i . phi(M, i). Under the law that
defines `nll` (size uniform on 1..m, mask uniform given its size) the mean of h over the masks that hold i is known in
closed form [eq:control-means]; features are centred by it, so that the mean is a_i. The estimate becomes

    sum of w (f - h)  +  sum of a_i                                                                    [eq:control]

which has the same expectation as sum of w f for any fixed coefficients, good or bad, since the weights are unbiased.
Coefficients for one fold of replicates come from the other folds (cross-fitting), so they are fixed as far as that
fold's masks are concerned: the estimate stays unbiased. Each item is fitted by itself, so that an item's number does
not depend on what else is scored.

A `Surrogate` knows more than the mask: it is a second distribution, whose own surprisals h at the same masks have the
mean -log p(target | context), in closed form. For a number beta that does not depend on the masks it is applied to,

    estimate of f  -  beta (estimate of h  -  mean of h)                                             [eq:surrogate]

is unbiased, however bad the surrogate is. Both estimates come from the same rows and the same regression.

The fit is a shrunken regression in two steps: slopes that all positions share, then each position's own intercept a_i
and slopes b_i, which a few pseudo-observations pull towards the shared ones. The shrinkage keeps it harmless at small
budgets and on predictors that follow no pattern.
"""

import abc
import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float32, Float64, Int
from torch import Tensor

from infodis.blocks import blocks_of
from infodis.errors import InputError
from infodis.item import Item
from infodis.predictor import Distribution, ManyDistribution, Predictor

FOLDS = 4
"""At most so many folds: designs whose every row is a replicate are fitted in groups."""

VARIANCE = 0.25
"""Of an indicator that a neighbour is masked: turns pseudo-observations into a penalty on slopes."""

FEW_ROWS = 12
"""With fewer rows, positions have no slopes of their own: most of the time of a fit, for a few percent of variance."""

SHARE = 0.75
"""Of the slope on a surrogate's surprisals, as what to subtract: a regression on neighbours explains some of both."""

STEEP, STEEP_SCALE = 12, 4.0
"""The power of the share that is masked in the last feature, and its scale: priors count less for larger ones."""

PROCESS_ROWS = 48
"""With fewer rows `Kernel` is `Neighbours`: a process has too little to learn from, and its errors seem too small."""

MOST_KNOWN = 512
"""Rows that a process is fitted to, at most: its time grows with their cube."""

PROCESS_CHUNK = 2**21
"""Entries of covariances that are worked on at a time: few enough for the cache of a processor. Changes no number."""

Rows = Bool[Tensor, "items length rows"]
Values = Float64[Tensor, "items length rows"]
Layers = Float64[Tensor, "layers items length rows"]
"""Surprisals of a predictor, and of surrogates, which are regressed on the same features."""
Features = Float32[Tensor, "items length features rows"]  # coefficients need no more, and this is the costly part
Maps = Int[Tensor, "items length neighbours"]


@dataclasses.dataclass(frozen=True, eq=False)
class Surroundings:
    """What a control may look at: the masks around every position, in every row.

    Where masks are drawn in each block by itself, only those in the position's own block count.
    """

    neighbours: Float32[Tensor, "items length neighbours rows"]
    """Whether the neighbour at each offset is masked."""
    present: Float32[Tensor, "items length neighbours one"]
    """Whether there is one."""
    share: Float32[Tensor, "items length one rows"]
    """How much of the target is masked."""
    size: Float32[Tensor, "length one one"]
    """Of how many positions in all."""


@dataclasses.dataclass(frozen=True)
class Control(abc.ABC):
    """What is subtracted: a regression on masks, or a surrogate and what is regressed of the rest."""

    @abc.abstractmethod
    def on(self, predictor: Predictor) -> "Control | None":
        """What there is to subtract from this predictor's surprisals."""

    @property
    @abc.abstractmethod
    def regression(self) -> "Regression | None":
        """On the masks."""

    @property
    def surrogates(self) -> "tuple[Surrogate, ...]":
        """All that are subtracted, each with its beta."""
        return ()


@dataclasses.dataclass(frozen=True)
class Regression(Control):
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

    def on(self, predictor: Predictor) -> "Regression":
        return self

    @property
    def regression(self) -> "Regression":
        return self

    @property
    @abc.abstractmethod
    def offsets(self) -> tuple[int, ...]:
        """Distances to the neighbours that features look at."""

    @abc.abstractmethod
    def features(self, around: Surroundings) -> Features:
        """Phi of every position in every row, centred."""

    @property
    def shared_slopes(self) -> bool:
        """Whether positions have no slopes of their own, however many rows there are."""
        return False

    def process(self, around: Surroundings, masked: Rows) -> "GaussianProcess | None":
        """What is fitted to the rest, if anything."""
        return None

    def for_rows(self, rows: int) -> "Regression":
        """What is fitted to so many rows: something simpler, where these are too few."""
        return self


@dataclasses.dataclass(frozen=True)
class Positions(Regression):
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

    def features(self, around: Surroundings) -> Features:
        return around.neighbours


@dataclasses.dataclass(frozen=True)
class Neighbours(Regression):
    """Intercepts, which neighbours up to `radius` away are masked too (and pairs of them), and the size of the mask.

    Neighbours are places in the sequence; those outside the target never change and are left out. So are those in
    another block, where masks are drawn in each block by itself.

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
        return _around(self.radius)

    def features(self, around: Surroundings) -> Features:
        return _centred(around)


@dataclasses.dataclass(frozen=True)
class Kernel(Regression):
    """`Neighbours` with shared slopes, and on what they leave a Gaussian process of every position's own. The default.

    Its covariance of two masks falls with the neighbours up to `radius` away in which they differ: by the factor
    exp(-strength) for one next to the position, by less further out [eq:kernel-control]. So it learns any function of
    which neighbours are masked, nearby ones first, where a regression knows sums and pairs alone. With fewer than 48
    rows it is `Neighbours`.

    >>> import infodis
    >>> from infodis.oracle import MarkovChain
    >>> chain, tokens = MarkovChain.random(order=1, vocab_size=3), [0, 1, 2, 0, 1, 2, 0, 1]
    >>> without = infodis.nll(chain, tokens, design=infodis.Tiled(), control=None)
    >>> beside = infodis.nll(chain, tokens, design=infodis.Tiled(), control=infodis.Kernel())
    >>> beside.standard_error < without.standard_error  # at the same cost
    True
    """

    radius: int = 4
    strength: float = 0.4
    """By how much a neighbour next to the position counts, as an exponent."""
    decay: float = 1.0
    """In how many places that falls to 1/e of it."""
    constant: float = 1.0
    """The variance of a position's own mean, in units of what depends on neighbours."""
    noise: float = 0.05
    """The variance of what depends on none of these neighbours, in the same units."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.radius >= 1 and min(self.strength, self.decay, self.constant, self.noise) > 0):
            raise InputError(f"A kernel's radius must be 1 or more and its other numbers positive, got {self}.")

    @property
    def offsets(self) -> tuple[int, ...]:
        return _around(self.radius)

    @property
    def shared_slopes(self) -> bool:
        return True

    def features(self, around: Surroundings) -> Features:
        return _centred(around)

    def for_rows(self, rows: int) -> Regression:
        return self if rows >= PROCESS_ROWS else Neighbours(self.intercept_prior, self.slope_prior, self.shared_prior)

    def process(self, around: Surroundings, masked: Rows) -> "GaussianProcess":
        distance = torch.tensor([abs(offset) for offset in self.offsets], dtype=torch.float32)
        strengths = self.strength * torch.exp(-(distance - 1) / self.decay)
        return GaussianProcess(around.neighbours, around.present, masked, strengths, self.constant, self.noise)


def _around(radius: int) -> tuple[int, ...]:
    return tuple(sign * distance for distance in range(1, radius + 1) for sign in (1, -1))


def _centred(around: Surroundings) -> Features:
    """Neighbours, pairs of them and the size of the mask, less their means [eq:control-means]."""
    share, size = around.share, around.size
    return torch.cat(
        [
            around.neighbours - around.present / 2,
            _pairs(around.neighbours) - _pairs(around.present) / 3,
            share - (size + 1) / (2 * size),
            share**2 - (size + 1) * (2 * size + 1) / (6 * size**2),
            _steep(around),
        ],
        dim=2,
    )


def _steep(around: Surroundings) -> Features:
    """What rises where nearly all is masked, less its mean: networks that learned from small masks fail there."""
    means = torch.tensor([_mean_power(round(size)) for size in around.size.flatten().tolist()])
    return STEEP_SCALE * (around.share**STEEP - means.view_as(around.size))


@functools.lru_cache(maxsize=512)
def _mean_power(size: int) -> float:
    """Of k/m, k uniform on 1..m."""
    return float((torch.arange(1, size + 1, dtype=torch.float64) / size).pow(STEEP).mean())


def _pairs(values: Tensor) -> Tensor:
    """Products of neighbours that stand side by side, seen from the position between or beyond them.

    Neighbours come in the order 1, -1, 2, -2, ...: the next one outwards is two columns on.
    """
    return torch.cat([values[:, :, :1] * values[:, :, 1:2], values[:, :, :-2] * values[:, :, 2:]], dim=2)


@dataclasses.dataclass(frozen=True)
class Surrogate(Control):
    """Another distribution over the same tokens, whose exact likelihood is known, and a regression of what is left.

    Any predictor whose conditionals come from one joint distribution, and that has a `log_prob`: a chain that was
    counted in other text, a hidden Markov model. Unbiased whether it is good or bad, since its mean is exact; a good
    one lowers the variance. What it costs is its surprisals at the masks that the predictor is asked about.

    Without a predictor it is the one that comes with the model (`infodis calibrate`), where there is one, and
    otherwise the residual's control alone.

    >>> import infodis
    >>> from infodis.oracle import MarkovChain
    >>> from infodis.testing import Perturbed
    >>> chain, tokens = MarkovChain.random(order=2, vocab_size=3, temperature=0.15), [0, 1, 2, 0, 1, 2, 0, 1] * 3
    >>> network = Perturbed(chain, scale=0.1)  # stands for a network that has learned most of the chain
    >>> without = infodis.nll(network, tokens, design=infodis.Tiled())
    >>> beside = infodis.nll(network, tokens, design=infodis.Tiled(), control=infodis.Surrogate(chain, beta=1.0))
    >>> beside.standard_error < without.standard_error  # at the same cost
    True
    """

    predictor: Predictor | None = None
    """A `Distribution`."""
    beta: float | None = None
    """What its surprisals are multiplied by, known from other data. None: fitted to the other folds of replicates."""
    residual: Control | None = Kernel()
    fingerprint: str = dataclasses.field(default="", compare=False)
    """A hash of the file that it was read from."""

    def __post_init__(self) -> None:
        if self.predictor is not None and not isinstance(self.predictor, Distribution):
            raise InputError(
                "A surrogate must be a predictor with a log_prob of its own, like MarkovChain.counted(...), got "
                f"{type(self.predictor).__name__}. A network has none: its conditionals do not agree."
            )
        if self.beta is not None and not (isinstance(self.beta, int | float) and math.isfinite(self.beta)):
            raise InputError(f"beta must be a number, or None to fit it, got {self.beta!r}.")
        if self.beta is None and any(one.beta is None for one in self._below):
            raise InputError("Of surrogates in each other only one may be without beta. Give beta= to the others.")

    @property
    def _below(self) -> "tuple[Surrogate, ...]":
        return () if self.residual is None else self.residual.surrogates

    @property
    def surrogates(self) -> "tuple[Surrogate, ...]":
        return (self, *self._below)

    @property
    def regression(self) -> Regression | None:
        return None if self.residual is None else self.residual.regression

    def on(self, predictor: Predictor) -> Control | None:
        residual = None if self.residual is None else self.residual.on(predictor)
        blocks = blocks_of(predictor) is not None
        if self.predictor is None:
            known = predictor.surrogate if isinstance(predictor, Calibrated) else None
            return residual if known is None or blocks else dataclasses.replace(known, residual=residual)
        if blocks:
            raise InputError(
                "A surrogate is for models that see all of a row at once; this one works block by block. Leave it out."
            )
        if self.predictor.vocab_size != predictor.vocab_size:
            raise InputError(
                f"A surrogate must know the same tokens as the predictor: {predictor.vocab_size}, got "
                f"{self.predictor.vocab_size}. Count it in text of the model's tokenizer."
            )
        return dataclasses.replace(self, residual=residual)

    def nlls(self, items: Sequence[Item]) -> Float64[Tensor, " items"]:
        """The exact means of its estimates: -log p(target | context) of items of one length [eq:surrogate]."""
        distinct = {item.key: item for item in items}
        known = dict(zip(distinct, self._nlls(list(distinct.values())).tolist(), strict=True))
        found = torch.tensor([known[item.key] for item in items], dtype=torch.float64)
        if not bool(found.isfinite().all()):
            raise InputError(
                "A surrogate must find every text possible; this one gives probability zero to one of them. Count it "
                "with a larger prior."
            )
        return found

    def _nlls(self, items: list[Item]) -> Tensor:
        if isinstance(self.predictor, ManyDistribution):
            return -self.predictor.log_probs(items)
        assert isinstance(self.predictor, Distribution)
        log_prob = self.predictor.log_prob
        return -torch.tensor([log_prob(item.tokens, target=item.target, context=item.context) for item in items])

    def __repr__(self) -> str:
        which = "of the model" if self.predictor is None else repr(self.predictor)
        beta = "" if self.predictor is None else ", beta fitted" if self.beta is None else f", beta={self.beta:g}"
        return (
            f"Surrogate({which}{beta}{f', {self.fingerprint}' if self.fingerprint else ''}, residual={self.residual})"
        )


@runtime_checkable
class Calibrated(Predictor, Protocol):
    """A predictor that a surrogate comes with, or None."""

    surrogate: Surrogate | None


def neighbour_maps(targets: Int[Tensor, "items length"], offsets: tuple[int, ...], parts: tuple[int, ...]) -> Maps:
    """For every target position the place in the target of its neighbour at each offset; the length if it has none.

    Neighbours are of the same part: `parts` are the sizes of the pieces of the target that are drawn independently.
    """
    length = targets.shape[1]
    if bool((targets[:, -1] - targets[:, 0] + 1 == length).all()):  # without gaps, where it begins does not matter
        return _map_of_range(length, offsets, parts).expand(len(targets), -1, -1)
    return torch.stack([_map(target, offsets, parts) for target in targets])


@functools.lru_cache(maxsize=512)
def _map_of_range(length: int, offsets: tuple[int, ...], parts: tuple[int, ...]) -> Int[Tensor, "length neighbours"]:
    return _map(torch.arange(length), offsets, parts)


def _map(
    target: Int[Tensor, " length"], offsets: tuple[int, ...], parts: tuple[int, ...]
) -> Int[Tensor, "length neighbours"]:
    wanted = target.unsqueeze(-1) + torch.tensor(offsets, dtype=torch.int64)
    place = torch.searchsorted(target, wanted).clamp(max=len(target) - 1)
    part = torch.arange(len(parts)).repeat_interleave(torch.tensor(parts))
    there = (target[place] == wanted) & (part[place] == part.unsqueeze(-1))
    return torch.where(there, place, len(target))


@dataclasses.dataclass(frozen=True)
class Evened(Control):
    """For reveal orders that are drawn in many blocks: what else the same rows say, as far as that varies less.

    An order looks at the token that is revealed next. The mean over all tokens that its row masks has the same
    expectation, so any share beta of the difference may be added [eq:evened]. Conditionals that agree want none of it:
    along an order their sum hardly varies. Those that disagree want all of it. Beta is what varies least in other
    blocks, which were drawn independently: the estimate stays unbiased. `nll` takes this control by itself.
    """

    def on(self, predictor: Predictor) -> "Evened":
        return self

    @property
    def regression(self) -> None:
        return None


FEWEST_PARTS = 4
"""With fewer blocks too little is known about beta: intervals would hold too seldom."""


def evened(
    masked: Bool[Tensor, "items rows length"],
    weight: Float64[Tensor, "items rows length"],
    surprisal: Float64[Tensor, "items rows length"],
    *,
    rows: int,
    first: int,
    parts: tuple[int, ...],
) -> Float64[Tensor, "items replicates length"]:
    """What positions add to replicates of so many rows, with a share beta of the weights spread over their masks.

    Beta for every other block comes from the blocks between them, in the first replicates. It lies between 0 and 1.
    """
    totals, sizes = ([part.sum(-1, keepdim=True) for part in every.split(parts, -1)] for every in (weight, masked))
    each = [(total / size.clamp(min=1)).expand(-1, -1, n) for total, size, n in zip(totals, sizes, parts, strict=True)]
    spread = masked * torch.cat(each, -1)
    value, change = (((w * surprisal).unflatten(1, (-1, rows)).sum(2)) for w in (weight, spread - weight))
    sums = [torch.stack([part.sum(-1) for part in each[:, :first].split(parts, -1)], -1) for each in (value, change)]
    off, moved = (one - one.mean(1, keepdim=True) for one in sums)
    covariance, variance = ((one * moved).sum(1) for one in (off, moved))
    other = torch.arange(len(parts)).unsqueeze(0) % 2 != torch.arange(len(parts)).unsqueeze(1) % 2
    against, size = (part @ other.double() for part in (covariance, variance))
    beta = (-against / size.clamp(min=torch.finfo(size.dtype).tiny)).clamp(0.0, 1.0)
    return value + beta.repeat_interleave(torch.tensor(parts), dim=1).unsqueeze(1) * change  # [eq:evened]


def fold_bounds(replicates: int, rows: int) -> list[tuple[int, int]]:
    """Where the rows of each fold begin and end: folds are blocks of whole replicates."""
    folds = min(replicates, FOLDS)
    edges = [n * replicates // folds * rows for n in range(folds + 1)]
    return list(itertools.pairwise(edges))


def predict(
    control: Regression,
    masked: Rows,
    weight: Values,
    surprisal: Layers,
    *,
    folds: list[tuple[int, int]],
    maps: Maps,
    parts: tuple[int, ...],
) -> tuple[Layers, Layers]:
    """Cross-fitted h at every masked entry, and its known mean a_i for every position and row, layer by layer.

    Rows of a fold are predicted from those of the other folds, rows behind all folds from all. At least two folds.
    """
    around = surroundings(masked, maps, parts)
    features, process = control.features(around) * masked.float().unsqueeze(2), control.process(around, masked)
    few = control.shared_slopes or masked.shape[-1] < FEW_ROWS
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
        mean = intercept.unsqueeze(-1)
        if process is None:
            prediction = _change(slope, features[..., start:end]) + mean
        else:
            prediction = _change(slope, features) + mean
            rows = torch.arange(folds[-1][1])
            elsewhere = rows[(rows < start) | (rows >= end)]
            more, more_mean = process.predict(surprisal - prediction, elsewhere, (start, end))
            prediction, mean = prediction[..., start:end] + more, mean + more_mean
        predictions.append(prediction)
        means.append(mean.expand(-1, -1, -1, end - start))
    return torch.cat(predictions, dim=-1) * masked, torch.cat(means, dim=-1)


def _change(slope: Float64[Tensor, "layers items length features"], features: Features) -> Layers:
    return torch.stack([(one.float().unsqueeze(-2) @ features).squeeze(2) for one in slope]).double()


def surroundings(masked: Rows, maps: Maps, parts: tuple[int, ...]) -> Surroundings:
    """What is around every position. The law of masks is that of each part of the target by itself."""
    items, length, rows = masked.shape
    padded = torch.cat([masked, masked.new_zeros(items, 1, rows)], dim=1).float()
    index = (maps + torch.arange(items)[:, None, None] * (length + 1)).flatten()
    neighbours = padded.flatten(0, 1).index_select(0, index).view(*maps.shape, rows)
    sizes, each = torch.tensor(parts, dtype=torch.float32), torch.tensor(parts)
    share = torch.stack([part.sum(1) for part in masked.split(parts, dim=1)], dim=1) / sizes.unsqueeze(-1)
    return Surroundings(
        neighbours,
        (maps < length).float().unsqueeze(-1),
        share.repeat_interleave(each, dim=1).unsqueeze(2),
        sizes.repeat_interleave(each)[:, None, None],
    )


@dataclasses.dataclass(frozen=True, eq=False)
class _Moments:
    """Weighted sums over the rows of a fold, per item and position: all that the regression needs.

    Where rows are few, products of features are summed over positions too, and `places` is 1.
    """

    entries: Float64[Tensor, "items length"]
    weight: Float64[Tensor, "items length"]
    x: Float64[Tensor, "items length features"]
    xx: Float64[Tensor, "items places features features"]
    f: Float64[Tensor, "layers items length"]
    xf: Float64[Tensor, "layers items places features"]

    @staticmethod
    def of(masked: Rows, weight: Values, surprisal: Layers, features: Features, *, few: bool) -> "_Moments":
        weighted = features * weight.float().unsqueeze(2)
        own = (masked.double().sum(-1), weight.sum(-1), weighted.sum(-1))
        value = surprisal.float()
        if few:
            features, weighted = (part.transpose(1, 2).flatten(2).unsqueeze(1) for part in (features, weighted))
            value = value.flatten(2).unsqueeze(2)
        square = weighted @ features.contiguous().transpose(-1, -2)
        product = torch.stack([(weighted * layer.unsqueeze(2)).sum(-1) for layer in value])
        sums = (*own, square, (weight * surprisal).sum(-1), product)
        return _Moments(*(each.double() for each in sums))

    @staticmethod
    def sum(parts: "list[_Moments]") -> "_Moments":
        return functools.reduce(lambda a, b: a._with(b, 1), parts)

    def minus(self, other: "_Moments") -> "_Moments":
        return self._with(other, -1)

    def scaled(self) -> "_Moments":
        """With weights of mean 1 per entry, the unit in which priors count. Only these rows decide on the scale."""
        scale = self.entries.sum(-1) / self.weight.sum(-1).clamp(min=torch.finfo(torch.float64).tiny)
        parts = (self.weight, self.x, self.xx)
        own = (part * scale.view(-1, *[1] * (part.ndim - 1)) for part in parts)
        layered = (part * scale.view(-1, *[1] * (part.ndim - 2)) for part in (self.f, self.xf))
        return _Moments(self.entries, *own, *layered)

    def _with(self, other: "_Moments", sign: int) -> "_Moments":
        names = (field.name for field in dataclasses.fields(self))
        return _Moments(*(torch.add(getattr(self, n), getattr(other, n), alpha=sign) for n in names))


def _fit(control: Regression, known: _Moments) -> tuple[Float64[Tensor, "layers items length features"], Tensor]:
    """Slopes and intercepts of every position: what all share first, then each one's own, shrunk towards it."""
    weight = known.weight.clamp(min=1e-9)
    x_mean = known.x / weight.unsqueeze(-1)
    spread = known.xx.sum(1) - x_mean.transpose(1, 2) @ known.x
    together = known.xf.sum(2) - (x_mean * known.f.unsqueeze(-1)).sum(2)
    unit = torch.eye(spread.shape[-1], dtype=torch.float64)
    shared = _solved(spread + control.shared_prior * VARIANCE * unit, together)
    rest = known.f - (known.x * shared.unsqueeze(2)).sum(-1)
    common = rest.sum(-1, keepdim=True) / known.weight.sum(-1, keepdim=True).clamp(min=1e-9)
    intercept = (rest + control.intercept_prior * common) / (known.weight + control.intercept_prior)
    if known.xx.shape[1] < known.x.shape[1]:
        return shared.unsqueeze(2).expand(-1, -1, known.x.shape[1], -1), intercept
    left = rest - intercept * known.weight
    left_x = known.xf - (known.xx * shared[:, :, None, None, :]).sum(-1) - intercept.unsqueeze(-1) * known.x
    corner = (known.weight + control.slope_prior)[..., None, None]
    block = known.xx + control.slope_prior * VARIANCE * unit
    system = torch.cat(
        [
            torch.cat([corner, known.x.unsqueeze(-2)], dim=-1),
            torch.cat([known.x.unsqueeze(-1), block], dim=-1),
        ],
        dim=-2,
    )
    own = _solved(system, torch.cat([left.unsqueeze(-1), left_x], dim=-1))
    return shared.unsqueeze(2) + own[..., 1:], intercept + own[..., 0]


def _solved(system: Float64[Tensor, "*all n n"], right: Float64[Tensor, "layers *all n"]) -> Tensor:
    """The solutions of one system for every layer."""
    return torch.linalg.solve(system, right.movedim(0, -1)).movedim(-1, 0)


@dataclasses.dataclass(frozen=True, eq=False)
class GaussianProcess:
    """A Gaussian process for every position, over which of its neighbours are masked [eq:kernel-control].

    Two masks that differ in the neighbours D have the covariance constant + the product over D of e_j, with
    e_j = exp(-strength_j). Given that a position is masked, the others are masked independently with probability u, u
    uniform. So the mean over masks of the covariance with a known mask is the integral over u of a product, which is a
    polynomial: Gauss-Legendre nodes, one more than half the neighbours, give it exactly.
    """

    neighbours: Float32[Tensor, "items length neighbours rows"]
    present: Float32[Tensor, "items length neighbours one"]
    masked: Rows
    strengths: Float32[Tensor, " neighbours"]
    constant: float
    noise: float

    def predict(
        self, left: Layers, known: Int[Tensor, " some"], at: tuple[int, int]
    ) -> tuple[Float64[Tensor, "layers items length wanted"], Float64[Tensor, "layers items length one"]]:
        """The prediction for some rows from what is left at others, and its mean over all masks."""
        known = known[:: -(-len(known) // MOST_KNOWN)] if len(known) else known
        length = self.masked.shape[1]
        step = max(1, PROCESS_CHUNK // max(1, len(self.masked) * min(len(known), MOST_KNOWN) ** 2))
        pieces = [
            self._piece(left[..., known], known, at, slice(first, first + step)) for first in range(0, length, step)
        ]
        prediction, mean = (torch.cat(part, dim=2) for part in zip(*pieces, strict=True))
        return prediction, mean

    def _piece(self, left: Tensor, known: Tensor, at: tuple[int, int], places: slice) -> tuple[Tensor, Tensor]:
        """The same for some positions. Each has its own rows that mask it, which stand first; others weigh nothing."""
        masked, present = self.masked[:, places][..., known], self.present[:, places]
        most = int(masked.sum(-1).max()) if masked.numel() else 0
        order = masked.byte().argsort(dim=-1, descending=True, stable=True)[..., :most]
        here = masked.gather(-1, order).float()
        neighbours = self.neighbours[:, places]
        spins = (2 * neighbours - 1) * present
        theirs = spins[..., known].gather(-1, order.unsqueeze(2).expand(-1, -1, spins.shape[2], -1))
        system = self._covariance(theirs, theirs, present) * here.unsqueeze(-1) * here.unsqueeze(-2)
        system = system + torch.diag_embed(self.noise * here + 1 - here)
        right = left[:, :, places].gather(-1, order.expand(len(left), -1, -1, -1)).float() * here
        factor = torch.linalg.cholesky(system)
        solved = torch.cholesky_solve(right.movedim(0, -1), factor).movedim(-1, 0) * here
        between = self._covariance(spins[..., slice(*at)], theirs, present)
        prediction = (between @ solved.movedim(0, -1)).movedim(-1, 0)
        mean = (self._means(theirs, present) * solved).sum(-1, keepdim=True)
        return prediction.double(), mean.double()

    def _covariance(self, a: Tensor, b: Tensor, present: Tensor) -> Float32[Tensor, "items length rows others"]:
        all_of_it = (self.strengths.unsqueeze(-1) * present).sum(2).unsqueeze(-1)
        alike = (a * self.strengths.unsqueeze(-1)).transpose(-1, -2) @ b
        return torch.exp((alike - all_of_it) / 2) + self.constant

    def _means(self, spins: Tensor, present: Tensor) -> Float32[Tensor, "items length rows"]:
        nodes, weights = _legendre(len(self.strengths) // 2 + 1)
        e = torch.exp(-self.strengths.double())
        masked, visible = (torch.log(u + (1 - u) * e) for u in (nodes.unsqueeze(-1), 1 - nodes.unsqueeze(-1)))
        known = torch.einsum("gd,abdn->abng", ((masked - visible) / 2).float(), spins)
        rest = torch.einsum("gd,abdo->abog", ((masked + visible) / 2).float(), present)
        return torch.exp(known + rest) @ weights.float() + self.constant


@functools.lru_cache(maxsize=16)
def _legendre(count: int) -> tuple[Float64[Tensor, " nodes"], Float64[Tensor, " nodes"]]:
    """Gauss-Legendre nodes and weights on [0, 1]."""
    places, weights = (torch.from_numpy(part) for part in np.polynomial.legendre.leggauss(count))
    return (places + 1) / 2, weights / 2


def fitted_betas(
    weight: Values, surprisal: Values, beside: Values, *, folds: list[tuple[int, int]]
) -> Float64[Tensor, "items rows"]:
    """The slope of surprisals on those of a surrogate at the same positions, for every row from other folds.

    0 where there are no other folds.
    """
    sums = [_slope_sums(weight[..., a:b], surprisal[..., a:b], beside[..., a:b]) for a, b in folds]
    total = torch.stack(sums).sum(0) if sums else torch.zeros(5, *weight.shape[:2], dtype=torch.float64)
    behind = (folds[-1][1] if folds else 0, weight.shape[-1])
    known = [*((end - start, total - mine) for (start, end), mine in zip(folds, sums, strict=True))]
    known.append((behind[1] - behind[0], total))
    return torch.cat([_slope(one).unsqueeze(-1).expand(-1, count) for count, one in known], dim=-1)


def _slope_sums(weight: Values, surprisal: Values, beside: Values) -> Float64[Tensor, "five items length"]:
    products = (weight, weight * surprisal, weight * beside, weight * surprisal * beside, weight * beside**2)
    return torch.stack([product.sum(-1) for product in products])


def _slope(sums: Float64[Tensor, "five items length"]) -> Float64[Tensor, " items"]:
    """A share of the slope of entries around the mean of their position, from 0 to 1, towards 0 if they hardly vary."""
    weight, f, h, fh, hh = sums
    each = weight.clamp(min=1e-9)
    slope = (fh - f * h / each).sum(-1) / ((hh - h**2 / each).sum(-1) + 0.01 * each.sum(-1))
    return SHARE * slope.clamp(0.0, 1.0)
