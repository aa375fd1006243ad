"""The chat page as its user meets it: asking, watching tools, stopping, coming back."""

import re
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, Page, Route, expect

from plugins_contract.errors import ErrorCode
from plugins_contract.outcomes import CallState, LinkBlock, MediaBlock, TextBlock, ToolOutcome
from tests.e2e.chat_page import ChatPage, Watch
from tests.e2e.scripted_engine import ScriptedEngine
from tests.e2e.scripts import Call, Fail, Wait, answer, message, text
from tests.marks import exhaustive, promise, smoke

pytestmark = [pytest.mark.browser, exhaustive("needs a browser")]

SLOW = "Run a slow job for 5 seconds"
SECRET = "a-secret-of-32-characters-at-least"
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGNgYGD4DwABBAEAX+XDSwAAAABJRU5ErkJggg=="


@promise("the demo model is labelled as scripted wherever a person meets it")
def test_the_empty_page_says_that_the_model_is_scripted_and_offers_things_to_try(chat: ChatPage) -> None:
    chat.open()
    expect(chat.page.get_by_test_id("scripted-banner")).to_contain_text("Scripted demo model")
    expect(chat.page.get_by_test_id("model-label")).to_have_text("Scripted demo model")
    expect(chat.suggestions).to_have_count(4)
    expect(chat.input).to_be_focused()


@promise("the page lets the model be picked where there is more than one")
@promise("the page lets the tool mode be picked where it may be chosen")
@smoke
def test_with_one_model_there_is_nothing_to_pick(chat: ChatPage, engine: ScriptedEngine) -> None:
    chat.open()
    expect(chat.page.get_by_test_id("model-label")).to_be_visible()
    expect(chat.page.get_by_label("Model", exact=True)).to_be_hidden()
    expect(chat.page.get_by_label("How tools are called")).to_be_hidden()
    chat.suggestions.first.click()
    chat.expect_idle()
    assert (chat.asked("model"), chat.asked("toolMode")) == ([None], [None])


def of_a_later_release(route: Route) -> None:
    """The models, with a tool mode that this page does not know."""
    answer = route.fetch()
    models = answer.json()
    route.fulfill(response=answer, json=models | {"toolModes": [*models["toolModes"], "later"]})


MODELS = {"openai_model": "gpt-9", "allowed_models": "openai:small", "model_label": "GPT 9", "model_scripted": False}
MODES = ("default", "automatic", "function calling", "tool_use tags", "function_calls tags", "later")


@promise("the page lets the model be picked where there is more than one")
@promise("the page lets the tool mode be picked where it may be chosen")
@pytest.mark.parametrize(
    ("label", "changes", "options", "picked", "field"),
    [
        ("Model", MODELS, ["GPT 9", "small"], "openai:small", "model"),
        (
            "How tools are called",
            {"allow_tool_mode": True},
            [f"Tools: {mode}" for mode in MODES],
            "tool_use",
            "toolMode",
        ),
    ],
)
def test_what_was_picked_is_asked_for_also_by_a_message_that_waits_and_after_a_reload(
    chat: ChatPage, engine: ScriptedEngine, label: str, changes: Any, options: list[str], picked: str, field: str
) -> None:
    engine.restart(**changes)
    engine.scripts["go"] = [*text("Some words"), Wait("more")]
    chat.page.route("**/v1/models", of_a_later_release)
    chat.open()
    picker = chat.page.get_by_label(label, exact=True)
    expect(picker.locator("option")).to_have_text(options)
    expect(chat.page.get_by_test_id("model-label")).to_be_visible(visible=field != "model")
    chat.ask("go")
    expect(chat.answers).to_have_text("Some words")
    picker.select_option(picked)
    chat.ask("and this")
    expect(chat.queued).to_be_visible()
    engine.open_gate("more")
    expect(chat.questions).to_have_count(2)
    chat.expect_idle()
    chat.page.reload()
    expect(picker).to_have_value(picked)
    chat.ask("and that")
    expect(chat.questions).to_have_count(3)
    chat.expect_idle()
    assert chat.asked(field) == [None, picked, picked]


@promise("the page shows text as it comes and one card per call")
@smoke
def test_a_tool_card_goes_from_pending_over_running_with_progress_to_succeeded(
    chat: ChatPage, engine: ScriptedEngine
) -> None:
    call = Call("demo__job", {"steps": 4})
    engine.scripts["go"] = [
        message("", call),
        Wait("queue"),
        call.queued(),
        Wait("run"),
        call.running(),
        Wait("progress"),
        call.progress(1, 4, "One of four"),
        Wait("end"),
        call.succeeded("All four.", took=1500),
        *answer("Done."),
    ]
    chat.open()
    chat.ask("go")
    card = chat.card("demo__job")
    card.expect_status("pending")
    expect(chat.status).to_have_text("Waiting for job…")
    engine.open_gate("queue")
    card.expect_status("queued")
    engine.open_gate("run")
    card.expect_status("running")
    expect(card.part("status")).to_have_text("Running")
    expect(card.part("progress")).to_have_js_property("position", -1)
    engine.open_gate("progress")
    expect(card.part("message")).to_have_text("One of four")
    expect(card.part("progress")).to_have_js_property("position", 0.25)
    engine.open_gate("end")
    card.expect_status("succeeded")
    expect(card.part("progress")).to_be_hidden()
    expect(card.part("args")).to_have_text('{ "steps": 4 }')
    expect(card.part("duration")).to_have_text("1.5 s")
    expect(card.part("result")).to_have_text("All four.")


@promise("after a stop the page says what became of each call")
@smoke
def test_after_a_stop_each_card_says_what_became_of_its_call(chat: ChatPage, engine: ScriptedEngine) -> None:
    calls = [Call(f"demo__{name}") for name in ("stopped", "finished", "lost", "early")]
    stopped, finished, lost, early = calls
    too_late, no_answer = "It was too late to stop it.", "No answer came: it may have taken effect."
    engine.after_stop = {
        finished.name: ToolOutcome(CallState.SUCCEEDED, (TextBlock(too_late),)),
        lost.name: ToolOutcome.failure(CallState.UNKNOWN, ErrorCode.OUTCOME_UNKNOWN, no_answer),
    }
    engine.scripts["go"] = [
        message("", *calls),
        *(step for call in calls for step in call.begun()),
        early.succeeded("Before the stop."),
        Wait("never"),
    ]
    chat.open()
    chat.ask("go")
    chat.card("demo__early").expect_status("succeeded")
    chat.stop.click()
    chat.expect_idle()
    for call, status in ((stopped, "cancelled"), (finished, "succeeded"), (lost, "unknown"), (early, "succeeded")):
        chat.card(call.name).expect_status(status)
    expect(chat.card("demo__finished").part("result")).to_have_text(too_late)
    expect(chat.card("demo__lost").part("error")).to_contain_text("it may have taken effect")
    chat.page.reload()
    for call, status in ((stopped, "cancelled"), (finished, "succeeded"), (lost, "unknown"), (early, "succeeded")):
        chat.card(call.name).expect_status(status)


def test_the_messages_left_out_of_a_long_conversation_are_said_once(chat: ChatPage, engine: ScriptedEngine) -> None:
    engine.restart(history_max_messages=2)
    chat.open(engine.store("Long", *[("How?", "Well.")] * 6))
    chat.ask("How?")
    chat.expect_idle()
    expect(chat.page.get_by_test_id("turn-note").last).to_have_text(
        "This conversation is long: the model was not sent its 12 oldest messages."
    )


def test_a_model_error_is_shown_with_its_code(chat: ChatPage, engine: ScriptedEngine) -> None:
    engine.scripts["go"] = [Fail("The model cannot be reached.")]
    chat.open()
    chat.ask("go")
    expect(chat.page.get_by_test_id("turn-error")).to_contain_text("The model cannot be reached.")
    chat.expect_idle()
    chat.page.reload()
    expect(chat.page.get_by_test_id("turn-error")).to_contain_text("The model failed. What was done so far is kept.")
    chat.page.get_by_test_id("ask-again").click()
    expect(chat.input).to_have_value("go")


@promise("the user can see the whole of a result, as nothing but text")
def test_a_long_result_is_shown_in_part_and_whole_when_that_is_asked_for(
    chat: ChatPage, engine: ScriptedEngine
) -> None:
    whole = "head <img src=x onerror=alert(1)> " + "x" * 300_000 + " tail"
    call = Call("logs__read")
    engine.scripts["go"] = [*call.begun(), call.succeeded(whole)]
    chat.page.route("**/text", lambda route: route.fulfill(status=503), times=1)
    chat.open()
    chat.ask("go")
    card = chat.unfolded("logs__read")
    expect(card.part("result")).to_contain_text("head <img")
    large = chat.page.get_by_test_id("large-result")
    for shown in ("The whole result could not be loaded.", whole):  # it answers 503 at first
        card.part("open-large").click()
        expect(large).to_contain_text(shown)
        expect(large.locator("img")).to_have_count(0)
        large.get_by_test_id("close-large").click()
        expect(large).to_have_count(0)


def test_links_of_a_result_can_be_followed_on_the_web_only(chat: ChatPage, engine: ScriptedEngine) -> None:
    call = Call("docs__find")
    links = (
        LinkBlock("https://example.com/a", "a.txt", "text/plain", title="Notes <b>"),
        LinkBlock("file:///etc/passwd", "local"),
        LinkBlock("javascript:alert(1)", "script"),
    )
    engine.scripts["go"] = [*call.begun(), call.succeeded("", *links)]
    chat.open()
    chat.ask("go")
    shown = chat.card("docs__find").part("links")
    expect(shown.locator("li")).to_have_count(3)
    expect(shown.locator("a")).to_have_count(1)
    expect(shown.locator("a")).to_have_attribute("href", "https://example.com/a")
    expect(shown.locator("a")).to_have_text("Notes <b>")
    expect(shown).to_contain_text("javascript:alert(1)")


def test_an_image_of_a_result_is_shown(chat: ChatPage, engine: ScriptedEngine) -> None:
    engine.restart(api_keys={"ann": SECRET})  # an image element could not send it
    call = Call("charts__plot")
    engine.scripts["go"] = [*call.begun(), call.succeeded("", MediaBlock("image/png", PIXEL))]
    chat.open()
    give_key(chat, SECRET)
    chat.ask("go")
    image = chat.card("charts__plot").part("image")
    expect(image).to_have_js_property("naturalWidth", 1)
    expect(image).to_have_attribute("src", re.compile("^blob:"))


def test_a_refused_message_names_the_field_and_gives_the_text_back(chat: ChatPage) -> None:
    chat.open()
    chat.ask("x" * 2001)
    expect(chat.notice).to_contain_text("The message is too long.")
    expect(chat.page.get_by_test_id("notice-field")).to_contain_text("The message has 2001 characters")
    expect(chat.questions).to_have_count(0)
    expect(chat.input).to_have_value("x" * 2001)
    chat.page.get_by_test_id("notice-dismiss").click()
    expect(chat.notice).to_be_hidden()


def test_a_message_to_a_conversation_that_is_busy_elsewhere_waits_in_sight(
    chat: ChatPage, engine: ScriptedEngine
) -> None:
    engine.scripts["And now?"] = answer("Now it is done.")
    chat.open()
    chat.ask("What is 17 * 23 + 4?")
    chat.expect_idle()
    # Another tab begins a turn that this one does not know of.
    elsewhere = f"{chat.base_url}/v1/sessions/{chat.session}/turns"
    assert chat.page.request.post(elsewhere, data={"message": SLOW}).ok
    chat.ask("And now?")
    expect(chat.queued).to_contain_text("And now?")
    chat.card("demo__slow_job").expect_status("running")
    expect(chat.questions).to_have_text(["What is 17 * 23 + 4?", SLOW])
    expect(chat.notice).to_be_hidden()

    engine.open_gate("job")
    expect(chat.answers.last).to_have_text("Now it is done.")
    expect(chat.questions).to_have_text(["What is 17 * 23 + 4?", SLOW, "And now?"])
    expect(chat.queued).to_have_count(0)
    expect(chat.answers).to_have_count(3)


@pytest.mark.parametrize("says", [None, 502, 504])
def test_a_message_whose_answer_was_lost_on_the_way_is_not_sent_twice(chat: ChatPage, says: int | None) -> None:
    def lose_the_answer(route: Route) -> None:
        route.fetch()
        if says:
            route.fulfill(status=says, content_type="text/html", body="<h1>A proxy got no answer</h1>")
        else:
            route.abort()

    chat.open()
    chat.page.route("**/v1/chat", lose_the_answer, times=1)
    chat.ask("What is 17 * 23 + 4?")
    expect(chat.answers).to_have_text("17 * 23 + 4 = 395")
    expect(chat.questions).to_have_count(1)
    expect(chat.notice).to_be_hidden()


def test_an_unreachable_server_is_said_so_and_the_text_is_kept(chat: ChatPage) -> None:
    chat.open()
    expect(chat.page.get_by_test_id("model-label")).to_be_visible()
    chat.page.route("**/v1/**", lambda route: route.abort())
    chat.ask("Hello?")
    expect(chat.notice).to_contain_text("The server cannot be reached.")
    expect(chat.notice).to_contain_text("it is in the message box again")
    expect(chat.input).to_have_value("Hello?")
    chat.page.unroute("**/v1/**")
    chat.input.press("Enter")
    expect(chat.questions).to_have_text("Hello?")
    expect(chat.notice).to_be_hidden()


def test_a_question_that_is_asked_again_at_once_is_a_question_of_its_own(
    chat: ChatPage, engine: ScriptedEngine
) -> None:
    """A dialog tells of its closing a moment later: the next question must not take that for its own end."""
    engine.store("About outboxes", ("How?", "Like this."))
    chat.open()
    expect(chat.sessions).to_have_count(1)
    again = """() => {
        const question = document.querySelector("[data-testid=confirm-dialog]");
        const remove = document.querySelector("[data-testid=session-delete]");
        remove.click();
        setTimeout(() => { question.close(); remove.click(); });
    }"""
    chat.page.evaluate(again)
    expect(chat.confirm_dialog).to_be_visible()
    chat.page.get_by_test_id("confirm-delete").click()
    expect(chat.sessions).to_have_count(0)


def test_older_conversations_come_when_they_are_asked_for(chat: ChatPage, engine: ScriptedEngine) -> None:
    for number in range(51):
        engine.store(f"Conversation {number}", ("How?", "Like this."))
    chat.page.route("**/v1/events", lambda route: route.abort())  # with that stream the list is not asked for again
    chat.open()
    expect(chat.sessions).to_have_count(50)
    chat.page.get_by_role("button", name="Show older").click()
    expect(chat.sessions).to_have_count(51)
    expect(chat.page.get_by_role("button", name="Show older")).to_be_hidden()
    with chat.page.expect_response("**/v1/sessions?limit=100"):
        chat.page.evaluate("dispatchEvent(new Event('focus'))")
    expect(chat.sessions).to_have_count(51)


def test_a_conversation_that_does_not_exist_is_said_so(chat: ChatPage) -> None:
    chat.open("nowhere")
    expect(chat.notice).to_contain_text("This conversation is not there")
    expect(chat.empty).to_be_visible()


def test_a_key_is_tried_once_kept_when_it_fits_and_forgotten_with_all_texts_in_every_tab(
    chat: ChatPage, engine: ScriptedEngine, context: BrowserContext, watch: Watch
) -> None:
    engine.restart(api_keys={"ann": SECRET}, allow_tool_mode=True)
    chat.open()
    chat.key_dialog.get_by_role("button", name="Not now").click()
    expect(chat.notice).to_contain_text("You are not signed in.")
    chat.page.get_by_test_id("notice-action").click()
    expect(chat.page.get_by_test_id("key-rejected")).to_be_hidden()
    give_key(chat, "wrong")
    expect(chat.page.get_by_test_id("key-rejected")).to_be_visible()
    assert len([each for each in chat.sent("GET", "") if each.headers.get("authorization") == "Bearer wrong"]) == 1
    assert stored_key(chat.page) is None
    give_key(chat, SECRET)
    expect(chat.key_dialog).to_be_hidden()
    expect(chat.notice).to_be_hidden()
    expect(chat.page.get_by_test_id("model-label")).to_be_visible()
    expect(chat.page.get_by_test_id("version")).to_contain_text(re.compile(r"\d"))
    expect(chat.page.get_by_label("How tools are called")).to_be_visible()
    chat.ask("What is 17 * 23 + 4?")
    expect(chat.answers.locator("strong")).to_have_text("395")
    chat.page.reload()
    expect(chat.answers.locator("strong")).to_have_text("395")
    chat.input.fill("a draft")
    page = context.new_page()
    watch.attach(page)
    other = ChatPage(page, chat.base_url)
    other.open(chat.session)
    give_key(other, SECRET)
    expect(other.input).to_have_value("a draft")
    chat.page.get_by_test_id("forget-key").click()
    for tab in (chat, other):
        expect(tab.key_dialog).to_be_visible()
        expect(tab.questions).to_have_count(0)
        expect(tab.input).to_have_value("")
        assert stored_key(tab.page) is None
        assert tab.page.evaluate("Object.keys(localStorage).filter((name) => name.includes('draft'))") == []


def give_key(chat: ChatPage, key: str) -> None:
    chat.page.get_by_test_id("key-input").fill(key)
    chat.page.get_by_test_id("key-submit").click()


def stored_key(page: Page) -> str | None:
    return page.evaluate("sessionStorage.getItem('callstream.key')")
