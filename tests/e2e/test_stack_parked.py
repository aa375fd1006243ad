"""Two engines as processes on one PostgreSQL: one is killed while a turn is parked or taken up, the other continues."""

import sys
from collections.abc import Generator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.marks import promise
from tests.support.replicas import Replica, read_to_the_end
from tests.support.stack import Stack, running_stack
from tests.support.transcript import Transcript
from tests.support.waiting import wait_until_blocking

TOOL = "demo__delete_everything"
SECONDS = 60.0


@pytest.fixture
def stack() -> Generator[Stack]:
    with running_stack(start=False, quick=True, token_delay_ms=1, database="postgres") as stack:
        stack.start_all_but_engines()
        yield stack


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
        ("before SqlParked.park", False),
        ("after SqlParked.park", False),
        ("before SqlApprovals.decide", True),
        ("after SqlApprovals.decide", True),
    ],
)
def test_a_turn_that_waits_for_its_user_survives_a_kill(stack: Stack, tmp_path: Path, step: str, answers: bool) -> None:
    crash_at = tmp_path / "crash-at"
    crash_at.write_text(f"1 {step}")
    doomed = (sys.executable, "-m", "tests.chaos.engine", "--crash-at", crash_at, "--lease", "4")
    quick = (sys.executable, "-m", "tests.support.quick_engine")
    with ExitStack() as clients:
        two = clients.enter_context(closing(Replica(stack, "two", program=quick)))
        one = clients.enter_context(closing(Replica(stack, "one", program=doomed)))
        for engine in (one, two):
            engine.wait_for_tools()
        _, turn_id = one.begin(f'call {TOOL} {{"token": "parked"}}')
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
        assert len(stack.effects("parked")) == 1
