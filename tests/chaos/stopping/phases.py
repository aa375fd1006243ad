"""When users press Stop, and what their turns do until then."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tests.chaos.model import ENDLESS, Call, Order
from tests.chaos.tools import ASKING, BEFORE, IGNORES, NARROW, OBEYS, ONCE, SERVER
from tests.support.stack import Event

WORDS = 5
"""After how many pieces of text a turn that talks is stopped."""
WORD_MS = 5
PATIENT_MS, LONG_MS, SHORT_MS = 5_000, 1_000, 40
"""How long tools work: until they are stopped; if they cannot be, so long that Stop comes in time on a machine that is
busy; and so short that it may be too late."""


@dataclass
class Progress:
    """How far a turn has come, as its events tell."""

    text: int = 0
    steps: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    rounds: int = 0

    def take(self, event: Event) -> None:
        match event.name, event.data.get("type"):
            case "text", _:
                self.text += self.rounds > 0 or not self.steps
            case "control", "tool":
                self.steps.setdefault(event.data["status"], set()).add(event.data["correlationId"])
            case "control", "approval":
                self.steps.setdefault("asked", set()).add(event.data["correlationId"])
            case "control", "tools":
                self.rounds += 1
                self.text = 0
            case _:
                pass

    def calls(self, status: str) -> int:
        return len(self.steps.get(status, ()))


@dataclass(frozen=True, slots=True)
class Phase:
    """Stop is pressed when `reached` says so, up to `late_ms` later, at the engine that runs the turn or at another.

    `tools` are pairs of a server and a tool. With `held` no worker moves until everybody has pressed Stop.
    """

    name: str
    reached: Callable[[Progress], bool]
    tools: Sequence[tuple[str, str]] = ()
    work_ms: int = PATIENT_MS
    word_ms: int = 0
    late_ms: tuple[float, float] = (0, 0)
    elsewhere: bool = False
    held: bool = False

    def order(self, number: int) -> Order:
        calls: list[Call] = []
        for place, (server, tool) in enumerate(self.tools):
            before = server == SERVER and (number + place) % 2
            work_ms = LONG_MS if tool == IGNORES else self.work_ms
            arguments = {"token": f"{self.token(number)}-{place}", "work_ms": work_ms}
            calls.append((f"{BEFORE if before else server}__{tool}", arguments))
        rounds, words = [calls] if calls else [], ENDLESS if self.word_ms else 0
        return Order(self.token(number), rounds, words, self.word_ms)

    def token(self, number: int) -> str:
        return f"{self.name}-{number}".replace(" ", "-")

    def delay(self) -> float:
        """How long after the phase was reached Stop is pressed, in seconds."""
        return random.uniform(*self.late_ms) / 1000


def _calls(status: str, number: int = 1) -> Callable[[Progress], bool]:
    return lambda progress: progress.calls(status) >= number


def _words(progress: Progress) -> bool:
    return progress.text >= WORDS


PHASES = (
    Phase("during text", _words, word_ms=WORD_MS),
    Phase("during text, from the other engine", _words, word_ms=WORD_MS, elsewhere=True),
    Phase("during text after a tool", _words, [(SERVER, ONCE)], work_ms=SHORT_MS, word_ms=WORD_MS),
    Phase("before START", _calls("queued"), [(SERVER, OBEYS)], held=True),
    Phase("around START", _calls("pending"), [(SERVER, OBEYS)], late_ms=(0, 15)),
    Phase("a tool that obeys", _calls("progress"), [(SERVER, OBEYS)]),
    Phase("a tool that obeys, from the other engine", _calls("progress"), [(SERVER, OBEYS)], elsewhere=True),
    Phase("a tool that ignores it", _calls("progress"), [(SERVER, IGNORES)]),
    Phase("after the effect", _calls("progress"), [(SERVER, ONCE)]),
    Phase("as it answers", _calls("progress"), [(SERVER, ONCE)], work_ms=SHORT_MS, late_ms=(10, 60)),
    # The calls of a round come to the worker together: while one of them works, the other one waits there.
    Phase("waiting for its server", _calls("progress"), [(NARROW, OBEYS), (NARROW, OBEYS)], late_ms=(10, 30)),
    Phase("waiting for approval", _calls("asked"), [(ASKING, ONCE)]),
    Phase("several at once", _calls("progress", 3), [(SERVER, OBEYS), (SERVER, IGNORES), (SERVER, ONCE)]),
)
