"""RunningTurns: a turn begins with its commit, and ends in every case, also when its storage is away."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from dialog_engine.errors import LLMRateLimitedError, StorageUnavailableError
from dialog_engine.model import (
    AssistantMessage,
    ChatEvent,
    ChatRequest,
    Done,
    DoneReason,
    FinishReason,
    MessageFinished,
    ReasoningDelta,
    TextDelta,
    TurnFailed,
)
from tests.marks import promise
from tests.support.fakes.engine import FakeEngine, breathe, done_of, text_of
from tests.support.fakes.models import ScriptedModel, asks, opened, says
from tests.support.fakes.stores import MemoryStore
from tests.support.fakes.worker import FakeCatalog, WatchedWorker, gives, succeeded, tool
from tests.support.waiting import wait_until

SHELF = FakeCatalog(tool("a__b"), tool("a__c"))
FULL = StorageUnavailableError("the disk is full")


# --- Beginning ------------------------------------------------------------------------------------------------------


@promise("of a question that is not committed nothing is sent and nothing is run")
async def test_the_model_is_asked_during_the_commit_of_a_new_session_and_its_reply_used_after_it() -> None:
    store = MemoryStore()
    commit = store.hold["begin"] = asyncio.Event()
    async with FakeEngine(model := ScriptedModel(says("Here I am.")), store=store) as engine:
        caller = asyncio.create_task(engine.turns.start("ada", None, "Where are you?"))
        await wait_until(lambda: model.requests)
        await breathe()
        assert not caller.done()
        assert engine.logs.lives == {}
        assert len(engine.turns) == 0

        commit.set()
        assert text_of(await engine.seen(await caller)) == "Here I am."


@promise("of a question that is not committed nothing is sent and nothing is run")
@pytest.mark.parametrize(
    "model", [ScriptedModel(lines) for lines in ([asyncio.Event()], says("x"), [FULL], asks(("a__b", "{}")))]
)
async def test_a_turn_that_cannot_be_committed_does_not_begin_runs_no_tool_and_closes_the_model_stream(
    model: ScriptedModel,
) -> None:
    store = MemoryStore()
    store.refuse["begin"] = FULL
    commit = store.hold["begin"] = asyncio.Event()
    async with FakeEngine(model, tools=SHELF, store=store) as engine:
        caller = asyncio.create_task(engine.turns.start("ada", None, "one"))
        await wait_until(lambda: model.requests)
        await breathe()
        commit.set()
        with pytest.raises(StorageUnavailableError):
            await caller

        assert model.open == 0
        assert len(engine.turns) == 0
        assert engine.logs.lives == {}
        assert "add_round" not in store.begun
        assert store.requests() == []
        assert engine.worker.executed == []


@pytest.mark.parametrize("is_new", [True, False])
async def test_a_turn_whose_caller_goes_away_during_its_commit_runs_all_the_same(is_new: bool) -> None:
    store = MemoryStore()
    async with FakeEngine(ScriptedModel(says("One."), says("Two.")), store=store) as engine:
        session = None if is_new else (await engine.turns.start("ada", None, "one")).session_id
        await wait_until(lambda: not len(engine.turns))
        commit = store.hold["begin"] = asyncio.Event()
        caller = asyncio.create_task(engine.turns.start("ada", session, "next"))
        await breathe()
        caller.cancel()
        await breathe()
        assert not caller.done()
        commit.set()
        with pytest.raises(asyncio.CancelledError):
            await caller
        assert len(engine.turns) == 1


# --- Ending ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("finish", "reason"),
    [
        (FinishReason.STOP, DoneReason.STOP),
        (FinishReason.LENGTH, DoneReason.LENGTH),
        (FinishReason.CONTENT_FILTER, DoneReason.CONTENT_FILTER),
        (FinishReason.TOOL_CALLS, DoneReason.STOP),  # it says so and asks for none: the calls that are there decide
    ],
)
async def test_the_reason_is_the_models(finish: FinishReason, reason: DoneReason) -> None:
    async with FakeEngine(ScriptedModel(says("x", finish))) as engine:
        assert done_of(await engine.turn("?")).reason is reason


async def test_the_reasoning_of_a_round_and_of_the_answer_is_kept_with_each() -> None:
    model = ScriptedModel([ReasoningDelta("hm"), *asks(("a__b", ""))], [ReasoningDelta("yes"), *says("x")])
    async with FakeEngine(model, tools=SHELF) as engine:
        events = await engine.turn("?")

    said = [event.message for event in events if isinstance(event, MessageFinished)]
    assert [message.reasoning for message in said] == ["hm", "yes"]


async def test_the_time_to_the_first_token_counts_reasoning_and_is_none_without_any() -> None:
    async with FakeEngine(ScriptedModel([ReasoningDelta("hm"), *says("x")], [LLMRateLimitedError("no")])) as engine:
        assert done_of(await engine.turn("?")).ttft_ms is not None
        assert done_of(await engine.turn("?")).ttft_ms is None


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (LLMRateLimitedError("too many requests"), TurnFailed("MODEL_RATE_LIMITED", "too many requests")),
        (KeyError("secret"), TurnFailed("INTERNAL_ERROR", "internal error")),
    ],
    ids=["an error of the provider", "a bug"],
)
async def test_an_error_fails_the_turn_with_its_code_and_keeps_the_partial_text(
    error: Exception, failure: TurnFailed
) -> None:
    async with FakeEngine(ScriptedModel([TextDelta("It is"), error])) as engine:
        turn = await engine.turns.start("ada", None, "?")
        events = await engine.seen(turn)

        assert events[-3:-1] == [MessageFinished(2, AssistantMessage("It is", interrupted=True)), failure]
        assert done_of(events).reason is DoneReason.ERROR
        assert engine.store.failure(turn) == failure
        assert engine.store.status(turn) == "failed"


async def test_a_model_that_cancels_itself_is_an_error_and_not_a_stop() -> None:
    @opened
    async def model(request: ChatRequest) -> AsyncGenerator[ChatEvent]:
        yield TextDelta("a")
        raise asyncio.CancelledError

    async with FakeEngine(model) as engine:
        events = await engine.turn("?")

    assert done_of(events).reason is DoneReason.ERROR


async def test_a_failed_turn_stops_waiting_for_its_calls_and_then_ends_them() -> None:
    worker = WatchedWorker({"a__c": gives(succeeded("x"), asyncio.Event())})
    async with FakeEngine(ScriptedModel(asks(("a__b", ""), ("a__c", ""))), tools=SHELF, worker=worker) as engine:
        engine.store.refuse["add_result"] = FULL
        turn = await engine.begun("?", lambda event: isinstance(event, Done))
        await wait_until(lambda: worker.heard is not None)
        del engine.store.refuse["add_result"]
        await engine.seen(turn)

        assert worker.heard == ()
        assert engine.store.unanswered(turn) == []
        assert engine.store.status(turn) == "failed"


# --- Storage away ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (FULL, TurnFailed("STORAGE_UNAVAILABLE", "the disk is full")),
        (ValueError("a bug"), TurnFailed("INTERNAL_ERROR", "internal error")),
    ],
    ids=["an outage", "a bug"],
)
async def test_an_end_that_cannot_be_stored_is_shown_at_once_and_stored_later(
    error: Exception, failure: TurnFailed
) -> None:
    store = MemoryStore()
    store.refuse["finish"] = error
    async with FakeEngine(ScriptedModel(says("x")), store=store) as engine:
        turn = await engine.begun("?", lambda event: isinstance(event, Done))
        assert store.status(turn) == "running"
        assert engine.logs.lives[turn.turn_id][-1].events[-2] == failure

        del store.refuse["finish"]
        events = await engine.seen(turn)

        assert store.status(turn) == "failed"
        assert [type(event) for event in events].count(Done) == 1


@promise("no turn goes on behind an end that its readers have seen")
async def test_a_turn_whose_end_was_shown_and_not_stored_stays_failed_at_the_next_engine() -> None:
    store = MemoryStore()
    store.refuse["finish"] = FULL
    async with FakeEngine(model := ScriptedModel(says("x"), says("y")), store=store) as engine:
        turn = await engine.begun("?", lambda event: isinstance(event, Done))
        del store.refuse["finish"]
        assert await engine.restart() == 1
        await engine.seen(turn)

        assert store.status(turn) == "failed"
        assert len(model.requests) == 1


async def test_while_storage_is_unavailable_the_user_sees_the_end_at_once() -> None:
    store = MemoryStore()
    store.refuse["add_round"] = FULL
    store.hold["open_calls"] = asyncio.Event()
    async with FakeEngine(ScriptedModel(asks(("a__b", ""))), tools=SHELF, store=store) as engine:
        await engine.begun("?", lambda event: isinstance(event, Done))


async def test_neither_a_stop_nor_a_shutdown_waits_for_unavailable_storage() -> None:
    store = MemoryStore()
    store.refuse["finish"] = FULL
    async with FakeEngine(ScriptedModel(says("x")), store=store) as engine:
        turn = await engine.begun("?", lambda event: isinstance(event, Done))

        async with asyncio.timeout(5):
            assert await engine.turns.cancel(turn.turn_id)
            await engine.turns.close(0)

        assert len(engine.turns) == 0
        assert engine.logs.lives[turn.turn_id][-1].closed


@promise("a turn that begins while its engine goes down is left in good order too")
async def test_a_turn_that_begins_during_a_shutdown_gets_the_rest_of_the_grace_period() -> None:
    first, third = asyncio.Event(), asyncio.Event()
    async with FakeEngine(model := ScriptedModel([first, *says("one")], [third], says("two"))) as engine:
        await engine.turns.start("ada", None, "1")
        await wait_until(lambda: model.open)
        closing = asyncio.create_task(engine.turns.close(0.3))
        await breathe()
        # Such as that of a message that waited for another turn of its session.
        last = await engine.turns.start("ada", None, "2")
        quick = await engine.turns.start("ada", None, "3")
        first.set()

        assert await closing == [last]
        assert len(engine.turns) == 0
        assert done_of(await engine.seen(quick)).reason is DoneReason.STOP
        assert [each.turn.turn_id for each in await engine.store.engines.adopt_own(None)] == [last.turn_id]
