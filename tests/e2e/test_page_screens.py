"""The page on a phone, in a small or enlarged window, on paper, with few colours, and in right-to-left scripts."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from plugins_contract.errors import ErrorCode
from plugins_contract.outcomes import CallState
from tests.e2e.chat_page import TIMEOUT_MS, ChatPage
from tests.e2e.scripted_engine import ScriptedEngine
from tests.e2e.scripts import Call, Wait, answer, text
from tests.marks import exhaustive, promise

pytestmark = [pytest.mark.browser, exhaustive("needs a browser")]

LONG_WORD = "Donaudampfschifffahrtsgesellschaftskapitänsmütze" * 4
WIDE = f"| {'| '.join(['column'] * 12)}|\n{'|---' * 12}|\n{'| value ' * 12}|\n\n```\n{'x' * 300}\n```\n\n{LONG_WORD}"
AROUND = "innerHeight - document.getElementById('scroller').clientHeight"
"""How many pixels of the window's height are not for reading."""
SMALL_TARGETS = """() => [...document.querySelectorAll('button, select, summary, #message, .session a')]
    .filter((each) => each.checkVisibility({ visibilityProperty: true }))
    .map((each) => [each.id || each.dataset.testid || each.className, each.getBoundingClientRect()])
    .filter(([, { width, height }]) => Math.min(width, height) < 44).map(([name]) => name)"""
MIXED = "שלם\n\n1. אחת\n\n   שתיים\n2. two\n\n| שם | name |\n|---|---|\n| א | b |\n\n```\nשלם\n```\n\nEnglish `x` שלם"
COMPOSING = (
    "(each) => each.dispatchEvent(new KeyboardEvent('keydown', {key: 'Escape', isComposing: true, bubbles: true}))"
)
DIRECTIONS = "(all) => all.map((each) => getComputedStyle(each).direction)"


def test_in_small_windows_most_of_the_height_is_for_reading_and_escape_ends_a_composition_only(
    chat: ChatPage, engine: ScriptedEngine
) -> None:
    engine.scripts["go"] = [*text("Half of"), Wait("never")]
    for width, height in ((600, 400), (375, 667), (320, 256)):
        chat.page.set_viewport_size({"width": width, "height": height})
        chat.page.reload() if chat.page.url.startswith("http") else chat.open()
        expect(chat.suggestions).to_have_count(4)
        assert chat.page.evaluate("document.getElementById('scroller').scrollTop") == 0
    chat.ask("go")
    expect(chat.answers).to_have_text("Half of")
    assert chat.page.evaluate(AROUND) <= 128
    chat.input.evaluate(COMPOSING)
    expect(chat.stop).to_be_enabled()
    assert chat.sent("POST", "/cancel") == []
    chat.page.emulate_media(forced_colors="active")
    edge = "(each) => getComputedStyle(each).getPropertyValue('border-top-color')"
    assert chat.page.locator(".bubble").evaluate(edge) == "rgb(0, 0, 0)"
    chat.page.set_viewport_size({"width": 1200, "height": 800})
    expect(chat.sessions).to_have_css("outline-style", "solid")
    chat.input.press("Escape")
    chat.expect_idle()


def test_each_block_has_the_direction_of_its_text_and_all_is_printed(chat: ChatPage, engine: ScriptedEngine) -> None:
    long = "\n\n".join(f"Paragraph {number}." for number in range(120))
    chat.open(engine.store("Long", ("Why?", long), ("עברית", MIXED)))
    mixed = chat.answers.last
    expect(mixed.locator("code")).to_have_text(["שלם\n", "x"])
    directions = {
        ":scope > p:first-child": ["rtl"],
        "li": ["rtl", "ltr"],
        "th, td": ["rtl", "ltr", "rtl", "ltr"],
        "code": ["ltr", "ltr"],
        "p:has(code)": ["ltr"],
    }
    for selector, expected in directions.items():
        assert mixed.locator(selector).evaluate_all(DIRECTIONS) == expected, selector
    assert len(re.findall(rb"/Type\s*/Page\b", chat.page.pdf(format="A5"))) > 5


class TestOnAPhone:
    @pytest.fixture
    def context(self, browser: Browser) -> Iterator[BrowserContext]:
        context = browser.new_context(
            viewport={"width": 375, "height": 667}, has_touch=True, is_mobile=True, reduced_motion="reduce"
        )
        context.set_default_timeout(TIMEOUT_MS)
        yield context
        context.close()

    @promise("the page works by keyboard, screen reader, in the dark and on a phone")
    def test_enter_makes_a_line_and_what_is_tapped_is_large(self, chat: ChatPage, engine: ScriptedEngine) -> None:
        engine.restart(allow_tool_mode=True)
        engine.scripts["one\ntwo"] = [*text("Some words"), Wait("never")]
        engine.scripts["three"] = answer("Four.")
        chat.open()
        expect(chat.page.get_by_test_id("scripted-banner")).to_be_visible()
        assert_large(chat.page)
        chat.input.tap()
        chat.page.keyboard.type("one")
        chat.page.keyboard.press("Enter")
        chat.page.keyboard.type("two")
        chat.send.tap()
        expect(chat.questions).to_have_text("one\ntwo")
        expect(chat.answers).to_have_text("Some words")
        assert_large(chat.page)
        chat.input.fill("three")
        chat.send.tap()
        expect(chat.queued).to_contain_text("three")
        chat.page.get_by_test_id("queued-stop-and-send").tap()
        expect(chat.answers.last).to_have_text("Four.")
        chat.page.get_by_test_id("sidebar-toggle").tap()
        expect(chat.sessions).to_be_in_viewport()
        assert_large(chat.page)
        chat.page.keyboard.press("Escape")
        expect(chat.sessions).not_to_be_in_viewport()
        expect(chat.page.get_by_test_id("sidebar-toggle")).to_be_focused()

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


def assert_large(page: Page) -> None:
    """What can be tapped is at least 44 px wide and high, and what is around the conversation at most 130 px high."""
    assert page.evaluate(AROUND) <= 130
    assert page.evaluate(SMALL_TARGETS) == []
