"""An engine is killed the moment after a client has seen a step: what was committed is sent again, and once."""

import signal
from collections.abc import Callable, Generator
from typing import Any

import pytest
from redis import Redis as SyncRedis

from plugins_contract.keys import Keys
from tests.marks import exhaustive, promise
from tests.support.stack import Event, Stack, running_stack
from tests.support.transcript import Transcript

pytestmark = exhaustive("real processes that are killed")

COUNT = "Increment the counter with token {token}"


@pytest.fixture(scope="module")
def stack() -> Generator[Stack]:
    with running_stack(quick=True, token_delay_ms=5) as stack:
        yield stack


Moment = Callable[[Event, Transcript], bool]
"""Whether it has come, by the last event and all that was received so far."""


def step(status: str) -> Moment:
    return lambda event, _: event.data.get("type") == "tool" and event.data["status"] == status


def message(event: Event, _: Transcript) -> bool:
    return event.name == "message"


def second_text(event: Event, transcript: Transcript) -> bool:
    # Not by what is in one piece: on a machine that is busy pieces come together.
    return event.name == "text" and bool(transcript.messages)


MOMENTS: dict[str, Moment] = {
    "message": message,
    "pending": step("pending"),
    "queued": step("queued"),
    "succeeded": step("succeeded"),
    "second-text": second_text,
}


def take(transcript: Transcript, events: Any, until: Moment | None = None) -> None:
    for event in events:
        transcript.take(event.id, event.name, event.data)
        if until and until(event, transcript):
            return


def stored(stack: Stack, session_id: str) -> tuple[dict[int, str], dict[str, str]]:
    """The assistant's messages, and where their calls stand."""
    said = stack.http.get(f"/v1/sessions/{session_id}/messages").json()["messages"]
    answers = [each for each in said if each["role"] == "assistant"]
    calls = {call["correlationId"]: call["status"] for each in answers for call in each["toolCalls"]}
    return {each["messageId"]: each["content"] for each in answers}, calls


@promise("what was committed before a crash is sent after it")
@promise("engines killed at any step of a turn, restarted or replaced: clients receive what is stored, tools run once")
@pytest.mark.parametrize(("moment", "log"), [*((moment, "kept") for moment in MOMENTS), ("succeeded", "lost")])
def test_a_client_that_reconnects_and_one_that_starts_over_receive_what_is_stored(
    stack: Stack, moment: str, log: str
) -> None:
    token = f"resume-{moment}-{log}"
    resumed, anew = Transcript(), Transcript()
    with stack.asking(COUNT.format(token=token)) as events:
        first = next(events)
        resumed.take(first.id, first.name, first.data)
        take(resumed, events, MOMENTS[moment])
        assert stack.engine
        stack.engine.send(signal.SIGKILL)
    turn, session = first.data["turnId"], first.data["sessionId"]
    stack.engine.stop()
    if log == "lost":
        with SyncRedis.from_url(stack.redis.url) as redis:
            redis.delete(Keys().turn(turn))
    stack.start_engine()

    take(resumed, stack.follow(turn, after=resumed.last_id).events)
    take(anew, stack.follow(turn).events)

    messages, calls = stored(stack, session)
    for transcript in (resumed, anew):
        assert (transcript.messages, transcript.statuses) == (messages, calls)
        assert transcript.open_text == ""
        assert transcript.done is not None
        assert transcript.done["reason"] == "stop"
        assert transcript.repeats == []
        assert all("arguments" in call for call in transcript.calls.values())
    assert list(calls.values()) == ["succeeded"]
    assert len(stack.effects(token)) == 1
