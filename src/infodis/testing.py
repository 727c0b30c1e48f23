"""Laws as public API: check a mask design, a control or a predictor of your own against exact answers.

    from infodis.testing import check_control, check_design, check_predictor
    check_design(MyDesign())                 # certificate, unbiasedness, coverage; raises AssertionError, or reports
    check_control(MyControl())               # features with mean zero, predictions with the mean that is stated
    check_predictor(my_predictor, tokens)    # normalised, deterministic, independent of batch composition

`Tabulated` holds everything that a predictor says about one short target, and so the exact `nll`; runs on it cost next
to nothing. `TabulatedBlocks` does so for a block diffusion model, at any length. `Perturbed` makes conditionals
disagree, as those of a learned network do; `Blockwise` makes a block diffusion model of any predictor.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Iterator

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float64
from torch import Tensor

from infodis.blocks import BlockLayout, blocks_of
from infodis.control import Regression, neighbour_maps, predict, surroundings
from infodis.design import Enumerate, Layout, MaskDesign, numbers
from infodis.errors import InputError
from infodis.estimate import Request, estimate_items
from infodis.evaluate import Batching, ItemBatch, run
from infodis.item import Item, as_sequence
from infodis.oracle import MarkovChain
from infodis.predictor import (
    LogConditionals,
    Masks,
    Predictor,
    RowPredictor,
    Rows,
    Surprisals,
    Tokens,
    Wrapper,
    check_log_conditionals,
)
from infodis.result import Measured
from infodis.rng import key, stream

LARGEST_Z = 4.0
"""Standard errors that a mean may lie off: a correct design fails one check in 16,000."""


@dataclasses.dataclass(frozen=True)
class Perturbed(Wrapper):
    """`predictor` with normal noise of standard deviation `scale` on every logit, a fixed function of what is visible.

    Its conditionals no longer agree with each other, as those of a learned network do not. A `power` above 1 raises the
    size of every number to it: long tails.
    """

    scale: float = 0.1
    seed: int = 0
    power: int = 1

    def log_conditionals(self, tokens: Tokens) -> LogConditionals:
        clean = self.predictor.log_conditionals(tokens)
        return torch.log_softmax(clean + self.scale * self._noise(tokens), dim=-1)

    def _noise(self, tokens: Tokens) -> Float64[Tensor, "rows length vocab"]:
        """Hash (row, position, token) to a normal number: integers wrap around, as the mixing wants."""
        length = tokens.shape[1]
        multipliers = torch.randint(2**62, (length,), generator=stream(self.seed, "Perturbed", length)) * 2 + 1
        row = ((tokens + 1) * multipliers).sum(-1)
        cell = torch.arange(length * self.vocab_size).view(length, self.vocab_size) + 1
        mixed = _mix(row[:, None, None] + cell * 0x1E3779B97F4A7C15)
        uniform = ((mixed >> 11) & (2**53 - 1)).double() / 2**53 + 2.0**-54
        normal = math.sqrt(2) * torch.erfinv(2 * uniform - 1)
        return normal * normal.abs() ** (self.power - 1)


@dataclasses.dataclass(frozen=True)
class Blockwise(Wrapper):
    """`predictor` as a block diffusion model: it sees the blocks before a token's own, and what is visible inside that.

    Everything behind a block stays masked while it is asked about. An oracle remains exact.
    """

    blocks: BlockLayout = BlockLayout(4)
    pads: bool = False
    tokens_at_once: int = 2**14

    def __post_init__(self) -> None:
        layout = self.blocks
        super().__post_init__()
        object.__setattr__(self, "blocks", layout)

    def surprisals(self, rows: Rows) -> Float64[Tensor, " wanted"]:
        numbers = self.blocks.numbers(rows.tokens.shape[1], rows.starts)
        found = torch.zeros(rows.tokens.shape, dtype=torch.float64)
        for number in numbers[rows.wanted].unique().tolist():
            hidden = torch.where(numbers == number, rows.hidden, numbers > number)
            surprisal = self.predictor.surprisal(rows.tokens, hidden)
            found = torch.where(numbers == number, surprisal.double(), found)
        return found[rows.wanted]

    def certainties(self, rows: Rows, certainty: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        numbers = self.blocks.numbers(rows.tokens.shape[1], rows.starts)
        found = torch.zeros(rows.tokens.shape, dtype=torch.float64)
        for number in numbers[rows.wanted].unique().tolist():
            hidden = torch.where(numbers == number, rows.hidden, numbers > number)
            answer = self.predictor.log_conditionals(torch.where(hidden, self.mask_token, rows.tokens))
            found = torch.where(numbers == number, certainty(answer).double(), found)
        return self.surprisals(rows), found[rows.wanted]

    def surprisal(self, tokens: Tokens, masked: Masks) -> Surprisals:
        lengths, starts = torch.full((len(tokens),), tokens.shape[1]), torch.zeros(len(tokens), dtype=torch.int64)
        found = torch.zeros(tokens.shape, dtype=torch.float64)
        found[masked] = self.surprisals(Rows(tokens, masked, masked, lengths, starts))
        return found

    def log_conditionals(self, tokens: Tokens) -> LogConditionals:
        """Of rows whose blocks are clean up to the first that holds a mask; what comes behind that one is not seen."""
        numbers = self.blocks.numbers(tokens.shape[1], torch.zeros(len(tokens), dtype=torch.int64))
        first = torch.where(tokens == self.mask_token, numbers, int(numbers.max()) + 1).amin(1, keepdim=True)
        return self.predictor.log_conditionals(torch.where(numbers > first, self.mask_token, tokens))


def _mix(values: Tensor) -> Tensor:
    """The finaliser of splitmix64, on signed 64-bit integers."""
    for shift, multiplier in ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15)):
        values = (values ^ ((values >> shift) & (2 ** (64 - shift) - 1))) * multiplier
    return values ^ ((values >> 31) & (2**33 - 1))


@dataclasses.dataclass(frozen=True, eq=False)
class Tabulated(Predictor):
    """Everything a predictor says about one item: surprisals for all masks of its target, and the exact `nll`."""

    item: Item
    vocab_size: int
    mask_token: int
    table: Float64[Tensor, "masks target"]

    @staticmethod
    def of(predictor: Predictor, item: Item, *, batch_size: int = 1024) -> "Tabulated":
        target = item.target.numel()
        batch = ItemBatch.of(predictor, [item])
        masked, _ = _enumeration(target)
        answer = run(batch.surprisals(torch.zeros(len(masked), dtype=torch.int64), masked), Batching(batch_size))
        table = torch.cat([torch.zeros(1, target, dtype=torch.float64), answer])
        return Tabulated(item, predictor.vocab_size, predictor.mask_token, table)

    @property
    def exact(self) -> float:
        """The `nll` by enumeration."""
        return float((_enumeration(self.item.target.numel())[1] * self.table[1:]).sum())

    def log_conditionals(self, tokens: Tokens) -> LogConditionals:
        raise InputError("A table of surprisals knows the data's tokens only, not whole distributions.")

    def surprisal(self, tokens: Tokens, masked: Masks) -> Surprisals:
        inside = masked[:, self.item.target]
        code = (inside * 2 ** torch.arange(inside.shape[1])).sum(-1)
        return torch.zeros(masked.shape, dtype=torch.float64).index_copy(1, self.item.target, self.table[code])


@dataclasses.dataclass(frozen=True, eq=False)
class TabulatedBlocks(RowPredictor):
    """Everything a block diffusion model says about one item: surprisals for all masks of every block of its target."""

    item: Item
    vocab_size: int
    mask_token: int
    blocks: BlockLayout
    tables: tuple[Float64[Tensor, "_ _"], ...]
    pads: bool = False
    tokens_at_once: int = 2**16

    @staticmethod
    def of(predictor: Predictor, item: Item) -> "TabulatedBlocks":
        layout = blocks_of(predictor)
        if layout is None:
            raise InputError("A table of blocks needs a model of blocks, got a predictor that sees whole rows.")
        sizes = layout.sizes(item.target)
        batch, tables = ItemBatch.of(predictor, [item]), []
        for stop, size in zip(itertools.accumulate(sizes), sizes, strict=True):
            masked = torch.zeros(2**size - 1, item.target.numel(), dtype=torch.bool)
            masked[:, stop - size : stop] = _enumeration(size)[0]
            answer = run(batch.surprisals(torch.zeros(len(masked), dtype=torch.int64), masked), Batching())
            tables.append(F.pad(answer[:, stop - size : stop], (0, 0, 1, 0)))
        return TabulatedBlocks(item, predictor.vocab_size, predictor.mask_token, layout, tuple(tables))

    @property
    def exact(self) -> float:
        """The `nll` by enumeration in every block."""
        return sum(float((_enumeration(table.shape[1])[1] * table[1:]).sum()) for table in self.tables)

    def log_conditionals(self, tokens: Tokens) -> LogConditionals:
        raise InputError("A table of surprisals knows the data's tokens only, not whole distributions.")

    def surprisals(self, rows: Rows) -> Float64[Tensor, " wanted"]:
        found = torch.zeros(rows.tokens.shape, dtype=torch.float64)
        blocks = self.item.target.split([table.shape[1] for table in self.tables])
        for block, table in zip(blocks, self.tables, strict=True):
            code = (rows.hidden[:, block] * 2 ** torch.arange(len(block))).sum(-1)
            found[:, block] = table[code]
        return found[rows.wanted]


def _enumeration(target: int) -> tuple[Tensor, Tensor]:
    """All masks of a target and their exact weights."""
    blank = torch.zeros(1, 1, 1, dtype=torch.float64).expand(1, 2**target - 1, target)
    masked, weight = Enumerate().masks(blank[..., 0], blank)
    return masked[0], weight[0]


@dataclasses.dataclass(frozen=True)
class DesignReport:
    """What `check_design` measured."""

    certificate_error: float | None
    """The largest relative deviation from the certificate; None where keys count by more than their rank."""
    bias: Measured
    """Of the estimate on a target with a known answer, in nats."""
    coverage: float
    """Of 95 % intervals."""


def check_design(
    design: MaskDesign,
    *,
    lengths: Iterable[int] = range(1, 6),
    rows: int = 2,
    evaluations: int = 32,
    runs: int = 400,
    least_coverage: float = 0.9,
    seed: int = 0,
) -> DesignReport:
    """Check a design: certificate by enumeration [eq:certificate], unbiasedness and coverage against an exact answer.

    Raises `AssertionError` with what failed. `rows` are those of a replicate in the certificate, where the design
    leaves that open; `evaluations`, `runs` and `least_coverage` belong to estimates of a perturbed Markov chain with
    eight target tokens.

    >>> from infodis import Tiled
    >>> check_design(Tiled(), lengths=[2, 3], runs=50).certificate_error < 1e-9
    True
    """
    fixed = {length: _replicate_rows(design, length, rows) for length in lengths}
    exact = all(_ranks_keys(design, length, its) for length, its in fixed.items())
    worst = max(certificate_error(design, length, its) for length, its in fixed.items()) if exact and fixed else None
    if worst is not None and not worst < 1e-9:
        raise AssertionError(
            f"The expected weight on every pair of mask and position must be 1 / (k C(m, k)); {design} is off by "
            f"{worst:.2%}."
        )
    errors, covered = _simulated(design, evaluations, runs, seed)
    bias, coverage = Measured.mean(errors), covered / runs
    if abs(bias.value) > LARGEST_Z * bias.standard_error + 1e-9:
        raise AssertionError(f"The estimate must be unbiased; {design} has a bias of {bias} nats in {runs} runs.")
    if coverage < least_coverage:
        raise AssertionError(
            f"95 % intervals must cover at least {least_coverage:.0%}; {design} covers {coverage:.1%}."
        )
    return DesignReport(worst, bias, coverage)


def _simulated(design: MaskDesign, evaluations: int, runs: int, seed: int) -> tuple[Float64[Tensor, " runs"], int]:
    """Errors of many runs on one table, and how many intervals hold the truth."""
    chain = MarkovChain.random(order=2, vocab_size=4, temperature=0.5, seed=seed)
    item = Item.read(chain.sample(1, length=10, generator=stream(seed, "check_design"))[0], context=range(2))
    table = Tabulated.of(Perturbed(chain, scale=0.5), item)
    names = [key(item.key, run) for run in range(runs)]
    found = estimate_items(table, [item] * runs, Request(design, None, evaluations), seed=seed, names=names)
    intervals = (estimate.interval(0.95) for estimate in found)
    covered = sum(low - 1e-9 <= table.exact <= high + 1e-9 for low, high in intervals)
    return torch.tensor([estimate.value - table.exact for estimate in found], dtype=torch.float64), covered


def certificate(length: int) -> dict[int, float]:
    """The weight that must be expected on every (mask, position) pair, by the size of the mask [eq:certificate]."""
    return {size: 1 / (size * math.comb(length, size)) for size in range(1, length + 1)}


def certificate_error(design: MaskDesign, length: int, rows: int) -> float:
    """The largest relative deviation from the certificate, by enumeration of relabellings and levels."""
    found = expected_weights(design, length, rows)
    worst = 0.0
    for size, wanted in certificate(length).items():
        for mask in itertools.combinations(range(length), size):
            code = sum(2**i for i in mask)
            worst = max(worst, float((found[code, list(mask)] / wanted - 1).abs().max()))
    return worst


def expected_weights(design: MaskDesign, length: int, rows: int, *, seed: int = 0) -> Float64[Tensor, "masks length"]:
    """The expected weight on every (mask code, position): exact over relabellings and over levels.

    A design is a function of levels and keys that commutes with relabelling positions, so for any fixed keys the mean
    over all m! relabellings is the mean over keys. Sizes are step functions of levels: the mean over levels is taken
    as the mean over the pieces on which nothing changes, found by `_level_pieces`.
    """
    relabellings = torch.tensor(list(itertools.permutations(range(length))))
    _, keys = numbers(length, Layout(1, rows), [stream(seed, "law", length)])
    relabelled = keys[0][:, relabellings].transpose(0, 1)  # relabellings, rows, length
    total = torch.zeros(2**length, length, dtype=torch.float64)
    for probability, levels in _level_pieces(design, length, rows):
        masked, weight = design.masks(levels.expand(len(relabelled), -1), relabelled)
        code = (masked * 2 ** torch.arange(length)).sum(-1).flatten()
        total.index_add_(0, code, probability * weight.flatten(0, 1) / len(relabelled))
    return total


def _replicate_rows(design: MaskDesign, length: int, rows: int) -> int:
    """The rows of a replicate: `rows`, unless the design takes the same number at every budget."""
    small, large = (design.layout(length, budget).rows for budget in (256, 512))
    return small if small == large else rows


def _ranks_keys(design: MaskDesign, length: int, rows: int) -> bool:
    """Whether only the order of keys counts: the masks stay if all keys are squared."""
    levels, keys = numbers(length, Layout(8, rows), [stream(0, "ranks", n) for n in range(8)])
    return torch.equal(design.masks(levels, keys)[0], design.masks(levels, keys**2)[0])


def _level_pieces(design: MaskDesign, length: int, rows: int) -> Iterator[tuple[float, Float64[Tensor, " rows"]]]:
    """Pairs (probability, levels): one per combination of pieces of [0, 1) on which no row's size changes."""
    grid = 5040 * 4
    middles = (torch.arange(grid, dtype=torch.float64) + 0.5) / grid
    keys = torch.linspace(0.01, 0.99, length, dtype=torch.float64).expand(grid, rows, length)
    sizes = design.masks(middles.unsqueeze(1).expand(-1, rows), keys)[0].sum(-1)
    pieces = []
    for row in range(rows):
        changes = ((sizes[1:, row] != sizes[:-1, row]).nonzero().squeeze(1) + 1).tolist()
        edges = [_edge(design, length, rows, row, float(middles[c - 1]), float(middles[c])) for c in changes]
        pieces.append([(b - a, (a + b) / 2) for a, b in itertools.pairwise([0.0, *edges, 1.0])])
    for combination in itertools.product(*pieces):
        levels = torch.tensor([level for _, level in combination], dtype=torch.float64)
        yield math.prod(probability for probability, _ in combination), levels


def _edge(design: MaskDesign, length: int, rows: int, row: int, low: float, high: float) -> float:
    """The level at which the size of one row changes, by bisection."""
    keys = torch.linspace(0.01, 0.99, length, dtype=torch.float64).expand(1, rows, length)

    def size(level: float) -> int:
        return int(design.masks(torch.full((1, rows), level, dtype=torch.float64), keys)[0][0, row].sum())

    start = size(low)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if size(middle) == start else (low, middle)
    return (low + high) / 2


def check_control(control: Regression, *, target: Iterable[int] = (0, 1, 2, 3, 5, 7)) -> None:
    """Check a control: over all masks that hold a position, every feature must have mean zero [eq:control-means], and
    what is predicted the mean that is stated, whatever it is fitted to [eq:control].

    Raises `AssertionError` with what has not. `target` are positions of a sequence; gaps are worth a try.

    >>> from infodis import Neighbours
    >>> check_control(Neighbours(radius=2))
    """
    places = torch.tensor(list(target))
    masked, weight = (part.T.unsqueeze(0) for part in _enumeration(len(places)))
    whole = (len(places),)
    maps = neighbour_maps(places.unsqueeze(0), control.offsets, whole)
    features = control.features(surroundings(masked, maps, whole))
    means = (features * weight.unsqueeze(2)).sum(-1)[0]
    if means.numel() and float(means.abs().max()) > 1e-5:
        position, feature = divmod(int(means.abs().argmax()), means.shape[1])
        raise AssertionError(
            f"Every feature must have mean zero over the masks that hold a position; feature {feature} of {control} "
            f"has {float(means[position, feature]):.3g} at position {int(places[position])}. Subtract its mean."
        )
    predicted, stated = _means_of_predictions(control, masked, weight, maps)
    if not torch.allclose(predicted, stated, rtol=1e-4, atol=1e-4):
        raise AssertionError(
            f"The mean of predictions over the masks that hold a position must be the stated one; {control} has "
            f"{[round(mean, 4) for mean in predicted.tolist()]} and states {[round(m, 4) for m in stated.tolist()]}."
        )


def _means_of_predictions(
    control: Regression, masked: Bool[Tensor, "one length masks"], weight: Tensor, maps: Tensor
) -> tuple[Float64[Tensor, " length"], Float64[Tensor, " length"]]:
    """Over all masks, of what was fitted to random surprisals at 24 of them: the mean by enumeration, and as stated."""
    generator, length = stream(0, "check_control"), masked.shape[1]
    some = torch.randint(masked.shape[2], (24,), generator=generator)
    rows = torch.cat([masked[..., some], masked], dim=-1)
    surprisal = torch.rand(rows.shape, generator=generator, dtype=torch.float64) * rows
    folds = [(0, 12), (12, 24)]
    found = predict(
        control, rows, rows.double(), surprisal.unsqueeze(0), folds=folds, maps=maps, parts=(length,)
    )  # rows behind the folds are predicted from both
    prediction, mean = (part[0, 0, :, 24:] for part in found)
    return (prediction * weight[0]).sum(-1), mean[:, 0]


def check_predictor(
    predictor: Predictor, tokens: Iterable[int] | Tensor, *, seed: int = 0, tolerance: float = 1e-4
) -> None:
    """Check that a predictor keeps its contract on some clean tokens; raises what fails, or `AssertionError`.

    Distributions at masked positions are normalised (`PredictorError` if not); the same row gives the same answer,
    alone or among others; what is hidden under a mask is not seen; `surprisal` is what `log_conditionals` says.

    >>> from infodis.oracle import Independent
    >>> check_predictor(Independent(torch.tensor([0.25, 0.75])), [1, 0, 1, 1])
    """
    clean = as_sequence(tokens)
    masked = torch.rand(8, len(clean), generator=stream(seed, "check_predictor")) < 0.5
    masked[0] = True
    rows = clean.expand(8, -1)
    hidden = torch.where(masked, predictor.mask_token, rows)
    together = predictor.log_conditionals(hidden)
    check_log_conditionals(together, masked, vocab_size=predictor.vocab_size)
    where = masked.to(together.device)
    alone = torch.cat([predictor.log_conditionals(row.unsqueeze(0)) for row in hidden])
    _check_close(together[where], alone[where], "A row must give the same answer alone as among others", tolerance)
    picked = -together.gather(-1, rows.to(together.device).unsqueeze(-1)).squeeze(-1)[where]
    found = predictor.surprisal(rows, masked).to(together.device)[where]
    _check_close(found, picked, "surprisal must be -log_conditionals of the clean tokens", tolerance)
    other = torch.where(masked, (rows + 1) % predictor.vocab_size, rows)
    moved = predictor.surprisal(other, masked).to(together.device)[where]
    shifted = -together.gather(-1, other.to(together.device).unsqueeze(-1)).squeeze(-1)[where]
    _check_close(moved, shifted, "Tokens under a mask must not be seen", tolerance)


def _check_close(found: Tensor, wanted: Tensor, law: str, tolerance: float) -> None:
    if not torch.allclose(found.double(), wanted.double(), rtol=tolerance, atol=tolerance):
        off = float((found.double() - wanted.double()).abs().nan_to_num(posinf=0.0).max())
        raise AssertionError(f"{law}; the largest difference is {off:.3g} nats.")
