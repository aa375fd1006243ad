"""Connections break and pages are reloaded; the answer on the screen is whole all the same, and said once."""

import re

import pytest
from playwright.sync_api import Browser, BrowserContext, Route, expect

from plugins_contract.catalog import ApprovalPolicy
from plugins_contract.errors import ErrorCode
from plugins_contract.outcomes import CallState
from tests.e2e.chat_page import ChatPage, Watch
from tests.e2e.scripted_engine import ScriptedEngine
from tests.e2e.scripts import Call, Drop, Wait, answer, message, text
from tests.marks import exhaustive, promise, smoke

pytestmark = [pytest.mark.browser, exhaustive("needs a browser")]

COUNTING = "one two three four five six"
PARTS = "document.querySelectorAll('[data-testid=message-user], [data-testid=message-text], [data-testid=tool-card]')"
MARK = f"for (const part of {PARTS}) part.marked = true"
MARKED = f"[...{PARTS}].filter((part) => part.marked).map((part) => part.dataset.testid)"
TEXTS = ["message-user", "message-text"]
LISTEN = """globalThis.heard = [];
    for (const id of ['status', 'live'])
        new MutationObserver((all) => all.forEach(({ addedNodes }) =>
            addedNodes.forEach((node) => heard.push(node.textContent))))
            .observe(document.getElementById(id), { childList: true, subtree: true });
    new MutationObserver((all) => all.forEach(({ target }) => heard.push(target.textContent)))
        .observe(document.getElementById('status'), { characterData: true, subtree: true });"""


def unavailable(route: Route) -> None:
    route.fulfill(status=503, content_type="application/problem+json", body='{"code": "UNAVAILABLE"}')


@promise("a dropped stream goes on where it stopped", only_in_test_all="needs a browser")
def test_a_dropped_stream_resumes_where_it_stopped(chat: ChatPage, engine: ScriptedEngine) -> None:
    engine.scripts["go"] = [
        *text("one ", "two "),
        Wait("drop"),
        Drop(),
        *text("three ", "four "),
        Wait("again"),
        Drop(),
        *text("five ", "six"),
        Wait("end"),
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
    assert chat.reconnects == ["1-3", "1-5"]


def test_the_page_says_that_it_reconnects(chat: ChatPage, engine: ScriptedEngine) -> None:
    engine.scripts["go"] = [*text("one "), Wait("back"), *text("two")]
    chat.open()
    chat.ask("go")
    expect(chat.answers).to_have_text("one")
    chat.page.route("**/events", unavailable)
    engine.drop_connections()
    expect(chat.status).to_have_text("Reconnecting…")
    expect(chat.live).to_contain_text("Connection lost. Reconnecting.")
    chat.page.unroute("**/events")
    engine.open_gate("back")
    expect(chat.answers).to_have_text("one two")
    expect(chat.live).to_contain_text("Connected again.")
    chat.expect_idle()


def test_a_conversation_opened_during_an_outage_is_loaded_after_it(chat: ChatPage, engine: ScriptedEngine) -> None:
    engine.store("Kept", ("Hi", "Hello!"))
    answers = iter((503, 502, 0))

    def away(route: Route) -> None:
        match next(answers, None):
            case None:
                route.continue_()
            case 0:
                route.abort()
            case status:
                route.fulfill(status=status, content_type="text/html", body="<h1>Away</h1>")

    chat.open()
    chat.page.route("**/messages", away)
    chat.page.get_by_role("link", name="Kept").click()
    expect(chat.answers).to_have_text("Hello!", timeout=15_000)
    expect(chat.notice).to_be_hidden()


def test_a_replay_shows_nothing_twice(chat: ChatPage, engine: ScriptedEngine) -> None:
    def from_the_start(route: Route) -> None:
        route.continue_(headers={k: v for k, v in route.request.headers.items() if k != "last-event-id"})

    call = Call("demo__job")
    engine.scripts["go"] = [
        message("one ", call),
        *call.begun(),
        Wait("drop"),
        Drop(),
        call.succeeded("fine"),
        *answer("two"),
    ]
    chat.page.route("**/events", from_the_start)
    chat.open()
    chat.ask("go")
    chat.card("demo__job").expect_status("running")
    engine.open_gate("drop")
    chat.expect_idle()
    expect(chat.answers).to_have_text(["one", "two"])
    expect(chat.cards).to_have_count(1)
    assert len(chat.reconnects) == 1


def test_a_turn_that_ended_during_an_outage_is_read_from_its_messages(chat: ChatPage, engine: ScriptedEngine) -> None:
    engine.scripts["go"] = [*text("one "), Wait("end"), *text("two")]
    chat.open()
    chat.ask("go")
    expect(chat.answers).to_have_text("one")
    chat.page.route("**/events", unavailable)
    engine.drop_connections()
    expect(chat.status).to_have_text("Reconnecting…")
    engine.open_gate("end")
    chat.page.route("**/events", lambda route: route.fulfill(status=204))
    expect(chat.answers).to_have_text("one two")
    chat.expect_idle()


@promise("the page survives a reload in the middle of an answer")
@smoke
def test_a_reload_during_an_answer_follows_it_again(chat: ChatPage, engine: ScriptedEngine) -> None:
    call = Call("demo__job", {"n": 1})
    engine.scripts["go"] = [
        message("Before. ", call),
        *call.begun(),
        call.succeeded("fine"),
        *text("After"),
        Wait("end"),
        *text(" all."),
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


@promise("the page resumes without an error, a flicker or a duplicate", only_in_test_all="needs a browser")
def test_items_of_a_reset_are_shown_once_and_keep_their_state(chat: ChatPage, engine: ScriptedEngine) -> None:
    first, second, lost = Call("demo__first"), Call("demo__second"), Call("demo__lost")
    engine.scripts["go"] = [
        message("Let me **see**.", first, second, lost),
        *first.begun(),
        *second.begun(),
        first.succeeded("fine"),
        Wait("the restart"),
        # One call has ended meanwhile; another is not answered yet.
        lost.ended(CallState.UNKNOWN, ErrorCode.OUTCOME_UNKNOWN, "Who knows?"),
        second.running(),
        Wait("end"),
        second.succeeded("fine, too"),
        *answer("Done."),
    ]
    chat.open()
    chat.ask("go")
    chat.card("demo__first").expect_status("succeeded")
    chat.unfolded("demo__first")
    expect(chat.answers.locator("strong")).to_have_text("see")
    chat.page.evaluate(MARK)
    engine.restart()
    chat.card("demo__lost").expect_status("unknown")
    chat.card("demo__second").expect_status("running")
    expect(chat.cards).to_have_count(3)
    # The very same elements: nothing was taken away and put back, but the call that is to be seen now.
    assert chat.page.evaluate(MARKED) == ["message-user", "tool-card", "tool-card", "message-text"]
    assert chat.card("demo__first").root.get_attribute("open") is not None
    engine.open_gate("end")
    chat.expect_idle()
    expect(chat.answers).to_have_text(["Let me see.", "Done."])


@promise("the page resumes without an error, a flicker or a duplicate")
def test_a_reconnect_hint_of_the_server_is_followed_silently(chat: ChatPage, engine: ScriptedEngine) -> None:
    engine.scripts["go"] = [*text("one "), Wait("reconnect"), Drop(hint=True), *text("two "), Wait("end")]
    chat.open()
    chat.ask("go")
    expect(chat.answers).to_have_text("one")
    chat.page.evaluate(MARK)
    chat.page.evaluate(LISTEN)
    engine.open_gate("reconnect")
    expect(chat.answers).to_have_text("one two")
    assert chat.page.evaluate(MARKED) == TEXTS
    # Between the end of a message and that of its turn the page may well say that the model thinks.
    assert set(chat.page.evaluate("heard")) <= {"Writing…"}
    engine.open_gate("end")
    chat.expect_idle()
    expect(chat.notice).to_be_hidden()
    assert set(chat.reconnects) <= {"1-2", "1-3"}  # "two " may come with the hint


@promise("several tabs watch one turn", only_in_test_all="needs a browser")
def test_two_tabs_follow_one_turn_and_either_can_stop_it(
    chat: ChatPage, engine: ScriptedEngine, context: BrowserContext, watch: Watch
) -> None:
    shared = engine.store("About leases", ("Why?", "Because."))
    job = Call("demo__job")
    engine.scripts["go"] = [message("Wait. ", job), *job.begun(), Wait("never")]
    page = context.new_page()
    watch.attach(page)
    other = ChatPage(page, chat.base_url)
    for tab in (chat, other):
        tab.open(shared)
        expect(tab.answers).to_have_text("Because.")
    other.page.evaluate(MARK)
    chat.ask("go")
    # The other tab was asked nothing, and shows it all.
    for tab in (chat, other):
        tab.card("demo__job").expect_status("running")
        expect(tab.questions).to_have_text(["Why?", "go"])
        expect(tab.answers).to_have_text(["Because.", "Wait."])
    assert other.page.evaluate(MARKED) == TEXTS
    other.stop.click()
    for tab in (chat, other):
        tab.card("demo__job").expect_status("cancelled")
        tab.expect_idle()
    assert len(other.sent("POST", "/cancel")) == 1


HIDDEN = """(hidden) => {
    Object.defineProperty(document, 'hidden', { configurable: true, get: () => hidden });
    document.dispatchEvent(new Event('visibilitychange', { bubbles: true }));
}"""


@promise("many tabs of one browser follow turns, and all can be used", only_in_test_all="takes 30 s")
def test_twelve_tabs_leave_connections_for_what_a_person_does(
    chat: ChatPage, engine: ScriptedEngine, context: BrowserContext, watch: Watch
) -> None:
    ask = Call("files__write", approval=ApprovalPolicy.ALWAYS)
    engine.scripts |= {"long": [*text("Long."), Wait("never")], "short": [*text("Short."), Wait("end")]}
    engine.scripts["go"] = [message("", ask), *ask.begun(), ask.succeeded("Written."), *text("On."), Wait("never")]
    sessions = [engine.store("Quiet", ("Why?", "Because."))]
    for question in ("long", "short"):
        chat.open()
        chat.ask(question)
        expect(chat.answers).to_be_visible()
        sessions.append(chat.session)
        chat.page.get_by_test_id("new-conversation").click()
    tabs = [ChatPage(context.new_page(), chat.base_url) for _ in range(11)]
    for number, tab in enumerate(tabs):
        watch.attach(tab.page)
        tab.open(sessions[number % 3])
        expect(tab.questions).to_be_visible()
    for tab in tabs[5:]:  # the first three that follow a turn have the places
        if tab not in tabs[::3]:
            expect(tab.status).to_contain_text("Other tabs follow answers now.")

    # The twelfth is seen as the others are: it has no place, and everything can be done in it.
    chat.ask("go")
    expect(chat.page.get_by_test_id("approve")).to_be_visible()
    expect(tabs[0].page).to_have_title(re.compile(r"^\(1\) "))
    chat.page.get_by_test_id("approve").click()
    chat.card("files__write").expect_status("succeeded")
    chat.ask("next")
    expect(chat.queued).to_be_visible()
    chat.stop.click()
    chat.expect_idle()
    expect(chat.queued).to_contain_text("You stopped the answer before it")

    # Tabs that are hidden give their places to those that are seen.
    for tab in tabs[:6]:
        tab.page.evaluate(HIDDEN, arg=True)
    chat.page.get_by_test_id("queued-send").click()
    engine.open_gate("end")
    for tab in tabs[2::3]:
        tab.expect_idle()
    for tab in tabs[7::3]:
        expect(tab.answers).to_have_text("Long.")
    tabs[-1].page.close()


@promise("the page says when no tools are there", only_in_test_all="needs a browser")
def test_the_page_says_that_no_tools_are_available(chat: ChatPage, engine: ScriptedEngine) -> None:
    engine.has_tools = False
    chat.open()
    tools = chat.page.get_by_test_id("tools")
    expect(tools).to_have_text("No tools are available")
    engine.has_tools = True
    chat.page.evaluate("dispatchEvent(new Event('focus'))")
    expect(tools).to_have_text("4 tools")


@promise("every change of a session reaches each browser of its subject, in the order in which it was committed")
def test_one_stream_of_conversations_serves_all_tabs_and_outlives_the_tab_that_has_it(
    chat: ChatPage, engine: ScriptedEngine, context: BrowserContext, browser: Browser, watch: Watch
) -> None:
    ask = Call("files__write", approval=ApprovalPolicy.ALWAYS)
    engine.scripts["go"] = [message("", ask), *ask.begun(), ask.succeeded("Written."), *text("On."), Wait("end")]
    with browser.new_context() as device:
        tabs = [chat, *(ChatPage(page.new_page(), chat.base_url) for page in (context, device))]
        for tab in tabs:
            tab.open()
            expect(tab.page.get_by_test_id("model-label")).to_be_visible()
        other, elsewhere = tabs[1:]
        watch.attach(other.page)
        chat.ask("go")
        for tab in (other, elsewhere):
            expect(tab.sessions).to_contain_text("Needs your approval")
            expect(tab.page).to_have_title(re.compile(r"^\(1\) "))
        assert [len(tab.sent("GET", "/v1/events")) for tab in tabs] == [1, 0, 1]

        chat.page.get_by_test_id("approve").click()
        expect(other.sessions).to_contain_text("Answering…")
        chat.page.close()
        engine.open_gate("end")
        for tab in (other, elsewhere):
            expect(tab.sessions).not_to_contain_text("Answering…")
        assert len(other.sent("GET", "/v1/events")) == 1
        other.page.get_by_test_id("session-delete").click()
        other.page.get_by_test_id("confirm-delete").click()
        expect(elsewhere.sessions).to_have_count(0)


def test_a_conversation_that_is_left_gives_its_connection_back(chat: ChatPage, engine: ScriptedEngine) -> None:
    chat.open()
    for question in ("one", "two", "three", "four"):
        engine.scripts[question] = [*text("Some words"), Wait("never")]
        chat.page.get_by_test_id("new-conversation").click()
        expect(chat.answers).to_have_count(0)
        chat.ask(question)
        expect(chat.answers).to_have_text("Some words")
        expect(chat.status).to_have_text("Writing…")
