"""A client repeats its request because the engine that had committed it was killed: the tool runs once."""

import sys
from collections.abc import Generator
from contextlib import ExitStack, closing
from pathlib import Path

import httpx2
import pytest

from tests.marks import promise
from tests.support.replicas import QUICK_ENGINE, Replica
from tests.support.stack import Stack, events_of, running_stack
from tests.support.transcript import Transcript
from tests.support.waiting import wait_until_blocking

QUESTION = "Increment the counter with token once"
KEYED, COUNTED = {"Idempotency-Key": "k1"}, {"x-stainless-retry-count": "1"}


@pytest.fixture
def stack() -> Generator[Stack]:
    with running_stack(start=False, quick=True, database="postgres") as stack:
        stack.start_all_but_engines()
        yield stack


@promise("a request with an Idempotency-Key begins one turn, however often and at whichever engine it is sent")
@promise("a request that the SDK of OpenAI repeats joins the turn that it has begun")
@pytest.mark.parametrize(("first", "repeated"), [(KEYED, KEYED), ({}, COUNTED)], ids=["key", "retry count"])
def test_a_request_is_repeated_after_a_kill_between_its_commit_and_its_answer(
    stack: Stack, tmp_path: Path, first: dict[str, str], repeated: dict[str, str]
) -> None:
    crash_at = tmp_path / "crash-at"
    crash_at.write_text("1 after SqlTurns.begin")
    doomed = (sys.executable, "-m", "tests.chaos.engine", "--crash-at", crash_at, "--lease", "4")
    body = {"message": QUESTION}
    with ExitStack() as clients:
        two = clients.enter_context(closing(Replica(stack, "two", program=QUICK_ENGINE)))
        one = clients.enter_context(closing(Replica(stack, "one", program=doomed)))
        for engine in (one, two):
            engine.wait_for_tools()
        with pytest.raises(httpx2.TransportError):
            one.http.post("/v1/chat", json=body, headers=first)
        wait_until_blocking(lambda: one.process.returncode is not None, 30, what="the kill")
        transcript = Transcript()

        def read_on() -> bool:
            last = {"Last-Event-ID": transcript.last_id} if transcript.last_id else {}
            with two.http.stream("POST", "/v1/chat", json=body, headers=repeated | last) as response:
                assert response.status_code == 200, response.read()
                for event in events_of(response.iter_lines()):
                    transcript.take(event.id, event.name, event.data)
            return transcript.done is not None

        wait_until_blocking(read_on, 60, what="the end of the turn")
        assert [*transcript.statuses.values()] == ["succeeded"]
        assert len(two.http.get("/v1/sessions").json()["sessions"]) == 1
        assert len(stack.effects("once")) == 1
