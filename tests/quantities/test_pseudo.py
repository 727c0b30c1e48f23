"""Pseudo-log-likelihoods against loops that share no code with them."""

import math
from pathlib import Path

import pytest
import torch
from tiny_models import MASK, build, transformers

import infodis
from infodis.blocks import BlockLayout
from infodis.catalog import NAMED, as_quantity
from infodis.errors import InputError
from infodis.item import Item
from infodis.oracle import Independent, MarkovChain
from infodis.quantities.pseudo import Pll, PllWithinWords
from infodis.quantities.quantity import Nll

REACTIONS = Path(__file__).parents[3] / "shared/data/weights/rxnmapper_albert"


@torch.no_grad()
def by_loop(network, tokens, hidden, place, *, mask=MASK):
    """-log p of the token at a place while some are hidden, as people write it; without the column of the mask."""
    row = tokens.clone()
    row[hidden] = mask
    logits = network(input_ids=row.unsqueeze(0)).logits[0, place].double()
    logits[mask] = -math.inf
    return -float(torch.log_softmax(logits, -1)[tokens[place]])


@pytest.fixture(scope="module", params=["bert", "esm", "albert"])
def tiny(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp(request.param)
    network = build(request.param, directory)
    return network, infodis.load(directory, device="cpu")


def test_pll_against_loop(tiny):
    network, model = tiny
    tokens = torch.tensor([2, 7, 9, 11, 9, 8, 20, 33, 3])
    items = [Item.read(tokens, context=[0, 8]), Item.read(tokens[:5], target=[1, 2, 3], context=[0])]
    whole, part = infodis.score(model, items, quantity="pll")
    alone = [by_loop(network, tokens, [place], place) for place in range(1, 8)]
    assert whole.per_token == pytest.approx(alone, abs=1e-4)
    assert whole.value == pytest.approx(sum(alone), abs=1e-4)
    rest = [by_loop(network, tokens[:5], [place, 4], place) for place in (1, 2, 3)]  # what is in neither set is hidden
    assert part.value == pytest.approx(sum(rest), abs=1e-4)
    assert (whole.quantity, whole.evaluations, whole.standard_error) == ("pll", 7, 0.0)
    assert whole.perplexity == pytest.approx(math.exp(sum(alone) / 7))


def test_within_words_against_loop(tiny):
    network, model = tiny
    tokens, words = torch.tensor([2, 7, 9, 11, 9, 8, 3]), torch.tensor([0, 0, 0, 1, 2])
    item = Item(tokens, torch.arange(1, 6), torch.tensor([0, 6]), words)
    found = infodis.score(model, [item], quantity="pll_within_words")[0]
    hidden = {1: [1, 2, 3], 2: [2, 3], 3: [3], 4: [4], 5: [5]}
    assert found.per_token == pytest.approx([by_loop(network, tokens, hidden[n], n) for n in range(1, 6)], abs=1e-4)


@pytest.mark.skipif(not REACTIONS.is_dir(), reason="the weights are not here")
def test_pll_of_a_trained_model_against_loop():
    network = transformers.AutoModelForMaskedLM.from_pretrained(REACTIONS).eval()
    model = infodis.load(REACTIONS, device="cpu")
    tokens = torch.tensor([12, 16, 15, 16, 21, 17, 30, 16, 13])
    found = infodis.score(model, [Item.read(tokens, context=[0, 8])], quantity="pll")[0]
    alone = [by_loop(network, tokens, [place], place, mask=model.mask_token) for place in range(1, 8)]
    assert found.per_token == pytest.approx(alone, rel=1e-5, abs=1e-4)
    words = torch.tensor([0, 0, 0, 1, 1, 2, 2])
    pieces = Item(tokens, torch.arange(1, 8), torch.tensor([0, 8]), words)
    found = infodis.score(model, [pieces], quantity="pll_within_words")[0]
    hidden = {1: [1, 2, 3], 2: [2, 3], 3: [3], 4: [4, 5], 5: [5], 6: [6, 7], 7: [7]}
    alone = [by_loop(network, tokens, hidden[place], place, mask=model.mask_token) for place in range(1, 8)]
    assert found.per_token == pytest.approx(alone, rel=1e-5, abs=1e-4)


def test_pll_is_no_likelihood_where_tokens_give_each_other_away_against_exact():
    chain = MarkovChain.random(order=1, vocab_size=3, temperature=0.3, seed=1)
    tokens = [0, 1, 2, 0, 1, 1]
    alone = [-chain.log_prob(tokens, context=[n for n in range(6) if n != place]) for place in range(6)]
    found = infodis.score(chain, [tokens], quantity="pll")[0]
    assert found.value == pytest.approx(sum(alone), abs=1e-9)
    assert found.value < -chain.log_prob(tokens) - 0.3
    fair = Independent(torch.full((4,), 0.25))
    assert infodis.score(fair, [[0, 1, 2]], quantity="pll")[0].value == pytest.approx(3 * math.log(4))


def test_batches_of_any_size_give_the_same(monkeypatch):
    texts = ["the cat", "a much longer text than the others", "x"]
    whole = infodis.score("text8-tiny", texts, quantity="pll")
    monkeypatch.setattr("infodis.quantities.quantity.CHUNK", 40)
    for size in (1, 7):
        parts = infodis.score("text8-tiny", texts, quantity="pll", batch_size=size)
        assert [one.value for one in parts] == pytest.approx([one.value for one in whole], abs=1e-4)
    assert [one.evaluations for one in whole] == [7, 34, 1]


def test_words_of_characters_stand_between_spaces():
    item = infodis.load("text8-tiny").read(" cat  x", prompt="the")
    assert item.words.tolist() == [1, 2, 2, 2, 3, 4, 5]
    assert PllWithinWords().masks(item)[1].tolist() == [False, True, True, True, False, False, False]


def wordpiece(**more):
    tokenizers = pytest.importorskip("tokenizers")
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "cat", "sou", "##ven", "##ir", ".", "##s"]
    made = tokenizers.Tokenizer(
        tokenizers.models.WordPiece({piece: n for n, piece in enumerate(vocabulary)}, unk_token="[UNK]")
    )
    made.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    made.post_processor = tokenizers.processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return made


def test_words_of_wordpieces_are_those_of_the_tokenizer(tmp_path):
    build("bert", tmp_path)
    wordpiece().save(str(tmp_path / "tokenizer.json"))
    model = infodis.load(tmp_path, device="cpu")
    item = model.read("a souvenir cats.", prompt="")
    assert model.tokenizer.pieces(item.tokens[item.target].tolist()) == [
        *("a", "sou", "##ven", "##ir", "cat", "##s", "."),
    ]
    assert item.words.tolist() == [0, 1, 1, 1, 2, 2, 3]
    after = model.read("souvenir.", prompt="a ")
    assert [len(set(one.words.tolist())) for one in (item, after)] == [4, 2]
    one, two = (infodis.score(model, "a souvenir cats.", quantity=name)[0] for name in ("pll", "pll_within_words"))
    same = [abs(x - y) < 1e-6 for x, y in zip(one.per_token, two.per_token, strict=True)]
    assert same == [True, False, False, True, False, True, True]


def test_rows_without_words_are_told():
    with pytest.raises(InputError, match=r"Row 0: .*which tokens are pieces of one word.*ask for pll"):
        infodis.score("text8-tiny", [[1, 2, 3]], quantity="pll_within_words")


@pytest.mark.parametrize("options", [{"evaluations": 8}, {"standard_error": 0.1}, {"design": infodis.Tiled()}])
def test_options_that_say_nothing_are_refused(options):
    with pytest.raises(InputError, match="pll is exact and takes one forward pass a token"):
        infodis.score("text8-tiny", "abc", quantity="pll", **options)


def test_models_of_blocks_are_refused():
    chain = MarkovChain.random(order=1, vocab_size=3, seed=1)
    object.__setattr__(chain, "blocks", BlockLayout(2))
    for name in ("pll", "pll_within_words"):
        with pytest.raises(InputError, match="sees only the blocks before"):
            infodis.score(chain, [Item(torch.tensor([0, 1]), torch.arange(2), torch.arange(0))], quantity=name)


def test_quantities_have_names_and_values():
    assert {"nll", "pll", "pll_within_words"} <= set(NAMED)
    by_value = infodis.score("text8-tiny", "abc", quantity=Pll())
    assert by_value[0].value == infodis.score("text8-tiny", "abc", quantity="pll")[0].value
    assert by_value.to_dicts()[0]["pseudo_perplexity"] == pytest.approx(by_value.perplexity)
    assert infodis.score("text8-tiny", "abc", quantity=Nll())[0].value == infodis.score("text8-tiny", "abc")[0].value
    with pytest.raises(InputError, match=r"one of nll, .*pll, pll_within_words; got 'ppl'"):
        infodis.score("text8-tiny", "abc", quantity="ppl")
    with pytest.raises(InputError, match=r"a name .* or a value"):
        as_quantity(3)
