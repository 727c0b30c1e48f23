"""Races: the evidence against its integral, wrong decisions against known answers, and who stops when."""

import dataclasses
import importlib.util
import json
import math
import sys
from pathlib import Path
from unittest import mock

import pytest
import torch
from scipy import integrate, stats

from infodis.auto import Auto
from infodis.control import Neighbours
from infodis.design import Orders, Pairs, PowerCount, StratifiedCount, Tiled, TimeFree, UniformCount
from infodis.errors import InputError
from infodis.evaluate import Batching, run, run_batched
from infodis.item import Item
from infodis.oracle import Independent, MarkovChain, Table
from infodis.predictor import Counting
from infodis.quantities import choose as module
from infodis.quantities.choose import FEWEST, Field, Numbers, Race, Runner, Verdict, choose, race_coroutine
from infodis.rng import stream
from infodis.testing import certificate_error


def _benchmark():
    """The races of benchmarks/choose.py, which the tests share."""
    path = Path(__file__).parents[2] / "benchmarks" / "choose.py"
    spec = importlib.util.spec_from_file_location("benchmark_choose", path)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = loaded
    spec.loader.exec_module(loaded)
    return loaded


BENCHMARK = _benchmark()
CHAIN = MarkovChain.random(order=1, vocab_size=3, temperature=0.2, seed=0)
LIKELY, UNLIKELY, OTHER = [0, 0, 0, 0, 1, 1, 1, 1, 1, 2], [0, 1, 0, 2, 2, 1, 0, 1, 0, 1], [0, 0, 1, 2, 2, 2, 1, 1, 0, 2]


def scores(*tokens: list[int]) -> list[float]:
    return [-CHAIN.log_prob(one, context=[0]) for one in tokens]


# The design.


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 6])
@pytest.mark.parametrize("design", [PowerCount(), PowerCount(power=0.0), PowerCount(power=1.0)], ids=repr)
def test_certificate_against_enumeration(design, length):
    assert certificate_error(design, length, 1) < 1e-9
    assert certificate_error(design, length, 2) < 1e-9


def test_certificate_catches_a_wrong_weight():
    class Wrong(PowerCount):
        def masks(self, levels, keys):
            masked, weight = super().masks(levels, keys)
            return masked, weight * masked.sum(-1, keepdim=True).double().sqrt()

    assert certificate_error(Wrong(), 4, 1) > 0.1


def test_power_count_lies_between_two_designs():
    levels, keys = torch.rand(50, 1, generator=stream(0)).double(), torch.rand(50, 1, 7, generator=stream(1)).double()
    for power, other in ((0.0, UniformCount()), (1.0, TimeFree())):
        for mine, its in zip(PowerCount(power).masks(levels, keys), other.masks(levels, keys), strict=True):
            torch.testing.assert_close(mine, its)


# The evidence.


@pytest.mark.parametrize("count", [8, 20])
@pytest.mark.parametrize("shift", [-0.5, 0.0, 0.4, 2.0])
def test_evidence_against_integral(count, shift):
    """The Bayes factor is the mean, over the half-normal prior, of the likelihood ratio of the t statistic."""
    worse = shift + torch.randn(count, generator=stream(0, "evidence", count)).double()
    found = module._evidence(torch.stack([worse, torch.zeros(count).double()]), torch.tensor([False, False]))
    t = float(math.sqrt(count) * worse.mean() / worse.std())

    def integrand(effect: float) -> float:
        prior = 2 * stats.norm.pdf(effect, scale=math.sqrt(module.SPREAD))
        return prior * stats.nct.pdf(t, count - 1, effect * math.sqrt(count)) / stats.t.pdf(t, count - 1)

    assert float(found[0, 1]) == pytest.approx(math.log(integrate.quad(integrand, 1e-9, 8)[0]), abs=1e-4)


def test_evidence_is_rarely_large_at_any_time_without_an_effect():
    """2,000 paths of 60 normal differences, looked at 14 times: at most 1 in 100 may reach 100.

    More than 34 are a false alarm once in 700 were it 1 in 100. t beyond 2.576, the naive rule, is caught.
    """
    crossed = {module._evidence: 0, BENCHMARK.naive: 0}
    for part in range(50):
        paths = torch.randn(40, 60, generator=stream(0, "paths", part)).double()
        against_nothing = torch.cat([paths, torch.zeros(1, 60).double()])
        for evidence in crossed:
            looks = [
                evidence(against_nothing[:, :count], torch.zeros(41, dtype=torch.bool))[:40, 40]
                for count in range(FEWEST, 61, 4)
            ]
            crossed[evidence] += int((torch.stack(looks).max(0).values >= math.log(100)).sum())
    assert crossed[module._evidence] <= 34
    assert crossed[BENCHMARK.naive] > 34


def test_needed_is_where_evidence_gets_there():
    for count in (16, 128):
        t = module._needed(count, math.log(300))
        differences = torch.randn(count, generator=stream(0, count)).double()
        standard = (differences - differences.mean()) / differences.std()
        pair = torch.stack([standard + t / math.sqrt(count), torch.zeros(count).double()])
        assert float(module._evidence(pair, torch.tensor([False, False]))[0, 1]) == pytest.approx(
            math.log(300), abs=0.01
        )
    assert module._needed(4, math.log(300)) == math.inf


def field(scores: torch.Tensor) -> tuple[Field, dict[int, Runner]]:
    """A race with alpha = 0.01 of choices whose replicates have these scores."""
    begun = Runner.begin(CHAIN, Item.read(LIKELY, context=[0]), torch.arange(9), Race())
    runners = {number: dataclasses.replace(begun, values=values) for number, values in enumerate(scores)}
    return Field.of(list(runners), [1.0] * len(runners), Race()), runners


@pytest.mark.parametrize("choices", [2, 3, 6])
def test_a_choice_is_out_when_the_mean_of_e_over_its_rivals_is_100(choices):
    """That mean is at most 1 in expectation; their sum, or a mean over those still in the race, is not."""
    begun, runners = field(torch.zeros(choices, 8, dtype=torch.float64))

    def left(evidence: list[float], field: Field = begun) -> list[int]:
        against_the_first = torch.full((choices, choices), -math.inf, dtype=torch.float64)
        against_the_first[0, 1:] = torch.tensor(evidence, dtype=torch.float64).log()
        places = torch.tensor(field.open)
        found = against_the_first[places.unsqueeze(1), places]
        with mock.patch.object(module, "_evidence", return_value=found):
            return field.judged(runners).open

    everyone, rivals = list(range(choices)), choices - 1
    assert left([99] * rivals) == everyone
    assert left([101] * rivals) == everyone[1:]
    assert left([99 * rivals] + [0] * (rivals - 1)) == everyone
    assert left([101 * rivals] + [0] * (rivals - 1)) == everyone[1:]
    if rivals > 1:
        assert left([99 * rivals] + [0] * (rivals - 1), dataclasses.replace(begun, open=[0, 1])) == [0, 1]


@pytest.mark.parametrize("choices", [2, 3, 6])
def test_a_lead_that_gets_there_in_the_end_has_an_even_chance(choices):
    """Alone against a loser, the winner's e must be 100 for each of the loser's rivals."""
    count, most = 16, 64
    needed = module._needed(most, math.log(100 * (choices - 1)))
    noise = torch.randn(count, generator=stream(0, "lead")).double()
    lead = (noise - noise.mean()) / noise.std() + needed / math.sqrt(most)
    scores = torch.stack([torch.zeros(count).double(), *[lead] * (choices - 1)])
    begun, runners = field(scores)
    assert begun.chance(runners, most) == pytest.approx(0.5, abs=1e-9)


# What a replicate is worth.


def runner(tokens: list[int], race: Race, count: int) -> Runner:
    item = Item.read(tokens, context=[0])
    columns = torch.arange(item.target.numel())
    found = Runner.begin(CHAIN, item, columns, race)
    for start in range(0, count, 10):
        found = run(found.go(Numbers(0, 1, len(columns), found.rows), range(start, start + 10)))
    return found


@pytest.mark.parametrize("control", [None, Neighbours()])
@pytest.mark.parametrize("design", [PowerCount(), Tiled(), Pairs()], ids=repr)
def test_replicates_are_unbiased_against_exact(design, control):
    """400 replicates; z beyond 4 is a false alarm once in 16,000."""
    values = runner(UNLIKELY, Race(design=design, control=control, rows=2), 400).values
    assert abs(float(values.mean()) - scores(UNLIKELY)[0]) < 4 * float(values.std()) / 20


def test_a_control_lowers_the_variance_and_knows_only_the_past():
    plain, better = (runner(UNLIKELY, Race(control=control), 200) for control in (None, Neighbours()))
    assert torch.equal(plain.values[:4], better.values[:4])
    assert better.values[100:].var() < 0.5 * plain.values[100:].var()
    shorter = runner(UNLIKELY, Race(), 100)
    assert torch.equal(shorter.values, better.values[:100])


def test_choices_share_numbers_at_equal_beginnings_and_ends():
    texts = [[1, 1, 2, 0, 0, 2, 1], [1, 1, 2, 2, 1], [0, 0, 0]]
    columns = module._columns([Item.read(text) for text in texts])
    assert [places.tolist() for places in columns] == [[0, 1, 2, 3, 4, 5, 6], [0, 1, 2, 5, 6], [0, 1, 2]]
    twice = module._columns([Item.read([1, 1]), Item.read([1, 1, 1])])
    assert [places.tolist() for places in twice] == [[0, 1], [0, 1, 2]]


# Verdicts.


def wrong_of(count: int, race: Race, *, choices: int = 4) -> int:
    asked = list(BENCHMARK.questions(count, most=choices))
    found = BENCHMARK.races(BENCHMARK.CHAIN, asked, race)
    return sum(one.wrong(verdict) for one, verdict in zip(asked, found, strict=True))


QUICK = Race(evaluations=12, chance=0, control=None)


def test_wrong_decisions_are_rarer_than_alpha():
    """250 races, most of them near ties. At a rate of 1 % more than 8 are a false alarm once in 1,000."""
    assert wrong_of(250, QUICK, choices=2) <= 8


def test_naive_stopping_is_caught():
    """As many races have more wrong decisions."""
    with mock.patch.object(module, "_evidence", BENCHMARK.naive), mock.patch.object(module, "FEWEST", 3):
        assert wrong_of(250, QUICK, choices=2) > 8


@pytest.mark.slow
def test_wrong_decisions_are_rarer_than_alpha_in_10_000_races():
    """At a rate of 1 % more than 131 are a false alarm once in 1,000."""
    assert wrong_of(10_000, Race(evaluations=64, chance=0)) <= 131


@pytest.mark.parametrize(
    "design", [PowerCount(), UniformCount(), StratifiedCount(), Tiled(), Pairs(), Orders(), Auto()], ids=repr
)
def test_a_clear_race_is_decided_for_the_best(design):
    verdict = choose(CHAIN, [UNLIKELY, LIKELY, OTHER], context=[0], design=design)
    assert scores(LIKELY)[0] < min(scores(UNLIKELY, OTHER))
    assert (verdict.leader, verdict.decided) == (1, True)
    assert verdict.margin is not None
    assert verdict.standard_error is not None
    assert all(choice.evaluations <= 128 for choice in verdict.choices)
    assert verdict.evaluations == sum(choice.evaluations for choice in verdict.choices)


def test_losers_stop_first():
    race = Race(chance=0)
    near = [0, 0, 0, 1, 1, 1, 1, 1, 1, 2]
    items = [Item.read(one, context=[0]) for one in (LIKELY, UNLIKELY, near)]
    verdict = run(race_coroutine(CHAIN, items, [1.0] * 3, race, seed=0, name=0))
    assert verdict.ranking[-1] == 1
    assert verdict.choices[1].evaluations < verdict.choices[0].evaluations


def test_other_races_and_batches_change_no_verdict():
    asked = list(BENCHMARK.questions(12))
    race = Race(evaluations=32)
    together = BENCHMARK.races(BENCHMARK.CHAIN, asked, race)
    for number in (0, 5, 11):
        one = asked[number]
        alone = race_coroutine(BENCHMARK.CHAIN, one.items, one.sizes, race, seed=0, name=number)
        found = next(run_batched([alone], Batching(rows=3)))
        assert found.ranking == together[number].ranking
        assert found.evaluations == together[number].evaluations
        for mine, its in zip(found.choices, together[number].choices, strict=True):
            assert mine.nats == pytest.approx(its.nats, rel=1e-9)


def test_the_order_of_choices_does_not_matter():
    one = choose(CHAIN, [UNLIKELY, LIKELY, OTHER], context=[0])
    other = choose(CHAIN, [LIKELY, OTHER, UNLIKELY], context=[0])
    assert [(1, 2, 0)[n] for n in other.ranking] == list(one.ranking)
    assert other.margin == pytest.approx(one.margin)


def test_giving_up_is_the_beginning_of_going_on():
    asked = list(BENCHMARK.questions(12))
    early, late = (BENCHMARK.races(BENCHMARK.CHAIN, asked, Race(evaluations=48, chance=c)) for c in (0.3, 0.0))
    assert sum(v.evaluations for v in early) < sum(v.evaluations for v in late)
    for mine, its in zip(early, late, strict=True):
        assert mine.stopped == "given up" or mine == its


def test_sizes_divide_the_nll():
    """The shorter one costs less, but more per token."""
    short, long = [0, 0, 2, 2], [0] * 16
    nats = scores(short, long)
    by_tokens = choose(CHAIN, [short, long], context=[0], sizes=[3, 15])
    assert nats[0] < nats[1]
    assert nats[1] / 15 < nats[0] / 3
    assert (by_tokens.leader, by_tokens.decided) == (1, True)
    assert by_tokens.choices[0].score == pytest.approx(nats[0] / 3)
    assert abs(by_tokens.margin - (nats[0] / 3 - nats[1] / 15)) < 4 * by_tokens.standard_error
    by_nothing = choose(CHAIN, [short, [0, *[1, 0] * 8]], context=[0])
    assert (by_nothing.leader, by_nothing.decided) == (0, True)


def test_exact_choices_cost_their_masks_and_are_compared_directly():
    verdict = choose(CHAIN, [[0, 1], [0, 0], [0, 2]], context=[0])
    assert (verdict.leader, verdict.decided, verdict.evaluations) == (1, True, 3)
    ordered = sorted(scores([0, 1], [0, 0], [0, 2]))
    assert verdict.margin == pytest.approx(ordered[1] - ordered[0])
    assert verdict.standard_error == 0
    few = choose(CHAIN, [[0, 0, 0], [0, 0, 1, 2]], context=[0], evaluations=7)
    assert [choice.evaluations for choice in few.choices] == [3, 7]
    assert few.choices[1].nats == pytest.approx(scores([0, 0, 1, 2])[0])


def test_an_exact_choice_races_with_the_others():
    verdict = choose(CHAIN, [[0, 0], UNLIKELY], context=[0])
    assert (verdict.leader, verdict.decided) == (0, True)
    assert verdict.choices[0].evaluations == 1
    assert verdict.choices[0].standard_error == 0


def test_ties_stay_undecided_and_cost_little():
    counting = Counting(CHAIN)
    verdict = choose(counting, [LIKELY, LIKELY], context=[0])
    assert (verdict.stopped, verdict.margin, verdict.ranking) == ("tied", 0.0, (0, 1))
    assert counting.rows == verdict.evaluations <= FEWEST
    assert verdict.choices[0] == verdict.choices[1]
    coin = Independent(torch.tensor([0.5, 0.5]))
    equal = choose(coin, [[0, 1, 1, 0, 1, 1, 1, 0], [1, 1, 0, 0, 0, 1, 0, 1]])
    assert (equal.decided, equal.margin) == (False, pytest.approx(0.0, abs=1e-9))
    assert choose(coin, [[0], [1]]).stopped == "tied"
    third = choose(CHAIN, [LIKELY, UNLIKELY, LIKELY], context=[0])
    assert (third.stopped, third.ranking) == ("tied", (0, 2, 1))


def test_impossible_choices_are_out():
    table = Table(torch.tensor([[0] * 8, [1] * 8]), torch.tensor([0.5, 0.5]))
    verdict = choose(table, [[0, 1] * 4, [1] * 8])
    assert (verdict.leader, verdict.decided, verdict.margin) == (1, True, math.inf)
    assert verdict.choices[0].nats == math.inf
    record = verdict.record()
    assert json.loads(json.dumps(record, allow_nan=False))["choices"][0]["nats"] is None
    neither = choose(table, [[0, 1] * 4, [1, 0] * 4])
    assert (neither.decided, neither.margin, neither.standard_error) == (False, None, None)


def test_a_single_choice_wins_after_one_look():
    verdict = choose(CHAIN, [LIKELY], context=[0])
    assert (verdict.leader, verdict.decided, verdict.margin) == (0, True, None)
    assert verdict.evaluations <= FEWEST


def test_a_small_budget_decides_nothing_but_names_a_leader():
    verdict = choose(CHAIN, [UNLIKELY, LIKELY], context=[0], evaluations=5)
    assert verdict.stopped == "budget spent"
    assert all(choice.evaluations <= 5 for choice in verdict.choices)


def test_record_is_json():
    verdict = choose(CHAIN, [UNLIKELY, LIKELY, OTHER], context=[0], sizes=[9, 9, 9], seed=3)
    record = json.loads(json.dumps(verdict.record(), allow_nan=False))
    assert record["ranking"] == list(verdict.ranking)
    assert (record["seed"], record["alpha"], record["choices"][0]["size"]) == (3, 0.01, 9)
    assert set(record) == {*Verdict.__dataclass_fields__, "decided"}


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: choose(CHAIN, LIKELY), "list of texts or sequences"),
        (lambda: choose(CHAIN, [LIKELY, [0, 7]]), r"0\.\.2"),
        (lambda: choose(CHAIN, [LIKELY, OTHER], sizes=[1]), "one for each of the 2"),
        (lambda: choose(CHAIN, [LIKELY, OTHER], sizes=[1, 0]), "positive number"),
        (lambda: choose(CHAIN, [LIKELY, OTHER], alpha=0), "alpha"),
        (lambda: choose(CHAIN, [LIKELY, OTHER], evaluations=0), "evaluations"),
        (lambda: choose(CHAIN, [LIKELY, OTHER], evaluations=1), "two replicates"),
        (lambda: choose(CHAIN, [LIKELY, OTHER], design=Orders(), evaluations=12, context=[0]), "evaluations=17"),
        (lambda: choose(CHAIN, [LIKELY, OTHER], batch_size=0), "batch_size"),
        (lambda: Race(chance=1.0), "chance"),
        (lambda: Race(rows=0), "rows"),
        (lambda: PowerCount(power=2), "power"),
        (lambda: PowerCount().layout(4, 1), "two replicates"),
        (lambda: run(race_coroutine(CHAIN, [], [], Race(), seed=0, name=0)), "no choices"),
    ],
)
def test_bad_input_is_a_clear_error(call, words):
    with pytest.raises(InputError, match=words):
        call()
