"""A question of a server while an engine is killed, as processes on one PostgreSQL: see also `questions_killed`."""

from collections.abc import Generator
from contextlib import suppress
from pathlib import Path

import httpx2
import pytest

from tests.chaos.crash_points import ENQUEUED, OFFERED
from tests.marks import exhaustive, promise
from tests.support.asking_stack import SECONDS, TOOL, AskingStack, answer, asking_stack, question_of
from tests.support.replicas import Replica, doomed, read_to_the_end, replica
from tests.support.transcript import Transcript
from tests.support.waiting import wait_until_blocking

pytestmark = exhaustive("processes that are killed: make test has an engine that dies in test_questions.py")


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Generator[AskingStack]:
    with asking_stack(tmp_path_factory.mktemp("stack"), database="postgres", token_delay_ms=1, forked=True) as stack:
        yield stack


@pytest.fixture(scope="module")
def two(stack: AskingStack) -> Generator[Replica]:
    """The engine that lives."""
    with replica(stack, "two") as two:
        yield two


@promise("a server's question outlives the kill of any engine at any point, and its answer is sent once")
@pytest.mark.parametrize(
    ("step", "answers"),
    [
        ("before SqlQuestions.ask", False),
        ("after SqlQuestions.ask", False),
        ("before SqlQuestions.answer", True),
        ("after SqlQuestions.answer", True),
        (OFFERED, True),
        (ENQUEUED, True),
    ],
)
def test_an_engine_is_killed(stack: AskingStack, two: Replica, tmp_path: Path, step: str, answers: bool) -> None:
    crash_at, before = tmp_path / "crash-at", len(stack.lines())
    with replica(stack, "one", doomed(crash_at)) as one:
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
    rounds = [line.rpartition(" ")[0] for line in stack.lines()[before:]]
    assert rounds == ["book None", "book canary-state to Bonn accept"]
