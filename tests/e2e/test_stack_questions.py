"""Questions of a server while engines, workers, the server and Redis are killed, as processes on one PostgreSQL."""

import sys
from collections.abc import Callable, Generator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.chaos.crash_points import ENQUEUED, OFFERED
from tests.marks import exhaustive, promise
from tests.support.asking_stack import KEY, SECONDS, TOOL, AskingStack, answer, asking_stack, question_of
from tests.support.replicas import QUICK_ENGINE, Replica, read_to_the_end
from tests.support.transcript import Transcript
from tests.support.waiting import wait_until_blocking

IN_FLIGHT = 3
"""So many rounds are at the server when a part is killed."""
far = exhaustive("minutes: the other cases are in make test")


@pytest.fixture
def stack() -> Generator[AskingStack]:
    with asking_stack(database="postgres", token_delay_ms=1) as stack:
        yield stack


def ended(engine: Replica, turn_id: str) -> dict[str, Any]:
    """The last step of the one call of a turn, once the turn has ended."""
    transcript = Transcript()
    read_to_the_end(engine.http, turn_id, transcript, SECONDS)
    assert transcript.repeats == []
    [call] = transcript.calls.values()
    return call


@promise("a server's question outlives the kill of any engine at any point, and its answer is sent once")
@pytest.mark.parametrize(
    ("step", "answers"),
    [
        pytest.param("before SqlQuestions.ask", False, marks=far),
        ("after SqlQuestions.ask", False),
        pytest.param("before SqlQuestions.answer", True, marks=far),
        ("after SqlQuestions.answer", True),
        pytest.param(OFFERED, True, marks=far),
        pytest.param(ENQUEUED, True, marks=far),
    ],
)
def test_an_engine_is_killed(stack: AskingStack, tmp_path: Path, step: str, answers: bool) -> None:
    crash_at = tmp_path / "crash-at"
    doomed = (sys.executable, "-m", "tests.chaos.engine", "--crash-at", crash_at, "--lease", "4")
    with ExitStack() as clients:
        two = clients.enter_context(closing(Replica(stack, "two", program=QUICK_ENGINE)))
        one = clients.enter_context(closing(Replica(stack, "one", program=doomed)))
        for engine in (one, two):
            engine.wait_for_tools()
        if not answers:
            crash_at.write_text(f"1 {step}")
        _, turn_id = one.begin(f'call {TOOL} {{"city": "Bonn"}}')
        question = question_of(two.http, turn_id)
        if answers:
            crash_at.write_text(f"1 {step}")
            with suppress(httpx2.TransportError):
                answer(one.http, turn_id, question)
        wait_until_blocking(lambda: one.process.returncode is not None, SECONDS, what="the kill")

        assert answer(two.http, turn_id, question) == 200
        assert ended(two, turn_id)["status"] == "succeeded"
    assert [line.rpartition(" ")[0] for line in stack.lines()] == ["book None", "book canary-state to Bonn accept"]


class Open:
    """Turns of one engine, each with an open question, and the parts that are killed."""

    def __init__(self, stack: AskingStack, engine: Replica, count: int) -> None:
        self.stack, self.engine = stack, engine
        begun = [(f"City{n}", engine.begin(f'call {TOOL} {{"city": "City{n}"}}')[1]) for n in range(count)]
        self.questions = {(city, turn): question_of(engine.http, turn) for city, turn in begun}
        self.sent: list[tuple[str, str]] = []

    def answer(self, count: int) -> list[tuple[str, str]]:
        """Answer the next ones."""
        chosen = [each for each in self.questions if each not in self.sent][:count]
        for each in chosen:
            status = answer(self.engine.http, each[1], self.questions[each])
            assert status == 200, "an open question is answerable"
        self.sent += chosen
        return chosen

    def killed_in_a_round(self, kill: Callable[[], None], start: Callable[[], object]) -> set[str]:
        """Kill a part while the server runs answered rounds, start it again, and return how those calls ended."""
        self.stack.hold.touch()
        chosen = self.answer(IN_FLIGHT)

        def begun() -> bool:
            return all(self.stack.answered(city) for city, _ in chosen)

        wait_until_blocking(begun, SECONDS, what="the rounds at the server")
        kill()
        self.stack.hold.unlink()
        start()
        return {ended(self.engine, turn)["status"] for _, turn in chosen}

    def worker(self) -> None:
        [(port, process)] = self.stack.workers.items()
        process.kill()
        del self.stack.workers[port]

    def redis(self) -> None:
        self.stack.redis.kill()

    def server(self) -> None:
        self.stack.server.kill()


@promise("with every part killed no question is lost, no answer is sent twice, and each is answerable afterwards")
@pytest.mark.parametrize("count", [15, pytest.param(200, marks=far)])
def test_everything_is_killed_while_questions_are_open_and_while_their_next_rounds_run(
    stack: AskingStack, count: int
) -> None:
    with closing(Replica(stack, "one", program=QUICK_ENGINE)) as engine:
        engine.wait_for_tools()
        those = Open(stack, engine, count)
        for kill in (those.worker, those.server, those.redis, engine.process.kill):
            kill()
        assert all(each.returncode is not None for each in (engine.process, stack.server))
        for start in (stack.redis.start, stack.start_demo, stack.start_worker, engine.live_again):
            start()

        assert those.killed_in_a_round(engine.process.kill, engine.live_again) == {"succeeded"}
        assert those.killed_in_a_round(those.redis, stack.redis.start) == {"succeeded"}
        assert those.killed_in_a_round(those.worker, stack.start_worker) == {"unknown"}, "it may have taken effect"
        assert those.killed_in_a_round(those.server, stack.start_demo) == {"unknown"}
        rest = those.answer(count - len(those.sent) - 1)
        assert {ended(engine, turn)["status"] for _, turn in rest} == {"succeeded"}

        stack.key = KEY.replace("k", "x")
        those.server()
        stack.start_demo()
        [(_, last)] = those.answer(1)
        call = ended(engine, last)
        assert (call["status"], call["error"]["code"]) == ("failed", "INPUT_EXPIRED")
    assert stack.doubled() == {}
    assert sum("book None" in line for line in stack.lines()) == count, "never round 1 again"
    assert len(stack.lines()) == 2 * count - 1, "each answer was sent"
