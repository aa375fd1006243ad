"""Messages that wait through kills of their engine, as a process with its store: each is sent once, in its order."""

import sys
from pathlib import Path
from typing import Any

import pytest

from deploy.local.ports import free_port
from tests.marks import exhaustive, promise
from tests.support import previous_release
from tests.support.previous_release import PreviousRelease
from tests.support.stack import running_stack
from tests.support.store import Kind
from tests.support.waiting import wait_until_blocking

pytestmark = [pytest.mark.timeout(300), exhaustive("contract/ports/test_waiting_messages.py has it without processes")]

KILLED_AT = ("before SqlTurns.finish", "after SqlTurns.finish", "after SqlTurns.finish")


@promise("a message that waits is sent once, whatever becomes of the engine and of its client")
@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_twenty_messages_that_wait_through_kills_are_each_sent_once(database: Kind) -> None:
    with running_stack(start=False, token_delay_ms=5, database=database, engine_env={"ENABLE_MCP": "false"}) as stack:
        stack.start_store()
        stack.redis.start()
        stack.start_model()
        crash_at = stack.folder / "crash"
        program = [sys.executable, "-m", "tests.chaos.engine", "--crash-at", crash_at, "--lease", "2"]
        engine = stack.run_engine(stack.engine_port, "engine", program)
        session_id = stack.http.post("/v1/sessions").json()["sessionId"]
        texts = [f"message {number}" for number in range(21)]

        def send(text: str) -> dict[str, Any]:
            body = {"message": text, "onBusy": "queue", "clientMessageId": text}
            answer = stack.http.post(f"/v1/sessions/{session_id}/turns", json=body)
            assert answer.status_code == 202, answer.text
            return answer.json()

        turns = [send(text)["turnId"] for text in texts]
        for step in KILLED_AT:
            crash_at.write_text(f"1 {step}")
            wait_until_blocking(lambda engine=engine: engine.returncode is not None, 60, what=f"the kill {step}")
            stack.bury(engine)
            crash_at.unlink()
            engine = stack.run_engine(stack.engine_port, "engine", program)

        def answered() -> bool:
            return stack.http.get(f"/v1/turns/{turns[-1]}").json()["status"] == "done"

        wait_until_blocking(answered, 120, what="the last answer")
        assert [send(text)["turnId"] for text in texts] == turns, "they were sent before"
        messages = stack.http.get(f"/v1/sessions/{session_id}/messages").json()["messages"]
        assert [each["content"] for each in messages if each["role"] == "user"] == texts
        assert len(messages) == 2 * len(texts)


@promise("a message that waits is sent once, whatever becomes of the engine and of its client")
@pytest.mark.skipif(previous_release.missing() is not None, reason=previous_release.missing() or "")
def test_a_message_that_waits_begins_after_a_turn_that_an_engine_of_the_release_before_has_ended(
    tmp_path: Path,
) -> None:
    off = {"ENABLE_MCP": "false"}
    with running_stack(start=False, token_delay_ms=30, database="postgres", engine_env=off) as stack:
        stack.start_store()
        stack.redis.start()
        stack.start_model()
        old_port = free_port()
        stack.run_engine(old_port, "old", PreviousRelease(tmp_path).engine)
        stack.start_engine()
        session_id = stack.http.post("/v1/sessions").json()["sessionId"]
        path = f"/v1/sessions/{session_id}/turns"
        first = stack.http.post(f"http://127.0.0.1:{old_port}{path}", json={"message": "Hello, who are you?"})
        assert first.status_code == 202, first.text
        waiting = stack.http.post(path, json={"message": "And now?", "onBusy": "queue"}).json()
        assert waiting["status"] == "waiting"
        assert stack.follow(waiting["turnId"]).reason == "stop"
        messages = stack.http.get(f"/v1/sessions/{session_id}/messages").json()["messages"]
        assert [each["content"] for each in messages if each["role"] == "user"] == ["Hello, who are you?", "And now?"]
