"""Redis is killed, or the workers are: calls say what they wait for, in Chromium and by the API."""

import re
from collections.abc import Generator

import pytest
from playwright.sync_api import expect

from tests.e2e.chat_page import Card, ChatPage
from tests.marks import exhaustive, promise
from tests.support.stack import Json, Stack, running_stack
from tests.support.waiting import wait_until_blocking

pytestmark = [pytest.mark.browser, exhaustive("real processes fail for many seconds")]

SUM = "What is 17 * 23 + 4?"
JOB = "Run a slow job of 4 seconds in 8 steps with token {token}"


@pytest.fixture(scope="module")
def stack() -> Generator[Stack]:
    with running_stack(quick=True) as stack:
        yield stack


@pytest.fixture
def base_url(stack: Stack) -> str:
    return stack.url


def steps(stack: Stack, tool: str) -> list[tuple[str, str | None]]:
    """The steps of a tool in the newest turn, each with what the call waits for, as any client receives them."""
    [session, *_] = stack.http.get("/v1/sessions").json()["sessions"]
    turns: list[Json] = stack.http.get(f"/v1/sessions/{session['sessionId']}/messages").json()["turns"]
    return [(step["status"], step.get("waitsFor")) for step in stack.follow(turns[-1]["turnId"]).steps(tool)]


def delayed(card: Card, words: str) -> None:
    expect(card.part("delay")).to_contain_text(re.compile(words), timeout=30_000)


@promise("a call that waits for Redis or for a worker says so, until it goes on")
def test_a_call_says_that_redis_is_away_and_goes_on_when_it_is_back(chat: ChatPage, stack: Stack) -> None:
    chat.open()
    stack.redis.kill()
    wait_until_blocking(lambda: stack.http.get("/readyz").json()["parts"]["redis"] == "unavailable", 20)
    chat.ask(SUM)
    card = chat.card("demo__calculate")
    delayed(card, "Redis is unavailable")
    card.expect_status("pending")
    expect(chat.status).to_have_text("Waiting for Redis…")
    chat.picture("redis-away")

    stack.redis.start()
    card.expect_status("succeeded")
    expect(card.part("delay")).to_be_hidden()
    chat.expect_idle()
    received = steps(stack, "demo__calculate")
    assert received[:2] == [("pending", None), ("pending", "redis")]
    assert received[-1] == ("succeeded", None)


@promise("a call that waits for Redis or for a worker says so, until it goes on")
def test_a_call_says_that_no_worker_is_there_and_goes_on_when_one_is(chat: ChatPage, stack: Stack) -> None:
    chat.open()
    for worker in stack.workers.values():
        worker.stop()
    stack.workers.clear()
    chat.ask(SUM)
    card = chat.card("demo__calculate")
    delayed(card, "No worker is available")
    card.expect_status("queued")
    expect(chat.status).to_have_text("Waiting for a worker…")
    chat.picture("no-worker")

    stack.start_worker()
    card.expect_status("succeeded")
    expect(card.part("delay")).to_be_hidden()
    chat.expect_idle()
    received = steps(stack, "demo__calculate")
    assert ("queued", "worker") in received
    assert ("succeeded", None) in received[received.index(("queued", "worker")) :]


@promise("a call whose worker was lost says what happens next")
def test_a_call_whose_worker_was_lost_says_so_while_another_runs_it(chat: ChatPage, stack: Stack) -> None:
    chat.open()
    chat.ask(JOB.format(token="lost"))
    card = chat.card("demo__slow_job")
    card.expect_status("running")
    stack.wait_for_effect("lost")
    next(iter(stack.workers.values())).kill()
    stack.workers.clear()
    stack.start_worker()
    delayed(card, "The worker that ran this call was lost")
    chat.picture("worker-lost")
    card.expect_status("succeeded")
    expect(card.part("delay")).to_be_hidden()
    chat.expect_idle()
