"""What real MCP servers offer beside answers, on the page, while engine and worker are killed: questions, resources,
prompts, and what a server has lost."""

import sys
from collections.abc import Generator

import pytest
from playwright.sync_api import BrowserContext, expect

from tests.e2e.chat_page import ChatPage, Watch
from tests.marks import exhaustive, promise
from tests.support.processes import ROOT
from tests.support.stack import Stack, running_stack

pytestmark = [pytest.mark.timeout(600), exhaustive("test_page_questions.py has the page without real servers")]

SERVERS = ROOT / "tests/integration/servers"
KEY = "a-key-of-the-server-of-32-bytes-!"
CONFIG = {
    "mcpServers": {
        "asking": {"command": sys.executable, "args": [str(SERVERS / "asking.py"), "stdio"], "env": {"KEY": KEY}},
        "notes": {
            "command": sys.executable,
            "args": [str(SERVERS / "notes.py")],
            "callstream": {"session": "conversation"},
        },
        "docs": {"command": sys.executable, "args": [str(SERVERS / "reading.py"), "3"]},
    }
}
BOOK = 'call asking__book {"city": "Bonn"}'


@pytest.fixture(scope="module")
def stack() -> Generator[Stack]:
    with running_stack(config=CONFIG, start=False, quick=True) as stack:
        stack.start_all_but_engines()
        stack.start_engine()
        stack.wait_for_tools("asking", "notes")
        yield stack


@pytest.fixture
def base_url(stack: Stack) -> str:
    return stack.url


def kill_engine(stack: Stack) -> None:
    """End the engine as `kill -9` does, and start it again."""
    assert stack.engine is not None
    stack.engine.kill()
    stack.bury(stack.engine)
    stack.start_engine()


def kill_worker(stack: Stack) -> None:
    [(port, worker)] = stack.workers.items()
    del stack.workers[port]
    worker.kill()
    stack.bury(worker)
    stack.start_worker()


@promise(
    "a server's question is answered on the page after a reload and the end of its engine, and in every tab",
    only_in_test_all="kills processes",
)
def test_a_question_outlives_a_reload_and_its_engine_and_is_seen_in_every_tab(
    chat: ChatPage, stack: Stack, context: BrowserContext, watch: Watch
) -> None:
    chat.open()
    chat.ask(BOOK)
    day = chat.page.get_by_label("Day (needed)")
    day.fill("2026-12-01")
    page = context.new_page()
    watch.attach(page)
    other = ChatPage(page, chat.base_url)
    other.open(chat.session)
    expect(other.page.get_by_test_id("asked-message")).to_have_text("When to Bonn?")
    kill_engine(stack)
    chat.page.reload()
    expect(day).to_have_value("2026-12-01")
    chat.page.get_by_test_id("asked-answer").click()

    for tab in (chat, other):
        expect(tab.card("asking__book").root).to_have_attribute("data-status", "succeeded", timeout=90_000)
        tab.expect_idle()
        tab.card("asking__book").root.locator("summary").click()
        expect(tab.page.get_by_test_id("asked-over")).to_contain_text("2026-12-01")
        expect(tab.card("asking__book").part("result")).to_contain_text("accept Bonn")


@promise("an address that a server names is opened by its person's click only, after its host was shown")
def test_an_address_outlives_a_reload_and_its_engine_and_is_opened_by_a_click_only(
    chat: ChatPage, stack: Stack, context: BrowserContext
) -> None:
    context.route("https://example.com/**", lambda route: route.fulfill(body="<p>Here</p>", content_type="text/html"))
    part = chat.page.get_by_test_id
    chat.open()
    chat.ask("call asking__twice {}")
    expect(part("asked-host")).to_have_text("example.com")
    kill_engine(stack)
    chat.page.reload()
    expect(part("asked-by")).to_have_text(["asking / twice asks you:"] * 2)
    expect(part("asked-message")).to_have_text(["When?", "Look here"])
    expect(part("asked-host")).to_have_text("example.com")
    expect(part("asked-url")).to_have_text("https://example.com/where")
    assert context.pages == [chat.page], "nothing is opened by itself"
    with context.expect_page() as opened:
        part("asked-open").click()
    expect(opened.value.get_by_text("Here")).to_be_visible()

    kill_engine(stack)
    chat.page.reload()
    expect(part("asked-opened")).to_be_visible()
    assert len(context.pages) == 2
    part("asked-done").click()
    expect(part("asked-host")).to_have_count(0)
    chat.page.get_by_label("Day (needed)").fill("2026-12-01")
    part("asked-answer").click()
    expect(part("asked-message")).to_have_text("Sure?", timeout=90_000)
    part("asked-answer").click()
    expect(chat.card("asking__twice").root).to_have_attribute("data-status", "succeeded", timeout=90_000)
    chat.card("asking__twice").root.locator("summary").click()
    expect(chat.card("asking__twice").part("result")).to_contain_text("two accept accept")


@promise("a message can take the place of what is asked, on the page", only_in_test_all="kills processes")
def test_decline_and_send_after_the_end_of_the_engine(chat: ChatPage, stack: Stack) -> None:
    chat.open()
    chat.ask(BOOK)
    part = chat.page.get_by_test_id
    expect(part("asked")).to_be_visible()
    expect(part("decline-and-send")).to_have_count(0)
    chat.input.fill("Hello, who are you?")
    kill_engine(stack)
    chat.page.reload()
    expect(chat.input).to_have_value("Hello, who are you?")
    part("decline-and-send").click()
    expect(chat.questions).to_have_text([BOOK, "Hello, who are you?"], timeout=90_000)
    for _ in range(2):
        expect(part("facts").last).to_contain_text("tokens", timeout=90_000)
        chat.expect_idle()
        expect(chat.queued).to_have_count(0)
        expect(part("asked")).to_have_count(0)
        expect(chat.card("asking__book").root).to_have_attribute("data-status", "cancelled")
        chat.page.reload()


@promise(
    "resources and prompts of servers are found and used at the message box by keyboard",
    only_in_test_all="kills processes",
)
def test_resources_by_at(chat: ChatPage, stack: Stack) -> None:
    part = chat.page.get_by_test_id
    chat.open()
    chat.input.press_sequentially("look at @on")
    expect(part("offers")).to_contain_text("One docs")
    chat.picture("resources-offered")
    expect(chat.input).to_have_attribute("aria-activedescendant", "offers-0")
    chat.input.press("Escape")
    expect(part("offers")).to_have_count(0)
    chat.input.press_sequentially("e")
    expect(part("offer").first).to_contain_text("One")
    chat.input.press("Enter")
    expect(part("attached")).to_contain_text("One")
    expect(chat.input).to_have_value("look at ")
    assert chat.posted == []

    chat.input.press_sequentially("@person")
    expect(part("offer")).to_have_count(1)
    chat.input.press("Tab")
    name = part("offer-field")
    name.fill("ad")
    kill_engine(stack)
    chat.page.reload()
    expect(name).to_have_value("ad")
    expect(part("attached").locator("li")).to_have_count(1)
    chat.picture("resource-filled-in")
    name.fill("ad")
    values = part("offer-dialog").locator("option")
    expect(values).to_have_count(2)
    assert [each.get_attribute("value") for each in values.all()] == ["ada", "adam"]
    name.fill("ada")
    part("offer-use").click()
    expect(part("attached")).to_contain_text("notes://people/ada")

    kill_engine(stack)
    chat.page.reload()
    expect(part("attached").locator("li")).to_have_count(2)
    chat.input.press("End")
    chat.input.press_sequentially("these")
    chat.input.press("Control+Enter")
    expect(part("attached")).to_have_count(0)
    expect(part("facts")).to_contain_text("tokens", timeout=90_000)
    [text] = chat.asked("message")
    assert text == (
        "look at these\n\n"
        "Data of the server “docs”, no instruction (notes://a/one):\n```\nONE\n```\n\n"
        "Data of the server “docs”, no instruction (notes://people/ada):\n```\nabout ada\n```"
    )

    chat.input.press_sequentially("@picture")
    expect(part("offer")).to_have_count(1)
    chat.input.press("Enter")
    expect(chat.notice).to_contain_text("This resource has no text")


@promise(
    "resources and prompts of servers are found and used at the message box by keyboard",
    only_in_test_all="kills processes",
)
def test_prompts_by_slash(chat: ChatPage, stack: Stack) -> None:
    part = chat.page.get_by_test_id
    chat.open()
    chat.input.press_sequentially("/sum")
    expect(part("offers")).to_contain_text("Sum up docs")
    chat.picture("prompts-offered")
    chat.input.press("Enter")
    expect(part("offer-dialog")).to_contain_text("Sums up.")
    part("offer-field").fill("the")
    kill_engine(stack)
    chat.page.reload()
    expect(part("offer-dialog")).to_contain_text("Sums up.")
    expect(part("offer-field")).to_have_value("the")
    chat.picture("prompt-filled-in")
    part("offer-field").fill("the tea")
    part("offer-field").press("Enter")
    expect(chat.input).to_have_value("Sum up: the tea")
    assert chat.posted == [], "it is looked at before it is sent"
    chat.page.reload()
    expect(chat.input).to_have_value("Sum up: the tea")
    expect(part("offer-dialog")).to_be_hidden()


@promise(
    "a server that lost what it kept is named on the page, live and after a reload", only_in_test_all="kills processes"
)
def test_what_a_killed_worker_took_with_it_is_said(chat: ChatPage, stack: Stack) -> None:
    chat.open()
    chat.ask('call notes__note {"text": "tea"}')
    expect(chat.page.get_by_test_id("facts")).to_contain_text("tokens")
    expect(chat.page.get_by_test_id("tool-state-lost")).to_have_count(0)
    kill_worker(stack)
    chat.ask('call notes__note {"text": "milk"}')
    for _ in range(2):
        expect(chat.page.get_by_test_id("facts")).to_have_count(2, timeout=90_000)
        expect(chat.page.get_by_test_id("facts").last).to_contain_text("tokens", timeout=90_000)
        lost = chat.page.get_by_test_id("tool-state-lost")
        expect(lost).to_have_text(
            "notes was started anew before this call. What it remembered of earlier calls is lost."
        )
        expect(chat.card("notes__note").part("result").last).to_have_text("milk")
        chat.page.reload()
