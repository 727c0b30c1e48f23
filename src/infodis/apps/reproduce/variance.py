"""Table 1(a): the Monte Carlo variance of conditional likelihoods for every design; where the time-free form wins."""

import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping, Sequence

from infodis.apps.bench.experiments import measure
from infodis.apps.bench.moments import LOWEST
from infodis.apps.bench.problems import Problem, chain_problem
from infodis.apps.report import values
from infodis.apps.reproduce.experiment import (
    Claim,
    Cost,
    ExperimentResult,
    Workspace,
    at_least,
    verdict_of_all,
)
from infodis.apps.reproduce.triplets import cost_of, off_by, questions, variance_lines
from infodis.apps.reproduce.variance_map import VarianceMap
from infodis.apps.reproduce.variance_texts import (
    COUNT,
    DATA,
    FREE,
    INTEGRAL,
    LLADA,
    OURS,
    OWN,
    PAIRS,
    PAPER,
    RUN,
    SCRIPT,
    STRATIFIED,
    Place,
    TextVariances,
    Variances,
    fits_rows,
    requests,
)
from infodis.figures import Figure
from infodis.result import Measured

DRAWN = (INTEGRAL, FREE, COUNT, LLADA, STRATIFIED, OURS)
"""Those in a figure."""
EXACT = 1e-20
PROTOCOL = "time integral, run / time-free"
WHY = (
    "Take tokens that do not depend on each other, with S the sum of their surprisals and Q that of the squares. A row "
    "of the time integral, from a level e on, has the variance Q (log(1 / e) - 1), about; one of the time-free form "
    "H_m (S^2 + Q) / 2 - S^2. Its sizes are drawn from 1 / k and its weight H_m is the same for all of them, so that a "
    "row that hides k of m tokens shows k / m of S, times H_m: the noise of sizes enters with S^2. It is less than the "
    "other only for short targets, or where one or two tokens hold nearly all of the surprise (the maps below). "
    "Uniform counts weigh rows by m / k and lose that noise; strata lose what the counts themselves add."
)


class VarianceTimeFree:
    """Every design at equal rows, on chains with exact answers and on texts; a map of length by entropy."""

    name = "variance-time-free"
    title = "Variance of conditional likelihoods"
    paper = "Table 1(a)"
    own_model = False
    has_authors_data = False

    def check(self, workspace: Workspace) -> None:
        for data in TextVariances(workspace).data:
            questions(workspace, DATA[data])

    def cost(self, workspace: Workspace) -> Cost:
        """All repeats of all designs of all texts, and a few masks of every size."""
        texts = TextVariances(workspace)
        each = sum(count * rows * len(texts.wanted(rows)) for rows, count in texts.repeats.items())
        return cost_of(workspace, len(texts.data) * texts.count * (each + SIZES_ROWS))

    def run(self, workspace: Workspace) -> ExperimentResult:
        """Texts are chosen first: where there are too few, that is told before the work begins."""
        texts, chains = TextVariances(workspace), ChainErrors(workspace.exact)
        about = f"{texts.about} {chains.about}"
        found = texts.variances()
        errors, biases = chains.measured()
        drawn = VarianceMap.of(workspace.exact)
        ratios = _ratios(found)
        wins, *others = _claims(ratios, errors, biases, chains.budgets[0])
        return ExperimentResult(
            f"{about} {drawn.about}",
            (wins, _reading(found), *others, drawn.claim()),
            WHY,
            (_table(found), _gains(found), _readings(found), texts.settings_table(), *chains.tables(errors, biases)),
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
            if name != RUN and fits_rows(request.design, self.settings["target"], rows)
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


@functools.lru_cache(maxsize=4)
def _tabulated(temperature: float, noise: float, *, count: int, target: int) -> Problem:
    return chain_problem(temperature, count=count, noise=noise, target=target)


def _error(found: Sequence[float] | None) -> str:
    if found is None:
        return ""
    return "exact" if max(found) < EXACT else str(Measured.mean(found))


SIZES_ROWS = 400
"""Rows from which the moments of a text follow, by a generous guess."""


def _pooled(found: Variances, design: str, rows: int) -> list[float]:
    """Of all texts, data set after data set."""
    return [value for (_, name, budget), every in found.items() if (name, budget) == (design, rows) for value in every]


def _ratios(found: Variances) -> dict[str, Measured]:
    """At the smallest budget, over all texts."""
    rows = _first(found)
    free, ours, run = (_pooled(found, name, rows) for name in (FREE, OURS, RUN))
    return {
        **({PROTOCOL: Measured.ratio(run, free)} if run else {}),
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
    wins, by_protocol = ratios["time integral / time-free"], ratios.get(PROTOCOL)
    as_run = "" if by_protocol is None else f"{by_protocol} times over repeats, as in the paper; "
    yield Claim(
        "The time-free form has a substantially lower variance than the time integral, "
        f"{min(printed):.1f} to {max(printed):.1f} times in the table.",
        f"The time integral's variance on these texts, over that of the time-free form: {as_run}{wins} times by its "
        f"moments from level {LOWEST:g} on (from 0 it is infinite).",
        verdict_of_all([at_least(one, 1) for one in (wins, by_protocol) if one is not None]),
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
    shown = (RUN, INTEGRAL, FREE, SCRIPT, COUNT, LLADA, STRATIFIED, PAIRS, OURS, OWN)
    rows: list[tuple[values.Cell, ...]] = []
    for data, budget in dict.fromkeys((data, rows) for data, _, rows in found):
        printed = PAPER[data].get(budget, ("", ""))
        cells = (found.get((data, name, budget)) for name in shown)
        rows.append((data, budget, *printed, *("" if cell is None else str(Measured.mean(cell)) for cell in cells)))
    return values.ReportTable(
        "Variance of the conditional likelihood, averaged over texts",
        ("data", "rows", "paper: time integral", "paper: time-free", *shown),
        tuple(rows),
        "nats squared, with standard errors over texts. The paper's columns are of LLaDA-8B. The default and the time "
        "integral are run repeatedly; their variance is that over repeats, and beside that of the default stands the "
        "mean square of the standard errors that it reports. Unless they are run too, the other designs' variances "
        "follow from moments by size (rows that are independent given their sizes) or, for pairs, from one run: a "
        "variance of independent parts goes as 1 / rows. By its moments the time integral begins at level "
        f"{LOWEST:g}.",
    )


READINGS = (FREE, COUNT, LLADA, STRATIFIED)
"""What the paper's column may have drawn."""


Printed = dict[tuple[str, int], tuple[float, dict[str, Measured]]]
"""By data set and rows: the paper's ratio of variances, and ours for every sampler that its runs may have had."""


def _beside(found: Variances) -> Printed:
    places = dict.fromkeys((data, rows) for data, _, rows in found if rows in PAPER[data])
    return {
        (data, rows): (
            PAPER[data][rows][0] / PAPER[data][rows][1],
            {name: Measured.ratio(found[data, INTEGRAL, rows], found[data, name, rows]) for name in READINGS},
        )
        for data, rows in places
    }


def _readings(found: Variances) -> values.ReportTable:
    """The paper's ratios beside ours."""
    rows: tuple[tuple[values.Cell, ...], ...] = tuple(
        (data, rows, f"{printed:.1f}", *map(str, ours.values()))
        for (data, rows), (printed, ours) in _beside(found).items()
    )
    return values.ReportTable(
        "How the table may be read: the time integral's variance over that of other samplers",
        ("data", "rows", "the paper's ratio", *(f"over {name}" for name in READINGS)),
        rows,
        f"Ratios of average variances; the time integral from level {LOWEST:g}, by its moments.",
    )


def _reading(found: Variances) -> Claim:
    """Offered beside the verdict: which sampler the printed ratios resemble, at all rows of the table."""
    says = (
        "(A reading of the table.) The runs of the column 'time-free' drew stratified counts, as LLaDA's own script "
        "does, and not the printed law of sizes."
    )
    every, first = _beside(found), _first(found)
    if not every:
        return Claim(says, f"The table begins at {min(PAPER['PIQA'])} rows.", "not tested here")
    printed = [ratio for ratio, _ in every.values()]
    missed = {name: off_by([ours[name].value for _, ours in every.values()], printed) for name in READINGS}
    nearest = min(missed, key=missed.__getitem__)
    shown = {data: both for (data, rows), both in every.items() if rows == first}
    told = "; ".join(f"over {name} {', '.join(str(ours[name]) for _, ours in shown.values())}" for name in READINGS)
    return Claim(
        says,
        f"Variance of the time integral over that of the time-free form, as printed for {first} rows of "
        f"{', '.join(shown)}: {', '.join(f'{ratio:.1f}' for ratio, _ in shown.values())}. Ours: {told}. Over all "
        f"rows of the table, the printed ratios are missed by a factor of "
        f"{', '.join(f'{factor:.1f} ({name})' for name, factor in missed.items())}: they resemble those over {nearest} "
        "most. A resemblance is no proof: it stays a reading.",
        "undecided" if nearest in (LLADA, STRATIFIED) else "does not hold",
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
    means = {
        name: {rows: Measured.mean(some) for rows in budgets if (some := _pooled(found, name, rows))} for name in DRAWN
    }
    return variance_lines(means, over="all texts", title="Variance against forward passes")
