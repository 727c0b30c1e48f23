"""The documentation as people meet it: the landing page, a notebook and the search. `make test-browser` builds it."""

import importlib.resources
from pathlib import Path

import pytest

SITE = Path(__file__).parents[3] / "docs" / "_build" / "html"
PAGES = ["index.html", "tutorials/masked-lm.html", "tutorials/train.html", "notebooks.html"]
AXE = importlib.resources.files("axe_playwright_python") / "axe.min.js"


@pytest.fixture
def visit(browser):
    """Open a page of the site; `settings` are those of the device."""
    contexts = []

    def visited(address, **settings):
        contexts.append(browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **settings}))
        page = contexts[-1].new_page()
        page.goto(f"{SITE.as_uri()}/{address}")
        return page

    yield visited
    for context in contexts:
        context.close()


def serious(page):
    page.evaluate(AXE.read_text(encoding="utf-8"))
    found = page.evaluate("axe.run()")["violations"]
    return [(one["id"], one["nodes"][0]["html"]) for one in found if one["impact"] in ("serious", "critical")]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("address", PAGES)
def test_accessibility(visit, address, scheme):
    assert serious(visit(address, color_scheme=scheme)) == []


def test_accessibility_is_really_checked(visit):
    page = visit("index.html")
    page.add_style_tag(content="article p { color: #ddd !important; background: #fff }")
    assert "color-contrast" in [name for name, _ in serious(page)]


def test_the_first_screen_has_what_install_example_and_picture(visit):
    page = visit("index.html")
    for shown in ("text=pip install infodis", "text=/± [0-9.]+ nats/", "article img"):
        box = page.locator(shown).first.bounding_box()
        assert box["y"] + box["height"] <= 900, shown


@pytest.mark.parametrize("width", [390, 768])
def test_nothing_sticks_out_of_a_narrow_screen(visit, width):
    page = visit("index.html", viewport={"width": width, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("query", ["ELBO", "pseudo-log-likelihood", "membership inference", "LLaDA"])
def test_the_search_of_the_site_finds_pages(visit, query):
    page = visit(f"search.html?q={query.replace(' ', '+')}")
    page.wait_for_selector("#search-results ul.search li")
    assert page.locator("#search-results ul.search li").count() >= 1
