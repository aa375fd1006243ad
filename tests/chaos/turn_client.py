"""A client whose turn loses its engine, and that resumes it at any engine that answers."""

import json
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httpx2

from plugins_contract.messages import new_id
from tests.chaos.transitions import Tool, Transition
from tests.support.replicas import Replica
from tests.support.stack import Event
from tests.support.transcript import Transcript
from tests.support.waiting import wait_until_blocking

END_SECONDS = 90.0
OK = 200


@dataclass
class TurnClient:
    """One turn as its client sees it."""

    transition: Transition
    token: str = field(default_factory=new_id)
    """Names the effects of its tool."""
    received: Transcript = field(default_factory=Transcript)
    session_id: str = ""
    turn_id: str = ""
    question: dict[str, Any] | None = None
    """The approval question of its call."""
    seconds: float | None = None
    """From the kill to the received end of the turn; None when the end was received before the kill."""

    def ask(self, victim: Replica) -> None:
        """Ask, and follow the answer until the engine dies."""
        self.session_id = victim.http.post("/v1/sessions").json()["sessionId"]

        def seen(event: Event) -> bool:
            if event.data.get("status") == "asked":
                self.question = event.data
                if self.transition.step != "sent asked":
                    self._approve(victim)
            return False

        with suppress(httpx2.TransportError):
            _, self.turn_id = victim.begin(self._message(), self.session_id)
            victim.read(self.turn_id, self.received, until=seen)

    def resume(self, engine: Replica, died_at: float) -> None:
        """Follow the turn to its end at this engine."""
        ended = self.received.done is not None
        if not self.turn_id:
            # The answer with the turn's id was lost. Every engine of the store knows a committed turn.
            wait_until_blocking(lambda: self._find(engine), END_SECONDS, what="the turn")
        if self.transition.tool is Tool.ASKED:
            # The answer to the decision may be lost: it is sent again.
            wait_until_blocking(lambda: self._asked(engine), END_SECONDS, what="the question")
            wait_until_blocking(lambda: self._approve(engine) == OK, END_SECONDS, what="the approval to be taken")
        engine.read_to_the_end(self.turn_id, self.received, END_SECONDS)
        self.seconds = None if ended else time.monotonic() - died_at

    def check(self, engine: Replica) -> None:
        """The received events fit the store and the effects of the tool. Raises AssertionError."""
        received, stored = self.received, engine.messages(self.session_id)
        here = [each for each in stored if each["turnId"] == self.turn_id]
        said = {each["messageId"]: each["content"] for each in here if each["role"] == "assistant"}
        calls = {call["correlationId"]: call["status"] for each in here for call in each["toolCalls"]}
        asked = [each["content"] for each in here if each["role"] == "user"]
        assert asked == [self._message()], f"the stored questions are {asked}"
        assert received.messages == said, f"received {received.messages}, stored {said}"
        assert received.statuses == calls, f"received {received.statuses}, stored {calls}"
        assert not received.open_text, f"received and not stored: {received.open_text!r}"
        assert not received.repeats, f"received twice: {received.repeats}"
        assert received.done is not None
        assert received.done["reason"] == "stop", f"it ended with {received.done}"
        assert list(calls.values()) == ["succeeded"], f"its calls: {calls}"
        assert (runs := len(engine.stack.effects(self.token))) == 1, f"the tool ran {runs} times"

    def _message(self) -> str:
        arguments: dict[str, str | float] = {"token": self.token}
        if self.transition.tool is Tool.FREE:
            arguments["answer_after_seconds"] = self.transition.work_seconds
        return f"call demo__{self.transition.tool} {json.dumps(arguments)}"

    def _find(self, engine: Replica) -> bool:
        """Whether this engine knows the question."""
        turns = engine.http.get(f"/v1/sessions/{self.session_id}/messages").json().get("turns")
        if turns:
            self.turn_id = turns[0]["turnId"]
        return bool(turns)

    def _asked(self, engine: Replica) -> bool:
        """Whether the question is known: the engine may have died before the question was sent."""
        calls = [call for message in engine.messages(self.session_id) for call in message["toolCalls"]]
        if self.question is None and calls:
            self.question = {"correlationId": calls[0]["correlationId"], "hash": calls[0]["approval"]["hash"]}
        return self.question is not None

    def _approve(self, engine: Replica) -> int:
        assert self.question is not None
        path = f"/v1/turns/{self.turn_id}/approvals/{self.question['correlationId']}"
        body = {"decision": "approve", "hash": self.question["hash"]}
        return engine.http.post(path, json=body).status_code
