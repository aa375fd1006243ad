"""Two engines as processes on one PostgreSQL: one is killed, also with a parked turn, and the other continues. So is
a worker.

Their leases are short: `tests/unit/test_ownership.py` tests the decision with the leases of the product,
`tests/integration/test_replicas.py` what engines do without processes, and the scenario `engines_killed` every step.
"""

import time
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest
from openai import APIError, DefaultHttpxClient, OpenAI

from tests.marks import exhaustive, promise
from tests.support.replicas import Replica, doomed, read, read_to_the_end, replica
from tests.support.stack import Event, Stack, running_stack
from tests.support.transcript import Transcript
from tests.support.waiting import wait_until_blocking

QUESTION = "Increment the counter, answering after 2 seconds, with token running"
TAKEOVER_SECONDS = 20.0
TOOL = "demo__delete_everything"
SECONDS = 60.0
far = exhaustive("a kill on the other side of the same commit, or at another one")


@pytest.fixture(scope="module")
def stack() -> Generator[Stack]:
    with running_stack(start=False, quick=True, forked=True, token_delay_ms=10, database="postgres") as stack:
        stack.start_all_but_engines()
        yield stack


@pytest.fixture(scope="module")
def two(stack: Stack) -> Generator[Replica]:
    """The engine that lives."""
    with replica(stack, "two") as two:
        yield two


def runs(event: Event) -> bool:
    return event.name == "control" and event.data.get("status") == "running"


@promise("another engine adopts the turns of an engine that is gone, and the old owner is fenced")
@promise("engines killed at any step of a turn, restarted or replaced: clients receive what is stored, tools run once")
@promise("the turns of an engine that is gone for good end elsewhere, and the model is shown the whole history")
def test_a_call_that_runs_is_waited_for_by_the_other_and_runs_once(stack: Stack, two: Replica) -> None:
    with replica(stack, "one") as one:
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


def client_of(engine: Replica) -> OpenAI:
    url = f"http://127.0.0.1:{engine.port}/v1"
    return OpenAI(base_url=url, api_key="any", http_client=DefaultHttpxClient(trust_env=False, verify=False))


@exhaustive("test_responses.py has the same at two engines, and the test above the kill")
@promise("a response in the background is read later, from any event, and stopped at any engine")
def test_a_response_whose_engine_was_killed_is_read_on_at_the_other(stack: Stack, two: Replica) -> None:
    with replica(stack, "three") as three, client_of(three) as here, client_of(two) as there:
        seen: list[Any] = []
        question = QUESTION.replace("running", "response")
        model = here.models.list().data[0].id
        stream = here.responses.create(model=model, input=question, background=True, stream=True)
        with suppress(httpx2.TransportError, APIError):
            for event in stream:
                seen.append(event)
                if event.type == "response.mcp_call.in_progress":
                    stack.wait_for_effect("response")
                    three.process.kill()
        assert seen[-1].type != "response.completed"
        before = len(seen)
        give_up_at = time.monotonic() + SECONDS
        while seen[-1].type != "response.completed" and time.monotonic() < give_up_at:
            with suppress(httpx2.TransportError):
                after = seen[-1].sequence_number
                seen += there.responses.retrieve(seen[0].response.id, stream=True, starting_after=after)
        response = seen[-1].response
        numbers = [event.sequence_number for event in seen]
        assert numbers == sorted(set(numbers))
        # Behind an item that died before Redis had it comes the end, which has the whole response.
        assert [item.type for item in response.output] == ["message", "mcp_call", "message"]
        if len(seen) > before + 1:
            done = {event.item.id: event.item.status for event in seen if event.type == "response.output_item.done"}
            assert [id_ for id_, status in done.items() if status == "completed"] == [
                item.id for item in response.output
            ]
        assert [item.status for item in response.output if item.type == "mcp_call"] == ["completed"]
        assert len(stack.effects("response")) == 1


def pending(engine: Replica, turn_id: str) -> dict[str, Any] | None:
    found = engine.http.get("/v1/me/pending").json()["approvals"]
    return next((each for each in found if each["turnId"] == turn_id), None)


def approve(engine: Replica, turn_id: str, question: dict[str, Any]) -> int:
    path = f"/v1/turns/{turn_id}/approvals/{question['correlationId']}"
    return engine.http.post(path, json={"decision": "approve", "hash": question["hash"]}).status_code


@promise("a parked turn outlives the kill of any engine at any point, and its call runs once")
@pytest.mark.parametrize(
    ("step", "answers"),
    [
        pytest.param("before SqlParked.park", False, marks=far),
        ("after SqlParked.park", False),
        pytest.param("before SqlApprovals.decide", True, marks=far),
        pytest.param("after SqlApprovals.decide", True, marks=far),
    ],
)
def test_a_turn_that_waits_for_its_user_survives_a_kill(
    stack: Stack, two: Replica, tmp_path: Path, step: str, answers: bool
) -> None:
    (crash_at := tmp_path / "crash-at").write_text(f"1 {step}")
    token = step.replace(" ", "-")
    with replica(stack, "one", doomed(crash_at)) as one:
        _, turn_id = one.begin(f'call {TOOL} {{"token": "{token}"}}')
        wait_until_blocking(lambda: pending(two, turn_id), SECONDS, what="the question")
        question = pending(two, turn_id)
        assert question is not None
        if answers:
            state = f"/v1/turns/{turn_id}"
            wait_until_blocking(lambda: two.http.get(state).json().get("parked"), SECONDS, what="the parked turn")
            with suppress(httpx2.TransportError):
                approve(one, turn_id, question)
        wait_until_blocking(lambda: one.process.returncode is not None, SECONDS, what="the kill")

        assert approve(two, turn_id, question) == 200
        transcript = Transcript()
        read_to_the_end(two.http, turn_id, transcript, SECONDS)
        assert [*transcript.statuses.values()] == ["succeeded"]
        assert transcript.done is not None
        assert transcript.done["reason"] == "stop"
        assert len(stack.effects(token)) == 1


@promise("a call whose worker was lost says what happens next")
def test_a_worker_that_dies_during_a_call_leaves_it_unknown_when_it_may_not_run_twice(
    stack: Stack, two: Replica
) -> None:
    _, turn_id = two.begin("Increment the counter, answering after 20 seconds, with token worker-once")
    transcript = Transcript()
    read(two.http, turn_id, transcript, until=runs)
    stack.wait_for_effect("worker-once")
    [worker] = stack.workers.values()
    worker.kill()
    stack.workers.clear()
    stack.start_worker()
    read_to_the_end(two.http, turn_id, transcript, SECONDS)
    [call] = transcript.calls.values()
    assert (call["status"], call["error"]["code"]) == ("unknown", "OUTCOME_UNKNOWN")
    assert len(stack.effects("worker-once")) == 1
