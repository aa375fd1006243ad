"""Questions and sessions of servers while a worker or an engine of the previous release runs, which has none."""

import copy
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.marks import exhaustive, promise
from tests.support import previous_release
from tests.support.previous_release import PreviousRelease
from tests.support.processes import ROOT
from tests.support.stack import ENGINE, Stack, events_of, running_stack

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(previous_release.missing() is not None, reason=previous_release.missing() or ""),
    exhaustive("the previous release as real processes"),
]
SERVERS = ROOT / "tests/integration/servers"
TIMEOUT_MS = 120_000  # a machine that runs everything at once is slow
CONFIG: dict[str, Any] = {
    "mcpServers": {
        "asking": {
            "command": sys.executable,
            "args": [str(SERVERS / "asking.py"), "stdio"],
            "callstream": {"timeoutMs": TIMEOUT_MS, "connectTimeoutMs": TIMEOUT_MS},
        },
        "notes": {
            "command": sys.executable,
            "args": [str(SERVERS / "notes.py")],
            "callstream": {"session": "conversation", "timeoutMs": TIMEOUT_MS, "connectTimeoutMs": TIMEOUT_MS},
        },
    }
}
CITIES = [f"City{number}" for number in range(8)]


@promise(
    "parts of the last release and of this one work together", only_in_test_all="the last release as real processes"
)
@pytest.mark.parametrize("old", ["worker", "engine"])
def test_questions_and_sessions_beside_a_part_of_the_last_release_are_never_served_wrongly(
    old: str, tmp_path: Path
) -> None:
    """An old worker knows neither; it runs beside a new one, and each may get a call. An old engine asks nobody."""
    previous = PreviousRelease(tmp_path / "previous-release")
    config, trace = copy.deepcopy(CONFIG), tmp_path / "trace"
    config["mcpServers"]["asking"]["env"] = {"KEY": "k" * 32, "TRACE": str(trace)}
    with running_stack(start=False, config=config) as stack:
        stack.redis.start()
        stack.start_model()
        stack.start_worker()
        if old == "worker":
            stack.start_worker(program=previous.worker)
        stack.engine = stack.run_engine(stack.engine_port, "engine", previous.engine if old == "engine" else ENGINE)
        stack.wait_for_tools("asking", "notes")

        session = stack.http.post("/v1/sessions").json()["sessionId"]
        for number in range(1, 5):
            said = stack.ask(f'call notes__note {{"text": "{number}"}}', session)
            last = said.steps("notes__note")[-1]
            assert last["status"] == "succeeded"
            assert last["result"]["text"] == " ".join(map(str, range(1, number + 1)))

        ends = [asked_or_refused(stack, city) for city in CITIES]
        assert set(ends) <= ({"succeeded", "failed"} if old == "worker" else {"failed"})
        begun = Counter(trace.read_text().splitlines())
        assert begun.pop("book None") == len(CITIES), "no round with an answer is run as a first one"
        assert set(begun.values()) <= {1}
        assert len(begun) == ends.count("succeeded")


def asked_or_refused(stack: Stack, city: str) -> str:
    """How a call ended whose server asks, when the question was answered, if it was put."""
    session = stack.http.post("/v1/sessions").json()["sessionId"]
    body = {"message": f'call asking__book {{"city": "{city}"}}'}
    turn = stack.http.post(f"/v1/sessions/{session}/turns", json=body).json()["turnId"]
    with stack.http.stream("GET", f"/v1/turns/{turn}/events") as stream:
        for event in events_of(stream.iter_lines()):
            if event.data.get("type") == "question" and event.data["status"] == "asked":
                path = f"/v1/turns/{turn}/questions/{event.data['questionId']}"
                given = {"action": "accept", "content": {"day": "2026-12-01"}}
                assert stack.http.post(path, json=given).status_code == 200
            if event.name == "done":
                break
    [statuses] = stack.follow(turn).statuses("asking__book")
    return statuses[-1]
