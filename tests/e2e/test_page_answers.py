"""A turn on the page: the question, one line of what was done, and the answer; the same after a reload as live."""

import re
import time
from collections.abc import Callable
from random import Random

import pytest
from playwright.sync_api import expect

from dialog_engine.model import FinishReason
from plugins_contract.catalog import ApprovalPolicy
from plugins_contract.errors import ErrorCode
from plugins_contract.outcomes import CallState, ToolOutcome
from tests.e2e.chat_page import ChatPage
from tests.e2e.scripted_engine import ScriptedEngine
from tests.e2e.scripts import Call, Done, Fail, Script, Think, Wait, answer, message, text
from tests.marks import exhaustive, promise

pytestmark = [pytest.mark.browser, exhaustive("needs a browser")]

WEATHER = Call("weather__get", {"days": 2, "city": "Paris"}, "weather", title="Weather today")
PAY = Call("bank__pay", {"amount": 5}, "bank", title="Pay", approval=ApprovalPolicy.ALWAYS)
LOST = ToolOutcome.failure(CallState.UNKNOWN, ErrorCode.OUTCOME_UNKNOWN, "Its worker died.")
ACTIONS = 200


def nothing(chat: ChatPage, engine: ScriptedEngine) -> None:
    """What is done before the turn ends."""


def stops(chat: ChatPage, engine: ScriptedEngine) -> None:
    chat.stop.click()


def stops_a_call(chat: ChatPage, engine: ScriptedEngine) -> None:
    chat.card(WEATHER.name).expect_status("running")
    chat.stop.click()


def loses_a_call(chat: ChatPage, engine: ScriptedEngine) -> None:
    engine.after_stop = {WEATHER.name: LOST}
    stops_a_call(chat, engine)


def stops_a_text(chat: ChatPage, engine: ScriptedEngine) -> None:
    expect(chat.answers).to_have_text("Half of")
    chat.stop.click()


def stops_a_thought(chat: ChatPage, engine: ScriptedEngine) -> None:
    expect(chat.page.get_by_test_id("reasoning")).to_have_text("Hm.")
    chat.stop.click()


def refuses(chat: ChatPage, engine: ScriptedEngine) -> None:
    chat.page.get_by_test_id("approval-reason").fill("Not today.")
    chat.page.get_by_test_id("refuse").click()


def approves(chat: ChatPage, engine: ScriptedEngine) -> None:
    chat.page.get_by_test_id("approve").click()


def restarts(chat: ChatPage, engine: ScriptedEngine) -> None:
    chat.card(WEATHER.name).expect_status("running")
    engine.restart()
    engine.open_gate("more")


RUNNING = [*WEATHER.begun(), Wait("more"), WEATHER.succeeded("Rain.", took=12), *answer("It **rains**.")]
ENDS: dict[str, tuple[Script, Callable[[ChatPage, ScriptedEngine], None], str]] = {
    "success": (
        [
            Think("Paris?"),
            message("I look.", WEATHER),
            *WEATHER.begun(),
            WEATHER.succeeded("Rain."),
            *answer("It rains."),
        ],
        nothing,
        "Reasoning · 1 tool · 12 ms",
    ),
    "stopped before a word": ([Wait("never")], stops, "You stopped this answer."),
    "stopped in a thought": ([Think("Hm."), Wait("never")], stops_a_thought, "You stopped this answer."),
    "stopped in a text": ([*text("Half of"), Wait("never")], stops_a_text, "≈"),
    "stopped in a call": (RUNNING, stops_a_call, "1 tool"),
    "unknown after a stop": (RUNNING, loses_a_call, "check at weather whether get"),
    "model failed": ([*text("Half of"), Fail("The model is gone.")], nothing, "The model is gone."),
    "call failed": (
        [*WEATHER.begun(), WEATHER.ended(CallState.FAILED, ErrorCode.TIMEOUT, "Too slow."), *answer("No.")],
        nothing,
        "Too slow.",
    ),
    "refused": ([message("", PAY), *answer("Then not.")], refuses, "Not today."),
    "approved": ([*PAY.begun(), PAY.succeeded("Paid.", took=7), *answer("Paid.")], approves, "Approved."),
    "unknown": ([*PAY.begun(), PAY.answered(LOST), *answer("Who knows.")], approves, "check at bank whether pay"),
    "cut": ([message("Once"), Done(FinishReason.LENGTH)], nothing, "cut at the model's length limit"),
    "adopted": (RUNNING, restarts, "1 tool"),
}


@promise("a conversation says the same after a reload as live, with the same parts open")
@pytest.mark.parametrize("end", ENDS)
def test_a_reload_shows_what_was_seen_live(chat: ChatPage, engine: ScriptedEngine, end: str) -> None:
    script, meanwhile, words = ENDS[end]
    engine.scripts["go"] = script
    chat.open()
    chat.ask("go")
    meanwhile(chat, engine)
    expect(chat.page.get_by_test_id("facts")).to_contain_text("tokens")
    chat.expect_idle()
    live = chat.says()
    assert words in live[0]
    chat.page.reload()
    expect(chat.page.get_by_test_id("facts")).to_contain_text("tokens")
    assert chat.says() == live


@promise("the user can see the whole of a result, as nothing but text")
def test_a_result_opens_large_as_a_table_a_tree_a_diff_or_text(chat: ChatPage, engine: ScriptedEngine) -> None:
    rows = '[{"name": "a", "size": 1}, {"name": "<b>", "more": {"deep": true}}]'
    diff = "@@ -1 +1 @@\n-old\n+new"
    results = {"demo__rows": rows, "demo__diff": diff, "demo__words": "No more."}
    calls = [Call(name) for name in results]
    steps = [step for call in calls for step in (*call.begun(), call.succeeded(results[call.name]))]
    engine.scripts["go"] = [message("", *calls), *steps, *answer("Here.")]
    chat.open()
    chat.ask("go")
    chat.expect_idle()
    chat.page.get_by_test_id("activity-summary").click()
    large = chat.page.get_by_test_id("large-result")
    seen: list[list[str]] = []
    for call in calls:
        card = chat.card(call.name)
        card.root.locator("summary").click()
        card.part("open-large").click()
        views = large.get_by_role("group", name="Shown as").get_by_role("button")
        expect(large.get_by_test_id("copy-large")).to_be_visible()
        expect(large).not_to_contain_text("Loading")
        seen.append(views.all_inner_texts())
        if call is calls[0]:
            expect(large.locator("td")).to_have_text(["a", "1", "", "<b>", "", '{"deep":true}'])
            large.get_by_role("button", name="Tree").click()
            large.locator("summary").nth(2).click()
            expect(large.locator(".leaf").last).to_have_text('name: "<b>"')
            large.get_by_role("button", name="Text").click()
            expect(large.locator("pre")).to_have_text(rows)
        if call is calls[1]:
            expect(large.locator(".hljs-addition")).to_have_text("+new\n")
        chat.page.keyboard.press("Escape")
        expect(large).to_have_count(0)
    assert seen == [["Table", "Tree", "Text"], ["Diff", "Text"], []]


def test_long_code_is_folded_and_wraps_when_that_is_asked_for(chat: ChatPage, engine: ScriptedEngine) -> None:
    engine.scripts["go"] = [*text("```js\n", "let x = 1;\n" * 45), Wait("more"), *text("let y = 2;\n```")]
    chat.open()
    chat.ask("go")
    block, unfold = chat.page.get_by_test_id("code-block"), chat.page.get_by_test_id("unfold-code")
    expect(unfold).to_have_text("Show all 45 lines")
    height = block.evaluate("block => block.offsetHeight")
    engine.open_gate("more")
    chat.expect_idle()
    expect(unfold).to_have_text("Show all 46 lines")
    assert block.evaluate("block => block.offsetHeight") == height
    unfold.click()
    expect(unfold).to_have_text("Show fewer lines")
    expect(chat.page.get_by_test_id("copy-code")).to_be_in_viewport()  # its head stays in sight
    chat.page.get_by_test_id("wrap-code").click()
    expect(block.locator("pre")).to_have_css("white-space", "pre-wrap")


@pytest.mark.timeout(900)
def test_random_actions_with_reloads_lose_nothing_and_tell_no_other_story(
    chat: ChatPage, engine: ScriptedEngine
) -> None:
    random = Random(30)
    scripts: list[Script] = [ENDS[end][0] for end in ("success", "stopped in a text", "model failed", "call failed")]
    asked: dict[str, list[str]] = {}
    live: dict[str, object] = {}
    chat.open()

    def ask(number: int) -> None:
        engine.scripts[text := f"question {number}"] = script = random.choice(scripts)
        questions = chat.questions.count()
        chat.ask(text)
        expect(chat.questions).to_have_count(questions + 1)
        if Wait("never") in script:
            expect(chat.answers.last).to_have_text("Half of")
            chat.stop.click()
        expect(chat.page.get_by_test_id("facts").nth(questions)).to_contain_text("tokens")
        chat.expect_idle()
        session = chat.session
        asked.setdefault(session, []).append(text)
        live[session] = chat.says()

    def look() -> None:
        session = chat.session
        expect(chat.questions).to_have_text(asked.get(session, []))  # those of the conversation before have gone
        if session in asked:
            expect(chat.page.get_by_test_id("facts")).to_contain_text(["tokens"] * len(asked[session]))
            assert chat.says() == live[session]

    for number in range(ACTIONS):
        match random.choice(["ask", "ask", "reload", "new", "open"]):
            case "reload":
                chat.page.reload()
            case "new":
                chat.page.get_by_test_id("new-conversation").click()
            case "open" if asked:
                chat.open(random.choice([*asked]))
            case _:
                ask(number)
        look()
    for session in asked:
        chat.open(session)
        look()


def test_the_clock_of_a_running_call_goes_on_after_a_reload(chat: ChatPage, engine: ScriptedEngine) -> None:
    engine.scripts["go"] = [*WEATHER.begun(), Wait("end"), WEATHER.succeeded("fine"), *answer("Done.")]
    chat.open()
    chat.ask("go")
    summary = chat.page.get_by_test_id("activity-summary")
    expect(summary).to_contain_text("get · 2")
    engine.make_older(chat.session, 120)
    chat.page.clock.install(time=time.time() + 3600)  # a machine whose clock is wrong
    chat.page.reload()
    expect(summary.locator(".clock")).to_have_text(re.compile("^2 min"))
    engine.open_gate("end")
    expect(chat.answers).to_have_text("Done.")
