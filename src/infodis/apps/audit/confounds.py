"""Do baselines without a model separate the groups? Length, character classes, tokenisation, repeated texts, n-grams.

A model that tells B from A need not have understood anything: if B is longer, or written in capitals, so does a ruler.
Every check here looks at the response only, the text that the model scores, and never at the model.
"""

import collections
import dataclasses
import unicodedata
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float64, Int
from torch import Tensor

from infodis.apps.audit.separation import Separation, auroc, holm, separate, stronger
from infodis.errors import InputError
from infodis.result import Interval
from infodis.rng import stream

ROWS = 4000
"""Rows of a group that are checked, evenly spread: intervals of AUROC are then within 0.02."""
CHARACTERS = 500
"""Characters of a response that the n-gram classifier reads: enough to know an alphabet and a style."""
FOLDS = 5
UNRELATED = 2 * FOLDS
"""Rows of a group without a common prompt or response, at least, for a classifier: two in every fold."""
INFLATION = 1 + FOLDS / (FOLDS - 1)
"""Of the variance of an AUROC out of folds, whose training rows overlap (Nadeau and Bengio 2003). Without it,
intervals of one source leave out a half three times as often as they should (`test_false_alarms_of_the_classifier`)."""
PERMUTATIONS = 999
"""Enough for an adjusted p-value of 0.01 with ten features."""
FALSE_ALARMS = 0.05
"""The chance that any feature is reported although the groups have the same source."""
NOTABLE = 0.1
"""|AUROC - 1/2| that is worth a sentence: below 0.6 a difference may be sure and still explain next to nothing."""
NOTABLE_PART = 0.5
"""... unless that is this much of the model's own: then it may explain much of what little there is."""
REPEATED = 0.01
"""Share of repeated rows worth a sentence: fewer move an AUROC by less than 0.01."""
CLOSE = 0.01
"""AUROCs that differ by less are called equal: they look so in print."""
MOST_SENTENCES = 3
"""Features that get a sentence each; the rest are listed."""


@dataclasses.dataclass(frozen=True)
class ScoredText:
    """A row's prompt and response."""

    prompt: str
    response: str
    tokens: int | None = None
    """Of the response, if known."""


@dataclasses.dataclass(frozen=True)
class Feature:
    """Something that can be counted without a model."""

    name: str
    more: str
    """What is said of the group that has more of it."""
    measure: Callable[[ScoredText], float]
    percent: bool = False
    needs_tokens: bool = False


def _share(belongs: Callable[[str], bool]) -> Callable[[ScoredText], float]:
    def share(text: ScoredText) -> float:
        counts = collections.Counter(text.response)
        return sum(count for character, count in counts.items() if belongs(character)) / max(1, len(text.response))

    return share


def _word_length(text: ScoredText) -> float:
    words = text.response.split()
    return sum(map(len, words)) / max(1, len(words))


FEATURES = (
    Feature("characters", "is longer in characters", lambda text: float(len(text.response))),
    Feature("tokens", "is longer in tokens", lambda text: float(text.tokens or 0), needs_tokens=True),
    Feature(
        "tokens per byte",
        "takes more tokens per byte",
        lambda text: (text.tokens or 0) / max(1, len(text.response.encode())),
        needs_tokens=True,
    ),
    Feature("upper case", "has more upper-case letters", _share(str.isupper), percent=True),
    Feature("digits", "has more digits", _share(str.isdigit), percent=True),
    Feature("punctuation", "has more punctuation", _share(lambda c: unicodedata.category(c)[0] in "PS"), percent=True),
    Feature("whitespace", "has more whitespace", _share(str.isspace), percent=True),
    Feature("non-ASCII", "has more non-ASCII characters", _share(lambda c: not c.isascii()), percent=True),
    Feature("word length", "has longer words", _word_length),
)


@dataclasses.dataclass(frozen=True)
class Baseline:
    """How a score that needs no model separates B from A."""

    score: str
    auroc: Interval
    p_value: float | None
    """By permutation; None for the classifier, whose scores have seen the labels of other rows."""
    means: tuple[float, float]
    """Of the score in A and B."""


@dataclasses.dataclass(frozen=True)
class Duplicates:
    """Rows that repeat. A prompt that all rows have is an instruction, and empty texts are none: they do not count."""

    prompts_within_a: int
    """Rows of A whose prompt an earlier row of A has."""
    prompts_within_b: int
    prompts_across: int
    """Rows of B whose prompt a row of A has."""
    responses_within_a: int
    responses_within_b: int
    responses_across: int


@dataclasses.dataclass(frozen=True)
class Confounds:
    """What was found out about two groups without a model."""

    names: tuple[str, str]
    rows: tuple[int, int]
    features: tuple[Baseline, ...]
    """Those in which rows differ at all."""
    ngrams: Baseline | None
    """A classifier of characters, out of fold; None if there are too few distinct texts for folds."""
    duplicates: Duplicates

    @property
    def baselines(self) -> list[Baseline]:
        """The classifier first, if there is one."""
        return [*([] if self.ngrams is None else [self.ngrams]), *self.features]

    def findings(self, model: Separation) -> list[str]:
        """What a reader must know before believing `model`, the most important first; often nothing."""
        first = [self._classifier(model)] if self.ngrams is not None and _matters(self.ngrams.auroc, model) else []
        unchecked = (
            f"Whether characters alone tell {self.names[1]} from {self.names[0]} is not known: a classifier needs at "
            f"least {UNRELATED} rows of each that share neither prompt nor response."
        )
        return first + self._features(model) + self._repeated(model) + ([unchecked] if self.ngrams is None else [])

    def clear(self) -> list[Baseline]:
        """Features that differ beyond chance (Holm over all of them), the strongest first."""
        adjusted = holm([one.p_value or 0.0 for one in self.features])
        found = [one for one, p in zip(self.features, adjusted, strict=True) if p <= FALSE_ALARMS]
        return sorted(found, key=lambda one: -abs(one.auroc.value - 0.5))

    def _classifier(self, model: Separation) -> str:
        assert self.ngrams is not None
        a, b = self.names
        start = f"A classifier that only counts characters tells {b} from {a} with AUROC {self.ngrams.auroc}, "
        return start + _compared_with_model(self.ngrams.auroc, model)

    def _features(self, model: Separation) -> list[str]:
        found = [one for one in self.clear() if _matters(_at_least_half(one.auroc), model)]
        sentences = [self._feature(one, model) for one in found[:MOST_SENTENCES]]
        if rest := [f"{one.score} (AUROC {_at_least_half(one.auroc).value:.2f})" for one in found[MOST_SENTENCES:]]:
            sentences.append(f"The groups also differ in {', '.join(rest)}.")
        return sentences

    def _feature(self, one: Baseline, model: Separation) -> str:
        feature = next(each for each in FEATURES if each.name == one.score)
        more = int(one.auroc.value >= 0.5)
        high, low = (_number(one.means[n], percent=feature.percent) for n in (more, 1 - more))
        found = _at_least_half(one.auroc)
        return (
            f"{self.names[more]} {feature.more}: {high} against {low} on average. This alone separates the groups with "
            f"AUROC {found}, {_compared_with_model(found, model)}"
        )

    def _repeated(self, model: Separation) -> list[str]:
        (a, b), rows, found, sentences = self.names, self.rows, self.duplicates, []
        if found.responses_across > REPEATED * rows[1]:
            sentences.append(
                f"{found.responses_across:,} of {rows[1]:,} rows of {b} have a response that {a} has too: no score of "
                "the response alone can tell these apart."
            )
        counts = [
            ("response", a, rows[0], found.responses_within_a),
            ("response", b, rows[1], found.responses_within_b),
        ]
        if model.pairs is None and model.clusters is None:
            counts += [("prompt", a, rows[0], found.prompts_within_a), ("prompt", b, rows[1], found.prompts_within_b)]
        sentences += [
            f"{count:,} of {size:,} rows of {name} repeat the {what} of an earlier row: there are fewer independent "
            "rows than it seems, and intervals that take all of them for independent are too narrow."
            for what, name, size, count in counts
            if count > REPEATED * size
        ]
        return sentences


def _at_least_half(found: Interval) -> Interval:
    """Counted from the group that has more, so that it is at least a half."""
    if found.value >= 0.5:
        return found
    return Interval(1 - found.value, 1 - found.high, 1 - found.low, found.level)


def _matters(found: Interval, model: Separation) -> bool:
    """Whether a baseline, above a half if anything, separates clearly and enough to be worth a sentence."""
    enough = min(NOTABLE, NOTABLE_PART * abs(model.auroc.value - 0.5))
    return found.low > 0.5 and found.value - 0.5 >= enough


def _compared_with_model(found: Interval, model: Separation) -> str:
    """The end of a sentence on a baseline: how it compares with the model."""
    own = _at_least_half(model.auroc)
    shown = f"{own.value:.2f}" + (", in reverse" if own != model.auroc else "")
    if stronger(own, found).low > 0:
        return f"the model with {shown}: part of what the model sees may be this."
    if stronger(found, own).low > 0:
        return f"better than the model ({shown}): this comparison says little about the model."
    if found.value >= own.value - CLOSE:
        return f"as well as the model ({shown}): this comparison says little about the model."
    return f"and the model ({shown}) is not clearly better: this comparison says little about the model."


def _number(value: float, *, percent: bool) -> str:
    if percent:
        return f"{100 * value:.1f} %"
    return f"{value:.3g}" if value < 100 else f"{value:,.0f}"


def check(
    a: Sequence[ScoredText], b: Sequence[ScoredText], *, names: tuple[str, str] = ("A", "B"), seed: int = 0
) -> Confounds:
    """Look for what tells B from A without a model. AUROC above a half: more of it in B.

    >>> quiet = [ScoredText("", f"it is {n} o'clock") for n in range(20)]
    >>> loud = [ScoredText("", f"IT IS {n} O'CLOCK") for n in range(20)]
    >>> [one.score for one in check(quiet, loud).clear()]
    ['upper case']
    """
    for name, texts in zip(names, (a, b), strict=True):
        if len(texts) < 2:
            raise InputError(f"Each group needs at least two rows; {name} has {len(texts)}.")
    duplicates, rows = count_duplicates(a, b), (len(a), len(b))
    a, b = subsample(a), subsample(b)
    groups = related(a, b)
    have_tokens = all(text.tokens is not None for text in (*a, *b))
    features = [feature for feature in FEATURES if have_tokens or not feature.needs_tokens]
    found = [_feature(feature, a, b, groups, seed=seed) for feature in features]
    differing = tuple(one for one in found if one is not None)
    return Confounds(names, rows, differing, ngram_baseline(a, b, seed=seed), duplicates)


def subsample(texts: Sequence[ScoredText]) -> list[ScoredText]:
    """At most `ROWS`, evenly spread; of two groups of equal size the same places, so that pairs stay together."""
    kept = min(ROWS, len(texts))
    return [texts[n * len(texts) // kept] for n in range(kept)]


def count_duplicates(a: Sequence[ScoredText], b: Sequence[ScoredText]) -> Duplicates:
    """Count the rows that repeat, of all rows."""
    prompts = [text.prompt for text in a], [text.prompt for text in b]
    if len({*prompts[0], *prompts[1]}) == 1:
        prompts = [], []
    return Duplicates(*_repeats(*prompts), *_repeats([text.response for text in a], [text.response for text in b]))


def _repeats(a: Sequence[str], b: Sequence[str]) -> tuple[int, int, int]:
    a, b = [text for text in a if text], [text for text in b if text]
    known = set(a)
    return len(a) - len(known), len(b) - len(set(b)), sum(text in known for text in b)


def related(a: Sequence[ScoredText], b: Sequence[ScoredText]) -> list[int]:
    """A number per row of A, then B: rows that share a response or a prompt have the same, also by way of others."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    rows = [*a, *b]
    instruction = rows[0].prompt if len({text.prompt for text in rows}) == 1 else ""
    names = [[("response", one.response), ("prompt", "" if one.prompt == instruction else one.prompt)] for one in rows]
    nodes: dict[tuple[str, str], int] = {}
    edges = [
        (row, nodes.setdefault(name, len(rows) + len(nodes)))
        for row, some in enumerate(names)
        for name in some
        if name[1]
    ]
    size = len(rows) + len(nodes)
    graph = coo_array(([True] * len(edges), tuple(zip(*edges, strict=True)) or ([], [])), shape=(size, size))
    return connected_components(graph, directed=False)[1][: len(rows)].tolist()


def _enough(groups: Sequence[int], size: int, least: int) -> bool:
    return min(len(set(groups[:size])), len(set(groups[size:]))) >= least


def _feature(
    feature: Feature, a: Sequence[ScoredText], b: Sequence[ScoredText], groups: list[int], *, seed: int
) -> Baseline | None:
    one, other = (torch.tensor([feature.measure(text) for text in texts], dtype=torch.float64) for texts in (a, b))
    if bool((torch.cat([one, other]) == one[0]).all()):
        return None
    clusters = _clusters(groups, len(a))
    found = separate(one, other, score=feature.name, clusters=clusters, permutations=PERMUTATIONS, seed=seed)
    return Baseline(feature.name, found.auroc, found.p_value, (float(one.mean()), float(other.mean())))


def _clusters(groups: list[int], size: int) -> tuple[list[int], list[int]] | None:
    """None if all rows of a group are related: then nothing can be said about how much clusters differ."""
    return (groups[:size], groups[size:]) if _enough(groups, size, 2) else None


def ngram_baseline(
    a: Sequence[ScoredText], b: Sequence[ScoredText], *, longest: int = 3, seed: int = 0
) -> Baseline | None:
    """A logistic regression on the characters of the response, and runs of up to `longest` of them, out of fold.

    Rows that share a prompt or a response are never split between training and test. If both groups have the same
    source, its AUROC is a half or a little less: what a fold has more of, its training rows have less of.
    """
    groups = related(a, b)
    if not _enough(groups, len(a), UNRELATED):
        return None
    labels = [0] * len(a) + [1] * len(b)
    scores = out_of_fold([*a, *b], labels, groups, longest=longest, seed=seed)
    one, other = scores[: len(a)], scores[len(a) :]
    found = auroc(one, other, clusters=_clusters(groups, len(a)), inflation=INFLATION)
    return Baseline("character n-grams", found, None, (float(one.mean()), float(other.mean())))


def out_of_fold(
    texts: Sequence[ScoredText], labels: Sequence[int], groups: Sequence[int], *, longest: int = 3, seed: int = 0
) -> Float64[Tensor, " rows"]:
    """Log odds of label 1 for every row, from a classifier that has not seen its group."""
    try:
        from sklearn.feature_extraction.text import HashingVectorizer
        from sklearn.linear_model import LogisticRegression
    except ImportError:
        raise InputError("Checks for confounds need scikit-learn: pip install 'infodis[audit]'.") from None

    counts = HashingVectorizer(
        analyzer="char", ngram_range=(1, longest), lowercase=False, alternate_sign=False, n_features=2**16
    )
    rows = counts.transform([text.response[:CHARACTERS] for text in texts])
    fold, known = assign_folds(labels, groups, seed=seed), torch.tensor(labels)
    found = torch.zeros(len(texts), dtype=torch.float64)
    for test in (fold == n for n in range(FOLDS)):
        model = LogisticRegression(C=10, class_weight="balanced", solver="liblinear", tol=1e-3, random_state=0)
        model.fit(rows[(~test).numpy()], known[~test].numpy())
        found[test] = torch.from_numpy(model.decision_function(rows[test.numpy()]))
    return found


def assign_folds(labels: Sequence[int], groups: Sequence[int], *, seed: int) -> Int[Tensor, " rows"]:
    """A fold for every row, the same for rows of a group. Large groups are dealt first, those of like labels in turn.

    As scikit-learn's StratifiedGroupKFold, whose time grows too fast with the number of groups.
    """
    members: dict[int, list[int]] = {}
    for row in torch.randperm(len(groups), generator=stream(seed, "folds")).tolist():
        members.setdefault(groups[row], []).append(row)
    kinds: dict[tuple[int, ...], list[list[int]]] = {}
    for rows in sorted(members.values(), key=len, reverse=True):
        kinds.setdefault(tuple(sorted({labels[row] for row in rows})), []).append(rows)
    fold = torch.zeros(len(groups), dtype=torch.long)
    for turn, rows in enumerate(rows for kind in sorted(kinds) for rows in kinds[kind]):
        fold[rows] = turn % FOLDS
    return fold
