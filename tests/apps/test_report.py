"""Reports: what the page holds is what was handed in, exactly and as text; figures from numbers; scores in words."""

import base64
import csv
import gzip
import hashlib
import html.parser
import importlib.resources
import io
import itertools
import json
import math
import random
import re
import struct

import pytest

from infodis import figures
from infodis.apps.report import page
from infodis.apps.report.scores import score_report
from infodis.apps.report.values import Column, Report, ReportFinding, ReportRow, ReportTable, Threshold, Tokens
from infodis.errors import InputError
from infodis.figures import Figure
from infodis.figures.charts import shared_bins
from infodis.figures.figure import PALETTE
from infodis.files import MANIFEST

MARKUP = "</script><script>alert(1)</script>"
COLUMNS = (Column("nll", "nats"), Column("length", "tokens", digits=0))


class Reader(html.parser.HTMLParser):
    """The elements of a page, and the text inside each."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.texts, self._open = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        self.texts.append("")
        self._open.append(len(self.texts) - 1)

    def handle_data(self, data):
        if self._open:
            self.texts[self._open[-1]] += data

    def handle_endtag(self, tag):
        while self._open and self.elements[self._open.pop()][0] != tag:
            pass

    def all(self, tag):
        return [(own, text) for (name, own), text in zip(self.elements, self.texts, strict=True) if name == tag]


def rendered(report):
    return Reader(page.render(report))


def data_of(reader):
    holder = next(text for own, text in reader.all("script") if own.get("id") == "data")
    return json.loads(gzip.decompress(base64.b64decode(holder)))


def row(n, group="A", value=1.0, pieces=("a", " b"), **more):
    tokens = Tokens(tuple(pieces), tuple(float(k) for k in range(len(pieces))))
    return ReportRow(
        **{
            "id": n,
            "group": group,
            "prompt": "",
            "tokens": tokens,
            "text": "".join(pieces),
            "values": {"nll": value},
            **more,
        }
    )


def two_groups():
    rows = (row(0, "A", 1 / 3), row(1, "B", 2.5), row(2, "B", math.nan), row(3, "C", math.inf))
    return Report(
        title="Two",
        findings=(ReportFinding("One."), ReportFinding("Two.", warning=True)),
        tables=(ReportTable("Numbers", ("name", "x"), (("a", 0.12345678), ("b", None))),),
        figures=(figures.histogram({"A": [1.0], "B": [2.0]}, axis="nats", threshold=1.5),),
        columns=COLUMNS,
        rows=rows,
        threshold=Threshold("nll", "B", "A", above=False, start=1.5),
        provenance={"seed": 0, "model": {"name": "m", "missing": None}, "versions": ["a", 1]},
    )


# The page


def test_page_holds_values_exactly_and_no_number_that_json_lacks():
    data = data_of(rendered(two_groups()))
    assert data["groups"] == ["B", "A", "C"], "the threshold's groups come first"
    assert data["rows"]["values"] == [[1 / 3, 2.5, None, None], [None] * 4]
    assert data["rows"]["group"] == [1, 0, 0, 2]
    assert data["rows"]["text"] == [None] * 4, "pieces say it"
    threshold = data["threshold"]
    assert (threshold["column"], threshold["negative"], threshold["positive"], threshold["above"]) == (0, 0, 1, False)
    assert threshold["low"] <= 1 / 3 < 2.5 <= threshold["high"]


def test_the_same_report_gives_the_same_bytes(tmp_path):
    page.write(two_groups(), tmp_path / "deep" / "one.html")
    page.write(two_groups(), tmp_path / "deep" / "two.html")
    assert (tmp_path / "deep" / "one.html").read_bytes() == (tmp_path / "deep" / "two.html").read_bytes()
    assert sorted(one.name for one in (tmp_path / "deep").iterdir()) == [MANIFEST, "one.html", "two.html"]


def test_text_from_data_is_escaped():
    rows = (
        ReportRow(MARKUP, MARKUP, MARKUP, Tokens((MARKUP, "\u2028", "\ud800"), (1.0, 2.0, 3.0)), MARKUP, {MARKUP: 1.0}),
    )
    report = Report(
        *(MARKUP, MARKUP, (ReportFinding(MARKUP), ReportFinding(MARKUP + "\udfff", warning=True))),
        tables=(ReportTable(MARKUP, (MARKUP,), ((MARKUP,),), MARKUP),),
        figures=(figures.histogram({MARKUP: [1.0]}, axis=MARKUP, title=MARKUP, caption=MARKUP),),
        columns=(Column(MARKUP, MARKUP, MARKUP),),
        rows=rows,
        provenance={MARKUP: MARKUP},
    )
    text = page.render(report)
    reader = Reader(text)
    assert len(reader.all("script")) == 3
    assert reader.all("h1")[0][1] == reader.all("title")[0][1] == MARKUP
    assert reader.all("dt")[0][1] == reader.all("dd")[0][1] == MARKUP
    assert data_of(reader)["rows"]["prompt"] == [MARKUP]
    assert data_of(reader)["tokens"]["distinct"] == [MARKUP, "\u2028", "\ud800"]
    text.encode("utf-8")


def test_policy_names_the_scripts_of_the_page_and_nothing_else():
    reader = rendered(two_groups())
    policy = next(own["content"] for own, _ in reader.all("meta") if own.get("http-equiv"))
    ours = next(text for own, text in reader.all("script") if "id" not in own)
    vega = next(text for own, text in reader.all("script") if own.get("id") == "vega")
    hashes = [hashlib.sha256(one).digest() for one in (ours.encode(), gzip.decompress(base64.b64decode(vega)))]
    assert re.findall(r"'sha256-([^']+)'", policy) == [base64.b64encode(one).decode() for one in hashes]
    assert policy.startswith("default-src 'none'")
    addresses = [own[name] for _, own in reader.elements for name in ("src", "href") if name in own]
    assert addresses == ["#rows"]


def test_script_makes_no_markup_from_text():
    script = (importlib.resources.files("infodis.apps.report") / "page.js").read_text()
    for word in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "fetch(",
        "</script",
        "<!--",
    ):
        assert word not in script


def test_tokens_survive_the_packing():
    source = random.Random(0)
    rows = tuple(
        row(n, pieces=source.choices(["a", "b", " c", "\n"], k=n), tokens=None if n == 3 else Tokens(*many))
        for n, many in enumerate(
            (
                tuple(source.choices(["a", "b", " c"], k=n)),
                tuple(source.uniform(-1, 9) if k else None for k in range(n)),
                tuple(source.random() for _ in range(n)) if n % 2 else None,
            )
            for n in range(6)
        )
    )
    found = json.loads(page.payload(Report("t", rows=rows, columns=COLUMNS)))["tokens"]
    start = 0
    for one, count in zip(rows, found["counts"], strict=True):
        if one.tokens is None:
            assert count == -1
            continue
        place = slice(start, start + count)
        assert tuple(found["distinct"][k] for k in found["pieces"][place]) == one.tokens.pieces
        for nats, kept in zip(one.tokens.nats, found["nats"][place], strict=True):
            assert kept is None if nats is None else abs(kept / 1000 - nats) <= 0.0005
        errors = one.tokens.errors or (None,) * count
        assert [e is None for e in errors] == [e is None for e in found["errors"][place]]
        start += count
    assert start == len(found["pieces"]) == len(found["nats"]) == len(found["errors"])


def test_hottest_is_a_high_quantile_and_never_zero():
    assert page.hottest([Tokens(("a",) * 101, tuple(k / 10 for k in range(101)))]) == 9.8
    assert page.hottest([Tokens(("a",) * 100, (0.0,) * 99 + (5.0,))]) == 5.0
    assert page.hottest([None, Tokens(("a", "b"), (None, 0.0))]) == page.hottest([]) == 1.0


def test_a_thousand_rows_are_small():
    source = random.Random(0)
    words = ["".join(source.choices("abcdefghijklmnop", k=source.randint(2, 7))) for _ in range(20_000)]
    rows = tuple(
        row(
            n,
            tokens=Tokens(
                pieces, tuple(source.expovariate(0.5) for _ in pieces), tuple(source.random() for _ in pieces)
            ),
        )
        for n, pieces in enumerate(tuple(source.choices(words, k=128)) for _ in range(1000))
    )
    assert len(page.render(Report("t", rows=rows, columns=COLUMNS))) < 3e6


def test_findings_warn_first_and_empty_parts_are_left_out():
    reader = rendered(two_groups())
    assert [text.strip() for _, text in reader.all("li")] == ["Two.", "One."]
    assert [text for own, text in reader.all("td") if own.get("class") == "number"] == ["0.1235", "–"]
    assert [text for _, text in reader.all("dt")][-3:] == ["seed", "model.name", "versions"]
    empty = rendered(Report("Nothing"))
    assert [own.get("id") for own, _ in empty.all("section")] == []
    assert data_of(empty)["rows"]["id"] == []


def test_cells_and_prose():
    shown = [
        page.cell(value) for value in (None, math.nan, math.inf, -math.inf, 0.0, 12, 12345, 0.5, 1e-9, "x", 123456.0)
    ]
    assert shown == ["–", "–", "∞", "−∞", "0", "12", "12,345", "0.5", "1.00e-09", "x", "123,456"]
    assert page.prose("1 ± 2 at 95 % of") == "1\u00a0±\u00a02 at 95\u00a0% of"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Tokens(("a",), (1.0, 2.0)), "lengths"),
        (lambda: Tokens(("a",), (1.0,), (1.0, 2.0)), "lengths"),
        (lambda: ReportTable("t", ("a",), (("x", "y"),)), "1 cells, got 2"),
        (lambda: Figure("../x", "t", "c", {}, ()), "file name"),
        (lambda: Report("t", columns=(Column("a", "b"), Column("a", "c"))), "'a' twice"),
        (lambda: Report("t", threshold=Threshold("x", "A", "B", above=True, start=0.0)), "columns"),
    ],
)
def test_mistakes_are_told(make, words):
    with pytest.raises(InputError, match=words):
        make()


# Colours


def luminance(colour):
    parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("side", [0, 1], ids=["light", "dark"])
def test_contrast(side):
    """WCAG: 4.5 for text, 3 for graphics."""
    paper = luminance(PALETTE["paper"][side])
    for name, colours in PALETTE.items():
        light, dark = sorted((luminance(colours[side]), paper), reverse=True)
        least = 3 if name.startswith("series-") else 4.5
        assert name in ("paper", "line") or (light + 0.05) / (dark + 0.05) >= least, name


# Figures


def test_histogram_against_counting():
    source = random.Random(1)
    groups = {
        "A": [source.gauss(0, 1) for _ in range(200)],
        "B": [source.gauss(2, 1) for _ in range(50)] + [None, math.inf],
    }
    figure = figures.histogram(groups, axis="nats", caption="Both.")
    assert figure.caption == "Both. 2 without a finite value not shown."
    for group, values in groups.items():
        mine = [one for one in figure.data if one["group"] == group]
        known = [value for value in values if value is not None and math.isfinite(value)]
        assert sum(one["count"] for one in mine) == len(known)
        assert sum(one["share"] for one in mine) == pytest.approx(1)
        for one in mine:
            inside = sum(one["start"] <= value < one["end"] for value in known)
            assert one["count"] - inside in (0, sum(value == one["end"] for value in known))
    widths = {round(one["end"] - one["start"], 9) for one in figure.data}
    assert len(widths) == 1, "bins are shared"


@pytest.mark.parametrize("values", [[], [1.0], [1.0] * 5, [0.0] * 99 + [1.0], [1e-300, 2e-300]])
def test_bins_of_odd_values(values):
    edges = shared_bins([values])
    assert all(a < b for a, b in itertools.pairwise(edges))
    assert all(edges[0] <= value <= edges[-1] for value in values)


def all_figures():
    curve = [(0.0, 0.0), (0.5, 0.9), (1.0, 1.0)]
    return [
        figures.histogram({"<A>": [1.0, 2.0], "B": [3.0]}, axis="nats", threshold=2.0),
        figures.roc(curve, [(x, y, y) for x, y in curve], area=0.75, interval=(0.7, 0.8), operating=(0.5, 0.9)),
        figures.bars({"<A>": (0.6, 0.5, 0.7)}, axis="AUROC", reference=0.5),
        figures.lines({"<A>": [(0.0, 1.0, 0.5, 1.5), (1.0, 2.0, 1.5, 2.5)]}, axes=("x", "y"), name="band"),
        figures.calibration({"<A>": [(1.0, 1.1, 0.1), (2.0, math.nan, 0.1)]}),
        figures.lines({"<A>": [(1.0, 1.0), (100.0, 0.01)], "B": [(0.0, 1.0)]}, axes=("x", "y"), log=(True, True)),
        figures.lines({}, axes=("x", "y"), log=(True, True), name="empty"),
        figures.beside(
            [
                figures.grouped_bars([("<A>", "k", 0.5, "0.5"), ("B", "l", 9.0, "9")], axis="x", kinds=["k", "l"]),
                figures.grid([[1.0, None]], labels=[["<A>\n± 1", ""]], rows=["r"], columns=["a", "b"], axes=("x", "y")),
            ],
            name="beside",
            title="Beside",
        ),
        figures.columns({"<A>": [1.0, 2.0], "B": [1.5, 1.9]}, labels=["<x>", "y"], axis="nats"),
        figures.matrix([[0.5] * 24, [-1.0] * 24], rows=["<A>", " "], columns=["'] + alert(1) + ['"] * 24),
    ]


@pytest.mark.parametrize("figure", all_figures(), ids=lambda figure: figure.name)
def test_figures_as_files(figure, tmp_path):
    figures.save(figure, tmp_path)
    figures.save(figure, tmp_path / "again")
    assert sorted(one.name for one in tmp_path.glob("[!.]*.*")) == [
        f"{figure.name}.{kind}" for kind in ("csv", "png", "svg")
    ]
    for kind in ("csv", "png", "svg"):
        name = f"{figure.name}.{kind}"
        assert (tmp_path / name).read_bytes() == (tmp_path / "again" / name).read_bytes()
    width, height = struct.unpack(">II", (tmp_path / f"{figure.name}.png").read_bytes()[16:24])
    assert width > 400
    assert height > 100
    picture = (tmp_path / f"{figure.name}.svg").read_text()
    assert figure.title in picture
    assert "<A>" not in picture
    lines = list(csv.DictReader(io.StringIO((tmp_path / f"{figure.name}.csv").read_text())))
    assert len(lines) == len(figure.data)


def test_figures_say_what_they_show():
    curve = figures.roc([(0.0, 0.0), (1.0, 1.0)], area=0.51234, interval=(0.4, 0.6))
    assert "AUROC 0.512, 95 % interval 0.400 to 0.600" in curve.caption
    assert curve.parameters == frozenset()
    assert all_figures()[0].parameters == {"threshold"}
    assert all_figures()[1].parameters == {"false_positives", "true_positives"}
    assert [one["series"] for one in all_figures()[5].data] == ["<A>", "<A>"], "a logarithmic axis has no zero"


def test_matrix_holds_its_cells_where_they_are():
    found = figures.matrix([[0.5, None], [-1.0, 2.0]], rows=["a", "a"], columns=["b", "c"], errors=[[0.1, 0.2]] * 2)
    cells = {(one["row"], one["column"]): one for one in found.data if one["kind"] == "cell"}
    assert {place: one["nats"] for place, one in cells.items()} == {(0, 0): 0.5, (1, 0): -1.0, (1, 1): 2.0}
    assert [cells[place]["sign"] for place in ((0, 0), (1, 0))] == ["helps", "misleads"]
    assert cells[1, 1]["error"] == 0.2


def test_influences_are_drawn_for_short_rows():
    row = record(1, 2.0, pieces=["x"], per_token=[1.0], prompt_pieces=["a", "b"], influence=[[0.1, 0.2]], explained=0.3)
    long = record(2, 2.0, influence=[[0.0] * 61], explained=0.0)
    assert [one.name for one in score_report([row, long], title="", provenance={}).figures if "influ" in one.name] == [
        "influence-0"
    ]


# Scores


def record(n, bits, tokens=10, error=0.1, **more):
    nats = bits * tokens * math.log(2)
    known = {"id": n, "value": nats, "standard_error": error, "tokens": tokens, "bits_per_token": bits}
    return {**known, "evaluations": 8, "stopped": "budget", **more}


def words(report, warning=False):
    return " ".join(finding.text for finding in report.findings if finding.warning == warning)


def test_scores_in_words():
    records = [record(n, 2.0 + 0.5 * (n % 2)) for n in range(20)] + [record("odd", 5.0, text="an odd text")]
    report = score_report(records, title="t", provenance={"seed": 1})
    mean = (10 * 2.0 + 10 * 2.5 + 5.0) / 21
    said = words(report)
    spread = math.sqrt(sum((bits - mean) ** 2 for bits in [2.0] * 10 + [2.5] * 10 + [5.0]) / 20 / 21)
    assert f"A token costs the model {mean:.2f} ± {spread:.2f} bits on average over 21 rows" in said
    assert f"masks make ± {0.1 / math.sqrt(21) / 10 / math.log(2):.4f} of it" in said
    assert "The most surprising row is odd, at 5.000 ± 0.014 bits per token" in said
    assert words(report, warning=True) == ""
    assert report.tables[0].rows[0] == ("odd", "5.000 ± 0.014", 10, "an odd text")
    assert [column.name for column in report.columns] == ["bits_per_token", "value", "standard_error", "tokens"]
    assert sum(one["count"] for one in report.figures[0].data) == 21


def test_scores_say_how_much_is_monte_carlo_error():
    """The variance of bits 2 and 4, equally often, is 40 / 39; half of it as squared errors is half of it as noise."""
    error = math.sqrt(0.25 * 40 / 39) * 10 * math.log(2)
    records = [record(n, 2.0 + 2 * (n % 2), error=error) for n in range(40)]
    assert "25.0 % of that variance is Monte Carlo error" in words(score_report(records, title="t", provenance={}))
    noisy = [record(n, 2.0 + 2 * (n % 2), error=2 * error) for n in range(40)]
    assert "more --evaluations" in words(score_report(noisy, title="t", provenance={}), warning=True)


def test_scores_of_odd_records():
    tokens = {"pieces": ["a", "b"], "per_token": [1.0, None], "per_token_error": [0.1, 0.2], "prompt": "p"}
    records = [
        record(0, 2.0, **tokens, truncated=3),
        record(1, 2.0, per_token=[1.0, 2.0], stopped="cap reached"),
        {"id": 2, "value": None, "standard_error": None, "impossible": True, "tokens": 4, "bits_per_token": None},
        {"id": "3"},
        record(4, 2.0, pieces=["a"], per_token=[1.0, 2.0]),
    ]
    report = score_report(records, title="t", provenance={})
    assert report.rows[0].tokens == Tokens(("a", "b"), (1.0, None), (0.1, 0.2))
    assert [one.tokens for one in report.rows[1:]] == [None] * 4
    warnings = words(report, warning=True)
    assert "1 row has probability zero" in warnings
    assert "1 row stopped" in warnings
    assert "1 row did not fit" in warnings
    assert "All rows cost the same per token." in words(report)
    page.render(report)
    nothing = score_report([], title="t", provenance={})
    assert "No row" in words(nothing, warning=True)
    page.render(nothing)


def test_scores_along_the_text():
    records = [record(n, 2.0, per_token=[1.0, 3.0 + n % 2] + [0.0] * (n < 9)) for n in range(12)]
    along = score_report(records, title="t", provenance={}).figures[1].data
    assert [(one["x"], one["y"]) for one in along] == [(1.0, 1.0), (2.0, 3.5)], "the third place has too few rows"
    half = 1.96 * math.sqrt(0.25 * 12 / 11 / 12)
    assert along[1]["high"] - along[1]["y"] == pytest.approx(half)
