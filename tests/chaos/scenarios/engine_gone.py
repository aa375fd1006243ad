"""An engine with several running turns is killed and never comes back; the other one ends them, and goes on with their
sessions as if it had always had them. Then it is killed itself, and so on.

On PostgreSQL the other one runs beside it; on SQLite it is started on the dead one's file.
"""

import json
import random
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx2

from plugins_contract.messages import new_id
from tests.chaos.invariants import as_text, not_struck
from tests.chaos.report import Report, Size
from tests.chaos.trial import quantile
from tests.support.replicas import Replica
from tests.support.stack import Stack
from tests.support.store import Kind, quoted
from tests.support.transcript import Transcript
from tests.support.waiting import wait_until_blocking

STORES: Sequence[Kind] = ("postgres", "sqlite")
SHARED_FILE = "engine-for-all"
"""On SQLite: the file that goes from the dead engine to the next."""
_OWNERS = "SELECT DISTINCT owner FROM turns WHERE status = 'running'"
TAKEOVER_SECONDS = 20.0
END_SECONDS = 90.0
LONGEST_SECONDS = 6.0
"""How long a tool takes at most."""
KILLED_WITHIN_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Form:
    """How many engines are killed, each with so many turns."""

    kills: int
    turns: int


FORMS = {Size.SHORT: Form(1, 3), Size.FULL: Form(20, 10)}


class RecordedStack(Stack):
    """A stack whose model remembers what it was asked."""

    def start_model(self) -> None:
        argv = [sys.executable, "-m", "tests.chaos.recording_model", str(self.model_port)]
        self._run(argv, f"http://127.0.0.1:{self.model_port}/healthz")

    def asked(self, token: str) -> list[dict[str, Any]]:
        """The messages of the last request to the model that had this token in it."""
        answer = httpx2.get(f"http://127.0.0.1:{self.model_port}/asked", params={"about": token}, timeout=30)
        return answer.json()[-1]["messages"]


@dataclass
class Talk:
    """A session with a turn that loses its engine."""

    seconds: float
    """How long its tool takes."""
    token: str = field(default_factory=new_id)
    session_id: str = ""
    turn_id: str = ""
    received: Transcript = field(default_factory=Transcript)
    took: float | None = None
    """From the kill to the end; None for a turn that had ended before."""
    shown: bool = False
    """Whether the model was shown the whole history with the next question."""

    def begin(self, engine: Replica) -> None:
        """Ask, and follow for as long as the engine lives."""
        message = {"token": self.token, "answer_after_seconds": self.seconds}
        self.session_id, self.turn_id = engine.begin(f"call demo__increment_counter {json.dumps(message)}")
        with suppress(httpx2.TransportError):
            engine.read(self.turn_id, self.received)

    def go_on(self, engine: Replica, died_at: float) -> None:
        """Follow to the end, then ask again. Raises AssertionError."""
        over = self.received.done is not None
        engine.read_to_the_end(self.turn_id, self.received, END_SECONDS)
        self.took = None if over else time.monotonic() - died_at
        assert self.received.done
        assert self.received.done["reason"] == "stop", f"it ended with {self.received.done}"
        assert list(self.received.statuses.values()) == ["succeeded"], f"its calls: {self.received.statuses}"

        history = _as_the_model_sees(engine.messages(self.session_id))
        again = new_id()
        _, turn_id = engine.begin(f"echo {again}", self.session_id)
        engine.read_to_the_end(turn_id, Transcript(), END_SECONDS)
        stack = engine.stack
        assert isinstance(stack, RecordedStack)
        shown = [_plain(message) for message in stack.asked(again) if message["role"] in ("user", "assistant", "tool")]
        assert shown[: len(history) + 1] == [*history, ("user", f"echo {again}", [])], f"the model was shown {shown}"
        self.shown = True
        assert (runs := len(stack.effects(self.token))) == 1, f"the tool ran {runs} times"


def run(size: Size, folder: Path, *, store: Kind = "postgres") -> Report:
    """Kill one engine after the other."""
    form, dice = FORMS[size], random.Random(0)
    stack = RecordedStack(folder, quick=True, database=store)
    adoptions: list[float] = []
    talks: list[Talk] = []
    findings: list[str] = []
    try:
        stack.start()
        here = Replica(stack, SHARED_FILE)
        for _ in range(form.kills):
            with closing(here), ThreadPoolExecutor(form.turns) as pool:
                beside = Replica(stack, SHARED_FILE) if store == "postgres" else None
                for engine in (here, beside):
                    if engine is not None:
                        engine.wait_for_tools()
                now = [Talk(dice.uniform(0, LONGEST_SECONDS)) for _ in range(form.turns)]
                for talk in now:
                    pool.submit(talk.begin, here)
                wait_until_blocking(lambda now=now: all(talk.turn_id for talk in now), END_SECONDS, what="the turns")
                time.sleep(dice.uniform(0.5, KILLED_WITHIN_SECONDS))  # anywhere in the turns
                here.process.kill()
                died_at = time.monotonic()
                running = stack.store_of(SHARED_FILE).rows(_OWNERS)
                other = beside or Replica(stack, SHARED_FILE)
                if running and beside is not None:
                    adoptions.append(_adoption(stack, {owner for (owner,) in running}, died_at))
                findings += pool.map(partial(_seen_through, engine=other, died_at=died_at), now)
                talks += now
                here = other
        here.close()
    finally:
        stack.close()
    findings += as_text(not_struck({"turns that ran then": sum(talk.took is not None for talk in talks)}))
    findings += (f"turns were adopted only after {took:.1f} s" for took in adoptions if took > TAKEOVER_SECONDS)
    figures = _figures(talks, form)
    if adoptions:
        figures["its turns belong to another engine after, max s"] = max(adoptions)
    return Report("engine_gone", figures, tuple(finding for finding in findings if finding))


def _adoption(stack: Stack, owners: set[str], died_at: float) -> float:
    """When the turns of the dead owner belonged to another one."""
    left = f"turns WHERE status = 'running' AND owner IN ({quoted(owners)})"
    with suppress(TimeoutError):
        wait_until_blocking(lambda: stack.store.count(left) == 0, 2 * TAKEOVER_SECONDS)
    return time.monotonic() - died_at


def _seen_through(talk: Talk, engine: Replica, died_at: float) -> str:
    """What did not hold; "" when everything did."""
    try:
        talk.go_on(engine, died_at)
    except (AssertionError, TimeoutError, httpx2.HTTPError) as error:
        return f"turn {talk.turn_id}: {type(error).__name__} {error}"
    if talk.took is not None and talk.took > TAKEOVER_SECONDS:
        return f"turn {talk.turn_id}: its end came {talk.took:.1f} s after the kill"
    return ""


Shown = tuple[str, str, list[str]]
"""A message as a model is shown it: its role, its text, the ids of its calls or of the one it answers."""


def _as_the_model_sees(stored: Sequence[dict[str, Any]]) -> list[Shown]:
    shown: list[Shown] = []
    for message in stored:
        calls = message["toolCalls"]
        shown.append((message["role"], message["content"], [call["toolCallId"] for call in calls]))
        shown += [("tool", call["result"]["text"], [call["toolCallId"]]) for call in calls]
    return shown


def _plain(message: dict[str, Any]) -> Shown:
    answered = [message["tool_call_id"]] if message["role"] == "tool" else []
    asked: list[dict[str, Any]] = message.get("tool_calls") or []
    calls = [call["id"] for call in asked]
    return message["role"], message["content"] or "", [*answered, *calls]


def _figures(talks: Sequence[Talk], form: Form) -> dict[str, float | int | str]:
    took = [talk.took for talk in talks if talk.took is not None]
    return {
        "engines killed for good": form.kills,
        "turns that ran then": len(took),
        "their end after the kill, p50 s": quantile(took, 0.5),
        "their end after the kill, p99 s": quantile(took, 0.99),
        "their end after the kill, max s": max(took, default=0.0),
        "next turns whose model was shown the whole history": sum(talk.shown for talk in talks),
    }
