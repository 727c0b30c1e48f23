"""Blocks: masks in every block at once, exact where a block is enumerated, unbiased where it is not."""

import itertools
import math

import pytest
import torch

import infodis
from infodis import BlockLayout, Blocks, Enumerate, Kernel, Neighbours, Orders, Tiled, TimeFree
from infodis.auto import Auto
from infodis.control import Evened, neighbour_maps, surroundings
from infodis.design import Layout, key_count, numbers
from infodis.errors import InputError
from infodis.estimate import Request, estimate_items
from infodis.item import Item
from infodis.oracle import Independent, MarkovChain
from infodis.predictor import Counting
from infodis.quantities.perplexity import Windows
from infodis.result import Measured
from infodis.rng import key, stream
from infodis.testing import Blockwise, Perturbed, TabulatedBlocks, certificate

CHAIN = MarkovChain.random(order=2, vocab_size=4, temperature=0.5, seed=1)
TEXT = CHAIN.sample(1, length=23, generator=stream(0, "blocks"))[0]
NETWORK = Perturbed(CHAIN, scale=0.7)
"""Its conditionals disagree, as those of a network do."""

LAYOUTS = [BlockLayout(4), BlockLayout(4, "response"), BlockLayout(1), BlockLayout(8), BlockLayout(64)]


def by_looping(predictor, layout, tokens, context):
    """The exact nll, block by block, from the definition: an independent computation."""
    start = len(context) if layout.origin == "response" else 0
    blocks = {}
    for place in range(len(context), len(tokens)):
        blocks.setdefault((place - start) // layout.size, []).append(place)
    total = 0.0
    for places in blocks.values():
        for size in range(1, len(places) + 1):
            for mask in itertools.combinations(places, size):
                hidden = torch.zeros(1, len(tokens), dtype=torch.bool)
                hidden[0, list(mask)] = True
                hidden[0, places[-1] + 1 :] = True
                found = predictor.surprisal(tokens.unsqueeze(0), hidden)[0, list(mask)]
                total += float(found.sum()) / (size * math.comb(len(places), size))
    return total


@pytest.mark.parametrize("context", [0, 3, 6])
@pytest.mark.parametrize("layout", [BlockLayout(4), BlockLayout(4, "response"), BlockLayout(1), BlockLayout(5)])
def test_enumeration_in_blocks_is_the_sum_of_their_mask_averages(layout, context):
    found = infodis.nll(Blockwise(NETWORK, layout), TEXT, context=range(context))
    assert found.stopped == "exact"
    assert found.evaluations == 2 ** max(layout.sizes(torch.arange(context, 23))) - 1
    assert found.value == pytest.approx(by_looping(NETWORK, layout, TEXT, range(context)), abs=1e-9)
    assert float(found.per_token.sum()) == pytest.approx(found.value, abs=1e-9)


@pytest.mark.parametrize("layout", [BlockLayout(4), BlockLayout(5, "response")])
def test_a_table_of_blocks_is_exact(layout):
    table = TabulatedBlocks.of(Blockwise(NETWORK, layout), Item.read(TEXT, context=range(3)))
    assert table.exact == pytest.approx(by_looping(NETWORK, layout, TEXT, range(3)), abs=1e-9)
    with pytest.raises(InputError, match="needs a model of blocks"):
        TabulatedBlocks.of(NETWORK, Item.read(TEXT))


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_an_oracle_in_blocks_stays_exact(layout):
    found = infodis.nll(Blockwise(CHAIN, layout), TEXT, context=range(3), design=Blocks(Orders()), evaluations=64)
    assert found.value == pytest.approx(-CHAIN.log_prob(TEXT, context=range(3)), abs=1e-9)


@pytest.mark.parametrize("length", [12, 256, 1024])
def test_blocks_of_four_take_fifteen_rows_at_any_length(length):
    coin = Independent(torch.tensor([0.25, 0.75]))
    text = coin.sample(1, length=length, generator=stream(0, "coin"))[0]
    counted = Counting(Blockwise(coin, BlockLayout(4)))
    counted.blocks = BlockLayout(4)
    found = infodis.nll(counted, text)
    assert (found.stopped, found.evaluations, counted.rows) == ("exact", 15, 15)
    assert found.value == pytest.approx(-coin.log_prob(text), rel=1e-12)


DESIGNS = [
    Auto(),
    Blocks(Tiled()),
    Blocks(TimeFree()),
    Blocks(Orders()),
    Blocks(infodis.Pairs()),
    Blocks(infodis.StratifiedCount()),
    Tiled(),
    Orders(),
]


ITEM = Item.read(TEXT, context=range(3))


def errors_of(layout, design, *, control=None, evaluations=42, runs=400, network=NETWORK):
    """What 400 runs are off by, and how many of their intervals hold the truth."""
    predictor = TabulatedBlocks.of(Blockwise(network, layout), ITEM)
    exact = predictor.exact
    names = [key(ITEM.key, run) for run in range(runs)]
    request = Request(design, control, evaluations)
    found = estimate_items(predictor, [ITEM] * runs, request, seed=0, names=names)
    covered = sum(low <= exact <= high for low, high in (one.interval(0.95) for one in found))
    return torch.tensor([one.value - exact for one in found], dtype=torch.float64), covered / runs


@pytest.mark.parametrize("design", DESIGNS, ids=repr)
@pytest.mark.parametrize("layout", [BlockLayout(8), BlockLayout(6, "response")], ids=str)
def test_with_fewer_rows_it_is_unbiased_and_covers(layout, design):
    """|z| < 4, and 93-97 % covered up to three standard errors of 400 runs, 3.3 %: a false alarm in some 300 tests."""
    errors, covered = errors_of(layout, design, control=Neighbours())
    bias = Measured.mean(errors)
    assert abs(bias.value) < 4 * bias.standard_error
    assert 0.93 - 0.033 < covered < 0.97 + 0.033


LONG = Item.read(CHAIN.sample(1, length=48, generator=stream(1, "blocks"))[0])


def in_blocks_of_four(network) -> TabulatedBlocks:
    return TabulatedBlocks.of(Blockwise(network, BlockLayout(4)), LONG)


def random_surprisals() -> TabulatedBlocks:
    """All independent of each other: no conditional agrees with another."""
    masked = torch.arange(16).unsqueeze(1) >> torch.arange(4) & 1
    drawn = torch.rand(12, 16, 4, generator=stream(2, "surprisals"), dtype=torch.float64)
    return TabulatedBlocks(LONG, 4, 4, BlockLayout(4), tuple(-drawn.log() * masked))


FEW_PASSES = {
    "nearly agreeing": lambda: in_blocks_of_four(Perturbed(CHAIN, scale=0.2)),
    "disagreeing": lambda: in_blocks_of_four(Perturbed(CHAIN, scale=1.0)),
    "random": random_surprisals,
}


@pytest.mark.parametrize("kind", FEW_PASSES)
def test_few_passes_in_blocks_of_four_go_to_evened_orders(kind):
    """Fifteen would be exact. With ten, `Auto` is unbiased, covers, and is not behind `Tiled`, whatever the model."""
    table, runs = FEW_PASSES[kind](), 400

    def errors(design):
        names = [key(LONG.key, run) for run in range(runs)]
        found = estimate_items(table, [LONG] * runs, Request(design, Neighbours(), 10), seed=0, names=names)
        covered = sum(low <= table.exact <= high for low, high in (one.interval(0.95) for one in found))
        return found[0], torch.tensor([one.value - table.exact for one in found], dtype=torch.float64), covered / runs

    first, off, covered = errors(Auto())
    assert (first.design.inner, first.control) == (Orders(), Evened())
    assert first.evaluations <= 10
    assert float(first.per_token.sum()) == pytest.approx(first.value)
    bias = Measured.mean(off)
    assert abs(bias.value) < 4 * bias.standard_error
    assert 0.93 - 0.033 < covered < 0.97 + 0.033
    tiled = errors(Blocks(Tiled()))[1].square().mean()
    assert off.square().mean() < tiled * (0.5 if kind == "nearly agreeing" else 1.0)


def test_orders_are_evened_as_far_as_conditionals_disagree():
    """Not where they agree: there they are exact as they are. Without a control, or other blocks, never."""
    exact = in_blocks_of_four(CHAIN)
    assert infodis.nll(exact, LONG, evaluations=8).standard_error < 1e-9
    table = random_surprisals()
    design = Blocks(Orders())
    evened, plain = (infodis.nll(table, LONG, evaluations=8, design=design, control=c) for c in (Neighbours(), None))
    assert (evened.control, plain.control) == (Evened(), None)
    few = Item.read(TEXT[:12])
    found = infodis.nll(TabulatedBlocks.of(Blockwise(NETWORK, BlockLayout(4)), few), few, evaluations=8)
    assert (found.design.inner, found.control) == (Tiled(), Kernel())


def test_weights_of_the_whole_target_on_masks_of_blocks_are_caught():
    """A negative control: the weight that a mask has in its block is not the one that it has in the whole target."""

    class WholeWeights(Blocks):
        def masks(self, levels, keys):
            masked, _ = super().masks(levels, keys)
            share = masked.double().mean(-1, keepdim=True).clamp(min=1e-9)
            return masked, masked / (share * levels.shape[-1])

    errors, _ = errors_of(BlockLayout(8), WholeWeights(infodis.UniformCount()))
    bias = Measured.mean(errors)
    assert abs(bias.value) > 8 * bias.standard_error


def test_masking_whole_rows_of_a_full_model_in_blocks_is_refused():
    with pytest.raises(InputError, match=r"this predictor sees whole rows.*block_size"):
        infodis.nll(CHAIN, TEXT, design=Blocks())


@pytest.mark.parametrize("sizes", [(3, 2), (1, 3), (2, 2, 1)])
@pytest.mark.parametrize("inner", [Tiled(), TimeFree(), Orders(), infodis.Pairs(), infodis.UniformCount()], ids=repr)
def test_certificate_in_every_block(sizes, inner):
    """[eq:certificate] block by block: expected weights on every mask inside a block are those of the block by itself.

    From 60,000 replicates; each mean within 5 standard errors of its own (some 100 masks: a false alarm in 17,000).
    """
    design = Blocks(inner).over(sizes)
    rows = design.layout(sum(sizes), 64).rows if isinstance(inner, Orders | infodis.Pairs) else 2
    generators = [stream(0, "certificate")] * 60_000
    masked, weight = design.masks(*numbers(key_count(design, sum(sizes)), Layout(60_000, rows), generators))
    for part, its in zip(masked.split(sizes, dim=-1), weight.split(sizes, dim=-1), strict=True):
        size = part.shape[-1]
        code = (part * 2 ** torch.arange(size)).sum(-1)
        for number in range(1, 2**size):
            wanted = certificate(size)[number.bit_count()]
            held = [n for n in range(size) if number >> n & 1]
            found = torch.where((code == number).unsqueeze(-1), its, 0.0).sum(1)[:, held]
            error = found.std(0) / math.sqrt(len(found))
            assert bool(((found.mean(0) - wanted).abs() <= 5 * error + 1e-12).all()), (number, found.mean(0), wanted)


def test_blocks_are_drawn_independently():
    design = Blocks(infodis.UniformCount()).over((6, 6))
    masked, _ = design.masks(*numbers(13, Layout(20_000, 1), [stream(0, "independent")] * 20_000))
    sizes = masked.unflatten(-1, (2, 6)).sum(-1).double().squeeze(1)
    assert abs(float(torch.corrcoef(sizes.T)[0, 1])) < 4 / math.sqrt(20_000)


def test_a_shorter_target_meets_the_masks_of_the_longer_one():
    """What couples ratios of unequal lengths."""
    longer, shorter = Blocks(Tiled()).over((3, 4, 4)), Blocks(Tiled()).over((3, 4))
    layout, names = Layout(3, 6), range(3)
    masks = [
        one.masks(*numbers(key_count(one, length), layout, [stream(0, name) for name in names]))[0]
        for one, length in ((longer, 11), (shorter, 7))
    ]
    assert torch.equal(masks[0][..., :7], masks[1])


def test_a_control_helps_inside_blocks():
    """On a network that is nearly a chain. Both are unbiased (tested above); 400 runs know a deviation to 3.5 %."""
    network = Perturbed(CHAIN, scale=0.2)
    spreads = [
        errors_of(BlockLayout(12), Blocks(Tiled()), control=control, evaluations=64, network=network)[0].std()
        for control in (None, Neighbours())
    ]
    assert spreads[1] < 0.85 * spreads[0]


def test_neighbours_stay_inside_their_block():
    maps = neighbour_maps(torch.arange(5).unsqueeze(0), (1, -1), (2, 3))[0].tolist()
    assert maps == [[1, 5], [5, 0], [3, 5], [4, 2], [5, 3]]  # 5 stands for "no such neighbour"


def test_features_in_blocks_have_mean_zero():
    """Over all masks of a block, with their weights, whatever is masked elsewhere [eq:control-means]."""
    sizes, control = (3, 4), Neighbours(radius=2)
    design = Blocks(Enumerate()).over(sizes)
    masked, weight = (part.transpose(1, 2) for part in design.masks(*numbers(8, Layout(1, 15), [stream(0, 0)])))
    maps = neighbour_maps(torch.arange(7).unsqueeze(0), control.offsets, sizes)
    means = (control.features(surroundings(masked, maps, sizes)) * weight.unsqueeze(2)).sum(-1)
    assert float(means.abs().max()) < 1e-5


def test_ratios_share_masks_and_enumerate():
    predictor = Blockwise(NETWORK, BlockLayout(4))
    other = torch.cat([TEXT[:18], TEXT[:3]])
    ratio = infodis.log_ratio(predictor, other, TEXT)
    assert ratio.standard_error == 0
    assert ratio.value == pytest.approx(infodis.nll(predictor, TEXT).value - infodis.nll(predictor, other).value)
    long = Blockwise(NETWORK, BlockLayout(16))
    coupled = infodis.log_ratio(long, other, TEXT, evaluations=64)
    apart = [infodis.nll(long, one, evaluations=64) for one in (other, TEXT)]
    assert coupled.standard_error < math.hypot(*(one.standard_error for one in apart))


def test_races_take_blocks():
    predictor = Blockwise(NETWORK, BlockLayout(4))
    verdict = infodis.choose(predictor, [TEXT[:20].tolist(), TEXT.flip(0)[:18].tolist()])
    exact = [infodis.nll(predictor, one).value for one in (TEXT[:20], TEXT.flip(0)[:18])]
    assert verdict.leader == exact.index(min(exact))
    assert [one.nats for one in verdict.choices] == pytest.approx(exact)
    assert verdict.evaluations == 30
    larger = Blockwise(NETWORK, BlockLayout(9))
    texts = [TEXT[:20], torch.randint(4, (23,), generator=stream(0, "r"))]
    verdict = infodis.choose(larger, [text.tolist() for text in texts])
    exact = [infodis.nll(larger, one, design=Blocks(Enumerate())).value for one in texts]
    assert (verdict.leader, verdict.decided) == (exact.index(min(exact)), True)


def test_perplexity_of_a_block_model_is_exact():
    predictor = Blockwise(NETWORK, BlockLayout(4))
    found = infodis.perplexity(predictor, [TEXT.tolist()], windows=Windows(length=64))
    assert found.nats == pytest.approx(infodis.nll(predictor, TEXT).value)
    assert found.monte_carlo_error == 0


def test_a_requested_standard_error_stops_at_enumeration():
    found = infodis.nll(Blockwise(NETWORK, BlockLayout(8)), TEXT, standard_error=0.01)
    assert (found.stopped, found.evaluations) == ("exact", 255)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"context": [10]}, "all context must lie before the target; position 10 is context, position 0 is target"),
        ({"context": [0], "target": [1, 2]}, "cannot sum positions out.*20 of 23 are in neither"),
    ],
)
def test_what_a_block_model_cannot_honour_is_refused(options, said):
    with pytest.raises(InputError, match=said):
        infodis.nll(Blockwise(NETWORK, BlockLayout(4)), TEXT, **options)


@pytest.mark.parametrize("size", [0, -1, True])
def test_a_block_size_is_a_whole_number(size):
    with pytest.raises(InputError, match="block size must be a whole number"):
        BlockLayout(size)


def test_an_origin_is_one_of_two():
    with pytest.raises(InputError, match="global or response; got 'prompt'"):
        BlockLayout(4, "prompt")


def test_blocks_within_blocks_are_refused():
    with pytest.raises(InputError, match="Blocks needs a design"):
        Blocks(Blocks())


def test_numbers_of_blocks():
    layout = BlockLayout(4, "response")
    starts = layout.starts(torch.tensor([[6, 7, 8], [2, 3, 4]]))
    assert starts.tolist() == [6, 2]
    assert layout.numbers(9, starts).tolist() == [[-2, -2, -1, -1, -1, -1, 0, 0, 0], [-1, -1, 0, 0, 0, 0, 1, 1, 1]]
    assert BlockLayout(4).numbers(6, torch.zeros(1, dtype=torch.int64)).tolist() == [[0, 0, 0, 0, 1, 1]]
