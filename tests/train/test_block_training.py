"""Training of block diffusion: an unbiased loss, and runs whose checkpoints are models of blocks."""

import itertools
import math

import pytest
import torch
from training_runs import CHAIN, prepare, records, run

import infodis
from infodis.blocks import BlockLayout
from infodis.errors import InputError
from infodis.models.nets import RADD, NetworkShape, initialise
from infodis.rng import stream
from infodis.train.losses import K_DCE, LAMBDA_DCE, BlockDCE

VOCAB, SIZE = 5, 3
X = torch.randint(VOCAB, (1, 2 * SIZE), generator=stream(0, "x"))


def network(block_size: int = SIZE) -> RADD:
    made = RADD(VOCAB, NetworkShape(width=16, blocks=1, heads=2, block_size=block_size))
    initialise(made, generator=stream(0))
    with torch.no_grad():
        made.output_layer.linear.weight.normal_(std=0.5, generator=stream(1))
    return made.eval()


def enumerated(made: RADD) -> float:
    """The nll by all masks of every block: sum of f(M, i) / (k C(size, k))."""
    total = 0.0
    for start in range(0, X.shape[1], SIZE):
        for k in range(1, SIZE + 1):
            for places in itertools.combinations(range(start, start + SIZE), k):
                masked = torch.zeros_like(X, dtype=torch.bool)
                masked[0, list(places)] = True
                total += float(made.surprisal(X, masked).sum()) / (k * math.comb(SIZE, k))
    return total


@pytest.mark.parametrize("inner", [K_DCE, LAMBDA_DCE], ids=["k-dce", "lambda-dce"])
@torch.no_grad()
def test_the_loss_of_every_row_is_unbiased_against_enumeration(inner):
    """The first and the last row of batches of two, within 4 standard errors. Strata dealt in order would bias both."""
    made, generator = network(), stream(2)
    function = BlockDCE(inner, SIZE)
    drawn = torch.stack([function(made, X.expand(2, -1), generator=generator) for _ in range(2000)]).double()
    exact = enumerated(made)
    error = drawn.std(0) / math.sqrt(len(drawn))
    assert bool(((drawn.mean(0) - exact).abs() < 4 * error).all()), (drawn.mean(0), exact, error)
    assert float(error.max()) < 0.03 * exact  # or nothing would be told


def test_levels_are_stratified_over_blocks():
    """A batch of 4 rows of 2 blocks masks each of 8 equal shares of levels once: so every size as often as others."""
    for seed in range(5):
        levels = BlockDCE(K_DCE, 4).levels(torch.zeros(4, 8, dtype=torch.int64), generator=stream(seed))
        assert sorted((levels * 8).long().tolist()) == list(range(8))
        masked, _ = BlockDCE(K_DCE, 4).draw(torch.zeros(4, 8).long(), vocab_size=VOCAB, generator=stream(seed))
        assert sorted(masked.view(-1, 4).sum(-1).tolist()) == [1, 1, 2, 2, 3, 3, 4, 4]


@torch.no_grad()
def test_blocks_of_one_token_have_the_loss_of_a_causal_network():
    made = network(1)
    plain = made.surprisal(X, torch.ones_like(X, dtype=torch.bool)).sum(-1)
    for seed in range(3):
        torch.testing.assert_close(BlockDCE(K_DCE, 1)(made, X, generator=stream(seed)), plain)


def test_windows_hold_whole_blocks():
    with pytest.raises(InputError, match="whole blocks of 4 tokens, got 6"):
        BlockDCE(K_DCE, 4)(network(4), X, generator=stream(0))


@pytest.mark.parametrize("size", [1, 4])
def test_a_run_of_blocks_learns_and_loads_as_a_model_of_blocks(tmp_path, size):
    """200 steps bring a tiny network within 0.1 nats a token of the exact nll, and no lower than that."""
    path = prepare(tmp_path, steps=200)
    text = path.read_text().replace("dropout = 0.1\n", f"block_size = {size}\n")
    text = text.replace("validate_every = 5", "validate_every = 100").replace(
        "valid_evaluations = 4", "valid_evaluations = 16"
    )
    path.write_text(text.replace("width = 16", "width = 32").replace("batch = 8\nmicro_batch = 4", "batch = 32"))
    run(path, tmp_path / "run")
    model = infodis.load(tmp_path / "run")
    assert model.blocks == BlockLayout(size)
    held_out = CHAIN.sample(40, length=12, generator=stream(1, "held out"))
    mine = sum(e.value for e in infodis.nll(model, held_out, evaluations=32)) / 40 / 12
    exact = -sum(float(CHAIN.log_prob(row)) for row in held_out) / 40 / 12
    assert exact - 0.02 < mine < exact + 0.1
    found = [record for record in records(tmp_path / "run") if record["kind"] == "validation"]
    assert [record["step"] for record in found] == [100, 200]
    assert all(record["standard_error"] < 1e-4 for record in found)  # 15 masks are all there are


def test_a_block_network_may_start_from_a_full_one(tmp_path):
    """They have the same parameters."""
    first = prepare(tmp_path, steps=2)
    run(first, tmp_path / "first")
    second = tmp_path / "second.toml"
    second.write_text(first.read_text().replace("dropout = 0.1", 'block_size = 4\nstart = "first"'))
    run(second, tmp_path / "second")
    assert infodis.load(tmp_path / "second").blocks == BlockLayout(4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("length = 12", "length = 12\nblock_size = 5"), r"model\.length must be a multiple of model\.block_size = 5"),
        (("length = 12", "length = 12\nblock_size = -1"), r"model\.block_size must not be negative"),
    ],
)
def test_wrong_blocks_are_told(tmp_path, change, message):
    path = prepare(tmp_path)
    path.write_text(path.read_text().replace(*change))
    with pytest.raises(InputError, match=message):
        run(path, tmp_path / "run")
    with pytest.raises(InputError, match="block_size is an option of radd"):
        infodis.train.config.ModelConfig(network="sedd", width=8, blocks=1, heads=2, block_size=4)
