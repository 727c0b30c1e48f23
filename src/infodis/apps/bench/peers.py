"""Samplers that other projects use, faults included: to compare with, and as negative controls for the tests.

Some need no entry: `infodis.design.Pairs` is what ESPO draws, and the unbiased form of DiffuCoder's pairs; VRPO draws
`infodis.design.TimeIntegral`, on masks that policy and reference share.
"""

import dataclasses

import numpy as np
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


@dataclasses.dataclass(frozen=True)
class FullMask(MaskDesign):
    """d1's and diffu-GRPO's estimate: everything masked at once, and the sum of all tokens called log p.

    Biased: tokens are taken for independent of each other. More draws are the same draw.
    """

    def layout(self, length: int, rows: int) -> Layout:
        return Layout(replicates=1, rows=rows)

    def masks(self, levels: Levels, keys: Keys) -> WeightedMasks:
        masked = torch.ones_like(keys, dtype=torch.bool)
        return masked, masked.double() / keys.shape[-2]


@dataclasses.dataclass(frozen=True)
class CoupledWeights(MaskDesign):
    """DiffuCoder's coupled estimate: the full mask, a mask of a share t of the tokens and its complement, and half.

    Biased: with weights 1, 1/t and 1/(1 - t) the expected weight of a token is 1.5, and sizes are few near the ends,
    because t is uniform on 0.2 to 0.8.
    """

    def layout(self, length: int, rows: int) -> Layout:
        return self.fewest_replicates(length, rows)

    def fewest_replicates(self, length: int, rows: int) -> Layout:
        if rows < 3:
            raise InputError(f"This sampler draws three masks at a time, got a budget of {rows}.")
        return Layout(replicates=rows // 3, rows=3)

    def masks(self, levels: Levels, keys: Keys) -> WeightedMasks:
        share = 0.2 + 0.6 * levels[..., :1]
        one = keys[..., :1, :] < share.unsqueeze(-1)
        masked = torch.cat([torch.ones_like(one), one, ~one], dim=-2)
        weight = 0.5 / torch.cat([torch.ones_like(share), share, 1 - share], dim=-1)
        return masked, masked * weight.unsqueeze(-1)


@dataclasses.dataclass(frozen=True)
class GaussNodes(MaskDesign):
    """GDPO's semi-deterministic estimate (SDMC): the time integral by Gauss-Legendre nodes, one random mask at each.

    Biased where a target has more tokens than twice the nodes: the integrand is a polynomial of degree m - 1 in the
    time, which n nodes integrate exactly up to degree 2 n - 1.
    """

    def layout(self, length: int, rows: int) -> Layout:
        return Layout(replicates=1, rows=rows)

    def masks(self, levels: Levels, keys: Keys) -> WeightedMasks:
        nodes, share = (torch.from_numpy(part) for part in np.polynomial.legendre.leggauss(keys.shape[-2]))
        times, share = (nodes + 1) / 2, share / 2
        masked = keys < times.unsqueeze(-1)
        return masked, masked * (share / times).unsqueeze(-1)
