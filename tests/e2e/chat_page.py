"""The chat page as its user sees it: what can be found on it and done with it, by any test and against any engine."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from playwright.sync_api import ConsoleMessage, Dialog, Error, Locator, Page, Request, Response, Route, expect

from tests.support.processes import ROOT
from tests.support.waiting import wait_until_blocking

# The browser itself writes a console error for every answer that is not a success, and for every broken connection.
_NETWORK_LOG = "Failed to load resource"


_SAYS = """() => {
  const all = document.querySelector("#conversation");
  return [all.textContent, [...all.querySelectorAll("details")].map((part) => [part.dataset.testid, part.open])];
}"""
_OVERFLOW = """() => [document.documentElement, document.body, document.getElementById('scroller'),
    document.getElementById('column'), ...document.querySelectorAll('.tool, .answer, .user, .notice')]
    .filter((each) => each.scrollWidth > each.clientWidth + 1)
    .map((each) => `wide: ${each.tagName}#${each.id}.${each.className}`)"""
_AT = "(each) => each === document.activeElement"
_MOST_TABS = 60
TIMEOUT_MS = 30_000.0
"""For everything in a browser: it may have little of the machine, and an engine needs seconds to start."""


@dataclass
class Watch:
    """What must not happen on a page, whatever the test does."""

    host: str
    violations: list[str] = field(default_factory=list[str])

    def attach(self, page: Page) -> None:
        page.add_init_script(
            "addEventListener('securitypolicyviolation', e => console.error('CSP', e.violatedDirective, e.blockedURI))"
        )
        page.on("console", self._on_console)
        page.on("pageerror", self._on_error)
        page.on("dialog", self._on_dialog)
        page.on("request", self._on_request)

    def assert_clean(self) -> None:
        assert not self.violations, self.violations

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"} and not message.text.startswith(_NETWORK_LOG):
            self.violations.append(f"console {message.type}: {message.text}")

    def _on_error(self, error: Error) -> None:
        self.violations.append(f"uncaught: {error}")

    def _on_dialog(self, dialog: Dialog) -> None:
        self.violations.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _on_request(self, request: Request) -> None:
        parts = urlsplit(request.url)
        if parts.scheme not in {"blob", "data"} and parts.netloc != self.host:
            self.violations.append(f"request to another host: {request.url}")


class ChatPage:
    """The page object. Locators are properties, wishes are methods."""

    def __init__(self, page: Page, base_url: str) -> None:
        self.page = page
        self.base_url = base_url
        self.requests: list[Request] = []
        page.on("request", self._note)
        self.input = page.get_by_label("Message", exact=True)
        self.send = page.get_by_role("button", name="Send", exact=True)
        self.stop = page.get_by_role("button", name="Stop", exact=True)
        self.status = page.get_by_test_id("status")
        self.live = page.get_by_test_id("live")
        self.notice = page.get_by_test_id("notice")
        self.empty = page.get_by_test_id("empty-state")
        self.suggestions = page.get_by_test_id("suggestion")
        self.questions = page.get_by_test_id("message-user")
        self.queued = page.get_by_test_id("message-queued")
        self.answers = page.get_by_test_id("message-text")
        self.cards = page.get_by_test_id("tool-card")
        self.sessions = page.get_by_test_id("session-item")
        self.key_dialog = page.get_by_test_id("key-dialog")
        self.confirm_dialog = page.get_by_test_id("confirm-dialog")

    def open(self, session_id: str | None = None) -> Response | None:
        return self.page.goto(f"{self.base_url}/" + (f"#/s/{session_id}" if session_id else ""))

    def ask(self, text: str) -> None:
        self.input.fill(text)
        self.input.press("Control+Enter")  # on a phone Enter alone makes a line

    def edit(self, place: int, text: str) -> None:
        """Ask another question in the place of the one there."""
        self.page.get_by_test_id("edit-question").nth(place).click()
        box = self.page.get_by_test_id("edit-text")
        expect(box).to_be_focused()
        box.fill(text)
        box.press("Enter")

    def hold(self, url: str) -> Callable[[], None]:
        """The next request to such an address goes no further until what is returned is called."""
        held: list[Route] = []

        def keep(route: Route) -> None:
            held.append(route)

        def go_on() -> None:
            # Each question to the page lets Playwright say what has happened since.
            wait_until_blocking(lambda: self.page.evaluate("true") and held, what=f"a request to {url}")
            held[0].continue_()

        self.page.route(url, keep, times=1)
        return go_on

    @property
    def session(self) -> str:
        """The id of the conversation in the address."""
        return self.page.url.rpartition("/")[2]

    def says(self) -> tuple[str, list[tuple[str, bool]]]:
        """The text of all turns, and which parts of them are open."""
        return self.page.evaluate(_SAYS)

    def overflow(self) -> list[str]:
        """What scrolls sideways although it should not: the page, or the conversation as a whole."""
        return self.page.evaluate(_OVERFLOW)

    def _note(self, request: Request) -> None:
        self.requests.append(request)

    def sent(self, method: str, ending: str) -> list[Request]:
        """The requests so far whose path ends so."""
        return [each for each in self.requests if each.method == method and urlsplit(each.url).path.endswith(ending)]

    def asked(self, name: str) -> list[str | None]:
        """This field of each message that was sent."""
        return [json.loads(each.post_data or "{}").get(name) for each in self.posted]

    @property
    def posted(self) -> list[Request]:
        """The requests so far that sent a message, also one that waits."""
        turns = re.compile(r"/v1/(chat|sessions/[^/]+/turns)")
        return [each for each in self.requests if each.method == "POST" and turns.fullmatch(urlsplit(each.url).path)]

    @property
    def reconnects(self) -> list[str | None]:
        """The last event id of each request for the events of a turn."""
        return [each.headers.get("last-event-id") for each in self.sent("GET", "/events") if "/turns/" in each.url]

    def card(self, call: str) -> "Card":
        """The card of the only call of this tool (its full name)."""
        return Card(self.page.locator(f'[data-testid="tool-card"][data-tool="{call}"]'))

    def unfolded(self, call: str) -> "Card":
        """That card, opened as its user opens it: the line of what was done, then its own."""
        self.page.get_by_test_id("activity-summary").last.click()
        card = self.card(call)
        card.root.locator("summary").click()
        return card

    def picture(self, name: str) -> None:
        """Keep what is seen, for people to look at."""
        folder = ROOT / "test-artifacts"
        folder.mkdir(exist_ok=True)
        self.page.screenshot(path=folder / f"{name}.png", full_page=True)

    def expect_idle(self) -> None:
        """No turn runs, and everything is drawn."""
        # The page draws once per frame: what was done last is not to be seen before that, and it looks idle still.
        self.page.evaluate("() => new Promise(requestAnimationFrame)")
        expect(self.stop).to_be_hidden()
        expect(self.status).to_be_empty()


@dataclass(frozen=True)
class Card:
    """The card of one tool call."""

    root: Locator

    def expect_status(self, status: str) -> None:
        expect(self.root).to_have_attribute("data-status", status)

    def part(self, name: str) -> Locator:
        """name, status, duration, progress, message, delay, args, result, links, open-large, error, check, image."""
        return self.root.get_by_test_id(f"tool-{name}")


def press(part: Locator, key: str = "Enter") -> None:
    """Go on with Tab to this part, whose focus is to be seen, and press the key there."""
    keyboard = part.page.keyboard
    expect(part).to_be_visible()
    for _ in range(_MOST_TABS):
        if part.evaluate(_AT):
            break
        keyboard.press("Tab")
    expect(part).to_be_focused()
    assert part.evaluate("(each) => each.matches(':focus-visible') && getComputedStyle(each).outlineStyle") != "none"
    expect(part).to_be_in_viewport()
    keyboard.press(key)
