"""The servers of the tools on the page: whether each can be used, which a conversation may use, what one has lost."""

import re

import pytest
from playwright.sync_api import expect

from plugins_contract.outcomes import CallState, TextBlock, ToolOutcome
from tests.e2e.chat_page import ChatPage
from tests.e2e.scripted_engine import ScriptedEngine
from tests.e2e.scripts import Call, answer
from tests.marks import exhaustive

pytestmark = [pytest.mark.browser, exhaustive("needs a browser")]

SERVERS = [
    {"server": "demo", "state": "ready", "breaker": "closed"},
    {"server": "files", "title": "My files", "state": "failed", "error": "connection refused"},
    {"server": "mail", "state": "ready", "breaker": "open"},
]


def test_servers_are_described_and_chosen_for_a_conversation(chat: ChatPage, engine: ScriptedEngine) -> None:
    engine.scripts["go"] = answer("Done.")
    chat.page.route("**/v1/tools", lambda route: route.fulfill(json={"servers": SERVERS}))
    tools, listed = chat.page.get_by_test_id("tools"), chat.page.get_by_test_id("servers")
    files = listed.get_by_label(re.compile("My files"))
    chat.open()
    tools.click()
    expect(listed).to_contain_text("My files cannot be reached now, and is tried again: connection refused")
    expect(listed).to_contain_text("mail has failed several times, and is tried again soon")
    expect(tools).to_contain_text("2 servers away")
    chat.picture("servers")
    files.click()
    expect(files).not_to_be_checked()
    chat.ask("go")
    chat.expect_idle()
    assert chat.asked("tools") == [{"deny": ["files/*"]}]

    chat.page.reload()
    tools.click()
    expect(files).not_to_be_checked()
    chat.ask("go")
    chat.expect_idle()
    assert chat.asked("tools")[1:] == [None], "it is that of the conversation"
    with chat.page.expect_response(f"**/v1/sessions/{chat.session}") as changed:
        files.click()
    assert not changed.value.json()["tools"].get("deny")
    expect(files).to_be_checked()
    chat.page.get_by_test_id("new-conversation").click()
    expect(files).to_be_checked()


def test_a_server_that_lost_what_it_kept_is_named_also_after_a_reload(chat: ChatPage, engine: ScriptedEngine) -> None:
    call = Call("browser__click", server="browser")
    outcome = ToolOutcome(CallState.SUCCEEDED, (TextBlock("clicked"),), duration_ms=5, attempts=1, state_lost=True)
    engine.scripts["go"] = [*call.begun(), call.answered(outcome), *answer("Done.")]
    chat.open()
    chat.ask("go")
    for _ in range(2):
        chat.expect_idle()
        expect(chat.card(call.name).part("state-lost")).to_have_text(
            "browser was started anew before this call. What it remembered of earlier calls is lost."
        )
        chat.picture("state-lost")
        chat.page.reload()


def test_the_page_says_that_tools_are_behind_one_gateway(chat: ChatPage, engine: ScriptedEngine) -> None:
    engine.restart(tool_exposure="gateway")
    chat.open()
    expect(chat.page.get_by_test_id("tools")).to_have_text("4 tools, behind one gateway")
