"""Two engines as processes on one PostgreSQL: one is killed or stopped, and the other continues its turns.

Their leases are short: `tests/unit/test_ownership.py` tests the decision with the leases of the product, and the
scenario `engines_killed` measures how long an adoption takes.
"""

import sys
import time
from collections.abc import Callable, Generator
from typing import Any

import pytest

from tests.marks import exhaustive, promise, smoke
from tests.support.replicas import Replica
from tests.support.stack import Event, Stack, running_stack
from tests.support.transcript import Transcript

pytestmark = exhaustive("integration/test_replicas.py has it without processes")

COUNT = "Increment the counter, answering after {seconds} seconds, with token {token}"
QUICK_ENGINE = (sys.executable, "-m", "tests.support.quick_engine")
TAKEOVER_SECONDS = 20.0


@pytest.fixture(scope="module")
def stack() -> Generator[Stack]:
    with running_stack(start=False, quick=True, token_delay_ms=10, database="postgres") as stack:
        stack.start_store()
        stack.redis.start()
        stack.start_demo()
        stack.start_model()
        stack.start_worker()
        yield stack


@pytest.fixture(scope="module")
def both(stack: Stack) -> Generator[tuple[Replica, Replica]]:
    replicas = Replica(stack, "one", program=QUICK_ENGINE), Replica(stack, "two", program=QUICK_ENGINE)
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


def check(engine: Replica, session_id: str, turn_id: str, transcript: Transcript) -> list[dict[str, Any]]:
    """Check that a client received what is stored. Returns the stored messages of the turn."""
    stored = [each for each in engine.messages(session_id) if each["turnId"] == turn_id and each["role"] == "assistant"]
    assert transcript.messages == {each["messageId"]: each["content"] for each in stored}
    calls = {call["correlationId"]: call["status"] for each in stored for call in each["toolCalls"]}
    assert transcript.statuses == calls
    assert transcript.repeats == []
    assert transcript.open_text == ""
    return stored


def test_an_engine_that_dies_in_the_middle_of_a_text_is_followed_by_the_other(
    engines: tuple[Replica, Replica],
) -> None:
    one, two = engines
    session_id, turn_id = one.begin("Hello, who are you?")
    transcript = Transcript()
    one.read(turn_id, transcript, until=text)
    one.process.kill()
    two.read_to_the_end(turn_id, transcript, TAKEOVER_SECONDS + 10)
    check(two, session_id, turn_id, transcript)


@promise("another engine adopts the turns of an engine that is gone, and the old owner is fenced")
@promise("engines killed at any step of a turn, restarted or replaced: clients receive what is stored, tools run once")
@promise("the turns of an engine that is gone for good end elsewhere, and the model is shown the whole history")
@smoke
def test_a_call_that_runs_is_waited_for_by_the_other_and_runs_once(
    stack: Stack, engines: tuple[Replica, Replica]
) -> None:
    one, two = engines
    question = COUNT.format(seconds=2, token="running")
    session_id, turn_id = one.begin(question)
    transcript = Transcript()
    one.read(turn_id, transcript, until=step("running"))
    stack.wait_for_effect("running")
    one.process.kill()
    died_at = time.monotonic()
    two.read_to_the_end(turn_id, transcript, TAKEOVER_SECONDS + 10)
    assert time.monotonic() - died_at < TAKEOVER_SECONDS
    check(two, session_id, turn_id, transcript)
    assert [*transcript.statuses.values()] == ["succeeded"]
    assert len(stack.effects("running")) == 1

    _, next_turn = two.begin("And what did I ask before?", session_id)
    two.read_to_the_end(next_turn, Transcript(), 30)
    contents = [message["content"] for message in two.messages(session_id) if message["role"] == "user"]
    assert contents == [question, "And what did I ask before?"]
    one.live_again()
    assert one.messages(session_id) == two.messages(session_id)


@promise("stop works from any engine")
def test_a_turn_whose_engine_is_gone_can_be_stopped(stack: Stack, engines: tuple[Replica, Replica]) -> None:
    one, two = engines
    session_id, turn_id = one.begin(COUNT.format(seconds=25, token="stopped"))
    transcript = Transcript()
    one.read(turn_id, transcript, until=step("running"))
    one.process.kill()
    assert two.http.post(f"/v1/turns/{turn_id}/cancel").status_code == 202
    two.read_to_the_end(turn_id, transcript, TAKEOVER_SECONDS + 10)
    assert transcript.done is not None
    assert transcript.done["reason"] == "cancelled"
    assert two.http.get(f"/v1/turns/{turn_id}").json()["status"] == "cancelled"
    assert next(iter(transcript.statuses.values())) in ("cancelled", "unknown")
    check(two, session_id, turn_id, transcript)
