"""A user who asks, presses Stop, looks what is stored, and asks again."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx2

from tests.chaos.followed import Followed
from tests.chaos.model import Order
from tests.chaos.stopping.phases import Phase, Progress
from tests.support.stack import Event, events_of
from tests.support.waiting import wait_until_blocking


@dataclass
class Stopped(Followed):
    """One turn that was stopped. Times are seconds on the monotonic clock."""

    phase: Phase = field(kw_only=True)
    pressed_at: float = 0.0
    done_at: float = 0.0
    pieces: str = ""
    """Those of the message that is arriving."""
    said: dict[int, str] = field(default_factory=dict[int, str])
    """The pieces of text in which each message arrived."""
    answer: dict[str, Any] = field(default_factory=dict[str, Any])
    """Of the request to stop."""
    last: dict[str, Any] = field(default_factory=dict[str, Any])
    """The last message that is stored."""
    problems: list[str] = field(default_factory=list[str])
    """What was received otherwise than it is stored."""
    next_turn: Followed = field(default_factory=lambda: Followed(Order()))

    @property
    def calls(self) -> Iterator[tuple[str, str, dict[str, Any]]]:
        """Its calls: the full name of the tool, the token, and the last step."""
        by_id = {step["toolCallId"]: step for step in self.received.calls.values()}
        for number, (tool, arguments) in enumerate(call for calls in self.order.rounds for call in calls):
            yield tool, arguments["token"], by_id.get(f"call_{number}", {})

    def take(self, event: Event) -> None:
        self.received.take(event.id, event.name, event.data)
        if event.name == "text":
            self.pieces += event.data["delta"]
        elif event.name == "message":
            self.said[event.data["messageId"]], self.pieces = self.pieces, ""


def stop(one: httpx2.Client, two: httpx2.Client, phase: Phase, number: int) -> Stopped:
    """Play it to its end, up to `ask_again`. The turn runs on the first engine."""
    turn, progress = Stopped(phase.order(number), phase=phase), Progress()
    with one.stream("POST", "/v1/chat", json={"message": str(turn.order)}) as response:
        assert response.status_code == 200, response.read()
        turn.session_id, turn.turn_id = response.headers["x-session-id"], response.headers["x-turn-id"]
        for event in events_of(response.iter_lines()):
            progress.take(event)
            turn.take(event)
            if not turn.pressed_at and turn.received.done is None and phase.reached(progress):
                _press(turn, two if phase.elsewhere else one)
        turn.done_at = time.monotonic()
    _look(turn, two if number % 2 else one)
    return turn


def ask_again(turn: Stopped, http: httpx2.Client) -> None:
    """The next turn of the session: it must be one that the model takes."""
    turn.next_turn = Followed(Order(f"{turn.order.tag} next"), turn.session_id)
    turn.next_turn.begin(http)
    turn.next_turn.follow(http, 30)


def _press(turn: Stopped, http: httpx2.Client) -> None:
    time.sleep(turn.phase.delay())
    turn.pressed_at = time.monotonic()
    turn.answer = http.post(f"/v1/turns/{turn.turn_id}/cancel").json()


def _look(turn: Stopped, http: httpx2.Client) -> None:
    """See what this engine has of the session, once it knows that the turn has ended."""

    def messages() -> list[dict[str, Any]] | None:
        session = http.get(f"/v1/sessions/{turn.session_id}/messages").json()
        return None if session["runningTurnId"] else session["messages"]

    turn.last = (wait_until_blocking(messages) or [{}])[-1]
    turn.problems += turn.differences(http)
