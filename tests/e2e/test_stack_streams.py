"""The chat page in Chromium, in front of an engine that is ended or killed in the middle of an answer."""

import signal
from collections.abc import Callable, Generator

import pytest
from playwright.sync_api import expect

from tests.e2e.chat_page import ChatPage
from tests.marks import exhaustive, promise
from tests.support.stack import Stack, running_stack

pytestmark = [pytest.mark.browser, exhaustive("needs a browser and real processes")]

COUNT = "Increment the counter, answering after 4 seconds, with token {token}"


@pytest.fixture(scope="module")
def stack() -> Generator[Stack]:
    # No grace, so that a turn is cut for certain.
    with running_stack(quick=True, token_delay_ms=25, engine_env={"SHUTDOWN_GRACE_SECONDS": "0"}) as stack:
        yield stack


@pytest.fixture
def base_url(stack: Stack) -> str:
    return stack.url


def end_well(stack: Stack) -> None:
    """As a deployment does: SIGTERM, then the next one."""
    assert stack.engine
    stack.engine.stop()
    stack.start_engine()


def kill(stack: Stack) -> None:
    """As a machine that dies does."""
    assert stack.engine
    stack.engine.send(signal.SIGKILL)
    stack.engine.stop()
    stack.start_engine()


@promise("the page resumes without an error, a flicker or a duplicate")
@pytest.mark.parametrize("end", [end_well, kill])
def test_a_tool_call_outlives_the_engine_and_the_page_shows_it_once(
    chat: ChatPage, stack: Stack, end: Callable[[Stack], None]
) -> None:
    token = f"page-{end.__name__}"
    chat.open()
    chat.ask(COUNT.format(token=token))
    card = chat.card("demo__increment_counter")
    card.expect_status("running")
    stack.wait_for_effect(token)
    end(stack)
    chat.picture(f"stream-{end.__name__}-away")
    card.expect_status("succeeded")
    chat.expect_idle()
    chat.picture(f"stream-{end.__name__}-back")
    expect(chat.cards).to_have_count(1)
    expect(chat.answers.last).to_contain_text("is now")
    expect(chat.notice).to_be_hidden()
    assert len(stack.effects(token)) == 1
    seen = chat.answers.all_inner_texts()
    chat.page.reload()
    expect(chat.answers).to_have_text(seen)
    expect(chat.cards).to_have_count(1)
