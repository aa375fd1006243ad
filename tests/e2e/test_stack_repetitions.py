"""A client repeats its request because the engine that had committed it was killed: the tool runs once."""

from collections.abc import Generator
from pathlib import Path

import httpx2
import pytest

from tests.marks import exhaustive, promise
from tests.support.replicas import Replica, doomed, replica
from tests.support.stack import Stack, events_of, running_stack
from tests.support.transcript import Transcript
from tests.support.waiting import wait_until_blocking

pytestmark = exhaustive("processes that are killed: test_sent_requests.py has the same repetitions in make test")
KEYED, COUNTED = {"Idempotency-Key": "k1"}, {"x-stainless-retry-count": "1"}


@pytest.fixture(scope="module")
def stack() -> Generator[Stack]:
    with running_stack(start=False, quick=True, forked=True, database="postgres") as stack:
        stack.start_all_but_engines()
        yield stack


@pytest.fixture(scope="module")
def two(stack: Stack) -> Generator[Replica]:
    """The engine that lives."""
    with replica(stack, "two") as two:
        yield two


@promise("a request with an Idempotency-Key begins one turn, however often and at whichever engine it is sent")
@promise("a request that the SDK of OpenAI repeats joins the turn that it has begun")
@pytest.mark.parametrize(
    ("token", "first", "repeated"), [("key", KEYED, KEYED), ("count", {}, COUNTED)], ids=["key", "retry count"]
)
def test_a_request_is_repeated_after_a_kill_between_its_commit_and_its_answer(
    stack: Stack, two: Replica, tmp_path: Path, token: str, first: dict[str, str], repeated: dict[str, str]
) -> None:
    (crash_at := tmp_path / "crash-at").write_text("1 after SqlTurns.begin")
    body = {"message": f"Increment the counter with token {token}"}
    before = sessions(two)
    with replica(stack, "one", doomed(crash_at)) as one:
        with pytest.raises(httpx2.TransportError):
            one.http.post("/v1/chat", json=body, headers=first)
        wait_until_blocking(lambda: one.process.returncode is not None, what="the kill")
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
    assert sessions(two) == before + 1
    assert len(stack.effects(token)) == 1


def sessions(engine: Replica) -> int:
    return len(engine.http.get("/v1/sessions").json()["sessions"])
