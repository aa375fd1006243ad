"""A parked turn goes on: how people have answered is in its log once, whenever they did, and at whatever engine."""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress

import pytest

from dialog_engine.chat.ports import OpenCalls
from dialog_engine.errors import ApprovalError, StorageUnavailableError
from dialog_engine.model import (
    ApprovalStatus,
    ApprovalStep,
    QuestionStatus,
    QuestionStep,
    RoundComplete,
    ToolStep,
    Turn,
    TurnEvent,
    WaitingForUser,
)
from dialog_engine.storage.open_calls import SqlOpenCalls
from dialog_engine.tool_calls.questions.pending import Given as Said
from dialog_engine.tool_calls.questions.rules import unanswered
from dialog_engine.tool_calls.questions.values import Answer, FoundRound
from dialog_engine.tool_calls.values import Given, Refuse, timed
from plugins_contract.catalog import ApprovalPolicy
from plugins_contract.outcomes import CallState, ToolOutcome
from plugins_contract.questions import InputRequired, QuestionKind, ServerQuestion
from tests.marks import promise
from tests.support.fakes.engine import FakeEngine
from tests.support.fakes.models import ScriptedModel, asks, says
from tests.support.fakes.worker import Behaviour, Execution, FakeCatalog, FakeWorker, succeeded, tool
from tests.unit.test_approvals import DELETE, approve

CHANGED = tool("files__delete", description="Deletes the whole disk", approval=ApprovalPolicy.ALWAYS)
FILL = tool("forms__fill")


class Stage(FakeEngine):
    """An engine with a turn that is parked; the test says when it is taken up again."""

    def __init__(self, *calls: tuple[str, str], questions: int = 1) -> None:
        worker = FakeWorker({"forms__fill": asking(questions)})
        self.catalog = FakeCatalog(DELETE, FILL)
        model = ScriptedModel(asks(*calls), says("Done."))
        super().__init__(model, tools=self.catalog, worker=worker, parks=True)
        self.taken: list[tuple[Turn, Sequence[TurnEvent]]] = []

    async def parked(self) -> tuple[list[ApprovalStep], list[QuestionStep]]:
        """What the turn asks."""
        self.begun_turn = await self.turns.start("someone", None, "Go.")
        await self.until(self.begun_turn, lambda event: isinstance(event, WaitingForUser))
        events = await self.seen(self.begun_turn)
        questions = [event for event in events if isinstance(event, QuestionStep)]
        return [event for event in events if isinstance(event, ApprovalStep)], questions

    def taken_up(self, turn: Turn, unseen: Sequence[TurnEvent]) -> None:
        self.taken.append((turn, unseen))

    async def says(self, step: ApprovalStep, given: Given) -> None:
        stored = self.store.asked(step.call.correlation_id)
        assert stored
        with suppress(ApprovalError):
            await self.pending.decide(*stored, given, resume=self.taken_up)

    async def found(self, step: QuestionStep) -> FoundRound:
        call, number, _ = step.details["questionId"].split(":")
        found = await self.store.questions.find("someone", self.begun_turn.turn_id, call, int(number))
        assert found
        return found

    async def declines(self, step: QuestionStep) -> None:
        place, said = int(step.details["questionId"].split(":")[-1]), Said(QuestionStatus.DECLINED)
        found = await self.found(step)
        assert await self.questions.answer(self.begun_turn, found, place, said, self.taken_up)

    async def goes_on(self, *, adopted: bool = False) -> list[TurnEvent]:
        """What the readers see of the next life of the turn."""
        turn, unseen = self.taken.pop()
        self.turns.run(turn, unseen=None if adopted else unseen)
        return await self.seen(turn)


def asking(questions: int) -> Behaviour:
    """A tool whose server asks so many questions in each call, once."""
    form = ServerQuestion(key="", kind=QuestionKind.FORM, message="When?", form={"type": "object", "properties": {}})
    asked = InputRequired(questions=tuple(form for _ in range(questions)))
    seen = set[str]()

    async def fill(execution: Execution) -> ToolOutcome:
        if (arguments := str(execution.arguments)) in seen:
            return succeeded("filled")
        seen.add(arguments)
        return ToolOutcome(CallState.INPUT_REQUIRED, (), attempts=1, asked=asked)

    return fill


def between_the_reads(monkeypatch: pytest.MonkeyPatch, do: Callable[[], Awaitable[None]]) -> None:
    """Do this when the turn has read what its readers are shown, and not yet what is open."""
    stored = SqlOpenCalls.open_calls

    async def open_calls(store: SqlOpenCalls, turn: Turn) -> OpenCalls:
        monkeypatch.setattr(SqlOpenCalls, "open_calls", stored)
        await do()
        return await stored(store, turn)

    monkeypatch.setattr(SqlOpenCalls, "open_calls", open_calls)


def decided(events: Sequence[TurnEvent]) -> Counter[str]:
    """How often each call was decided."""
    steps = [event for event in events if isinstance(event, ApprovalStep)]
    return Counter(step.call.correlation_id for step in steps if step.status is not ApprovalStatus.ASKED)


def ended(events: Sequence[TurnEvent]) -> list[str]:
    return [event.call.correlation_id for event in events if isinstance(event, ToolStep) and event.status.final]


def rounds(events: Sequence[TurnEvent]) -> int:
    return sum(isinstance(event, RoundComplete) for event in events)


@promise("destructive tools wait for approval, durably")
async def test_every_decision_is_shown_though_only_the_first_gives_the_turn_to_an_engine() -> None:
    async with Stage(*(("files__delete", f'{{"path": "/{number}"}}') for number in range(3))) as engine:
        (first, second, third), _ = await engine.parked()
        await engine.says(first, approve(first))
        await engine.says(second, Refuse())
        events = await engine.goes_on()
        assert isinstance(events[-1], WaitingForUser)
        await engine.says(third, approve(third))
        events += await engine.goes_on()
    calls = [each.call.correlation_id for each in (second, first, third)]
    assert decided(events) == Counter(calls)
    assert ended(events) == calls
    assert rounds(events) == 1


async def test_a_round_whose_last_call_was_refused_is_complete_for_its_readers() -> None:
    async with Stage(("files__delete", '{"path": "/"}')) as engine:
        [asked], _ = await engine.parked()
        await engine.says(asked, Refuse())
        events = await engine.goes_on()
    assert (decided(events).total(), len(ended(events)), rounds(events)) == (1, 1, 1)


async def test_a_question_that_was_asked_again_and_refused_before_the_turn_goes_on_ends_its_round_once() -> None:
    async with Stage(("files__delete", '{"path": "/"}')) as engine:
        [old], _ = await engine.parked()
        engine.catalog.put(CHANGED)
        await engine.says(old, approve(old))
        await engine.says(old, Refuse())
        events = await engine.goes_on()
    steps = [event.status for event in events if isinstance(event, ApprovalStep)]
    assert steps == [ApprovalStatus.ASKED, ApprovalStatus.REFUSED]
    assert (len(ended(events)), rounds(events)) == (1, 1)


@pytest.mark.parametrize("late", [False, True])
async def test_what_another_call_was_asked_again_with_is_shown(monkeypatch: pytest.MonkeyPatch, late: bool) -> None:
    async with Stage(("files__delete", '{"path": "/a"}'), ("files__delete", '{"path": "/b"}')) as engine:
        (first, second), _ = await engine.parked()
        await engine.says(first, approve(first))

        async def ask_again() -> None:
            engine.catalog.put(CHANGED)
            await engine.says(second, approve(second))

        if late:
            between_the_reads(monkeypatch, ask_again)
        else:
            await ask_again()
        events = await engine.goes_on()
    [again] = [event for event in events if isinstance(event, ApprovalStep) and event.call == second.call]
    waiting = events[-1]
    assert isinstance(waiting, WaitingForUser)
    assert waiting.hashes == {second.call.correlation_id: again.details["hash"]}
    assert again.details["hash"] != second.details["hash"]


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(("calls", "questions"), [(2, 1), (1, 2)])
async def test_every_answer_to_a_question_of_a_server_is_shown(
    monkeypatch: pytest.MonkeyPatch, calls: int, questions: int, late: bool
) -> None:
    async with Stage(
        *(("forms__fill", f'{{"a": {number}}}') for number in range(calls)), questions=questions
    ) as engine:
        _, (first, second) = await engine.parked()
        await engine.declines(first)
        if late:
            between_the_reads(monkeypatch, lambda: engine.declines(second))
        else:
            await engine.declines(second)
        events = await engine.goes_on()
    steps = [event for event in events if isinstance(event, QuestionStep)]
    assert [step.status for step in steps] == [QuestionStatus.DECLINED] * 2
    assert [step.details["questionId"] for step in steps] == [each.details["questionId"] for each in (first, second)]
    assert (len(ended(events)), rounds(events)) == (calls, 1)


@pytest.mark.parametrize("when", ["before", "between the reads", "when it is adopted"])
async def test_a_call_whose_question_expires_ends_for_its_readers(monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    async with Stage(("files__delete", '{"path": "/a"}'), ("forms__fill", "{}")) as engine:
        [deletion], [question] = await engine.parked()
        await engine.says(deletion, Refuse())

        async def expire() -> None:
            found = await engine.found(question)
            answers = found.asked.ended(Answer(QuestionStatus.EXPIRED, 1))
            outcome = timed(unanswered(1), question.call.correlation_id)
            assert await engine.store.questions.answer(found.turn_id, found.asked, answers, None, outcome)

        if when == "before":
            await expire()
        else:
            between_the_reads(monkeypatch, expire)
        events = await engine.goes_on(adopted=when == "when it is adopted")
    assert ended(events)[-1] == question.call.correlation_id
    assert rounds(events) == 1


async def test_the_answer_that_gave_the_turn_to_an_engine_is_shown_though_the_store_is_away_then() -> None:
    async with Stage(("files__delete", '{"path": "/"}')) as engine:
        [asked], _ = await engine.parked()
        await engine.says(asked, approve(asked))
        waited_for = engine.logs.waited_for

        async def then_away(turn: Turn) -> Mapping[str, str] | None:
            waited = await waited_for(turn)
            engine.store.held.away = StorageUnavailableError("away")
            return waited

        engine.logs.waited_for = then_away
        turn, unseen = engine.taken.pop()
        engine.turns.run(turn, unseen=unseen)
        await engine.until(turn, lambda event: isinstance(event, ApprovalStep))
        engine.store.held.away = None
        await engine.seen(turn)
