"""An audit as a report to open, and as files: statistics, figures, the page."""

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from infodis import figures
from infodis.apps.audit.analysis import Audit, Suspects, Values
from infodis.apps.audit.groups import Group
from infodis.apps.audit.scores import PRIMARY, Record
from infodis.apps.audit.wording import findings, p_text, percent
from infodis.apps.report.page import write
from infodis.apps.report.scores import tokens_of
from infodis.apps.report.values import Column, Finding, Report, Row, Table, Threshold
from infodis.figures import Figure
from infodis.files import result_text

STATISTICS, FIGURES, PAGE = "audit.json", "figures", "report.html"
"""What an audit writes beside its records."""

QUARTER_CENTRES = (0.125, 0.375, 0.625, 0.875)

RATE = 0.05
"""Of false alarms where the slider of the page begins."""


def write_audit(found: Audit, directory: Path, provenance: Mapping[str, Any]) -> None:
    """audit.json, figures/ and report.html."""
    told = json.dumps(record(found), indent=2, ensure_ascii=False) + "\n"
    result_text(directory / STATISTICS, told)
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
        findings=tuple(Finding(sentence, warning) for sentence, warning in findings(found)),
        tables=(_separations(found), _scores(found), _trivial(found), *_duplicates(found)),
        figures=tuple(_figures(found, start)),
        columns=_columns(found),
        rows=tuple(row for group in _groups(found) for row in _rows(found, group)),
        threshold=Threshold(
            PRIMARY.name, found.negative.name, found.positive.name, above=found.task.sign == 1, start=start
        ),
        provenance=provenance,
    )


def _groups(found: Audit) -> list[Group]:
    return [*found.groups, *([] if found.suspects is None else [found.suspects.group])]


def _start(found: Audit) -> float:
    """Where at most a share of `RATE` of the negatives is flagged, about."""
    values = sorted((PRIMARY.of(one) or 0.0 for one in found.negative.records), reverse=found.task.sign == 1)
    return round(values[max(0, int(RATE * len(values)) - 1)], 4)


def _separations(found: Audit) -> Table:
    rows = [
        (
            one.score,
            _interval(one.auroc),
            *(_interval(rate) for rate in one.tpr.values()),
            _interval(one.effect, signed=True),
            p_text(one.p_value),
            p_text(adjusted),
        )
        for one, adjusted in zip(found.separations, found.adjusted, strict=True)
    ]
    rates = tuple(f"TPR at {percent(rate)} FPR" for rate in found.main.tpr)
    return Table(
        f"How well scores tell {found.positive.name} from {found.negative.name}",
        ("score", "AUROC", *rates, "effect size", "p", "adjusted p"),
        tuple(rows),
        f"Intervals are at 95 %. p-values by permutation, adjusted for {len(rows)} scores by Holm's method.",
    )


def _scores(found: Audit) -> Table:
    return Table("The scores", ("score", "what it is"), tuple((score.name, score.about) for score in found.scores))


def _trivial(found: Audit) -> Table:
    ngrams = found.confounds.ngrams
    baseline = [] if ngrams is None else [("characters counted (n-gram classifier)", _interval(ngrams.auroc))]
    rows = [*baseline, *((one.score, _interval(one.auroc)) for one in found.confounds.features)]
    return Table(
        "What tells them apart without a model",
        ("baseline", "AUROC"),
        tuple(rows),
        "0.5 is nothing; far from it on either side is a difference that the model need not have anything to do with.",
    )


def _duplicates(found: Audit) -> list[Table]:
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
    return [Table("Repeated texts", ("what", "rows"), tuple(rows))] if rows else []


def _figures(found: Audit, start: float) -> list[Figure]:
    values = {group.name: [PRIMARY.of(one) for one in group.records] for group in _groups(found)}
    main, curve = found.main.auroc, found.curve
    points = list(zip(curve.fpr, curve.tpr, strict=True))
    band = list(zip(curve.fpr, curve.low, curve.high, strict=True))
    area = (main.low, main.high)
    return [
        figures.histogram(values, axis="nats per token", title="What the rows cost", threshold=start),
        figures.roc(points, band, area=main.value, interval=area, operating=_operating(found, start)),
        _comparison(found),
        _profile(found),
    ]


def _operating(found: Audit, start: float) -> tuple[float, float]:
    sign = found.task.sign
    shares = []
    for group in (found.negative, found.positive):
        flagged = [sign * ((PRIMARY.of(one) or 0.0) - start) >= 0 for one in group.records]
        shares.append(sum(flagged) / len(flagged))
    return shares[0], shares[1]


def _comparison(found: Audit) -> Figure:
    """AUROCs of scores beside those of trivial baselines."""
    ngrams = found.confounds.ngrams
    named = [(one.score, one.auroc, "model") for one in found.separations]
    named += [] if ngrams is None else [("characters counted", ngrams.auroc, "trivial")]
    named += [(one.score, one.auroc, "trivial") for one in found.confounds.features]
    return figures.bars(
        {name: (auroc.value, auroc.low, auroc.high) for name, auroc, _ in named},
        axis="AUROC",
        kinds={name: kind for name, _, kind in named},
        reference=0.5,
        title="The model beside what needs no model",
        caption="Left of 0.5 the difference goes the other way.",
    )


def _profile(found: Audit) -> Figure:
    """Nats per masked token by the share of tokens hidden, means over rows with two standard errors."""
    groups = {}
    for group in found.groups:
        points = []
        for quarter, centre in enumerate(QUARTER_CENTRES):
            nats = [one["quarters"][quarter] for one in group.records if one["quarters"][quarter] is not None]
            if len(nats) > 1:
                mean = math.fsum(nats) / len(nats)
                error = math.sqrt(math.fsum((x - mean) ** 2 for x in nats) / (len(nats) - 1) / len(nats))
                points.append((centre, mean, mean - 2 * error, mean + 2 * error))
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
    suspects = (
        []
        if found.suspects is None
        else [
            Column("p", "p", f"Chance that a row of {found.groups[1].name} looks as familiar.", digits=4),
            Column(
                "q", "q", "Share of false discoveries if this row and all clearer ones are called members.", digits=4
            ),
        ]
    )
    return (scores[0], certainty, tokens, *suspects, *scores[1:])


def _rows(found: Audit, group: Group) -> list[Row]:
    more: list[dict[str, float | None]] = [{} for _ in group.records]
    if found.suspects is not None and group is found.suspects.group:
        more = [{"p": p, "q": q} for p, q in _pairs(found.suspects.p_values, found.suspects.q_values)]
    return [_row(found, group.name, one, extra) for one, extra in zip(group.records, more, strict=True)]


def _pairs(p_values: Values, q_values: Values) -> list[tuple[float, float]]:
    return list(zip(p_values.tolist(), q_values.tolist(), strict=True))


def _row(found: Audit, group: str, one: Record, more: Mapping[str, float | None]) -> Row:
    values: dict[str, float | None] = {score.name: score.of(one) for score in found.scores}
    values |= {"standard error": one["standard_error"] / one["tokens"], "tokens": float(one["tokens"]), **more}
    return Row(one["id"], group, one.get("prompt", ""), tokens_of(one), one["text"], values)


def _interval(one: Any, *, signed: bool = False) -> str:
    shape = "+.2f" if signed else ".3f"
    return f"{one.value:{shape}} [{one.low:{shape}}, {one.high:{shape}}]"


def record(found: Audit) -> dict[str, Any]:
    """All statistics as plain values, for a JSON file."""
    return _plain(
        {
            "task": found.task.name,
            "groups": [
                {"name": g.name, "rows": len(g.records), "impossible": g.impossible, "rejected": g.rejected}
                for g in found.groups
            ],
            "positive": found.positive.name,
            "paired": found.paired,
            "seed": found.seed,
            "findings": [sentence for sentence, _ in findings(found)],
            "separations": [
                {**dataclasses.asdict(one), "adjusted_p": p, "about": score.about}
                for one, p, score in zip(found.separations, found.adjusted, found.scores, strict=True)
            ],
            "confounds": dataclasses.asdict(found.confounds),
            "share_of_spread_from_masks": found.noise,
            "questioned": None if found.suspects is None else _questioned(found.suspects),
        }
    )


def _questioned(suspects: Suspects) -> dict[str, Any]:
    ids = [one["id"] for one in suspects.group.records]
    rows = zip(ids, *(values.tolist() for values in (suspects.p_values, suspects.q_values)), strict=True)
    return {
        "score": suspects.score.name,
        "called_members": suspects.clear,
        "separation": dataclasses.asdict(suspects.separation),
        "rows": [{"id": id, "p": p, "q": q} for id, p, q in rows],
    }


def _plain(value: Any) -> Any:
    """As JSON has it: names are texts, infinite numbers are null."""
    if isinstance(value, dict):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
