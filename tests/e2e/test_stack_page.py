"""The chat page in Chromium, in front of the whole running product."""

import re
from collections.abc import Generator

import pytest
from playwright.sync_api import expect

from tests.e2e.chat_page import ChatPage
from tests.marks import exhaustive
from tests.support.stack import Stack, running_stack
from tests.support.waiting import wait_until_blocking

pytestmark = [pytest.mark.browser, exhaustive("needs a browser and real processes")]


@pytest.fixture(scope="module")
def stack() -> Generator[Stack]:
    with running_stack(token_delay_ms=15) as stack:
        yield stack


@pytest.fixture
def base_url(stack: Stack) -> str:
    return stack.url


def test_two_cards_succeed_and_both_times_are_in_the_answer(chat: ChatPage) -> None:
    chat.open()
    chat.ask("What time is it in Tokyo and in Paris?")
    chat.expect_idle()
    expect(chat.cards).to_have_count(2)
    for number in range(2):
        expect(chat.cards.nth(number)).to_have_attribute("data-status", "succeeded")
    answer = chat.answers.last
    expect(answer).to_contain_text(re.compile(r"Tokyo.*\d\d:\d\d"))
    expect(answer).to_contain_text(re.compile(r"Paris.*\d\d:\d\d"))
    chat.picture("stack-two-cities")


def test_a_slow_job_shows_its_progress_and_its_end(chat: ChatPage) -> None:
    chat.open()
    chat.ask("Run a slow job of 3 seconds in 6 steps")
    card = chat.card("demo__slow_job")
    expect(card.part("message")).to_contain_text(re.compile(r"step \d of 6 done"))
    chat.picture("stack-progress")
    card.expect_status("succeeded")
    chat.expect_idle()
    expect(card.part("progress")).to_be_hidden()
    expect(card.part("result")).to_contain_text("The slow job finished")


def test_a_failing_tool_shows_its_code(chat: ChatPage) -> None:
    chat.open()
    chat.ask("Call a failing tool")
    card = chat.card("demo__fail")
    card.expect_status("failed")
    expect(card.part("error-code")).to_have_text("TOOL_EXECUTION_FAILED")
    expect(card.part("error")).to_contain_text("Failed on purpose")
    chat.expect_idle()
    chat.picture("stack-failed")


def test_an_image_is_shown(chat: ChatPage) -> None:
    chat.open()
    chat.ask("Draw a sunset picture")
    card = chat.card("demo__draw")
    card.expect_status("succeeded")
    image = card.part("image").locator("img").or_(card.root.locator("img")).first
    expect(image).to_be_visible()
    expect(image).to_have_js_property("naturalWidth", 192)
    chat.expect_idle()
    chat.picture("stack-image")


def test_stop_ends_the_job_at_its_mcp_server(chat: ChatPage, stack: Stack) -> None:
    chat.open()
    chat.ask("Run a slow job of 60 seconds in 60 steps with token page-1")
    card = chat.card("demo__slow_job")
    expect(card.part("message")).to_contain_text("step 1 of 60")
    chat.stop.click()
    card.expect_status("cancelled")
    chat.expect_idle()
    chat.picture("stack-stopped")
    wait_until_blocking(lambda: [effect["status"] for effect in stack.effects("page-1")] == ["started", "cancelled"])


def test_a_page_loaded_again_in_the_middle_goes_on_where_the_turn_is(chat: ChatPage) -> None:
    chat.open()
    chat.ask("Run a slow job of 3 seconds in 6 steps")
    expect(chat.card("demo__slow_job").part("message")).to_contain_text("step 1 of 6")
    chat.page.reload()
    card = chat.card("demo__slow_job")
    card.expect_status("succeeded")
    chat.expect_idle()
    expect(chat.answers.last).to_contain_text("The slow job finished")
    expect(chat.cards).to_have_count(1)
    chat.picture("stack-reloaded")


def test_the_conversation_is_in_the_list_and_can_be_read_again(chat: ChatPage) -> None:
    chat.open()
    chat.ask("What is the weather in Oslo?")
    chat.expect_idle()
    expect(chat.answers.last).to_contain_text("In Oslo")
    chat.page.reload()
    expect(chat.sessions.first).to_contain_text("weather in Oslo")
    expect(chat.card("demo__weather").root).to_have_attribute("data-status", "succeeded")
    expect(chat.answers.last).to_contain_text("In Oslo")
