"""Reports as people meet them: opened from a file, read, clicked, walked through by keyboard, printed."""

import importlib.resources
import time

import pytest

from examples import EVIL, audit, hostile, odd
from infodis import figures
from infodis.apps.report import page
from infodis.apps.report.scores import score_report

LINE = '[data-figure="0"] .role-mark.mark-rule line'
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True, "device_scale_factor": 2}


@pytest.fixture(scope="module")
def report():
    return audit()


@pytest.fixture(scope="module")
def file(report, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    page.write(report, path)
    return path


def confusion(report, threshold, above=True):
    """True and false positives and negatives, counted here."""
    found = {"tp": 0, "fp": 0, "tn": 0, "fn": 0}
    for row in report.rows:
        value = row.values.get("nll")
        if value is not None:
            called = value >= threshold if above else value <= threshold
            found[("t" if called == (row.group == "B") else "f") + ("p" if called else "n")] += 1
    return found


def shown_confusion(opened):
    return {name: int(opened.text(f'[data-count="{name}"]')) for name in ("tp", "fp", "tn", "fn")}


def place(opened, selector):
    box = opened.page.locator(selector).first.bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


# Loading


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_loads_from_a_file_without_a_word_or_a_request(open_page, file, scheme):
    opened = open_page(file, color_scheme=scheme)
    assert opened.said == []
    assert opened.requests == [opened.address]
    assert opened.page.locator(".chart svg").count() == 4
    assert opened.page.title() == "B against A"


def test_nothing_can_be_loaded_and_no_other_script_runs(open_page, file):
    opened = open_page(file)
    failed = opened.page.evaluate("() => fetch('https://example.org/').then(() => 'loaded', () => 'refused')")
    opened.page.evaluate(
        """() => {
            const image = new Image(); image.src = "https://example.org/a.png"; document.body.append(image);
            const script = document.createElement("script"); script.textContent = "window.ran = 1";
            document.body.append(script);
            document.body.insertAdjacentHTML("beforeend", "<i onclick='window.ran = 2'>x</i>");
            document.body.lastChild.click();
        }"""
    )
    opened.page.wait_for_timeout(200)
    assert failed == "refused"
    assert opened.page.evaluate("window.ran") is None
    assert len(opened.said) >= 4, "the browser tells of what the policy refused"


@pytest.mark.parametrize("name", list(odd()))
def test_odd_reports_open(open_page, tmp_path, name):
    page.write(odd()[name], tmp_path / "odd.html")
    opened = open_page(tmp_path / "odd.html")
    assert opened.said == []
    assert not opened.page.locator("#problem").is_visible()


def test_size_and_first_paint(open_page, tmp_path):
    path = tmp_path / "large.html"
    page.write(audit(1000, 128), path)
    assert path.stat().st_size < 3e6
    opened = open_page(path)
    paint = opened.page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    assert paint < 2000


def test_ten_thousand_rows_stay_quick(open_page, tmp_path):
    page.write(audit(10_000, 128), tmp_path / "huge.html")
    opened = open_page(tmp_path / "huge.html")
    assert opened.page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime") < 2000
    assert opened.page.locator("#table tbody").count() == 25
    start = time.perf_counter()
    opened.page.click("#table th button:text('nats per token')")
    assert opened.page.locator('th[aria-sort="descending"]').count() == 1
    opened.page.fill("#search", "prompt number 9999")
    opened.page.wait_for_function("document.querySelectorAll('#table tbody').length === 1")
    assert time.perf_counter() - start < 4


# The threshold


@pytest.mark.parametrize("threshold", [1.2, 1.75, 2.31])
def test_slider_changes_the_confusion_numbers_against_counting(open_page, file, report, threshold):
    opened = open_page(file)
    assert shown_confusion(opened) == confusion(report, 1.75)
    opened.page.locator("#slider").fill(str(threshold))
    expected = confusion(report, opened.page.locator("#slider").evaluate("slider => slider.valueAsNumber"))
    assert shown_confusion(opened) == expected
    tp, fp, tn, fn = (expected[name] for name in ("tp", "fp", "tn", "fn"))
    assert opened.text('[data-rate="tpr"]') == f"{100 * tp / (tp + fn):.1f} %"
    assert opened.text('[data-rate="fpr"]') == f"{100 * fp / (fp + tn):.1f} %"
    assert opened.text('[data-rate="precision"]') == f"{100 * tp / (tp + fp):.1f} %"
    assert opened.text('[data-rate="accuracy"]') == f"{100 * (tp + tn) / (tp + fp + tn + fn):.1f} %"


def test_a_row_at_the_threshold_counts_as_beyond_it(open_page, file, report):
    opened = open_page(file)
    value = report.rows[7].values["nll"]
    opened.page.locator("#exact").fill(repr(value))
    expected = confusion(report, value)
    assert shown_confusion(opened) == expected
    assert expected != confusion(report, value + 1e-9)


def test_lines_of_charts_move_with_the_slider(open_page, file):
    opened = open_page(file)
    line, point = LINE, '[data-figure="1"] .role-mark.mark-symbol path'
    before = [place(opened, selector) for selector in (line, point)]
    opened.page.locator("#slider").focus()
    for _ in range(30):
        opened.page.keyboard.press("ArrowRight")
    opened.page.wait_for_timeout(200)
    after = [place(opened, selector) for selector in (line, point)]
    assert after[0][0] > before[0][0] + 5
    assert after[1][0] < before[1][0], "a higher threshold has fewer false positives"
    assert after[1][1] > before[1][1], "and fewer true ones"


def test_the_line_can_be_dragged(open_page, file):
    opened = open_page(file)
    x, y = place(opened, LINE)
    opened.page.mouse.move(x, y)
    opened.page.mouse.down()
    opened.page.mouse.move(x + 90, y)
    opened.page.mouse.up()
    opened.page.wait_for_timeout(200)
    assert place(opened, LINE)[0] == pytest.approx(x + 90, abs=4)
    assert float(opened.page.input_value("#exact")) > 1.75


# Rows


def test_sorting_both_ways_with_missing_values_last(open_page, file, report):
    opened = open_page(file)
    known = [row for row in report.rows if row.values["nll"] is not None]
    for reverse in (True, False):
        opened.page.click("#table th button:text('nats per token')")
        expected = sorted(known, key=lambda row: row.values["nll"], reverse=reverse)
        assert opened.ids() == [str(row.id) for row in expected[:25]]
        assert opened.page.locator(f'th[aria-sort="{"descending" if reverse else "ascending"}"]').count() == 1
    for _ in range(4):
        opened.page.click("#pages button:text('Next')")
    missing = [str(row.id) for row in report.rows if row.values["nll"] is None]
    assert opened.ids()[-len(missing) :] == missing
    opened.page.click("#table th button:text('Row')")
    assert opened.ids()[:12] == [str(n) for n in range(12)], "numbers, not words"


def test_filters_against_counting(open_page, file, report):
    opened = open_page(file)
    in_b = [row for row in report.rows if row.group == "B"]
    opened.page.select_option("#filter-group", label="B")
    assert opened.shown() == len(in_b)
    opened.page.fill("#filter-least", "2.0")
    opened.page.fill("#filter-most", "2.5")
    assert opened.shown() == sum(2.0 <= (row.values["nll"] or 0) <= 2.5 for row in in_b)
    opened.page.fill("#filter-least", "")
    opened.page.fill("#filter-most", "")
    opened.page.select_option("#filter-group", label="all")
    opened.page.select_option("#filter-outcome", label="false negatives")
    assert opened.shown() == confusion(report, 1.75)["fn"]
    opened.page.locator("#slider").fill("2.2")
    threshold = opened.page.locator("#slider").evaluate("slider => slider.valueAsNumber")
    assert opened.shown() == confusion(report, threshold)["fn"], "the filter follows the slider"


def test_search_finds_words_across_pieces(open_page, file, report):
    opened = open_page(file)
    wanted = report.rows[41]
    opened.page.fill("#search", wanted.text[5:40].upper())
    opened.page.wait_for_function("document.querySelectorAll('#table tbody').length === 1")
    assert opened.ids() == ["41"]
    opened.page.fill("#search", "no row says this")
    opened.page.wait_for_function("document.querySelectorAll('#table tbody').length === 0")
    assert opened.shown() == 0


def story(report, row, n):
    tokens = report.rows[row].tokens
    return (
        tokens.pieces[n].replace(" ", "␣"),
        f"{tokens.nats[n]:.3f} ± {tokens.errors[n]:.3f} nats",
        f"token {n + 1} of {len(tokens.pieces)}",
    )


def test_hovering_a_token_tells_its_cost(open_page, file, report):
    opened = open_page(file)
    assert not opened.page.locator("#tip").is_visible()
    opened.page.locator('[data-row="3"] .token[data-n="4"]').hover()
    assert tuple(opened.text("#tip").split("\n")) == story(report, 3, 4)
    opened.page.mouse.move(5, 5)
    assert not opened.page.locator("#tip").is_visible()


def test_tapping_a_token_on_a_phone(open_page, file, report):
    opened = open_page(file, **PHONE)
    opened.page.locator('[data-row="2"] .token[data-n="1"]').tap()
    assert tuple(opened.text("#tip").split("\n")) == story(report, 2, 1)


def test_rows_and_tokens_by_keyboard(open_page, file, report):
    opened = open_page(file)
    opened.page.locator("#table th button").last.focus()
    opened.page.keyboard.press("Tab")
    assert tuple(opened.text("#tip").split("\n")) == story(report, 0, 0)
    for key in ("ArrowRight", "ArrowRight", "ArrowLeft"):
        opened.page.keyboard.press(key)
    assert tuple(opened.text("#tip").split("\n")) == story(report, 0, 1)
    assert opened.page.evaluate("document.activeElement.getAttribute('aria-describedby')") == "tip"
    opened.page.keyboard.press("End")
    assert tuple(opened.text("#tip").split("\n")) == story(report, 0, 29)
    opened.page.keyboard.press("Escape")
    assert not opened.page.locator("#tip").is_visible()
    opened.page.keyboard.press("Tab")
    assert opened.page.evaluate("document.activeElement.closest('[data-row]').dataset.row") in ("0", "1")


def test_tips_go_along_when_walking_scrolls(open_page, file, report):
    opened = open_page(file, viewport={"width": 800, "height": 300})
    opened.page.locator('[data-row="9"] .token').first.focus()
    opened.page.keyboard.press("Tab")
    opened.page.wait_for_timeout(200)
    row = int(opened.page.evaluate("document.activeElement.closest('[data-row]').dataset.row"))
    assert tuple(opened.text("#tip").split("\n")) == story(report, row, 0)
    assert 0 <= opened.page.locator("#tip").bounding_box()["y"] <= 300


def test_charts_tell_their_numbers(open_page, file, report):
    opened = open_page(file)
    bar = opened.page.locator('[data-figure="0"] .role-mark.mark-rect path').first
    bar.hover()
    first = report.figures[0].data[0]
    assert opened.text("#tip").startswith(f"group: {first['group']}\nstart: ")
    assert f"count: {first['count']}" in opened.text("#tip")


def test_long_rows_are_shown_in_part_until_asked_for(open_page, tmp_path):
    report = audit(4, 900)
    page.write(report, tmp_path / "long.html")
    opened = open_page(tmp_path / "long.html")
    tokens = opened.page.locator('[data-row="1"] .token')
    assert tokens.count() < 900
    opened.page.locator('[data-row="1"] .more').click()
    assert tokens.count() == 900
    assert opened.page.evaluate("document.activeElement.getAttribute('aria-expanded')") == "true"
    opened.page.keyboard.press("Enter")
    assert tokens.count() < 900
    opened.page.locator('[data-row="2"] .token').first.focus()
    opened.page.keyboard.press("End")
    assert opened.page.evaluate("document.activeElement.dataset.n") == "899"


# Text from data is text


def test_markup_is_shown_and_never_run(open_page, tmp_path):
    page.write(hostile(), tmp_path / "hostile.html")
    opened = open_page(tmp_path / "hostile.html")
    opened.page.locator(".token").first.hover()
    assert opened.text("#tip").startswith(EVIL.replace(" ", "␣"))
    opened.page.locator("#slider").fill("1.2")
    opened.page.wait_for_timeout(200)
    assert opened.said == []
    assert opened.requests == [opened.address]
    assert opened.page.title() == EVIL
    for selector in (
        "h1",
        ".about",
        "#table tbody th >> nth=0",
        ".prompt",
        ".token >> nth=0",
        "#provenance dt >> nth=0",
    ):
        assert opened.text(selector).endswith(EVIL)
    assert EVIL in opened.text('[data-row="1"] .words')
    assert opened.page.locator("main img").count() == 0
    assert opened.page.locator("main script").count() == 0


# Looks


def serious(opened):
    source = importlib.resources.files("axe_playwright_python") / "axe.min.js"
    opened.page.evaluate(source.read_text(encoding="utf-8"))
    found = opened.page.evaluate("axe.run()")["violations"]
    return [(one["id"], one["nodes"][0]["html"]) for one in found if one["impact"] in ("serious", "critical")]


DEVICES = {"light": {"color_scheme": "light"}, "dark": {"color_scheme": "dark"}, "phone": PHONE}


@pytest.mark.parametrize("settings", DEVICES.values(), ids=DEVICES)
def test_accessibility(open_page, file, settings):
    opened = open_page(file, **settings)
    opened.page.locator("#table th button").last.focus()
    opened.page.keyboard.press("Tab")
    assert serious(opened) == []


def test_accessibility_is_really_checked(open_page, file):
    opened = open_page(file)
    opened.page.add_style_tag(content=".about { color: #ddd !important; background: #fff }")
    assert [name for name, _ in serious(opened)] == ["color-contrast"]


def test_theme_button_turns_colours_of_page_and_charts(open_page, file):
    opened = open_page(file, color_scheme="light")
    colours = """() => [document.body, document.querySelector('[data-figure="0"] .mark-rect path')].map(
        (one) => getComputedStyle(one)[one === document.body ? "backgroundColor" : "fill"])"""
    before = opened.page.evaluate(colours)
    opened.page.click("#theme")
    assert opened.page.evaluate(colours) == ["rgb(20, 23, 26)", "rgb(86, 180, 233)"]
    opened.page.click("#theme")
    assert opened.page.evaluate(colours) == before == ["rgb(255, 255, 255)", "rgb(0, 114, 178)"]


@pytest.mark.parametrize("width", [320, 390, 768])
def test_nothing_sticks_out_of_a_narrow_screen(open_page, file, width):
    opened = open_page(file, viewport={"width": width, "height": 800})
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= width


def test_print_is_light_and_without_controls(open_page, file):
    opened = open_page(file, color_scheme="dark")
    opened.page.emulate_media(media="print")
    for selector in ("#theme", "#controls", "#pages", ".slider", ".save"):
        assert not opened.page.locator(selector).first.is_visible(), selector
    for selector in (".chart svg", "#table tbody", ".confusion", "#provenance"):
        assert opened.page.locator(selector).first.is_visible(), selector
    assert opened.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    stuck = "[...document.querySelectorAll('*')].filter((one) => getComputedStyle(one).position === 'sticky').length"
    assert opened.page.evaluate(stuck) == 0
    assert opened.page.pdf().startswith(b"%PDF")


# Files out of the page


def test_figures_are_saved_as_the_static_files_are(open_page, file, report):
    opened = open_page(file)
    for kind, beginning in (("svg", b"<svg"), ("png", b"\x89PNG"), ("csv", b"group,start,end,count,share")):
        with opened.page.expect_download() as waiting:
            opened.page.click(f'[data-figure="0"] [data-save="{kind}"]')
        assert waiting.value.suggested_filename == f"histogram.{kind}"
        content = waiting.value.path().read_bytes()
        assert content.startswith(beginning)
        if kind == "csv":
            assert len(content.splitlines()) == len(figures.csv_text(report.figures[0]).splitlines())
        if kind == "svg":
            assert b"var(" not in content


def test_a_report_of_scores(open_page, tmp_path):
    records = [
        {"id": n, "value": 20.0 + n, "standard_error": 0.5, "tokens": 10, "bits_per_token": (20 + n) / 10 / 0.6931}
        for n in range(30)
    ]
    records.append({"id": "zero", "value": None, "standard_error": None, "impossible": True, "tokens": 10})
    page.write(score_report(records, title="Scores", provenance={}), tmp_path / "scores.html")
    opened = open_page(tmp_path / "scores.html")
    assert opened.said == []
    assert opened.shown() == 31
    assert "probability zero" in opened.text(".warnings")
