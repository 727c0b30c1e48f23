"""What an audit found, in sentences. What makes the rest doubtful comes first."""

from infodis.apps.audit.analysis import LEVEL, Audit, Suspects
from infodis.result import Interval

NOISY = 0.2
"""Share of the spread within a group that masks may have before it is worth a sentence."""


def findings(found: Audit) -> list[tuple[str, bool]]:
    """Sentences, and whether each is a warning. What makes the rest doubtful comes first."""
    told = [(sentence, True) for sentence in found.confounds.findings(found.main)]
    told.append((_main(found), False))
    if found.main.pairs is not None:
        told.append((_pairs(found), False))
    told += [(sentence, False) for sentence in _other_scores(found)]
    if found.suspects is not None:
        told += _questioned(found.suspects, found)
    if found.noise > NOISY:
        share = percent(found.noise)
        told.append(
            (f"{share} of the spread within groups is noise of the masks: more --evaluations would sharpen it.", True)
        )
    return told + _left_out(found)


def _main(found: Audit) -> str:
    positive, negative, main = found.positive.name, found.negative.name, found.main
    auroc, p = interval_text(main.auroc), p_text(main.p_value)
    if main.auroc.low <= 0.5 <= main.auroc.high:
        return f"By nll per token the model does not tell {positive} from {negative}: AUROC {auroc}, p = {p}."
    strange = (main.auroc.value > 0.5) == (found.task.sign == 1)
    word = "stranger" if strange else "more familiar"
    rate, caught = max(main.tpr.items())
    return (
        f"The model finds {positive} {word} than {negative}: AUROC {auroc} by nll per token, p = {p}. "
        f"A threshold that flags {percent(rate)} of {negative} flags {share_text(caught)} of {positive}."
    )


def _pairs(found: Audit) -> str:
    pairs = found.main.pairs
    assert pairs is not None
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


def _questioned(suspects: Suspects, found: Audit) -> list[tuple[str, bool]]:
    rows, fresh = len(suspects.group.records), found.groups[1]
    told = [
        (
            f"{suspects.clear} of the {rows} rows in question look like members at a false discovery rate of "
            f"{percent(LEVEL)}, by {suspects.score.name!r} against {len(fresh.records)} rows of {fresh.name}.",
            False,
        ),
        (
            f"Taken together they {'look' if suspects.separation.p_value <= LEVEL else 'do not look'} more familiar or "
            f"more strange than {fresh.name}: AUROC {interval_text(suspects.separation.auroc)}, p = "
            f"{p_text(suspects.separation.p_value)}.",
            False,
        ),
    ]
    if len(fresh.records) < 1 / LEVEL:
        told.append((f"With {len(fresh.records)} rows of {fresh.name} no p-value can be below {LEVEL}.", True))
    return told


def _left_out(found: Audit) -> list[tuple[str, bool]]:
    told = []
    for group in found.groups:
        for count, why in ((group.rejected, "could not be read"), (group.impossible, "have probability zero")):
            if count:
                told.append((f"{count:,} rows of {group.name} {why} and are left out.", True))
    return told


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
