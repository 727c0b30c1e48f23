"""Trivial differences between groups: seen where they are, silent where there are none, never leaking."""

import dataclasses
import json
import random
import sys

import pytest
import torch

from infodis.apps.audit import confounds
from infodis.apps.audit.confounds import (
    FALSE_ALARMS,
    FOLDS,
    INFLATION,
    Baseline,
    Confounds,
    Duplicates,
    ScoredText,
    assign_folds,
    check,
    count_duplicates,
    ngram_baseline,
    out_of_fold,
    related,
    subsample,
)
from infodis.apps.audit.separation import Separation, auroc
from infodis.errors import InputError
from infodis.result import Interval

DICTIONARY = random.Random(0)
WORDS = ["".join(DICTIONARY.choices("etaoinshrdlu", k=DICTIONARY.randint(2, 8))) for _ in range(400)]


def text(source: random.Random, words: int = 30, prompt: str = "") -> ScoredText:
    return ScoredText(prompt, " ".join(source.choices(WORDS, k=words)), words)


def texts(seed: int, rows: int, words: int = 30) -> list[ScoredText]:
    source = random.Random(seed)
    return [text(source, words) for _ in range(rows)]


def model(value: float, half: float = 0.03, **other) -> Separation:
    found = Interval(value, value - half, min(1.0, value + half))
    return Separation("nll", (100, 100), found, {}, {}, {}, Interval(0, 0, 0), 0.01, 99, **other)


def test_length_is_named():
    found = check(texts(0, 60, words=20), texts(1, 60, words=30), names=("short", "long"))
    assert {one.score for one in found.clear()[:2]} == {"characters", "tokens"}
    first = found.findings(model(0.9))
    assert any(one.startswith("long is longer in characters: ") for one in first)
    assert "better than the model (0.90): this comparison says little about the model." in first[0]
    reverse = check(texts(1, 60, words=30), texts(0, 60, words=20), names=("long", "short"))
    assert any(
        one.startswith("long is longer in tokens: 30 against 20 on average.") for one in reverse.findings(model(0.9))
    )


def test_capitals_are_named():
    b = [dataclasses.replace(one, response=one.response.title()) for one in texts(1, 60)]
    found = check(texts(0, 60), b)
    assert [one.score for one in found.clear()] == ["upper case"]
    assert found.ngrams is not None
    assert found.ngrams.auroc.value > 0.99
    told = found.findings(model(0.99, half=0.005))
    assert told[0].startswith("A classifier that only counts characters tells B from A with AUROC 1.00 [0.9")
    assert "as well as the model (0.99)" in told[0]
    assert told[1].startswith("B has more upper-case letters: ")
    assert "against 0.0 % on average." in told[1]


def anagram(source: random.Random, words: str) -> str:
    return " ".join("".join(source.sample(word, len(word))) for word in words.split())


def test_order_of_letters_is_seen_by_runs_only():
    """The letters of every word in another order: runs of characters tell, single ones cannot."""
    source = random.Random(5)
    a, b = texts(0, 100), [ScoredText("", anagram(source, one.response), one.tokens) for one in texts(1, 100)]
    single, runs = (ngram_baseline(a, b, longest=longest) for longest in (1, 3))
    assert single is not None
    assert runs is not None
    assert single.auroc.low < 0.5 < single.auroc.high
    assert runs.auroc.low > 0.85


def alarms(repetitions: int, rows: int) -> tuple[int, int, int, int]:
    """Of how many pairs of groups of one source: features told, classifier above a half, its intervals off a half, and
    those without INFLATION."""
    features = above = off = plain = 0
    for seed in range(repetitions):
        a, b = texts(2 * seed, rows, words=12), texts(2 * seed + 1, rows, words=12)
        found = check(a, b, seed=seed)
        assert found.ngrams is not None
        features += bool(found.clear())
        above += found.ngrams.auroc.low > 0.5
        off += not found.ngrams.auroc.low <= 0.5 <= found.ngrams.auroc.high
        scores = out_of_fold([*a, *b], [0] * rows + [1] * rows, list(range(2 * rows)), seed=seed)
        naive = auroc(scores[:rows], scores[rows:])
        plain += not naive.low <= 0.5 <= naive.high
    return features, above, off, plain


def test_the_same_source_raises_no_flag():
    """At rates of 5, 2.5 and 5 % more than 5, 4 and 5 of 15 happen once in 10,000 or less."""
    features, above, off, _ = alarms(15, rows=25)
    assert FALSE_ALARMS == 0.05
    assert features <= 5
    assert above <= 4
    assert off <= 5


@pytest.mark.slow
def test_false_alarms_of_the_classifier():
    """Without INFLATION (the negative control) intervals leave out a half far too often; z = 4 of 200."""
    features, above, off, plain = alarms(200, rows=40)
    print(f"of 200: features {features}, classifier above {above}, off {off}, without inflation {plain}")
    assert max(features, off) <= 10 + 4 * 3.1
    assert plain > 10 + 4 * 3.1 > 22


def test_without_adjusting_for_many_features_alarms_are_many():
    """Negative control: any of nine features below 0.05."""
    alarms = 0
    for seed in range(40):
        found = [check_features(texts(2 * seed, 20, words=12), texts(2 * seed + 1, 20, words=12), seed)]
        alarms += any(min(p_values) <= 0.05 for p_values in found)
    assert alarms > 4


def check_features(a: list[ScoredText], b: list[ScoredText], seed: int) -> list[float]:
    """p-values of features that have little to do with each other, of rows that differ in all of them."""
    source = random.Random(seed)
    noisy = [[dataclasses.replace(one, response=one.response + noise(source)) for one in group] for group in (a, b)]
    groups = related(*noisy)
    found = [confounds._feature(feature, *noisy, groups, seed=seed) for feature in confounds.FEATURES]
    return [one.p_value for one in found if one is not None and one.p_value is not None]


def noise(source: random.Random) -> str:
    return "".join(sign * source.randint(0, 9) for sign in ("A", "7", "!", "\n", "é"))


def test_duplicates_are_counted_exactly():
    a = [ScoredText("p", "x"), ScoredText("p", "y"), ScoredText("q", "x"), ScoredText("", ""), ScoredText("", "")]
    b = [ScoredText("q", "x"), ScoredText("r", "z"), ScoredText("r", "z"), ScoredText("r", "z")]
    assert count_duplicates(a, b) == Duplicates(1, 2, 1, 1, 2, 1)
    same = [ScoredText("go", str(n)) for n in range(4)]
    assert count_duplicates(same, same) == Duplicates(0, 0, 0, 0, 0, 4)  # one prompt for all is an instruction


def test_duplicates_are_told():
    counts = Duplicates(30, 0, 5, 0, 20, 4)
    chance = Baseline("character n-grams", Interval(0.5, 0.4, 0.6), None, (0.0, 0.0))
    found = Confounds(("A", "B"), (100, 100), (), chance, counts)
    told = found.findings(model(0.8))
    assert [one[:44] for one in told] == [
        "4 of 100 rows of B have a response that A ha",
        "20 of 100 rows of B repeat the response of a",
        "30 of 100 rows of A repeat the prompt of an ",
    ]
    assert len(found.findings(model(0.8, clusters=50))) == 2
    few = dataclasses.replace(found, duplicates=Duplicates(1, 1, 1, 1, 1, 1))
    assert few.findings(model(0.8)) == []


def test_relatives_are_found_by_way_of_others():
    a = [ScoredText("p", "x"), ScoredText("q", "y"), ScoredText("", "z")]
    b = [ScoredText("q", "x"), ScoredText("", "w"), ScoredText("", "")]
    groups = related(a, b)
    assert groups[0] == groups[1] == groups[3]
    assert len(set(groups)) == 4
    assert (
        len(set(related([ScoredText("go", "x"), ScoredText("go", "y")], [ScoredText("go", "z")]))) == 3
    )  # an instruction


def test_folds_keep_relatives_together_and_are_balanced():
    labels = [0] * 103 + [1] * 57
    groups = [n // 3 for n in range(160)]
    fold = assign_folds(labels, groups, seed=0)
    for group in set(groups):
        assert len({int(fold[n]) for n in range(160) if groups[n] == group}) == 1
    for label in (0, 1):
        counts = torch.bincount(fold[torch.tensor(labels) == label], minlength=FOLDS)
        assert int(counts.max() - counts.min()) <= 6
    assert torch.equal(fold, assign_folds(labels, groups, seed=0))
    assert not torch.equal(fold, assign_folds(labels, groups, seed=1))


def test_folds_do_not_leak():
    """Every row twice, labels at random. Ungrouped folds (the negative control) find the copy in training."""
    a, b = texts(0, 40) * 2, texts(1, 40) * 2
    found = ngram_baseline(a, b)
    assert found is not None
    assert found.auroc.low < 0.5
    labels = [0] * 80 + [1] * 80
    leaking = out_of_fold([*a, *b], labels, list(range(160)))
    assert auroc(leaking[:80], leaking[80:]).low > 0.75


def test_shared_prompts_do_not_leak():
    """Rows of a prompt begin alike, and a prompt is in one group: what is learned is the prompt, not the group."""
    rows = [[], []]
    for seed in range(24):
        source = random.Random(seed)
        start = text(source, 20)
        rows[seed % 2] += [
            ScoredText(f"prompt {seed}", f"{start.response} {text(source, 3).response}") for _ in range(6)
        ]
    found = ngram_baseline(*rows)
    assert found is not None
    assert found.auroc.low < 0.5
    plain = out_of_fold([*rows[0], *rows[1]], [0] * 72 + [1] * 72, list(range(144)))
    assert auroc(plain[:72], plain[72:]).value > 0.95


def test_findings_are_silent_or_fitting():
    def found(value: float, half: float) -> Confounds:
        baseline = Baseline(
            "character n-grams", Interval(value, value - half, min(1.0, value + half)), None, (0.0, 0.0)
        )
        return Confounds(("A", "B"), (100, 100), (), baseline, Duplicates(0, 0, 0, 0, 0, 0))

    assert found(0.52, 0.05).findings(model(0.9)) == []
    assert found(0.55, 0.02).findings(model(0.9)) == []  # sure, and small
    assert len(found(0.55, 0.02).findings(model(0.56))) == 1  # ... but not beside a small one
    assert found(0.3, 0.05).findings(model(0.9)) == []  # out of fold below a half is chance
    for baseline, own, words in (
        (found(0.97, 0.02), model(0.96), "0.97 [0.95, 0.99], as well as the model (0.96): this comparison says little"),
        (found(0.97, 0.02), model(0.6), "better than the model (0.60)"),
        (found(0.7, 0.05), model(0.96), "the model with 0.96: part of what the model sees may be this."),
        (found(0.8, 0.1), model(0.85), "and the model (0.85) is not clearly better"),
        (found(0.97, 0.02), model(0.04), "as well as the model (0.96, in reverse)"),
    ):
        assert words in baseline.findings(own)[0]


def test_many_features_are_listed():
    shouting = [ScoredText("", f"{one.response.upper()}!! 123 é", 3 * (one.tokens or 0)) for one in texts(1, 40)]
    told = check(texts(0, 40), shouting).findings(model(0.9))
    assert len(told) == 1 + confounds.MOST_SENTENCES + 1
    assert told[-1].startswith("The groups also differ in ")


def test_unknown_token_counts_and_few_rows():
    a, b = ([ScoredText("", one.response) for one in texts(seed, 8)] for seed in (0, 1))
    found = check(a, b)
    assert not {"tokens", "tokens per byte"} & {one.score for one in found.features}
    assert found.ngrams is None
    assert found.findings(model(0.9))[-1].startswith("Whether characters alone tell B from A is not known")
    assert json.loads(json.dumps(dataclasses.asdict(found)))["rows"] == [8, 8]
    assert check([ScoredText("", ""), ScoredText("", "")], [ScoredText("", ""), ScoredText("", "")]).features == ()
    with pytest.raises(InputError, match="B has 1"):
        check(a, b[:1])


def test_one_prompt_for_all():
    a, b = ([ScoredText("say", one.response) for one in texts(seed, 20)] for seed in (0, 1))
    found = check(a, b)
    assert found.ngrams is not None
    assert found.findings(model(0.9)) == []


def test_same_seed_same_numbers():
    a, b = texts(0, 30), texts(1, 30)
    assert check(a, b, seed=3) == check(a, b, seed=3)


def test_many_rows_are_thinned_evenly(monkeypatch):
    monkeypatch.setattr(confounds, "ROWS", 4)
    assert [one.prompt for one in subsample([ScoredText(str(n), "") for n in range(10)])] == ["0", "2", "5", "7"]
    assert INFLATION == 2.25


def test_a_missing_package_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.feature_extraction.text", None)
    with pytest.raises(InputError, match=r"pip install 'infodis\[audit\]'"):
        check(texts(0, 20), texts(1, 20))
