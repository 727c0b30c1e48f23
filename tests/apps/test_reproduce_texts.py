"""Experiments on texts: groups cut as they should be, comparisons against known answers, verdicts both ways, runs."""

import dataclasses
import gzip
import importlib.util
import itertools
import json
import math
import sys
from pathlib import Path

import pytest
import torch

from infodis.apps.audit.records import Group, by_text
from infodis.apps.reproduce import audit_llada, audit_texts, ood_texts
from infodis.apps.reproduce.audit_llada import AskedModel, AuditLlada, AuthorComparison, likelier, verdict_on
from infodis.apps.reproduce.audit_texts import OWN, Dataset, own_continuations
from infodis.apps.reproduce.comparison import (
    GroupComparison,
    Precision,
    TwoEstimators,
    paper_job,
    separation_verdict,
)
from infodis.apps.reproduce.data import ENCYCLOPEDIA, LETTERS
from infodis.apps.reproduce.experiment import Experiment, Workspace
from infodis.apps.reproduce.ood import OodText8, beyond_characters, precision_verdict
from infodis.apps.reproduce.ood_texts import BUDGETS, gather_texts
from infodis.apps.reproduce.prompts import (
    TextCutter,
    WindowShape,
    continuations,
    elsewhere,
    evenly_spaced,
    foreign,
    shuffled,
    transliterate,
    unit_of,
    windows,
)
from infodis.design import TimeFree
from infodis.errors import InputError
from infodis.estimate import nll
from infodis.jobs.inputs import Entry
from infodis.models.loading import load
from infodis.models.model import Model
from infodis.models.spec import ModelSpec
from infodis.models.tokenizers import Characters, text8_style
from infodis.result import Interval, Measured
from infodis.rng import stream
from infodis.sampling import Ancestral

TEXT = text8_style(ENCYCLOPEDIA)
SHAPE = WindowShape(24, 16)
ALPHABET = "abcdefghijklmnopqrstuvwxyz "


# Groups


@pytest.mark.parametrize("whole", [False, True])
def test_windows_are_parts_of_the_text_one_behind_the_other(whole):
    rows = windows(TEXT, 12, SHAPE, whole=whole)
    places = [TEXT.index(row["prompt"] + row["response"]) for row in rows]
    assert len(rows) == 12
    assert all(later - earlier >= SHAPE.length for earlier, later in itertools.pairwise(places))
    assert {len(row["prompt"]) for row in rows} == {24}
    assert {len(row["response"]) for row in rows} == {16}
    if whole:
        assert all(row["response"][0] == " " for row in rows)
    else:
        assert all(TEXT[place - 1] == " " for place in places if place)


def test_shuffled_words_keep_their_spaces_and_what_is_cut_off_stays_at_the_end():
    for whole in (True, False):
        rows = windows(TEXT, 8, WindowShape(64, 64), whole=whole)
        for row, mixed in zip(rows, shuffled(rows), strict=True):
            before, after = row["response"], mixed["response"]
            assert "  " not in after
            assert (after[0] == " ", after[-1] == " ", len(after)) == (before[0] == " ", before[-1] == " ", 64)
            assert after.split()[-1] == before.split()[-1]
            assert before[0] == " " or after.split()[0] == before.split()[0]
            assert sorted(after.split()) == sorted(before.split())
            assert after != before


def test_shuffled_and_elsewhere_keep_prompts_and_words():
    rows = windows(TEXT, 6, SHAPE)
    mixed, moved = list(shuffled(rows)), list(elsewhere(rows))
    assert [row["prompt"] for row in mixed] == [row["prompt"] for row in moved] == [row["prompt"] for row in rows]
    assert [sorted(row["response"].split(" ")) for row in mixed] == [sorted(r["response"].split(" ")) for r in rows]
    assert [row["response"] for row in moved] == [row["response"] for row in (*rows[1:], rows[0])]


def test_cut_by_characters_and_by_tokens():
    cut, tokens = TextCutter(WindowShape(4, 6)), TextCutter(WindowShape(4, 6), Characters(ALPHABET))
    for one in (cut, tokens):
        assert one.end("a long prompt") == "ompt"
        assert one.start("some words follow") == " some "
        assert one.end("abc") is None
        assert one.start("abcde") is None
        assert list(one.pieces("one two three four five")) == [" one t", " three", " four "]
    blocks = tokens.windows(TEXT, 10**6)
    assert "".join(row["prompt"] + row["response"] for row in blocks) == TEXT[: 10 * len(blocks)]
    assert len(blocks) == len(TEXT) // 10
    assert [row["id"] for row in tokens.windows(TEXT, 2)] == ["0", f"{len(blocks) // 2}"]


def test_rows_fit_their_window_whatever_the_tokens_at_the_joint():
    """Tokens of "ab" and of "ba" may be one each, and those of "abba" three: such a row is cut to two."""

    class Joined(Characters):
        def encode(self, text: str):
            return super().encode({"ab": "a", "ba": "b"}.get(text, text[: len(text) - 1]))

    cut = TextCutter(WindowShape(1, 1), Joined("ab"))
    assert [cut.count(text) for text in ("ab", "ba", "abba")] == [1, 1, 3]
    assert cut.fit({"id": "0", "prompt": "ab", "response": "ba"}) == {"id": "0", "prompt": "ab", "response": "b"}
    assert cut.fit({"id": "0", "prompt": "ab", "response": "b"})["response"] == "b"


def test_foreign_pieces_come_from_as_many_documents_as_there_are():
    rows = [{"id": f"{n}", "prompt": f"prompt {n}", "response": ""} for n in range(4)]
    found = foreign(rows, {"a": "aaa bbb ccc", "b": "ddd", "c": "x"}, TextCutter(WindowShape(4, 3)))
    assert [row["id"] for row in found] == ["a/0", "b/0", "a/1", "a/2"]
    assert [row["response"] for row in found] == [" aa", " dd", " bb", " cc"]
    assert [row["prompt"] for row in found] == [row["prompt"] for row in rows]
    assert [unit_of(row["id"]) for row in found] == ["a", "b", "a", "a"]
    assert unit_of("7") == "7"


def test_continuations_are_left_out_in_pairs():
    records = [
        {"id": "long", "x": "In 1969, he", "y_human": " went home.", "y_llm": " walked away!"},
        {"id": "short", "x": "In 1970, he", "y_human": " went home.", "y_llm": " ran"},
    ]
    for field, response in (("y_human", " went "), ("y_llm", " walke")):
        assert list(continuations(records, field, TextCutter(WindowShape(5, 6)))) == [
            {"id": "long", "prompt": "ne he", "response": response}
        ]


def test_thinned_is_evenly_spread():
    rows = [{"id": f"{n}"} for n in range(10)]
    assert [row["id"] for row in evenly_spaced(rows, 5)] == ["0", "2", "4", "6", "8"]
    assert evenly_spaced(rows, 99) == rows


def test_chinese_is_left_out_without_transliteration(monkeypatch, tmp_path):
    (tmp_path / audit_texts.CHINESE.file).write_text("红楼梦 " * 500, encoding="utf-8")
    workspace = Workspace(tmp_path, data=tmp_path)
    assert transliterate("红楼梦。Tea") == "hong lou meng tea"
    monkeypatch.setitem(sys.modules, "anyascii", None)
    assert transliterate("红楼梦") is None
    assert audit_texts._chinese(workspace, TextCutter(SHAPE), 3, letters=True) == []
    assert "infodis[reproduce]" in audit_llada._in_chinese([], SMALL).found
    assert (
        audit_texts._chinese(Workspace(tmp_path, data=tmp_path / "nowhere"), TextCutter(SHAPE), 3, letters=True) == []
    )


# Comparisons


def group(name: str, nats: list[float], *, prompts: bool = True, error: float = 0.1, units: int = 1) -> Group:
    """Records of texts of one token; `units` rows in a row are of one document."""
    records = tuple(
        {
            "id": f"{n // units}/{n % units}" if units > 1 else f"{n}",
            "value": value,
            "standard_error": error,
            "tokens": 1,
            "bytes": 1,
            "explained": -value,
            "text": f"text {n} of {name}",
            **({"prompt": f"prompt {n}"} if prompts else {}),
        }
        for n, value in enumerate(nats)
    )
    return Group(name, records)


def normal(count: int, mean: float, *, name: str) -> list[float]:
    return (torch.randn(count, generator=stream(0, name), dtype=torch.float64) + mean).tolist()


def test_auroc_against_counting():
    """Of nine pairs of 1, 2, 3 and 2.5, 0, 4, the second is larger in five."""
    for prompts in (True, False):
        comparison = GroupComparison.of(
            group("a", [1.0, 2.0, 3.0], prompts=prompts), group("b", [2.5, 0.0, 4.0], prompts=prompts), seed=0
        )
        assert comparison.paired == prompts
        assert comparison.nll.auroc.value == pytest.approx(5 / 9)
        assert comparison.prompt.auroc.value == pytest.approx(5 / 9)
    assert comparison.separation(audit_llada.LIKELY).auroc.value == pytest.approx(4 / 9)


def test_the_same_texts_are_compared_with_themselves():
    """Each costs 0.1 more after a foreign prompt: next to nothing among texts that differ by 1, all in pairs."""
    nats = normal(60, 2.0, name="texts")
    more = [x + 0.1 + 0.05 * y for x, y in zip(nats, normal(60, 0.0, name="noise"), strict=True)]
    own = group("own", nats)
    records = [{**record, "value": value} for record, value in zip(own.records, more, strict=True)]
    foreign_prompts = Group("other", tuple({**one, "prompt": f"of {n}"} for n, one in enumerate(reversed(records))))
    comparison = GroupComparison.of(own, foreign_prompts, seed=0, match=by_text)
    assert comparison.paired
    assert comparison.nll.pairs.difference.value == pytest.approx(0.1, abs=0.03)
    assert comparison.nll.pairs.difference.low > 0
    assert comparison.nll.p_value < 0.01
    apart = GroupComparison.of(own, foreign_prompts, seed=0)
    assert not apart.paired
    assert apart.nll.p_value > 0.05


def test_texts_too_short_for_two_windows_are_refused():
    for text in ("", "a short text", "x" * 10_000):
        with pytest.raises(InputError, match="at least 2 are needed"):
            windows(text, 5, SHAPE, whole=True)


def test_rows_of_one_document_count_for_less():
    """Copies of ten rows say no more than the ten; taken for rows of their own (a wrong variant) they seem to."""
    one, other = normal(10, 0.0, name="one"), normal(10, 1.0, name="other")
    few = GroupComparison.of(group("a", one), group("b", other), seed=0)
    copies = group("a", [x for x in one for _ in range(8)]), group("b", [x for x in other for _ in range(8)], units=8)
    many = GroupComparison.of(*copies, seed=0)
    wrong = GroupComparison.of(copies[0], group("b", [x for x in other for _ in range(8)]), seed=0)
    assert (few.paired, many.paired, wrong.paired) == (True, False, True)
    width = [comparison.nll.auroc.high - comparison.nll.auroc.low for comparison in (few, many, wrong)]
    assert width[1] == pytest.approx(width[0], rel=0.1)
    assert width[2] < width[0] / 2
    assert many.nll.p_value == few.nll.p_value
    assert wrong.nll.p_value < few.nll.p_value / 5


def test_precision_against_hand():
    one = GroupComparison.of(group("a", [1.0, 2.0, 3.0], error=3.0), group("b", [2.5, 0.0, 4.0], error=4.0), seed=0)
    found, other = Precision.of(one, 100), Precision(25, Measured(math.sqrt(12.5) / 10, 0.0), 0.0)
    assert found.error.value == pytest.approx(math.sqrt(12.5))
    assert found.error.standard_error == pytest.approx(3.5 * math.sqrt(6 / 5) / math.sqrt(6) / (2 * math.sqrt(12.5)))
    assert found.noise == 1.0  # more than all the spread there is
    passes = found.passes_for(other)
    assert passes.value == pytest.approx(400 * other.evaluations)
    assert passes.standard_error == pytest.approx(2 * passes.value * found.error.standard_error / found.error.value)


def test_difference_of_estimators():
    one = GroupComparison.of(group("a", [1.0, 2.0]), group("b", [3.0, 4.0]), seed=0)
    other = GroupComparison.of(group("a", [1.0, 1.0]), group("b", [2.0, 4.0]), seed=0)
    gap = TwoEstimators(one, other, 1, 1).difference()
    assert (gap.value, gap.standard_error) == (0.5, pytest.approx(math.sqrt(1 / 3) / 2))


# Verdicts


@pytest.mark.parametrize(
    ("area", "verdict"),
    [
        ((0.97, 0.95, 0.99), "holds"),
        ((0.91, 0.88, 0.94), "holds in part"),
        ((0.6, 0.45, 0.75), "does not hold"),
        ((0.2, 0.1, 0.3), "does not hold"),
        ((0.7, 0.4, 0.95), "undecided"),
    ],
)
def test_verdict_on_a_separation(area, verdict):
    assert separation_verdict(Interval(*area)) == verdict


def test_verdict_on_model_and_letters():
    good, fair, none = Interval(0.95, 0.93, 0.97), Interval(0.75, 0.72, 0.78), Interval(0.5, 0.47, 0.53)
    assert beyond_characters(good, fair) == "holds"
    assert beyond_characters(good, good) == "holds in part"
    assert beyond_characters(fair, good) == "does not hold"
    assert beyond_characters(none, none) == "does not hold"
    assert beyond_characters(Interval(0.7, 0.4, 0.95), none) == "undecided"
    assert [precision_verdict(noise) for noise in (0.1, 0.3, 0.9)] == ["holds", "holds in part", "does not hold"]


def compared(nats: float, author: str, dataset: str = "human") -> AuthorComparison:
    """40 texts that cost `nats` more than those of the dataset, on average, with a spread of 0.2."""
    usual = normal(40, 2.0, name="usual")
    theirs = [x + nats + 0.2 * y for x, y in zip(usual, normal(40, 0.0, name=author), strict=True)]
    comparison = GroupComparison.of(group(dataset, usual), group(author, theirs), seed=0)
    rows = [{"id": "0", "prompt": "", "response": ""}]
    return AuthorComparison(Dataset(dataset, dataset, rows), author, TwoEstimators(comparison, comparison, 1, 1))


def test_verdicts_on_authors_both_ways():
    likely, strange, alike = (compared(nats, "gpt") for nats in (-0.5, 0.5, 0.0))
    assert [likelier(one.likely) for one in (likely, strange, alike)] == ["holds", "does not hold", "undecided"]
    assert likely.likely.pairs.difference.value == pytest.approx(0.5, abs=0.15)
    assert likely.likely.auroc.value > 0.5 > strange.likely.auroc.value
    assert verdict_on(compared(-0.5, OWN)) == "holds in part"
    assert verdict_on(compared(0.5, OWN)) == "does not hold"


SMALL = AskedModel("text8-tiny", "text8-tiny (weights 0123abcd)", "radd", letters=True, innocent=True)
LARGE = AskedModel("/somewhere/LLaDA", "/somewhere/LLaDA (weights 0)", "llada", letters=False, innocent=False)


def test_a_claim_is_about_what_a_model_is_not_about_its_name(tmp_path):
    small = load("text8-tiny")
    exactly = f"any name (weights {small.fingerprint[:8]})"
    found = AskedModel.of(dataclasses.replace(small, name="any name"))
    assert found == dataclasses.replace(SMALL, name="any name", exactly=exactly)
    other = dataclasses.replace(small, loaded=dataclasses.replace(small.loaded, tokenizer=Characters(ALPHABET + "-")))
    assert not AskedModel.of(other).innocent
    llada = load(Path(__file__).parents[1] / "references" / "llada", tokenizer="characters:abcdefgh")
    assert AskedModel.of(llada).meant
    assert not SMALL.meant


def test_influence_is_refuted_only_by_a_model_that_cannot_have_been_influenced():
    preferred, not_preferred = [compared(-0.5, "gpt")], [compared(0.5, "gpt")]
    assert audit_llada._influence(preferred, SMALL).verdict == "does not hold"
    assert audit_llada._influence(not_preferred, SMALL).verdict == "not tested here"
    assert audit_llada._influence(preferred, LARGE).verdict == "not tested here"
    assert audit_llada._influence([compared(-0.5, OWN)], SMALL).verdict == "not tested here"


def test_a_language_model_counts_before_the_model_itself():
    found = [compared(-0.5, OWN), compared(0.5, "gpt")]
    assert audit_llada._higher(found, LARGE).verdict == "does not hold"
    assert audit_llada._higher(found[:1], LARGE).verdict == "holds in part"
    other = audit_llada._higher(found, SMALL)
    assert other.verdict == "not tested here"
    assert "The claim is about" in other.found


# What they need


@pytest.mark.parametrize("experiment", [OodText8(), AuditLlada()], ids=lambda one: one.name)
def test_missing_data_and_packages_are_named(experiment, monkeypatch, tmp_path):
    assert isinstance(experiment, Experiment)
    (tmp_path / ood_texts.HELD_OUT.file).write_bytes(gzip.compress(b"some text"))
    with pytest.raises(InputError, match=r"human_vs_llm_180.jsonl is needed"):
        experiment.check(Workspace(tmp_path / "out", data=tmp_path))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pip install 'infodis\[audit\]'"):
        experiment.check(Workspace(tmp_path / "out", size="smoke"))


def test_models_that_know_more_than_letters_get_texts_as_they_are(tmp_path):
    pairs = {"id": "0", "x": ENCYCLOPEDIA[:99].strip(), "y_human": LETTERS[0], "y_llm": LETTERS[1]}
    (tmp_path / audit_texts.PAIRS.file).write_text(json.dumps(pairs) + "\n", encoding="utf-8")
    for name in (audit_texts.WIKITEXT, audit_texts.CHINESE):
        (tmp_path / name.file).write_text(ENCYCLOPEDIA, encoding="utf-8")
    small = load("text8-tiny")
    known = Characters("".join(sorted({*ENCYCLOPEDIA, *"".join(LETTERS)})))
    model = dataclasses.replace(small, loaded=dataclasses.replace(small.loaded, tokenizer=known))
    told: list[str] = []
    workspace = Workspace(tmp_path, size="full", data=tmp_path, notice=told.append)
    english, chinese = audit_texts.datasets(workspace, model, 5)
    assert (english.name, chinese.name) == ("wikitext", "chinese")
    assert told == []
    audit_texts.datasets(workspace, model, 100)
    assert [line.partition(" where ")[2] for line in told] == [
        "100 are wanted. There are no more of the right length."
    ] * 2
    assert [row["prompt"] + row["response"] in ENCYCLOPEDIA for row in english.rows] == [True] * 5
    assert next(one.name for one in audit_texts.datasets(Workspace(tmp_path, data=tmp_path), small, 5)) == "human"


def test_letters_of_smoke_texts_are_enough():
    workspace = Workspace(Path("nowhere"), size="smoke")
    found = gather_texts(workspace, BUDGETS["smoke"], Characters(ALPHABET))
    assert len(found.true) == len(found.foreign) == BUDGETS["smoke"].main
    assert len({unit_of(row["id"]) for row in found.foreign}) == len(found.foreign)
    assert len(found.untouched) == len(LETTERS)
    assert any(character.isupper() for character in found.untouched[0])
    assert {len(row["prompt"] + row["response"]) for row in (*found.true, *found.foreign)} == {128}


def test_a_model_goes_on_after_its_prompts_in_the_same_way_again(tmp_path):
    model, rows = load("text8-tiny"), windows(TEXT, 3, SHAPE, whole=True)
    dataset = Dataset("some", "some", rows)
    found = own_continuations(Workspace(tmp_path), model, dataset, Ancestral(steps=2))
    assert [row["prompt"] for row in found] == [row["prompt"] for row in rows]
    assert {len(row["response"]) for row in found} == {SHAPE.response}
    assert len({row["response"] for row in found}) == 3
    last = dataclasses.replace(dataset, rows=rows[-1:])
    assert own_continuations(Workspace(tmp_path / "other"), model, last, Ancestral(steps=2)) == found[-1:]
    assert own_continuations(Workspace(tmp_path / "third", seed=1), model, last, Ancestral(steps=2)) != found[-1:]


# Runs


def test_ood_text8_goes_on_where_it_was_stopped(monkeypatch, tmp_path):
    def stop(what, done, total):
        if what == "letters" and done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        OodText8().run(Workspace(tmp_path, size="smoke", progress=stop))
    workspace = Workspace(tmp_path, size="smoke")
    found = OodText8().run(workspace)
    _check_result(found)
    differ = found.numbers["estimators_differ"]
    # both are unbiased: over 20 texts, |t| > 5 happens once in 12,000 seeds
    assert abs(differ["value"]) < 5 * differ["standard_error"]
    assert found.numbers["precision"]["ours"]["error"] < found.numbers["precision"]["time_free"]["error"]
    assert found.numbers["as_written"]["upper case"]["value"] > 0.99
    assert {figure.name for figure in found.figures} == {"histogram-time-free", "histogram-ours", "roc", "groups"}

    monkeypatch.setattr(Model, "surprisals", None)  # what was done is not done again
    assert OodText8().run(workspace) == found
    with pytest.raises(InputError, match="seed"):
        OodText8().run(dataclasses.replace(workspace, seed=1))


def test_audit_llada_runs_without_data(monkeypatch, tmp_path):
    workspace = Workspace(tmp_path, size="smoke")
    found = AuditLlada().run(workspace)
    _check_result(found)
    numbers = found.numbers["own against encyclopedia"]
    assert numbers["share_of_pairs"]["low"] <= numbers["share_of_pairs"]["value"] <= numbers["share_of_pairs"]["high"]
    assert found.claims[-1].verdict == "not tested here"

    monkeypatch.setattr(Model, "surprisals", None)
    monkeypatch.setattr(Model, "log_conditionals", None)
    assert AuditLlada().run(workspace) == found


def _check_result(found):
    json.dumps(found.numbers, allow_nan=False)
    assert found.about
    assert all(claim.paper and claim.found for claim in found.claims)
    assert all(len(row) == len(table.columns) for table in found.tables for row in table.rows)


def test_the_papers_estimator_is_the_one_that_is_printed():
    """H_m times a mean over masks of size k with probability 1 / (k H_m), every row a replicate."""
    job = paper_job(ModelSpec("text8-tiny"), 6, 3)
    assert (job.request.design, job.request.control, job.request.rows) == (TimeFree(), None, 6)
    model, row = load("text8-tiny"), windows(TEXT, 2, SHAPE, whole=True)[0]
    read = model.read(row["response"], prompt=row["prompt"])
    direct = nll(
        model,
        read.tokens,
        target=read.target,
        context=read.context,
        design=TimeFree(),
        control=None,
        evaluations=6,
        seed=3,
    )
    (record,), _ = job.score([Entry(1, "0", dict(row))])
    assert record["value"] == pytest.approx(direct.value, abs=1e-5)
    assert len(direct.replicates) == 6
