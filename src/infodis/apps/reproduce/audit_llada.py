"""Figure 4: does a model find what a language model wrote likelier than how the dataset goes on?"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from infodis.apps.audit.analysis import check_extra
from infodis.apps.audit.records import PRIMARY, DetectionScore, Group, Record
from infodis.apps.audit.reporting import interval_text, p_text, share_text
from infodis.apps.audit.separation import Separation
from infodis.apps.report.values import ReportTable
from infodis.apps.reproduce.audit_texts import OWN, SHAPE, Dataset, check_texts, datasets, own_continuations
from infodis.apps.reproduce.comparison import (
    PRECISION_COLUMNS,
    GroupComparison,
    TwoEstimators,
    auroc_bars,
    auroc_text,
    interval_json,
    nll_histogram,
    our_job,
    paper_job,
    score_rows,
    signed_text,
    undecided,
)
from infodis.apps.reproduce.data import CHINESE
from infodis.apps.reproduce.experiment import (
    OUR_MODEL,
    Claim,
    Cost,
    ExperimentResult,
    Verdict,
    Workspace,
    name_of,
    settings_table,
)
from infodis.apps.reproduce.triplets import in_text8_letters
from infodis.figures import Figure
from infodis.models.loading import load
from infodis.models.model import Model
from infodis.models.spec import ModelSpec
from infodis.result import Interval
from infodis.reveal import RandomOrder, RevealRule
from infodis.sampling import Ancestral


@dataclasses.dataclass(frozen=True)
class AuditBudget:
    """How much is scored, and how often.

    Forward passes of a text: samples + 2 evaluations, and for each that the model writes one for every token.
    """

    texts: int
    samples: int
    """Masks by the paper's estimator."""
    evaluations: int
    """Masks by ours, with the prompt and again without it."""
    rule: RevealRule = RandomOrder()
    """How the model goes on after a prompt: token by token in random order, unless time is short."""


BUDGETS = {
    "smoke": AuditBudget(texts=10, samples=4, evaluations=4, rule=Ancestral(steps=4)),
    "laptop": AuditBudget(texts=120, samples=100, evaluations=32),
    "full": AuditBudget(texts=500, samples=100, evaluations=64),
}


def _likely(record: Record) -> float | None:
    nats = PRIMARY.of(record)
    return None if nats is None else -nats


LIKELY = DetectionScore("log likelihood per token", "Minus nats per token given the prompt.", _likely)


class AuditLlada:
    """Continuations of a dataset against those of language models."""

    name = "audit-llada"
    title = "Continuations of the dataset against those of a language model"
    paper = "Figure 4 and its companion in the appendix"
    own_model = False
    has_authors_data = True

    def budget(self, workspace: Workspace) -> AuditBudget:
        """For the size of a run."""
        budget = BUDGETS[workspace.size]
        return dataclasses.replace(budget, texts=workspace.few(budget.texts))

    def check(self, workspace: Workspace) -> None:
        check_extra()
        check_texts(workspace)

    def cost(self, workspace: Workspace) -> Cost:
        """Two datasets, in each the dataset's continuations, another author's and the model's own."""
        budget = self.budget(workspace)
        passes = 2 * budget.texts * (3 * (budget.samples + 2 * budget.evaluations) + SHAPE.response)
        return Cost(passes, passes * SHAPE.length, weights=workspace.weights)

    def run(self, workspace: Workspace) -> ExperimentResult:
        budget, spec = self.budget(workspace), workspace.model_spec()
        model = spec.load()
        found = []
        for dataset in datasets(workspace, model, budget.texts):
            by_itself = own_continuations(workspace, model, dataset, budget.rule)
            dataset = dataclasses.replace(dataset, written={**dataset.written, OWN: by_itself})
            found += compare_authors(workspace, dataset, budget, spec)
        return result(found, budget, AskedModel.of(model))


@dataclasses.dataclass(frozen=True)
class AskedModel:
    """What claims are about: decided by what a model is, not by how its name is spelled."""

    name: str
    exactly: str
    """Its name with its weights."""
    family: str
    letters: bool
    """Whether it knows the letters of text8 and nothing else."""
    innocent: bool
    """Whether it is the network that we trained on text from before there were language models."""

    @staticmethod
    def of(model: Model) -> "AskedModel":
        letters = in_text8_letters(model)
        ours = letters and model.fingerprint == load(OUR_MODEL, device=model.device.type).fingerprint
        return AskedModel(model.name, name_of(model), model.loaded.family, letters, ours)

    @property
    def meant(self) -> bool:
        """Whether the paper's claim is about such a model: LLaDA, wherever it lies."""
        return self.family == "llada"

    @property
    def reservation(self) -> str:
        if self.meant:
            return ""
        return f" The claim is about LLaDA, which --full asks; this is a model of family {self.family}."


@dataclasses.dataclass(frozen=True, eq=False)
class AuthorComparison:
    """A dataset's continuations and those of one author."""

    dataset: Dataset
    author: str
    both: TwoEstimators

    @property
    def name(self) -> str:
        return f"{self.author} against {self.dataset.name}"

    @property
    def ours(self) -> GroupComparison:
        return self.both.ours

    @functools.cached_property
    def likely(self) -> Separation:
        """How much likelier those of the author are, by our estimator."""
        return self.ours.separation(LIKELY)

    @functools.cached_property
    def likely_by_paper(self) -> Separation:
        return self.both.paper.separation(LIKELY)


def compare_authors(
    workspace: Workspace, dataset: Dataset, budget: AuditBudget, spec: ModelSpec
) -> list[AuthorComparison]:
    """Every author of a dataset, by both estimators."""
    jobs = {
        "-time-free": paper_job(spec, budget.samples, workspace.seed),
        "": our_job(spec, budget.evaluations, workspace.seed),
    }
    sides = {"": dataset.rows, **{f"-{who}": rows for who, rows in dataset.written.items()}}
    groups = {
        (who, ending): score_rows(workspace, f"{dataset.name}{who}{ending}", rows, job)
        for who, rows in sides.items()
        for ending, job in jobs.items()
    }
    found = []
    for author in dataset.written:
        paper, ours = (
            GroupComparison.of(groups["", ending], groups[f"-{author}", ending], seed=workspace.seed) for ending in jobs
        )
        found.append(AuthorComparison(dataset, author, TwoEstimators(paper, ours, budget.samples, budget.evaluations)))
    return found


def likelier(found: Separation) -> Verdict:
    """Whether the positives have the higher log likelihood on average, beyond chance."""
    if _gap(found).low > 0:
        return "holds"
    return "undecided" if undecided(found.auroc) or _gap(found).high > 0 else "does not hold"


def verdict_on(one: AuthorComparison) -> Verdict:
    """The same of an author; what a model thinks of its own words is half an answer."""
    verdict = likelier(one.likely)
    return "holds in part" if verdict == "holds" and one.author == OWN else verdict


def _gap(found: Separation) -> Interval:
    """The mean difference within pairs or, if there are none, of the groups in units of their spread."""
    return found.effect if found.pairs is None else found.pairs.difference


def result(found: list[AuthorComparison], budget: AuditBudget, model: AskedModel) -> ExperimentResult:
    """Claims, tables and figures of what was measured."""
    style = "in the letters of text8" if model.letters else "as they are"
    english = [one for one in found if one.dataset.name != "chinese"]
    chinese = [one for one in found if one.dataset.name == "chinese"]
    counts = ", ".join({f"{one.dataset.about}: {len(one.ours.negative.records)}": None for one in found})
    return ExperimentResult(
        f"{model.exactly}, prompts of {SHAPE.prompt} tokens and responses of {SHAPE.response}, texts {style} "
        f"({counts}). The paper's time-free estimator with {budget.samples} masks a text, and ours with "
        f"{budget.evaluations}. '{OWN}' is what the model itself goes on with after the same prompts.",
        (_higher(english, model), _influence(english, model), _in_chinese(chinese, model)),
        _why(model),
        (_table(found), _estimators(found), _settings(found, budget, model)),
        (*_histograms(found), _comparison(found)),
        {one.name: _numbers(one) for one in found},
    )


def _stands_for_an_llm(found: list[AuthorComparison]) -> AuthorComparison:
    """A comparison with another language model, or else with the model itself."""
    return next((one for one in found if one.author != OWN), found[0])


def _higher(found: list[AuthorComparison], model: AskedModel) -> Claim:
    one = _stands_for_an_llm(found)
    note = " The model's own text stands for that of another one here." if one.author == OWN else ""
    return Claim(
        "Responses by a language model tend to receive higher average likelihoods than those of the dataset.",
        f"{model.name}: the log likelihood of {one.author} minus that of {one.dataset.name} is "
        f"{signed_text(_gap(one.likely))} nats per token, above zero in "
        f"{_wins(one.likely)}; AUROC {interval_text(one.likely.auroc)}, p = {p_text(one.likely.p_value)} "
        f"(the paper's estimator: AUROC {interval_text(one.likely_by_paper.auroc)}).{note}{model.reservation}",
        verdict_on(one) if model.meant else "not tested here",
    )


def _why(model: AskedModel) -> str:
    reading = (
        "Text of a language model may hold few surprises for another one, whoever taught it, and its characters alone "
        "may tell it apart: a higher likelihood does not show where a model's training data come from."
    )
    if model.meant:
        return reading
    return (
        f"The claims are about LLaDA and text of LLaMA. {model.name} is not LLaDA: its numbers show how such a "
        "comparison behaves, and test no claim. `infodis reproduce audit-llada --full --authors DIR` tests them. "
        f"{reading}"
    )


def _settings(found: list[AuthorComparison], budget: AuditBudget, model: AskedModel) -> ReportTable:
    texts = " and ".join(sorted({f"{len(one.ours.negative.records)} of {one.dataset.name}" for one in found}))
    return settings_table(
        [
            ("model", "LLaDA-8B-Instruct", f"{model.exactly}, family {model.family}"),
            ("tokens of prompt and response", "64 + 64", f"{SHAPE.prompt} + {SHAPE.response}"),
            ("other continuations by", "LLaMA", ", ".join(sorted({one.author for one in found}))),
            ("masks a text", "100 (public code: never all tokens at once)", f"{budget.samples}, as printed"),
            ("texts", "all rows of the public files", texts),
        ]
    )


def _wins(found: Separation) -> str:
    return "groups that are not paired" if found.pairs is None else f"{share_text(found.pairs.share)} of pairs"


def _influence(found: list[AuthorComparison], model: AskedModel) -> Claim:
    """Only a model that cannot have seen such text, and prefers it all the same, says anything about the inference."""
    others = [one for one in found if one.author != OWN]
    preferred = [one for one in others if likelier(one.likely) == "holds"]
    innocent = model.innocent and bool(others)
    inference = "Whether a preference shows influence takes a model of known training data that has one."
    if innocent and preferred:
        inference = "Such a preference needs no influence: text that holds few surprises has it."
    return Claim(
        "Higher likelihoods of text by a language model suggest that it influenced the model during training.",
        " ".join(
            [*([_innocence(model.name, preferred, others)] if innocent else []), inference, *map(_beside, others)]
        ),
        "does not hold" if innocent and preferred else "not tested here",
    )


def _innocence(model: str, preferred: list[AuthorComparison], others: list[AuthorComparison]) -> str:
    names = " and ".join(one.author for one in preferred or others)
    word = "still prefers" if preferred else "does not prefer"
    return f"{model} was trained on text from before there were language models, and {word} {names}."


def _beside(one: AuthorComparison) -> str:
    if one.ours.trivial is None:
        return f"There are too few texts to say whether characters alone tell {one.name}."
    return (
        f"A classifier of characters that was trained on labelled texts tells {one.author} from {one.dataset.name} "
        f"with AUROC {interval_text(one.ours.trivial)}."
    )


def _in_chinese(found: list[AuthorComparison], model: AskedModel) -> Claim:
    says = "Chinese shows similar behaviour: generated continuations are likelier than those of the dataset."
    if not found:
        why = (
            f"There is no Chinese text ({CHINESE.file}: {CHINESE.where}), or nothing to transliterate it with: pip "
            "install 'infodis[reproduce]'."
        )
        return Claim(says, why, "not tested here")
    one = _stands_for_an_llm(found)
    whose, note = f"those of {one.author}", ""
    if one.author == OWN:
        whose, note = "its own continuations", " There is no text of another language model."
    foreign = " Transliterated prose is foreign to a model of English." if model.letters else ""
    return Claim(
        says,
        f"{model.name} finds {whose} likelier than those of the dataset by {signed_text(_gap(one.likely))} nats per "
        f"token, in {_wins(one.likely)}; AUROC {interval_text(one.likely.auroc)}.{note}{model.reservation}{foreign}",
        verdict_on(one) if model.meant else "not tested here",
    )


def _table(found: list[AuthorComparison]) -> ReportTable:
    columns = ("continuations", "pairs", "likelier by, nats per token", "AUROC", "p", "likelier of a pair")
    rows = tuple(
        (
            one.name,
            float(len(one.ours.positive.records)),
            signed_text(_gap(one.likely)),
            interval_text(one.likely.auroc),
            p_text(one.likely.p_value),
            None if one.likely.pairs is None else share_text(one.likely.pairs.share),
            auroc_text(one.ours.trivial),
        )
        for one in found
    )
    return ReportTable(
        "How much likelier generated continuations are, by our estimator",
        (*columns, "characters, AUROC"),
        rows,
        "Intervals at 95 %; p by swapping the texts of pairs. 'characters' is a classifier of up to three in a row, "
        "trained on labelled texts of both groups; none where texts are few.",
    )


def _estimators(found: list[AuthorComparison]) -> ReportTable:
    rows = (
        (one.name, name, *sure.cells, signed_text(_gap(comparison.separation(LIKELY))))
        for one in found
        for name, (comparison, sure) in one.both.named.items()
    )
    columns = ("continuations", "estimator", *PRECISION_COLUMNS, "likelier by, nats per token")
    return ReportTable("Two estimators on the same texts", columns, tuple(rows))


def _histograms(found: list[AuthorComparison]) -> list[Figure]:
    by_dataset: dict[str, dict[str, Group]] = {}
    for one in found:
        groups = by_dataset.setdefault(one.dataset.name, {one.dataset.name: one.ours.negative})
        groups[one.author] = one.ours.positive
    return [
        nll_histogram(groups, name=name, title=f"NLL of continuations: {name}") for name, groups in by_dataset.items()
    ]


def _comparison(found: list[AuthorComparison]) -> Figure:
    areas: dict[str, Interval | None] = {}
    for one in found:
        areas[f"{one.name}: likelihood"] = one.likely.auroc
        areas[f"{one.name}: characters"] = one.ours.trivial
    return auroc_bars(
        areas, axis="AUROC", name="authors", caption="Right of 0.5 the model finds generated text likelier."
    )


def _numbers(one: AuthorComparison) -> Mapping[str, Any]:
    pairs = one.likely.pairs
    return {
        "texts": len(one.ours.positive.records),
        "auroc": interval_json(one.likely.auroc),
        "p": one.likely.p_value,
        "likelier": interval_json(_gap(one.likely)),
        "share_of_pairs": None if pairs is None else interval_json(pairs.share),
        "auroc_time_free": interval_json(one.likely_by_paper.auroc),
        "auroc_characters": interval_json(one.ours.trivial),
        "precision": one.both.numbers(),
    }
