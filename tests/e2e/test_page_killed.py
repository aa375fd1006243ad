"""Messages that wait in the page while their engine is killed: every tab answers them in order after its new start."""

from collections.abc import Generator

import pytest
from playwright.sync_api import BrowserContext, expect

from tests.e2e.chat_page import ChatPage, Watch
from tests.marks import exhaustive, promise
from tests.support.stack import Stack, running_stack

pytestmark = [pytest.mark.timeout(300), exhaustive("test_page_queue.py has it with an engine that is shut down")]


@pytest.fixture
def stack() -> Generator[Stack]:
    with running_stack(start=False, token_delay_ms=40, engine_env={"ENABLE_MCP": "false"}) as stack:
        stack.redis.start()
        stack.start_model()
        stack.start_engine()
        yield stack


@pytest.fixture
def base_url(stack: Stack) -> str:
    return stack.url


@promise("messages that wait are shown by every tab and kept through a reload and the end of the engine")
def test_what_waits_is_answered_in_every_tab_after_a_kill_of_the_engine(
    chat: ChatPage, stack: Stack, context: BrowserContext, watch: Watch
) -> None:
    chat.open()
    chat.ask("Hello, who are you?")
    expect(chat.answers).to_have_count(1)
    texts = ["one", "two"]
    for number, text in enumerate(texts, 1):
        chat.ask(text)
        expect(chat.queued).to_have_count(number)
    page = context.new_page()
    watch.attach(page)
    second = ChatPage(page, chat.base_url)
    second.open(chat.page.url.rpartition("/")[2])
    expect(second.queued).to_have_count(2)
    assert stack.engine is not None
    stack.engine.kill()
    chat.input.fill("a draft")

    stack.bury(stack.engine)
    stack.start_engine()
    chat.page.reload()

    for tab in (chat, second):
        expect(tab.questions).to_have_text(["Hello, who are you?", *texts], timeout=90_000)
        tab.expect_idle()
        expect(tab.queued).to_have_count(0)
        expect(tab.answers).to_have_count(3)
    expect(chat.input).to_have_value("a draft")
