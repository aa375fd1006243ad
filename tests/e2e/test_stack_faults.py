"""Parts of the running product die or stand still in the middle of a tool call."""

import signal
from collections.abc import Generator, Iterator

import pytest

from tests.marks import exhaustive, promise, smoke
from tests.support.processes import answers
from tests.support.stack import Event, Said, Stack, running_stack
from tests.support.waiting import wait_until_blocking

pytestmark = exhaustive("real processes fail for many seconds")

COUNT = "Increment the counter, answering after {seconds} seconds, with token {token}"


@pytest.fixture(scope="module")
def stack() -> Generator[Stack]:
    with running_stack(quick=True) as stack:
        yield stack


def until(events: Iterator[Event], status: str) -> list[Event]:
    """The events up to the first step of a tool call with that status."""
    seen: list[Event] = []
    for event in events:
        seen.append(event)
        if event.data.get("status") == status and event.data.get("type") == "tool":
            return seen
    raise AssertionError(f"no {status}: {seen}")


@promise("a call whose worker was lost says what happens next")
@smoke
def test_a_worker_that_dies_during_a_call_leaves_it_unknown_when_it_may_not_run_twice(stack: Stack) -> None:
    with stack.asking(COUNT.format(seconds=20, token="worker-once")) as events:
        seen = until(events, "running")
        stack.wait_for_effect("worker-once")
        next(iter(stack.workers.values())).kill()
        stack.workers.clear()
        stack.start_worker()
        said = Said((*seen, *events))
    assert said.steps("demo__increment_counter")[-1]["status"] == "unknown"
    assert said.steps("demo__increment_counter")[-1]["error"]["code"] == "OUTCOME_UNKNOWN"
    assert said.reason == "stop"
    assert len(stack.effects("worker-once")) == 1


@promise("with Redis or all workers down chat still answers")
def test_without_redis_the_chat_still_answers_and_with_it_tools_work_again(stack: Stack) -> None:
    stack.redis.kill()
    said = stack.ask("Hello, who are you?")
    assert said.reason == "stop"
    assert "script" in said.text.lower()
    wait_until_blocking(lambda: stack.http.get("/readyz").json()["status"] == "degraded", 20)
    wait_until_blocking(lambda: not any(answers(f"http://127.0.0.1:{port}/readyz") for port in stack.workers), 20)
    stack.redis.start()
    wait_until_blocking(lambda: stack.http.get("/readyz").json()["status"] == "ready", 30)
    assert "391" in stack.ask("What is 17 * 23?").text


def test_a_worker_that_is_terminated_finishes_its_call_first(stack: Stack) -> None:
    with stack.asking(COUNT.format(seconds=2, token="drain")) as events:
        seen = until(events, "running")
        (port, worker), *_ = stack.workers.items()
        worker.send(signal.SIGTERM)
        said = Said((*seen, *events))
    assert said.steps("demo__increment_counter")[-1]["status"] == "succeeded"
    wait_until_blocking(lambda: worker.returncode is not None, 10)
    assert worker.returncode == 0
    del stack.workers[port]
    stack.start_worker()
