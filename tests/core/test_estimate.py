import functools
import itertools
import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from laws import ALL_DESIGNS

import infodis
from infodis.apps.bench.experiments import measure, run_many
from infodis.apps.bench.peers import PaperSampler
from infodis.apps.bench.problems import Problem, chain_problem, random_network, random_problem
from infodis.auto import Auto
from infodis.control import Kernel, Neighbours, Positions, fold_bounds
from infodis.design import (
    Enumerate,
    Layout,
    Orders,
    Pairs,
    StratifiedCount,
    Tiled,
    TimeFree,
    TimeIntegral,
    UniformCount,
)
from infodis.errors import InputError, PredictorError
from infodis.estimate import Estimate, Request, estimate_items
from infodis.evaluate import Batching, ItemBatch, run
from infodis.item import Item
from infodis.oracle import MarkovChain, Table
from infodis.predictor import Counting, from_function
from infodis.quantities.influence import Information
from infodis.result import Measured, standard_error
from infodis.rng import key, stream
from infodis.sample import Sample
from infodis.testing import Perturbed, Tabulated

CHAIN = MarkovChain.random(order=4, vocab_size=4, temperature=0.5, seed=0)
SHARP = MarkovChain.random(order=4, vocab_size=4, temperature=0.15, seed=0)
DNA = Table.dna(0)
X = CHAIN.sample(3, length=32, generator=stream(0, "x"))

SETS = {
    "everything": ({}, range(16)),
    "the rest given a prefix": ({"context": range(4)}, range(20)),
    "scattered": ({"target": [1, 3, 8, 9, 12], "context": [0, 2, 15]}, range(16)),
    "nothing given, the rest summed out": ({"target": [2, 5, 6, 7]}, range(16)),
    "a suffix given": ({"target": range(10), "context": range(10, 16)}, range(16)),
}


def test_a_budget_is_spent_or_nearly():
    """Budgets up to 8 in full; of others at most a ninth is left, and three rows up to 255: no replicate more."""
    for design in (Tiled(), StratifiedCount()):
        for rows in range(2, 1100):
            layout = design.layout(50, rows)
            left = rows - layout.replicates * layout.rows
            assert 0 <= left <= (0 if rows <= 8 else min(3, rows / 9) if rows < 256 else rows / 50)
            assert layout.replicates >= min(4, rows)
        found = infodis.nll(CHAIN, X[0], design=design, evaluations=7)
        assert (found.evaluations, found.replicates.numel()) == (7, 7)


def test_enumerate_takes_what_it_needs():
    x = X[0][:10]
    for how in ({}, {"standard_error": 0.1}, {"standard_error": 0.1, "evaluations": 2000}):
        found = infodis.nll(CHAIN, [x, x[:3]], design=Enumerate(), **how)
        assert [one.evaluations for one in found] == [2**10 - 1, 2**3 - 1]
        assert found[0].value == pytest.approx(-CHAIN.log_prob(x), rel=1e-8)
    ratio = infodis.log_ratio(CHAIN, x[:3], x, design=Enumerate())
    assert ratio.value == pytest.approx(CHAIN.log_prob(x[:3]) - CHAIN.log_prob(x), rel=1e-8)
    with pytest.raises(InputError, match="takes 1023 forward passes, the budget is 128"):
        infodis.nll(CHAIN, x, design=Enumerate(), evaluations=128)
    with pytest.raises(InputError, match="past 20"):
        infodis.nll(CHAIN, X[0], design=Enumerate())


@pytest.mark.parametrize(("sets", "window"), SETS.values(), ids=SETS.keys())
@pytest.mark.parametrize("design", [Orders(), Orders(antithetic=True)], ids=repr)
def test_orders_on_a_chain_against_exact(design, sets, window):
    x = X[0][list(window)]
    estimate = infodis.nll(CHAIN, x, design=design, **sets)
    assert estimate.value == pytest.approx(-CHAIN.log_prob(x, **sets), rel=1e-8)
    assert float(estimate.per_token.sum()) == pytest.approx(estimate.value, rel=1e-10)


@pytest.mark.parametrize(
    "sets",
    [{}, {"context": [0, 3]}, {"target": [1, 2, 6], "context": [7]}, {"target": [5]}],
    ids=["everything", "some given", "some summed out", "one token"],
)
def test_enumerate_and_orders_on_a_table_against_exact(sets):
    for x in DNA.sequences[:5]:
        exact = -DNA.log_prob(x, **sets)
        for design in (Enumerate(), Orders(), Auto()):
            estimate = infodis.nll(DNA, x, design=design, evaluations=255, **sets)
            assert estimate.value == pytest.approx(exact, rel=1e-8, abs=1e-10)


def test_items_that_differ_in_their_sets_only_are_not_taken_for_equal():
    """The tokens are all 0, as what is left out is read."""
    sets = [([0, 1], []), ([0, 2], []), ([0, 1, 2], []), ([0, 1], [2]), ([0], [1, 2]), ([1, 2], [0])]
    targets, contexts = map(list, zip(*sets, strict=True))
    found = infodis.nll(CHAIN, [[0, 0, 0]] * len(sets), target=targets, context=contexts, design=Enumerate())
    exact = [-CHAIN.log_prob([0, 0, 0], target=target, context=context) for target, context in sets]
    assert len(set(exact)) == len(sets)
    assert [one.value for one in found] == pytest.approx(exact)


def test_enumerate_on_a_chain_with_sixteen_positions_against_exact():
    short = MarkovChain.random(order=1, vocab_size=3, seed=5)
    x = short.sample(1, length=18, generator=stream(1, "x"))[0]
    estimate = infodis.nll(short, x, context=[0, 1], design=Enumerate(), evaluations=2**16)
    assert estimate.value == pytest.approx(-short.log_prob(x, context=[0, 1]), rel=1e-8)
    assert estimate.stopped == "exact"
    assert (estimate.standard_error, estimate.evaluations) == (0.0, 2**16 - 1)


@pytest.fixture(scope="module")
def problems() -> dict[str, Problem]:
    """Targets of ten: 1,023 masks each, exact and with inconsistent conditionals."""
    items = [Item.read(x[:18], context=range(8)) for x in X[:2]]
    sharp = SHARP.sample(2, length=18, generator=stream(0, "sharp"))
    noisy = Perturbed(CHAIN, scale=1.0)
    return {
        "exact": Problem("exact", [Tabulated.of(CHAIN, item) for item in items]),
        "sharp": Problem("sharp", [Tabulated.of(SHARP, Item.read(x, context=range(8))) for x in sharp]),
        "noisy": Problem("noisy", [Tabulated.of(noisy, item) for item in items]),
    }


DESIGNS = [TimeFree(), UniformCount(), StratifiedCount(), Pairs(), Tiled(), Orders(), Orders(antithetic=True), Auto()]


@pytest.mark.parametrize("control", [None, Positions(), Neighbours()], ids=["none", "Positions", "Neighbours"])
@pytest.mark.parametrize("design", DESIGNS, ids=repr)
@pytest.mark.parametrize("problem", ["exact", "noisy"])
def test_unbiased_against_enumeration(problems, problem, design, control):
    """400 runs of 64 rows (25,600 rows); z beyond 4 is a false alarm once in 16,000, there are 48 cases."""
    outcome = measure(problems[problem], Request(design, control, 64), runs=200)
    assert abs(outcome.bias_z) < 4


def test_time_integral_is_unbiased_against_enumeration(problems):
    outcome = measure(problems["exact"], Request(TimeIntegral(), None, 64), runs=400)
    assert abs(outcome.bias_z) < 4


def test_the_papers_script_is_caught(problems):
    """Negative control: without the full mask the same test raises the alarm."""
    assert measure(problems["exact"], Request(PaperSampler(), None, 64), runs=200).bias_z < -10


DEAR = (UniformCount(), TimeFree())
"""Every row is a replicate of its own: ten seconds each."""


@pytest.mark.parametrize(
    "design",
    [pytest.param(d, marks=pytest.mark.slow if d in DEAR else ()) for d in DESIGNS if d != Auto()],
    ids=repr,
)
def test_intervals_cover_at_their_nominal_rate(problems, design):
    """2,000 runs on an inconsistent predictor; 0.92 and 0.98 are six standard errors away from 0.95."""
    control = Neighbours()
    outcome = measure(problems["noisy"], Request(design, control, 96), runs=1000)
    assert 0.92 <= outcome.coverage <= 0.98


def few_rows(table: Tabulated, layout: Layout, control, runs: int) -> Sample:
    names = [key(table.item.key, "few rows", run) for run in range(runs)]
    items = [table.item] * runs
    batch = ItemBatch.of(table, items)
    return run(
        Sample.of(items, names, batch, Tiled(), layout, control=control, seed=0).extend(layout.replicates), Batching()
    )


def test_parts_of_a_plan_add_up_to_it_against_itself(problems):
    table = problems["noisy"].tables[0]
    parts, whole = (few_rows(table, layout, None, 5) for layout in (Layout(4, 3, together=2), Layout(2, 6)))
    assert torch.allclose(parts.values.mean(1), whole.values.mean(1))
    assert not torch.allclose(parts.values[:, 0], parts.values[:, 1])
    assert Layout(4, 4, together=2).turns.tolist() == [0, 3, 4, 7, 1, 2, 5, 6]


@pytest.mark.parametrize("control", [None, Neighbours(), Kernel()], ids=["none", "Neighbours", "Kernel"])
@pytest.mark.parametrize("problem", ["sharp", "noisy"])
def test_few_rows_in_plans_against_enumeration(problems, problem, control):
    """Unbiased, and intervals that are rather too wide: with 1,000 runs 0.93 is three standard errors below 0.95."""
    assert Tiled().layout(10, 8) == Layout(4, 2, together=2)
    outcome = measure(problems[problem], Request(Tiled(), control, 8), runs=500)
    assert abs(outcome.bias_z) < 4
    assert outcome.coverage > 0.93


def test_few_rows_in_plans_vary_less(problems):
    """Than as many small replicates: 2,000 runs, where ratios have standard errors of 6 %."""
    table = problems["sharp"].tables[0]
    plans, alone = (few_rows(table, Layout(4, 2, together), Neighbours(), 2000) for together in (2, 1))
    assert plans.values.mean(1).var() < 0.9 * alone.values.mean(1).var()


def test_a_control_that_is_fitted_inside_a_plan_is_caught(problems):
    """A negative control: parts of a plan complement each other, so that what one teaches is no chance for another."""
    sample = few_rows(problems["sharp"].tables[0], Layout(4, 2, together=2), Kernel(), 2000)
    across, inside = (sample.per_replicate(fold_bounds(*folds)).sum(-1).mean(1) for folds in ((2, 4), (4, 2)))
    assert torch.equal(sample.values.mean(1), across)
    shift = Measured.mean(inside - across)
    assert abs(shift.value) > 6 * shift.standard_error


def test_tiled_beats_the_paper_and_stratification(problems):
    for name in ("exact", "sharp"):
        free, strata, tiled = (
            measure(problems[name], Request(design, None, 64), runs=300).mean_squared_error
            for design in (TimeFree(), StratifiedCount(), Tiled())
        )
        assert free / tiled > 15
        assert strata / tiled > 1.2


@pytest.mark.slow
def test_controls_do_not_hurt(problems):
    """1,000 runs: at most 5 % worse, plus two standard errors (2.5 % each) of a ratio of errors on the same masks."""
    for problem in problems.values():
        for design in (StratifiedCount(), Tiled()):
            plain, controlled = (
                measure(problem, Request(design, c, 64), runs=500).mean_squared_error for c in (None, Neighbours())
            )
            assert controlled < 1.10 * plain


def test_auto_takes_orders_where_they_are_exact_and_tiles_where_not(problems):
    exact = run_many(problems["exact"].tables[0], Request(evaluations=64), runs=5)
    assert all(isinstance(e.design, Orders) for e in exact)
    assert max(e.standard_error for e in exact) < 1e-10
    noisy = run_many(problems["noisy"].tables[0], Request(evaluations=64), runs=5)
    assert all(isinstance(e.design, Tiled) for e in noisy)
    assert all(e.evaluations <= 64 for e in exact + noisy)


def test_same_numbers_whatever_else_is_scored_and_at_any_batch_size():
    others = [x[: 12 + n] for n, x in enumerate(X)]
    together = infodis.nll(CHAIN, others, context=range(3), design=Tiled(), evaluations=64)
    backwards = infodis.nll(CHAIN, others[::-1], context=range(3), design=Tiled(), evaluations=64, batch_size=7)[::-1]
    alone = [infodis.nll(CHAIN, x, context=range(3), design=Tiled(), evaluations=64, batch_size=1) for x in others]
    for a, b, c in zip(together, backwards, alone, strict=True):
        assert a.value == pytest.approx(b.value, rel=1e-6)
        assert a.value == pytest.approx(c.value, rel=1e-6)
        assert a.evaluations == b.evaluations == c.evaluations
        assert torch.allclose(a.per_token, c.per_token, rtol=1e-5, atol=1e-6)


def test_a_seed_changes_the_masks_and_nothing_else_does():
    first, again, other = (
        infodis.nll(CHAIN, X[0], context=range(16), design=Tiled(), seed=seed).value for seed in (0, 0, 1)
    )
    assert first == again
    assert first != other


def test_sequences_of_one_length_meet_masks_of_their_own():
    """Costs depend on the masks alone here, so that equal masks give equal replicates; 4 standard errors of 0.1."""

    def third_token_by_share_masked(tokens):
        third = (tokens == 3).double().mean(1).view(-1, 1, 1).expand(*tokens.shape, 1) / 2
        return torch.cat([(1 - third) / 2, (1 - third) / 2, third], dim=-1).log()

    predictor = from_function(third_token_by_share_masked, vocab_size=3, mask_token=3)
    one, other = (
        found.replicates
        for found in infodis.nll(predictor, [[0] * 12, [1] * 12], design=UniformCount(), control=None, evaluations=100)
    )
    assert float(one.std()) > 0
    assert abs(float(torch.corrcoef(torch.stack([one, other]))[0, 1])) < 0.4


@pytest.mark.parametrize("design", [d for d in ALL_DESIGNS if d != Enumerate()], ids=repr)
def test_evaluations_are_what_the_predictor_saw(design):
    counting = Counting(CHAIN)
    estimate = infodis.nll(counting, X[0], context=range(22), design=design, evaluations=100)
    assert estimate.evaluations == counting.rows <= 100


def test_credits_add_up_and_are_shapley_values():
    x = DNA.sequences[7]
    estimate = infodis.nll(DNA, x, design=Enumerate(), evaluations=255)
    assert float(estimate.per_token.sum()) == pytest.approx(estimate.value)
    value = {s: -DNA.log_prob(x, target=list(s)) if s else 0.0 for s in _subsets(range(8))}
    for player in range(8):
        wanted = sum(
            math.factorial(len(s)) * math.factorial(7 - len(s)) / math.factorial(8)
            * (value[tuple(sorted((*s, player)))] - value[s])
            for s in value if player not in s
        )  # fmt: skip
        assert float(estimate.per_token[player]) == pytest.approx(wanted, abs=1e-10)


def _subsets(items):
    return [s for n in range(len(items) + 1) for s in itertools.combinations(items, n)]


def test_credits_of_a_controlled_estimate_add_up():
    estimate = infodis.nll(CHAIN, X[1], context=range(10), design=Tiled())
    assert float(estimate.per_token.sum()) == pytest.approx(estimate.value, rel=1e-10)


def test_errors_of_credits_are_their_spread_over_runs():
    """Of 12 credits over 400 runs, against their exact values. A ratio of variances has an error of about 0.1."""
    table = Tabulated.of(SHARP, Item.read(X[0][:20], context=range(8)))
    exact = estimate_items(table, [table.item], Request(Enumerate(), evaluations=2**12), seed=0)[0].per_token
    runs = run_many(table, Request(UniformCount(), None, 32), runs=400)
    wrong = torch.stack([one.per_token - exact for one in runs]).square().mean(0)
    told = torch.stack([one.per_token_error for one in runs]).square().mean(0)
    ratio = wrong / told
    assert float(ratio.mean()) == pytest.approx(1, abs=0.1)  # four standard errors: one false alarm in 16,000
    assert 0.6 < float(ratio.min()) <= float(ratio.max()) < 1.5


def test_errors_of_four_replicates_against_closed_form():
    """0, 0, 0 and 4 have mean 1 and standard deviation 2: their mean has the standard error 2 / sqrt(4)."""
    four = torch.tensor([0.0, 0.0, 0.0, 4.0], dtype=torch.float64)
    found = Information("nll", four, 4, 0, "budget spent")
    assert (found.value, found.standard_error) == (1, 1)
    assert found.interval(0.9) == pytest.approx((1 - 2.353363, 1 + 2.353363))  # Student's t with 3 degrees of freedom
    assert standard_error(torch.stack([four, 3 * four]), dim=1).tolist() == [1, 3]
    assert Measured.mean(four) == Measured(1, 1)
    assert Measured.mean(four).standard_error == 1


def test_pooled_errors_of_credits_are_those_of_all_replicates():
    one, other = (infodis.nll(SHARP, X[0], context=range(16), design=UniformCount(), seed=n) for n in (1, 2))
    both = one.merge(other)
    assert torch.allclose(both.per_token_error, torch.hypot(one.per_token_error, other.per_token_error) / 2)


def test_a_requested_standard_error_is_reached_and_said():
    noisy = Perturbed(CHAIN, scale=0.5)
    estimate = infodis.nll(noisy, X[0], context=range(16), standard_error=0.15)
    assert estimate.stopped == "standard error reached"
    assert estimate.standard_error <= 0.15
    loose = infodis.nll(noisy, list(X[:3]), context=range(16), standard_error=20.0)
    assert [(e.stopped, e.evaluations <= 72) for e in loose] == [("standard error reached", True)] * 3
    tight = infodis.nll(noisy, X[0], context=range(16), standard_error=1e-4, evaluations=200)
    assert tight.stopped == "cap reached"
    assert tight.evaluations <= 200
    short = infodis.nll(DNA, DNA.sequences[0], target=range(6), standard_error=0.1)
    assert (short.stopped, short.standard_error, short.evaluations) == ("exact", 0.0, 63)


@pytest.mark.parametrize(
    ("problem", "asked"), [(random_problem, 0.5), (functools.partial(chain_problem, 0.5, noise=0.3, target=12), 0.25)]
)
def test_a_requested_standard_error_is_kept_against_enumeration(problem, asked):
    """Mean squared error at most what was asked for, intervals that cover, and 1.6 times the passes of a fixed budget.

    False alarms below 1 in 10,000 each.
    """
    table, runs = problem(count=1).tables[0], 400
    found, squares = requested(table, Request(Tiled(), Neighbours(), standard_error=asked), runs)
    assert float(squares.mean()) < asked**2 + 3.7 * float(squares.std()) / math.sqrt(runs)
    covered = sum(low <= table.exact <= high for low, high in (e.interval() for e in found))
    assert covered > 0.95 * runs - 3.7 * math.sqrt(runs * 0.95 * 0.05)
    assert all(e.standard_error <= asked for e in found)
    rows = sum(e.evaluations for e in found) / runs / 1.6
    _, fixed = requested(table, Request(Tiled(), Neighbours(), evaluations=round(rows)), runs)
    spread = math.hypot(float(fixed.std()), float(squares.std())) / math.sqrt(runs)
    assert float(fixed.mean()) > float(squares.mean()) - 3.7 * spread  # fewer passes were not better


def requested(table: Tabulated, request: Request, runs: int) -> tuple[list[Estimate], torch.Tensor]:
    """Estimates by a request, and their squared errors."""
    found = run_many(table, request, runs=runs)
    return found, torch.tensor([(e.value - table.exact) ** 2 for e in found], dtype=torch.float64)


@pytest.mark.parametrize(("asked", "replicates", "rows"), [(2.0, 8, 9), (0.5, 9, 10), (0.25, 14, 14), (0.01, 16, 64)])
def test_a_first_stage_has_about_as_many_replicates_as_rows_in_each(asked, replicates, rows):
    request = Request(Tiled(), standard_error=asked)
    assert request.first_layout(Tiled(), 12, request.first_rows(12)) == Layout(replicates, rows)
    assert Request(Tiled(), standard_error=asked, evaluations=12).first_rows(12) == 12  # never above the cap
    assert Tiled().first_stage(12, 12) == Layout(4, 3)


def two_stages(values: torch.Tensor, asked: float) -> tuple[float, float]:
    """Value and standard error of a run on given replicates, by the rule of `Request`."""
    count, stopped = Request(standard_error=asked).replicates_for(values[:16], most=len(values))
    assert stopped == "standard error reached"
    found = Information("nll", values[:count], 0, 0, stopped, first=16)
    low, high = found.interval()
    return found.value, (high - low) / 2


def stopped_when_it_looks_small(values: torch.Tensor, asked: float) -> tuple[float, float]:
    """The wrong rule: four replicates, then one more at a time until the standard error is small enough."""
    count = 4
    while float(values[:count].std()) / math.sqrt(count) > asked:
        count += 1
    found = Information("nll", values[:count], 0, 0, "standard error reached")
    low, high = found.interval()
    return found.value, (high - low) / 2


@pytest.mark.parametrize("asked", [0.15, 0.25])
def test_two_stages_keep_their_promise_for_normal_replicates(asked):
    """Against the theorem, 2,000 runs of replicates with mean 0 and variance 1: false alarms below 1 in 10,000."""
    runs = 2000
    values = torch.randn(runs, 400, generator=stream(0, "stein"), dtype=torch.float64)
    kept = [two_stages(row, asked) for row in values]
    squares = torch.tensor([value**2 for value, _ in kept], dtype=torch.float64)
    assert float(squares.mean()) < asked**2 + 3.7 * float(squares.std()) / math.sqrt(runs)
    covered = sum(abs(value) <= half for value, half in kept) / runs
    assert abs(covered - 0.95) < 3.9 * math.sqrt(0.95 * 0.05 / runs)
    lucky = [stopped_when_it_looks_small(row, asked) for row in values]
    broken = torch.tensor([value**2 for value, _ in lucky], dtype=torch.float64)
    assert float(broken.mean()) > asked**2 + 5 * float(broken.std()) / math.sqrt(runs)  # what looking again costs


def test_a_second_stage_is_predicted_by_the_first_alone():
    """Later replicates are a function of the first stage and their own masks: more of them change no earlier one."""
    noisy = Perturbed(CHAIN, scale=1.5)
    some, more = (
        infodis.nll(noisy, X[0], context=range(16), standard_error=asked, design=Tiled()) for asked in (1.5, 1.0)
    )
    assert some.first == more.first == 8 < some.replicates.numel() < more.replicates.numel()
    assert torch.allclose(some.replicates, more.replicates[: some.replicates.numel()], atol=1e-12)


def test_what_costs_more_than_all_masks_is_enumerated():
    found = infodis.nll(Perturbed(CHAIN, scale=2.0), X[0][:9], standard_error=1e-3)
    assert (found.stopped, found.design, found.standard_error) == ("exact", Enumerate(), 0.0)
    assert found.evaluations == 2**9 - 1  # what the first stage saw is not asked again


def test_estimates_towards_a_standard_error_do_not_merge():
    one, two = (infodis.nll(CHAIN, X[0], context=range(16), standard_error=1, design=Tiled(), seed=s) for s in (0, 1))
    with pytest.raises(InputError, match="fixed budgets"):
        one.merge(two)


def test_auto_never_takes_orders_where_they_are_far_worse():
    """Random networks: surprisals depend smoothly on everything that is visible, and `Orders` varies ten times more."""
    for seed in range(4):
        tokens = torch.randint(4, (12,), generator=stream(seed, "random tokens"))
        for budget in ({"evaluations": 64}, {"evaluations": 128}, {"evaluations": 512}, {"standard_error": 0.3}):
            assert infodis.nll(random_network(12, seed=seed), tokens, **budget).design == Tiled()


def test_merging_pools_replicates():
    one, two = (infodis.nll(CHAIN, X[0], context=range(16), design=Tiled(), seed=seed) for seed in (0, 1))
    both = one.merge(two)
    assert both.value == pytest.approx((one.value + two.value) / 2)
    assert both.replicates.numel() == 8
    assert both.evaluations == one.evaluations + two.evaluations
    assert float(both.per_token.sum()) == pytest.approx(both.value)
    with pytest.raises(InputError, match="same masks"):
        one.merge(one)
    with pytest.raises(InputError, match="same quantity"):
        one.merge(infodis.nll(CHAIN, X[0], context=range(15), design=Tiled(), seed=1))


def test_more_replicates_contain_fewer():
    """Replicates have their own streams: a longer run begins with the masks of a shorter one."""
    item = Item.read(X[0], context=range(16))
    short, long = (estimate_items(CHAIN, [item], Request(UniformCount(), None, rows), seed=0)[0] for rows in (20, 30))
    assert torch.allclose(short.replicates, long.replicates[:20])


def test_impossible_data_give_inf_and_say_so():
    impossible = [0, 1, 2, 3, 0, 1, 2, 3]
    while -DNA.log_prob(impossible) < math.inf:
        impossible[0] += 1
    for design in (Enumerate(), Orders(), Tiled()):
        estimate = infodis.nll(DNA, impossible, design=design, evaluations=255)
        assert (estimate.value, estimate.impossible, estimate.standard_error) == (math.inf, True, 0.0)
        assert estimate.interval() == (math.inf, math.inf)
        assert not estimate.per_token.isnan().any()
        assert "impossible" in repr(estimate)


def test_one_token_targets_cost_one_row():
    for design in (Auto(), Tiled(), StratifiedCount(), TimeFree(), Orders()):
        estimate = infodis.nll(CHAIN, X[0], target=[5], context=range(5), design=design)
        assert estimate.evaluations == 1
        assert estimate.value == pytest.approx(-CHAIN.log_prob(X[0], target=[5], context=range(5)))
        assert estimate.standard_error < 1e-12


def test_mask_tokens_may_stand_where_they_do_not_matter():
    x = X[0][:10].clone()
    x[7:] = CHAIN.mask_token
    estimate = infodis.nll(CHAIN, x, target=range(3, 7), context=range(3))
    assert estimate.value == pytest.approx(-CHAIN.log_prob(X[0][:7], context=range(3)), rel=1e-8)


@pytest.mark.parametrize(
    "order", ["left-to-right", "right-to-left", "most-confident", [15, 3, 7, 4, *range(8, 15), 5, 6]]
)
def test_order_nll_on_a_chain_against_exact(order):
    x = X[0][:16]
    sets = {"target": range(3, 16), "context": range(3)}
    estimate = infodis.order_nll(CHAIN, x, order=order, **sets)
    assert estimate.value == pytest.approx(-CHAIN.log_prob(x, **sets), rel=1e-8)
    assert (estimate.quantity, estimate.evaluations) == ("order_nll", 13)


def test_order_nll_depends_on_the_order_of_an_inconsistent_predictor():
    noisy = Perturbed(CHAIN, scale=1.0)
    left, right = (infodis.order_nll(noisy, X[0][:12], order=o).value for o in ("left-to-right", "right-to-left"))
    assert abs(left - right) > 0.01


def test_most_confident_first_against_its_definition():
    noisy = Perturbed(CHAIN, scale=1.0)
    x, row, total = X[1][:6], torch.full((1, 6), 4), 0.0
    for _ in range(6):
        table = noisy.log_conditionals(row)[0]
        open_positions = [i for i in range(6) if row[0, i] == 4]
        chosen = max(open_positions, key=lambda i: float(table[i].max()))
        total -= float(table[chosen, x[chosen]])
        row[0, chosen] = x[chosen]
    assert infodis.order_nll(noisy, x, order="most-confident").value == pytest.approx(total)


WRONG_SHAPE = from_function(lambda t: torch.zeros(t.shape[0], 2, 4), vocab_size=4, mask_token=4)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: infodis.nll(CHAIN, X[0], target=[]), InputError, "target is empty"),
        (lambda: infodis.nll(CHAIN, X[0], context=range(32)), InputError, "target is empty"),
        (lambda: infodis.nll(CHAIN, X[0], target=[0, 1], context=[1]), InputError, "both hold position 1"),
        (lambda: infodis.nll(CHAIN, X[0], target=[40]), InputError, "0..31, got 40"),
        (lambda: infodis.nll(CHAIN, X[0], target=[-1]), InputError, "got -1"),
        (lambda: infodis.nll(CHAIN, [0, 1, 9]), InputError, "got 9 at position 2"),
        (lambda: infodis.nll(CHAIN, [0, 1, -2]), InputError, "got -2"),
        (lambda: infodis.nll(CHAIN, [0, 4, 1]), InputError, "mask token 4 at position 1"),
        (lambda: infodis.nll(CHAIN, [[0, 1], [0, 4]]), InputError, "Sequence 1: .*mask token"),
        (lambda: infodis.nll(CHAIN, [[0, 1], []]), InputError, "Sequence 1: .*non-empty"),
        (lambda: infodis.nll(CHAIN, []), InputError, "nothing to score"),
        (lambda: infodis.nll(DNA, [0] * 9), InputError, "length 8"),
        (lambda: infodis.nll(CHAIN, X[0], evaluations=0), InputError, "at least 1, got 0"),
        (lambda: infodis.nll(CHAIN, X[0], evaluations=-5), InputError, "at least 1, got -5"),
        (lambda: infodis.nll(CHAIN, X[0], evaluations=1), InputError, "needs 2 forward passes"),
        (lambda: infodis.nll(CHAIN, X[0], design=Orders(), evaluations=62), InputError, "needs 63 forward passes"),
        (lambda: infodis.nll(CHAIN, X[0], design=Pairs(), evaluations=3), InputError, "needs 4 forward passes"),
        (lambda: infodis.nll(CHAIN, X[0], standard_error=0.0), InputError, "must be positive"),
        (lambda: infodis.nll(CHAIN, X[0], batch_size=0), InputError, "batch_size"),
        (lambda: infodis.nll(CHAIN, [X[0], X[1]], context=[[1]]), InputError, "one for each of the 2"),
        (lambda: infodis.nll(WRONG_SHAPE, [0, 1, 2]), PredictorError, "rows x length x vocab"),
        (lambda: infodis.order_nll(CHAIN, X[0], order="backwards"), InputError, "most-confident"),
        (lambda: infodis.order_nll(CHAIN, X[0], order=[0, 1]), InputError, "each of the 32"),
        (lambda: infodis.nll(CHAIN, X[0], design=Tiled()).interval(1.5), InputError, "between 0 and 1"),
    ],
)
def test_bad_input_is_a_clear_error(call, error, words):
    with pytest.raises(error, match=words):
        call()


@pytest.mark.slow
def test_the_scale_of_the_priors_does_not_leak_against_enumeration(problems):
    """Priors scaled by all rows, the predicted ones included, once biased short runs of UniformCount (z = -8)."""
    outcome = measure(problems["sharp"], Request(UniformCount(), Neighbours(), 8), runs=6000)
    assert abs(outcome.bias_z) < 4


def test_rows_with_nothing_masked_give_no_nan():
    values = [infodis.nll(CHAIN, [0, 1], design=TimeIntegral(), evaluations=2, seed=s).value for s in range(60)]
    assert all(math.isfinite(v) for v in values)


def test_an_impossibility_that_only_the_pilot_sees_counts():
    def first_token_is_never_zero(tokens):
        p = torch.full((*tokens.shape, 2), 0.5)
        blind = (tokens == 2).all(1)
        p[blind, 0] = torch.tensor([0.0, 1.0])
        return p.log()

    predictor = from_function(first_token_is_never_zero, vocab_size=2, mask_token=2)
    found = [infodis.nll(predictor, [0] * 64, seed=s) for s in range(20)]
    assert all(e.impossible for e in found)
    assert all(bool(e.per_token[1:].isfinite().all()) and e.per_token[0] == math.inf for e in found)


def test_auto_is_exact_on_a_list_of_sequences_though_pilots_meet_certain_tokens():
    """The paper's list: for some of its 128 sequences the pilot's masks leave nothing open."""
    oracle = Table.dna(0)
    items = [Item.read(row) for row in oracle.sequences]
    for item, found in zip(items, estimate_items(oracle, items, Request(), seed=0), strict=True):
        assert isinstance(found.design, Orders)
        assert found.value == pytest.approx(-oracle.log_prob(item.tokens), abs=1e-9)


def test_auto_keeps_to_its_budget():
    for length, rows in ((64, 128), (100, 205), (300, 640), (16, 40)):
        noisy = Perturbed(CHAIN, scale=0.01)
        x = CHAIN.sample(1, length=length, generator=stream(4, "long"))[0]
        assert infodis.nll(noisy, x, evaluations=rows).evaluations <= max(
            rows, 2 * length + 3
        )  # two orders, and the pilot


def test_most_confident_first_counts_its_rows_and_stops_at_the_impossible():
    counting = Counting(CHAIN)
    assert infodis.order_nll(counting, X[0][:9], order="most-confident").evaluations == counting.rows == 9
    table = Table(torch.tensor([[0, 0, 1], [1, 1, 0]]), torch.tensor([0.5, 0.5]))
    assert infodis.order_nll(table, [0, 1, 1], order="most-confident").value == math.inf


def test_numpy_seeds_are_seeds():
    one, two = (infodis.nll(CHAIN, X[0], design=Tiled(), seed=s).value for s in (3, np.int64(3)))
    assert one == two


WRONG_TYPES = [
    "infodis.nll(CHAIN, 5)",
    "infodis.nll(CHAIN, None)",
    'infodis.nll(CHAIN, "0123")',
    "infodis.nll(CHAIN, [1, None])",
    "infodis.nll(CHAIN, [2**70, 1])",
    "infodis.nll(CHAIN, [[1, 2], 3])",
    "infodis.nll(CHAIN, X[0], target=3)",
    "infodis.nll(CHAIN, X[0], target=slice(0, 3))",
    "infodis.nll(CHAIN, X[0], target=[1, None])",
    "infodis.nll(CHAIN, X[0], evaluations=100.0)",
    'infodis.nll(CHAIN, X[0], evaluations="100")',
    'infodis.nll(CHAIN, X[0], standard_error="0.1")',
    "infodis.nll(CHAIN, X[0], design=Tiled)",
    'infodis.nll(CHAIN, X[0], design="tiled")',
    "infodis.nll(CHAIN, X[0], control=Neighbours)",
    'infodis.nll(CHAIN, X[0], seed="a")',
    "infodis.order_nll(CHAIN, X[0], order=[0.5, 1])",
    "infodis.nll(from_function(lambda t: None, vocab_size=4, mask_token=4), [0, 1])",
]

SCRIPT = """
import sys, torch, infodis
from infodis.control import Neighbours
from infodis.design import Tiled
from infodis.errors import InfodisError
from infodis.oracle import MarkovChain
from infodis.predictor import from_function
CHAIN = MarkovChain.random(order=2)
X = torch.zeros(2, 8, dtype=torch.int64)
for call in sys.argv[1:]:
    try:
        eval(call)
    except InfodisError as error:
        assert len(str(error)) > 20
    else:
        raise AssertionError(call)
"""


def test_wrong_types_are_clear_errors():
    """In a process of its own, without the type checker of the tests in front."""
    done = subprocess.run([sys.executable, "-c", SCRIPT, *WRONG_TYPES], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
