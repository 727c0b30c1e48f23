"""Samplers that other projects use, faults included: to compare with, and as negative controls for the tests.

Complementary pairs (DiffuCoder, ESPO) need no entry: `infodis.design.Pairs` is their unbiased form.
"""

import dataclasses

import torch

from infodis.design import Keys, Layout, Levels, MaskDesign, TimeFree, WeightedMasks, lowest
from infodis.errors import InputError


@dataclasses.dataclass(frozen=True)
class PaperSampler(MaskDesign):
    """The mask sampler of the paper's scripts: `TimeFree` without the full mask, but still multiplied by H_m.

    Biased: the term of size m is missing.
    """

    def layout(self, length: int, rows: int) -> Layout:
        return TimeFree().layout(length, rows)

    def masks(self, levels: Levels, keys: Keys) -> WeightedMasks:
        length = keys.shape[-1]
        harmonic = sum(1 / k for k in range(1, length + 1))
        last = 1 / (length * harmonic)
        return TimeFree().masks(levels * (1 - last), keys)


@dataclasses.dataclass(frozen=True)
class LladaSampler(MaskDesign):
    """LLaDA's sampler: sizes spread evenly from a random start over a batch of 16, and rounded.

    Biased unless the batch size divides the length: rounding gives some sizes twice the weight of others.
    """

    batch: int = 16

    def layout(self, length: int, rows: int) -> Layout:
        if rows < 2 * self.batch:
            raise InputError(f"This sampler draws batches of {self.batch}; two of them take {2 * self.batch} rows.")
        return Layout(rows // self.batch, self.batch)

    def masks(self, levels: Levels, keys: Keys) -> WeightedMasks:
        rows, length = keys.shape[-2:]
        start = 1 + (levels[..., :1] * length).long()
        spread = torch.round(start + torch.arange(rows) * (length / rows)).long()
        sizes = (spread - 1) % length + 1
        masked = lowest(keys, sizes)
        return masked, masked * (length / (rows * sizes.double())).unsqueeze(-1)
