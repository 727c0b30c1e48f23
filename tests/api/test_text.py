"""Text in nll, log_ratio, choose, perplexity, bounds and order_nll: the same as the row that `Model.read` makes."""

import pytest
import torch

import infodis
from infodis.errors import InputError
from infodis.item import read_item, read_items
from infodis.oracle import Independent
from infodis.quantities.influence import influence
from infodis.quantities.perplexity import Windows

MODEL = infodis.load("text8-tiny", device="cpu")
PROMPT, TEXT = "the capital of france is ", "paris"
ROW = MODEL.read(TEXT, prompt=PROMPT)
TOKENS = {"tokens": ROW.tokens, "context": ROW.context}


@pytest.mark.parametrize("function", [infodis.nll, infodis.order_nll], ids=lambda one: one.__name__)
def test_text_against_its_tokens(function):
    found = function(MODEL, TEXT, prompt=PROMPT).value
    assert found == function(MODEL, **TOKENS).value
    assert found == function(MODEL, ROW).value


def test_bounds_of_text_against_its_tokens():
    assert infodis.bounds(MODEL, TEXT, prompt=PROMPT).nll.value == infodis.bounds(MODEL, **TOKENS).nll.value
    assert len(infodis.bounds(MODEL, [TEXT, "rome"], prompt=PROMPT)) == 2


def test_many_texts_against_one_at_a_time():
    many = infodis.nll(MODEL, [TEXT, "rome"], prompt=[PROMPT, ""])
    alone = infodis.nll(MODEL, TEXT, prompt=PROMPT), infodis.nll(MODEL, "rome")
    assert [one.value for one in many] == pytest.approx([one.value for one in alone], rel=1e-5)


def test_ratio_of_text_against_its_tokens():
    y, x = (MODEL.read(text, prompt="the ") for text in ("colour", "color"))
    found = infodis.log_ratio(MODEL, "colour", "color", prompt="the ")
    assert found.value == infodis.log_ratio(MODEL, y, x).value
    assert isinstance(infodis.log_ratio(MODEL, ["colour", "colors"], "color", prompt="the "), list)
    same = infodis.log_ratio(MODEL, "colour", reference=infodis.load("text8-tiny", device="cpu"))
    assert same.value == pytest.approx(0.0, abs=1e-9)
    other = infodis.load("dna-tiny", device="cpu", tokenizer=None)
    with pytest.raises(InputError):
        infodis.log_ratio(MODEL, "colour", reference=other)


def test_choose_of_text_against_its_tokens():
    choices = [TEXT, "berlin", "qzxvk"]
    found = infodis.choose(MODEL, PROMPT, choices)
    rows = [MODEL.read(choice, prompt=PROMPT) for choice in choices]
    tokens = infodis.choose(MODEL, [row.tokens for row in rows], context=[row.context for row in rows])
    assert found.record() == tokens.record()
    assert infodis.choose(MODEL, choices=rows).ranking == found.ranking
    assert [one.size for one in infodis.choose(MODEL, PROMPT, choices, sizes="bytes").choices] == [5, 6, 5]
    assert [one.size for one in infodis.choose(MODEL, PROMPT, choices, sizes="tokens").choices] == [5, 6, 5]
    with pytest.raises(InputError, match="'bytes' where choices are texts"):
        infodis.choose(MODEL, rows, sizes="bytes")
    with pytest.raises(InputError, match="no text"):
        infodis.choose(MODEL, [1, 2], ["a", "b"])


def test_perplexity_of_text_against_its_tokens():
    text = "the capital of france is paris " * 20
    found = infodis.perplexity(MODEL, text, evaluations=8)
    tokens = infodis.perplexity(MODEL, MODEL.encode(text), windows=Windows(MODEL.length), evaluations=8)
    assert found.nats == tokens.nats
    assert (found.bytes, tokens.bytes) == (len(text), None)
    assert found.bits_per_byte == found.bits_per_token
    assert found.perplexity_error == pytest.approx(found.perplexity * found.monte_carlo_error / found.tokens)
    two = infodis.perplexity(MODEL, [text, "is paris"], evaluations=8)
    assert (two.windows, two.tokens) == (found.windows + 1, found.tokens + 8)
    assert infodis.perplexity(MODEL, text, evaluations=8, limit=1).bytes is None


def test_influence_of_a_prompt_against_its_tokens():
    found = influence(MODEL, "is", prompt="it ", evaluations=128)
    row = MODEL.read("is", prompt="it ")
    again = influence(MODEL, row.tokens, context=row.context, evaluations=128)
    assert found.information.value == again.information.value


COIN = Independent(torch.tensor([0.5, 0.5]))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: infodis.nll(COIN, "abc"), "needs a model with a tokenizer"),
        (lambda: infodis.perplexity(COIN, "abc"), "needs a model with a tokenizer"),
        (lambda: infodis.perplexity(COIN, [0, 1]), "windows=Windows"),
        (lambda: infodis.nll(MODEL, "abc", context=[0]), "prompt="),
        (lambda: infodis.nll(MODEL, [1, 2], prompt="a"), "context=range"),
        (lambda: infodis.nll(MODEL, ROW, prompt="a"), "Leave prompt out"),
        (lambda: infodis.nll(MODEL, ["a", "b"], prompt=["a"]), "one for each of the 2"),
        (lambda: infodis.nll(MODEL, ["a", ""]), "Sequence 1: A text must have"),
        (lambda: read_item(MODEL, [[1], [2]]), "One sequence is taken"),
        (lambda: read_items("text8-tiny", "a"), r"infodis.load\('text8-tiny'\)"),
        (lambda: read_item(torch.nn.Linear(1, 1), "a"), "got a Linear"),
        (lambda: read_items(MODEL, {"text": "a"}), "infodis.score"),
        (lambda: read_items(MODEL, b"abc"), "decode"),
    ],
)
def test_bad_input_is_told(call, words):
    with pytest.raises(InputError, match=words):
        call()
