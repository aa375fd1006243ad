"""One kill: turns of several clients reach a step, their engine dies, and an engine goes on with them."""

import json
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import httpx2

from plugins_contract.messages import new_id
from tests.chaos.cluster import Cluster
from tests.chaos.crash_points import ENQUEUED, OFFERED, SENT_QUEUED, UNSTORED_END
from tests.chaos.followed import Followed
from tests.chaos.model import Order, Shown
from tests.chaos.tools import ASKING, SERVER
from tests.support.replicas import Replica, read
from tests.support.stack import Event
from tests.support.store import quoted
from tests.support.waiting import comes, wait_until_blocking


@dataclass(frozen=True, slots=True)
class Transition:
    """`step` is what `crash_points` calls it. The turn's tool works for `work_ms`, unless it needs approval."""

    name: str
    step: str
    asked: bool = False
    work_ms: int = 500

    @property
    def server(self) -> str:
        return ASKING if self.asked else SERVER


LONG_MS = 5_000
"""A busy engine learns of the start of a shorter call together with its reply, and sends the reply only."""


LATE = ("sent asked", "before SqlParked.park", "after SqlParked.park")
"""Before the approval is given."""
TRANSITIONS = (
    Transition("the user's message is committed, nothing is sent", "after SqlTurns.begin"),
    Transition("the turn has begun", "sent started"),
    Transition("the model speaks for the first time", "in the first reply"),
    Transition("the round is committed, the relay does not have it", "after SqlCalls.add_round"),
    Transition(OFFERED, OFFERED),
    Transition(ENQUEUED, ENQUEUED),
    Transition("the call is queued", SENT_QUEUED, work_ms=LONG_MS),
    Transition("the call runs", "sent progress", work_ms=LONG_MS),
    Transition("the reply is there, not committed", "before SqlCalls.add_result"),
    Transition("the result is committed, not sent", "after SqlCalls.add_result"),
    Transition("between two rounds", "before the last reply"),
    Transition("the model speaks for the last time", "in the last reply"),
    Transition("the answer is there, not committed", "before SqlTurns.finish"),
    Transition("the end is committed, not sent", "after SqlTurns.finish"),
    Transition(UNSTORED_END, UNSTORED_END),
    Transition("the turn has ended", "sent done"),
    Transition("a call waits for approval", "sent asked", asked=True),
    Transition("a call waits for approval, the turn is not parked", "before SqlParked.park", asked=True),
    Transition("the turn is parked", "after SqlParked.park", asked=True),
    Transition("the approval is there, not committed", "before SqlApprovals.decide", asked=True),
    Transition("the approval is committed, not sent", "after SqlApprovals.decide", asked=True),
    Transition("the approval is sent", "sent approved", asked=True),
)


TAKEOVER_SECONDS = 20.0
END_SECONDS = 90.0
OK = 200


class Recovery(StrEnum):
    RESTART = "restart"
    """The same engine, started again."""
    TAKEOVER = "takeover"
    """Another engine on the same store. The one that was killed is started again when all is over."""


class CrashingReplica(Replica):
    def __init__(self, cluster: Cluster, name: str) -> None:
        self._crash_point = cluster.folder / f"{name}.crash_point"
        # What it adopts would count among those at the step.
        flags = ("--adopt-nothing", "--crash-at", self._crash_point)
        super().__init__(cluster, name, program=(sys.executable, "-m", "tests.chaos.engine", *flags))

    def crash_at(self, step: str, turns: int) -> None:
        """Kill itself when this number of turns waits at the step."""
        self._crash_point.write_text(f"{turns} {step}")

    def live_again(self) -> None:
        self._crash_point.unlink(missing_ok=True)
        super().live_again()


@dataclass
class KilledTurn(Followed):
    """A turn whose engine dies, and whose client resumes it at any engine that answers."""

    asked: bool = False
    """Whether its call needs approval, which is given as soon as it is asked for, or `approves_late`."""
    approves_late: bool = False
    question: dict[str, Any] | None = None
    """The approval question of its call."""
    seconds: float | None = None
    """From the kill to the received end of the turn; None when the end was received before the kill."""

    def ask(self, victim: Replica) -> None:
        """Ask, and follow the answer until the engine dies."""

        def seen(event: Event) -> bool:
            if event.data.get("status") == "asked":
                self.question = event.data
                if not self.approves_late:
                    self._approve(victim)
            return False

        with suppress(httpx2.TransportError):
            self.begin(victim.http)
            read(victim.http, self.turn_id, self.received, until=seen)

    def resume(self, engine: Replica, died_at: float) -> None:
        over = self.received.done is not None
        if not self.turn_id:
            # The answer with the turn's id was lost. Every engine of the store knows a committed turn.
            wait_until_blocking(lambda: self._find(engine), END_SECONDS, what="the turn")
        if self.asked:
            # The answer to the decision may be lost: it is sent again.
            wait_until_blocking(lambda: self._is_asked(engine), END_SECONDS, what="the question")
            wait_until_blocking(lambda: self._approve(engine) == OK, END_SECONDS, what="the approval to be taken")
        self.follow(engine.http, END_SECONDS)
        self.seconds = None if over else time.monotonic() - died_at

    def check(self, engine: Replica) -> None:
        """What was received is what is stored, and what the model is shown with the next question.

        Raises:
            AssertionError: it is not.
        """
        problems = [*self.differences(engine.http)]
        assert not problems, problems
        assert self.reason == "stop", f"it ended with {self.received.done}"
        assert [*self.received.statuses.values()] == ["succeeded"], f"its calls: {self.received.statuses}"

        again = Followed(Order(new_id(), recalls=True), self.session_id)
        stored: list[Shown] = [*_shown(engine.messages(self.session_id)), ("user", str(again.order), [])]
        again.begin(engine.http)
        again.follow(engine.http, END_SECONDS)
        assert again.reason == "stop", f"the next turn ended with {again.received.done}"
        shown = [tuple(each) for each in json.loads(again.received.text)]
        assert shown == stored, f"the model was shown {shown}, not {stored}"

    def _find(self, engine: Replica) -> bool:
        turns = engine.http.get(f"/v1/sessions/{self.session_id}/messages").json().get("turns")
        if turns:
            self.turn_id = turns[0]["turnId"]
        return bool(turns)

    def _is_asked(self, engine: Replica) -> bool:
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


def _shown(stored: Sequence[dict[str, Any]]) -> list[Shown]:
    shown: list[Shown] = []
    for message in stored:
        calls = message["toolCalls"]
        shown.append((message["role"], message["content"], [call["toolCallId"] for call in calls]))
        shown += [("tool", call["result"]["text"], [call["toolCallId"]]) for call in calls]
    return shown


@dataclass
class Kill:
    victim: CrashingReplica
    survivor: Replica
    transition: Transition
    recovery: Recovery
    turns: int
    clients: list[KilledTurn] = field(default_factory=list[KilledTurn])
    findings: list[str] = field(default_factory=list[str])
    adopted_after: float | None = None
    """From the kill until the other engine owned the last turn that ran; None when none ran, or no engine took over."""

    def run(self) -> None:
        step, server = self.transition.step, self.transition.server
        self.victim.live_again()
        self.victim.crash_at(step, self.turns)
        for _ in range(self.turns):
            tag = new_id()
            call = (f"{server}__once", {"token": tag, "work_ms": self.transition.work_ms})
            turn = KilledTurn(Order(tag, [[call]]), asked=self.transition.asked, approves_late=step in LATE)
            self.clients.append(turn)
        with ThreadPoolExecutor(self.turns + 1) as pool:
            asking = [pool.submit(client.ask, self.victim) for client in self.clients]
            if not comes(lambda: self.victim.process.returncode is not None, END_SECONDS):
                self._find(f"only {[client.received for client in self.clients]} reached the step")
                self.victim.process.kill()
            died_at = time.monotonic()
            for client, asked in zip(self.clients, asking, strict=True):
                self._try(client, asked.result)
            engine = self.victim if self.recovery is Recovery.RESTART else self.survivor
            adoption = pool.submit(self._adoption, died_at) if self.recovery is Recovery.TAKEOVER else None
            engine.live_again()
            for seen in [pool.submit(self._see_through, client, engine, died_at) for client in self.clients]:
                seen.result()
            if adoption is not None:
                self.adopted_after = adoption.result()
        self.victim.live_again()

    def _adoption(self, died_at: float) -> float | None:
        """When the last of the turns that the dead engine ran belonged to another one."""
        store = self.victim.stack.store
        sessions = quoted(client.session_id for client in self.clients)
        own = f"session_id IN ({sessions}) AND status = 'running' AND owner <> ''"
        owners = store.rows(f"SELECT DISTINCT owner FROM turns WHERE {own}")  # noqa: S608
        if not owners:
            return None
        left = f"turns WHERE status = 'running' AND owner IN ({quoted(owner for (owner,) in owners)})"
        if not comes(lambda: store.count(left) == 0, TAKEOVER_SECONDS):
            self._find(f"{store.count(left)} turns were not adopted within {TAKEOVER_SECONDS:g} s")
        return time.monotonic() - died_at

    def _see_through(self, client: KilledTurn, engine: Replica, died_at: float) -> None:
        def live() -> None:
            client.resume(engine, died_at)
            client.check(engine)
            if self.recovery is Recovery.TAKEOVER and (client.seconds or 0) > TAKEOVER_SECONDS:
                self._find(f"the end came {client.seconds:.1f} s after the kill")

        self._try(client, live)

    def _try(self, client: KilledTurn, do: Callable[[], None]) -> None:
        try:
            do()
        except Exception as error:  # noqa: BLE001 -- whatever it is became of this turn: the others go on
            self._find(f"turn {client.turn_id}: {type(error).__name__} {error}")

    def _find(self, what: str) -> None:
        self.findings.append(f"{self.recovery}, {self.transition.name}: {what}")
