"""An audit in sentences, as a report to open, and as files: statistics, figures, the page."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from infodis import figures
from infodis.apps.audit.analysis import LEVEL, Audit, QuestionedRows
from infodis.apps.audit.records import PRIMARY, Group, Record
from infodis.apps.audit.separation import PairedDifferences
from infodis.apps.report.page import write
from infodis.apps.report.scores import FEWEST, tokens_of
from infodis.apps.report.values import Column, Report, ReportFinding, ReportRow, ReportTable, Threshold
from infodis.figures import Figure
from infodis.figures.figure import finite
from infodis.files import result_text
from infodis.result import Interval, Measured

STATISTICS, FIGURES, PAGE = "audit.json", "figures", "report.html"
"""What an audit writes beside its records."""

QUARTER_CENTRES = (0.125, 0.375, 0.625, 0.875)

RATE = 0.05
"""Of false alarms where the slider of the page begins."""

NOISY = 0.2
"""Share of the spread within a group that masks may have before it is worth a sentence."""


def write_audit(found: Audit, directory: Path, provenance: Mapping[str, Any]) -> None:
    """audit.json, figures/ and report.html."""
    result_text(directory / STATISTICS, json.dumps(record(found), indent=2, ensure_ascii=False) + "\n")
    report = audit_report(found, provenance)
    for figure in report.figures:
        figures.save(figure, directory / FIGURES)
    write(report, directory / PAGE)


def audit_report(found: Audit, provenance: Mapping[str, Any]) -> Report:
    """What the audit found, with the rows behind it."""
    a, b = found.groups
    counts = " and ".join(f"{len(group.records):,} rows of {group.name}" for group in found.groups)
    start = _start(found)
    return Report(
        title=found.task.title,
        about=f"{found.task.question.format(a.name, b.name)} {counts}{', in pairs' if found.paired else ''}.",
        findings=tuple(findings(found)),
        tables=(_separations(found), _scores(found), _baselines(found), *_duplicates(found)),
        figures=tuple(_figures(found, start)),
        columns=_columns(found),
        rows=tuple(row for group in _groups(found) for row in _rows(found, group)),
        threshold=Threshold(
            PRIMARY.name, found.negative.name, found.positive.name, above=found.high_is_positive, start=start
        ),
        provenance=provenance,
    )


def _groups(found: Audit) -> list[Group]:
    return [*found.groups, *([] if found.questioned is None else [found.questioned.group])]


def _start(found: Audit) -> float:
    """Where at most a share of `RATE` of the negatives is flagged, about."""
    values = sorted((PRIMARY.of(one) or 0.0 for one in found.negative.records), reverse=found.high_is_positive)
    return round(values[max(0, int(RATE * len(values)) - 1)], 4)


def _separations(found: Audit) -> ReportTable:
    rows = [
        (
            one.score,
            interval_text(one.auroc),
            *(interval_text(rate) for rate in one.tpr.values()),
            f"{one.effect.value:+.2f} [{one.effect.low:+.2f}, {one.effect.high:+.2f}]",
            p_text(one.p_value),
            p_text(adjusted),
        )
        for one, adjusted in zip(found.separations, found.adjusted, strict=True)
    ]
    rates = tuple(f"TPR at {percent(rate)} FPR" for rate in found.main.tpr)
    return ReportTable(
        f"How well scores tell {found.positive.name} from {found.negative.name}",
        ("score", "AUROC", *rates, "effect size", "p", "adjusted p"),
        tuple(rows),
        f"Intervals are at 95 %. p-values by permutation, adjusted for {len(rows)} scores by Holm's method.",
    )


def _scores(found: Audit) -> ReportTable:
    return ReportTable(
        "The scores", ("score", "what it is"), tuple((score.name, score.about) for score in found.scores)
    )


def _baselines(found: Audit) -> ReportTable:
    rows = [(one.score, interval_text(one.auroc)) for one in found.confounds.baselines]
    return ReportTable(
        "Baselines without a model",
        ("baseline", "AUROC"),
        tuple(rows),
        "0.5 is chance. Far from it on either side, the groups differ in a way that is seen without a model.",
    )


def _duplicates(found: Audit) -> list[ReportTable]:
    """Confounds call the negatives A and the positives B."""
    names = {"_within_a": f" within {found.negative.name}", "_within_b": f" within {found.positive.name}"}
    rows = []
    counts = dict(vars(found.confounds.duplicates))
    if found.paired:  # that is what pairs are
        del counts["prompts_across"]
    for name, count in counts.items():
        for ending, words in {**names, "_across": " of one group that the other has"}.items():
            name = name.replace(ending, words)
        rows += [(name, float(count))] if count else []
    return [ReportTable("Repeated texts", ("what", "rows"), tuple(rows))] if rows else []


def _figures(found: Audit, start: float) -> list[Figure]:
    values = {group.name: [PRIMARY.of(one) for one in group.records] for group in _groups(found)}
    enough = sum(len(group.records) for group in found.groups) >= FEWEST
    return [
        *([figures.histogram(values, axis="nats per token", title="What the rows cost", threshold=start)] * enough),
        _roc(found, start),
        _comparison(found),
        _profile(found),
    ]


def _roc(found: Audit, start: float) -> Figure:
    """Of the rule that the page uses: where the difference is reversed, what the task would leave is flagged."""
    main, curve = found.main.auroc, found.curve
    points = list(zip(curve.fpr, curve.tpr, strict=True))
    band = list(zip(curve.fpr, curve.low, curve.high, strict=True))
    area, interval = main.value, (main.low, main.high)
    if found.reversed:
        points = [(1 - fpr, 1 - tpr) for fpr, tpr in reversed(points)]
        band = [(1 - fpr, 1 - high, 1 - low) for fpr, low, high in reversed(band)]
        area, interval = 1 - area, (1 - main.high, 1 - main.low)
    return figures.roc(points, band, area=area, interval=interval, operating=_operating(found, start))


def _operating(found: Audit, start: float) -> tuple[float, float]:
    """The shares of negatives and positives that the threshold flags."""

    def flagged(group: Group) -> float:
        sign = 1 if found.high_is_positive else -1
        hits = [sign * ((PRIMARY.of(one) or 0.0) - start) >= 0 for one in group.records]
        return sum(hits) / len(hits)

    return flagged(found.negative), flagged(found.positive)


def _comparison(found: Audit) -> Figure:
    """AUROCs of the model's scores beside those of baselines without a model."""
    named = [(one.score, one.auroc, "model") for one in found.separations]
    named += [(one.score, one.auroc, "no model") for one in found.confounds.baselines]
    return figures.bars(
        {name: (auroc.value, auroc.low, auroc.high) for name, auroc, _ in named},
        axis="AUROC",
        kinds={name: kind for name, _, kind in named},
        reference=0.5,
        title="The model and baselines without a model",
        caption="Left of 0.5 the difference goes the other way.",
    )


def _profile(found: Audit) -> Figure:
    """Nats per masked token by the share of tokens hidden, means over rows with two standard errors."""
    groups = {}
    for group in found.groups:
        points = []
        for quarter, centre in enumerate(QUARTER_CENTRES):
            nats = [nats for one in group.records if (nats := one["nll_by_mask_rate"][quarter]) is not None]
            if len(nats) > 1:
                mean = Measured.mean(nats)
                half = 2 * mean.standard_error
                points.append((centre, mean.value, mean.value - half, mean.value + half))
        groups[group.name] = points
    return figures.lines(
        groups,
        name="profile",
        title="Information profile",
        axes=("share of the tokens that is hidden", "nats per hidden token"),
        caption="Means over rows, with two standard errors.",
    )


def _columns(found: Audit) -> tuple[Column, ...]:
    scores = [Column(score.name, score.name, score.about) for score in found.scores]
    certainty = Column("standard error", "± masks", "Standard error of nll per token, from the masks drawn.")
    tokens = Column("tokens", "tokens", "Tokens of the response.", digits=0)
    chance = f"Chance that a row of {found.groups[1].name} looks as familiar."
    false = "Share of false discoveries if this row and all clearer ones are called members."
    questioned = [Column("p", "p", chance, digits=4), Column("q", "q", false, digits=4)]
    return (scores[0], certainty, tokens, *(questioned if found.questioned else []), *scores[1:])


def _rows(found: Audit, group: Group) -> list[ReportRow]:
    more: list[dict[str, float | None]] = [{} for _ in group.records]
    if found.questioned is not None and group is found.questioned.group:
        more = [{"p": p, "q": q} for _, p, q in found.questioned.rows]
    return [_row(found, group.name, one, extra) for one, extra in zip(group.records, more, strict=True)]


def _row(found: Audit, group: str, one: Record, more: Mapping[str, float | None]) -> ReportRow:
    values: dict[str, float | None] = {score.name: score.of(one) for score in found.scores}
    values |= {"standard error": one["standard_error"] / one["tokens"], "tokens": float(one["tokens"]), **more}
    return ReportRow(one["id"], group, one.get("prompt", ""), tokens_of(one), one["text"], values)


def record(found: Audit) -> dict[str, Any]:
    """All statistics as plain values, for a JSON file."""
    return finite(
        {
            "task": found.task.name,
            "groups": [
                {"name": g.name, "rows": len(g.records), "impossible": g.impossible, "rejected": g.rejected}
                for g in found.groups
            ],
            "positive": found.positive.name,
            "paired": found.paired,
            "seed": found.seed,
            "findings": [finding.text for finding in findings(found)],
            "separations": [
                {**dataclasses.asdict(one), "adjusted_p": p, "about": score.about}
                for one, p, score in zip(found.separations, found.adjusted, found.scores, strict=True)
            ],
            "confounds": dataclasses.asdict(found.confounds),
            "share_of_spread_from_masks": found.noise,
            "questioned": None if found.questioned is None else _questioned(found.questioned),
        }
    )


def _questioned(found: QuestionedRows) -> dict[str, Any]:
    return {
        "score": found.score.name,
        "called_members": found.called,
        "separation": dataclasses.asdict(found.separation),
        "rows": [{"id": id, "p": p, "q": q} for id, p, q in found.rows],
    }


def findings(found: Audit) -> list[ReportFinding]:
    """The audit in sentences. What makes the rest doubtful comes first."""
    return [
        *(ReportFinding(sentence, warning=True) for sentence in found.confounds.findings(found.main)),
        ReportFinding(_main(found)),
        *([ReportFinding(_reversed(found))] if found.reversed else []),
        *([] if found.main.pairs is None else [ReportFinding(_paired(found, found.main.pairs))]),
        *map(ReportFinding, _other_scores(found)),
        *([] if found.questioned is None else _about_questioned(found.questioned, found.groups[1])),
        *_noise(found),
        *_left_out(found),
    ]


def _noise(found: Audit) -> list[ReportFinding]:
    if found.noise <= NOISY:
        return []
    share = percent(found.noise)
    text = f"{share} of the spread within groups is noise of the masks: more --evaluations would sharpen it."
    return [ReportFinding(text, warning=True)]


def _main(found: Audit) -> str:
    positive, negative, main = found.positive.name, found.negative.name, found.main
    auroc, p = interval_text(main.auroc), p_text(main.p_value)
    if main.auroc.low <= 0.5 <= main.auroc.high:
        return f"By nll per token the model does not tell {positive} from {negative}: AUROC {auroc}, p = {p}."
    strange = (main.auroc.value > 0.5) == (found.task.sign == 1)
    word = "stranger" if strange else "more familiar"
    rate, caught = max(main.tpr.items())
    text = f"The model finds {positive} {word} than {negative}: AUROC {auroc} by nll per token, p = {p}."
    if found.reversed:
        return text
    return f"{text} A threshold that flags {percent(rate)} of {negative} flags {share_text(caught)} of {positive}."


def _reversed(found: Audit) -> str:
    """What an AUROC below 0.5 means, and which rule the page uses for it."""
    start, positive = _start(found), found.positive.name
    low, side = ("higher", "above") if found.high_is_positive else ("lower", "below")
    alarms, caught = (percent(share) for share in _operating(found, start))
    return (
        f"AUROC below 0.5: the difference goes the other way than was asked. So the rule is reversed here, {low} nll "
        f"per token = {positive}: rows at or {side} {start:.3f} are flagged, {caught} of {positive} and {alarms} of "
        f"{found.negative.name}. The ROC curve is that of this rule."
    )


def _paired(found: Audit, pairs: PairedDifferences) -> str:
    word = "stranger" if found.task.sign == 1 else "more familiar"
    return (
        f"Rows come in {pairs.count} pairs of one prompt: in {share_text(pairs.share)} of them the one of "
        f"{found.positive.name} is the {word} one."
    )


def _other_scores(found: Audit) -> list[str]:
    """The best of the other scores, if it is clearly more telling than the primary one."""
    others = list(zip(found.separations, found.adjusted, strict=True))[1:]
    if not others:
        return []
    best, p_value = max(others, key=lambda one: abs(one[0].auroc.value - 0.5))
    if p_value > LEVEL or abs(best.auroc.value - 0.5) <= abs(found.main.auroc.value - 0.5):
        return []
    return [
        f"Of the other scores, {best.score!r} separates most: AUROC {interval_text(best.auroc)}, adjusted p = "
        f"{p_text(p_value)}. It is the best of {len(others)}, so expect less on fresh rows."
    ]


def _about_questioned(rows: QuestionedRows, nonmembers: Group) -> list[ReportFinding]:
    separation, name, known = rows.separation, nonmembers.name, len(nonmembers.records)
    differ = "look" if separation.p_value <= LEVEL else "do not look"
    sentences = [
        ReportFinding(
            f"{rows.called} of the {len(rows.group.records)} rows in question look like members at a false discovery "
            f"rate of {percent(LEVEL)}, by {rows.score.name!r} against {known} rows of {name}."
        ),
        ReportFinding(
            f"Taken together they {differ} more familiar or more strange than {name}: AUROC "
            f"{interval_text(separation.auroc)}, p = {p_text(separation.p_value)}."
        ),
    ]
    if known < 1 / LEVEL:
        sentences.append(ReportFinding(f"With {known} rows of {name} no p-value can be below {LEVEL}.", warning=True))
    return sentences


def _left_out(found: Audit) -> list[ReportFinding]:
    return [
        ReportFinding(f"{count:,} rows of {group.name} {why} and are left out.", warning=True)
        for group in found.groups
        for count, why in ((group.rejected, "could not be read"), (group.impossible, "have probability zero"))
        if count
    ]


def interval_text(one: Interval) -> str:
    """A number with its interval."""
    return f"{one.value:.3f} [{one.low:.3f}, {one.high:.3f}]"


def share_text(one: Interval) -> str:
    """A share with its interval, in per cent."""
    return f"{100 * one.value:.1f} % [{100 * one.low:.1f}, {100 * one.high:.1f}]"


def percent(share: float) -> str:
    """A share, in per cent."""
    return f"{100 * share:.3g} %"


def p_text(p_value: float) -> str:
    """A p-value to as many digits as matter."""
    return f"{p_value:.4f}" if p_value >= 0.001 else f"{p_value:.1g}"
