"""A turn as a client receives it, over any number of connections, beside what engines have stored of it."""

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx2

from plugins_contract.outcomes import CallState
from tests.chaos.invariants import Finding
from tests.chaos.model import Order
from tests.support.replicas import read_to_the_end
from tests.support.transcript import Transcript

ACCEPTED = 202
FINAL = frozenset(state for state in CallState if state.terminal)


@dataclass
class Followed:
    order: Order
    session_id: str = ""
    turn_id: str = ""
    received: Transcript = field(default_factory=Transcript)

    @property
    def reason(self) -> str | None:
        """How it ended; None while that was not received."""
        return self.received.done["reason"] if self.received.done else None

    def begin(self, http: httpx2.Client) -> httpx2.Response:
        """Ask, in its session or in a new one. `turn_id` is known if the engine accepts it."""
        self.session_id = self.session_id or http.post("/v1/sessions").json()["sessionId"]
        answer = http.post(f"/v1/sessions/{self.session_id}/turns", json={"message": str(self.order)})
        if answer.status_code == ACCEPTED:
            self.turn_id = answer.json()["turnId"]
        return answer

    def follow(self, http: httpx2.Client, seconds: float) -> None:
        """Read on to its end. Raises TimeoutError."""
        read_to_the_end(http, self.turn_id, self.received, seconds)

    def differences(self, http: httpx2.Client, *, whole: bool = True) -> Iterator[str]:
        """What was received otherwise than this engine has it, or twice; unless `whole`, more may be stored."""
        here = [each for each in history(http, self.session_id) if each["turnId"] == self.turn_id]
        asked = [each["content"] for each in here if each["role"] == "user"]
        said = {each["messageId"]: each["content"] for each in here if each["role"] == "assistant"}
        calls = {call["correlationId"]: call["status"] for each in here for call in each["toolCalls"]}
        received, statuses = self.received, self.received.statuses
        if asked != [str(self.order)]:
            yield f"the stored questions are {asked}"
        if received.messages != said if whole else not received.messages.items() <= said.items():
            yield f"received {received.messages}, stored {said}"
        ended = statuses if whole else {call: status for call, status in statuses.items() if status in FINAL}
        if ended != calls if whole else not ended.items() <= calls.items():
            yield f"received {statuses}, stored {calls}"
        if whole and received.open_text:
            yield f"received and not stored: {received.open_text!r}"
        if received.repeats:
            yield f"received twice: {received.repeats}"


def history(http: httpx2.Client, session_id: str) -> Iterator[Mapping[str, Any]]:
    """The messages of a session, the newest page first."""
    before: dict[str, str] = {}
    while True:
        page = http.get(f"/v1/sessions/{session_id}/messages", params=before).json()
        yield from page["messages"]
        if not page["nextCursor"]:
            return
        before = {"before": page["nextCursor"]}


@contextmanager
def engines_at(ports: Iterable[int]) -> Generator[list[httpx2.Client]]:
    with ExitStack() as stack:
        yield [
            stack.enter_context(closing(httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=60)))
            for port in ports
        ]


AT_ONCE = 8


def disagreements(ports: Iterable[int], session_ids: Sequence[str]) -> list[Finding]:
    """The sessions about which the engines at these ports differ. Their turns may have ended in any way."""
    with engines_at(ports) as clients, ThreadPoolExecutor(AT_ONCE) as pool:

        def look(session_id: str) -> Finding | None:
            answers = [client.get(f"/v1/sessions/{session_id}/messages") for client in clients]
            if all(answer.status_code == 200 and answer.json() == answers[0].json() for answer in answers):
                return None
            told = f"engines tell a session differently: {[a.text for a in answers]}"
            return Finding("alike", told[:2000], session_id)

        return [finding for finding in pool.map(look, session_ids) if finding]
