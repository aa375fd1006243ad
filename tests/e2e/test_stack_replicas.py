"""Two engines as processes on one PostgreSQL: one is killed, and the other continues its turn.

Their leases are short: `tests/unit/test_ownership.py` tests the decision with the leases of the product,
`tests/integration/test_replicas.py` what engines do without processes, and the scenario `engines_killed` every step.
"""

import time
from collections.abc import Generator
from contextlib import ExitStack, closing
from functools import partial

import pytest

from tests.marks import promise
from tests.support.replicas import QUICK_ENGINE, Replica, read, read_to_the_end
from tests.support.stack import Event, Stack, running_stack
from tests.support.transcript import Transcript

QUESTION = "Increment the counter, answering after 2 seconds, with token running"
TAKEOVER_SECONDS = 20.0


@pytest.fixture
def stack() -> Generator[Stack]:
    with running_stack(start=False, quick=True, token_delay_ms=10, database="postgres") as stack:
        stack.start_all_but_engines()
        yield stack


def runs(event: Event) -> bool:
    return event.name == "control" and event.data.get("status") == "running"


@promise("another engine adopts the turns of an engine that is gone, and the old owner is fenced")
@promise("engines killed at any step of a turn, restarted or replaced: clients receive what is stored, tools run once")
@promise("the turns of an engine that is gone for good end elsewhere, and the model is shown the whole history")
def test_a_call_that_runs_is_waited_for_by_the_other_and_runs_once(stack: Stack) -> None:
    with ExitStack() as clients:
        start = partial(Replica, stack, program=QUICK_ENGINE)
        one, two = (clients.enter_context(closing(start(name))) for name in ("one", "two"))
        for engine in (one, two):
            engine.wait_for_tools()
        session_id, turn_id = one.begin(QUESTION)
        transcript = Transcript()
        read(one.http, turn_id, transcript, until=runs)
        stack.wait_for_effect("running")
        one.process.kill()
        died_at = time.monotonic()
        read_to_the_end(two.http, turn_id, transcript, TAKEOVER_SECONDS + 10)
        assert time.monotonic() - died_at < TAKEOVER_SECONDS
        stored = [each for each in two.messages(session_id) if each["role"] == "assistant"]
        assert transcript.messages == {each["messageId"]: each["content"] for each in stored}
        calls = {call["correlationId"]: call["status"] for each in stored for call in each["toolCalls"]}
        assert transcript.statuses == calls
        assert [*calls.values()] == ["succeeded"]
        assert (transcript.repeats, transcript.open_text) == ([], "")
        assert len(stack.effects("running")) == 1

        _, next_turn = two.begin("And what did I ask before?", session_id)
        read_to_the_end(two.http, next_turn, Transcript(), 30)
        contents = [message["content"] for message in two.messages(session_id) if message["role"] == "user"]
        assert contents == [QUESTION, "And what did I ask before?"]
        one.live_again()
        assert one.messages(session_id) == two.messages(session_id)
