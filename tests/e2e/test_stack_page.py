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
