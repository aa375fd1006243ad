"""The page is accessible: keyboard, screen reader, small screens, light and dark, and a reader's peace."""

import pytest
from playwright.sync_api import BrowserContext, Route, expect

from plugins_contract.catalog import ApprovalPolicy
from plugins_contract.errors import ErrorCode
from plugins_contract.outcomes import CallState
from tests.e2e.chat_page import ChatPage
from tests.e2e.scripted_engine import ScriptedEngine
from tests.e2e.scripts import Call, Wait, answer, message, text
from tests.marks import exhaustive, promise

pytestmark = [pytest.mark.browser, exhaustive("needs a browser")]

PARAGRAPHS = "\n\n".join(f"Paragraph {number}." for number in range(60))


@promise("the page works by keyboard, screen reader, in the dark and on a phone")
def test_a_screen_reader_gets_announcements_and_not_each_word(chat: ChatPage, engine: ScriptedEngine) -> None:
    call = Call("demo__job")
    engine.scripts["go"] = [
        *call.begun(),
        call.ended(CallState.FAILED, ErrorCode.NETWORK_ERROR, "It cannot be reached."),
        *answer("Some ", "words ", "of ", "the ", "answer."),
    ]
    chat.open()
    chat.ask("go")
    expect(chat.live).to_have_attribute("aria-live", "polite")
    said = ["The answer is being written.", "Tool job: Running.", "Tool job: Failed.", "The answer is finished."]
    expect(chat.live.locator("p")).to_have_text([*said, "Some words of the answer."])
    expect(chat.page.get_by_role("log", name="Conversation")).to_have_attribute("aria-live", "off")


def test_the_dark_theme_follows_the_system_and_the_choice_outlives_a_reload(chat: ChatPage) -> None:
    page = chat.page
    page.emulate_media(color_scheme="dark")
    chat.open()
    expect(page.locator("html")).to_have_css("background-color", "rgb(22, 23, 26)")
    page.get_by_role("button", name="Use the light theme").click()
    expect(page.locator("html")).to_have_css("background-color", "rgb(252, 252, 251)")
    page.reload()
    expect(page.locator("html")).to_have_css("background-color", "rgb(252, 252, 251)")
    page.get_by_role("button", name="Use the dark theme").click()
    page.emulate_media(color_scheme="light")
    expect(page.locator("html")).to_have_css("background-color", "rgb(22, 23, 26)")


HTML = """async () => {
    const [copied] = await navigator.clipboard.read();
    return (await copied.getType('text/html')).text();
}"""


def test_code_and_answers_can_be_copied_as_text_and_as_what_is_seen(
    chat: ChatPage, context: BrowserContext, engine: ScriptedEngine
) -> None:
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    engine.scripts["go"] = answer("**Try**\n\n```python\nprint(1)\n```")
    chat.open()
    chat.ask("go")
    chat.page.get_by_test_id("copy-question").click()
    expect(chat.page.get_by_test_id("copy-question").locator("svg")).to_be_visible()
    assert chat.page.evaluate("navigator.clipboard.readText()") == "go"
    chat.page.get_by_test_id("copy-code").click()
    expect(chat.page.get_by_test_id("copy-code")).to_have_text("Copied")
    assert chat.page.evaluate("navigator.clipboard.readText()") == "print(1)\n"
    chat.page.get_by_test_id("copy-answer").click()
    expect(chat.page.get_by_test_id("copy-answer")).to_have_text("Copied")
    assert chat.page.evaluate("navigator.clipboard.readText()") == "**Try**\n\n```python\nprint(1)\n```"
    html = chat.page.evaluate(HTML)
    assert "<strong>Try</strong>" in html
    assert "button" not in html
    assert "Wrap lines" not in html


def test_scrolling_up_stops_following_until_the_end_is_reached_again(chat: ChatPage, engine: ScriptedEngine) -> None:
    engine.scripts["go"] = [*text(PARAGRAPHS), Wait("more"), *text("\n\nThe end.")]
    chat.open()
    chat.ask("go")
    expect(chat.answers.get_by_text("Paragraph 59.")).to_be_in_viewport()
    chat.answers.hover()
    chat.page.mouse.wheel(0, -100_000)
    expect(chat.answers.get_by_text("Paragraph 0.")).to_be_in_viewport()
    engine.open_gate("more")
    chat.expect_idle()
    expect(chat.answers.get_by_text("The end.")).to_be_visible()
    expect(chat.answers.get_by_text("Paragraph 0.")).to_be_in_viewport()
    chat.page.get_by_test_id("jump").click()
    expect(chat.answers.get_by_text("The end.")).to_be_in_viewport()


def test_older_messages_are_loaded_above_what_is_in_sight(chat: ChatPage, engine: ScriptedEngine) -> None:
    def two_at_once(route: Route) -> None:
        route.continue_(url=f"{route.request.url}{'&' if '?' in route.request.url else '?'}limit=2")

    chat.page.route("**/messages*", two_at_once)
    chat.open()
    for question in ("one", "two", "three"):
        engine.scripts[question] = answer(f"{question}\n\n{PARAGRAPHS}")
        chat.ask(question)
        chat.expect_idle()
    chat.page.reload()
    older = chat.page.get_by_test_id("older")
    expect(chat.answers).to_have_count(1)
    for count in (2, 3):
        chat.answers.first.hover()
        chat.page.mouse.wheel(0, -100_000)
        expect(chat.answers).to_have_count(count)
        expect(chat.answers.get_by_text("Paragraph 0.").nth(1)).to_be_in_viewport()
    expect(older).to_be_hidden()
    assert [text.split()[0] for text in chat.answers.all_text_contents()] == ["one", "two", "three"]


RECORDED_NOTIFICATIONS = """
globalThis.notified = [];
globalThis.Notification = class {
    static permission = 'default';
    static async requestPermission() { return (Notification.permission = 'granted'); }
    constructor(title, { body, tag }) { notified.push([title, body, tag]); }
    close() {}
};
Object.defineProperty(document, 'hidden', { get: () => globalThis.looksAway ?? false });
"""
LOOK_AWAY = "(away) => { looksAway = away; document.dispatchEvent(new Event('visibilitychange', { bubbles: true })); }"
SEEN = "async () => (await navigator.locks.query()).held.some(({ name }) => name.startsWith('callstream.seen.'))"


def test_a_notification_says_that_a_hidden_answer_asks_or_has_ended_while_no_tab_is_looked_at(
    chat: ChatPage, context: BrowserContext, engine: ScriptedEngine
) -> None:
    call = Call("files__delete", approval=ApprovalPolicy.ALWAYS)
    engine.scripts["quiet"] = [Wait("quiet"), *answer("Well.")]
    engine.scripts["go"] = [Wait("ask"), message("", call), *answer("Then not.")]
    chat.page.add_init_script(RECORDED_NOTIFICATIONS)
    chat.open()
    chat.ask("quiet")
    expect(chat.sessions).to_contain_text("Answering…")
    chat.page.evaluate(LOOK_AWAY, True)
    engine.open_gate("quiet")
    expect(chat.sessions).to_contain_text("Just now")
    chat.page.get_by_test_id("notify").check()
    chat.page.evaluate(LOOK_AWAY, False)
    chat.ask("go")
    expect(chat.sessions).to_contain_text("Answering…")
    chat.page.evaluate(LOOK_AWAY, True)
    engine.open_gate("ask")
    expect(chat.page).to_have_title("(1) quiet · Callstream")
    chat.page.get_by_test_id("refuse").click()
    expect(chat.page).to_have_title("quiet · Callstream")
    session_id = chat.session
    words = ["A tool call needs your approval.", "The answer is there."]
    chat.page.wait_for_function("() => notified.length === 2")
    assert chat.page.evaluate("notified") == [["quiet", each, session_id] for each in words]

    # Another tab is looked at: it shows the end.
    engine.scripts["seen"] = [Wait("seen"), *answer("Seen.")]
    other = context.new_page()
    ChatPage(other, chat.base_url).open()
    chat.ask("seen")
    expect(chat.sessions).to_contain_text("Answering…")
    other.wait_for_function(SEEN)
    engine.open_gate("seen")
    expect(chat.sessions).to_contain_text("Just now")
    assert len(chat.page.evaluate("notified")) == 2
