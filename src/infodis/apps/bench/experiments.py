"""The experiments of `infodis bench`: each yields plain records, which the command line prints, saves and draws."""

import contextlib
import dataclasses
import functools
import itertools
import math
import time
from collections.abc import Iterable, Iterator, Sequence

import torch
from jaxtyping import Float64
from torch import Tensor

from infodis.apps.bench.memory import CLEAR, forget_peak, memory_mebibytes
from infodis.apps.bench.peers import LladaSampler, PaperSampler
from infodis.apps.bench.problems import Problem
from infodis.auto import Auto
from infodis.control import Control, Kernel, Neighbours
from infodis.design import (
    Layout,
    MaskDesign,
    Orders,
    Pairs,
    StratifiedCount,
    Tiled,
    TimeFree,
    TimeIntegral,
    UniformCount,
    numbers,
)
from infodis.errors import InputError
from infodis.estimate import Request, estimate_items
from infodis.item import Item
from infodis.models.loading import load
from infodis.oracle import MarkovChain
from infodis.predictor import LogConditionals, Masks, Predictor, Surprisals, Tokens
from infodis.quantities.ratio import Comparison, Ratio, Side, compare
from infodis.result import Estimate, Measured, Replicated
from infodis.rng import key, stream
from infodis.testing import Tabulated

DESIGNS: dict[str, MaskDesign] = {
    "TimeIntegral": TimeIntegral(),
    "TimeFree (paper)": TimeFree(),
    "paper's script": PaperSampler(),
    "UniformCount": UniformCount(),
    "LLaDA's sampler": LladaSampler(),
    "StratifiedCount": StratifiedCount(),
    "Pairs": Pairs(),
    "Tiled": Tiled(),
    "Orders": Orders(),
    "Orders, antithetic": Orders(antithetic=True),
    "Auto": Auto(),
}

BASELINE = "TimeFree (paper)"

EQUAL = 1e-4
"""Nats squared: errors below (0.01 nats)^2 are not told apart."""


@dataclasses.dataclass(frozen=True)
class DesignResult:
    """Error, bias and coverage of one estimator on one problem, averaged over runs and the problem's items."""

    problem: str
    rows: int
    design: str
    control: str
    runs: int
    evaluations: float
    mean_squared_error: float
    bias: float
    bias_z: float
    coverage: float | None


def run_many(
    table: Tabulated, request: Request, *, runs: int, seed: int = 0, name: int | None = None
) -> list[Estimate]:
    """Independent runs on one item, their masks named after the item, or after another one to couple with."""
    names = [key(table.item.key if name is None else name, run) for run in range(runs)]
    return estimate_items(table, [table.item] * runs, request, seed=seed, names=names)


def measure(problem: Problem, request: Request, *, runs: int, name: str = "", seed: int = 0) -> DesignResult:
    """Error, bias and coverage of 95 % intervals over `runs` runs on every item."""
    errors, covered, spent = [], 0, 0
    for table in problem.tables:
        exact = table.exact
        for estimate in run_many(table, request, runs=runs, seed=seed):
            low, high = estimate.interval(0.95)
            errors.append(estimate.value - exact)
            covered += low - 1e-9 <= exact <= high + 1e-9
            spent += estimate.evaluations
    control = "none" if request.control is None else repr(request.control)
    error = torch.tensor(errors, dtype=torch.float64)
    return _design_result(problem, request.rows, name or repr(request.design), control, error, spent, covered)


def _design_result(
    problem: Problem, rows: int, design: str, control: str, error: Tensor, spent: float, covered: int | None
) -> DesignResult:
    runs, bias = error.numel(), Measured.mean(error)
    mse = float(error.square().mean())
    share = None if covered is None else covered / runs
    return DesignResult(problem.name, rows, design, control, runs, spent / runs, mse, bias.value, _z_score(bias), share)


def _z_score(found: Measured, truth: float = 0.0) -> float:
    """How many standard errors a number lies off; 0 where nothing is random."""
    return (found.value - truth) / found.standard_error if found.standard_error > 1e-9 else 0.0


def measure_plan(
    problem: Problem, design: MaskDesign, *, rows: int, runs: int, name: str, seed: int = 0
) -> DesignResult:
    """The design alone: all rows in one replicate, nothing subtracted. What a standard error costs is not in it."""
    errors = []
    for number, table in enumerate(problem.tables):
        target = table.item.target.numel()
        layout = Layout(replicates=1, rows=rows)
        generators = [stream(seed, "plan", number, run) for run in range(runs)]
        for start in range(0, runs, 250):
            masked, weight = design.masks(*numbers(target, layout, generators[start : start + 250]))
            code = (masked * 2 ** torch.arange(target)).sum(-1)
            errors.append((weight * table.table[code]).sum((-1, -2)) - table.exact)
    return _design_result(problem, rows, name, "one plan", torch.cat(errors), float("nan"), None)


def variance(
    problems: Iterable[Problem], *, rows: int, runs: int, control: Control = Neighbours()
) -> Iterator[DesignResult]:
    """Every design at the same number of rows: alone, as `nll` runs it without a control, and with one."""
    for problem in problems:
        for name, design in DESIGNS.items():
            if name in ("TimeFree (paper)", "LLaDA's sampler", "StratifiedCount", "Tiled"):
                yield measure_plan(problem, design, rows=rows, runs=runs, name=name)
            plain = design.telescoping or isinstance(design, PaperSampler | LladaSampler)
            for subtracted in (None,) if plain else (None, control):
                yield measure(problem, Request(design, subtracted, rows), runs=runs, name=name)


def auto(problems: Iterable[Problem], *, budgets: Sequence[int], runs: int) -> Iterator[DesignResult]:
    """`Auto` beside the two designs that it chooses from and LLaDA's sampler, where a budget is enough for them."""
    for problem in problems:
        for rows in budgets:
            if rows >= 2 ** problem.tables[0].item.target.numel() - 1:
                continue  # everything is enumerated
            for name in ("Tiled", "Orders", "LLaDA's sampler", "Auto"):
                control = None if name == "LLaDA's sampler" else Neighbours()
                with contextlib.suppress(InputError):
                    yield measure(problem, Request(DESIGNS[name], control, rows), runs=runs, name=name)


@dataclasses.dataclass(frozen=True)
class KeptPrecision:
    """What came of many requests for one standard error."""

    problem: str
    quantity: str
    asked: float
    runs: int
    root_mean_square_error: float
    calibration: float
    """The mean of standard_error^2 over the mean of error^2."""
    coverage: float
    """Of 95 % intervals."""
    bias_z: float
    evaluations: float
    fixed_evaluations: float
    """Of a fixed budget with the same error, between two that were measured."""
    cap_reached: float
    """The share of runs that met the cap on their rows."""


ASKED = (2.0, 1.0, 0.5, 0.25)
Budgets = Sequence[tuple[float, float]]
"""Forward passes of fixed budgets, and their mean squared errors."""
GRID = (16, 32, 64, 128, 256, 512, 1024, 2048)


def precision(problems: Iterable[Problem], *, runs: int, asked: Sequence[float] = ASKED) -> Iterator[KeptPrecision]:
    """Requests for standard errors of `nll` and of `log_ratio`, against exact answers."""
    for problem in problems:
        table, below = problem.tables[:2]
        nlls = functools.partial(run_many, table)
        ratios_to_another = functools.partial(_ratios_of, table, below)
        for quantity, truth, ask in (
            ("nll", table.exact, nlls),
            ("log_ratio", below.exact - table.exact, ratios_to_another),
        ):
            fixed = [_error(ask(Request(evaluations=rows), runs=max(100, runs // 4)), truth) for rows in GRID]
            for wanted in asked:
                found = ask(Request(standard_error=wanted), runs=runs)
                yield _precise(problem.name, quantity, wanted, found, truth, fixed)


def _ratios_of(table: Tabulated, below: Tabulated, request: Request, *, runs: int) -> list[Ratio]:
    sides = (Side(table, table.item), Side(below, below.item, -1))
    found = compare([Comparison(sides, request, seed=seed) for seed in range(runs)])
    return [one for one in found if isinstance(one, Ratio)]


def _error(found: Sequence[Replicated], truth: float) -> tuple[float, float]:
    """Forward passes of a run, and the mean squared error."""
    spent = sum(one.evaluations for one in found) / len(found)
    return spent, sum((one.value - truth) ** 2 for one in found) / len(found)


def _precise(
    problem: str,
    quantity: str,
    wanted: float,
    found: Sequence[Replicated],
    truth: float,
    fixed: Sequence[tuple[float, float]],
) -> KeptPrecision:
    error = torch.tensor([one.value - truth for one in found], dtype=torch.float64)
    covered = sum(low - 1e-9 <= truth <= high + 1e-9 for low, high in (one.interval() for one in found))
    spent, square = _error(found, truth)
    claimed = sum(one.standard_error**2 for one in found) / len(found)
    return KeptPrecision(
        problem,
        quantity,
        wanted,
        len(found),
        math.sqrt(square),
        claimed / square if square > 1e-20 else float("nan"),
        covered / len(found),
        _z_score(Measured.mean(error)),
        spent,
        _equally_good(square, fixed),
        sum(one.stopped == "cap reached" for one in found) / len(found),
    )


def _equally_good(square: float, fixed: Budgets) -> float:
    """Forward passes at which a fixed budget has that mean squared error: on a line between logarithms."""
    for (less, worse), (more, better) in itertools.pairwise(fixed):
        if better <= square:
            if square >= worse or better <= 1e-20:
                return less if square >= worse else more
            share = math.log(worse / square) / math.log(worse / better)
            return less * (more / less) ** share
    return fixed[-1][0]


@dataclasses.dataclass(frozen=True)
class Coupling:
    """Variance of a log-likelihood ratio with shared and with separate randomness."""

    pair: str
    design: str
    control: str
    rows: int
    runs: int
    decoupled: float
    coupled: float
    bias_z: float


def pairs(target: int = 12) -> dict[str, tuple[Tabulated, Tabulated]]:
    """Related and unrelated sequences of equal and unequal lengths, to compare."""
    chain = MarkovChain.random(order=4, vocab_size=4, temperature=0.5)
    base, other = chain.sample(2, length=10 + target, generator=stream(0, "coupling"))
    edited = base.clone()
    edited[12::3] = (edited[12::3] + 1) % 4
    variants = {
        "edited": edited,
        "edited, shorter": edited[:-3],
        "unrelated": other,
        "unrelated, shorter": other[:-3],
    }
    below, *above = (Tabulated.of(chain, Item.read(t, context=range(10))) for t in (base, *variants.values()))
    return {name: (table, below) for name, table in zip(variants, above, strict=True)}


def coupling(*, rows: int, runs: int, target: int = 12) -> Iterator[Coupling]:
    """Coupled against separate estimates for related and unrelated sequences of equal and unequal lengths."""
    for pair, (table, below) in pairs(target).items():
        for name in ("TimeIntegral", "TimeFree (paper)", "UniformCount", "StratifiedCount", "Pairs", "Tiled"):
            for control in (None, Neighbours()):
                request = Request(DESIGNS[name], control, rows)
                together, apart = (ratios(table, below, request, shared, runs) for shared in (True, False))
                truth = below.exact - table.exact
                z = _z_score(Measured.mean(together), truth)
                label = "none" if control is None else repr(control)
                yield Coupling(pair, name, label, rows, runs, float(apart.var()), float(together.var()), z)


def ratios(
    above: Tabulated, below: Tabulated, request: Request, shared: bool, runs: int, *, seed: int = 0
) -> Float64[Tensor, " runs"]:
    """Many runs of `log_ratio` at once: both sides draw from the streams of the lower one, or each from its own."""
    y = run_many(above, request, runs=runs, name=below.item.key if shared else None, seed=seed)
    x = run_many(below, request, runs=runs, seed=seed)
    return torch.tensor([b.value - a.value for a, b in zip(y, x, strict=True)], dtype=torch.float64)


class Instant(Predictor):
    """A predictor that answers at once: what is left is the cost of planning and summing."""

    vocab_size = 4
    mask_token = 4

    def log_conditionals(self, tokens: Tokens) -> LogConditionals:
        return torch.full((*tokens.shape, 4), math.log(0.25))

    def surprisal(self, tokens: Tokens, masked: Masks) -> Surprisals:
        return masked * math.log(4)


@dataclasses.dataclass(frozen=True)
class Timing:
    """Seconds of processor time for a piece of work on one core."""

    work: str
    seconds: float
    rate: float
    unit: str
    peak_mebibytes: float | None = None
    """The most memory beyond what was held before."""


def overhead(*, sequences: int = 1000, rows: int = 128, length: int = 64) -> Iterator[Timing]:
    """Time on one core: planning and summing with an instant predictor, and how fast the oracle answers."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        tokens = torch.zeros(sequences, length, dtype=torch.int64)
        tokens[:, :12] = torch.arange(sequences).unsqueeze(1) // 2 ** torch.arange(12) % 2  # all distinct
        items = [Item.read(row) for row in tokens]
        for name, request in {
            "nll, Tiled with Neighbours": Request(Tiled(), Neighbours(), rows),
            "nll, Tiled without control": Request(Tiled(), None, rows),
            "nll, TimeFree with Neighbours": Request(TimeFree(), Neighbours(), rows),
        }.items():
            start = time.process_time()
            estimate_items(Instant(), items, request, seed=0)
            seconds = time.process_time() - start
            work = f"{name}: {sequences} sequences x {rows} rows x {length} positions"
            yield Timing(work, seconds, sequences * rows / seconds, "rows/s")
        for control, target in itertools.product((Neighbours(), Kernel()), (64, 1024, 4096)):
            yield _time_long(control, target, rows=rows)
        yield from _time_network(rows)
        yield _time_oracle()
    finally:
        torch.set_num_threads(threads)


def _time_long(control: Control, target: int, *, rows: int, positions: int = 8192) -> Timing:
    """Planning, control and summing of targets of that length, as many positions in all."""
    items = [Item.read(torch.randint(4, (target,), generator=stream(n, "long"))) for n in range(positions // target)]
    request = Request(Tiled(), control, rows)
    estimate_items(Instant(), items[:1], request, seed=0)
    before = _begin_peak()
    start = time.process_time()
    estimate_items(Instant(), items, request, seed=0)
    seconds = time.process_time() - start
    peak = None if before is None else memory_mebibytes("VmHWM") - before
    work = f"nll, Tiled with {type(control).__name__}: {len(items)} sequences x {rows} rows x {target} positions"
    return Timing(work, seconds, rows * positions / seconds, "positions/s", peak)


def _begin_peak() -> float | None:
    """The memory held before some work, whose peak is counted from now on; None where that cannot be counted."""
    if not CLEAR.exists():
        return None
    forget_peak()
    return memory_mebibytes()


def _time_network(rows: int, *, length: int = 64) -> Iterator[Timing]:
    """A small network, and its surrogate if it has one, on the same masked rows."""
    model = load("text8-tiny")
    predictors: dict[str, Predictor] = {"text8-tiny": model}
    if model.surrogate is not None and model.surrogate.predictor is not None:
        predictors["its surrogate"] = model.surrogate.predictor
    text = model.encode("the history of the city begins with a small settlement on the river and")[:length]
    layout = Tiled().layout(length, rows)
    generators = [stream(0, "surrogate", n) for n in range(layout.replicates)]
    masked = Tiled().masks(*numbers(length, layout, generators))[0].flatten(0, 1)
    for name, predictor in predictors.items():
        predictor.surprisal(text.expand(2, -1), masked[:2])
        start = time.process_time()
        predictor.surprisal(text.expand(len(masked), -1), masked)
        seconds = time.process_time() - start
        yield Timing(f"{name}: {len(masked)} rows of {length} characters", seconds, len(masked) / seconds, "rows/s")


def _time_oracle(rows: int = 8192, length: int = 32) -> Timing:
    chain = MarkovChain.random(order=4, vocab_size=4)
    tokens = chain.sample(rows, length=length, generator=stream(0, "timing"))
    masked = torch.rand(rows, length, generator=stream(1, "timing")) < 0.5
    start = time.process_time()
    chain.surprisal(tokens, masked)
    seconds = time.process_time() - start
    return Timing(f"oracle: order-4 chain, {rows} masked rows of length {length}", seconds, rows / seconds, "rows/s")
