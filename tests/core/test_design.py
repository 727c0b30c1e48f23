import dataclasses
import re

import pytest
import torch
from laws import ALL_DESIGNS, RANDOM_DESIGNS
from torch import Tensor

from infodis.apps.bench.peers import LladaSampler, PaperSampler
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
    _deal,
    numbers,
    numbers_of,
)
from infodis.errors import InputError
from infodis.rng import stream
from infodis.testing import certificate, certificate_error


def rows_for(design: MaskDesign, length: int) -> int:
    """Few rows, so that all combinations of levels can be listed."""
    if isinstance(design, Orders):
        return design.layout(length, 1000).rows
    return 2 if length > 4 else 3


def drawn(design: MaskDesign, length: int, rows: int, name: str) -> tuple[Tensor, Tensor]:
    """Masks and weights of all replicates that a budget pays for."""
    layout = design.layout(length, rows)
    return design.masks(*numbers(length, layout, [stream(0, name, r) for r in range(layout.replicates)]))


def passes(masked: Tensor) -> int:
    """Forward passes that masks take: a row with nothing masked costs none."""
    rows = masked.flatten(0, 1)
    return len(rows[rows.any(-1)].unique(dim=0))


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 6, 7])
@pytest.mark.parametrize("design", RANDOM_DESIGNS, ids=repr)
def test_certificate_against_enumeration(design, length):
    rows = 2 if isinstance(design, Pairs) else rows_for(design, length)
    assert certificate_error(design, length, rows) < 1e-9


@pytest.mark.parametrize("length", [1, 2, 3, 5, 7])
def test_time_integral_certificate_against_quadrature(length):
    """Masks are key < level: given level u a mask of size k has probability u^k (1-u)^(m-k); Gauss is exact on that."""
    nodes, weights = (torch.from_numpy(a) for a in __import__("numpy").polynomial.legendre.leggauss(16))
    levels, weights = (nodes + 1) / 2, weights / 2
    for size, wanted in certificate(length).items():
        keys = torch.where(torch.arange(length) < size, levels[:, None] / 2, (1 + levels[:, None]) / 2)
        masked, weight = TimeIntegral().masks(levels[:, None], keys[:, None])
        assert (masked.sum(-1) == size).all()
        probability = levels**size * (1 - levels) ** (length - size)
        assert float((weights * probability * weight[:, 0, 0]).sum()) == pytest.approx(wanted, rel=1e-9)


@pytest.mark.parametrize("length", [1, 2, 5, 8])
def test_enumerate_weights_against_certificate(length):
    masked, weight = (one[0] for one in drawn(Enumerate(), length, 2**length - 1, "enumerate"))
    assert passes(masked[None]) == 2**length - 1
    wanted = torch.tensor([certificate(length)[int(k)] for k in masked.sum(-1)])
    assert torch.allclose(weight, masked * wanted[:, None].double())


@dataclasses.dataclass(frozen=True)
class DroppedWeight(MaskDesign):
    """Negative control: the weight m/k is forgotten for one size."""

    def layout(self, length, rows):
        return Layout(rows, 1)

    def masks(self, levels, keys):
        masked, weight = StratifiedCount().masks(levels, keys)
        return masked, torch.where(masked.sum(-1, keepdim=True) == 1, masked / levels.shape[-1], weight)


@pytest.mark.parametrize(
    ("wrong", "length", "rows"),
    [(PaperSampler(), 4, 2), (DroppedWeight(), 4, 2), (LladaSampler(batch=4), 6, 4), (LladaSampler(batch=8), 4, 8)],
    ids=["no full mask", "dropped weight", "rounded strata 6/4", "rounded strata 4/8"],
)
def test_negative_controls_fail_the_certificate(wrong, length, rows):
    assert certificate_error(wrong, length, rows) > 0.05


def test_llada_sampler_is_right_where_the_batch_divides_the_length():
    assert certificate_error(LladaSampler(batch=2), 4, 2) < 1e-9


@pytest.mark.parametrize("design", RANDOM_DESIGNS, ids=repr)
@pytest.mark.parametrize(("length", "rows"), [(1, 4), (5, 7), (16, 32), (50, 20)])
def test_relabelling_positions_relabels_masks(design, length, rows):
    layout = Layout(3, 2 if isinstance(design, Pairs) else rows)
    if isinstance(design, Orders):
        layout = Layout(3, design.layout(length, 1000).rows)
    levels, keys = numbers(length, layout, [stream(7, r) for r in range(3)])
    relabel = torch.randperm(length, generator=stream(8, "relabel"))
    plain, weight = design.masks(levels, keys)
    moved, moved_weight = design.masks(levels, keys[..., relabel])
    assert torch.equal(moved, plain[..., relabel])
    assert torch.equal(moved_weight, weight[..., relabel])


@pytest.mark.parametrize("design", [TimeFree(), StratifiedCount(), Pairs(), Tiled(), Orders()], ids=repr)
def test_weights_stand_on_masked_positions_only(design):
    masked, weight = drawn(design, 9, 64, "weights")
    assert (weight[~masked] == 0).all()
    assert (weight >= 0).all()


@pytest.mark.parametrize(("length", "rows"), [(1, 8), (3, 8), (16, 128), (16, 37), (64, 32), (300, 64)])
def test_tiled_has_total_weight_m_and_even_positions(length, rows):
    levels, keys = numbers(length, Layout(1, rows), [stream(2, r) for r in range(5)])
    masked, weight = Tiled().masks(levels, keys)
    assert torch.allclose(weight.sum((-1, -2)), torch.full((5,), float(length), dtype=torch.float64))
    hits = masked.sum(1)
    assert int((hits.max(-1).values - hits.min(-1).values).max()) <= 1  # every deck is dealt to the end but the last
    sizes = masked.sum(-1)
    assert int(sizes.min()) >= 1
    assert int(sizes.max()) <= length


def test_tiled_spreads_pairs_better_than_independent_masks():
    levels, keys = numbers(16, Layout(1, 32), [stream(3, r) for r in range(200)])

    def unevenness(design):
        masked = design.masks(levels, keys)[0].double()
        together = masked.transpose(1, 2) @ masked
        off = ~torch.eye(16, dtype=torch.bool)
        return float(together[:, off].var(-1).mean())

    assert unevenness(Tiled(power=0)) < 0.8 * unevenness(StratifiedCount())


def test_decks_are_dealt_crosswise_so_that_no_pair_meets_twice():
    """Rows of 4 out of 16: two decks are the rows and the columns of a square, and two places share one line at most.

    So a pair meets 0 or 1 times, with variance 0.4 x 0.6; in decks shuffled independently it is 2 x 0.2 x 0.8.
    """
    keys = numbers(16, Layout(1, 8), [stream(9, r) for r in range(50)])[1]
    masked = _deal(keys, torch.full((50, 8), 4)).double()
    meetings = (masked.transpose(1, 2) @ masked)[:, ~torch.eye(16, dtype=torch.bool)]
    assert meetings.unique().tolist() == [0, 1]
    assert float(meetings.mean()) == pytest.approx(0.4)


def test_orders_rows_are_nested_and_shared():
    masked, _ = drawn(Orders(), 6, 31, "orders")
    assert len(masked) == 6  # (31 - 1) // 5
    assert passes(masked) <= 31
    first = masked[0]
    assert first.sum(-1).tolist() == [6, 5, 4, 3, 2, 1]
    assert (first[1:] <= first[:-1]).all()


def test_antithetic_orders_are_reverses():
    _, weight = Orders(antithetic=True).masks(*numbers(5, Layout(1, 10), [stream(5, "a")]))
    turn = weight[0, :5].argmax(0)
    back = weight[0, 5:].argmax(0)
    assert torch.equal(turn, 4 - back)
    assert weight.sum() == 5


@pytest.mark.parametrize("design", ALL_DESIGNS, ids=repr)
def test_budget_too_small_names_the_smallest_legal_one(design):
    with pytest.raises(InputError) as error:
        design.layout(12, 1)
    smallest = int(re.search(r"(?:needs|takes) (\d+) forward passes", str(error.value))[1])
    assert design.layout(12, smallest).rows >= 1
    with pytest.raises(InputError):
        design.layout(12, smallest - 1)


def test_evaluations_stay_within_the_budget():
    for design in ALL_DESIGNS:
        for rows in (64, 100, 255, 300):
            masked, _ = drawn(design, 8, max(rows, 255) if isinstance(design, Enumerate) else rows, str(rows))
            assert passes(masked) <= max(rows, 255)


def test_designs_are_values():
    assert Tiled() == Tiled(power=0.2)
    assert hash(Auto()) == hash(Auto())
    assert repr(Orders(antithetic=True)) == "Orders(antithetic=True)"
    with pytest.raises(InputError, match="power"):
        Tiled(power=-1)


def test_enumerate_refuses_long_targets():
    with pytest.raises(InputError, match="past 20"):
        Enumerate().layout(21, 10**9)
    with pytest.raises(InputError, match="1023"):
        Enumerate().layout(10, 128)


def test_numbers_of_levels_and_positions_are_all_different_and_begin_alike():
    """Which positions are masked does not depend on how many; a longer target begins with the keys of a shorter one."""
    (levels, keys), (short_levels, short_keys) = (
        numbers(length, Layout(2, 4), [stream(5, r) for r in range(2)]) for length in (6, 3)
    )
    assert torch.cat([levels.unsqueeze(-1), keys], dim=-1).unique().numel() == 2 * 4 * 7
    assert torch.equal(levels, short_levels)
    assert torch.equal(keys[..., :3], short_keys)


def test_many_streams_give_what_each_gives_alone():
    paths: list[tuple[int | str, ...]] = [(7, 0), (7, 1), ("x", 3)]
    layout = Layout(rows=4, replicates=1)
    alone = numbers(6, layout, [stream(5, *path) for path in paths])
    for one, other in zip(alone, numbers_of(6, layout, seed=5, paths=paths), strict=True):
        assert torch.equal(one, other)
