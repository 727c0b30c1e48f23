"""Laws that every design must keep, and the exact answers to check them with."""

import itertools
import math

import torch

from infodis.auto import Auto
from infodis.design import (
    Enumerate,
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
from infodis.rng import stream

RANDOM_DESIGNS: list[MaskDesign] = [
    TimeFree(),
    UniformCount(),
    StratifiedCount(),
    Pairs(),
    Tiled(),
    Tiled(power=0.5),
    Orders(),
    Orders(antithetic=True),
]
"""Designs that rank keys, so that relabelling positions relabels their masks."""

ALL_DESIGNS: list[MaskDesign] = [TimeIntegral(), *RANDOM_DESIGNS, Enumerate(), Auto()]


def certificate(length: int) -> dict[int, float]:
    """The weight that must be expected on every (mask, position) pair, by the size of the mask [eq:certificate]."""
    return {size: 1 / (size * math.comb(length, size)) for size in range(1, length + 1)}


def expected_weights(design: MaskDesign, length: int, rows: int, *, seed: int = 0) -> torch.Tensor:
    """The expected weight on every (mask code, position): exact over relabellings and over levels.

    A design is a function of levels and keys that commutes with relabelling positions, so for any fixed keys the mean
    over all m! relabellings is the mean over keys. Sizes are step functions of levels: the mean over levels is taken
    as the mean over the pieces on which nothing changes, found by `level_pieces`.
    """
    relabellings = torch.tensor(list(itertools.permutations(range(length))))
    _, keys = numbers(length, Layout(1, rows), [stream(seed, "law", length)])
    relabelled = keys[0][:, relabellings].transpose(0, 1)  # relabellings, rows, length
    total = torch.zeros(2**length, length, dtype=torch.float64)
    for probability, levels in level_pieces(design, length, rows):
        masked, weight = design.masks(levels.expand(len(relabelled), -1), relabelled)
        code = (masked * 2 ** torch.arange(length)).sum(-1).flatten()
        total.index_add_(0, code, probability * weight.flatten(0, 1) / len(relabelled))
    return total


def level_pieces(design: MaskDesign, length: int, rows: int):
    """Pairs (probability, levels): one per combination of pieces of [0, 1) on which no row's size changes."""
    grid = 5040 * 4
    middles = (torch.arange(grid, dtype=torch.float64) + 0.5) / grid
    keys = torch.linspace(0.01, 0.99, length, dtype=torch.float64).expand(grid, rows, length)
    sizes = design.masks(middles.unsqueeze(1).expand(-1, rows), keys)[0].sum(-1)
    pieces = []
    for row in range(rows):
        changes = (sizes[1:, row] != sizes[:-1, row]).nonzero().squeeze(1) + 1
        edges = [0.0, *(_edge(design, length, rows, row, middles[c - 1], middles[c]) for c in changes), 1.0]
        pieces.append([(b - a, (a + b) / 2) for a, b in itertools.pairwise(edges)])
    for combination in itertools.product(*pieces):
        yield (
            math.prod(p for p, _ in combination),
            torch.tensor([level for _, level in combination], dtype=torch.float64),
        )


def _edge(design: MaskDesign, length: int, rows: int, row: int, low: torch.Tensor, high: torch.Tensor) -> float:
    """The level at which the size of one row changes, by bisection."""
    low, high = float(low), float(high)
    keys = torch.linspace(0.01, 0.99, length, dtype=torch.float64).expand(1, rows, length)

    def size(level: float) -> int:
        return int(design.masks(torch.full((1, rows), level, dtype=torch.float64), keys)[0][0, row].sum())

    start = size(low)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if size(middle) == start else (low, middle)
    return (low + high) / 2


def violation(design: MaskDesign, length: int, rows: int) -> float:
    """The largest relative deviation from the certificate."""
    found = expected_weights(design, length, rows)
    worst = 0.0
    for size, wanted in certificate(length).items():
        for mask in itertools.combinations(range(length), size):
            code = sum(2**i for i in mask)
            worst = max(worst, float((found[code, list(mask)] / wanted - 1).abs().max()))
    return worst
