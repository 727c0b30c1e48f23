"""Questions of Table 1(a) under a model: the variance of every design, computed from moments or by repeats."""

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from infodis.apps.bench.experiments import DESIGNS
from infodis.apps.bench.moments import Moments, law
from infodis.apps.report import values
from infodis.apps.reproduce.data import ARC, HELLASWAG, PIQA
from infodis.apps.reproduce.experiment import Workspace, name_of, settings_table
from infodis.apps.reproduce.triplets import (
    ResponseReader,
    Triplet,
    choose_fitting,
    passes_of,
    questions,
    repeat_names,
    sample_variance,
    triplets_key,
)
from infodis.control import Neighbours
from infodis.design import MaskDesign, Tiled
from infodis.errors import InputError
from infodis.estimate import Request, estimate_items
from infodis.item import Item
from infodis.result import Estimate
from infodis.rng import key

PAPER = {
    "HellaSwag": {128: (70.97, 11.57), 256: (30.19, 6.02), 512: (13.38, 2.92)},
    "ARC-Challenge": {128: (23.18, 5.73), 256: (18.14, 2.96), 512: (9.50, 1.82)},
    "PIQA": {128: (19.77, 4.93), 256: (15.15, 1.81), 512: (6.50, 1.22)},
}
"""Table 1(a): time integral and time-free by rows, on LLaDA-8B."""

DATA = {"HellaSwag": HELLASWAG, "ARC-Challenge": ARC, "PIQA": PIQA}

INTEGRAL, FREE, COUNT, LLADA = "TimeIntegral", "TimeFree (paper)", "UniformCount", "LLaDA's sampler"
RUN = "TimeIntegral, run"
"""As the paper's protocol has it: run again and again from level 0, not computed from moments."""
SCRIPT, STRATIFIED, PAIRS = "paper's script", "StratifiedCount", "Pairs"
OURS, OWN = "infodis' default", "infodis' default, by its own errors"
CONTROLLED = "Tiled, Neighbours"
BY_SIZE = (INTEGRAL, FREE, SCRIPT, COUNT, LLADA, STRATIFIED)
"""Designs whose rows are independent given their sizes (see `moments`)."""

CHOICES = {
    "time-integral": RUN,
    "time-free": FREE,
    "script": SCRIPT,
    "uniform-count": COUNT,
    "llada": LLADA,
    "stratified-count": STRATIFIED,
    "pairs": PAIRS,
    "tiled": "Tiled",
    "orders": "Orders",
    "orders-antithetic": "Orders, antithetic",
    "tiled-neighbours": CONTROLLED,
}
"""Designs by the names that --designs takes, to be run repeatedly. The default of infodis always is."""

Place = tuple[str, str, int]
"""Data set or problem, design and rows."""
Variances = Mapping[Place, Sequence[float]]
"""One for every text."""
TextCell = tuple[str, Triplet, str, int]


def requests(rows: int) -> dict[str, Request]:
    """Every design without a control, ours with it, and the default."""
    plain = {name: Request(design, None, rows) for name, design in DESIGNS.items() if name != "Auto"}
    return {
        **plain,
        RUN: plain[INTEGRAL],
        CONTROLLED: Request(Tiled(), Neighbours(), rows),
        OURS: Request(evaluations=rows),
    }


def chosen_designs(names: Sequence[str]) -> tuple[str, ...]:
    """By what --designs says; all if it says nothing."""
    unknown = [name for name in names if name not in CHOICES]
    if unknown:
        raise InputError(f"There is no design {unknown[0]!r}. --designs takes some of {', '.join(CHOICES)}.")
    return tuple(CHOICES[name] for name in names or CHOICES)


def fits_rows(design: MaskDesign, target: int, rows: int) -> bool:
    """Whether a design can plan so many rows."""
    try:
        design.layout(target, rows)
    except InputError:
        return False
    return True


@dataclasses.dataclass(frozen=True)
class TextVariances:
    """Questions with the paper's responses, under a model.

    Designs whose rows are independent given their sizes have variances that follow from moments by size, at any budget;
    `Pairs` are independent of each other, so the variance of one budget gives that of another. The default, which plans
    all its rows together, is run repeatedly, and so is the time integral, by the paper's protocol: from level 0, where
    its variance is infinite, so that its moments are taken from a level above. What --designs names is run too; the
    full size runs every design, unless it says which.
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
        return self.workspace.few(int(self.workspace.pick(2, 10, 30)))

    def wanted(self, rows: int) -> list[str]:
        """Designs that are run repeatedly with so many rows."""
        if self.workspace.size == "full" or self.workspace.designs:
            return [OURS, *chosen_designs(self.workspace.designs)]
        return [OURS, RUN] if rows == next(iter(self.repeats)) else [OURS]

    @property
    def data(self) -> list[str]:
        return list(PAPER) if self.workspace.size != "smoke" else ["HellaSwag"]

    @property
    def about(self) -> str:
        repeats = ", ".join(f"{count} at {rows}" for rows, count in self.repeats.items())
        source = ", ".join(f"{len(some)} of {data}" for data, some in self.kept.items())
        if self.workspace.size == "smoke":
            source = "built-in ones"
        return (
            f"Texts: random questions ({source}) under {name_of(self.reader.model)}, the prompt's end and the response "
            f"'Correct: ... | Incorrect: ...' in windows of {self.reader.window} tokens; questions with longer "
            f"responses are left out. Repeats by rows: {repeats}."
        )

    @functools.cached_property
    def kept(self) -> dict[str, list[Triplet]]:
        """Random questions of every data set that fit the window."""
        found = {}
        for data in self.data:
            found[data] = choose_fitting(
                questions(self.workspace, DATA[data]),
                lambda one: self.reader.fits(one.prompt, one.both),
                count=self.count,
                seed=self.workspace.seed,
            )
            self.workspace.tell_missing(len(found[data]), self.count, f"Questions of {data}")
        return found

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
        return passes_of(self._made)

    @functools.cached_property
    def _made(self) -> dict[TextCell, dict[str, Any]]:
        cells = list(self._cells())
        settings = {
            "model": self.reader.model.fingerprint,
            "count": self.count,
            "window": self.reader.window,
            "repeats": {str(rows): count for rows, count in self.repeats.items()},
            "designs": {str(rows): self.wanted(rows) for rows in self.repeats},
            "texts": triplets_key(text for _, text, _, _ in cells),
        }
        return self.workspace.keep_cells("texts", settings, cells, self._make)

    def _cells(self) -> Iterator[TextCell]:
        """Data set, text, design and rows of every piece of work; without rows, moments by size."""
        first = next(iter(self.repeats))
        for data, text in ((data, text) for data, some in self.kept.items() for text in some):
            yield data, text, "by size", 0
            if PAIRS not in self.wanted(first):
                yield data, text, PAIRS, 0
            for rows in self.repeats:
                yield from ((data, text, name, rows) for name in self._repeated(text, rows))

    def _repeated(self, text: Triplet, rows: int) -> list[str]:
        length = self.reader.read(text.prompt, text.both).target.numel()
        every = requests(rows)
        return [name for name in self.wanted(rows) if fits_rows(every[name].design, length, rows)]

    def _make(self, data: str, text: Triplet, design: str, rows: int) -> dict[str, Any]:
        item = self.reader.read(text.prompt, text.both)
        if rows == 0:
            return self._pairs(item, next(iter(self.repeats))) if design == PAIRS else self._by_size(item)
        return self._repeats(item, design, rows)

    def _by_size(self, item: Item) -> dict[str, Any]:
        moments = Moments.drawn(self.reader.model, item, seed=self.workspace.seed)
        length = item.target.numel()
        variance = {
            name: {
                rows: moments.variance(law(DESIGNS[name], length, rows))
                for rows in self.repeats
                if name not in self.wanted(rows)
            }
            for name in BY_SIZE
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

    def settings_table(self) -> values.ReportTable:
        """Beside the paper's."""
        repeats = ", ".join(f"{count} at {rows}" for rows, count in self.repeats.items())
        return settings_table(
            [
                ("model", "LLaDA-8B", name_of(self.reader.model)),
                ("texts of each data set", "30, 30, 30", ", ".join(str(len(some)) for some in self.kept.values())),
                ("repeats", "15 at 128, 15 at 256, 15 at 512", repeats),
                ("longest row", "not given", f"{self.reader.window} tokens"),
            ]
        )
