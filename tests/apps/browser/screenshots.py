"""Pictures for the documentation: of a report (docs/audit.md), and of the built site (`make screenshots`).

python tests/apps/browser/screenshots.py out/audit/shuffled-against-text8/report.html --out docs/images
python tests/apps/browser/screenshots.py --site docs/_build/html --out docs/images
"""

import argparse
import shutil
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from conftest import FLAGS

PICTURES = {
    "report-light": ("light", 1100, 1330, None),
    "report-dark": ("dark", 1100, 620, "#rows"),
}
"""Scheme, width, height, and what is scrolled to."""


def take(browser: Browser, report: Path, out: Path) -> None:
    for name, (scheme, width, height, place) in PICTURES.items():
        context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": height})
        page = context.new_page()
        page.goto(report.resolve().as_uri())
        page.wait_for_selector("html[data-ready]")
        if place is not None:
            page.evaluate("place => document.querySelector(place).scrollIntoView()", place)
        page.wait_for_timeout(500)  # charts and rows settle
        page.screenshot(path=out / f"{name}.png")
        context.close()


def take_site(browser: Browser, site: Path, out: Path) -> None:
    """The landing page, and what a notebook shows of some scores."""
    context = browser.new_context(color_scheme="light", viewport={"width": 1280, "height": 900}, device_scale_factor=1)
    page = context.new_page()
    page.goto((site / "index.html").resolve().as_uri())
    page.wait_for_timeout(500)
    page.screenshot(path=out / "landing.png")
    page.goto((site / "tutorials" / "masked-lm.html").resolve().as_uri())
    shown = page.locator(".cell", has=page.locator(".cell_output svg[role=img]")).first
    shown.scroll_into_view_if_needed()
    shown.screenshot(path=out / "notebook.png")
    context.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", type=Path, nargs="?")
    parser.add_argument("--site", type=Path)
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    given = parser.parse_args()
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=shutil.which("chromium"), args=list(FLAGS))
        if given.report is not None:
            take(browser, given.report, given.out)
        if given.site is not None:
            take_site(browser, given.site, given.out)
        browser.close()


if __name__ == "__main__":
    main()
