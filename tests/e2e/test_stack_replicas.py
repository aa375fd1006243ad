"""Two engines as processes: one dies or stands still, and the other goes on with its turns."""

import signal
import time
from collections.abc import Callable, Generator
from typing import Any

import pytest

from tests.support.processes import answers
from tests.support.replicas import Replica, TryAgainError
from tests.support.stack import Event, Stack, running_stack
from tests.support.transcript import Transcript
from tests.support.waiting import wait_until_blocking

COUNT = "Increment the counter, answering after {seconds} seconds, with token {token}"
TAKEOVER_SECONDS = 20.0


@pytest.fixture(scope="module")
def stack() -> Generator[Stack]:
    with running_stack(quick=True, token_delay_ms=30) as stack:
        assert stack.engine
        stack.engine.stop()
        yield stack


@pytest.fixture(scope="module")
def both(stack: Stack) -> Generator[tuple[Replica, Replica]]:
    replicas = Replica(stack, "one"), Replica(stack, "two")
    yield replicas
    for replica in replicas:
        replica.close()


@pytest.fixture
def engines(both: tuple[Replica, Replica]) -> tuple[Replica, Replica]:
    for replica in both:
        replica.live_again()
        replica.wait_for_tools()
    return both


def text(event: Event) -> bool:
    return event.name == "text"


def step(status: str) -> Callable[[Event], bool]:
    return lambda event: event.name == "control" and event.data.get("status") == status


def check(engine: Replica, session_id: str, turn_id: str, told: Transcript) -> list[dict[str, Any]]:
    """What a client was told is what is stored. Returns the stored messages of the turn."""
    stored = [each for each in engine.messages(session_id) if each["turnId"] == turn_id and each["role"] == "assistant"]
    assert told.messages == {each["messageId"]: each["content"] for each in stored}
    calls = {call["correlationId"]: call["status"] for each in stored for call in each["toolCalls"]}
    assert told.statuses == calls
    assert told.repeats == []
    assert told.open_text == ""
    return stored


def test_an_engine_that_dies_in_the_middle_of_a_text_is_followed_by_the_other(
    engines: tuple[Replica, Replica],
) -> None:
    one, two = engines
    session_id, turn_id = one.begin("Hello, who are you?")
    told = Transcript()
    one.read(turn_id, told, until=text)
    one.process.kill()
    died_at = time.monotonic()
    two.read_to_the_end(turn_id, told, TAKEOVER_SECONDS + 10)
    assert time.monotonic() - died_at < TAKEOVER_SECONDS
    check(two, session_id, turn_id, told)

    _, next_turn = two.begin("And what did I ask before?", session_id)
    more = Transcript()
    two.read_to_the_end(next_turn, more, 30)
    contents = [message["content"] for message in two.messages(session_id) if message["role"] == "user"]
    assert contents == ["Hello, who are you?", "And what did I ask before?"]

    one.live_again()
    assert one.messages(session_id) == two.messages(session_id)


def test_a_call_that_runs_is_waited_for_by_the_other_and_runs_once(
    stack: Stack, engines: tuple[Replica, Replica]
) -> None:
    one, two = engines
    session_id, turn_id = one.begin(COUNT.format(seconds=4, token="running"))
    told = Transcript()
    one.read(turn_id, told, until=step("running"))
    stack.wait_for_effect("running")
    one.process.kill()
    died_at = time.monotonic()
    two.read_to_the_end(turn_id, told, TAKEOVER_SECONDS + 10)
    assert time.monotonic() - died_at < TAKEOVER_SECONDS
    check(two, session_id, turn_id, told)
    assert [*told.statuses.values()] == ["succeeded"]
    assert len(stack.effects("running")) == 1


def test_a_call_that_ended_while_its_engine_stood_still_is_not_run_again(
    stack: Stack, engines: tuple[Replica, Replica]
) -> None:
    one, two = engines
    session_id, turn_id = one.begin(COUNT.format(seconds=1, token="finished"))
    told = Transcript()
    one.read(turn_id, told, until=step("running"))
    one.process.send(signal.SIGSTOP)
    died_at = time.monotonic()
    stack.wait_for_effect("finished")
    two.read_to_the_end(turn_id, told, TAKEOVER_SECONDS + 10)
    assert time.monotonic() - died_at < TAKEOVER_SECONDS
    check(two, session_id, turn_id, told)
    assert len(stack.effects("finished")) == 1

    # The first owner wakes up: it finds itself passed over, and tells what the other one made of the turn.
    one.process.send(signal.SIGCONT)
    wait_until_blocking(lambda: one.messages(session_id) == two.messages(session_id), 15, what="the same messages")
    again = Transcript()
    one.read_to_the_end(turn_id, again, 15)
    check(one, session_id, turn_id, again)
    assert len(stack.effects("finished")) == 1


def test_a_call_that_no_worker_took_yet_is_not_lost(stack: Stack, engines: tuple[Replica, Replica]) -> None:
    one, two = engines
    [port] = stack.workers
    stack.workers.pop(port).stop()
    session_id, turn_id = one.begin(COUNT.format(seconds=0, token="pending"))
    told = Transcript()
    one.read(turn_id, told, until=step("queued"))
    one.process.kill()
    stack.start_worker()
    two.read_to_the_end(turn_id, told, TAKEOVER_SECONDS + 10)
    check(two, session_id, turn_id, told)
    assert [*told.statuses.values()] == ["succeeded"]
    assert len(stack.effects("pending")) == 1


def test_redis_may_be_restarted_between_the_death_and_the_takeover(
    stack: Stack, engines: tuple[Replica, Replica]
) -> None:
    one, two = engines
    session_id, turn_id = one.begin(COUNT.format(seconds=3, token="redis"))
    told = Transcript()
    one.read(turn_id, told, until=step("running"))
    stack.wait_for_effect("redis")
    stack.redis.write_down()  # this is about what the engines do, not about what a server on a busy disk may lose
    one.process.kill()
    stack.redis.kill()
    with pytest.raises(TryAgainError):
        two.read(turn_id, told)
    stack.redis.start()
    two.read_to_the_end(turn_id, told, 2 * TAKEOVER_SECONDS)
    check(two, session_id, turn_id, told)
    assert len(stack.effects("redis")) == 1
    wait_until_blocking(lambda: all(answers(f"http://127.0.0.1:{port}/readyz") for port in stack.workers), 20)


def test_a_turn_whose_engine_is_gone_can_be_stopped(stack: Stack, engines: tuple[Replica, Replica]) -> None:
    one, two = engines
    session_id, turn_id = one.begin(COUNT.format(seconds=25, token="stopped"))
    told = Transcript()
    one.read(turn_id, told, until=step("running"))
    one.process.kill()
    assert two.http.post(f"/v1/turns/{turn_id}/cancel").status_code == 202
    two.read_to_the_end(turn_id, told, TAKEOVER_SECONDS + 10)
    assert told.done is not None
    assert told.done["reason"] == "cancelled"
    assert two.http.get(f"/v1/turns/{turn_id}").json()["status"] == "cancelled"
    assert next(iter(told.statuses.values())) in ("cancelled", "unknown")
    check(two, session_id, turn_id, told)
