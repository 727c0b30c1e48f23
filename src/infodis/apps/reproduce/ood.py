"""Figure 3: does the likelihood given the prompt tell true continuations of text8 from foreign ones?"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from infodis import figures
from infodis.apps.audit.analysis import LEVEL, check_extra
from infodis.apps.audit.confounds import ScoredText, check
from infodis.apps.audit.records import by_prompt, by_text
from infodis.apps.audit.reporting import interval_text, p_text, percent, share_text
from infodis.apps.audit.separation import Separation, difference, stronger
from infodis.apps.report.values import ReportTable
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
    separation_verdict,
    signed_text,
    strongest_confound,
    undecided,
)
from infodis.apps.reproduce.experiment import Claim, Cost, ExperimentResult, Verdict, Workspace, name_of, settings_table
from infodis.apps.reproduce.ood_texts import (
    AUTHORS_TEXT,
    BUDGETS,
    PAPERS,
    OodBudget,
    OodTexts,
    as_in_the_paper,
    check_texts,
    gather_texts,
    papers_tokenizer,
    trains_papers_network,
)
from infodis.apps.reproduce.prompts import WindowShape, evenly_spaced
from infodis.figures import Figure
from infodis.models.spec import ModelSpec
from infodis.result import Interval

ABOUT = {
    "shuffled": "the true responses, words in random order",
    "elsewhere": "true responses of other windows",
    "gpt-letters": "the same foreign responses in the letters of text8",
    "gpt-own": "GPT-4's continuations of news, stories and abstracts",
    "human-own": "the human continuations of the same",
}

PAPERS_MODEL = "RADD, 8 blocks of 256, 7,500 x 32 windows of text8 in GPT-2's tokens"
NOISY = (0.2, 0.5)
"""Share of the spread of a group that masks may make up: up to the first an estimate is called sharp, beyond the
second it is mostly noise."""


@dataclasses.dataclass(frozen=True, eq=False)
class OodComparisons:
    """The main comparison by both estimators, the others by ours, and what capitals and punctuation alone would do."""

    shape: WindowShape
    texts: OodTexts
    both: TwoEstimators
    others: Mapping[str, GroupComparison]
    untouched: tuple[str, Interval] | None

    @property
    def true(self) -> str:
        return self.texts.names[0]

    @property
    def main(self) -> str:
        return self.texts.names[1]

    @property
    def ours(self) -> dict[str, GroupComparison]:
        """All groups by our estimator."""
        return {self.main: self.both.ours, **self.others}

    @property
    def gain(self) -> Interval:
        """|AUROC - 1/2| by our estimator minus that by the paper's."""
        ours = self.both.ours
        return difference(ours.values(), self.both.paper.values(), paired=ours.paired, clusters=ours.clusters)


class OodText8:
    """True and foreign continuations of text8."""

    name = "ood-text8"
    title = "True continuations of text8 against foreign ones"
    paper = "Figure 3"
    own_model = False
    has_authors_data = True

    def budget(self, workspace: Workspace) -> OodBudget:
        """For the size of a run."""
        budget = BUDGETS[workspace.size]
        return dataclasses.replace(budget, main=workspace.few(budget.main), others=workspace.few(budget.others))

    def check(self, workspace: Workspace) -> None:
        check_extra()
        check_texts(workspace)

    def cost(self, workspace: Workspace) -> Cost:
        """Scoring, and the paper's training where it is repeated."""
        budget = self.budget(workspace)
        passes = 2 * budget.main * (budget.samples + 2 * budget.evaluations) + 8 * budget.evaluations * budget.others
        trained = workspace.shrunk(PAPERS).tokens if trains_papers_network(workspace) else 0
        return Cost(passes, passes * budget.shape.length, trained)

    def run(self, workspace: Workspace) -> ExperimentResult:
        """Texts first: where there are too few, that is told before a network is trained."""
        budget, spec = self.budget(workspace), workspace.model_spec()
        if trains_papers_network(workspace):
            texts = gather_texts(workspace, budget, papers_tokenizer(workspace))
            spec = dataclasses.replace(spec, name=as_in_the_paper(workspace))
        else:
            texts = gather_texts(workspace, budget, spec.load().tokenizer)
        papers_own = trains_papers_network(workspace) and workspace.stand_in is None
        return result(compare_groups(workspace, budget, texts, spec), PAPERS_MODEL if papers_own else name_of(spec))


def compare_groups(workspace: Workspace, budget: OodBudget, texts: OodTexts, spec: ModelSpec) -> OodComparisons:
    """Score all groups, and compare them with the true continuations."""
    jobs = paper_job(spec, budget.samples, workspace.seed), our_job(spec, budget.evaluations, workspace.seed)
    rows = dict(zip(texts.names, (texts.true, texts.foreign), strict=True))
    paper = [score_rows(workspace, f"{name}-time-free", some, jobs[0]) for name, some in rows.items()]
    ours = {name: score_rows(workspace, name, some, jobs[1]) for name, some in {**rows, **texts.others}.items()}
    workspace.progress("comparing groups", 0, 1)
    sides = [[row["response"] for row in evenly_spaced(texts.true, len(texts.untouched))], texts.untouched]
    raw = check(*([ScoredText("", one) for one in side] for side in sides), names=texts.names, seed=workspace.seed)
    true, main = (ours[name] for name in texts.names)
    matches = {name: by_text if name == "elsewhere" else by_prompt for name in texts.others}
    return OodComparisons(
        budget.shape,
        texts,
        TwoEstimators(
            GroupComparison.of(*paper, seed=workspace.seed),
            GroupComparison.of(true, main, seed=workspace.seed),
            budget.samples,
            budget.evaluations,
        ),
        {
            name: GroupComparison.of(true, ours[name], seed=workspace.seed, match=match)
            for name, match in matches.items()
        },
        strongest_confound(raw),
    )


def result(found: OodComparisons, model: str) -> ExperimentResult:
    """Claims, tables and figures of what was measured."""
    shape, both = found.shape, found.both
    return ExperimentResult(
        f"{model}, prompts of {shape.prompt} tokens and responses of {shape.response}, "
        f"{'all in the letters of text8' if found.texts.letters else 'foreign ones as they were written'}. "
        f"{len(found.texts.true)} true continuations, {len(found.texts.foreign)} foreign ones after the same prompts "
        f"({found.texts.source}): by the paper's time-free estimator with {both.samples} masks a text, and by ours "
        f"with {both.evaluations}, which meets the same masks again without the prompt. Other groups by ours alone.",
        (_separation(found), _unrelated(found), _model_or_letters(found), _variance(found)),
        _why(found),
        (_groups(found), _estimators(found), _settings(found, model)),
        (*_histograms(found), _curves(found), _comparison(found)),
        _numbers(found),
    )


def _separation(found: OodComparisons) -> Claim:
    theirs, own = found.both.paper.nll, found.both.ours.nll
    return Claim(
        "The histogram of NLLs shows a clear separation: GPT-4's responses have much higher NLLs than original "
        "continuations, so that the estimator reliably detects what is out of distribution.",
        f"{found.main} against {found.true}: AUROC {interval_text(theirs.auroc)} by the paper's estimator, "
        f"{interval_text(own.auroc)} by ours; p = {p_text(theirs.p_value)} and {p_text(own.p_value)}.",
        separation_verdict(theirs.auroc),
    )


def _unrelated(found: OodComparisons) -> Claim:
    by_nll, by_help = found.others["elsewhere"].nll, found.others["elsewhere"].prompt
    return Claim(
        "Conditional likelihoods separate sequences of the data from semantically unrelated continuations.",
        f"Responses after the prompt of another place are told from the same responses after their own by NLL with "
        f"AUROC {interval_text(by_nll.auroc)}{_by_pairs(by_nll)}; by how little the prompt helps, NLL with it minus "
        f"NLL without it, with {interval_text(by_help.auroc)}.",
        separation_verdict(by_nll.auroc),
    )


def _by_pairs(found: Separation) -> str:
    if found.pairs is None:
        return ""
    return f", and cost {signed_text(found.pairs.difference)} nats per token more (p = {p_text(found.p_value)})"


def _model_or_letters(found: OodComparisons) -> Claim:
    area, trivial = found.both.ours.nll.auroc, found.both.ours.trivial
    raw = "" if found.untouched is None else _as_written(found.main, *found.untouched)
    if trivial is None:
        return Claim(_LIKELIHOOD, f"There are too few texts for a classifier. {raw}".strip(), "not tested here")
    return Claim(
        _LIKELIHOOD,
        f"{'In the same letters, a' if found.texts.letters else 'A'} classifier of characters that was trained on "
        f"labelled texts of both groups, which NLL never sees, tells {found.main} from {found.true} with AUROC "
        f"{interval_text(trivial)}, the model with "
        f"{interval_text(area)}. {raw}",
        beyond_characters(area, trivial),
    )


_LIKELIHOOD = "(Not in the paper.) The likelihood tells more than the characters of such texts do by themselves."


def _as_written(name: str, feature: str, area: Interval) -> str:
    return (
        f"Texts of {name} as they were written are told from the others by {feature} alone with AUROC "
        f"{interval_text(area)}: unless they get the style of text8 first, a filter of characters is enough."
    )


def beyond_characters(model: Interval, trivial: Interval) -> Verdict:
    """Whether the model separates clearly better than counting characters does, clearly worse, or neither."""
    if undecided(model):
        return "undecided"
    if model.low <= 0.5 or stronger(trivial, model).low > 0:
        return "does not hold"
    return "holds" if stronger(model, trivial).low > 0 else "holds in part"


def _variance(found: OodComparisons) -> Claim:
    theirs, own = found.both.precision
    needed = theirs.passes_for(own)
    return Claim(
        "The time-free form gives practical estimates of low variance; 100 Monte Carlo samples are drawn for a text.",
        f"With {theirs.evaluations} samples its standard error is {theirs} a text (root mean square), "
        f"{percent(theirs.noise)} of the variance within groups; ours with {own.evaluations} rows: {own}, "
        f"{percent(own.noise)}. To be as sure as ours it would take {needed.value:,.0f} ± {needed.standard_error:,.0f} "
        f"rows. "
        f"|AUROC - 1/2| of ours is larger by {signed_text(found.gain)}. The claim is taken to hold if masks make up "
        f"at most {percent(NOISY[0])} of that variance, and in part up to {percent(NOISY[1])}.",
        precision_verdict(theirs.noise),
    )


def precision_verdict(noise: float) -> Verdict:
    """Whether estimates show texts or masks."""
    return "holds" if noise <= NOISY[0] else "holds in part" if noise <= NOISY[1] else "does not hold"


def _why(found: OodComparisons) -> str:
    both, (theirs, own) = found.both, found.both.precision
    return (
        f"The mean nll of {found.main} is above that of {found.true} by {signed_text(both.ours.nll.effect)} standard "
        f"deviations of a text by our estimator, and by {signed_text(both.paper.nll.effect)} by the paper's. Both "
        f"estimate the same means, but masks make up {percent(own.noise)} of the variance within groups by ours and "
        f"{percent(theirs.noise)} by the paper's, which blurs what there is to see. How much there is depends on the "
        "model. Responses after the prompt of another place are the same texts as those after their own: only a model "
        "that makes use of the prompt can tell them apart."
    )


AS_WRITTEN = "with capitals and punctuation (public file)"


def _settings(found: OodComparisons, model: str) -> ReportTable:
    shape, texts = found.shape, found.texts
    return settings_table(
        [
            ("model", PAPERS_MODEL, model),
            ("tokens of prompt and response", "128 + 128", f"{shape.prompt} + {shape.response}"),
            ("texts", "500 + 500", f"{len(texts.true)} + {len(texts.foreign)}"),
            ("foreign texts", AUTHORS_TEXT, texts.source),
            ("style of foreign texts", AS_WRITTEN, "in the letters of text8" if texts.letters else AS_WRITTEN),
            ("masks a text", "100 (public code: never all tokens at once)", f"{found.both.samples}, as printed"),
            ("NLL of a mask", "sum over masked tokens (public code: their mean)", "sum over masked tokens"),
        ]
    )


def _groups(found: OodComparisons) -> ReportTable:
    rows = []
    for name, comparison in found.ours.items():
        nll, prompt = comparison.nll, comparison.prompt
        rows.append(
            (
                name,
                found.texts.source if name == found.main else ABOUT[name],
                float(len(comparison.positive.records)),
                interval_text(nll.auroc),
                p_text(nll.p_value),
                None if nll.pairs is None else share_text(nll.pairs.share),
                interval_text(prompt.auroc),
                auroc_text(comparison.trivial),
            )
        )
    pairs = "stranger of a pair"
    return ReportTable(
        f"Groups against {found.true}, by our estimator",
        ("group", "responses", "texts", "AUROC, nll per token", "p", pairs, "prompt does not help", "characters"),
        tuple(rows),
        f"Intervals at 95 %. 'characters' is a classifier of up to three in a row, trained on labelled texts of both "
        f"groups; none where both hold the same responses or texts are few. Pairs share their prompt, those of "
        f"'elsewhere' their response. p below {LEVEL} is called clear.",
    )


def _estimators(found: OodComparisons) -> ReportTable:
    gap = found.both.difference()
    return ReportTable(
        f"Two estimators on the same texts of {found.main} and {found.true}",
        ("estimator", *PRECISION_COLUMNS, "AUROC"),
        tuple((name, *sure.cells, interval_text(one.nll.auroc)) for name, (one, sure) in found.both.named.items()),
        f"Standard errors are root mean squares over texts. Both estimate the same: they differ by {gap.value:+.4f} ± "
        f"{gap.standard_error:.4f} nats per token on average. Ours was also asked without the prompt, for as many rows "
        "again.",
    )


def _histograms(found: OodComparisons) -> list[Figure]:
    both = found.both
    return [
        nll_histogram(
            {found.true: one.negative, found.main: one.positive}, name=name, title=f"NLL by {which}, {rows} rows a text"
        )
        for name, which, one, rows in (
            ("time-free", "the time-free estimator", both.paper, both.samples),
            ("ours", "our estimator", both.ours, both.evaluations),
        )
    ]


def _curves(found: OodComparisons) -> Figure:
    named = {
        f"time-free, {found.both.samples} rows": found.both.paper.curve(),
        f"ours, {found.both.evaluations} rows": found.both.ours.curve(),
    }
    series = {name: list(zip(one.fpr, one.tpr, one.low, one.high, strict=True)) for name, one in named.items()}
    return figures.lines(
        series,
        axes=(f"share of {found.true} flagged", f"share of {found.main} flagged"),
        name="roc",
        title=f"{found.main} against {found.true}: ROC curves",
        caption="Bands hold at 95 % at each point.",
    )


def _comparison(found: OodComparisons) -> Figure:
    areas: dict[str, Interval | None] = {}
    for name, one in found.ours.items():
        areas[f"{name}: nll"] = one.nll.auroc
        areas[f"{name}: prompt does not help"] = one.prompt.auroc
        areas[f"{name}: characters"] = one.trivial
    return auroc_bars(areas, axis=f"AUROC against {found.true}", name="groups")


def _numbers(found: OodComparisons) -> dict[str, Any]:
    paper, ours = found.both.precision
    return {
        "groups": {
            name: {
                "texts": len(one.positive.records),
                "auroc": interval_json(one.nll.auroc),
                "auroc_prompt_does_not_help": interval_json(one.prompt.auroc),
                "auroc_characters": interval_json(one.trivial),
            }
            for name, one in found.ours.items()
        },
        "auroc_time_free": interval_json(found.both.paper.nll.auroc),
        "gain": interval_json(found.gain),
        "precision": found.both.numbers(),
        "rows_to_be_as_sure": dataclasses.asdict(paper.passes_for(ours)),
        "estimators_differ": dataclasses.asdict(found.both.difference()),
        "as_written": None if found.untouched is None else {found.untouched[0]: interval_json(found.untouched[1])},
    }
