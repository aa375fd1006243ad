"""A question of a server while an engine is killed, as processes on one PostgreSQL: see also `questions_killed`."""

import sys
from collections.abc import Generator
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import httpx2
import pytest

from tests.chaos.crash_points import ENQUEUED, OFFERED
from tests.marks import exhaustive, promise
from tests.support.asking_stack import SECONDS, TOOL, AskingStack, answer, asking_stack, question_of
from tests.support.replicas import QUICK_ENGINE, Replica, read_to_the_end
from tests.support.transcript import Transcript
from tests.support.waiting import wait_until_blocking

far = exhaustive("minutes: the other cases are in make test")


@pytest.fixture
def stack(tmp_path: Path) -> Generator[AskingStack]:
    with asking_stack(tmp_path, database="postgres", token_delay_ms=1) as stack:
        yield stack


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
        transcript = Transcript()
        read_to_the_end(two.http, turn_id, transcript, SECONDS)
        assert [*transcript.statuses.values()] == ["succeeded"]
    assert [line.rpartition(" ")[0] for line in stack.lines()] == ["book None", "book canary-state to Bonn accept"]
