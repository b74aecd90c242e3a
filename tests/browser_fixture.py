"""A headless Chromium for the tests of pages; they fail, with what to install, where there is none."""

import shutil

import pytest


@pytest.fixture(
    scope="module"
)  # an open one is an event loop in this thread: no two at a time, and no longer than needed
def browser():
    from playwright.sync_api import sync_playwright

    names = ("chromium", "chromium-browser", "google-chrome")
    path = next((found for name in names if (found := shutil.which(name))), None)
    assert path is not None, "no Chromium was found: run scripts/chromium.sh, which installs it or says how"
    with sync_playwright() as running:
        opened = running.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield opened
        opened.close()


@pytest.fixture
def page(browser):
    """A page that notes what goes wrong in it (``wrong``) and all that it asks the network for (``asked``)."""
    opened = browser.new_page(viewport={"width": 1200, "height": 900})
    opened.wrong, opened.asked = [], []
    opened.on("console", lambda message: opened.wrong.append(message.text) if message.type == "error" else None)
    opened.on("pageerror", lambda error: opened.wrong.append(str(error)))
    opened.on("request", lambda request: opened.asked.append(request.url))
    yield opened
    opened.close()
