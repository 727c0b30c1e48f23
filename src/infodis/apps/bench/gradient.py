"""How well a few masks tell the gradient of a preference loss: `infodis bench gradient`.

Targets are short, or lie in short blocks of a block diffusion model. So all masks can be asked about once: a row of a
plan contributes weight x (sum of its surprisals), and the gradient of the DPO loss on any masks is a combination of one
gradient vector a mask. What is kept of those are their inner products. With them the exact gradient is known, and
thousands of runs of every estimator cost next to nothing. Inner products are those of vectors that random signs fold
into `FOLDED` numbers: unbiased, and the same for all estimators.
"""

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from infodis.apps.bench.peers import CoupledWeights, FullMask, GaussNodes
from infodis.apps.bench.problems import ENDINGS
from infodis.auto import in_blocks
from infodis.blocks import blocks_of
from infodis.design import (
    Dealt,
    Enumerate,
    MaskDesign,
    Pairs,
    StratifiedCount,
    Tiled,
    TimeIntegral,
    UniformCount,
    key_count,
)
from infodis.errors import InputError
from infodis.gradients import log_likelihood
from infodis.item import Item
from infodis.models.loading import load
from infodis.models.model import Model
from infodis.oracle import Table
from infodis.plan import MaskPlan, PlanSettings, draw_plan
from infodis.result import Measured
from infodis.rng import Name, stream, uniforms
from infodis.train.objectives import dpo_loss

Pair = tuple[Item, Item]
"""Chosen, rejected."""

PEERS: dict[str, MaskDesign] = {
    "VRPO (TimeIntegral)": TimeIntegral(),
    "ESPO (Pairs)": Pairs(),
    "SDMC / GDPO": GaussNodes(),
    "d1": FullMask(),
    "DiffuCoder": CoupledWeights(),
}
"""What other projects draw, over the whole target."""

OURS: dict[str, MaskDesign] = {
    "TimeIntegral": TimeIntegral(),
    "Pairs": Pairs(),
    "UniformCount": UniformCount(),
    "StratifiedCount": StratifiedCount(),
    "Tiled": Tiled(),
    "Dealt, k^-1/2": Dealt(slope=0.0, power=0.5),
    "Dealt, uniform": Dealt(slope=0.0),
    "Dealt": Dealt(),
}
"""As `draw_plan` draws them: in every block, if the model has blocks."""

BASELINE = "VRPO (TimeIntegral)"

FOLDED = 8192
"""Numbers that are kept of a gradient."""
RESAMPLES = 1000
EXACT = 1e-20
"""Errors below this, relative to the gradient, are rounding."""
LONGEST_PART, LONGEST_TARGET = 12, 62
"""Tokens whose masks are all listed; bits of a number."""


@dataclasses.dataclass(frozen=True)
class GradientResult:
    """The error of one estimator's gradients at one number of draws, over pairs and runs.

    Errors are squared, summed over pairs, and divided by the squared lengths of the exact gradients. Standard errors
    are by the bootstrap over pairs.
    """

    model: str
    estimator: str
    draws: int
    passes: float
    """Forward passes that a sequence takes on average: equal masks share one, empty ones take none."""
    pairs: int
    runs: int
    error: float
    error_se: float
    bias: float
    """The part of the error that would be left if plans of this size were averaged for ever."""
    bias_se: float
    variance: float
    below: float | None
    """How many times the error lies below VRPO's at the same number of draws; None where it is exact."""
    below_se: float | None


class GradientProblem(NamedTuple):
    """A policy that has moved a little from its reference, and pairs."""

    name: str
    policy: Model
    reference: Model
    pairs: Sequence[Pair]


def problem(
    name: str, pairs: Sequence[Pair] | None = None, *, count: int = 32, target: int | None = None
) -> GradientProblem:
    """A shipped model after a few steps of preference training on its pairs."""
    policy, reference = load(name, device="cpu", trainable=True), load(name, device="cpu")
    if pairs is None:
        tokens = (8 if blocks_of(policy) is None else 16) if target is None else target
        pairs = dna_pairs(count) if name.startswith("dna") else text_pairs(policy, count, target=tokens)
    _train(policy, reference, pairs)
    return GradientProblem(name, policy, reference, pairs)


def text_pairs(model: Model, count: int, *, prompt: int = 16, target: int = 8) -> list[Pair]:
    """Beginnings of sentences; chosen is how they go on, rejected how another one does."""
    _check_count(count, len(ENDINGS))
    rows, given = [model.encode(text)[: prompt + target] for text in ENDINGS[:count]], range(prompt)
    return [
        (Item.read(row, context=given), Item.read(torch.cat([row[:prompt], other[prompt:]]), context=given))
        for row, other in zip(rows, rows[1:] + rows[:1], strict=True)
    ]


def dna_pairs(count: int) -> list[Pair]:
    """Sequences of the paper's list, which dna-tiny has learned, two by two."""
    rows = [Item.read(row) for row in Table.dna(seed=0).sequences]
    _check_count(count, len(rows) // 2)
    return list(zip(rows[0 : 2 * count : 2], rows[1 : 2 * count : 2], strict=True))


def _check_count(count: int, most: int) -> None:
    if count > most:
        raise InputError(f"There are {most} pairs of this kind, got a request for {count}. Ask for {most} or fewer.")


def _train(policy: Model, reference: Model, pairs: Sequence[Pair], *, rate: float = 3e-4, batch: int = 8) -> None:
    """Once through all pairs, so that margins are no longer zero."""
    optimizer = torch.optim.Adam(policy.network.parameters(), lr=rate)
    for start in range(0, len(pairs), batch):
        plan = draw_plan(policy, [item for pair in pairs[start : start + batch] for item in pair], step=start)
        with torch.no_grad():
            reference_log_p = log_likelihood(reference, plan)
        optimizer.zero_grad()
        dpo_loss(log_likelihood(policy, plan), reference_log_p).backward()
        optimizer.step()


class TargetMasks(NamedTuple):
    """All masks of a target: its length, and the sizes of the pieces that its masks decompose into.

    A model without blocks has one piece. In a block diffusion model what a mask adds is a sum over blocks. Masks of a
    piece are numbered by their bits; those of the second piece follow those of the first.
    """

    target: int
    parts: tuple[int, ...]

    @staticmethod
    def of(model: Model, item: Item) -> "TargetMasks":
        blocks, target = blocks_of(model), item.target.numel()
        parts = (target,) if blocks is None else blocks.sizes(item.target)
        if max(parts) > LONGEST_PART or target > LONGEST_TARGET:
            raise InputError(
                f"The exact gradient is found from all masks of a target, or of its blocks: these must have at most "
                f"{LONGEST_PART} tokens, and all blocks {LONGEST_TARGET}; got {max(parts)} and {target}. Take a "
                "shorter target."
            )
        return TargetMasks(target, parts)

    def masks(self) -> Bool[Tensor, "masks target"]:
        """All masks of all pieces, in the order of their numbers, with the empty one of every piece."""
        pieces = [(torch.arange(2**size).unsqueeze(1) >> torch.arange(size)) & 1 == 1 for size in self.parts]
        return torch.block_diag(*[piece.long() for piece in pieces]).bool()

    def exact(self) -> Float64[Tensor, "1 masks"]:
        """The weights of an exact `nll` on all masks."""
        pieces = []
        for size in self.parts:
            blank = torch.zeros(1, 2**size - 1, size, dtype=torch.float64)
            pieces += [torch.zeros(1, 1, dtype=torch.float64), Enumerate().masks(blank[..., 0], blank)[1].amax(-1)]
        return torch.cat(pieces, dim=1)

    def draw(self, design: MaskDesign, draws: int, runs: int, *, generator: torch.Generator) -> "DrawnWeights":
        """Total weights of many plans on every mask, drawn as `draw_plan` would draw them."""
        layout, keys = design.fewest_replicates(self.target, draws), key_count(design, self.target)
        drawn = uniforms(runs * layout.replicates, 1 + keys, layout.rows, generator=generator)
        found = design.masks(drawn[:, 0], drawn[:, 1:].transpose(1, 2))
        masked, weight = (part.unflatten(0, (runs, -1)).flatten(1, 2) for part in found)
        pieces = zip(self.parts, masked.split(self.parts, -1), weight.split(self.parts, -1), strict=True)
        totals = [_totals(size, inside, its / layout.replicates) for size, inside, its in pieces]
        ordered = torch.nn.functional.pad(_numbers(masked).sort(1).values, (1, 0))
        passes = float((ordered.diff(dim=1) > 0).sum(1).double().mean())
        return DrawnWeights(torch.cat(totals, dim=1), passes)


class DrawnWeights(NamedTuple):
    """Of many plans of a sequence."""

    weights: Float64[Tensor, "runs masks"]
    passes: float
    """Distinct masks of a plan, on average."""


def _totals(
    size: int, masked: Bool[Tensor, "runs rows size"], weight: Float64[Tensor, "runs rows size"]
) -> Float64[Tensor, "runs masks"]:
    """Add up the weights of equal masks of a piece. All masked positions of a row must have the same weight there."""
    each = weight.amax(-1)
    assert torch.equal(weight, masked * each.unsqueeze(-1))
    return torch.zeros(len(masked), 2**size, dtype=torch.float64).scatter_add(1, _numbers(masked), each)


def _numbers(masked: Bool[Tensor, "*rows size"]) -> Int[Tensor, "*rows"]:
    return (masked * 2 ** torch.arange(masked.shape[-1])).sum(-1)


@dataclasses.dataclass(frozen=True, eq=False)
class PairTable:
    """All that the gradient of a pair's loss can be made of: masks of chosen, then those of rejected.

    A mask of weight 1 adds `margin` to the margin of the pair, and a gradient to that of the loss, up to a factor that
    depends on the margin of the pair; `products` are the inner products of these gradients.
    """

    sides: tuple[TargetMasks, TargetMasks]
    margin: Float64[Tensor, " masks"]
    products: Float64[Tensor, "masks masks"]

    @staticmethod
    def of(policy: Model, reference: Model, pair: Pair) -> "PairTable":
        margins, gradients, sides = [], [], [TargetMasks.of(policy, item) for item in pair]
        for sign, item, side in zip((1, -1), pair, sides, strict=True):
            plan = _mask_by_mask(policy, item, side.masks())
            with torch.no_grad():
                moved = log_likelihood(policy, plan) - log_likelihood(reference, plan)
            margins.append(sign * moved.double())
            gradients.append(-sign * mask_gradients(policy, plan).double())
        vectors = torch.cat(gradients)
        return PairTable((sides[0], sides[1]), torch.cat(margins), vectors @ vectors.T)

    def exact(self) -> Float64[Tensor, "1 masks"]:
        return torch.cat([side.exact() for side in self.sides], dim=1)

    def gradients(self, weights: Float64[Tensor, "runs masks"], beta: float) -> Float64[Tensor, "runs masks"]:
        """Of the DPO loss with these weights on masks: as combinations of the gradients of masks."""
        margin = weights @ self.margin
        return beta * torch.sigmoid(-beta * margin).unsqueeze(1) * weights

    def squares(self, combinations: Float64[Tensor, "runs masks"]) -> Float64[Tensor, " runs"]:
        """Squared lengths of combinations of gradients."""
        return ((combinations @ self.products) * combinations).sum(1)


def _mask_by_mask(model: Model, item: Item, masked: Bool[Tensor, "masks target"]) -> MaskPlan:
    """A plan whose log-likelihoods are minus the sum of the surprisals under one mask each."""
    rows = torch.zeros(len(masked), item.length, dtype=torch.bool).index_copy(1, item.target, masked)
    settings = PlanSettings(model.vocab_size, model.mask_token, model.blocks, "mask by mask", seed=0, step=0)
    each = torch.arange(len(masked))
    return MaskPlan((item,) * len(masked), each, torch.zeros_like(each), rows, rows.double(), settings)


def mask_gradients(model: Model, plan: MaskPlan) -> Float[Tensor, "masks folded"]:
    """The gradient of the log-likelihood on every mask, folded by random signs. Nothing masked: zero."""
    parameters = list(model.network.parameters())
    folding = Folding.of([parameter.numel() for parameter in parameters])
    found = torch.zeros(len(plan), FOLDED)
    for number in plan.masked.any(1).nonzero().squeeze(1).tolist():
        one = _mask_by_mask(model, plan.items[number], plan.masked[number, plan.items[number].target].unsqueeze(0))
        found[number] = folding.fold(
            torch.autograd.grad(log_likelihood(model, one).sum(), parameters, allow_unused=True)
        )
    return found


@dataclasses.dataclass(frozen=True, eq=False)
class Folding:
    """Entry j of a gradient goes to place j modulo `FOLDED`, with a random sign: exact if there are no more entries."""

    signs: list[Tensor]
    """Of every parameter."""

    @staticmethod
    def of(sizes: Sequence[int]) -> "Folding":
        generator = stream(0, "folding")
        return Folding([2.0 * torch.randint(2, (size,), generator=generator) - 1 for size in sizes])

    def fold(self, gradients: Sequence[Tensor | None]) -> Float[Tensor, " folded"]:
        found, before = torch.zeros(FOLDED), 0
        for signs, gradient in zip(self.signs, gradients, strict=True):
            if gradient is not None:
                signed = gradient.flatten() * signs
                whole = len(signed) // FOLDED * FOLDED
                part = signed[:whole].view(-1, FOLDED).sum(0)
                part[: len(signed) - whole] += signed[whole:]
                found += part.roll(before % FOLDED)
            before += len(signs)
        return found


@dataclasses.dataclass(frozen=True, eq=False)
class PairErrors:
    """Squared errors of one estimator's gradients, for every pair."""

    square: Float64[Tensor, " pairs"]
    bias: Float64[Tensor, " pairs"]
    length: Float64[Tensor, " pairs"]
    """Of the exact gradients, squared."""
    passes: float


class Study(NamedTuple):
    """What errors are measured with: tables of pairs, runs on each, and the loss."""

    tables: Sequence[PairTable]
    runs: int
    beta: float = 0.1
    seed: int = 0

    def errors(self, design: MaskDesign, draws: int, *, whole: bool = False) -> PairErrors:
        """Of a design: drawn as `draw_plan` would, or over the `whole` target, whatever blocks there are.

        What the mean over runs is off beyond its own noise is bias.
        """
        found, passes = [], []
        for number, table in enumerate(self.tables):
            exact = table.gradients(table.exact(), self.beta)
            sides = [self._draw(side, design, draws, whole, number, n) for n, side in enumerate(table.sides)]
            off = table.gradients(torch.cat([side.weights for side in sides], dim=1), self.beta) - exact
            middle = off.mean(0, keepdim=True)
            variance = table.squares(off - middle).sum() / (self.runs - 1)
            bias = table.squares(middle)[0] - variance / self.runs
            found.append(torch.stack([bias + variance, bias, table.squares(exact)[0]]))
            passes += [side.passes for side in sides]
        square, bias, length = torch.stack(found).unbind(1)
        return PairErrors(square, bias, length, sum(passes) / len(passes))

    def _draw(self, side: TargetMasks, design: MaskDesign, draws: int, whole: bool, *path: Name) -> DrawnWeights:
        blocks = () if whole or len(side.parts) == 1 else side.parts
        generator = stream(self.seed, "bench gradient", *path)
        return side.draw(in_blocks(design, blocks), draws, self.runs, generator=generator)


def gradient_errors(
    problems: Iterable[GradientProblem], *, draws: Sequence[int], runs: int
) -> Iterator[GradientResult]:
    """Every estimator at every number of draws that it can make something of."""
    for given in problems:
        study = Study([PairTable.of(given.policy, given.reference, pair) for pair in given.pairs], runs)
        alike = PEERS.values() if blocks_of(given.policy) is None else ()
        estimators = {**PEERS, **{name: design for name, design in OURS.items() if design not in alike}}
        for count in draws:
            baseline = study.errors(PEERS[BASELINE], count, whole=True)
            for name, design in estimators.items():
                with contextlib.suppress(InputError):  # fewer draws than it takes
                    found = baseline if name == BASELINE else study.errors(design, count, whole=name in PEERS)
                    yield _result((given.name, name, count, runs), found, baseline)


def _result(named: tuple[str, str, int, int], found: PairErrors, baseline: PairErrors) -> GradientResult:
    model, estimator, draws, runs = named
    error = bootstrap_ratio(found.square, found.length)
    bias = bootstrap_ratio(found.bias, found.length)
    below = None if error.value < EXACT else bootstrap_ratio(baseline.square, found.square)
    return GradientResult(
        model=model,
        estimator=estimator,
        draws=draws,
        passes=found.passes,
        pairs=len(found.square),
        runs=runs,
        error=error.value,
        error_se=error.standard_error,
        bias=bias.value,
        bias_se=bias.standard_error,
        variance=error.value - bias.value,
        below=None if below is None else below.value,
        below_se=None if below is None else below.standard_error,
    )


def bootstrap_ratio(above: Float64[Tensor, " pairs"], below: Float64[Tensor, " pairs"]) -> Measured:
    """A ratio of sums over pairs, its standard error by drawing pairs again."""
    drawn = torch.randint(len(above), (RESAMPLES, len(above)), generator=stream(0, "bootstrap"))
    ratios = above[drawn].sum(1) / below[drawn].sum(1)
    return Measured(float(above.sum() / below.sum()), float(ratios.std()))
