"""Two engines on one PostgreSQL behind one address, and the devices of one person: whichever engine a device meets."""

import signal
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.e2e.chat_page import TIMEOUT_MS, ChatPage
from tests.marks import exhaustive, promise
from tests.support import nginx
from tests.support.nginx import running_nginx
from tests.support.processes import Process
from tests.support.replicas import QUICK_ENGINE, Replica
from tests.support.stack import Stack, running_stack

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(nginx.missing() is not None, reason=nginx.missing() or ""),
    exhaustive("two engines as processes; test_page_branches.py and test_page_queue.py have one"),
]


PICK_COLOUR = {"name": "pick_colour", "description": "Picks a colour.", "inputSchema": {"type": "object"}}


@dataclass
class Site:
    stack: Stack
    model: Process
    engines: list[Replica]
    """In the order in which they were started."""
    url: str

    def of_turn(self) -> tuple[Replica, Replica]:
        """The engine that has the running turn, and the other one."""
        [(place,)] = self.stack.store.rows(
            "SELECT (SELECT count(*) FROM engines earlier WHERE earlier.started_at < engines.started_at)"
            " FROM turns JOIN engines ON engine_id = owner WHERE status = 'running'"
        )
        one, two = self.engines
        return (two, one) if place else (one, two)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Generator[Site]:
    with running_stack(start=False, quick=True, database="postgres") as stack, ExitStack() as clients:
        stack.start_store()
        stack.redis.start()
        stack.start_demo()
        model = stack.start_model()
        stack.start_worker()
        engines = [Replica(stack, name, program=QUICK_ENGINE) for name in ("one", "two")]
        for engine in engines:
            clients.callback(engine.close)
            engine.wait_for_tools()
        folder: Path = tmp_path_factory.mktemp("nginx")
        with running_nginx(folder, [engine.port for engine in engines]) as url:
            yield Site(stack, model, engines, url)


@pytest.fixture
def base_url(site: Site) -> str:
    return site.url


@contextmanager
def silent(model: Process) -> Generator[None]:
    """The model takes requests and says nothing."""
    model.freeze()
    try:
        yield
    finally:
        model.send(signal.SIGCONT)


@contextmanager
def device(browser: Browser, engine: Replica, session: str) -> Generator[ChatPage]:
    """Another device of the same person, whose requests all come to this engine."""
    with browser.new_context() as context:
        context.set_default_timeout(TIMEOUT_MS)
        page = ChatPage(context.new_page(), f"http://127.0.0.1:{engine.port}")
        page.open(session)
        yield page


@promise("every tab shows the version of a question that was chosen, through reloads and engines that end")
def test_another_version_is_shown_on_every_device_while_the_other_engine_answers(
    chat: ChatPage, site: Site, browser: Browser
) -> None:
    chat.open()
    chat.ask("hello")
    chat.expect_idle()
    with silent(site.model):
        chat.edit(0, "good morning")
        expect(chat.questions).to_have_text(["good morning"])
        _, other = site.of_turn()
        with device(browser, other, chat.session) as second:
            expect(second.questions).to_have_text(["good morning"])
            second.page.get_by_test_id("version-before").click()
            for tab in (second, chat):
                expect(tab.questions).to_have_text(["hello"])
                expect(tab.answers).to_have_count(1)
            site.model.send(signal.SIGCONT)
            expect(second.sessions).not_to_contain_text("Answering…")
            second.page.get_by_test_id("version-next").click()
            for tab in (second, chat):
                expect(tab.questions).to_have_text(["good morning"])
                expect(tab.answers).to_have_count(1)
                tab.expect_idle()
            assert second.says() == chat.says()


@promise("any engine takes a decision on the turn of any other, also while Redis is away")
def test_a_call_is_approved_on_a_second_device_at_either_engine(chat: ChatPage, site: Site, browser: Browser) -> None:
    chat.open()
    for engine in site.engines:  # one of them has begun the turn, which is parked and belongs to none
        chat.page.get_by_test_id("new-conversation").click()
        chat.ask("Delete everything")
        expect(chat.page.get_by_test_id("approve")).to_be_visible()
        with device(browser, engine, chat.session) as second:
            second.page.get_by_test_id("approve").click()
            for tab in (second, chat):
                tab.card("demo__delete_everything").expect_status("succeeded")
                expect(tab.page.get_by_test_id("approve")).to_have_count(0)
                tab.expect_idle()


@promise(
    "the page says what a call of a client's tool waits for, and a message can take its place",
    only_in_test_all="a browser, while an engine is killed",
)
def test_a_call_that_its_client_runs_is_shown_through_a_reload_and_the_kill_of_its_engine(
    chat: ChatPage, site: Site
) -> None:
    begun_at, _ = site.engines
    session, _ = begun_at.begin('call pick_colour {"of": "tea"}', clientTools=[PICK_COLOUR])
    chat.open(session)
    card = chat.card("pick_colour")

    def expect_the_call() -> None:
        card.expect_status("pending")
        expect(card.part("delay")).to_have_text("The call waits for the program that asked, which runs this tool.")
        expect(chat.status).to_have_text("Waiting for the program that asked…")
        expect(chat.sessions.first).to_contain_text("Waits for the program that asked")

    expect_the_call()
    begun_at.process.kill()
    chat.page.reload()
    expect_the_call()
    begun_at.live_again()
    chat.input.fill("hello")
    chat.page.get_by_test_id("decline-and-send").click()
    expect(chat.questions).to_have_text(['call pick_colour {"of": "tea"}', "hello"])
    card.expect_status("unknown")
    expect(chat.answers.last).not_to_be_empty()
    chat.expect_idle()


@promise(
    "messages that wait are shown by every tab and kept through a reload and the end of the engine",
    only_in_test_all="needs a browser",
)
@promise("the page survives a reload in the middle of an answer")
def test_twenty_messages_that_wait_are_sent_once_each_though_their_engine_is_killed(
    chat: ChatPage, site: Site, browser: Browser
) -> None:
    texts = [f"message {number}" for number in range(1, 21)]
    chat.open()
    with silent(site.model):
        chat.ask("hello")
        for number, text in enumerate(texts, 1):
            chat.ask(text)
            expect(chat.queued).to_have_count(number)
        running, other = site.of_turn()
        running.process.kill()
        chat.page.reload()  # before the other engine has adopted the turn
        expect(chat.questions).to_have_text(["hello"])
        expect(chat.queued).to_have_count(20)
        assert site.of_turn() == (running, other)
    with device(browser, other, chat.session) as second:
        for tab in (chat, second):
            expect(tab.questions).to_have_text(["hello", *texts], timeout=120_000)
            expect(tab.answers).to_have_count(21)
            tab.expect_idle()
            expect(tab.queued).to_have_count(0)
        assert second.says() == chat.says()
    asked = "SELECT content FROM messages WHERE role = 'user' AND content LIKE 'message %' ORDER BY number"
    assert [text for (text,) in site.stack.store.rows(asked)] == texts
    running.live_again()
