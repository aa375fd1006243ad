"""A stack whose MCP server asks people: what was asked, the answers, and which rounds the server has run."""

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2

from tests.support.processes import ROOT, Process
from tests.support.stack import Stack
from tests.support.waiting import wait_until_blocking

TOOL = "asking__book"
KEY = "k" * 32
ANSWER = {"action": "accept", "content": {"day": "2026-11-26", "seats": 3}}
SECONDS = 120.0


class AskingStack(Stack):
    """Its server of 2026-07-28 is a process of its own, in the place of the demo server. `key` seals its states."""

    key = KEY
    server: Process

    @property
    def hold(self) -> Path:
        """While this file exists, a round with an answer waits at the server."""
        return self.folder / "hold"

    def start_demo(self) -> Process:
        argv = [sys.executable, ROOT / "tests" / "integration" / "servers" / "asking.py", str(self.demo_port)]
        env = {"KEY": self.key, "TRACE": str(self.effect_log), "HOLD": str(self.hold), "TIMES": "yes"}
        self.server = self._run(argv, f"http://127.0.0.1:{self.demo_port}/healthz", env)
        return self.server

    def lines(self) -> list[str]:
        """The rounds that the server has begun, each with its time in seconds: `book None`, and with an answer `book
        canary-state to <city> accept`."""
        return self.effect_log.read_text().splitlines() if self.effect_log.exists() else []

    def answered(self, city: str) -> list[str]:
        """The rounds with an answer for this city."""
        return [line for line in self.lines() if f" to {city} " in line]


@contextmanager
def asking_stack(folder: Path, source: str = "", **options: Any) -> Generator[AskingStack]:
    """Everything but the engines runs. `source` is put in front of the installed services."""
    path = {"PYTHONPATH": f"{source}{os.pathsep}{ROOT}"} if source else {}
    stack = AskingStack(folder, config=CONFIG, quick=True, engine_env=path, worker_env=path, **options)
    try:
        stack.start_all_but_engines()
        yield stack
    finally:
        stack.close()


OPTIONS = {"trust": False, "tools": {"book": {"executionClass": "repeatable"}}}
CONFIG = {"mcpServers": {"asking": {"url": "${DEMO_MCP_URL}", "callstream": OPTIONS}}}
"""Its tool may run again. A round with an answer may not."""


def question_of(http: httpx2.Client, turn_id: str, seconds: float = SECONDS) -> dict[str, Any]:
    """The newest open question of a turn, once there is one."""
    session = http.get(f"/v1/turns/{turn_id}").json()["sessionId"]

    def found() -> list[dict[str, Any]]:
        answer = http.get(f"/v1/sessions/{session}/messages")
        if answer.status_code == 503:
            return []
        calls = [call for message in answer.json()["messages"] for call in message.get("toolCalls", ())]
        return [each for call in calls for each in call.get("questions", ()) if each["status"] == "asked"]

    wait_until_blocking(found, seconds, what=f"a question of turn {turn_id}")
    return found()[-1]


def answer(http: httpx2.Client, turn_id: str, question: dict[str, Any]) -> int:
    """Answer it."""
    return http.post(f"/v1/turns/{turn_id}/questions/{question['questionId']}", json=ANSWER).status_code
