"""Figure 3: does the likelihood given the prompt tell true continuations of text8 from foreign ones?"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from infodis import figures
from infodis.apps.audit.analysis import LEVEL, check_extra
from infodis.apps.audit.confounds import check
from infodis.apps.audit.records import PRIMARY, Group, by_prompt, by_text
from infodis.apps.audit.reporting import interval_text, p_text, percent, share_text
from infodis.apps.audit.separation import Separation, difference, stronger
from infodis.apps.report.values import ReportTable
from infodis.apps.reproduce.experiment import Bench, Claim, Outcome, Verdict
from infodis.apps.reproduce.groups import (
    Cut,
    Row,
    Shape,
    continued,
    elsewhere,
    foreign,
    shuffled,
    thinned,
)
from infodis.apps.reproduce.material import GPT2, HELD_OUT, PAIRS, TO_TRAIN_ON
from infodis.apps.reproduce.paragraphs import ENCYCLOPEDIA, LETTERS
from infodis.apps.reproduce.texts import (
    Precision,
    Versus,
    best_without_a_model,
    looked_at,
    mean_difference,
    measured,
    ours,
    plain,
    separated,
    the_papers,
    told,
    undecided,
)
from infodis.figures import Figure
from infodis.files import atomic_text
from infodis.models.tokenizers import Characters, Tokenizer, text8_style
from infodis.result import Interval
from infodis.train.config import Config, DataConfig, ModelConfig, OptimConfig, RunConfig

MODEL = "text8-tiny"
PAPERS_MODEL = ModelConfig(length=256, size="small")
PAPERS_OPTIM = OptimConfig(steps=7_500, batch=32, learning_rate=3e-4)


@dataclasses.dataclass(frozen=True)
class Effort:
    """How much is scored, and how often. Forward rows: 2 main (samples + 2 evaluations) + 2 evaluations others."""

    shape: Shape
    main: int
    """Texts of text8 and of the main foreign group, each."""
    others: int
    """Texts of each other group, at most."""
    samples: int
    """Masks of a text by the paper's estimator."""
    evaluations: int
    """Masks of a text by ours, with the prompt and again without it."""


EFFORT = {
    "smoke": Effort(Shape(64, 64), main=10, others=6, samples=4, evaluations=4),
    "laptop": Effort(Shape(128, 128), main=500, others=150, samples=100, evaluations=16),
    "full": Effort(Shape(128, 128), main=500, others=500, samples=100, evaluations=64),
}

ABOUT = {
    "gpt": "what GPT-4 wrote elsewhere, after prompts of text8",
    "letters": "private letters after prompts of an encyclopedia",
    "shuffled": "the true responses, words in random order",
    "elsewhere": "true responses of other windows",
    "gpt-own": "GPT-4's continuations of news, stories and abstracts",
    "human-own": "the human continuations of the same",
}

NOISY = (0.2, 0.5)
"""Share of the spread of a group that masks may make up: up to the first an estimate is called sharp, beyond the
second it is mostly noise."""


@dataclasses.dataclass(frozen=True)
class Texts:
    """The rows of all groups: the true ones, the main foreign ones, and others."""

    names: tuple[str, str]
    """What the true and the main foreign ones are called."""
    true: list[Row]
    foreign: list[Row]
    others: dict[str, list[Row]]
    untouched: list[str]
    """Foreign texts as they were written, before they got the style of text8: one of each document."""


def gathered(bench: Bench, effort: Effort, tokenizer: Tokenizer) -> Texts:
    """Built-in paragraphs for a smoke run, files otherwise; all in the letters of text8."""
    cut = Cut(effort.shape, None if isinstance(tokenizer, Characters) else tokenizer)
    own: dict[str, list[Row]] = {}
    if bench.size == "smoke":
        names, text = ("encyclopedia", "letters"), text8_style(ENCYCLOPEDIA)
        documents = {f"{n}": one for n, one in enumerate(LETTERS)}
    else:
        names, text, pairs = ("text8", "gpt"), HELD_OUT.get(bench), PAIRS.get(bench)
        documents = {str(record["id"]): record["y_llm"] for record in pairs}
        fields = {"gpt-own": "y_llm", "human-own": "y_human"}
        own = {name: list(continued(pairs, field, cut))[: effort.others] for name, field in fields.items()}
    true = cut.windows(text, effort.main)
    some = thinned(true, effort.others)
    return Texts(
        names,
        true,
        foreign(true, {name: text8_style(one) for name, one in documents.items()}, cut),
        {"shuffled": list(shuffled(some)), "elsewhere": list(elsewhere(some)), **own},
        [found for one in documents.values() if (found := cut.start(one.strip())) is not None],
    )


@dataclasses.dataclass(frozen=True, eq=False)
class Findings:
    """The main comparison by both estimators, the others by ours, and what capitals and punctuation alone would do."""

    effort: Effort
    texts: Texts
    papers: Versus
    ours: Versus
    others: Mapping[str, Versus]
    untouched: tuple[str, Interval] | None

    @property
    def true(self) -> str:
        return self.texts.names[0]

    @property
    def main(self) -> str:
        return self.texts.names[1]

    @property
    def precision(self) -> tuple[Precision, Precision]:
        return (
            Precision.of(self.papers, self.effort.samples),
            Precision.of(self.ours, self.effort.evaluations),
        )

    @property
    def gain(self) -> Interval:
        """|AUROC - 1/2| by our estimator minus that by the paper's."""
        both = self.ours.values(), self.papers.values()
        return difference(*both, paired=self.ours.paired, clusters=self.ours.clusters)


class OodText8:
    """True and foreign continuations of text8."""

    name = "ood-text8"
    title = "True continuations of text8 against foreign ones"
    paper = "Figure 3"
    own_model = False

    def run(self, bench: Bench) -> Outcome:
        check_extra()
        effort = EFFORT[bench.size]
        the_papers_own = bench.size == "full" and bench.model is None
        spec = bench.model_spec(MODEL, as_in_the_paper(bench) if the_papers_own else MODEL)
        texts = gathered(bench, effort, spec.load().tokenizer)
        papers, own = the_papers(spec, effort.samples, bench.seed), ours(spec, effort.evaluations, bench.seed)
        rows = dict(zip(texts.names, (texts.true, texts.foreign), strict=True))
        by_theirs = [measured(bench, f"{name}-time-free", some, papers) for name, some in rows.items()]
        by_ours = {name: measured(bench, name, some, own) for name, some in {**rows, **texts.others}.items()}
        return outcome(_found(bench, effort, texts, by_theirs, by_ours), spec.name)


def as_in_the_paper(bench: Bench, model: ModelConfig = PAPERS_MODEL, optim: OptimConfig = PAPERS_OPTIM) -> str:
    """Train the paper's network on text8 in GPT-2's tokens, from where an earlier run left it; returns where it is."""
    bench.directory.mkdir(parents=True, exist_ok=True)
    for name, material in (("train.txt", TO_TRAIN_ON), ("valid.txt", HELD_OUT), ("tokenizer.json", GPT2)):
        if not (bench.directory / name).exists():
            atomic_text(bench.directory / name, material.get(bench))
    run = RunConfig(bench.seed, bench.device, precision="float32" if bench.device == "cpu" else "bfloat16")
    config = Config(model, DataConfig("train.txt", "valid.txt", "tokenizer.json"), optim, run)
    return str(bench.trained("network", config))


def _found(bench: Bench, effort: Effort, texts: Texts, theirs: list[Group], own: Mapping[str, Group]) -> Findings:
    bench.tell("comparing groups", 0, 1)
    sides = [[row["response"] for row in thinned(texts.true, len(texts.untouched))], texts.untouched]
    raw = check(*map(looked_at, sides), names=texts.names, seed=bench.seed)
    return Findings(
        effort,
        texts,
        Versus.of(*theirs, seed=bench.seed),
        Versus.of(*(own[name] for name in texts.names), seed=bench.seed),
        {
            name: Versus.of(
                own[texts.names[0]], own[name], seed=bench.seed, match=by_text if name == "elsewhere" else by_prompt
            )
            for name in texts.others
        },
        best_without_a_model(raw),
    )


def outcome(found: Findings, model: str) -> Outcome:
    """Claims, tables and figures of what was measured."""
    effort, shape = found.effort, found.effort.shape
    return Outcome(
        f"{model}, prompts of {shape.prompt} tokens and responses of {shape.response}, all in the letters of text8. "
        f"{len(found.texts.true)} true continuations, {len(found.texts.foreign)} foreign ones after the same prompts "
        f"({ABOUT[found.main]}): by the paper's time-free estimator with {effort.samples} masks a text, and by ours "
        f"with {effort.evaluations}, which meets the same masks again without the prompt. Other groups by ours alone.",
        (_separation(found), _unrelated(found), _model_or_letters(found), _variance(found)),
        (_groups(found), _estimators(found)),
        (*_histograms(found), _curves(found), _comparison(found)),
        _numbers(found),
    )


def _separation(found: Findings) -> Claim:
    theirs, own = found.papers.nll, found.ours.nll
    return Claim(
        "The histogram of NLLs shows a clear separation: GPT-4's responses have much higher NLLs than original "
        "continuations, so that the estimator reliably detects what is out of distribution.",
        f"{found.main} against {found.true}: AUROC {interval_text(theirs.auroc)} by the paper's estimator, "
        f"{interval_text(own.auroc)} by ours; p = {p_text(theirs.p_value)} and {p_text(own.p_value)}.",
        separated(theirs.auroc),
    )


def _unrelated(found: Findings) -> Claim:
    versus = found.others["elsewhere"]
    by_nll, by_help = versus.nll, versus.prompt
    return Claim(
        "Conditional likelihoods separate sequences of the data from semantically unrelated continuations.",
        f"Responses after the prompt of another place are told from the same responses after their own by NLL with "
        f"AUROC {interval_text(by_nll.auroc)}{_by_pairs(by_nll)}; by how little the prompt helps, NLL with it minus "
        f"NLL without it, with {interval_text(by_help.auroc)}.",
        separated(by_nll.auroc),
    )


def _by_pairs(found: Separation) -> str:
    if found.pairs is None:
        return ""
    return f", and cost {_signed(found.pairs.difference)} nats per token more (p = {p_text(found.p_value)})"


def _model_or_letters(found: Findings) -> Claim:
    area, trivial = found.ours.nll.auroc, found.ours.trivial
    raw = "" if found.untouched is None else _told_of_raw(found.main, *found.untouched)
    if trivial is None:
        return Claim(_LIKELIHOOD, f"There are too few texts for a classifier. {raw}".strip(), "not tested here")
    return Claim(
        _LIKELIHOOD,
        f"In the same letters, a classifier of characters that was trained on labelled texts of both groups, which "
        f"NLL never sees, tells {found.main} from {found.true} with AUROC {interval_text(trivial)}, the model with "
        f"{interval_text(area)}. {raw}",
        beyond_letters(area, trivial),
    )


_LIKELIHOOD = "(Not in the paper.) The likelihood tells more than the characters of such texts do by themselves."


def _told_of_raw(name: str, feature: str, area: Interval) -> str:
    return (
        f"Texts of {name} as they were written are told from the others by {feature} alone with AUROC "
        f"{interval_text(area)}: unless they get the style of text8 first, a filter of characters is enough. The paper "
        "does not say that they did."
    )


def beyond_letters(model: Interval, trivial: Interval) -> Verdict:
    """Whether the model separates clearly better than counting characters does, clearly worse, or neither."""
    if undecided(model):
        return "undecided"
    if model.low <= 0.5 or stronger(trivial, model).low > 0:
        return "does not hold"
    return "holds" if stronger(model, trivial).low > 0 else "holds in part"


def _variance(found: Findings) -> Claim:
    theirs, own = found.precision
    return Claim(
        "The time-free form gives practical estimates of low variance; 100 Monte Carlo samples are drawn for a text.",
        f"With {theirs.evaluations} samples its standard error is {theirs.told} a text (root mean square), "
        f"{percent(theirs.noise)} of the variance within groups; ours with {own.evaluations} rows: {own.told}, "
        f"{percent(own.noise)}. To be as sure as ours it would take {_about(*theirs.rows_for(own))} rows. "
        f"|AUROC - 1/2| of ours is larger by {_signed(found.gain)}. The claim is taken to hold if masks make up "
        f"at most {percent(NOISY[0])} of that variance, and in part up to {percent(NOISY[1])}.",
        sharp(theirs.noise),
    )


def sharp(noise: float) -> Verdict:
    """Whether estimates show texts or masks."""
    return "holds" if noise <= NOISY[0] else "holds in part" if noise <= NOISY[1] else "does not hold"


def _about(rows: float, error: float) -> str:
    return f"{rows:,.0f} ± {error:,.0f}"


def _signed(one: Interval) -> str:
    return f"{one.value:+.3f} [{one.low:+.3f}, {one.high:+.3f}]"


def _all(found: Findings) -> dict[str, Versus]:
    return {found.main: found.ours, **found.others}


def _groups(found: Findings) -> ReportTable:
    rows = []
    for name, versus in _all(found).items():
        nll, prompt = versus.nll, versus.prompt
        rows.append(
            (
                name,
                ABOUT[name],
                float(len(versus.positive.records)),
                interval_text(nll.auroc),
                p_text(nll.p_value),
                None if nll.pairs is None else share_text(nll.pairs.share),
                interval_text(prompt.auroc),
                told(versus.trivial),
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


def _estimators(found: Findings) -> ReportTable:
    theirs, own = found.precision
    gap, error = mean_difference(found.papers, found.ours)
    named = (("time-free, as printed", theirs, found.papers), ("ours: tiled, with a control", own, found.ours))
    return ReportTable(
        f"Two estimators on the same texts of {found.main} and {found.true}",
        ("estimator", "rows a text", "standard error a text", "noise, share of variance", "AUROC"),
        tuple(
            (name, float(one.evaluations), one.told, percent(one.noise), interval_text(versus.nll.auroc))
            for name, one, versus in named
        ),
        f"Standard errors are root mean squares over texts. Both estimate the same: they differ by {gap:+.4f} ± "
        f"{error:.4f} nats per token on average. Ours was also asked without the prompt, for as many rows again.",
    )


def _histograms(found: Findings) -> list[Figure]:
    both = (("time-free", found.papers, found.effort.samples), ("ours", found.ours, found.effort.evaluations))
    made = []
    for name, versus, rows in both:
        groups = {
            one.name.removesuffix("-time-free"): [PRIMARY.of(record) for record in one.records]
            for one in (versus.negative, versus.positive)
        }
        title = f"NLL by {'the time-free estimator' if name == 'time-free' else 'our estimator'}, {rows} rows a text"
        made.append(figures.histogram(groups, axis="nats per token", name=f"histogram-{name}", title=title))
    return made


def _curves(found: Findings) -> Figure:
    named = {
        f"time-free, {found.effort.samples} rows": found.papers.curve(),
        f"ours, {found.effort.evaluations} rows": found.ours.curve(),
    }
    series = {name: list(zip(one.fpr, one.tpr, one.low, one.high, strict=True)) for name, one in named.items()}
    return figures.lines(
        series,
        axes=(f"share of {found.true} flagged", f"share of {found.main} flagged"),
        name="roc",
        title=f"{found.main} against {found.true}: ROC curves",
        caption="Bands hold at 95 % at each point.",
    )


def _comparison(found: Findings) -> Figure:
    bars, kinds = {}, {}
    for name, versus in _all(found).items():
        areas = {
            "nll": versus.nll.auroc,
            "prompt does not help": versus.prompt.auroc,
            "characters": versus.trivial,
        }
        for score, area in areas.items():
            if area is not None:
                bars[f"{name}: {score}"] = (area.value, area.low, area.high)
                kinds[f"{name}: {score}"] = "trivial" if score == "characters" else "model"
    return figures.bars(
        bars,
        axis=f"AUROC against {found.true}",
        kinds=kinds,
        reference=0.5,
        name="groups",
        title="The model and baselines without a model",
    )


def _numbers(found: Findings) -> dict[str, Any]:
    theirs, own = found.precision
    gap, error = mean_difference(found.papers, found.ours)
    return {
        "groups": {
            name: {
                "texts": len(versus.positive.records),
                "auroc": plain(versus.nll.auroc),
                "auroc_prompt_does_not_help": plain(versus.prompt.auroc),
                "auroc_characters": plain(versus.trivial),
            }
            for name, versus in _all(found).items()
        },
        "auroc_time_free": plain(found.papers.nll.auroc),
        "gain": plain(found.gain),
        "precision": {"time_free": dataclasses.asdict(theirs), "ours": dataclasses.asdict(own)},
        "rows_to_be_as_sure": dict(zip(("value", "standard_error"), theirs.rows_for(own), strict=True)),
        "estimators_differ": {"value": gap, "standard_error": error},
        "as_written": None if found.untouched is None else {found.untouched[0]: plain(found.untouched[1])},
    }
