"""A call of a client's tool while an engine is killed, as processes on one PostgreSQL."""

from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from tests.marks import exhaustive, promise
from tests.support.replicas import Replica, doomed, read_to_the_end, replica
from tests.support.stack import Stack
from tests.support.transcript import Transcript
from tests.support.waiting import wait_until_blocking

TOOL = {"name": "pick_colour", "description": "Picks a colour.", "inputSchema": {"type": "object"}}
SECONDS = 120.0
pytestmark = exhaustive("processes that are killed: make test has engines that die in test_client_tools.py")


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Generator[Stack]:
    stack = Stack(tmp_path_factory.mktemp("stack"), database="postgres", quick=True, forked=True, token_delay_ms=1)
    try:
        stack.start_all_but_engines()
        yield stack
    finally:
        stack.close()


def open_call(http: httpx2.Client, turn_id: str) -> dict[str, Any]:
    """The call of the turn that waits for its client."""

    def found() -> list[dict[str, Any]]:
        listed = http.get("/v1/me/pending").json()["clientCalls"]
        return [each for each in listed if each["turnId"] == turn_id]

    return wait_until_blocking(found, SECONDS, what="the call")[0]


def answer(http: httpx2.Client, call: dict[str, Any]) -> int:
    return http.post(call["answerUrl"], json={"content": "teal"}).status_code


@promise("an open call of a client outlives the kill of any engine, and its result is taken once")
@pytest.mark.parametrize(
    ("step", "answers"),
    [
        ("after SqlCalls.add_round", False),
        ("before SqlParked.park", False),
        ("after SqlParked.park", False),
        ("before SqlApprovals.answer", True),
        ("after SqlApprovals.answer", True),
    ],
)
def test_an_engine_is_killed(stack: Stack, tmp_path: Path, step: str, answers: bool) -> None:
    crash_at = tmp_path / "crash-at"
    with replica(stack, "two") as two, replica(stack, "one", doomed(crash_at)) as one:
        if not answers:
            crash_at.write_text(f"1 {step}")
        _, turn_id = one.begin('call pick_colour {"of": "tea"}', clientTools=[TOOL])
        call = open_call(two.http, turn_id)
        if answers:
            crash_at.write_text(f"1 {step}")
            with suppress(httpx2.TransportError):
                answer(one.http, call)
        wait_until_blocking(lambda: one.process.returncode is not None, SECONDS, what="the kill")

        assert [answer(two.http, call) for _ in range(2)] == [200, 200]
        assert two.http.post(call["answerUrl"], json={"content": "red"}).status_code == 409
        transcript = Transcript()
        read_to_the_end(two.http, turn_id, transcript, SECONDS)
        assert [*transcript.statuses.values()] == ["succeeded"]


def client_of(engine: Replica) -> openai.OpenAI:
    # Each of its requests has a connection of its own, since engines are killed.
    return openai.OpenAI(base_url=f"http://127.0.0.1:{engine.port}/v1", api_key="any", max_retries=5)


@promise("an open call of a client outlives the kill of any engine, and its result is taken once")
def test_an_engine_is_killed_while_a_response_waits_for_a_function(stack: Stack, tmp_path: Path) -> None:
    crash_at = tmp_path / "crash-at"
    function: Any = {"type": "function", "name": TOOL["name"], "parameters": TOOL["inputSchema"], "strict": False}
    with replica(stack, "two") as two, replica(stack, "one", doomed(crash_at)) as one:
        here, there = client_of(one), client_of(two)
        model = there.models.list().data[0].id
        crash_at.write_text("1 after SqlCalls.add_round")
        begun = here.responses.create(model=model, input="call pick_colour {}", tools=[function], background=True)
        wait_until_blocking(lambda: one.process.returncode is not None, SECONDS, what="the kill")

        def waits() -> Any:
            response = there.responses.retrieve(begun.id)
            return response if response.status == "completed" else None

        [call] = [item for item in wait_until_blocking(waits, SECONDS).output if item.type == "function_call"]
        output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "teal"}
        with there.responses.stream(model=model, input=[output]) as stream:
            response = stream.get_final_response()
        assert (response.status, "teal" in response.output_text) == ("completed", True)
        again = there.responses.create(model=model, input=[output])
        assert (again.id, again.output_text) == (response.id, response.output_text)
