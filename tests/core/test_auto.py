"""`Auto`: its pilot, and that it is never far behind the better of `Tiled` and `Orders`.

The negative control is the pilot of an earlier version, which looked at three neighbours only.
"""

import dataclasses
import math

import pytest
import torch

import infodis
from infodis.apps.bench.experiments import measure
from infodis.apps.bench.problems import Problem, chain_problem, random_problem
from infodis.auto import Auto
from infodis.design import MaskDesign, Orders, Tiled
from infodis.estimate import Request
from infodis.oracle import Independent
from infodis.rng import stream
from infodis.testing import Perturbed

RUNS, ROWS = 300, 64
LIMIT = 2.5
"""The true ratios are at most 1.4; over 300 runs their logarithm has an error of about 0.13, so that the limit is more
than four such errors away: less than one false alarm in 10,000 changes of seeds."""


@dataclasses.dataclass(frozen=True)
class OldAuto(Auto):
    """One star of three neighbours around the middle; `Tiled` is judged by how surprisals differ within a row."""

    def pilot(self, length: int, rows: int):
        keys = torch.rand(length, generator=stream(0, "old pilot"))
        middle = length // 2
        keys[middle - 1 : middle + 2] = -1.0
        base = keys <= keys.sort().values[middle - 1]
        return torch.stack([base, *(base & (torch.arange(length) != middle + step) for step in (-1, 0, 1))])

    def choose_design(
        self, length: int, rows: int, surprisal, *, precision: float | None = None
    ) -> tuple[MaskDesign, int]:
        base = self.pilot(length, rows)[0]
        near = surprisal[:, length // 2 - 1 : length // 2 + 2]
        changes = near[0] - near[1:]
        commutators = (changes - changes.T)[~torch.eye(3, dtype=torch.bool)]
        left = rows - len(surprisal)
        predicted = 0.75 * length * commutators.square().mean() / Orders().layout(length, left).replicates
        inside = surprisal[0][base]
        typical = length / rows * max(inside.var(), inside.mean() ** 2 / 4)
        return (Orders() if predicted < typical else Tiled()), left


def behind(design: MaskDesign, problem: Problem) -> float:
    """The mean squared error of a design over that of the better of `Tiled` and `Orders`."""
    mine, tiled, orders = (
        measure(problem, Request(one, evaluations=ROWS), runs=RUNS).mean_squared_error
        for one in (design, Tiled(), Orders())
    )
    return mine / min(tiled, orders)


@pytest.fixture(scope="module")
def networks() -> Problem:
    """Random networks: surprisals depend smoothly on everything that is visible; `Tiled` is better by ten."""
    return random_problem(count=2)


def test_auto_is_never_far_behind_on_random_networks(networks):
    assert behind(Auto(), networks) < LIMIT


def test_the_old_pilot_is_far_behind_on_random_networks(networks):
    assert behind(OldAuto(), networks) > 2 * LIMIT


def test_auto_is_never_far_behind_on_chains_that_nearly_agree():
    """`Orders` is better by four."""
    assert behind(Auto(), chain_problem(0.5, count=2, noise=0.05, target=12)) < LIMIT


def test_pilot_masks_are_fixed_and_hold_commutators():
    one, two = Auto().pilot(16, 192), Auto().pilot(16, 192)
    assert torch.equal(one, two)
    stars = one.unflatten(0, (-1, 8))
    revealed = stars[:, :1] & ~stars[:, 1:]
    assert (revealed.sum(-1) == 1).all()
    steps = revealed.long().argmax(-1).diff()
    assert (steps[0] == 1).all()  # neighbours
    assert (steps[1] > 1).all()  # far apart
    assert stars[:, 0].sum(-1).tolist() == [8, 7]  # of sizes around a half, and at least what is revealed


def test_pilots_are_small_and_there_is_none_without_a_choice():
    assert Auto().pilot(16, 16).shape[0] == 0  # two orders would not fit
    assert Auto().pilot(6, 128).shape[0] == 0  # everything can be enumerated
    assert Auto().pilot(12, 32).shape[0] == 4  # few rows, a small star
    assert Auto().pilot(12, 64).shape[0] == 8


def pilot_of(length: int, rows: int, change: float, disagreement: float = 0.0) -> torch.Tensor:
    """What a pilot sees where every revealed token changes every other one by `change`, up to a difference."""
    masked = Auto().pilot(length, rows)
    stars = masked.unflatten(0, (-1, 8))
    surprisal = torch.zeros(stars.shape, dtype=torch.float64)
    side = torch.arange(length) % 2  # tokens at odd places change more: the two changes of a pair differ
    surprisal[:, 1:] = -(change + disagreement * side)
    return surprisal.flatten(0, 1) * masked


def test_requests_take_what_is_cheaper():
    """Four orders of 60 tokens are 236 rows; `Tiled` is expected to need 185 for 0.5 nats, and 2,200 for 0.1."""
    rows = 219
    chosen, left = Auto().choose_design(60, rows, pilot_of(60, rows, change=0.8), precision=0.5)
    assert (chosen, left) == (Tiled(), rows - len(Auto().pilot(60, rows)))
    assert Auto().choose_design(60, 1024, pilot_of(60, 1024, change=0.8), precision=0.1)[0] == Orders()
    assert Auto().choose_design(12, 100, pilot_of(12, 100, change=0.8), precision=0.5)[0] == Orders()  # 44 rows
    noisy = pilot_of(60, 1024, change=0.8, disagreement=1.0)
    assert Auto().choose_design(60, 1024, noisy, precision=0.1)[0] == Tiled()


@pytest.mark.parametrize(("change", "rows"), [(0.8, 219), (0.35, 109), (0.01, 72), (0.0, 72), (float("inf"), 219)])
def test_first_stages_are_smaller_where_little_changes(change, rows):
    """By the square root of what is needed; never below the smallest, and as they were if the pilot says nothing."""
    spent = len(Auto().pilot(60, 219))
    chosen, left = Auto().choose_design(60, 219, pilot_of(60, 219, change=change), precision=0.5)
    assert chosen == Tiled()
    assert left + spent == pytest.approx(rows, abs=1)


def test_requests_on_a_network_that_hardly_looks_at_masks_are_cheap():
    chain = Perturbed(Independent(torch.full((5,), 0.2)), scale=0.001)
    tokens = torch.arange(60) % 5
    found = infodis.nll(chain, tokens, standard_error=0.5)
    assert found.evaluations <= 72
    assert abs(found.value - 60 * math.log(5)) < 5 * found.standard_error + 0.01
