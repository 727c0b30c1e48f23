"""Log-likelihood ratios with shared randomness.

log p(y) - log p(x) is a difference of two `nll`s. Each side alone is unbiased, so the difference is unbiased however
the two are drawn; drawn from the same uniform numbers, their errors go up and down together and cancel. The numbers are
shared, not the masks, so the lengths need not be equal: the same level gives each side the same share of masked
positions, the same keys decide which [eq:ratio].
"""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import SupportsIndex

import torch
from torch import Tensor

from infodis import batching
from infodis.batching import Batching
from infodis.control import Control, Neighbours
from infodis.design import Auto, MaskDesign
from infodis.errors import InputError
from infodis.estimate import (
    Estimate,
    Replicated,
    Request,
    Run,
    Stopped,
    Tokens,
    check_seed,
    estimate_items,
    is_precise,
    read_items,
)
from infodis.item import Item, Positions
from infodis.predictor import Predictor
from infodis.rng import key


@dataclasses.dataclass(frozen=True, eq=False)
class Ratio(Replicated):
    """log p(y) - log p(x) in nats, with the `nll` of either side: `numerator` is y's, `denominator` is x's."""

    numerator: Estimate
    denominator: Estimate
    coupled: bool

    def __repr__(self) -> str:
        return (
            f"Ratio({self.quantity} = {self.value:.4f} nats, standard_error={self.standard_error:.2g}, "
            f"replicates={self.replicates.numel()}, evaluations={self.evaluations}, coupled={self.coupled})"
        )


def log_ratio(
    predictor: Predictor,
    y: Tokens,
    x: Iterable[int] | Tensor | None = None,
    *,
    reference: Predictor | None = None,
    target: Positions | None = None,
    context: Positions | None = None,
    evaluations: int | None = None,
    standard_error: float | None = None,
    design: MaskDesign = Auto(),
    control: Control | None = Neighbours(),
    coupled: bool = True,
    seed: SupportsIndex = 0,
    batch_size: int | None = None,
) -> "Ratio | list[Ratio]":
    """Log p(y) - log p(x), or log p(y) under `predictor` minus log p(y) under `reference`, with its standard error.

    Args:
        y: one sequence, or a list of candidates (then a list of ratios comes back), of any lengths.
        x: the sequence to compare with; leave it out if you give a `reference`.
        reference: another predictor, to compare with on the same tokens.
        target, context: positions, the same for every sequence; by default everything is target.
        evaluations, standard_error, design, control, seed, batch_size: as for `nll`, for each side.
        coupled: share the randomness. `False` draws the two sides independently, for comparison.

    >>> from infodis import oracle
    >>> chain = oracle.MarkovChain.random(order=1, vocab_size=3)
    >>> ratio = log_ratio(chain, [0, 1, 2, 0, 1], [2, 2, 0])
    >>> abs(ratio.value - (chain.log_prob([0, 1, 2, 0, 1]) - chain.log_prob([2, 2, 0]))) < 1e-9
    True
    """
    if (x is None) == (reference is None):
        raise InputError(
            "Compare y with another sequence x, or with a reference predictor on the same tokens: give one."
        )
    request = Request(design, control, evaluations, standard_error, batch_size)
    numerators, single = read_items(y, target=target, context=context)
    if x is None:
        denominators = numerators
    else:
        base, _ = read_items(x, target=target, context=context)
        if len(base) != 1:
            raise InputError(f"x must be one sequence, got {len(base)}. For many candidates give a list as y.")
        denominators = base * len(numerators)
    other = predictor if reference is None else reference
    for model, items in ((predictor, numerators), (other, denominators)):
        for item in items:
            item.check_vocabulary(vocab_size=model.vocab_size, mask_token=model.mask_token)
    known: dict[tuple, Estimate] = {}
    pairs = zip(numerators, denominators, strict=True)
    number = check_seed(seed)
    found = [Pair(predictor, above, other, below, request, coupled, number, known).ratio() for above, below in pairs]
    return found[0] if single else found


@dataclasses.dataclass(frozen=True, eq=False)
class Pair:
    """Two sides to compare. Randomness is named after the lower one, so that all candidates share it."""

    predictor: Predictor
    above: Item
    other: Predictor
    below: Item
    request: Request
    coupled: bool
    seed: int
    known: dict[tuple, Estimate] = dataclasses.field(default_factory=dict)
    """Estimates of the lower side: candidates that are compared with the same sequence share them."""

    def ratio(self) -> Ratio:
        design, rows, spent = self._settle()
        first = self._round(design, rows, 0)
        rounds = [first]
        while (stopped := self._stopped(rounds, spent)) is None:
            rounds.append(self._round(design, rows, len(rounds)))
        numerator, denominator = (_pool([pair[side] for pair in rounds]) for side in (0, 1))
        return Ratio(
            "log_ratio",
            _differences(rounds),
            spent + numerator.evaluations + denominator.evaluations,
            self.seed,
            stopped,
            numerator,
            denominator,
            self.coupled,
        )

    def _settle(self) -> tuple[MaskDesign, int, int]:
        """One design for both sides, as a pilot on the lower side finds it; the rows left, the rows spent."""
        request = self.request
        begun = Run.begin(self.other, [self.below], request, seed=self.seed, names=[self.below.key])
        run = batching.run(begun, Batching(request.batch_size))
        design, rows = run.settled[0]
        sizes = [item.target.numel() for item in (self.above, self.below)]
        if isinstance(request.design, Auto) and not _fits(design, max(sizes), rows):
            design = request.design.tiled
        return design, rows, int(run.seen.cost[0])

    def _round(self, design: MaskDesign, rows: int, number: int) -> tuple[Estimate, Estimate]:
        sizes = {item.target.numel() for item in (self.above, self.below)}
        layouts = [design.layout(size, rows) for size in sizes]
        replicates = min((layout.replicates for layout in layouts if layout.replicates > 1), default=None)
        request = dataclasses.replace(
            self.request, design=design, evaluations=rows, standard_error=None, replicates=replicates
        )
        shared = key(self.below.key, "ratio", number)
        name = (self.below.key, request, number)
        if name not in self.known:
            self.known[name] = estimate_items(self.other, [self.below], request, seed=self.seed, names=[shared])[0]
        apart = shared if self.coupled else key(shared, "apart")
        above = estimate_items(self.predictor, [self.above], request, seed=self.seed, names=[apart])[0]
        below = self.known[name]
        if above.impossible and below.impossible:
            raise InputError("Both sides have probability zero, so their ratio is not defined.")
        return above, below

    def _stopped(self, rounds: list[tuple[Estimate, Estimate]], spent: int) -> Stopped | None:
        asked = self.request.standard_error
        found = _differences(rounds)
        if found.numel() == 1:
            return "exact"
        if asked is None:
            return "budget spent"
        if is_precise(found, asked):
            return "standard error reached"
        used = spent + sum(max(above.evaluations, below.evaluations) for above, below in rounds)
        return "cap reached" if used * (len(rounds) + 1) / len(rounds) > self.request.rows else None


def _fits(design: MaskDesign, length: int, rows: int) -> bool:
    try:
        design.layout(length, rows)
    except InputError:
        return False
    return True


def _differences(rounds: Sequence[tuple[Estimate, Estimate]]) -> Tensor:
    """nll(x) - nll(y), replicate by replicate; an exact side counts for every replicate of the other."""
    parts = []
    for above, below in rounds:
        counts = [side.replicates.numel() for side in (above, below) if side.stopped != "exact"]
        count = min(counts, default=1)
        parts.append(below.replicates[:count].expand(count) - above.replicates[:count].expand(count))
    return torch.cat(parts)


def _pool(estimates: list[Estimate]) -> Estimate:
    """Rounds of one side as one estimate."""
    weights = torch.tensor([float(e.replicates.numel()) for e in estimates], dtype=torch.float64)
    credits = torch.stack([e.per_token for e in estimates])
    return dataclasses.replace(
        estimates[0],
        replicates=torch.cat([e.replicates for e in estimates]),
        evaluations=sum(e.evaluations for e in estimates),
        per_token=(weights / weights.sum()) @ credits if len(estimates) > 1 else credits[0],
    )
