"""Models of blocks: each row beside its clean text, whose keys and values are computed once and never stale."""

import dataclasses

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import infodis
from infodis.blocks import BlockLayout
from infodis.errors import InputError
from infodis.models import checkpoint, clean_texts
from infodis.models.adapters import LoadedModel
from infodis.models.clean_texts import CleanTexts
from infodis.models.model import Model
from infodis.models.nets import RADD, NetworkShape, initialise
from infodis.predictor import Rows, Tempered
from infodis.rng import stream
from infodis.sampling import sample

VOCAB = 7


def network(block_size: int = 4, seed: int = 0) -> RADD:
    made = RADD(VOCAB, NetworkShape(width=24, blocks=2, heads=3, block_size=block_size))
    initialise(made, generator=stream(seed))
    with torch.no_grad():
        made.output_layer.linear.weight.normal_(generator=stream(1))
    return made.eval()


def model_of(made: RADD, origin: str = "global", **options) -> Model:
    blocks = BlockLayout(made.block_size, origin)
    return Model("blocks", LoadedModel("radd", made, None, None, None, blocks=blocks), torch.device("cpu"), **options)


def rows_of_two_texts(length: int = 14, rows: int = 6) -> Rows:
    """Two texts of unequal length whose blocks begin at different places, rows of both in turn."""
    texts = torch.randint(VOCAB, (2, length), generator=stream(2))
    owner = torch.arange(rows) % 2
    lengths = torch.tensor([length, length - 3])[owner]
    there = torch.arange(length) < lengths.unsqueeze(-1)
    hidden = (torch.rand(rows, length, generator=stream(3)) < 0.5) & there
    return Rows(texts[owner], hidden, hidden, lengths, torch.tensor([0, 3])[owner])


def plain_surprisals(made: RADD, rows: Rows, size: int) -> torch.Tensor:
    """Every row by itself in the plain form [noisy ; clean]."""
    found = []
    for tokens, hidden, length, start in zip(rows.tokens, rows.hidden, rows.lengths, rows.starts, strict=True):
        text, masked = tokens[None, :length], hidden[None, :length]
        blocks = (torch.arange(int(length)) - start).div(size, rounding_mode="floor")[None]
        features = made.plain_features(torch.where(masked, VOCAB, text), text, blocks=blocks, at=masked)
        found.append(F.cross_entropy(made.logits(features), text[masked], reduction="none"))
    return torch.cat(found)


@torch.no_grad()
def test_surprisals_against_plain_form():
    """Rows of unequal lengths and grids in one batch, also when the clean texts come from an earlier batch."""
    made, rows = network(), rows_of_two_texts()
    model = model_of(made, "response")
    plain = plain_surprisals(made, rows, 4)
    for _ in range(2):
        torch.testing.assert_close(model.surprisals(rows), plain, atol=1e-5, rtol=1e-5)
    wider = Rows(*(F.pad(part, (0, 5)) for part in (rows.tokens, rows.hidden, rows.wanted)), rows.lengths, rows.starts)
    torch.testing.assert_close(model.surprisals(wider), plain, atol=1e-5, rtol=1e-5)
    assert model.clean_passes == 2


@torch.no_grad()
def test_texts_on_different_grids_are_different_texts():
    """The same tokens with blocks that begin elsewhere."""
    made, rows = network(), rows_of_two_texts()
    same = dataclasses.replace(rows, tokens=rows.tokens[:1].expand_as(rows.tokens), lengths=torch.full((6,), 11))
    model = model_of(made, "response")
    hidden = same.hidden & (torch.arange(14) < 11)
    same = dataclasses.replace(same, hidden=hidden, wanted=hidden)
    torch.testing.assert_close(model.surprisals(same), plain_surprisals(made, same, 4), atol=1e-5, rtol=1e-5)
    assert model.clean_passes == 2


def texts_that_begin_alike(length: int = 40, rest: int = 8) -> Rows:
    """Four texts with a common prompt and ends of unequal length, and one of another prompt; three rows of each."""
    texts = torch.randint(VOCAB, (5, length + rest), generator=stream(10))
    texts[1:4, :length], texts[:, length] = texts[0, :length], torch.arange(5)
    lengths = torch.tensor([length + rest, length + rest - 1, length + rest - 4, length + rest, length + rest])
    there = torch.arange(length, length + rest) < lengths.unsqueeze(-1)
    hidden = torch.zeros(5, 3, length + rest, dtype=torch.bool)
    hidden[:, :, length:] = (torch.rand(5, 3, rest, generator=stream(11)) < 0.6) & there.unsqueeze(1)
    hidden[:, 0, length] = True
    rows = (part.repeat_interleave(3, 0) for part in (texts, lengths))
    tokens, lengths = rows
    return Rows(tokens, hidden.flatten(0, 1), hidden.flatten(0, 1), lengths, torch.zeros(15, dtype=torch.int64))


@torch.no_grad()
@pytest.mark.parametrize("some", [15, 4])
def test_texts_that_begin_alike_share_what_they_begin_with(some):
    """Numbers of the plain form, with one clean pass over a common prompt, in one batch or in several."""
    made, rows = network(), texts_that_begin_alike()
    model = model_of(made)
    parts = [Rows(*(getattr(rows, f.name)[n : n + some] for f in dataclasses.fields(rows))) for n in range(0, 15, some)]
    found = torch.cat([model.surprisals(part) for part in parts])
    torch.testing.assert_close(found, plain_surprisals(made, rows, 4), atol=1e-5, rtol=1e-5)
    assert model.clean_passes == 4
    # 44 tokens before the last block of the first text; of the second and the fourth 4 more than the prompt; of the
    # third no more; of the fifth all, since it begins otherwise
    assert model.clean_texts.tokens == 44 + 4 + 4 + 44


@torch.no_grad()
def test_a_text_that_goes_on_takes_the_place_of_its_beginning():
    """As when text is written: each block is read once, and no beginning of a text is kept beside it."""
    made = network()
    model, text = model_of(made), torch.randint(VOCAB, (1, 40), generator=stream(12))
    for end in range(8, 41, 4):
        masked = torch.zeros(1, end, dtype=torch.bool)
        masked[0, end - 3 :] = True
        rows = Rows(text[:, :end], masked, masked, torch.tensor([end]), torch.tensor([0]))
        torch.testing.assert_close(model.surprisals(rows), plain_surprisals(made, rows, 4), atol=1e-5, rtol=1e-5)
    kept = model.clean_texts
    assert kept.tokens == 36
    assert [len(one) for one in kept._kept] == [36]
    assert kept._bytes == sum(states.bytes for states in kept._kept.values()) == 2 * 2 * 24 * 36 * 4
    assert set(kept._by_code.values()) == set(kept._kept)


@torch.no_grad()
def test_what_is_kept_is_bounded_whatever_is_asked():
    """Texts with common beginnings come and go: memory stays in bounds, and numbers are those of the plain form."""
    made, draws = network(), stream(13)
    model = model_of(made, "response")
    object.__setattr__(model, "clean_texts", CleanTexts(made, most_bytes=40_000))
    texts = torch.randint(VOCAB, (3, 48), generator=draws)
    for _ in range(60):
        which = torch.randint(3, (4,), generator=draws)
        lengths, starts = torch.randint(20, 49, (4,), generator=draws), torch.randint(5, (4,), generator=draws)
        hidden = (torch.rand(4, 48, generator=draws) < 0.3) & (torch.arange(48) < lengths.unsqueeze(-1))
        hidden[:, 10] = True
        rows = Rows(texts[which], hidden, hidden, lengths, starts)
        torch.testing.assert_close(model.surprisals(rows), plain_surprisals(made, rows, 4), atol=1e-5, rtol=1e-5)
        kept = model.clean_texts
        assert kept._bytes == sum(states.bytes for states in kept._kept.values()) <= 40_000
        assert set(kept._by_code.values()) <= set(kept._kept)


@torch.no_grad()
def test_codes_are_for_looking_up_only(monkeypatch):
    """Texts with the same code, here all of them, are told apart by their tokens and blocks."""
    monkeypatch.setattr(clean_texts, "_codes", lambda tokens, blocks: np.ones(len(tokens), dtype=np.uint64))
    made, rows = network(), rows_of_two_texts()
    same = dataclasses.replace(rows, tokens=rows.tokens[:1].expand_as(rows.tokens))
    for asked in (rows, same):
        model = model_of(made, "response")
        for _ in range(2):
            torch.testing.assert_close(model.surprisals(asked), plain_surprisals(made, asked, 4), atol=1e-5, rtol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("size", [1, 4])
def test_choices_and_ratios_read_a_common_prompt_once(size):
    model = model_of(network(size))
    texts = torch.randint(VOCAB, (4, 48), generator=stream(14))
    texts[:, :40], texts[:, 40] = texts[0, :40], torch.arange(4)
    infodis.choose(model, list(texts), context=range(40), evaluations=32)
    assert model.clean_texts.tokens == (44 + 3 * 4 if size == 4 else 48 + 3 * 7)
    before = model.clean_texts.tokens
    infodis.log_ratio(model, texts[0], texts[1], context=range(40), evaluations=32)
    assert model.clean_texts.tokens == before


@torch.no_grad()
def test_a_causal_network_that_reads_on_against_one_pass():
    made, rows = network(1), texts_that_begin_alike()
    model = model_of(made)
    visible = torch.arange(48) < rows.lengths.unsqueeze(-1)
    features = made.features(torch.where(visible, rows.tokens, 0), visible=visible, at=rows.wanted)
    expected = made.token_nll(features, rows.tokens[rows.wanted])
    for _ in range(2):
        torch.testing.assert_close(model.surprisals(rows), expected, atol=1e-5, rtol=1e-5)
    assert model.clean_texts.tokens < 48 + 4 * 48


def by_optimizer(made: RADD) -> None:
    optimizer = torch.optim.AdamW(made.parameters(), lr=1e-2)
    for parameter in made.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()


def by_hand(made: RADD) -> None:
    made.blocks[0].attn_qkv.weight.data[0, 0] += 1.0


def by_loading(made: RADD) -> None:
    made.load_state_dict(network(seed=5).state_dict())


def by_changing_places(made: RADD) -> None:
    """The sum of all weights stays what it was."""
    with torch.no_grad():
        weight = made.blocks[0].attn_qkv.weight
        weight.copy_(weight.flip(0).clone())


@pytest.mark.parametrize("change", [by_optimizer, by_hand, by_loading, by_changing_places])
def test_changed_weights_never_meet_kept_texts(change):
    made, rows = network(), rows_of_two_texts()
    model = model_of(made, "response")
    with torch.no_grad():
        before = model.surprisals(rows)
    change(made)
    with torch.no_grad():
        after = model.surprisals(rows)
        assert (after - before).abs().max() > 1e-3
        torch.testing.assert_close(after, plain_surprisals(made, rows, 4), atol=1e-5, rtol=1e-5)
    assert model.clean_passes == 4


@torch.no_grad()
def test_another_precision_never_meets_kept_texts():
    """A text that was read under autocast is read again without."""
    made, rows = network(), rows_of_two_texts()
    model = model_of(made, "response")
    with torch.autocast("cpu", torch.bfloat16):
        rough = model.surprisals(rows)
    exact = model.surprisals(rows)
    torch.testing.assert_close(exact, plain_surprisals(made, rows, 4), atol=1e-5, rtol=1e-5)
    assert (rough - exact).abs().max() > 1e-4


def test_weights_are_trusted_only_as_long_as_they_are_held():
    """While text is written they are looked at once; before and after, every time."""
    made, rows = network(), rows_of_two_texts()
    model = model_of(made, "response")
    with torch.no_grad():
        model.surprisals(rows)
        by_hand(made)
        with model.unchanged():
            torch.testing.assert_close(model.surprisals(rows), plain_surprisals(made, rows, 4), atol=1e-5, rtol=1e-5)
        by_hand(made)
        torch.testing.assert_close(model.surprisals(rows), plain_surprisals(made, rows, 4), atol=1e-5, rtol=1e-5)


def test_gradients_go_through_the_clean_text():
    """Of a model that has kept its texts: as those of the plain form, and nothing is kept."""
    made, rows = network(), rows_of_two_texts()
    model = model_of(made, "response")
    with torch.no_grad():
        model.surprisals(rows)
    for _ in range(2):
        made.zero_grad()
        model.surprisals(rows).sum().backward()
    found = {name: parameter.grad.clone() for name, parameter in made.named_parameters()}
    made.zero_grad()
    plain_surprisals(made, rows, 4).sum().backward()
    for name, parameter in made.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, atol=1e-4, rtol=1e-4, msg=name)


@torch.no_grad()
def test_memory_for_clean_texts_is_bounded():
    """The oldest text goes; whoever asks for it again gets the same numbers."""
    made = network()
    one = 2 * 2 * 24 * 4 * 4  # layers x (keys and values) x width x tokens before the last block x bytes
    model = model_of(made)
    object.__setattr__(model, "clean_texts", CleanTexts(made, most_bytes=2 * one))
    texts = torch.randint(VOCAB, (3, 8), generator=stream(4))
    masked = torch.rand(3, 8, generator=stream(5)) < 0.5
    found = [model.surprisal(texts[n : n + 1], masked[n : n + 1]) for n in (0, 1, 2, 1, 2, 0)]
    assert model.clean_passes == 4  # the first one twice
    assert torch.equal(found[0], found[5])


@torch.no_grad()
def test_clean_texts_are_read_once_for_many_masked_rows():
    """`evaluations` counts masked rows; the clean pass is counted apart."""
    made = network()
    model = model_of(made, batch_tokens=32)
    found = infodis.nll(model, torch.randint(VOCAB, (12,), generator=stream(6)), evaluations=60, design=infodis.Tiled())
    assert found.evaluations > 20
    assert model.clean_passes == 1


@torch.no_grad()
@pytest.mark.parametrize("size", [1, 4])
def test_conditionals_of_one_block_are_the_surprisals(size):
    """In the first block, in a later one, and where the tokens behind it are known too."""
    model = model_of(network(size))
    text = torch.randint(VOCAB, (1, 12), generator=stream(7))
    for places in ([0], [4], [11]) if size == 1 else ([0, 2], [5], [8, 9, 11], [4, 5, 6, 7]):
        masked = torch.zeros(1, 12, dtype=torch.bool)
        masked[0, places] = True
        said = model.log_conditionals(torch.where(masked, VOCAB, text))
        picked = -said.gather(-1, text.unsqueeze(-1)).squeeze(-1)
        torch.testing.assert_close(picked[masked], model.surprisal(text, masked)[masked], atol=1e-5, rtol=1e-5)
        assert float(said[masked].exp().sum(-1).sub(1).abs().max()) < 1e-5


@torch.no_grad()
def test_what_a_model_of_blocks_cannot_answer_is_refused():
    model = model_of(network())
    row = torch.zeros(1, 12, dtype=torch.int64)
    row[0, [3, 4]] = VOCAB
    with pytest.raises(InputError, match=r"one block at a time.*row 0 has masked tokens in blocks 0 to 1"):
        model.log_conditionals(row)
    elsewhere = model_of(network(), "response")
    assert elsewhere.log_conditionals(row, starts=torch.tensor([3])).shape == (1, 12, VOCAB)
    with pytest.raises(InputError, match="Give starts"):
        elsewhere.log_conditionals(row)
    full = RADD(VOCAB, NetworkShape(width=8, blocks=1, heads=2))
    sedd = infodis.models.nets.SEDD(VOCAB, full.shape)
    with pytest.raises(InputError, match="need a network for block diffusion, got a SEDD"):
        Model("x", LoadedModel("sedd", sedd, None, None, None, blocks=BlockLayout(4)), torch.device("cpu"))


@pytest.mark.parametrize(("origin", "first"), [("global", 5), ("response", 6)])
def test_a_gap_before_a_later_block_is_refused(origin, first):
    """It would be filled without a look at what follows. Inside its own block a token that follows is seen."""
    model, row = model_of(network(), origin), torch.zeros(2, 12, dtype=torch.int64)
    row[1, first] = VOCAB
    with pytest.raises(InputError, match="row 1 has a gap in block"):
        sample(model, row)
    assert bool((sample(model, row[:, : first + 2]) < VOCAB).all())


@torch.no_grad()
@pytest.mark.parametrize("size", [0, 1, 4])
def test_checkpoints_and_networks_in_memory_know_their_blocks(tmp_path, size):
    made = network(size)
    checkpoint.save(tmp_path, checkpoint.Spec("radd", VOCAB, made.shape, 12), made.state_dict())
    expected = BlockLayout(size) if size else None
    text = torch.randint(VOCAB, (1, 12), generator=stream(8))
    masked = torch.rand(1, 12, generator=stream(9)) < 0.5
    for model in (infodis.load(tmp_path), infodis.load(made)):
        assert model.blocks == expected
        torch.testing.assert_close(model.surprisal(text, masked), made.surprisal(text, masked), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("size", [1, 2])
def test_samples_follow_the_exact_distribution_block_by_block(size):
    """Of 3 tokens after a given one: a chi-squared test with a false-alarm rate of 1e-4 against the chain rule.

    In blocks of 2, positions are revealed in random order.
    """
    from scipy.stats import chisquare

    made = RADD(3, NetworkShape(width=8, blocks=1, heads=2, block_size=size))
    initialise(made, generator=stream(0))
    with torch.no_grad():
        made.output_layer.linear.weight.normal_(std=0.3, generator=stream(1))
    model = model_of(made.eval())
    start = torch.full((3000, 4), 3)
    start[:, 0] = 1
    drawn = sample(model, start, batch_size=1000)
    assert torch.equal(drawn[:9], sample(Tempered(model, 1.0), start[:9]))
    assert bool((drawn[:, 0] == 1).all())
    texts = torch.cartesian_prod(torch.tensor([1]), *3 * [torch.arange(3)])
    probability = torch.zeros(len(texts), dtype=torch.float64)
    orders = [[1, 2, 3]] if size == 1 else [[1, 2, 3], [1, 3, 2]]
    for order in orders:  # the first block holds one masked token, the second one two
        log_p = torch.zeros(len(texts), dtype=torch.float64)
        for n, place in enumerate(order):
            masked = torch.zeros(4, dtype=torch.bool)
            masked[[p for p in order[n:] if p // size == place // size]] = True
            log_p -= model.surprisal(texts, masked.expand(len(texts), -1))[:, place].double()
        probability += log_p.exp() / len(orders)
    code = (drawn[:, 1:] * torch.tensor([9, 3, 1])).sum(-1)
    counts = torch.bincount(code, minlength=27)
    assert chisquare(counts.numpy(), (probability / probability.sum() * 3000).numpy()).pvalue > 1e-4
    assert float(probability.sum()) == pytest.approx(1, abs=1e-4)
