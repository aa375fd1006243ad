"""Engine, worker, MCP server and Redis are killed while questions of the server are open, and while rounds with their
answers run.

Every question must be answerable afterwards, each answer must reach the server once, and no call may be run from its
beginning again: a round that was running is finished, or its outcome is not known. In the end the server is started
with another key, so that it cannot read its own state any more: the last call must end as INPUT_EXPIRED.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.chaos.report import Report, Size
from tests.chaos.trial import quantile
from tests.support.asking_stack import KEY, SECONDS, TOOL, AskingStack, answer, asking_stack, question_of
from tests.support.replicas import QUICK_ENGINE, Replica, read_to_the_end
from tests.support.transcript import Transcript
from tests.support.waiting import wait_until_blocking

QUESTIONS = {Size.SHORT: 15, Size.FULL: 200}
IN_FLIGHT = 3
"""So many rounds are at the server when a part is killed."""


def run(size: Size, folder: Path, *, source: str = "") -> Report:
    with (
        asking_stack(folder, source, database="postgres", token_delay_ms=1) as stack,
        closing(Replica(stack, "one", program=QUICK_ENGINE)) as engine,
    ):
        engine.wait_for_tools()
        return _Run(stack, engine, QUESTIONS[size]).report()


class _Run:
    """The open questions, and what became of them."""

    def __init__(self, stack: AskingStack, engine: Replica, count: int) -> None:
        self._stack, self._engine, self._count = stack, engine, count
        self._left: list[tuple[str, str]] = []
        self._findings: list[str] = []
        self._took: list[float] = []
        """The milliseconds from answers to their rounds, while nothing is killed."""

    def report(self) -> Report:
        for number in range(self._count):
            city = f"City{number}"
            _, turn = self._engine.begin(f'call {TOOL} {{"city": "{city}"}}')
            question_of(self._engine.http, turn)
            self._left.append((city, turn))
        for kill, _ in self._parts().values():
            kill()
        for name in ("redis", "server", "worker", "engine"):
            self._parts()[name][1]()
        for name, ends in (
            ("engine", "succeeded"),
            ("redis", "succeeded"),
            ("worker", "unknown"),
            ("server", "unknown"),
        ):
            self._kill_in_a_round(name, ends)
        died = self._after_a_death()
        self._answer(len(self._left) - 1, ends="succeeded")
        self._with_another_key()
        self._judge()
        figures: dict[str, float | int | str] = {
            "questions": self._count,
            "kills": 2 * len(self._parts()) + 1,
            "answer to the next round, p50 ms": round(quantile(self._took, 0.5)),
            "answer to the next round, max ms": round(max(self._took, default=0)),
            "answer to the next round after the death of the only worker, s": round(died, 1),
        }
        return Report("questions_killed", figures, tuple(self._findings))

    def _parts(self) -> dict[str, tuple[Callable[[], None], Callable[[], object]]]:
        """How each is killed, and started again."""
        stack, engine = self._stack, self._engine
        return {
            "worker": (self._kill_worker, stack.start_worker),
            "server": (stack.server.kill, stack.start_demo),
            "redis": (stack.redis.kill, stack.redis.start),
            "engine": (engine.process.kill, engine.live_again),
        }

    def _kill_worker(self) -> None:
        [(port, process)] = self._stack.workers.items()
        process.kill()
        del self._stack.workers[port]

    def _kill_in_a_round(self, name: str, ends: str) -> None:
        """Kill a part while the server runs rounds with answers, and start it again: their calls end so."""
        kill, start = self._parts()[name]
        self._stack.hold.touch()
        chosen = [self._left.pop() for _ in range(IN_FLIGHT)]
        for each in chosen:
            self._send(each)
        wait_until_blocking(lambda: all(self._stack.answered(city) for city, _ in chosen), SECONDS, what="the rounds")
        kill()
        self._stack.hold.unlink()
        start()
        self._expect(chosen, ends, f"the {name} was killed in its round")

    def _after_a_death(self) -> float:
        """The seconds until the round of an answer that was given when there was no worker any more."""
        self._kill_worker()
        last = self._left.pop()
        began = self._send(last)
        self._stack.start_worker(wait=False)
        return self._began(last[0]) - began

    def _answer(self, count: int, *, ends: str) -> None:
        for _ in range(count):
            each = self._left.pop()
            began = self._send(each)
            self._took.append((self._began(each[0]) - began) * 1000)
            self._expect([each], ends, "nothing was killed in its round")

    def _with_another_key(self) -> None:
        self._stack.key = KEY.upper()
        self._stack.server.kill()
        self._stack.start_demo()
        last = self._left.pop()
        self._send(last)
        self._expect([last], "failed", "its server has another key")
        code = self._end(last[1]).get("error", {}).get("code")
        if code != "INPUT_EXPIRED":
            self._findings.append(f"expired: a state that its server cannot read ends a call as {code}")

    def _judge(self) -> None:
        begun = Counter(line.rpartition(" ")[0] for line in self._stack.lines())
        first = begun.pop("book None", 0)
        if first != self._count:
            self._findings.append(f"again: {self._count} calls were begun {first} times")
        for line, times in begun.items():
            if times > 1:
                self._findings.append(f"twice: an answer was sent {times} times: {line}")

    def _send(self, of: tuple[str, str]) -> float:
        """Answer the question of a turn. When that began, in seconds of Unix."""
        question = question_of(self._engine.http, of[1])
        began = time.time()
        status = answer(self._engine.http, of[1], question)
        if status != 200:
            self._findings.append(f"lost: an open question is not answerable: {status}")
        return began

    def _began(self, city: str) -> float:
        """When the server began the round with the answer, in seconds of Unix."""
        wait_until_blocking(lambda: self._stack.answered(city), SECONDS, what="the next round")
        return float(self._stack.answered(city)[0].rpartition(" ")[2])

    def _expect(self, turns: Sequence[tuple[str, str]], ends: str, when: str) -> None:
        for city, turn in turns:
            if (status := self._end(turn)["status"]) != ends:
                self._findings.append(f"end: the call for {city} is {status}, not {ends}: {when}")

    def _end(self, turn: str) -> dict[str, Any]:
        transcript = Transcript()
        read_to_the_end(self._engine.http, turn, transcript, SECONDS)
        [call] = transcript.calls.values()
        return call
