"""Circulations against all masks and pairs; zero for every oracle."""

import itertools
import math

import pytest
import torch

from infodis.errors import InputError
from infodis.evaluate import run
from infodis.figures import consistency_map, save_picture
from infodis.item import Item
from infodis.oracle import HiddenMarkov, Independent, MarkovChain, Table
from infodis.predictor import Counting, Tempered, from_function
from infodis.quantities.bounds import bounds
from infodis.quantities.consistency import Circulations, Consistency, _draw_pairs, audit, circulation_coroutine
from infodis.rng import stream
from infodis.testing import Perturbed, Tabulated

CHAIN = MarkovChain.random(order=1, vocab_size=3, temperature=0.5, seed=0)
NOISY = Perturbed(CHAIN, scale=1.0)
X = CHAIN.sample(3, length=12, generator=stream(0, "consistency"))


@pytest.mark.parametrize(
    ("oracle", "length"),
    [
        (CHAIN, 12),
        (HiddenMarkov.random(states=3, vocab_size=3, seed=0), 12),
        (Independent(torch.tensor([0.2, 0.3, 0.5])), 12),
        (Table.dna(0), 8),
    ],
    ids=["chain", "hidden", "independent", "table"],
)
def test_oracles_are_consistent(oracle, length):
    sequences = oracle.sample(3, length=length, generator=stream(0, "oracle"))
    found = audit(oracle, sequences, context=[0], pairs=64, orders=8, particles=2)
    figures = (found.root_mean_square, found.mean_absolute, found.spread_per_token, found.most_gap_per_token)
    assert all(abs(figure.value) < 1e-8 for figure in figures)
    assert all(cell.root_mean_square.value < 1e-8 for cell in found.table)


def every_circulation(item: Item, table: torch.Tensor) -> list[tuple[int, float, float, float]]:
    """Distance, share masked, circulation and probability in a random order, of all masks and pairs."""
    length = item.target.numel()
    found = []
    for size in range(2, length + 1):
        for mask in itertools.combinations(range(length), size):
            code = sum(2**i for i in mask)
            for a, b in itertools.combinations(mask, 2):
                value = table[code, a] + table[code - 2**a, b] - table[code, b] - table[code - 2**b, a]
                chance = 1 / (length - 1) / math.comb(length, size) / math.comb(size, 2)
                distance = int(item.target[b] - item.target[a])
                found.append((distance, size / length, float(value), chance))
    assert sum(entry[3] for entry in found) == pytest.approx(1)
    return found


def sharpened(tokens: torch.Tensor) -> torch.Tensor:
    """A chain's conditionals, but sharpened from position 4 on: disagreement has a place."""
    clean = CHAIN.log_conditionals(tokens)
    return torch.where(torch.arange(tokens.shape[1])[:, None] < 4, clean, torch.log_softmax(3 * clean, -1))


@pytest.fixture(scope="module", params=["noisy", "sharpened"])
def case(request):
    """Every circulation of a target of seven with gaps, and 4,000 that were drawn."""
    predictor = NOISY if request.param == "noisy" else from_function(sharpened, vocab_size=3, mask_token=3)
    item = Item.read(X[0], target=[0, 1, 3, 4, 5, 9, 11], context=[2, 6])
    table = Tabulated.of(predictor, item)
    drawn, cost = run(circulation_coroutine(table, item, 4000, seed=0))
    found = Consistency(drawn, [bounds(predictor, X[0], target=item.target, context=[2, 6])], cost, 0)
    return every_circulation(item, table.table), found


def test_figures_against_enumeration(case):
    """z beyond 4 is a false alarm once in 16,000; the root is a little biased, by far less than its error."""
    every, found = case
    square = sum(chance * value**2 for _, _, value, chance in every)
    absolute = sum(chance * abs(value) for _, _, value, chance in every)
    for figure, truth in ((found.root_mean_square, math.sqrt(square)), (found.mean_absolute, absolute)):
        assert abs(figure.value - truth) < 4 * figure.standard_error
        assert figure.standard_error < 0.05 * truth


def test_cells_against_enumeration(case):
    """About 20 cells; 4.5 standard errors for all of them are a false alarm once in 7,000."""
    every, found = case
    assert found.evaluations <= 127
    total = 0
    for cell in found.table:
        low, high = cell.distances
        inside = [
            (value, chance)
            for distance, share, value, chance in every
            if low <= distance <= high and cell.shares[0] < share - 1e-9 and share - 1e-9 <= cell.shares[1]
        ]
        mass = sum(chance for _, chance in inside)
        truth = sum(chance * abs(value) for value, chance in inside) / mass
        assert abs(cell.mean_absolute.value - truth) <= 4.5 * cell.mean_absolute.standard_error + 1e-12
        total += cell.pairs
    assert total == 4000


def test_weights_make_pairs_and_sizes_uniform():
    """Of 21 pairs and 6 sizes, from 4,000 weighted draws; 4.5 standard errors for all are a false alarm in 5,000."""
    item = Item.read(X[0], target=[0, 1, 3, 4, 5, 9, 11], context=[2, 6])
    pair, size, weight = _draw_pairs(item, torch.zeros_like(item.target), 4000, generator=stream(0, "weights"))
    for kinds in (size.unsqueeze(1) == torch.arange(2, 8), pair[:, :1] * 7 + pair[:, 1:] == _codes(7)):
        drawn = kinds * weight.unsqueeze(1)
        error = drawn.std(0) / math.sqrt(4000)
        assert bool(((drawn.mean(0) - 1 / kinds.shape[1]).abs() < 4.5 * error).all())


def _codes(length: int) -> torch.Tensor:
    """A number for every pair of places."""
    return torch.tensor([length * a + b for a, b in itertools.combinations(range(length), 2)])


def test_mistakes_are_caught(case):
    """Negative controls: forgetting the weights, and a sum instead of a difference, are seen."""
    every, found = case
    truth = sum(chance * abs(value) for _, _, value, chance in every)
    error = found.mean_absolute.standard_error
    weight = found.circulations.weight
    assert float(weight.mean()) == pytest.approx(1, abs=4 * float(weight.std()) / math.sqrt(len(weight)))
    assert float(weight.std()) > 0.2
    distances = found.circulations.distance.double()
    exact = sum(chance * distance for distance, _, _, chance in every)
    assert abs(float((weight * distances).mean()) - exact) < 4 * float((weight * distances).std()) / math.sqrt(4000)
    assert abs(float(distances.mean()) - exact) > 4 * float(distances.std()) / math.sqrt(4000)
    assert abs(2 * found.mean_absolute.value - truth) > 10 * error


def test_audit_counts_rows_and_does_not_depend_on_other_items():
    counting = Counting(NOISY)
    found = audit(counting, [X[0], X[1][:9], X[2][:1]], pairs=8, orders=4, particles=2)
    assert counting.rows == found.evaluations
    alone = audit(NOISY, X[1][:9], pairs=8, orders=4, particles=2)
    assert torch.equal(found.circulations.value[8:], alone.circulations.value)
    assert found.circulations.value.numel() == 16  # a single token makes no pair
    assert len(found.bounds) == 3


def test_figures_per_token_against_bounds():
    sequences = [X[0], X[1][:9]]
    found = audit(NOISY, sequences, pairs=8, orders=8, particles=2)
    known = bounds(NOISY, sequences, orders=8, particles=2)
    assert found.spread_per_token.value == pytest.approx(sum(b.spread.value / b.tokens for b in known) / 2)
    assert found.least_gap_per_token.value <= found.most_gap_per_token.value
    assert found.spread_per_token.standard_error > 0


def test_a_tempered_chain_is_found_out():
    exact, tempered = (audit(p, X, pairs=32, orders=4, particles=2) for p in (CHAIN, Tempered(CHAIN, 1.5)))
    assert exact.root_mean_square.value < 1e-8
    assert tempered.root_mean_square.value > 4 * tempered.root_mean_square.standard_error


def test_impossible_pairs_are_left_out_and_counted():
    table = Table(torch.tensor([[0] * 8, [1] * 8]), torch.tensor([0.5, 0.5]))
    found = audit(table, [[0] * 8, [0, 1] * 4], pairs=16, orders=4, particles=2)
    assert found.impossible > 0
    assert found.root_mean_square.value < 1e-8
    assert not math.isnan(found.root_mean_square.standard_error)
    nothing = audit(table, [0, 1] * 4, target=[0, 1], pairs=4, orders=4, particles=2)
    assert nothing.impossible == 4
    assert nothing.table == []
    with pytest.raises(InputError, match="nothing to draw"):
        consistency_map(nothing)


def test_heat_map(tmp_path):
    found = audit(NOISY, X, pairs=64, orders=4, particles=2)
    for name in ("audit.svg", "audit.png"):
        save_picture(consistency_map(found), tmp_path / name)
        assert (tmp_path / name).stat().st_size > 5000
    text = (tmp_path / "audit.svg").read_text()
    for words in ("nats", "distance", "masked", "9-16"):
        assert words in text


def test_bad_input_is_told():
    with pytest.raises(InputError, match="at least 2"):
        audit(NOISY, X[0], pairs=1)
    with pytest.raises(InputError, match="single one"):
        audit(NOISY, X[0], target=[3])


def test_bins():
    size = torch.tensor([2, 2, 10, 3, 10])
    target = torch.tensor([10, 10, 10, 10, 10])
    blank = torch.zeros(5, dtype=torch.float64)
    found = Circulations(torch.tensor([1, 2, 3, 5, 9]), size, target, blank, blank)
    assert found.column.tolist() == [0, 1, 2, 3, 4]
    assert found.line.tolist() == [0, 0, 4, 1, 4]
