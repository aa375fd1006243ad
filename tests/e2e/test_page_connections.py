"""Connections break and pages are reloaded; the answer on the screen is whole all the same, and said once."""

import pytest
from playwright.sync_api import Route, expect

from tests.e2e.chat_page import ChatPage
from tests.e2e.scripted_engine import ScriptedEngine
from tests.e2e.scripts import Call, Drop, Say, Wait, answer, done, message, text

pytestmark = pytest.mark.browser

COUNTING = "one two three four five six"


def test_a_stream_dropped_in_the_middle_goes_on_where_it_stopped(chat: ChatPage, engine: ScriptedEngine) -> None:
    engine.scripts["go"] = [
        *text("one ", "two "),
        Wait("drop"),
        Drop(),
        *text("three ", "four "),
        Wait("again"),
        Drop(),
        *text("five ", "six"),
        Wait("end"),
        message(COUNTING),
        done(),
    ]
    chat.open()
    chat.ask("go")
    expect(chat.answers).to_have_text("one two")
    engine.open_gate("drop")
    expect(chat.answers).to_have_text("one two three four")
    engine.open_gate("again")
    expect(chat.answers).to_have_text(COUNTING)
    engine.open_gate("end")
    chat.expect_idle()
    expect(chat.answers).to_have_text(COUNTING)
    assert engine.reconnects == ["1-3", "1-5"]


def test_while_the_server_is_away_the_page_says_that_it_reconnects(chat: ChatPage, engine: ScriptedEngine) -> None:
    engine.scripts["go"] = [*text("one "), Wait("back"), *text("two"), message("one two"), done()]
    chat.open()
    chat.ask("go")
    expect(chat.answers).to_have_text("one")
    engine.unavailable = True
    engine.drop_connections()
    expect(chat.status).to_have_text("Reconnecting…")
    expect(chat.live).to_contain_text("Connection lost. Reconnecting.")
    engine.unavailable = False
    engine.open_gate("back")
    expect(chat.answers).to_have_text("one two")
    expect(chat.live).to_contain_text("Connected again.")
    chat.expect_idle()


def test_a_replay_of_what_was_seen_already_shows_nothing_twice(chat: ChatPage, engine: ScriptedEngine) -> None:
    def from_the_start(route: Route) -> None:
        route.continue_(headers={k: v for k, v in route.request.headers.items() if k != "last-event-id"})

    call = Call("demo__job", "job")
    engine.scripts["go"] = [
        *text("one "),
        message("one ", call),
        *call.announced(),
        Wait("drop"),
        Drop(),
        call.succeeded("fine"),
        *answer("two"),
        done(),
    ]
    chat.page.route("**/events", from_the_start)
    chat.open()
    chat.ask("go")
    chat.card("demo__job").expect_status("running")
    engine.open_gate("drop")
    chat.expect_idle()
    expect(chat.answers).to_have_text(["one", "two"])
    expect(chat.cards).to_have_count(1)
    assert engine.reconnects == [None]


def test_a_turn_that_ended_while_nobody_listened_is_read_from_its_messages(
    chat: ChatPage, engine: ScriptedEngine
) -> None:
    engine.scripts["go"] = [*text("one "), Wait("end"), *text("two"), message("one two"), done()]
    chat.open()
    chat.ask("go")
    expect(chat.answers).to_have_text("one")
    engine.forget_logs = True  # the log of an ended turn answers 204
    engine.unavailable = True
    engine.drop_connections()
    expect(chat.status).to_have_text("Reconnecting…")
    engine.open_gate("end")
    engine.unavailable = False
    expect(chat.answers).to_have_text("one two")
    chat.expect_idle()


def test_a_reload_in_the_middle_of_an_answer_joins_it_again(chat: ChatPage, engine: ScriptedEngine) -> None:
    call = Call("demo__job", "job", {"n": 1})
    engine.scripts["go"] = [
        *text("Before. "),
        message("Before. ", call),
        *call.announced(),
        call.succeeded("fine"),
        *text("After"),
        Wait("end"),
        *text(" all."),
        message("After all."),
        done(),
    ]
    chat.open()
    chat.ask("go")
    expect(chat.answers).to_have_text(["Before.", "After"])
    chat.page.reload()
    expect(chat.answers).to_have_text(["Before.", "After"])
    expect(chat.questions).to_have_text("go")
    chat.card("demo__job").expect_status("succeeded")
    engine.open_gate("end")
    expect(chat.answers).to_have_text(["Before.", "After all."])
    chat.expect_idle()
    chat.page.reload()
    expect(chat.answers).to_have_text(["Before.", "After all."])
    expect(chat.cards).to_have_count(1)


def test_a_reset_drops_the_unfinished_text_and_nothing_else(chat: ChatPage, engine: ScriptedEngine) -> None:
    engine.scripts["go"] = [
        *answer("kept"),
        *text("dropped"),
        Wait("reset"),
        Say("reset", {"reason": "the engine was restarted"}),
        *text("said again"),
        Wait("end"),
        message("said again"),
        done(),
    ]
    chat.open()
    chat.ask("go")
    expect(chat.answers).to_have_text(["kept", "dropped"])
    engine.open_gate("reset")
    expect(chat.answers).to_have_text(["kept", "said again"])
    engine.open_gate("end")
    chat.expect_idle()
    expect(chat.answers).to_have_text(["kept", "said again"])


def test_the_finished_message_replaces_what_was_streamed(chat: ChatPage, engine: ScriptedEngine) -> None:
    engine.scripts["go"] = [*text("one too"), Wait("end"), message("one two"), done()]
    chat.open()
    chat.ask("go")
    expect(chat.answers).to_have_text("one too")
    engine.open_gate("end")
    expect(chat.answers).to_have_text("one two")


def test_without_the_markdown_renderer_the_answer_is_still_readable(chat: ChatPage, engine: ScriptedEngine) -> None:
    engine.scripts["go"] = [*answer("plain *words*"), done()]
    chat.page.route("**/ui/markdown", lambda route: route.abort())
    chat.open()
    chat.ask("go")
    chat.expect_idle()
    expect(chat.answers).to_have_text("plain *words*")
