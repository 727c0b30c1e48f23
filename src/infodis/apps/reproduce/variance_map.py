"""Where the time-free form beats the time integral: maps of target length by entropy.

For independent tokens with surprisals f_i, all that masks do is to leave some out. With S = sum of f_i and
Q = sum of f_i^2 one row has the variance

    Q (log(1 / e) - 1)          for the time integral from a level e on, about,
    H_m (S^2 + Q) / 2 - S^2     for the time-free form.

With n = S^2 / Q, the number of tokens that share the surprise, the time-free form wins if

    n (H_m / 2 - 1) + H_m / 2 < log(1 / e) - 1:

for short targets, or where one or two tokens hold nearly all of the surprise. One map has n open tokens among certain
ones. Tokens of chains depend on each other; in the other map, of chains, moments by size are drawn.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Mapping
from typing import Any

import torch

from infodis import figures
from infodis.apps.bench.experiments import DESIGNS
from infodis.apps.bench.moments import LOWEST, Moments, law
from infodis.apps.reproduce.experiment import Claim, Verdict, Workspace, at_least
from infodis.figures import Figure
from infodis.item import Item
from infodis.oracle import MarkovChain, Oracle
from infodis.result import Measured
from infodis.rng import stream

VOCABULARY, ORDER, CONTEXT = 4, 2, 16
BITS = math.log2(VOCABULARY)
"""Of an open token."""
COMPARED = ("TimeIntegral", "TimeFree (paper)")
BETTER = ("time-free varies less", "time integral varies less")
RATIO = (
    "The logarithm (base 2) of the variance of the time integral divided by that of the time-free form at equal rows. "
    f"The time integral begins at level {LOWEST:g}; from 0 on it has no finite variance at all."
)

Row = tuple[Measured | None, ...]
"""The variance of the time integral divided by that of the time-free form, for every length that there can be."""


@dataclasses.dataclass(frozen=True)
class VarianceMap:
    """Both maps. They have a row for each chain, by bits per token, and for each number of open tokens."""

    lengths: tuple[int, ...]
    sequences: int
    chains: Mapping[float, Row]
    opened: Mapping[int, Row]

    @staticmethod
    def of(workspace: Workspace) -> "VarianceMap":
        sizes, temperatures, sequences = workspace.pick(
            ((4, 16), (0.5, 0.1), 2),
            ((4, 8, 16, 32, 64, 128, 256), (0.5, 0.2, 0.14, 0.1, 0.07, 0.05), 8),
            ((4, 8, 16, 32, 64, 128, 256, 512), (0.5, 0.3, 0.2, 0.14, 0.1, 0.07, 0.05), 32),
        )
        make = functools.partial(MarkovChain.random, order=ORDER, vocab_size=VOCABULARY, seed=0)  # for any workspace
        chains = {temperature: make(temperature=temperature) for temperature in temperatures}
        settings = {"sequences": sequences, "lowest": LOWEST, "order": ORDER}
        made = workspace.keep_cells(
            "map",
            settings,
            itertools.product(chains, sizes),
            lambda temperature, length: variances(chains[temperature], length, sequences, workspace.seed),
        )
        found = {where: Measured.ratio(*one) for where, one in made.items()}
        rows = {entropy(chain): tuple(found[t, length] for length in sizes) for t, chain in chains.items()}
        counts = [n for n in (1, 2, 4, 16, 64) if n <= sizes[-1]]
        opened = {n: tuple(_open(n, length) if n <= length else None for length in sizes) for n in counts}
        return VarianceMap(sizes, sequences, rows, opened)

    @property
    def about(self) -> str:
        return (
            f"Maps: order-{ORDER} chains over {VOCABULARY} letters, {self.sequences} sequences of every length from "
            f"{self.lengths[0]} to {self.lengths[-1]}; and independent tokens of which some are open, exactly."
        )

    def claim(self) -> Claim:
        places = [one for row in (*self.chains.values(), *self.opened.values()) for one in row if one is not None]
        won = [_wins(one) for one in places]
        verdict: Verdict = "holds" if all(won) else "holds in part" if any(won) else "does not hold"
        chains = "; ".join(f"{self._longest(row)} at {bits:.2f} bits per token" for bits, row in self.chains.items())
        opened = "; ".join(f"{self._longest(row)} with {_tokens(n)}" for n, row in self.opened.items())
        return Claim(
            "(Not in the paper.) The time-free form varies less than the time integral, whatever the text and length.",
            f"In {sum(won)} of {len(won)} places of the maps, beyond two standard errors. The longest targets for "
            f"which it does, on chains: {chains}; with independent tokens of which all are certain but a few: "
            f"{opened}.",
            verdict,
        )

    def _longest(self, row: Row) -> str:
        won = [length for length, one in zip(self.lengths, row, strict=True) if one is not None and _wins(one)]
        return str(max(won)) if won else "none"

    def figures(self) -> tuple[Figure, ...]:
        chains = {f"{bits:.2f}": row for bits, row in self.chains.items()}
        opened = {_tokens(n): row for n, row in self.opened.items()}
        return (
            self._figure(chains, "bits per token", "map", "Chains: time-free against time integral"),
            self._figure(opened, "surprise is in", "map-open", "Independent tokens: time-free against time integral"),
        )

    def _figure(self, rows: Mapping[str, Row], axis: str, name: str, title: str) -> Figure:
        return figures.grid(
            [[None if one is None else math.log2(one.value) for one in row] for row in rows.values()],
            rows=list(rows),
            columns=[str(length) for length in self.lengths],
            axes=("target length", axis),
            errors=[
                [0.0 if one is None else one.standard_error / one.value / math.log(2) for one in row]
                for row in rows.values()
            ],
            quantity="log2 of the ratio",
            signs=BETTER,
            name=name,
            title=title,
            caption=RATIO,
        )

    def numbers(self) -> dict[str, Any]:
        named = {f"chain, {bits:.3f} bits": row for bits, row in self.chains.items()}
        named |= {f"{n} open": row for n, row in self.opened.items()}
        return {
            name: {
                str(length): dataclasses.asdict(one)
                for length, one in zip(self.lengths, row, strict=True)
                if one is not None
            }
            for name, row in named.items()
        }


def _wins(ratio: Measured) -> bool:
    """Whether the time-free form varies less, beyond two standard errors."""
    return at_least(ratio, 1) == "holds"


def _tokens(count: int) -> str:
    return f"{count} token{'s' if count > 1 else ''}"


def variances(source: Oracle, length: int, sequences: int, seed: int) -> tuple[list[float], list[float]]:
    """Of one row of the time integral and of the time-free form, for sequences that the source draws."""
    drawn = source.sample(sequences, length=CONTEXT + length, generator=stream(seed, "map", length))
    found = [Moments.drawn(source, Item.read(tokens, context=range(CONTEXT)), seed=seed) for tokens in drawn]
    integral, free = ([moments.variance(law(DESIGNS[name], length, 1)) for moments in found] for name in COMPARED)
    return integral, free


def _open(count: int, length: int) -> Measured:
    """For independent tokens of which so many are open and the others certain."""
    surprisal = torch.zeros(length, dtype=torch.float64)
    surprisal[:count] = BITS * math.log(2)
    moments = Moments.independent(surprisal)
    integral, free = (moments.variance(law(DESIGNS[name], length, 1)) for name in COMPARED)
    return Measured(integral / free, 0.0)


def entropy(chain: MarkovChain) -> float:
    """Bits per token, given all before it."""
    nats = -(chain.start.unsqueeze(-1) * torch.special.xlogy(chain.transitions, chain.transitions)).sum()
    return float(nats) / math.log(2)
