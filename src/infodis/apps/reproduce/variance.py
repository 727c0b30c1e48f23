"""Table 1(a): the Monte Carlo variance of conditional likelihoods for every design; where the time-free form wins."""

import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from infodis.apps.bench.experiments import DESIGNS, measure
from infodis.apps.bench.problems import Problem, chain_problem
from infodis.apps.report import values
from infodis.apps.reproduce.data import ARC, HELLASWAG, PIQA
from infodis.apps.reproduce.experiment import Claim, ExperimentResult, Workspace, at_least, verdict_of_all
from infodis.apps.reproduce.moments import LOWEST, Moments, law
from infodis.apps.reproduce.triplets import (
    ResponseReader,
    Triplet,
    choose_fitting,
    questions,
    repeat_names,
    sample_variance,
    triplets_key,
    variance_lines,
)
from infodis.apps.reproduce.variance_map import VarianceMap
from infodis.control import Neighbours
from infodis.design import MaskDesign, Tiled
from infodis.errors import InputError
from infodis.estimate import Request, estimate_items
from infodis.figures import Figure
from infodis.item import Item
from infodis.result import Estimate, Measured
from infodis.rng import key

PAPER = {
    "HellaSwag": {128: (70.97, 11.57), 256: (30.19, 6.02), 512: (13.38, 2.92)},
    "ARC-Challenge": {128: (23.18, 5.73), 256: (18.14, 2.96), 512: (9.50, 1.82)},
    "PIQA": {128: (19.77, 4.93), 256: (15.15, 1.81), 512: (6.50, 1.22)},
}
"""Table 1(a): time integral and time-free by rows, on LLaDA-8B."""

DATA = {"HellaSwag": HELLASWAG, "ARC-Challenge": ARC, "PIQA": PIQA}

INTEGRAL, FREE, COUNT, LLADA = "TimeIntegral", "TimeFree (paper)", "UniformCount", "LLaDA's sampler"
SCRIPT, STRATIFIED, PAIRS = "paper's script", "StratifiedCount", "Pairs"
OURS, OWN = "infodis' default", "infodis' default, by its own errors"
CONTROLLED = "Tiled, Neighbours"
BY_SIZE = (INTEGRAL, FREE, SCRIPT, COUNT, LLADA, STRATIFIED)
"""Designs whose rows are independent given their sizes (see `moments`)."""
DRAWN = (INTEGRAL, FREE, COUNT, LLADA, STRATIFIED, OURS)
"""Those in a figure."""
EXACT = 1e-20

Place = tuple[str, str, int]
"""Data set or problem, design and rows."""
Variances = Mapping[Place, Sequence[float]]
"""One for every text."""
TextCell = tuple[str, Triplet, str, int]


def requests(rows: int) -> dict[str, Request]:
    """Every design without a control, ours with it, and the default."""
    plain = {name: Request(design, None, rows) for name, design in DESIGNS.items() if name != "Auto"}
    return {**plain, CONTROLLED: Request(Tiled(), Neighbours(), rows), OURS: Request(evaluations=rows)}


class VarianceTimeFree:
    """Every design at equal rows, on chains with exact answers and on texts; a map of length by entropy."""

    name = "variance-time-free"
    title = "Variance of conditional likelihoods"
    paper = "Table 1(a)"
    own_model = False

    def run(self, workspace: Workspace) -> ExperimentResult:
        chains = ChainErrors(workspace)
        errors, biases = chains.measured()
        texts = TextVariances(workspace)
        found = texts.variances()
        drawn = VarianceMap.of(workspace)
        ratios = _ratios(found, chains.budgets[0])
        return ExperimentResult(
            f"{chains.about} {texts.about} {drawn.about}",
            (*_claims(ratios, errors, biases, chains.budgets[0]), drawn.claim()),
            (_table(found), _gains(found), *chains.tables(errors, biases)),
            (_figure(found), *drawn.figures()),
            {
                "ratios": {name: dataclasses.asdict(ratio) for name, ratio in ratios.items()},
                "map": drawn.numbers(),
                "forward_rows": texts.spent,
            },
        )


@dataclasses.dataclass(frozen=True)
class ChainErrors:
    """The paper's order-4 chain, 16 tokens given 16, with all masks tabulated: errors against the exact answer.

    One of the problems has noise on the chain's conditionals, so that they disagree as those of a network do: without
    it `Orders`, and with it the default, is exact.
    """

    workspace: Workspace

    @property
    def budgets(self) -> tuple[int, ...]:
        budgets: tuple[int, ...] = self.workspace.pick((128,), (128, 256, 512), (128, 256, 512))
        return budgets

    @property
    def problems(self) -> dict[str, tuple[float, float]]:
        """Temperature and noise by name."""
        every = {"chain, 0.5": (0.5, 0.0), "chain, 0.15": (0.15, 0.0), "noisy chain, 0.5": (0.5, 0.2)}
        return every if self.workspace.size != "smoke" else {"chain, 0.15": (0.15, 0.0)}

    @property
    def settings(self) -> dict[str, int]:
        sequences, runs, target = self.workspace.pick((2, 20, 8), (8, 100, 16), (40, 250, 16))
        return {"sequences": sequences, "runs": runs, "target": target}

    @property
    def about(self) -> str:
        size = self.settings
        return (
            f"Exact oracle: {size['sequences']} sequences of each order-4 chain (temperature in its name), "
            f"{size['target']} tokens given 16, all masks tabulated, {size['runs']} runs of every design."
        )

    def measured(self) -> tuple[dict[Place, list[float]], dict[Place, float]]:
        """Mean squared errors of every sequence, and z of the bias over all of them, by problem, design and rows."""
        cells = [
            (problem, name, rows)
            for problem in self.problems
            for rows in self.budgets
            for name, request in requests(rows).items()
            if _fits(request.design, self.settings["target"], rows)
        ]
        found = self.workspace.keep_cells("chains", self.settings, cells, self._measure)
        biases = {where: sum(one["z"]) / math.sqrt(len(one["z"])) for where, one in found.items()}
        return {where: one["errors"] for where, one in found.items()}, biases

    def _measure(self, problem: str, name: str, rows: int) -> dict[str, list[float]]:
        size, request = self.settings, requests(rows)[name]
        tables = _tabulated(*self.problems[problem], count=size["sequences"], target=size["target"]).tables
        every = [
            measure(Problem(problem, [table]), request, runs=size["runs"], name=name, seed=self.workspace.seed)
            for table in tables
        ]
        return {"errors": [one.mean_squared_error for one in every], "z": [one.bias_z for one in every]}

    def tables(self, errors: Variances, biases: Mapping[Place, float]) -> Iterator[values.ReportTable]:
        columns = ("design", *(f"{budget} rows" for budget in self.budgets), f"z of bias at {self.budgets[-1]}")
        for problem in self.problems:
            rows = tuple(
                (
                    name,
                    *(_error(errors.get((problem, name, budget))) for budget in self.budgets),
                    f"{biases[problem, name, self.budgets[-1]]:+.1f}",
                )
                for name in dict.fromkeys(name for where, name, _ in errors if where == problem)
            )
            caption = (
                "Standard errors are over sequences. |z| above 4 is a bias. The time integral begins at level 0 here: "
                "its variance is infinite, and the numbers are what these runs happened to meet."
            )
            yield values.ReportTable(f"Mean squared error, {problem}", columns, rows, caption)


def _fits(design: MaskDesign, target: int, rows: int) -> bool:
    try:
        design.layout(target, rows)
    except InputError:
        return False
    return True


@functools.lru_cache(maxsize=4)
def _tabulated(temperature: float, noise: float, *, count: int, target: int) -> Problem:
    return chain_problem(temperature, count=count, noise=noise, target=target)


def _error(found: Sequence[float] | None) -> str:
    if found is None:
        return ""
    return "exact" if max(found) < EXACT else str(Measured.mean(found))


@dataclasses.dataclass(frozen=True)
class TextVariances:
    """Questions with the paper's responses, under a model.

    Designs whose rows are independent given their sizes have variances that follow from moments by size, at any budget;
    `Pairs` are independent of each other, so the variance of one budget gives that of another. Only designs that
    plan all their rows together are run repeatedly. The full size runs every design repeatedly but the time integral,
    which has a finite variance only if it begins above level 0.
    """

    workspace: Workspace

    @functools.cached_property
    def reader(self) -> ResponseReader:
        """The window keeps a laptop's run short; the full size has the model's own."""
        return ResponseReader(self.workspace, self.workspace.pick(128, 192, None))

    @functools.cached_property
    def repeats(self) -> dict[int, int]:
        """By forward passes."""
        repeats: dict[int, int] = self.workspace.pick({32: 3}, {128: 15, 256: 5, 512: 3}, {128: 15, 256: 15, 512: 15})
        return repeats

    @property
    def count(self) -> int:
        return int(self.workspace.pick(2, 10, 30))

    @property
    def all(self) -> bool:
        """Whether all designs are run repeatedly."""
        return self.workspace.size == "full"

    @property
    def data(self) -> list[str]:
        return list(PAPER) if self.workspace.size != "smoke" else ["HellaSwag"]

    @property
    def about(self) -> str:
        repeats = ", ".join(f"{count} at {rows}" for rows, count in self.repeats.items())
        source = "built-in questions" if self.workspace.size == "smoke" else ", ".join(self.data)
        return (
            f"Texts: {self.count} random questions each of {source} under {self.reader.model.name}, the prompt's end "
            f"and the response 'Correct: ... | Incorrect: ...' in windows of {self.reader.window} tokens; questions "
            f"with longer responses are left out. Repeats by rows: {repeats}."
        )

    def variances(self) -> dict[Place, list[float]]:
        """By data set, design and rows, one for every text."""
        found: dict[Place, list[float]] = {}
        for (data, *_), made in self._made.items():
            for design, by_rows in made["variance"].items():
                for rows, variance in by_rows.items():
                    found.setdefault((data, design, int(rows)), []).append(variance)
        return found

    @property
    def spent(self) -> int:
        """Forward passes."""
        return sum(int(made["evaluations"]) for made in self._made.values())

    @functools.cached_property
    def _made(self) -> dict[TextCell, dict[str, Any]]:
        cells = list(self._cells())
        settings = {
            "model": self.reader.model.fingerprint,
            "count": self.count,
            "window": self.reader.window,
            "repeats": {str(rows): count for rows, count in self.repeats.items()},
            "all": self.all,
            "texts": triplets_key(text for _, text, _, _ in cells),
        }
        return self.workspace.keep_cells("texts", settings, cells, self._make)

    def _cells(self) -> Iterator[TextCell]:
        """Data set, text, design and rows of every piece of work; without rows, moments by size."""
        for data in self.data:
            found = questions(self.workspace, DATA[data])
            kept = choose_fitting(
                found,
                lambda one: self.reader.fits(one.prompt, one.both),
                count=self.count,
                seed=self.workspace.seed,
            )
            for text in kept:
                yield data, text, "by size", 0
                if not self.all:
                    yield data, text, PAIRS, next(iter(self.repeats))
                for rows in self.repeats:
                    yield from ((data, text, name, rows) for name in self._repeated(text, rows))

    def _repeated(self, text: Triplet, rows: int) -> list[str]:
        if not self.all:
            return [OURS]
        length = self.reader.read(text.prompt, text.both).target.numel()
        repeated = {name: one for name, one in requests(rows).items() if name != INTEGRAL}
        return [name for name, request in repeated.items() if _fits(request.design, length, rows)]

    def _make(self, data: str, text: Triplet, design: str, rows: int) -> dict[str, Any]:
        item = self.reader.read(text.prompt, text.both)
        if rows == 0:
            return self._by_size(item)
        if design == PAIRS and not self.all:
            return self._pairs(item, rows)
        return self._repeats(item, design, rows)

    def _by_size(self, item: Item) -> dict[str, Any]:
        moments = Moments.drawn(self.reader.model, item, seed=self.workspace.seed)
        length = item.target.numel()
        variance = {
            name: {rows: moments.variance(law(DESIGNS[name], length, rows)) for rows in self.repeats}
            for name in ((INTEGRAL,) if self.all else BY_SIZE)
        }
        return {"variance": variance, "evaluations": moments.rows, "target": length, "nll": moments.nll}

    def _pairs(self, item: Item, budget: int) -> dict[str, Any]:
        name = key(item.key, self.workspace.seed, PAIRS)
        (found,) = self._estimates(item, requests(budget)[PAIRS], [name])
        variance = {rows: found.standard_error**2 * budget / rows for rows in self.repeats}
        return {"variance": {PAIRS: variance}, "evaluations": found.evaluations}

    def _repeats(self, item: Item, design: str, rows: int) -> dict[str, Any]:
        """The variance over repeats; of the default also what its own standard errors say, on average."""
        names = list(repeat_names(key(item.key, rows), self.repeats[rows]))
        found = self._estimates(item, requests(rows)[design], names)
        variance = {design: {rows: sample_variance([one.value for one in found])}}
        if design == OURS:
            variance[OWN] = {rows: sum(one.standard_error**2 for one in found) / len(found)}
        return {
            "variance": variance,
            "evaluations": sum(one.evaluations for one in found),
            "values": [one.value for one in found],
            "design": repr(found[0].design),
        }

    def _estimates(self, item: Item, request: Request, names: list[int]) -> list[Estimate]:
        items = [item] * len(names)
        return estimate_items(self.reader.model, items, request, seed=self.workspace.seed, names=names)


def _pooled(found: Variances, design: str, rows: int) -> list[float]:
    """Of all texts, data set after data set."""
    return [value for (_, name, budget), every in found.items() if (name, budget) == (design, rows) for value in every]


def _ratios(found: Variances, wanted: int) -> dict[str, Measured]:
    """At the smallest budget, over all texts."""
    budgets = sorted({rows for _, _, rows in found})
    rows = wanted if wanted in budgets else budgets[0]
    free, ours = _pooled(found, FREE, rows), _pooled(found, OURS, rows)
    return {
        "time integral / time-free": Measured.ratio(_pooled(found, INTEGRAL, rows), free),
        "time-free / uniform count": Measured.ratio(free, _pooled(found, COUNT, rows)),
        "time-free / default": Measured.ratio(free, ours),
        "LLaDA's sampler / default": Measured.ratio(_pooled(found, LLADA, rows), ours),
        "default: own errors / repeats": Measured.ratio(_pooled(found, OWN, rows), ours),
    }


def _claims(
    ratios: Mapping[str, Measured], errors: Variances, biases: Mapping[Place, float], rows: int
) -> Iterator[Claim]:
    printed = [integral / free for by_rows in PAPER.values() for integral, free in by_rows.values()]
    wins = ratios["time integral / time-free"]
    yield Claim(
        "The time-free form has a substantially lower variance than the time integral, "
        f"{min(printed):.1f} to {max(printed):.1f} times in the table.",
        f"On these texts the time integral (from level {LOWEST:g}; from 0 its variance is infinite) varies {wins} "
        "times as much as the time-free form.",
        at_least(wins, 1),
    )
    count = ratios["time-free / uniform count"]
    problems = list(dict.fromkeys(problem for problem, _, _ in errors))
    exact = {p: Measured.ratio(errors[p, FREE, rows], errors[p, COUNT, rows]) for p in problems}
    on_chains = ", ".join(f"{ratio} on {problem}" for problem, ratio in exact.items())
    yield Claim(
        "(Not in the paper.) At equal rows, sizes drawn uniformly have at least 10 times less variance than the "
        "time-free form's.",
        f"{count} times on the texts; {on_chains}.",
        verdict_of_all([at_least(ratio, 10) for ratio in (count, *exact.values())]),
    )
    yield _unbiased(biases)
    ours, llada = ratios["time-free / default"], ratios["LLaDA's sampler / default"]
    yield Claim(
        "(Not in the paper.) The default of infodis has at least 150 times less variance than the time-free form.",
        f"{ours} times, on the texts.",
        at_least(ours, 150),
    )
    yield Claim(
        "(Not in the paper.) The default of infodis has at least 3 times less variance than LLaDA's sampler.",
        f"{llada} times, on the texts.",
        at_least(llada, 3),
    )


def _unbiased(biases: Mapping[Place, float]) -> Claim:
    free, script = ([z for (_, name, _), z in biases.items() if name == wanted] for wanted in (FREE, SCRIPT))
    fine, as_run = (max(map(abs, found)) < 4 for found in (free, script))
    return Claim(
        "The time-free estimator is unbiased.",
        f"As printed its bias is within {max(map(abs, free)):.1f} standard errors of zero; the sampler of the paper's "
        f"scripts, which never masks everything, is off by up to {max(map(abs, script)):.0f}.",
        ("holds" if as_run else "holds in part") if fine else "does not hold",
    )


def _table(found: Variances) -> values.ReportTable:
    shown = (INTEGRAL, FREE, SCRIPT, COUNT, LLADA, STRATIFIED, PAIRS, OURS, OWN)
    rows: list[tuple[values.Cell, ...]] = []
    for data, budget in dict.fromkeys((data, rows) for data, _, rows in found):
        printed = PAPER[data].get(budget, ("", ""))
        cells = (found.get((data, name, budget)) for name in shown)
        rows.append((data, budget, *printed, *("" if cell is None else str(Measured.mean(cell)) for cell in cells)))
    return values.ReportTable(
        "Variance of the conditional likelihood, averaged over texts",
        ("data", "rows", "paper: time integral", "paper: time-free", *shown),
        tuple(rows),
        "nats squared, with standard errors over texts. The paper's columns are of LLaDA-8B. The default is run "
        "repeatedly; its variance is that over repeats, and beside it the mean square of the standard errors that it "
        "reports. Unless the size is full, the other designs' variances follow from moments by size (rows that are "
        "independent given their sizes) or, for pairs, from one run: a variance of independent parts goes as 1 / rows. "
        f"The time integral begins at level {LOWEST:g}.",
    )


def _gains(found: Variances) -> values.ReportTable:
    names = [name for name in (INTEGRAL, COUNT, LLADA, STRATIFIED, PAIRS, OURS) if _pooled(found, name, _first(found))]
    rows: list[tuple[values.Cell, ...]] = []
    for budget in sorted({rows for _, _, rows in found}):
        free, ours = _pooled(found, FREE, budget), _pooled(found, OURS, budget)
        against = (Measured.ratio(free, _pooled(found, name, budget)) for name in names)
        rows.append((budget, *map(str, against), str(Measured.ratio(_pooled(found, LLADA, budget), ours))))
    return values.ReportTable(
        "Times below the paper's time-free form, over all texts",
        ("rows", *names, f"{OURS} below {LLADA}"),
        tuple(rows),
        "Ratios of average variances; errors by leaving out one text at a time.",
    )


def _first(found: Variances) -> int:
    return min(rows for _, _, rows in found)


def _figure(found: Variances) -> Figure:
    budgets = sorted({rows for _, _, rows in found})
    means = {name: {rows: Measured.mean(_pooled(found, name, rows)) for rows in budgets} for name in DRAWN}
    return variance_lines(means, over="all texts", title="Variance against forward passes")
