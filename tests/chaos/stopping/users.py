"""A user who asks, presses Stop, looks what is stored, and asks again."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.chaos.stopping.model import DONE, Plan
from tests.chaos.stopping.phases import Phase, Progress
from tests.support.replicas import Replica
from tests.support.stack import Event, events_of
from tests.support.transcript import Transcript
from tests.support.waiting import wait_until_blocking


@dataclass
class Stopped:
    """One turn that was stopped. Times are seconds on the monotonic clock."""

    phase: Phase
    plan: Plan
    session_id: str = ""
    pressed_at: float = 0.0
    done_at: float = 0.0
    said: dict[int, str] = field(default_factory=dict[int, str])
    """The pieces of text in which each message arrived."""
    received: Transcript = field(default_factory=Transcript)
    answer: dict[str, Any] = field(default_factory=dict[str, Any])
    """Of the request to stop."""
    stored: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    next_turn: Transcript = field(default_factory=Transcript)

    @property
    def token(self) -> str:
        """The name of the turn in the notes."""
        return self.plan.token

    @property
    def calls(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Its calls: the token of each, and its last step."""
        by_id = {step["toolCallId"]: step for step in self.received.calls.values()}
        for number, (_, arguments) in enumerate(self.plan.calls):
            yield arguments["token"], by_id.get(f"call_{number}", {})


def stop(one: Replica, two: Replica, phase: Phase, number: int) -> Stopped:
    """Play it to its end, up to `ask_again`. The turn runs on the first engine."""
    turn = Stopped(phase, phase.plan(number))
    progress, pressed, pieces = Progress(), False, ""
    body = {"message": str(turn.plan)}
    with one.http.stream("POST", "/v1/chat", json=body) as response:
        assert response.status_code == 200, response.read()
        turn.session_id = response.headers["x-session-id"]
        for event in events_of(response.iter_lines()):
            progress.take(event)
            turn.received.take(event.id, event.name, event.data)
            pieces = _heard(turn, event, pieces)
            if not pressed and turn.received.done is None and phase.reached(progress):
                pressed = True
                _press(turn, two if phase.elsewhere else one, response.headers["x-turn-id"])
        turn.done_at = time.monotonic()
    turn.stored = _stored(two if number % 2 else one, turn.session_id)
    return turn


def ask_again(turn: Stopped, replica: Replica) -> None:
    """The next turn of the session: it must be one that the model takes."""
    _, turn_id = replica.begin(str(Plan(f"{turn.token} next")), turn.session_id)
    replica.read_to_the_end(turn_id, turn.next_turn, 30)


def went_on(turn: Stopped) -> bool:
    """Whether the next turn was answered."""
    done = turn.next_turn.done
    return done is not None and done["reason"] == "stop" and turn.next_turn.text == DONE


def _press(turn: Stopped, replica: Replica, turn_id: str) -> None:
    time.sleep(turn.phase.delay())
    turn.pressed_at = time.monotonic()
    turn.answer = replica.http.post(f"/v1/turns/{turn_id}/cancel").json()


def _stored(replica: Replica, session_id: str) -> list[dict[str, Any]]:
    """What this engine has of the session, once it knows that the turn has ended."""

    def messages() -> list[dict[str, Any]] | None:
        session = replica.http.get(f"/v1/sessions/{session_id}/messages").json()
        return None if session["runningTurnId"] else session["messages"]

    return wait_until_blocking(messages) or []


def _heard(turn: Stopped, event: Event, pieces: str) -> str:
    match event.name:
        case "text":
            return pieces + event.data["delta"]
        case "message":
            turn.said[event.data["messageId"]] = pieces
            return ""
        case _:
            return pieces
