"""The page is accessible: keyboard, screen reader, small screens, light and dark, and a reader's peace."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Route, expect

from dialog_engine.model import FinishReason
from plugins_contract.catalog import ApprovalPolicy
from plugins_contract.errors import ErrorCode
from plugins_contract.outcomes import CallState
from tests.e2e.chat_page import TIMEOUT_MS, ChatPage
from tests.e2e.scripted_engine import ScriptedEngine
from tests.e2e.scripts import Call, Done, Wait, answer, message, text
from tests.marks import exhaustive, promise

pytestmark = [pytest.mark.browser, exhaustive("needs a browser")]

LONG_WORD = "Donaudampfschifffahrtsgesellschaftskapitänsmütze" * 4
WIDE = f"| {'| '.join(['column'] * 12)}|\n{'|---' * 12}|\n{'| value ' * 12}|\n\n```\n{'x' * 300}\n```\n\n{LONG_WORD}"
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


def test_every_control_has_a_name(chat: ChatPage, engine: ScriptedEngine) -> None:
    engine.scripts["go"] = answer("```python\nprint()\n```")
    chat.open()
    chat.ask("go")
    chat.expect_idle()
    expect(chat.page.get_by_test_id("copy-code")).to_be_visible()
    for control in chat.page.locator("button:visible, a:visible, input:visible, textarea:visible").all():
        expect(control).to_have_accessible_name(re.compile(r"\S"))


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


@promise("the page works by keyboard, screen reader, in the dark and on a phone")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_enough_contrast(chat: ChatPage, engine: ScriptedEngine, scheme: str) -> None:
    good, bad, lost = Call("a__good"), Call("a__bad"), Call("a__lost")
    engine.scripts["go"] = [
        *(step for call in (good, bad, lost) for step in call.begun()),
        good.succeeded("fine"),
        bad.ended(CallState.FAILED, ErrorCode.TIMEOUT, "Too slow."),
        lost.ended(CallState.UNKNOWN, ErrorCode.OUTCOME_UNKNOWN, "The worker was lost."),
        *answer("A [link](https://a.example), `code`\n\n> and a quote."),
        Done(FinishReason.LENGTH),
    ]
    chat.page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    chat.open()
    expect(chat.page.get_by_test_id("scripted-banner")).to_be_visible()
    assert poor_contrasts(chat.page) == []
    chat.ask("go")
    chat.expect_idle()
    expect(chat.answers.locator("blockquote")).to_be_visible()
    assert poor_contrasts(chat.page) == []


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


def test_the_page_scrolls_with_the_answer(chat: ChatPage, engine: ScriptedEngine) -> None:
    engine.scripts["go"] = answer(PARAGRAPHS)
    chat.open()
    chat.ask("go")
    chat.expect_idle()
    expect(chat.answers.get_by_text("Paragraph 59.")).to_be_in_viewport()
    expect(chat.page.get_by_test_id("jump")).to_be_hidden()


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


class TestOnAPhone:
    @pytest.fixture
    def context(self, browser: Browser) -> Iterator[BrowserContext]:
        context = browser.new_context(viewport={"width": 360, "height": 740}, has_touch=True, reduced_motion="reduce")
        context.set_default_timeout(TIMEOUT_MS)
        yield context
        context.close()

    @promise("the page works by keyboard, screen reader, in the dark and on a phone")
    def test_nothing_is_wider_than_the_screen(self, chat: ChatPage, engine: ScriptedEngine) -> None:
        call = Call(f"server__{LONG_WORD}", {"x": LONG_WORD}, LONG_WORD)
        failed = call.ended(CallState.FAILED, ErrorCode.TIMEOUT, LONG_WORD)
        engine.scripts["go"] = [*call.begun(), failed, *answer(WIDE)]
        chat.open()
        expect(chat.page.get_by_test_id("scripted-banner")).to_be_visible()
        assert chat.overflow() == []
        chat.ask("go")
        chat.expect_idle()
        expect(chat.page.locator(".wide")).to_be_visible()
        assert chat.overflow() == []
        chat.ask(LONG_WORD * 20)
        expect(chat.notice).to_be_visible()
        assert chat.overflow() == []

    def test_the_conversations_are_in_a_drawer(self, chat: ChatPage, engine: ScriptedEngine) -> None:
        engine.store("About outboxes", ("How?", "Like this."))
        chat.open()
        sidebar, toggle = chat.page.get_by_test_id("sidebar"), chat.page.get_by_test_id("sidebar-toggle")
        expect(sidebar).not_to_be_in_viewport()
        toggle.tap()
        expect(toggle).to_have_attribute("aria-expanded", "true")
        expect(chat.page.get_by_test_id("session-delete")).to_be_in_viewport()
        chat.page.keyboard.press("Escape")
        expect(sidebar).not_to_be_in_viewport()
        expect(toggle).to_be_focused()
        toggle.tap()
        chat.page.get_by_role("link", name="About outboxes").tap()
        expect(chat.answers).to_have_text("Like this.")
        expect(sidebar).not_to_be_in_viewport()


def poor_contrasts(page: Page) -> list[str]:
    """Visible texts whose contrast with what is behind them is below 4.5 to 1 (WCAG AA)."""
    return page.evaluate(
        """() => {
            const canvas = new OffscreenCanvas(1, 1).getContext('2d', { willReadFrequently: true });
            const paint = (colours) => {
                canvas.clearRect(0, 0, 1, 1);
                for (const colour of colours) { canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1); }
                return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
            };
            const light = (rgb) => {
                const linear = (v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
                const [r, g, b] = rgb.map((v) => linear(v / 255));
                return 0.2126 * r + 0.7152 * g + 0.0722 * b;
            };
            const poor = [];
            const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
            while (texts.nextNode()) {
                const element = texts.currentNode.parentElement;
                if (!texts.currentNode.data.trim() || !element.checkVisibility({ opacityProperty: true })) continue;
                const behind = [];
                for (let at = element; at; at = at.parentElement) behind.unshift(getComputedStyle(at).backgroundColor);
                const back = light(paint(behind)), front = light(paint([...behind, getComputedStyle(element).color]));
                const ratio = (Math.max(back, front) + 0.05) / (Math.min(back, front) + 0.05);
                if (ratio < 4.5) poor.push(`${ratio.toFixed(2)} ${texts.currentNode.data.trim().slice(0, 40)}`);
            }
            return poor;
        }"""
    )


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
