"""Messages that wait, in the page: every tab shows the same, and nothing is lost by a reload or with the engine."""

import re

import pytest
from playwright.sync_api import expect

from tests.e2e.chat_page import ChatPage
from tests.e2e.scripted_engine import ScriptedEngine
from tests.e2e.scripts import Wait, answer, message, text
from tests.marks import exhaustive, promise

pytestmark = [pytest.mark.browser, exhaustive("needs a browser")]


@promise("messages that wait are shown by every tab and kept through a reload and the end of the engine")
def test_every_tab_shows_what_waits_and_may_change_it_through_reloads_and_a_restart_of_the_engine(
    chat: ChatPage, second: ChatPage, engine: ScriptedEngine
) -> None:
    # A restart takes the step at which a turn is.
    going = [*text("Some words"), Wait("more"), Wait("more"), message("Some words")]
    engine.scripts |= {"go": going, "b": answer("B."), "changed": answer("Changed.")}
    chat.open()
    chat.ask("go")
    expect(chat.answers).to_have_text("Some words")
    for number, question in enumerate(("a", "b", "c"), 1):
        chat.ask(question)
        expect(chat.queued).to_have_count(number)
    session_id = chat.session
    second.open(session_id)
    expect(second.queued).to_have_count(3)
    second.page.get_by_test_id("queued-edit").first.click()
    box = second.page.get_by_test_id("queued-text")
    box.fill("x")
    second.page.reload()
    expect(box).to_have_value("x")
    box.fill("")
    chat.queued.nth(2).get_by_test_id("queued-withdraw").click()
    expect(second.queued).to_have_count(1)
    expect(box).to_be_focused()  # also while nothing is in it
    box.fill("changed")
    chat.ask("d")
    chat.queued.nth(2).get_by_test_id("queued-withdraw").click()
    expect(chat.queued).to_have_text([re.compile(text) for text in ("^a", "^b")])  # no tab edits what another one does
    expect(second.queued).to_have_count(1)
    second.page.get_by_test_id("queued-save").click()
    expect(chat.queued.first).to_contain_text("changed")
    expect(second.queued).to_have_count(2)

    chat.page.reload()
    engine.restart()
    for tab in (chat, second):
        expect(tab.queued).to_have_count(2)
    engine.open_gate("more")

    for tab in (chat, second):
        expect(tab.questions).to_have_text(["go", "changed", "b"])
        expect(tab.answers.last).to_have_text("B.")
        expect(tab.queued).to_have_count(0)
        tab.expect_idle()


@promise("messages that wait are shown by every tab and kept through a reload and the end of the engine")
def test_after_a_stop_a_message_is_held_until_it_is_sent(
    chat: ChatPage, second: ChatPage, engine: ScriptedEngine
) -> None:
    engine.scripts |= {"go": [*text("Some words"), Wait("more")], "next": answer("Next.")}
    chat.open()
    chat.ask("go")
    expect(chat.answers).to_have_text("Some words")
    chat.ask("next")
    expect(chat.queued).to_be_visible()
    second.open(chat.session)
    second.stop.click()
    for tab in (chat, second):
        expect(tab.queued).to_contain_text("You stopped the answer before it")
    second.page.get_by_test_id("queued-send").click()
    for tab in (chat, second):
        expect(tab.answers.last).to_have_text("Next.")
        expect(tab.queued).to_have_count(0)
