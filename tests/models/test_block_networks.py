"""Block diffusion: clean keys and values that are reused give the plain form's numbers, and nobody sees too much."""

import pytest
import torch

from infodis.errors import InputError
from infodis.models.nets import RADD, BlockNetwork, NetworkShape, initialise
from infodis.models.nets.block_network import BEHIND, CleanStates
from infodis.models.nets.llama import Llama, LlamaShape
from infodis.rng import stream

VOCAB, LENGTH, SIZE = 7, 14, 4


def radd(block_size: int = SIZE, *, positions: int = 0) -> RADD:
    shape = NetworkShape(width=24, blocks=3, heads=3, block_size=block_size, positions=positions)
    network = RADD(VOCAB, shape)
    initialise(network, generator=stream(0))
    with torch.no_grad():
        network.output_layer.linear.weight.normal_(generator=stream(1))
        if positions:
            network.position_embed.normal_(generator=stream(2))
    return network.eval()


def llama(*, shifted: bool = False) -> Llama:
    network = Llama(LlamaShape(9, 16, 3, 4, 2, 24, 1e4, 1e-5), mask_token=8, tokens=VOCAB, shifted=shifted)
    for number, parameter in enumerate(network.parameters()):
        torch.nn.init.normal_(parameter, std=0.5, generator=stream(number))
    return network.eval()


NETWORKS = {
    "radd": radd,
    "radd-with-positions": lambda: radd(positions=LENGTH),
    "llama": llama,
    "shifted-llama": lambda: llama(shifted=True),
}


def some_rows(network: BlockNetwork, rows: int = 5, texts: int = 2):
    """Clean texts, masked rows of them, and whose they are."""
    clean = torch.randint(VOCAB, (texts, LENGTH), generator=stream(3))
    owner = torch.arange(rows) % texts
    masked = torch.rand(rows, LENGTH, generator=stream(4)) < 0.5
    masked[:, -1] = True
    return clean, owner, masked, torch.where(masked, network.mask_token, clean[owner])


def grid(*starts: int) -> torch.Tensor:
    return torch.stack([(torch.arange(LENGTH) - start).div(SIZE, rounding_mode="floor") for start in starts])


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("padded", [False, True])
@torch.no_grad()
def test_reused_clean_keys_against_plain_form(name, padded):
    """Blocks that begin at different places in the two texts, one of which is shorter."""
    network = NETWORKS[name]()
    clean, owner, masked, noisy = some_rows(network)
    starts = grid(0, 3) if padded else grid(0)
    there = torch.arange(LENGTH) < torch.tensor([LENGTH, LENGTH - 3 if padded else LENGTH]).unsqueeze(-1)
    starts = starts.where(there, BEHIND) if padded else starts
    mine = starts[owner] if padded else starts
    at = masked & there[owner] & (torch.arange(LENGTH) >= network.first_predicted)
    plain = network.plain_features(noisy, clean[owner], blocks=mine, at=at)
    states = network.encode(clean, blocks=starts)
    found = network.block_features(noisy, states, owner=owner, blocks=mine, at=at)
    torch.testing.assert_close(found, plain, atol=1e-5, rtol=1e-5)
    if not padded:
        one = network.encode(clean[:1], blocks=starts)
        alone = network.block_features(
            noisy[owner == 0], one, owner=owner[owner == 0], blocks=starts, at=at[owner == 0]
        )
        torch.testing.assert_close(alone, found[owner[at.nonzero()[:, 0]] == 0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", [*NETWORKS, "causal"])
@torch.no_grad()
def test_a_text_that_is_read_in_two_parts_against_whole(name):
    """Two texts on different grids, of which different beginnings are known, of one of them nothing."""
    network = radd(1) if name == "causal" else NETWORKS[name]()
    clean, blocks = torch.randint(VOCAB, (3, LENGTH), generator=stream(6)), grid(0, 3, 0)
    whole, known = network.encode(clean, blocks=blocks), torch.tensor([8, 7, 0])
    past = CleanStates.joined([whole.text(n, int(length)) for n, length in enumerate(known)], 8)
    before = torch.where(torch.arange(8) < known.unsqueeze(-1), blocks[:, :8], BEHIND)
    places = known.unsqueeze(-1) + torch.arange(LENGTH)
    inside, places = places < LENGTH, places.clamp(max=LENGTH - 1)
    rest = network.encode(
        clean.gather(1, places),
        blocks=blocks.gather(1, places).where(inside, BEHIND),
        positions=places,
        past=(past, before),
    )
    for number, length in enumerate(known.tolist()):
        both = whole.text(number, length).followed_by(rest.text(number, LENGTH - length))
        assert both.length == LENGTH
        for one, other in zip(both.parts(), whole.text(number, LENGTH).parts(), strict=True):
            torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", NETWORKS)
@torch.no_grad()
def test_a_part_of_a_row_against_all_of_it(name):
    """The last two blocks of masked rows, beside the clean blocks before."""
    network = NETWORKS[name]()
    clean, owner, _, noisy = some_rows(network)
    blocks, part = grid(0), slice(8, LENGTH)
    states = network.encode(clean, blocks=blocks)
    whole = network.block_features(noisy, states, owner=owner, blocks=blocks)[:, part]
    before = CleanStates.joined([states.text(n, 12) for n in range(2)], 12)
    found = network.block_features(
        noisy[:, part], before, owner=owner, blocks=blocks[:, part], clean_blocks=blocks[:, :12],
        positions=torch.arange(LENGTH)[None, part],
    )  # fmt: skip
    torch.testing.assert_close(found, whole, atol=1e-5, rtol=1e-5)  # all stand behind the first position


@pytest.mark.parametrize("name", NETWORKS)
@torch.no_grad()
def test_who_sees_whom(name):
    """A token that changes is seen by noisy ones of later blocks, and of its own if it is visible there."""
    network = NETWORKS[name]()
    clean, _, _, noisy = some_rows(network, rows=1, texts=1)
    blocks = grid(0)
    before = network.plain_features(noisy, clean, blocks=blocks)[0]
    for place in range(LENGTH):
        for both in (False, True):  # in the clean text only, or in the masked row too
            text, row = clean.clone(), noisy.clone()
            text[0, place] = (text[0, place] + 1) % VOCAB
            if both:
                row[0, place] = text[0, place]
            moved = (network.plain_features(row, text, blocks=blocks)[0] - before).abs().amax(-1) > 1e-6
            expected = blocks[0] > place // SIZE
            if both:
                expected |= blocks[0] == place // SIZE
                if network.shifted:  # the first of a block is answered for by the clean token before it
                    expected[place // SIZE * SIZE] = False
            first = network.first_predicted
            assert torch.equal(moved[first:], expected[first:]), (place, both)


def test_gradients_against_plain_form():
    """Training goes through clean and noisy tokens: the loss and every gradient are those of the plain form."""
    network = radd()
    clean, _, masked, noisy = some_rows(network, rows=2)
    found = network.surprisal(clean, masked)
    found.sum().backward()
    gradients = {name: p.grad.clone() for name, p in network.named_parameters()}
    network.zero_grad()
    logits = network.logits(network.plain_features(noisy, clean, blocks=grid(0), at=masked))
    plain = torch.nn.functional.cross_entropy(logits, clean[masked], reduction="none")
    torch.testing.assert_close(found[masked], plain, atol=1e-5, rtol=1e-5)
    plain.sum().backward()
    for name, parameter in network.named_parameters():
        torch.testing.assert_close(gradients[name], parameter.grad, atol=1e-4, rtol=1e-4, msg=name)


@torch.no_grad()
def test_blocks_of_one_are_a_causal_network_against_enumeration():
    """Probabilities of all texts of a length add up to 1, and each token sees those before it only."""
    network = radd(1)
    texts = torch.cartesian_prod(*3 * [torch.arange(VOCAB)])
    nll = network.surprisal(texts, torch.ones_like(texts, dtype=torch.bool)).sum(-1)
    assert float(torch.logsumexp(-nll.double(), 0).exp()) == pytest.approx(1, abs=1e-5)
    clean = torch.randint(VOCAB, (1, LENGTH), generator=stream(5))
    every = torch.ones_like(clean, dtype=torch.bool)
    before = network.surprisal(clean, every)
    other = clean.clone()
    other[0, 6] = (other[0, 6] + 1) % VOCAB
    moved = (network.surprisal(other, every) - before).abs() > 1e-6
    assert moved[0].tolist() == [place >= 6 for place in range(LENGTH)]


@torch.no_grad()
def test_a_block_as_long_as_the_row_is_the_full_network():
    full, blocks = radd(0), radd(LENGTH)
    clean, _, masked, _ = some_rows(full, rows=2)
    torch.testing.assert_close(blocks.surprisal(clean, masked), full.surprisal(clean, masked), atol=1e-5, rtol=1e-5)


def test_a_masked_row_alone_is_refused():
    with pytest.raises(InputError, match="needs the clean text beside a masked row"):
        radd().log_conditionals(torch.zeros(1, 8, dtype=torch.int64))
    with pytest.raises(InputError, match="blocks of 0 or more"):
        NetworkShape(width=8, blocks=1, heads=2, block_size=-1)
