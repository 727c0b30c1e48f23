"""Table 1(b): the variance of log-likelihood ratios, both sides from the same random numbers or each from its own."""

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from infodis import figures
from infodis.apps.bench.experiments import DESIGNS, pairs, ratios
from infodis.apps.report import values
from infodis.apps.reproduce.experiment import Bench, Claim, Outcome
from infodis.apps.reproduce.trials import (
    MODEL,
    PAPERS_MODEL,
    Measured,
    Question,
    chosen,
    digest,
    mean_of,
    ratio_of,
    read,
    repeated,
    spread_of,
    together,
    triplets,
)
from infodis.control import Neighbours
from infodis.design import Tiled
from infodis.errors import InputError
from infodis.estimate import Request
from infodis.figures import Figure
from infodis.item import Item
from infodis.models.model import Model
from infodis.quantities.ratio import Comparison, Ratio, compare, margin
from infodis.rng import key
from infodis.testing import Tabulated

PAPER = {5: (8897.08, 62469.41), 10: (4487.38, 29107.21), 15: (3059.97, 20695.61), 20: (2335.12, 16514.72)}
"""Table 1(b): coupled and decoupled by rows, on LLaDA-8B and BeaverTails."""

FREE, COUNT, STRATIFIED, OURS = "TimeFree (paper)", "UniformCount", "StratifiedCount", "infodis' default"
SINGLE = (FREE, COUNT)
"""Rows of these are independent: the variance of one gives that of any number."""
PLANNED = (STRATIFIED, OURS)
TILED = "Tiled with Neighbours"
"""What the default of infodis comes to with so few rows."""

Found = Mapping[tuple[str, int], Sequence[tuple[float, float]]]
"""Variances coupled and decoupled, one pair for every triplet: by design and rows."""


def request(name: str, rows: int) -> Request:
    """A design without a control, as others use them, or ours with it."""
    if name == OURS:
        return Request(evaluations=rows)
    return Request(Tiled(), Neighbours(), rows) if name == TILED else Request(DESIGNS[name], None, rows)


class VarianceRatio:
    """Coupled against decoupled ratios, on chains with exact answers and on triplets of texts."""

    name = "variance-ratio"
    title = "Variance of log-likelihood ratios"
    paper = "Table 1(b)"
    own_model = False

    def run(self, bench: Bench) -> Outcome:
        chains, triplets = Chains(bench), Triplets(bench)
        exact = chains.measured()
        found = triplets.variances()
        rows = min(rows for _, rows in found)
        gains = {name: _gain(found, name, rows) for name in (*SINGLE, *PLANNED)}
        ours = {budget: _against_paper(found, budget) for budget in sorted({budget for _, budget in found})}
        return Outcome(
            f"{triplets.about} {chains.about}",
            tuple(_claims(gains, exact, ours, rows)),
            (_table(found), chains.table(exact)),
            (_bars(found, rows), _lines(found)),
            {
                "gains": {name: dataclasses.asdict(gain) for name, gain in gains.items()},
                "default below the paper's, coupled": {str(at): dataclasses.asdict(one) for at, one in ours.items()},
                "forward_rows": triplets.spent,
            },
        )


@dataclasses.dataclass(frozen=True)
class Chains:
    """Related and unrelated sequences of an order-4 chain, of equal and unequal lengths, with all masks tabulated."""

    bench: Bench

    @property
    def settings(self) -> dict[str, int]:
        runs, blocks, target = self.bench.pick((40, 2, 7), (400, 10, 12), (2000, 10, 12))
        return {"runs": runs, "blocks": blocks, "target": target}

    @property
    def budgets(self) -> tuple[int, ...]:
        budgets: tuple[int, ...] = self.bench.pick((5,), tuple(PAPER), tuple(PAPER))
        return budgets

    @property
    def designs(self) -> tuple[str, ...]:
        every = ("TimeIntegral", FREE, "paper's script", COUNT, STRATIFIED, "Pairs", "Tiled", TILED)
        designs: tuple[str, ...] = self.bench.pick((FREE, COUNT, TILED), every, every)
        return designs

    @property
    def about(self) -> str:
        size = self.settings
        return (
            f"Exact oracle: pairs of sequences of an order-4 chain, up to {size['target']} tokens, {size['runs']} runs."
        )

    def measured(self) -> dict[tuple[str, str, int], tuple[Measured, Measured]]:
        """Variance coupled, and how many times the decoupled one is larger: by pair, design and rows."""
        places = [(pair, name, rows) for pair in self._pairs for name in self.designs for rows in self.budgets]
        keys = {"/".join(map(str, place)): place for place in places}
        made = self.bench.keep_each("chains", self.settings, list(keys), lambda one: self._measure(*keys[one]))
        return {
            place: (mean_of(coupled), ratio_of(decoupled, coupled))
            for place, (coupled, decoupled) in zip(places, made, strict=True)
        }

    @functools.cached_property
    def _pairs(self) -> dict[str, tuple[Tabulated, Tabulated]]:
        return pairs(self.settings["target"])

    def _measure(self, pair: str, name: str, rows: int) -> list[list[float]]:
        """Variances of blocks of runs, coupled and decoupled: their spread says how sure the averages are."""
        size = self.settings
        return [
            ratios(*self._pairs[pair], request(name, rows), shared, size["runs"], seed=self.bench.seed)
            .view(size["blocks"], -1)
            .var(1)
            .tolist()
            for shared in (True, False)
        ]

    def table(self, found: Mapping[tuple[str, str, int], tuple[Measured, Measured]]) -> values.ReportTable:
        kinds = dict.fromkeys((pair, name) for pair, name, _ in found)
        rows = tuple(
            (pair, name, *(_both(*found[pair, name, budget]) for budget in self.budgets)) for pair, name in kinds
        )
        return values.ReportTable(
            "Exact oracle: variance of the coupled ratio, and how many times it is below the decoupled one",
            ("pair", "design", *(f"{budget} rows" for budget in self.budgets)),
            rows,
            f"Standard errors are over {self.settings['blocks']} blocks of runs. Less than 1 time: coupling harms. The "
            "time integral begins at level 0: its variance is infinite, and its numbers are what these runs met.",
        )


def _both(coupled: Measured, gain: Measured) -> str:
    return f"{coupled} ({gain} times)"


@dataclasses.dataclass(frozen=True)
class Triplets:
    """Prompts with two responses each, under a model.

    Coupled and decoupled sides have the same laws, so one set of coupled runs gives both variances: that of the
    difference, and the sum of those of its sides. Rows of some designs are independent of each other; one pool of them
    gives their variance at any budget. The others are run repeatedly.
    """

    bench: Bench

    @functools.cached_property
    def model(self) -> Model:
        return self.bench.model_spec(MODEL, PAPERS_MODEL).load()

    @functools.cached_property
    def size(self) -> dict[str, Any]:
        count, window, repeats, pool = self.bench.pick((2, 128, 3, 20), (30, 192, 8, 160), (500, None, 8, 400))
        limit = self.model.length or 4096
        return {
            "model": self.model.fingerprint,
            "triplets": count,
            "window": min(window or limit, limit),
            "repeats": repeats,
            "pool": pool,
        }

    @property
    def budgets(self) -> tuple[int, ...]:
        budgets: tuple[int, ...] = self.bench.pick((5, 20), tuple(PAPER), tuple(PAPER))
        return budgets

    @property
    def about(self) -> str:
        return (
            f"Texts: {len(self._kept)} triplets {{prompt, chosen, rejected}} of {self._given[0]} (the paper: 500 of "
            f"BeaverTails) under {self.model.name}, windows of up to {self.size['window']} tokens, "
            f"{self.size['repeats']} repeats."
        )

    def variances(self) -> dict[tuple[str, int], list[tuple[float, float]]]:
        """Coupled and decoupled by design and rows, one pair for every triplet."""
        found: dict[tuple[str, int], list[tuple[float, float]]] = {}
        for (_, name), made in self._made:
            for rows, both in made["variance"].items():
                found.setdefault((name, int(rows)), []).append((both[0], both[1]))
        return found

    @property
    def spent(self) -> int:
        """Forward rows."""
        return sum(int(made["evaluations"]) for _, made in self._made)

    @functools.cached_property
    def _made(self) -> list[tuple[tuple[Question, str], dict[str, Any]]]:
        jobs = {f"{text.id}/{name}": (text, name) for text in self._kept for name in (*SINGLE, *PLANNED)}
        settings = {**self.size, "texts": digest(self._kept)}
        made = self.bench.keep_each("triplets", settings, list(jobs), lambda one: self._make(*jobs[one]))
        return list(zip(jobs.values(), made, strict=True))

    @functools.cached_property
    def _kept(self) -> list[Question]:
        def fits(one: Question) -> bool:
            sides = self._sides(one)
            return None not in sides and one.right != one.wrong

        return chosen(self._given[1], fits, count=self.size["triplets"], seed=self.bench.seed)

    @functools.cached_property
    def _given(self) -> tuple[str, list[Question]]:
        return triplets(self.bench)

    def _sides(self, text: Question) -> tuple[Item | None, Item | None]:
        window = self.size["window"]
        return (
            read(self.model, text.prompt, text.right, window=window),
            read(self.model, text.prompt, text.wrong, window=window),
        )

    def _make(self, text: Question, name: str) -> dict[str, Any]:
        if name in SINGLE:
            (pool,) = self._compare(text, request(name, self.size["pool"]), 1)
            parts = (part.replicates.tolist() for part in (pool, pool.numerator, pool.denominator))
            one = _spread(*parts)
            variance = {rows: [part / rows for part in one] for rows in self.budgets}
            return {"variance": variance, "evaluations": pool.evaluations}
        made, spent = {}, 0
        for rows in self.budgets:
            found = self._compare(text, request(name, rows), self.size["repeats"])
            made[rows] = _spread(*zip(*((r.value, r.numerator.value, r.denominator.value) for r in found), strict=True))
            spent += sum(one.evaluations for one in found)
        return {"variance": made, "evaluations": spent}

    def _compare(self, text: Question, wanted: Request, repeats: int) -> list[Ratio]:
        above, below = self._sides(text)
        if above is None or below is None:
            raise InputError(f"{text.id} does not fit a window of {self.size['window']} tokens.")
        sides = margin(self.model, above, below)
        seeds = repeated(key(self.bench.seed, text.id), repeats)
        found = compare([Comparison(sides, wanted, seed=seed) for seed in seeds])
        return [_defined(one) for one in found]


def _defined(found: Ratio | InputError) -> Ratio:
    if isinstance(found, InputError):
        raise found
    return found


def _spread(ratio: Sequence[float], above: Sequence[float], below: Sequence[float]) -> list[float]:
    """Variance of coupled ratios, and what it would be if both sides were independent."""
    return [spread_of(ratio), spread_of(above) + spread_of(below)]


def _coupled(found: Found, name: str, rows: int) -> list[float]:
    return [coupled for coupled, _ in found[name, rows]]


def _decoupled(found: Found, name: str, rows: int) -> list[float]:
    return [decoupled for _, decoupled in found[name, rows]]


def _gain(found: Found, name: str, rows: int) -> Measured:
    return ratio_of(_decoupled(found, name, rows), _coupled(found, name, rows))


def _against_paper(found: Found, rows: int) -> Measured:
    """How far ours is below the paper's estimator, both coupled."""
    return ratio_of(_coupled(found, FREE, rows), _coupled(found, OURS, rows))


def _claims(
    gains: Mapping[str, Measured],
    exact: Mapping[tuple[str, str, int], tuple[Measured, Measured]],
    ours: Mapping[int, Measured],
    rows: int,
) -> Iterator[Claim]:
    printed = [decoupled / coupled for coupled, decoupled in PAPER.values()]
    free, count = (
        {pair: gain for (pair, name, at), (_, gain) in exact.items() if (name, at) == (wanted, rows)}
        for wanted in (FREE, COUNT)
    )
    told, other = (", ".join(f"{gain} ({pair})" for pair, gain in found.items()) for found in (free, count))
    yield Claim(
        "Coupling substantially reduces the variance of a log-likelihood ratio, "
        f"{min(printed):.1f} to {max(printed):.1f} times in the table.",
        f"{gains[FREE]} times for the time-free form on the triplets; {told} on the oracle's pairs.",
        gains[FREE].at_least(1),
    )
    smaller = Measured(
        gains[FREE].value / gains[COUNT].value,
        gains[FREE].value / gains[COUNT].value * _relative(gains[FREE], gains[COUNT]),
    )
    yield Claim(
        "(Not in the paper.) What coupling removes is mostly the noise in sizes that the time-free form brings: "
        "designs without it gain less.",
        f"{gains[FREE]} times for the time-free form, {gains[COUNT]} for uniform counts, {gains[STRATIFIED]} for "
        f"stratified ones, {gains[OURS]} for the default of infodis. Uniform counts on the oracle's pairs: {other}.",
        smaller.at_least(1),
    )
    yield Claim(
        "(Not in the paper.) At equal rows the default of infodis has a lower variance than the paper's coupled ratio.",
        f"Times lower, both coupled: {', '.join(f'{one} at {at} rows' for at, one in ours.items())}.",
        together([one.at_least(1) for one in ours.values()]),
    )


def _relative(*measured: Measured) -> float:
    """Relative error of a product or quotient."""
    return sum((one.error / one.value) ** 2 for one in measured) ** 0.5


def _table(found: Found) -> values.ReportTable:
    names = (*SINGLE, *PLANNED)
    rows: list[tuple[values.Cell, ...]] = []
    for budget in sorted({rows for _, rows in found}):
        coupled, decoupled = PAPER[budget]
        cells: list[str] = []
        for name in names:
            pair = mean_of(_coupled(found, name, budget)), mean_of(_decoupled(found, name, budget))
            cells += [str(pair[0]), str(pair[1]), str(_gain(found, name, budget))]
        rows.append((budget, coupled, decoupled, *cells))
    heads = (f"{name}: {what}" for name in names for what in ("coupled", "decoupled", "times"))
    return values.ReportTable(
        "Variance of the log-likelihood ratio, averaged over triplets",
        ("rows", "paper: coupled", "paper: decoupled", *heads),
        tuple(rows),
        "nats squared, with standard errors over triplets. The paper's columns are of LLaDA-8B. Rows are those of each "
        f"side. The variances of {' and '.join(SINGLE)} are that of a pool of independent rows, divided by the rows.",
    )


def _bars(found: Found, rows: int) -> Figure:
    points, kinds = {}, {}
    for name in (*SINGLE, *PLANNED):
        for kind, pick in (("coupled", _coupled), ("decoupled", _decoupled)):
            points[f"{name}, {kind}"] = mean_of(pick(found, name, rows)).point
            kinds[f"{name}, {kind}"] = kind
    return figures.bars(
        points,
        axis="variance, nats squared",
        kinds=kinds,
        name="coupling",
        title=f"Coupled and decoupled ratios at {rows} rows",
        caption="Averages over triplets with two standard errors.",
    )


def _lines(found: Found) -> Figure:
    budgets = sorted({rows for _, rows in found})
    series = {
        f"{name}, {kind}": [(float(rows), *mean_of(pick(found, name, rows)).point) for rows in budgets]
        for name in (FREE, COUNT, OURS)
        for kind, pick in (("coupled", _coupled), ("decoupled", _decoupled))
    }
    return figures.lines(
        series,
        axes=("forward rows of a side", "variance, nats squared"),
        log=(True, True),
        points=True,
        wide=True,
        name="variance",
        title="Variance of ratios against rows",
        caption="Averages over triplets; bands are two standard errors.",
    )
