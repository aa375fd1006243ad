"""axe, the checker of accessibility, finds nothing in any state of the page: light, dark, and on a phone."""

import pytest
from playwright.sync_api import Page, expect

from plugins_contract.catalog import ApprovalPolicy
from plugins_contract.errors import ErrorCode
from plugins_contract.outcomes import CallState
from tests.e2e.chat_page import ChatPage
from tests.e2e.scripted_engine import ScriptedEngine
from tests.e2e.scripts import Call, Fail, Script, Think, Wait, answer, message, text
from tests.marks import exhaustive, promise
from tests.support.processes import ROOT

pytestmark = [pytest.mark.browser, exhaustive("needs a browser, and the page's packages of npm")]

AXE = ROOT / "services/dialog-engine/web/node_modules/axe-core/axe.min.js"
LOOKS = {"light": (1200, 800), "dark": (1200, 800), "phone": (390, 844)}
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
    "failed": ([*FIND.begun(), FIND.ended(CallState.FAILED, ErrorCode.TIMEOUT, "Late."), *answer("No.")], "facts"),
    "unknown": (
        [*FIND.begun(), FIND.ended(CallState.UNKNOWN, ErrorCode.LOST, "Gone."), *answer("Well.")],
        "facts",
    ),
    "error": ([Fail("The model is gone.")], "turn-error"),
}


def problems(page: Page) -> list[str]:
    """What axe finds on the page as it is."""
    found = page.evaluate("async () => (await axe.run(document, { resultTypes: ['violations'] })).violations")
    return [f"{each['id']}: {each['nodes'][0]['html'][:200]}" for each in found]


@promise("the page works by keyboard, screen reader, in the dark and on a phone")
@pytest.mark.parametrize("look", LOOKS)
def test_axe_finds_nothing_in_any_state(chat: ChatPage, engine: ScriptedEngine, look: str) -> None:
    if not AXE.exists():
        pytest.skip("needs the packages of the page: make check-web installs them")
    width, height = LOOKS[look]
    page = chat.page
    page.set_viewport_size({"width": width, "height": height})
    page.emulate_media(color_scheme="dark" if look == "dark" else "light")
    chat.open()
    page.evaluate(AXE.read_text())
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
        if name == "done":
            page.get_by_test_id("tool-open-large").click()
            expect(page.get_by_test_id("large-result")).to_contain_text("Table")
            found["large"] = problems(page)
            page.get_by_test_id("close-large").click()
    assert {name: each for name, each in found.items() if each} == {}
