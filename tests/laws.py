"""The designs that the laws of `infodis.testing` are checked on."""

from infodis.auto import Auto
from infodis.design import (
    Dealt,
    Enumerate,
    MaskDesign,
    Orders,
    Pairs,
    PowerCount,
    StratifiedCount,
    Tiled,
    TimeFree,
    TimeIntegral,
    UniformCount,
)

RANDOM_DESIGNS: list[MaskDesign] = [
    TimeFree(),
    UniformCount(),
    PowerCount(),
    StratifiedCount(),
    Pairs(),
    Dealt(),
    Dealt(slope=0.0, power=0.5),
    Tiled(),
    Tiled(power=0.5),
    Orders(),
    Orders(antithetic=True),
]
"""Designs that rank keys, so that relabelling positions relabels their masks."""

ALL_DESIGNS: list[MaskDesign] = [TimeIntegral(), *RANDOM_DESIGNS, Enumerate(), Auto()]
