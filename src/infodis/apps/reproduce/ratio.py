"""Table 1(b): the variance of log-likelihood ratios, both sides from the same random numbers or each from its own."""

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from infodis import figures
from infodis.apps.bench.experiments import DESIGNS, pairs, ratios
from infodis.apps.report import values
from infodis.apps.reproduce.experiment import (
    Claim,
    Cost,
    ExperimentResult,
    Workspace,
    at_least,
    name_of,
    settings_table,
    verdict_of_all,
)
from infodis.apps.reproduce.triplets import (
    ResponseReader,
    Triplet,
    choose_fitting,
    cost_of,
    off_by,
    passes_of,
    repeat_names,
    sample_variance,
    triplets,
    triplets_key,
    variance_lines,
)
from infodis.control import Neighbours
from infodis.design import Tiled
from infodis.errors import InputError
from infodis.estimate import Request
from infodis.figures import Figure
from infodis.quantities.ratio import Comparison, Ratio, compare, margin
from infodis.result import Measured
from infodis.rng import key
from infodis.testing import Tabulated

PAPER = {5: (8897.08, 62469.41), 10: (4487.38, 29107.21), 15: (3059.97, 20695.61), 20: (2335.12, 16514.72)}
"""Table 1(b): coupled and decoupled by rows, on LLaDA-8B and BeaverTails."""

FREE, COUNT, STRATIFIED, OURS = "TimeFree (paper)", "UniformCount", "StratifiedCount", "infodis' default"
SINGLE = (FREE, COUNT)
"""Rows of these are independent: the variance of one gives that of any number."""
PLANNED = (STRATIFIED, OURS)
WHY = (
    "Coupled sides share the size of the mask and which positions are masked. A row of the time-free form is H_m times "
    "the surprisal of what it masks, so that most of its variance is that of the size: both sides rise and fall "
    "together, and the difference loses it. Rows of uniform counts are weighted by m / k, which takes most of that "
    "noise away before; strata and the default of infodis leave still less. A large gain from coupling thus tells "
    "of a noisy estimator more than of a good ratio: what counts is the coupled variance itself, in the table."
)
TILED = "Tiled with Neighbours"
"""What the default of infodis comes to with so few rows."""

Found = Mapping[tuple[str, int], Sequence[tuple[float, float]]]
"""Variances coupled and decoupled, one pair for every triplet: by design and rows."""
ChainGains = Mapping[tuple[str, str, int], tuple[Measured, Measured]]
"""By pair, design and rows."""


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
    has_authors_data = False

    def check(self, workspace: Workspace) -> None:
        triplets(workspace)

    def cost(self, workspace: Workspace) -> Cost:
        """Two sides of every triplet: a pool for designs of independent rows, repeats of the others."""
        texts = TripletVariances(workspace)
        count, repeats, pool = texts.counts
        planned = repeats * sum(texts.budgets) * len(PLANNED)
        return cost_of(workspace, 2 * count * (pool * len(SINGLE) + planned))

    def run(self, workspace: Workspace) -> ExperimentResult:
        """Texts are chosen first: where there are too few, that is told before the work begins."""
        chains, texts = ChainRatios(workspace.exact), TripletVariances(workspace)
        found = texts.variances()
        exact = chains.measured()
        rows = min(rows for _, rows in found)
        gains = {name: _gain(found, name, rows) for name in (*SINGLE, *PLANNED)}
        ours = {budget: _against_paper(found, budget) for budget in sorted({budget for _, budget in found})}
        return ExperimentResult(
            f"{texts.about} {chains.about}",
            (*_claims(gains, exact, ours, rows), _reading(found)),
            WHY,
            (_table(found), texts.settings_table(), chains.table(exact)),
            (_bars(found, rows), _lines(found)),
            {
                "gains": {name: dataclasses.asdict(gain) for name, gain in gains.items()},
                "default below the paper's, coupled": {str(at): dataclasses.asdict(one) for at, one in ours.items()},
                "forward_rows": texts.spent,
            },
        )


@dataclasses.dataclass(frozen=True)
class ChainRatios:
    """Related and unrelated sequences of an order-4 chain, of equal and unequal lengths, with all masks tabulated."""

    workspace: Workspace

    @property
    def settings(self) -> dict[str, int]:
        runs, blocks, target = self.workspace.pick((40, 2, 7), (400, 10, 12), (2000, 10, 12))
        return {"runs": runs, "blocks": blocks, "target": target}

    @property
    def budgets(self) -> tuple[int, ...]:
        budgets: tuple[int, ...] = self.workspace.pick((5,), tuple(PAPER), tuple(PAPER))
        return budgets

    @property
    def designs(self) -> tuple[str, ...]:
        every = ("TimeIntegral", FREE, "paper's script", COUNT, STRATIFIED, "Pairs", "Tiled", TILED)
        designs: tuple[str, ...] = self.workspace.pick((FREE, COUNT, TILED), every, every)
        return designs

    @property
    def about(self) -> str:
        size = self.settings
        return (
            f"Exact oracle: pairs of sequences of an order-4 chain, up to {size['target']} tokens, {size['runs']} runs."
        )

    def measured(self) -> ChainGains:
        """Variance coupled, and how many times the decoupled one is larger: by pair, design and rows."""
        cells = [(pair, name, rows) for pair in self._pairs for name in self.designs for rows in self.budgets]
        found = self.workspace.keep_cells("chains", self.settings, cells, self._measure)
        return {
            place: (Measured.mean(coupled), Measured.ratio(decoupled, coupled))
            for place, (coupled, decoupled) in found.items()
        }

    @functools.cached_property
    def _pairs(self) -> dict[str, tuple[Tabulated, Tabulated]]:
        return pairs(self.settings["target"])

    def _measure(self, pair: str, name: str, rows: int) -> list[list[float]]:
        """Variances of blocks of runs, coupled and decoupled: their spread says how sure the averages are."""
        size = self.settings
        return [
            ratios(*self._pairs[pair], request(name, rows), shared, size["runs"], seed=self.workspace.seed)
            .view(size["blocks"], -1)
            .var(1)
            .tolist()
            for shared in (True, False)
        ]

    def table(self, found: ChainGains) -> values.ReportTable:
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
class TripletVariances:
    """Prompts with two responses each, under a model.

    Coupled and decoupled sides have the same laws, so one set of coupled runs gives both variances: that of the
    difference, and the sum of those of its sides. Rows of some designs are independent of each other; one pool of them
    gives their variance at any budget. The others are run repeatedly.
    """

    workspace: Workspace

    @functools.cached_property
    def reader(self) -> ResponseReader:
        return ResponseReader(self.workspace, self.workspace.pick(128, 192, None))

    @property
    def counts(self) -> tuple[int, int, int]:
        """Triplets, repeats, and rows of a pool."""
        count, repeats, pool = self.workspace.pick((2, 3, 20), (30, 8, 160), (500, 8, 400))
        return self.workspace.few(count), repeats, pool if self.workspace.stand_in is None else 40

    @functools.cached_property
    def size(self) -> dict[str, Any]:
        count, repeats, pool = self.counts
        return {
            "model": self.reader.model.fingerprint,
            "triplets": count,
            "window": self.reader.window,
            "repeats": repeats,
            "pool": pool,
        }

    @property
    def budgets(self) -> tuple[int, ...]:
        budgets: tuple[int, ...] = self.workspace.pick((5, 20), tuple(PAPER), tuple(PAPER))
        return budgets

    @property
    def about(self) -> str:
        return (
            f"Texts: {len(self.kept)} triplets {{prompt, chosen, rejected}} of {self._given[0]} (the paper: 500 of "
            f"BeaverTails) under {name_of(self.reader.model)}, windows of up to {self.size['window']} tokens, "
            f"{self.size['repeats']} repeats."
        )

    def settings_table(self) -> values.ReportTable:
        """Beside the paper's."""
        return settings_table(
            [
                ("model", "LLaDA-8B", name_of(self.reader.model)),
                ("triplets", "500 of BeaverTails", f"{len(self.kept)} of {self._given[0]}"),
                ("repeats", "8", str(self.size["repeats"])),
                ("longest row", "not given", f"{self.size['window']} tokens"),
            ]
        )

    def variances(self) -> dict[tuple[str, int], list[tuple[float, float]]]:
        """Coupled and decoupled by design and rows, one pair for every triplet."""
        found: dict[tuple[str, int], list[tuple[float, float]]] = {}
        for (_, name), made in self._made.items():
            for rows, both in made["variance"].items():
                found.setdefault((name, int(rows)), []).append((both[0], both[1]))
        return found

    @property
    def spent(self) -> int:
        """Forward passes."""
        return passes_of(self._made)

    @functools.cached_property
    def _made(self) -> dict[tuple[Triplet, str], dict[str, Any]]:
        cells = [(text, name) for text in self.kept for name in (*SINGLE, *PLANNED)]
        settings = {**self.size, "texts": triplets_key(self.kept)}
        return self.workspace.keep_cells("triplets", settings, cells, self._make)

    @functools.cached_property
    def kept(self) -> list[Triplet]:
        def fits(one: Triplet) -> bool:
            both = (self.reader.fits(one.prompt, response) for response in (one.right, one.wrong))
            return all(both) and one.right != one.wrong

        wanted = self.size["triplets"]
        found = choose_fitting(self._given[1], fits, count=wanted, seed=self.workspace.seed)
        self.workspace.tell_missing(len(found), wanted, f"Triplets of {self._given[0]}")
        return found

    @functools.cached_property
    def _given(self) -> tuple[str, list[Triplet]]:
        return triplets(self.workspace)

    def _make(self, text: Triplet, name: str) -> dict[str, Any]:
        if name in SINGLE:
            (pool,) = self._compare(text, request(name, self.size["pool"]), 1)
            parts = (part.replicates.tolist() for part in (pool, pool.numerator, pool.denominator))
            one = _coupled_and_decoupled(*parts)
            variance = {rows: [part / rows for part in one] for rows in self.budgets}
            return {"variance": variance, "evaluations": pool.evaluations}
        made, spent = {}, 0
        for rows in self.budgets:
            found = self._compare(text, request(name, rows), self.size["repeats"])
            values = ((one.value, one.numerator.value, one.denominator.value) for one in found)
            made[rows] = _coupled_and_decoupled(*zip(*values, strict=True))
            spent += sum(one.evaluations for one in found)
        return {"variance": made, "evaluations": spent}

    def _compare(self, text: Triplet, wanted: Request, repeats: int) -> list[Ratio]:
        sides = margin(self.reader.model, *(self.reader.read(text.prompt, one) for one in (text.right, text.wrong)))
        seeds = repeat_names(key(self.workspace.seed, text.id), repeats)
        found = compare([Comparison(sides, wanted, seed=seed) for seed in seeds])
        return [_valid(one) for one in found]


def _valid(found: Ratio | InputError) -> Ratio:
    if isinstance(found, InputError):
        raise found
    return found


def _coupled_and_decoupled(ratio: Sequence[float], above: Sequence[float], below: Sequence[float]) -> list[float]:
    """Variance of coupled ratios, and what it would be if both sides were independent."""
    return [sample_variance(ratio), sample_variance(above) + sample_variance(below)]


def _coupled(found: Found, name: str, rows: int) -> list[float]:
    return [coupled for coupled, _ in found[name, rows]]


def _decoupled(found: Found, name: str, rows: int) -> list[float]:
    return [decoupled for _, decoupled in found[name, rows]]


def _gain(found: Found, name: str, rows: int) -> Measured:
    return Measured.ratio(_decoupled(found, name, rows), _coupled(found, name, rows))


def _against_paper(found: Found, rows: int) -> Measured:
    """How far ours is below the paper's estimator, both coupled."""
    return Measured.ratio(_coupled(found, FREE, rows), _coupled(found, OURS, rows))


def _claims(
    gains: Mapping[str, Measured],
    exact: ChainGains,
    ours: Mapping[int, Measured],
    rows: int,
) -> Iterator[Claim]:
    printed = [decoupled / coupled for coupled, decoupled in PAPER.values()]
    free, count = (
        {pair: gain for (pair, name, at), (_, gain) in exact.items() if (name, at) == (wanted, rows)}
        for wanted in (FREE, COUNT)
    )
    by_free, by_count = (", ".join(f"{gain} ({pair})" for pair, gain in found.items()) for found in (free, count))
    yield Claim(
        "Coupling substantially reduces the variance of a log-likelihood ratio, "
        f"{min(printed):.1f} to {max(printed):.1f} times in the table.",
        f"{gains[FREE]} times for the time-free form on the triplets; {by_free} on the oracle's pairs.",
        at_least(gains[FREE], 1),
    )
    smaller = _quotient(gains[FREE], gains[COUNT])
    yield Claim(
        "(Not in the paper.) What coupling removes is mostly the noise in sizes that the time-free form brings: "
        "designs without it gain less.",
        f"{gains[FREE]} times for the time-free form, {gains[COUNT]} for uniform counts, {gains[STRATIFIED]} for "
        f"stratified ones, {gains[OURS]} for the default of infodis. Uniform counts on the oracle's pairs: {by_count}.",
        at_least(smaller, 1),
    )
    yield Claim(
        "(Not in the paper.) At equal rows the default of infodis has a lower variance than the paper's coupled ratio.",
        f"Times lower, both coupled: {', '.join(f'{one} at {at} rows' for at, one in ours.items())}.",
        verdict_of_all([at_least(one, 1) for one in ours.values()]),
    )


def _reading(found: Found) -> Claim:
    """Offered beside the verdict: whose gain the printed one resembles, at all rows of the table."""
    drawn = (FREE, COUNT, STRATIFIED)
    printed = {rows: PAPER[rows][1] / PAPER[rows][0] for rows in sorted({rows for _, rows in found})}
    gains = {name: [_gain(found, name, rows) for rows in printed] for name in drawn}
    missed = {name: off_by([one.value for one in some], list(printed.values())) for name, some in gains.items()}
    nearest = min(missed, key=missed.__getitem__)
    told = "; ".join(f"{', '.join(map(str, some))} for {name}" for name, some in gains.items())
    return Claim(
        "(A reading of the table.) The runs drew counts uniformly or in strata, and not by the printed law of sizes.",
        f"Times that coupling lowers the variance at {', '.join(map(str, printed))} rows, as printed: "
        f"{', '.join(f'{one:.1f}' for one in printed.values())}. Ours: {told}. The printed gains are missed by a "
        f"factor of {', '.join(f'{factor:.1f} ({name})' for name, factor in missed.items())}: they resemble that of "
        f"{nearest} most. A resemblance is no proof: it stays a reading.",
        "does not hold" if nearest == FREE else "undecided",
    )


def _quotient(above: Measured, below: Measured) -> Measured:
    """Of two independent numbers; the error is linearised."""
    value = above.value / below.value
    relative = sum((one.standard_error / one.value) ** 2 for one in (above, below)) ** 0.5
    return Measured(value, value * relative)


def _table(found: Found) -> values.ReportTable:
    names = (*SINGLE, *PLANNED)
    rows: list[tuple[values.Cell, ...]] = []
    for budget in sorted({rows for _, rows in found}):
        coupled, decoupled = PAPER[budget]
        cells: list[str] = []
        for name in names:
            pair = Measured.mean(_coupled(found, name, budget)), Measured.mean(_decoupled(found, name, budget))
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
            points[f"{name}, {kind}"] = Measured.mean(pick(found, name, rows)).band
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
    means = {
        f"{name}, {kind}": {rows: Measured.mean(pick(found, name, rows)) for rows in budgets}
        for name in (FREE, COUNT, OURS)
        for kind, pick in (("coupled", _coupled), ("decoupled", _decoupled))
    }
    return variance_lines(means, over="triplets", title="Variance of ratios against forward passes of a side")
