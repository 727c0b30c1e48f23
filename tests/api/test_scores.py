"""`infodis.score` as a new user types it: whatever texts come in, numbers with their errors come out."""

import math

import pytest
import torch

import infodis
from infodis.errors import InfodisError, InputError
from infodis.oracle import Independent
from infodis.predictor import from_function

MODEL = infodis.load("text8-tiny", device="cpu")
TEXTS = ["the capital of france", "colorless green ideas"]
FEW = {"evaluations": 32}


def near(value):
    """The same but for rounding: other rows in a batch change the order of float32 sums."""
    return pytest.approx(value, rel=1e-5)


@pytest.fixture(scope="module")
def scores():
    return infodis.score(MODEL, TEXTS, **FEW)


def test_score_by_name_against_nll(scores):
    named = infodis.score("text8-tiny", TEXTS, **FEW)
    for one, text, mine in zip(scores, TEXTS, named, strict=True):
        estimate = infodis.nll(MODEL, text, **FEW)
        assert one.value == float(one) == mine.value == near(estimate.value)
        assert one.standard_error == near(estimate.standard_error)
        assert one.standard_error > 0
        assert one.perplexity == pytest.approx(math.exp(one.value / 21))
        assert one.bits_per_byte == pytest.approx(one.value / math.log(2) / 21)
        assert sum(one.per_token) == pytest.approx(one.value)
        assert "".join(one.pieces) == text


def test_scores_are_a_sequence(scores):
    assert len(scores) == 2
    assert [one.text for one in scores] == TEXTS
    assert scores[-1] is scores[1]
    assert isinstance(scores[:1], infodis.Scores)
    assert scores[1:][0] is scores[1]


def test_reprs_are_one_line(scores):
    for one in (scores, scores[0], scores[:1], scores.plot(), infodis.nll(MODEL, "abc"), MODEL):
        assert "\n" not in repr(one)
    assert repr(scores[:1]).startswith("Scores(1 text under text8-tiny: ")


def same(texts, against, **more):
    found = infodis.score(MODEL, texts, **FEW, **more)
    assert [one.value for one in found] == near([one.value for one in against])


def test_kinds_of_texts_against_a_list(scores):
    same(tuple(TEXTS), scores)
    same(iter(TEXTS), scores)
    same(TEXTS[0], scores[:1])
    same({"text": TEXTS[0]}, scores[:1])
    same([{"text": text} for text in TEXTS], scores)
    same([MODEL.read(text) for text in TEXTS], scores)
    same([MODEL.encode(text) for text in TEXTS], scores)
    same(MODEL.encode(TEXTS[0]), scores[:1])
    same(torch.stack([MODEL.encode(text) for text in TEXTS]), scores)
    same([MODEL.encode(text).tolist() for text in TEXTS], scores)
    same([{"tokens": MODEL.encode(text).tolist()} for text in TEXTS], scores)


def test_prompts_against_one_another():
    given = infodis.score(MODEL, ["paris", "rome"], prompts=["in france ", "in italy "], **FEW)
    rows = [{"prompt": "in france ", "response": "paris"}, {"prompt": "in italy ", "response": "rome"}]
    same(rows, given)
    tokens = [MODEL.encode(text) for text in ("paris", "rome")]
    same(tokens, given, prompts=[MODEL.encode(prompt) for prompt in ("in france ", "in italy ")])
    assert given[0].value == near(infodis.nll(MODEL, "paris", prompt="in france ", **FEW).value)
    assert given[0].bits_per_byte == pytest.approx(given[0].value / math.log(2) / 5)  # bytes of the text alone
    one = infodis.score(MODEL, ["paris", "rome"], prompts="in france ", **FEW)
    assert one[0].value == near(given[0].value)


def test_pandas_keeps_its_index(scores):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"text": TEXTS, "label": [1, 2]}, index=["x", "y"])
    for texts in (frame, frame["text"]):
        found = infodis.score(MODEL, texts, **FEW)
        table = found.to_pandas()
        assert list(table.index) == ["x", "y"]
        assert table.loc["y", "value"] == near(scores[1].value)
        assert list(found[1:].to_pandas().index) == ["y"]
    with pytest.raises(InputError, match=r"Row 1: .*missing value.*dropna"):
        infodis.score(MODEL, pandas.Series(["abc", float("nan")]))
    with pytest.raises(InputError, match=r"Row 0: .*got label.*Rename"):
        infodis.score(MODEL, frame[["label"]])
    with pytest.raises(InputError, match="nothing to score"):
        infodis.score(MODEL, frame["text"][:0])


def test_columns_of_datasets(scores):
    datasets = pytest.importorskip("datasets")
    made = datasets.Dataset.from_dict({"text": TEXTS})
    same(made, scores)
    same(made["text"], scores)


def test_any_predictor_takes_tokens_and_with_a_tokenizer_text():
    coin = Independent(torch.full((4,), 0.25))
    assert infodis.score(coin, [0, 1, 2])[0].value == pytest.approx(3 * math.log(4))
    found = infodis.score(coin, ["GATTACA"], tokenizer="dna")[0]
    assert found.bits_per_byte == pytest.approx(2.0)
    assert infodis.score(coin, [0, 1, 2])[0].bits_per_byte is None
    with pytest.raises(InputError, match="Row 0: Text needs a model with a tokenizer"):
        infodis.score(coin, ["GATTACA"])


def test_dicts_are_plain(scores):
    first = scores.to_dicts()[0]
    assert first["text"] == TEXTS[0]
    assert first["value"] == scores[0].value
    assert set(first) >= {"standard_error", "perplexity", "bits_per_token", "bits_per_byte", "tokens", "evaluations"}


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (None, "must be a text"),
        ([], "nothing to score"),
        ("", "Row 0: A text must have at least one token"),
        (["abc", None], "Row 1: .*missing value"),
        (["abc", 3], "Row 1: .*got 3"),
        (["abc", "ABC"], "Row 1: .*'A' at character 0"),
        ([[1, 2], [1, 99]], "Row 1: .*got 99"),
        ([{"sentence": "abc"}], "Row 0: .*got sentence.*Rename"),
        (b"abc", "decode"),
        (3.5, "got 3.5"),
        (["abc", "a" * 300], "Row 1: .*at most 256 tokens.*perplexity"),
        ("\ud800", "surrogate"),
    ],
)
def test_bad_texts_are_told_with_their_row(texts, words):
    with pytest.raises(InputError, match=words):
        infodis.score(MODEL, texts)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"prompts": ["a"]}, "one for each of the 2"),
        ({"prompts": 3}, "Give a list"),
        ({"prompts": ["a", 1.5]}, "Row 1: The prompt"),
        ({"tokenizer": "dna"}, "tokenizer of its own"),
        ({"evaluations": 0}, "at least 1"),
    ],
)
def test_bad_options_are_told(options, words):
    with pytest.raises(InputError, match=words):
        infodis.score(MODEL, TEXTS, **options)


def test_a_row_at_which_a_predictor_fails_is_named():
    def broken(rows):
        answer = torch.full((*rows.shape, 4), 0.25).log()
        return torch.where((rows == 3).any(-1)[:, None, None], math.nan, answer)

    predictor = from_function(broken, vocab_size=4, mask_token=4)
    with pytest.raises(InfodisError, match=r"^Row 2: .*NaN"):
        infodis.score(predictor, [[0, 1], [1, 2], [3, 0], [3, 1]])


def test_many_are_drawn_as_a_histogram(scores):
    many = infodis.Scores(scores.rows * 30, "x")
    assert "bin" in str(many.plot("bits_per_token").spec)
    assert len(scores.plot().data) == 2


def test_a_figure_shows_itself(scores):
    pytest.importorskip("vl_convert")
    assert scores.plot()._repr_mimebundle_()["image/svg+xml"].startswith("<svg")
