"""The browser, and a chat page in it.

A module that wants the page of another engine overrides the fixture `base_url`; everything else stays as it is.
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tests.e2e.chat_page import TIMEOUT_MS, ChatPage, Watch
from tests.e2e.scripted_engine import ScriptedEngine
from tests.support.loop_probe import short_turns

__all__ = ["short_turns"]

_NAMES = ("chromium", "google-chrome", "chromium-browser")
_ARGUMENTS = [
    "--no-sandbox",
    "--disable-background-networking",
    "--disable-gpu",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]


# Playwright's event loop occupies the thread for as long as it lives. One per module, so that it never meets the loop
# of an asynchronous test in another one.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium, once per module. `CHROMIUM` names another binary."""
    binary = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, _NAMES)), None)
    if binary is None:
        pytest.skip("needs Chromium: install it, or name its binary in CHROMIUM")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=binary, args=_ARGUMENTS, timeout=2 * TIMEOUT_MS)
        yield browser
        browser.close()


@pytest.fixture(scope="session", autouse=True)
def timeouts() -> None:
    """For expectations; those of a page's own actions are in `context`."""
    expect.set_options(timeout=TIMEOUT_MS)


@pytest.fixture
def engine(tmp_path: Path, redis_url: str) -> Iterator[ScriptedEngine]:
    """The engine that serves the page, with a scripted model and scripted tools."""
    engine = ScriptedEngine(tmp_path, redis_url)
    with engine.serving():
        yield engine


@pytest.fixture
def base_url(engine: ScriptedEngine) -> str:
    return engine.url


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    context = browser.new_context(
        viewport={"width": 1200, "height": 800}, color_scheme="light", reduced_motion="reduce"
    )
    context.set_default_timeout(TIMEOUT_MS)
    yield context
    context.close()


@pytest.fixture
def watch(base_url: str) -> Iterator[Watch]:
    """Fails its test for a console error, a dialog, a policy violation or a request to another host."""
    watch = Watch(urlsplit(base_url).netloc)
    yield watch
    watch.assert_clean()


@pytest.fixture
def page(context: BrowserContext, watch: Watch) -> Page:
    page = context.new_page()
    watch.attach(page)
    return page


@pytest.fixture
def chat(page: Page, base_url: str) -> ChatPage:
    return ChatPage(page, base_url)


@pytest.fixture
def second(context: BrowserContext, watch: Watch, base_url: str) -> ChatPage:
    """Another tab of the same user."""
    page = context.new_page()
    watch.attach(page)
    return ChatPage(page, base_url)
