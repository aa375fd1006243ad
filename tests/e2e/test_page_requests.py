"""What the page asks the engine for: nothing that the stream of a turn, or that of all conversations, says."""

import re
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import BrowserContext, expect

from tests.e2e.chat_page import ChatPage, Watch
from tests.e2e.scripted_engine import ScriptedEngine
from tests.e2e.scripts import Call, Wait, answer
from tests.marks import exhaustive, promise

pytestmark = [pytest.mark.browser, exhaustive("needs a browser")]


BEGUN = """() => ["about", "sessions"].every((name) => 2 ===
    performance.getEntriesByType("resource").filter((each) => each.name.endsWith(`/v1/${name}`)).length)"""
"""Both are asked for again when the stream of all conversations begins."""


def asked(chat: ChatPage) -> list[str]:
    """The requests to the API since this was last called, with `*` in place of ids."""
    paths = [(each.method, urlsplit(each.url).path) for each in chat.requests if "/v1/" in each.url]
    chat.requests.clear()
    return [f"{method} {re.sub(r'[0-9a-f-]{36}', '*', path)}" for method, path in paths]


@promise("a turn of the page is one request, as with curl", only_in_test_all="needs a browser")
def test_a_turn_is_one_request_and_lists_are_not_asked_for_again(
    chat: ChatPage, context: BrowserContext, watch: Watch, engine: ScriptedEngine
) -> None:
    call = Call("demo__job")
    engine.scripts |= {
        "one": answer("One."),
        "two": [*call.begun(), Wait("end"), call.succeeded("fine"), *answer("Two.")],
    }
    chat.open()
    chat.page.wait_for_function(BEGUN)
    asked(chat)
    chat.ask("one")
    expect(chat.sessions).to_contain_text("Just now")
    chat.expect_idle()
    assert asked(chat) == ["POST /v1/chat"]

    chat.ask("two")
    expect(chat.sessions).to_contain_text("Answering…")
    engine.open_gate("end")
    expect(chat.sessions).to_contain_text("Just now")
    expect(chat.answers).to_have_text(["One.", "Two."])
    chat.expect_idle()
    assert asked(chat) == ["POST /v1/chat"]
    with chat.page.expect_response("**/v1/about"):  # how many tools there are
        chat.page.evaluate("dispatchEvent(new Event('focus'))")
    assert asked(chat) == ["GET /v1/about"]

    other_page = context.new_page()
    watch.attach(other_page)
    other = ChatPage(other_page, chat.base_url)
    other.open(chat.session)
    expect(other.answers).to_have_text(["One.", "Two."])
    engine.scripts["three"] = answer("Three.")
    chat.ask("three")
    expect(other.answers).to_have_text(["One.", "Two.", "Three."])
    expect(chat.sessions).to_contain_text("Just now")
    chat.expect_idle()
    assert asked(chat) == ["POST /v1/chat"]
