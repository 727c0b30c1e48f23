"""Reports to open: an audit of two groups, one full of markup, and odd ones."""

import random

from infodis import figures
from infodis.apps.report.values import Column, Report, ReportFinding, ReportRow, ReportTable, Threshold, Tokens
from infodis.figures import Figure

WORDS = ["the", "of", "and", "to", "in", "a", "is", "that", "was", "he", "for", "it", "with", "as", "his", "on", "be"]
EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)>"
COLUMNS = (
    Column("nll", "nats per token", "Conditional nll per token."),
    Column("error", "±", "Standard error."),
    Column("length", "tokens", digits=0),
)


def vocabulary(size, source):
    """Pieces as byte-pair encoders have them: frequent words whole, many rare bits."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    rare = ["".join(source.choices(letters, k=source.choice([2, 3, 4, 5, 6, 7]))) for _ in range(size)]
    return [" " + word for word in WORDS] * (size // 20) + [source.choice(["", " "]) + word for word in rare]


def audit_rows(count, length, seed=0):
    source = random.Random(seed)
    pieces = vocabulary(20_000, source)
    for n in range(count):
        group = "A" if n % 2 == 0 else "B"
        chosen = tuple(source.choices(pieces, k=length))
        mean = 1.5 if group == "A" else 2.0
        nats = tuple(source.expovariate(1 / mean) for _ in chosen)
        errors = tuple(abs(source.gauss(0, 0.05)) + 0.01 for _ in chosen)
        value = None if n % 50 == 49 else source.gauss(mean, 0.3)
        values = {"nll": value, "error": 0.05 + n * 1e-5, "length": float(length)}
        yield ReportRow(n, group, f"prompt number {n}", Tokens(chosen, nats, errors), "".join(chosen), values)


def audit(count=120, length=30):
    """Two groups, a threshold, and every kind of figure that a threshold moves."""
    rows = tuple(audit_rows(count, length))
    groups = {name: [row.values["nll"] for row in rows if row.group == name] for name in "AB"}
    points = [(0.0, 0.0), (0.1, 0.5), (0.4, 0.9), (1.0, 1.0)]
    band = [(x, max(0.0, y - 0.1), min(1.0, y + 0.1)) for x, y in points]
    intervals = {"nll": (0.8, 0.7, 0.9), "length": (0.5, 0.4, 0.6)}
    drawn = (
        figures.histogram(groups, axis="nats per token", threshold=1.75, caption="Both groups."),
        figures.roc(points, band, area=0.8, interval=(0.7, 0.9), operating=(0.2, 0.7)),
        figures.bars(intervals, axis="AUROC", kinds={"nll": "model", "length": "trivial"}, reference=0.5),
        figures.lines({name: [(k / 8, 1 + k, 0.9 + k, 1.1 + k) for k in range(9)] for name in "AB"}, axes=("x", "y")),
    )
    return Report(
        title="B against A",
        about="Two groups.",
        findings=(ReportFinding("B costs 0.5 ± 0.04 nats more than A."), ReportFinding("Few rows.", warning=True)),
        tables=(ReportTable("Separation", ("score", "AUROC"), (("nll", 0.8123), ("length", None))),),
        figures=drawn,
        columns=COLUMNS,
        rows=rows,
        threshold=Threshold("nll", "A", "B", above=True, start=1.75),
        provenance={"command": "infodis audit a.jsonl b.jsonl", "model": {"fingerprint": "abc"}, "seed": 0},
    )


def hostile():
    """Markup and worse wherever data goes."""
    tokens = Tokens(
        (EVIL, "\u2028", "</script>", "\ud800", "\u202egnp", "", "\n", " x"), (1.0, 2.0, None, 0.0, -3.0, 1, 1, 1)
    )
    rows = (
        ReportRow(EVIL, EVIL, EVIL, tokens, "".join(tokens.pieces), {EVIL: 1.0, "__proto__": float("nan")}),
        ReportRow("plain", "other", "", None, EVIL, {EVIL: float("inf")}),
        ReportRow(3, None, "", Tokens((), (), None), "", {}),
    )
    return Report(
        title=EVIL,
        about=EVIL,
        findings=(ReportFinding(EVIL), ReportFinding(EVIL, warning=True)),
        tables=(ReportTable(EVIL, (EVIL, "number"), ((EVIL, float("nan")),), EVIL),),
        figures=(
            figures.histogram({EVIL: [1.0, 2.0], "other": [float("inf")]}, axis=EVIL, title=EVIL, caption=EVIL),
            figures.bars({EVIL: (0.5, 0.4, 0.6)}, axis=EVIL, name="bars", title=EVIL, caption=EVIL),
        ),
        columns=(Column(EVIL, EVIL, EVIL), Column("__proto__", "constructor")),
        rows=rows,
        threshold=Threshold(EVIL, "other", EVIL, above=False, start=1.5),
        provenance={EVIL: EVIL, "deep": {"er": [EVIL, 1]}},
    )


def odd():
    """Reports with hardly anything in them."""
    row = ReportRow("one", None, "", None, "a text without tokens", {"nll": 1.0})
    lonely = ReportRow(1, "A", "", Tokens(("x",), (1.0,)), "x", {"nll": None})
    empty = Figure("empty", "Nothing", "", {"mark": "point", "encoding": {}}, ())
    return {
        "nothing": Report("Nothing"),
        "one row": Report("One row", rows=(row,), columns=COLUMNS),
        "no columns": Report("No columns", rows=(row, lonely)),
        "empty groups": Report(
            "Empty groups",
            figures=(figures.histogram({"A": [], "B": []}, axis="nats", threshold=0.0), empty),
            columns=COLUMNS,
            rows=(lonely,),
            threshold=Threshold("nll", "A", "B", above=True, start=0.0),
        ),
    }
