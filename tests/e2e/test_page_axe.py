"""axe, the checker of accessibility, finds nothing in any state of the page, and nothing in it is too wide."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from plugins_contract.catalog import ApprovalPolicy
from plugins_contract.errors import ErrorCode
from plugins_contract.outcomes import CallState
from tests.e2e.chat_page import ChatPage
from tests.e2e.scripted_engine import ScriptedEngine
from tests.e2e.scripts import Call, Fail, Script, Think, Wait, answer, message, text
from tests.e2e.test_page_questions import BOOK, FORM
from tests.marks import exhaustive, promise
from tests.support.processes import ROOT

pytestmark = [pytest.mark.browser, exhaustive("needs a browser, and the page's packages of npm")]

AXE = ROOT / "services/dialog-engine/web/node_modules/axe-core/axe.min.js"
SECRET = "a-secret-of-32-characters-at-least"
LOOKS = {"light": (1200, 800), "dark": (1200, 800), "phone": (390, 844)}
MORE_LOOKS = {**LOOKS, "few colours": (1200, 800), "200 %": (600, 400), "400 %": (320, 256)}
DELETE = Call("files__delete", {"path": "/tmp/x"}, "files", title="Delete", approval=ApprovalPolicy.ALWAYS)
FIND = Call("docs__find", {"query": "outbox"}, "docs")
MARKDOWN = "# Head\n\n| a | b |\n|---|--:|\n| 1 | 2 |\n\n```python\nprint(1)\n```\n\n> said\n\n- [x](https://a.example)\n\n$$x^2$$"
STATES: dict[str, tuple[Script, str]] = {
    "markdown": (answer(MARKDOWN), "facts"),
    "long code": (answer("```js\n" + "let x = 1;\n" * 50 + "```"), "unfold-code"),
    "writing": ([Think("Hm."), *text("Some words"), Wait("never")], "message-text"),
    "running": ([*FIND.begun(), FIND.progress(1, 4, "One of four"), Wait("never")], "activity-progress"),
    "done": ([*FIND.begun(), FIND.succeeded('[{"a": 1}]'), *answer("Found.")], "facts"),
    "asked": ([message("", DELETE), *answer("Done.")], "approval"),
    "form": ([*BOOK.begun(), BOOK.asks("When?", FORM), BOOK.succeeded("Well."), *answer("Done.")], "asked"),
    "address": ([*BOOK.begun(), BOOK.asks("Pay", url="https://pay.example"), *answer("Done.")], "asked"),
    "failed": ([*FIND.begun(), FIND.ended(CallState.FAILED, ErrorCode.TIMEOUT, "Late."), *answer("No.")], "facts"),
    "unknown": ([*FIND.begun(), FIND.ended(CallState.UNKNOWN, ErrorCode.LOST, "Gone."), *answer("Well.")], "facts"),
    "diff": ([*FIND.begun(), FIND.succeeded("@@ -1 +1 @@\n-one\n+two"), *answer("Changed.")], "facts"),
    "error": ([Fail("The model is gone.")], "turn-error"),
}
LARGE = {"done": ("Table", "Tree", "Text"), "diff": ("Diff", "Text")}
"""How a result is shown in its own window."""


@pytest.fixture
def looking(chat: ChatPage, look: str) -> None:
    if not AXE.exists():
        pytest.skip("needs the packages of the page: make check-web installs them")
    width, height = MORE_LOOKS[look]
    chat.page.set_viewport_size({"width": width, "height": height})
    chat.page.emulate_media(color_scheme="dark" if look == "dark" else "light")
    if look == "few colours":
        chat.page.emulate_media(forced_colors="active")


def problems(page: Page) -> list[str]:
    """What axe finds on the page as it is."""
    if not page.evaluate("'axe' in globalThis"):
        page.evaluate(AXE.read_text())
    found = page.evaluate("async () => (await axe.run(document, { resultTypes: ['violations'] })).violations")
    return [f"{each['id']}: {each['nodes'][0]['html'][:200]}" for each in found]


@promise("the page works by keyboard, screen reader, in the dark and on a phone")
@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.usefixtures("looking")
def test_axe_finds_nothing_in_any_state_of_an_answer(chat: ChatPage, engine: ScriptedEngine) -> None:
    page = chat.page
    chat.open()
    found = {"empty": problems(page)}
    for name, (script, shown) in STATES.items():
        engine.scripts[name] = script
        page.get_by_test_id("new-conversation").dispatch_event("click")
        chat.ask(name)
        expect(page.get_by_test_id(shown).last).to_be_visible()
        found[name] = problems(page)
        for part in page.get_by_test_id("activity-summary").all() + page.locator(".activity .tool > summary").all():
            part.click()
        found[f"{name}, opened"] = problems(page)
        if name == "form":
            page.get_by_test_id("asked-answer").click()
            expect(page.get_by_test_id("asked-problem").first).not_to_be_empty()
            found["form, wrong"] = problems(page)
            page.get_by_test_id("asked-decline").click()
            chat.expect_idle()
            chat.cards.last.locator("summary").click()
            expect(page.get_by_test_id("asked-over")).to_be_visible()
            found["declined"] = problems(page)
        for view in LARGE.get(name, ()):
            if view == LARGE[name][0]:
                page.get_by_test_id("tool-open-large").click()
            page.get_by_test_id("large-result").get_by_role("button", name=view, exact=True).click()
            found[f"{name}, large: {view}"] = problems(page)
        if name in LARGE:
            page.get_by_test_id("close-large").click()
    assert {name: each for name, each in found.items() if each} == {}


def waiting(chat: ChatPage) -> Iterator[str]:
    """What a message goes through that is not sent at once; each state by its name."""
    part = chat.page.get_by_test_id
    chat.ask("x" * 2001)
    expect(chat.notice).to_be_visible()
    yield "notice"
    part("notice-dismiss").click()
    chat.ask("writing")
    expect(chat.answers).to_have_text("Some words")
    chat.page.route("**/turns/*/events", lambda route: route.abort())
    chat.page.reload()
    expect(chat.status).to_have_text("Reconnecting…")
    yield "reconnecting"
    chat.page.unroute("**/turns/*/events")
    expect(chat.answers).to_have_text("Some words")
    chat.ask("one")
    expect(chat.queued).to_be_visible()
    yield "waiting"
    part("queued-edit").click()
    yield "waiting, edited"
    part("queued-cancel").click()
    chat.edit(0, "two")
    expect(part("waiting-dialog")).to_be_visible()
    yield "edited during an answer"
    part("waiting-cancel").click()
    part("edit-cancel").click()
    chat.stop.click()
    expect(chat.queued).to_contain_text("You stopped the answer before it")
    yield "held"
    part("queued-send").click()
    expect(chat.answers.last).to_have_text("One.")
    chat.expect_idle()


def asked(chat: ChatPage) -> Iterator[str]:
    """What is asked before something is done, and versions."""
    part = chat.page.get_by_test_id
    chat.edit(1, "lost")
    expect(part("versions")).to_be_visible()
    expect(part("regenerate").last).to_be_visible()
    yield "versions, unknown"
    part("edit-question").last.click()
    expect(part("edit-text")).to_be_visible()
    yield "edited"
    part("edit-cancel").click()
    part("regenerate").last.click()
    expect(part("leaving-dialog")).to_be_visible()
    yield "asked again"
    part("leaving-cancel").click()
    part("session-delete").dispatch_event("click")
    expect(chat.confirm_dialog).to_be_visible()
    yield "deleted"
    part("confirm-cancel").click()
    chat.ask("asked")
    part("refuse").click()
    chat.expect_idle()
    chat.cards.last.locator("summary").click()
    expect(part("approval-decided")).to_be_visible()
    yield "refused"
    if part("sidebar-toggle").is_visible():
        part("sidebar-toggle").click()
    part("tools").click()
    expect(part("servers")).to_be_visible()
    yield "servers, in the drawer where it is one"


def offered(chat: ChatPage) -> Iterator[str]:
    """What is found at the message box."""
    part = chat.page.get_by_test_id
    one = {"server": "docs", "uri": "docs://one", "name": "One", "template": False}
    sums = {"server": "docs", "name": "sums", "description": "Sums up.", "arguments": [{"name": "text"}]}
    content = {"contents": [{"uri": "docs://one", "text": "ONE"}]}
    chat.page.route("**/v1/resources?*", lambda route: route.fulfill(json={"resources": [one]}))
    chat.page.route("**/v1/prompts?*", lambda route: route.fulfill(json={"prompts": [sums]}))
    chat.page.route("**/v1/resources/content?*", lambda route: route.fulfill(json=content))
    chat.input.press_sequentially("@o")
    expect(part("offers")).to_be_visible()
    yield "resources"
    chat.input.press("Enter")
    expect(part("attached")).to_be_visible()
    yield "attached"
    part("detach").click()
    chat.input.press_sequentially("/s")
    expect(part("offers")).to_be_visible()
    chat.input.press("Enter")
    expect(part("offer-dialog")).to_be_visible()
    yield "prompt"
    part("offer-cancel").click()


def expired(chat: ChatPage) -> Iterator[str]:
    chat.ask("asked")
    expect(chat.page.get_by_test_id("approval-decided").last).to_contain_text("There was no decision in time")
    yield "expired"


def signing_in(chat: ChatPage) -> Iterator[str]:
    expect(chat.key_dialog).to_be_visible()
    yield "key"
    chat.page.get_by_test_id("key-input").fill("wrong")
    chat.page.get_by_test_id("key-submit").click()
    expect(chat.page.get_by_test_id("key-rejected")).to_be_visible()
    yield "wrong key"


@promise("the page works by keyboard, screen reader, in the dark and on a phone")
@pytest.mark.parametrize("look", MORE_LOOKS)
@pytest.mark.usefixtures("looking")
def test_axe_finds_nothing_in_what_waits_and_in_what_is_asked(chat: ChatPage, engine: ScriptedEngine) -> None:
    unknown = FIND.ended(CallState.UNKNOWN, ErrorCode.LOST, "Gone.")
    engine.scripts |= {"one": answer("One."), "writing": STATES["writing"][0], "asked": STATES["asked"][0]}
    engine.scripts["lost"] = [*FIND.begun(), unknown, *answer("Well.")]
    found: dict[str, list[str]] = {}
    servers = [
        {"server": "docs", "state": "ready"},
        {"server": "files", "state": "failed", "error": "connection refused"},
    ]
    chat.page.route("**/v1/tools", lambda route: route.fulfill(json={"servers": servers}))
    chat.open()
    for states in (offered, waiting, asked, expired, signing_in):
        if changed := {expired: {"approval_timeout_seconds": 0.2}, signing_in: {"api_keys": {"ann": SECRET}}}.get(
            states
        ):
            engine.restart(**changed)
            chat.page.reload()
        for name in states(chat):
            found[name] = problems(chat.page) + chat.overflow()
    assert {name: each for name, each in found.items() if each} == {}
    assert len(found) == 18
