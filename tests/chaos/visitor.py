"""A client whose turn loses its engine, and who goes on wherever it can."""

import json
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httpx2

from plugins_contract.ids import new_id
from tests.chaos.transitions import Tool, Transition
from tests.support.replicas import Replica
from tests.support.stack import Event
from tests.support.transcript import Transcript
from tests.support.waiting import wait_until_blocking

END_SECONDS = 90.0
WORK_SECONDS = 0.5
OK = 200


@dataclass
class Visitor:
    """One turn as its client lives through it."""

    transition: Transition
    token: str = field(default_factory=new_id)
    """What the effects of its tool are known by."""
    told: Transcript = field(default_factory=Transcript)
    session_id: str = ""
    turn_id: str = ""
    question: dict[str, Any] | None = None
    """What is asked about a call that waits for approval."""
    seconds: float | None = None
    """From the kill to the end of the turn as it was told; None when that was told before."""

    def ask(self, victim: Replica) -> None:
        """Ask, and follow the answer for as long as the engine lives."""
        self.session_id = victim.http.post("/v1/sessions").json()["sessionId"]

        def seen(event: Event) -> bool:
            if event.data.get("status") == "asked":
                self.question = event.data
                if self.transition.step != "told asked":
                    self._approve(victim)
            return False

        with suppress(httpx2.TransportError):
            _, self.turn_id = victim.begin(self._message(), self.session_id)
            victim.read(self.turn_id, self.told, until=seen)

    def go_on(self, engine: Replica, died_at: float) -> None:
        """Go on to the end with this engine."""
        over = self.told.done is not None
        if not self.turn_id:
            # Nobody said that the question was heard. What was committed is known to every engine of the store.
            wait_until_blocking(lambda: self._find(engine), END_SECONDS, what="the turn")
        if self.transition.tool is Tool.ASKED:
            # Who got no answer does it again.
            wait_until_blocking(lambda: self._asked(engine), END_SECONDS, what="the question")
            wait_until_blocking(lambda: self._approve(engine) == OK, END_SECONDS, what="the approval to be taken")
        engine.read_to_the_end(self.turn_id, self.told, END_SECONDS)
        self.seconds = None if over else time.monotonic() - died_at

    def check(self, engine: Replica) -> None:
        """What was told is what is stored, and what really happened. Raises AssertionError."""
        told, stored = self.told, engine.messages(self.session_id)
        here = [each for each in stored if each["turnId"] == self.turn_id]
        said = {each["messageId"]: each["content"] for each in here if each["role"] == "assistant"}
        calls = {call["correlationId"]: call["status"] for each in here for call in each["toolCalls"]}
        asked = [each["content"] for each in here if each["role"] == "user"]
        assert asked == [self._message()], f"the user is said to have said {asked}"
        assert told.messages == said, f"told {told.messages}, stored {said}"
        assert told.statuses == calls, f"told {told.statuses}, stored {calls}"
        assert not told.open_text, f"told and not stored: {told.open_text!r}"
        assert not told.repeats, f"told twice: {told.repeats}"
        assert told.done is not None
        assert told.done["reason"] == "stop", f"it ended with {told.done}"
        assert list(calls.values()) == ["succeeded"], f"its calls: {calls}"
        assert (runs := len(engine.stack.effects(self.token))) == 1, f"the tool ran {runs} times"

    def _message(self) -> str:
        arguments: dict[str, str | float] = {"token": self.token}
        if self.transition.tool is Tool.FREE:
            arguments["answer_after_seconds"] = WORK_SECONDS
        return f"call demo__{self.transition.tool} {json.dumps(arguments)}"

    def _find(self, engine: Replica) -> bool:
        """Whether this engine knows the question."""
        turns = engine.http.get(f"/v1/sessions/{self.session_id}/messages").json().get("turns")
        if turns:
            self.turn_id = turns[0]["turnId"]
        return bool(turns)

    def _asked(self, engine: Replica) -> bool:
        """Whether the question is known: its client may have lost the engine before it was told."""
        calls = [call for message in engine.messages(self.session_id) for call in message["toolCalls"]]
        if self.question is None and calls:
            self.question = {"correlationId": calls[0]["correlationId"], "hash": calls[0]["approval"]["hash"]}
        return self.question is not None

    def _approve(self, engine: Replica) -> int:
        assert self.question is not None
        path = f"/v1/turns/{self.turn_id}/approvals/{self.question['correlationId']}"
        body = {"decision": "approve", "hash": self.question["hash"]}
        return engine.http.post(path, json=body).status_code
