"""A real browser: the system's chromium, which `make test-browser` installs. Nothing is ever downloaded."""

import shutil

import pytest

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--no-first-run"),
)


@pytest.fixture(scope="session")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: make test-browser")
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        pytest.skip("needs chromium: make test-browser")
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=program, args=list(FLAGS))
        yield opened
        opened.close()


class Opened:
    """A page of a report, and all that it said and asked for."""

    def __init__(self, context, path):
        self.said, self.requests = [], []
        self.page = context.new_page()
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.said.append(dialog.message), dialog.dismiss()))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.address = path.resolve().as_uri()
        self.page.goto(self.address)
        self.page.wait_for_selector("html[data-ready]")

    def text(self, selector):
        return self.page.locator(selector).inner_text()

    def ids(self):
        return self.page.locator("#table tbody th").all_inner_texts()

    def shown(self):
        """How many rows the filters leave."""
        text = self.text("#count")
        if text.startswith("No such row"):
            return 0
        return int(text.split(" of ")[1].split(" (")[0].replace(",", ""))


@pytest.fixture
def open_page(browser):
    """Open a file as somebody would who double-clicks it; `settings` are those of the device."""
    contexts = []

    def opened(path, **settings):
        contexts.append(browser.new_context(**{"viewport": {"width": 1200, "height": 900}, **settings}))
        return Opened(contexts[-1], path)

    yield opened
    for context in contexts:
        context.close()
