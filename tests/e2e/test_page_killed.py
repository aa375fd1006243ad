"""The engine is killed while messages wait, and before the first word of another version of an answer."""

import signal
from collections.abc import Generator

import pytest
from playwright.sync_api import BrowserContext, expect

from tests.e2e.chat_page import ChatPage, Watch
from tests.marks import exhaustive, promise
from tests.support.processes import Process
from tests.support.stack import Stack, running_stack

pytestmark = [pytest.mark.timeout(300), exhaustive("test_page_queue.py has it with an engine that is shut down")]


@pytest.fixture
def stack() -> Generator[Stack]:
    with running_stack(start=False, token_delay_ms=40, engine_env={"ENABLE_MCP": "false"}) as stack:
        stack.redis.start()
        yield stack


@pytest.fixture
def model(stack: Stack) -> Process:
    """Takes requests and says nothing for as long as it is frozen."""
    return stack.start_model()


@pytest.fixture
def base_url(stack: Stack, model: Process) -> str:
    stack.start_engine()
    return stack.url


def kill(stack: Stack) -> None:
    """End the engine as `kill -9` does, and start it again."""
    assert stack.engine is not None
    stack.engine.kill()
    stack.bury(stack.engine)
    stack.start_engine()


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
    second.open(chat.session)
    expect(second.queued).to_have_count(2)
    chat.input.fill("a draft")
    kill(stack)
    chat.page.reload()

    for tab in (chat, second):
        expect(tab.questions).to_have_text(["Hello, who are you?", *texts], timeout=90_000)
        tab.expect_idle()
        expect(tab.queued).to_have_count(0)
        expect(tab.answers).to_have_count(3)
    expect(chat.input).to_have_value("a draft")


@promise("every tab shows the version of a question that was chosen, through reloads and engines that end")
@pytest.mark.parametrize("edited", [True, False], ids=["edited", "answered again"])
def test_another_version_is_there_once_when_the_engine_is_killed_before_its_first_word(
    chat: ChatPage, stack: Stack, model: Process, edited: bool
) -> None:
    chat.open()
    chat.ask("hello")
    expect(chat.page.get_by_test_id("facts")).to_contain_text("tokens")
    model.freeze()
    if edited:
        chat.edit(0, "good morning")
    else:
        chat.page.get_by_test_id("regenerate").click()
    question = "good morning" if edited else "hello"
    versions = chat.page.get_by_test_id("versions")
    expect(versions).to_contain_text("2/2")
    kill(stack)
    expect(chat.questions).to_have_text([question])
    model.send(signal.SIGCONT)

    expect(chat.page.get_by_test_id("facts")).to_contain_text("tokens", timeout=60_000)
    chat.expect_idle()
    live = chat.says()
    for _ in range(2):
        expect(versions).to_contain_text("2/2")
        expect(chat.questions).to_have_text([question])
        expect(chat.answers).to_have_count(1)
        assert chat.says() == live
        chat.page.reload()
        expect(chat.page.get_by_test_id("facts")).to_contain_text("tokens")
    chat.page.get_by_test_id("version-before").click()
    expect(chat.questions).to_have_text(["hello"])
    asked = stack.store.rows("SELECT content FROM messages WHERE role = 'user' ORDER BY number")
    assert asked == [("hello",), (question,)]
