"""RunningTurns: turns are owned by the engine, end in every case, and leave storage and user with the same story."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace

import pytest

from dialog_engine.chat import running_turn
from dialog_engine.errors import (
    LLMRateLimitedError,
    SessionNotFoundError,
    StorageUnavailableError,
    TurnCrashesError,
    TurnRunningError,
)
from dialog_engine.model import (
    AssistantMessage,
    ChatEvent,
    ChatRequest,
    Done,
    DoneReason,
    FinishReason,
    Message,
    MessageFinished,
    ReasoningDelta,
    StreamEnd,
    TextDelta,
    ToolCall,
    ToolCallEvent,
    ToolMessage,
    ToolStatus,
    ToolStep,
    Turn,
    TurnFailed,
    Usage,
    UserMessage,
)
from dialog_engine.tool_calls.normalise import UNKNOWN_OUTCOME
from plugins_contract.errors import ErrorCode
from plugins_contract.messages import ToolCallRequested
from plugins_contract.outcomes import ToolOutcome
from tests.support.fakes import (
    SPENT,
    FakeCatalog,
    FakeEngine,
    FakeWorker,
    Line,
    MemoryStore,
    ScriptedModel,
    asks,
    breathe,
    done_of,
    gives,
    is_step,
    is_text,
    says,
    steps_of,
    succeeded,
    text_of,
    tool,
)
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

SHELF = FakeCatalog(tool("a__b"), tool("a__c"))
FULL = StorageUnavailableError("the disk is full")


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running_turn, "FINISH_RETRY_SECONDS", 0.01)


class Watched(FakeWorker):
    """Remembers which calls somebody still waited for when they were cancelled."""

    heard: tuple[str, ...] | None = None

    async def cancel(self, requests: Sequence[ToolCallRequested]) -> dict[str, ToolOutcome]:
        self.heard = tuple(self.listened_to) if self.heard is None else self.heard
        return await super().cancel(requests)


def failure_of(engine: FakeEngine, turn: Turn) -> TurnFailed | None:
    return engine.store.turns[turn.turn_id].failure


# --- Beginning ------------------------------------------------------------------------------------------------------


async def test_a_session_has_one_turn_at_a_time() -> None:
    async with FakeEngine(ScriptedModel([asyncio.Event()])) as engine:
        turn = await engine.turns.start("ada", None, "one")

        with pytest.raises(TurnRunningError) as caught:
            await engine.turns.start("ada", turn.session_id, "two")

        assert caught.value.turn_id == turn.turn_id
        assert len(engine.turns) == 1


async def test_the_history_is_read_except_in_a_new_session(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    stored = MemoryStore.messages

    async def messages(store: MemoryStore, session_id: str) -> Sequence[Message]:
        read.append(session_id)
        return await stored(store, session_id)

    monkeypatch.setattr(MemoryStore, "messages", messages)
    async with FakeEngine(model := ScriptedModel(says("first"), says("second"))) as engine:
        turn = await engine.turns.start("ada", None, "one")
        await engine.seen(turn)
        assert read == []
        await engine.turn("two", turn.session_id, subject="ada")
        assert read == [turn.session_id]
    assert [request.messages for request in model.requests] == [
        (UserMessage("one"),),
        (UserMessage("one"), AssistantMessage("first"), UserMessage("two")),
    ]


async def test_a_session_of_another_user_does_not_exist() -> None:
    async with FakeEngine(ScriptedModel(says("x"))) as engine:
        turn = await engine.turns.start("ada", None, "one")
        await engine.seen(turn)

        with pytest.raises(SessionNotFoundError):
            await engine.turns.start("eve", turn.session_id, "two")


async def test_the_model_is_asked_during_the_commit_of_a_new_session_and_its_reply_used_after_it() -> None:
    store = MemoryStore()
    commit = store.hold["begin"] = asyncio.Event()
    async with FakeEngine(model := ScriptedModel(says("Here I am.")), store=store) as engine:
        caller = asyncio.create_task(engine.turns.start("ada", None, "Where are you?"))
        await wait_until(lambda: model.requests and not model.open, what="all that the model says")
        assert not caller.done()
        assert engine.logs.lives == {}
        assert len(engine.turns) == 0

        commit.set()
        assert text_of(await engine.seen(await caller)) == "Here I am."


@pytest.mark.parametrize("model", [ScriptedModel([asyncio.Event()]), ScriptedModel(says("x")), ScriptedModel([FULL])])
async def test_a_turn_that_cannot_be_committed_does_not_begin_and_closes_the_model_stream(model: ScriptedModel) -> None:
    store = MemoryStore()
    store.refuse["begin"] = FULL
    commit = store.hold["begin"] = asyncio.Event()
    async with FakeEngine(model, store=store) as engine:
        caller = asyncio.create_task(engine.turns.start("ada", None, "one"))
        await wait_until(lambda: model.requests)
        commit.set()
        with pytest.raises(StorageUnavailableError):
            await caller

        assert model.open == 0
        assert len(engine.turns) == 0
        assert engine.logs.lives == {}


async def test_no_tool_runs_for_a_question_that_cannot_be_committed() -> None:
    store = MemoryStore()
    store.refuse["begin"] = FULL
    commit = store.hold["begin"] = asyncio.Event()
    async with FakeEngine(model := ScriptedModel(asks(("a__b", "{}"))), tools=SHELF, store=store) as engine:
        caller = asyncio.create_task(engine.turns.start("ada", None, "one"))
        await wait_until(lambda: model.requests and not model.open)
        commit.set()
        with pytest.raises(StorageUnavailableError):
            await caller

        assert "add_round" not in store.begun
        assert store.outbox == {}
        assert engine.worker.executed == []


async def test_a_turn_that_is_stopped_as_it_begins_closes_the_model_stream() -> None:
    async with FakeEngine(model := ScriptedModel([asyncio.Event()])) as engine:
        turn = await engine.turns.start("ada", None, "one")
        engine.turns.stop(turn.turn_id)

        assert done_of(await engine.seen(turn)).reason is DoneReason.CANCELLED
        assert model.open == 0


async def test_a_turn_whose_caller_is_cancelled_during_the_commit_runs() -> None:
    store = MemoryStore()
    commit = store.hold["begin"] = asyncio.Event()
    async with FakeEngine(ScriptedModel(says("Anybody there?")), store=store) as engine:
        caller = asyncio.create_task(engine.turns.start("ada", None, "Hello!"))
        await wait_until(lambda: store.begun)
        caller.cancel()
        commit.set()
        await asyncio.wait([caller])

        [stored] = store.turns.values()
        assert text_of(await engine.seen(stored.turn)) == "Anybody there?"
        assert stored.status == "done"


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


async def test_the_reasoning_of_the_answer_is_kept_with_it() -> None:
    async with FakeEngine(ScriptedModel([ReasoningDelta("hm, "), ReasoningDelta("yes"), *says("Yes.")])) as engine:
        events = await engine.turn("?")

    assert MessageFinished(2, AssistantMessage("Yes.", reasoning="hm, yes")) in events


async def test_the_reasoning_of_a_round_is_not_that_of_the_answer() -> None:
    async with FakeEngine(ScriptedModel([ReasoningDelta("hm"), *asks(("a__b", ""))], says("x")), tools=SHELF) as engine:
        events = await engine.turn("?")

    said = [event.message for event in events if isinstance(event, MessageFinished)]
    assert [message.reasoning for message in said] == ["hm", ""]


async def test_the_model_gets_a_history_that_providers_accept_whatever_was_left_behind() -> None:
    model = ScriptedModel(says("x"), says("y"))
    async with FakeEngine(model, tools=SHELF) as engine:
        turn = await engine.turns.start("ada", None, "?")
        await engine.seen(turn)
        lost = ToolCall("call_1", "id", "a__b", "{}")
        engine.store.turns[turn.turn_id].status = "running"
        await engine.store.add_round(turn, AssistantMessage("", (lost,)), [], {})
        engine.store.turns[turn.turn_id].status = "failed"

        await engine.turn("!", turn.session_id, subject="ada")

    assert ToolMessage("call_1", "a__b", UNKNOWN_OUTCOME, failed=True) in model.requests[1].messages


async def test_the_time_to_the_first_token_counts_reasoning_and_is_none_without_any() -> None:
    async with FakeEngine(ScriptedModel([ReasoningDelta("hm"), *says("x")], [LLMRateLimitedError("no")])) as engine:
        assert done_of(await engine.turn("?")).ttft_ms is not None
        assert done_of(await engine.turn("?")).ttft_ms is None


async def test_a_model_that_cannot_be_reached_fails_the_turn_with_its_code_and_keeps_the_partial_text() -> None:
    async with FakeEngine(ScriptedModel([TextDelta("It is"), LLMRateLimitedError("too many requests")])) as engine:
        turn = await engine.turns.start("ada", None, "?")
        events = await engine.seen(turn)

        failure = TurnFailed("MODEL_RATE_LIMITED", "too many requests")
        assert events[-3:-1] == [MessageFinished(2, AssistantMessage("It is", interrupted=True)), failure]
        assert done_of(events).reason is DoneReason.ERROR
        assert failure_of(engine, turn) == failure
        assert engine.store.turns[turn.turn_id].status == "failed"


async def test_the_usage_of_the_rounds_before_a_failure_counts() -> None:
    model = ScriptedModel(asks(("a__b", "")), [LLMRateLimitedError("no")])
    async with FakeEngine(model, tools=SHELF) as engine:
        turn = await engine.turns.start("ada", None, "?")
        events = await engine.seen(turn)

        assert done_of(events).usage == SPENT
        assert engine.store.turns[turn.turn_id].done == done_of(events)


async def test_a_bug_ends_the_turn_with_an_internal_error_without_details() -> None:
    async with FakeEngine(ScriptedModel([TextDelta("a"), KeyError("secret")])) as engine:
        turn = await engine.turns.start("ada", None, "?")
        events = await engine.seen(turn)

        failure = TurnFailed("INTERNAL_ERROR", "internal error")
        assert events[-3:-1] == [MessageFinished(2, AssistantMessage("a", interrupted=True)), failure]
        assert failure_of(engine, turn) == failure


async def test_a_model_that_cancels_itself_is_an_error_and_not_a_stop() -> None:
    async def model(request: ChatRequest) -> AsyncGenerator[ChatEvent]:
        yield TextDelta("a")
        raise asyncio.CancelledError

    async with FakeEngine(model) as engine:
        events = await engine.turn("?")

    assert done_of(events).reason is DoneReason.ERROR


async def test_calls_that_are_open_when_a_turn_fails_are_ended_too() -> None:
    worker = FakeWorker({"a__b": gives(succeeded("x"), asyncio.Event())})
    async with FakeEngine(ScriptedModel(asks(("a__b", ""), ("a__c", ""))), tools=SHELF, worker=worker) as engine:
        engine.store.refuse["add_result"] = FULL
        turn = await engine.turns.start("ada", None, "?")
        await engine.until(turn, lambda event: isinstance(event, Done))
        del engine.store.refuse["add_result"]
        await engine.seen(turn)

        assert engine.store.left_open(turn) == []
        assert engine.store.turns[turn.turn_id].status == "failed"


async def test_a_failed_turn_stops_waiting_for_its_calls_before_it_ends_them() -> None:
    worker = Watched({"a__c": gives(succeeded("x"), asyncio.Event())})
    async with FakeEngine(ScriptedModel(asks(("a__b", ""), ("a__c", ""))), tools=SHELF, worker=worker) as engine:
        engine.store.refuse["add_result"] = FULL
        turn = await engine.turns.start("ada", None, "?")
        await engine.until(turn, lambda event: isinstance(event, Done))
        await wait_until(lambda: worker.heard is not None)
        del engine.store.refuse["add_result"]
        await engine.seen(turn)

    assert worker.heard == ()


# --- Storage away ---------------------------------------------------------------------------------------------------


async def test_an_end_that_cannot_be_stored_is_shown_at_once_and_stored_later() -> None:
    store = MemoryStore()
    store.refuse["finish"] = FULL
    async with FakeEngine(ScriptedModel(says("x")), store=store) as engine:
        turn = await engine.turns.start("ada", None, "?")
        await engine.until(turn, lambda event: isinstance(event, Done))
        assert store.turns[turn.turn_id].status == "running"
        assert engine.logs.lives[turn.turn_id][-1].events[-2] == TurnFailed("STORAGE_UNAVAILABLE", "the disk is full")

        del store.refuse["finish"]
        events = await engine.seen(turn)

        assert store.turns[turn.turn_id].status == "failed"
        assert [type(event) for event in events].count(Done) == 1


async def test_while_storage_is_unavailable_the_user_sees_the_end_at_once() -> None:
    store = MemoryStore()
    store.refuse["add_round"] = FULL
    store.hold["open_calls"] = asyncio.Event()
    async with FakeEngine(ScriptedModel(asks(("a__b", ""))), tools=SHELF, store=store) as engine:
        turn = await engine.turns.start("ada", None, "?")
        await engine.until(turn, lambda event: isinstance(event, Done))


async def test_a_bug_in_storage_is_shown_as_an_internal_error() -> None:
    store = MemoryStore()
    store.refuse["finish"] = ValueError("a bug")
    async with FakeEngine(ScriptedModel(says("x")), store=store) as engine:
        turn = await engine.turns.start("ada", None, "?")
        await engine.until(turn, lambda event: isinstance(event, Done))
        store.refuse.clear()
        await engine.seen(turn)

        assert store.turns[turn.turn_id].status == "failed"


async def test_stopping_a_turn_that_waits_for_its_storage_returns_at_once() -> None:
    store = MemoryStore()
    store.refuse["finish"] = FULL
    async with FakeEngine(ScriptedModel(says("x")), store=store) as engine:
        turn = await engine.turns.start("ada", None, "?")
        await engine.until(turn, lambda event: isinstance(event, Done))

        async with asyncio.timeout(5):
            assert await engine.turns.cancel(turn.turn_id)


async def test_a_shutdown_does_not_wait_for_unavailable_storage() -> None:
    store = MemoryStore()
    store.refuse["finish"] = FULL
    async with FakeEngine(ScriptedModel(says("x")), store=store) as engine:
        turn = await engine.turns.start("ada", None, "?")
        await engine.until(turn, lambda event: isinstance(event, Done))

        async with asyncio.timeout(5):
            await engine.turns.close(0)

        assert len(engine.turns) == 0
        assert engine.logs.lives[turn.turn_id][-1].closed


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
        assert [each.turn.turn_id for each in await engine.store.adopt_own()] == [last.turn_id]


# --- Stop, at each awkward moment -----------------------------------------------------------------------------------


async def stopped(engine: FakeEngine, turn: Turn) -> list[object]:
    async with asyncio.timeout(5):
        assert await engine.turns.cancel(turn.turn_id)
    return [*await engine.seen(turn)]


async def test_a_stop_before_the_first_token_stores_no_message() -> None:
    model = ScriptedModel([asyncio.Event()])
    async with FakeEngine(model) as engine:
        turn = await engine.turns.start("ada", None, "?")
        await wait_until(lambda: model.open)

        events = await stopped(engine, turn)

    assert [type(event).__name__ for event in events] == ["TurnStarted", "Done"]
    assert events[-1] == Done(turn.turn_id, DoneReason.CANCELLED, Usage(), None)


async def test_a_turn_that_is_stopped_at_once_still_begins_with_started() -> None:
    async with FakeEngine(ScriptedModel([asyncio.Event()])) as engine:
        turn = await engine.turns.start("ada", None, "?")

        events = await stopped(engine, turn)

    assert [type(event).__name__ for event in events] == ["TurnStarted", "Done"]


async def test_reasoning_and_white_space_alone_are_no_partial_message() -> None:
    async with FakeEngine(ScriptedModel([ReasoningDelta("hm"), TextDelta("\n "), asyncio.Event()])) as engine:
        turn = await engine.turns.start("ada", None, "?")
        await engine.until(turn, is_text("\n "))

        events = await stopped(engine, turn)

    assert not any(isinstance(event, MessageFinished) for event in events)


async def test_a_stop_during_the_commit_of_a_round_shows_the_round_and_its_calls_never_begin() -> None:
    store, worker = MemoryStore(), FakeWorker()
    commit = store.hold["add_round"] = asyncio.Event()
    model = ScriptedModel(asks(("a__b", ""), text="Let me see."))
    async with FakeEngine(model, tools=SHELF, store=store, worker=worker) as engine:
        turn = await engine.turns.start("ada", None, "?")
        await wait_until(lambda: "add_round" in store.begun)
        stopping = asyncio.create_task(engine.turns.cancel(turn.turn_id))
        await breathe()
        commit.set()
        await stopping
        events = await engine.seen(turn)
        said = await store.messages(turn.session_id)

    assert steps_of(events) == [ToolStatus.PENDING, ToolStatus.CANCELLED]
    assert [event.message.content for event in events if isinstance(event, MessageFinished)] == ["Let me see."]
    assert [message.content for message in said][1] == "Let me see."
    assert len(said) == 3  # question, request, result: the text is not stored a second time
    assert worker.executed == []
    assert done_of(events).usage == SPENT


async def test_a_stop_during_the_commit_of_a_result_shows_the_result() -> None:
    store = MemoryStore()
    commit = store.hold["add_result"] = asyncio.Event()
    worker = FakeWorker({"a__c": gives(succeeded("x"), asyncio.Event())})
    model = ScriptedModel(asks(("a__b", ""), ("a__c", "")))
    async with FakeEngine(model, tools=SHELF, store=store, worker=worker) as engine:
        turn = await engine.turns.start("ada", None, "?")
        await wait_until(lambda: "add_result" in store.begun)
        stopping = asyncio.create_task(engine.turns.cancel(turn.turn_id))
        await breathe()
        commit.set()
        await stopping
        events = await engine.seen(turn)

    assert steps_of(events, "a__b")[-1] is ToolStatus.SUCCEEDED
    assert steps_of(events, "a__c")[-1] is ToolStatus.CANCELLED


async def test_a_stop_ends_the_wait_for_calls_before_they_are_cancelled() -> None:
    worker = Watched({"a__b": gives(succeeded("x"), asyncio.Event())})
    async with FakeEngine(ScriptedModel(asks(("a__b", ""))), tools=SHELF, worker=worker) as engine:
        turn = await engine.turns.start("ada", None, "?")
        await engine.until(turn, is_step(ToolStatus.RUNNING))
        await stopped(engine, turn)

    assert worker.heard == ()


async def test_a_call_that_waits_for_a_worker_at_a_stop_never_begins() -> None:
    worker = FakeWorker()
    worker.staffed = False
    async with FakeEngine(ScriptedModel(asks(("a__b", ""))), tools=SHELF, worker=worker) as engine:
        turn = await engine.turns.start("ada", None, "?")
        await engine.until(turn, is_step(ToolStatus.QUEUED))
        await stopped(engine, turn)
        events = await engine.seen(turn)

    last = [event for event in events if isinstance(event, ToolStep)][-1]
    assert last.status is ToolStatus.CANCELLED
    assert last.details["error"]["code"] == ErrorCode.CANCELLED
    assert worker.executed == []


async def test_the_rounds_before_a_stop_are_in_the_usage() -> None:
    model = ScriptedModel(asks(("a__b", "")), [TextDelta("So"), asyncio.Event()])
    async with FakeEngine(model, tools=SHELF) as engine:
        turn = await engine.turns.start("ada", None, "?")
        await engine.until(turn, is_text("So"))
        await stopped(engine, turn)

        assert done_of(await engine.seen(turn)).usage == SPENT


async def test_a_stop_during_the_commit_of_the_end_has_no_effect() -> None:
    store = MemoryStore()
    commit = store.hold["finish"] = asyncio.Event()
    async with FakeEngine(ScriptedModel(says("All of it.")), store=store) as engine:
        turn = await engine.turns.start("ada", None, "?")
        await wait_until(lambda: "finish" in store.begun)
        stopping = asyncio.create_task(engine.turns.cancel(turn.turn_id))
        await breathe()
        commit.set()
        await stopping
        events = await engine.seen(turn)

        assert done_of(events).reason is DoneReason.STOP
        assert MessageFinished(2, AssistantMessage("All of it.")) in events
        assert store.turns[turn.turn_id].done == done_of(events)


async def test_an_error_while_closing_the_stream_does_not_make_a_stop_an_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def model(request: ChatRequest) -> AsyncGenerator[ChatEvent]:
        yield TextDelta("a")
        try:
            await asyncio.Event().wait()
        finally:
            raise LLMRateLimitedError("while closing")

    async with FakeEngine(model) as engine:
        turn = await engine.turns.start("ada", None, "?")
        await engine.until(turn, is_text("a"))
        events = await stopped(engine, turn)

    assert isinstance(events[-1], Done)
    assert events[-1].reason is DoneReason.CANCELLED
    assert "while closing" in caplog.text


async def test_a_turn_may_be_stopped_twice() -> None:
    async with FakeEngine(ScriptedModel([TextDelta("a"), asyncio.Event()])) as engine:
        turn = await engine.turns.start("ada", None, "?")
        await engine.until(turn, is_text("a"))

        assert await asyncio.gather(engine.turns.cancel(turn.turn_id), engine.turns.cancel(turn.turn_id)) == [
            True,
            True,
        ]


async def test_the_round_of_a_call_that_is_stopped_is_its_own_in_a_later_life_too() -> None:
    worker = FakeWorker({"a__c": gives(succeeded("x"), asyncio.Event())})
    model = ScriptedModel(asks(("a__b", "")), asks(("a__c", "")))
    store = MemoryStore()
    async with FakeEngine(model, tools=SHELF, worker=worker, store=store) as engine:
        turn = await engine.turns.start("ada", None, "?")
        await engine.until(turn, is_step(ToolStatus.RUNNING, "a__c"))
        hold = store.hold["open_calls"] = asyncio.Event()
        await engine.restart()
        stopping = asyncio.create_task(engine.turns.cancel(turn.turn_id))
        await breathe()
        hold.set()
        await stopping
        events = await engine.seen(turn)

    assert [event.round for event in events if isinstance(event, ToolStep)] == [2]


# --- Shutting down --------------------------------------------------------------------------------------------------


async def test_a_shutdown_lets_turns_end_within_the_grace_period() -> None:
    go = asyncio.Event()
    async with FakeEngine(ScriptedModel([go, *says("x")])) as engine:
        turn = await engine.turns.start("ada", None, "?")
        closing = asyncio.create_task(engine.turns.close(5))
        await breathe()
        go.set()
        await closing

        assert engine.store.turns[turn.turn_id].status == "done"


async def test_a_shutdown_leaves_the_rest_unfinished_with_closed_streams() -> None:
    model = ScriptedModel([TextDelta("a"), asyncio.Event()])
    async with FakeEngine(model) as engine:
        turn = await engine.turns.start("ada", None, "?")
        await engine.until(turn, is_text("a"))

        await engine.turns.close(0)

        assert engine.store.turns[turn.turn_id].status == "running"
        assert not any(isinstance(event, Done) for event in engine.logs.lives[turn.turn_id][-1].events)
        assert model.open == 0
        assert len(engine.turns) == 0


async def test_a_shutdown_during_the_commit_of_the_end_shows_the_end() -> None:
    store = MemoryStore()
    commit = store.hold["finish"] = asyncio.Event()
    async with FakeEngine(ScriptedModel(says("x")), store=store) as engine:
        turn = await engine.turns.start("ada", None, "?")
        await wait_until(lambda: "finish" in store.begun)
        closing = asyncio.create_task(engine.turns.close(0))
        await breathe()
        commit.set()
        await closing

        assert store.turns[turn.turn_id].status == "done"
        assert done_of(engine.logs.lives[turn.turn_id][-1].events).reason is DoneReason.STOP


async def test_a_shutdown_at_once_forgets_turns_whose_task_has_not_begun() -> None:
    async with FakeEngine(ScriptedModel(says("x"))) as engine:
        await engine.turns.start("ada", None, "?")
        await engine.turns.close(0)

        assert len(engine.turns) == 0


async def test_a_log_that_cannot_be_closed_does_not_keep_the_turn(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def close(_: object) -> None:
        raise OSError("no")

    async with FakeEngine(ScriptedModel(says("x"))) as engine:
        monkeypatch.setattr("tests.support.fakes.MemoryLog.close", close)
        await engine.turns.start("ada", None, "?")
        await wait_until(lambda: len(engine.turns) == 0)

    assert "cannot be closed" in caplog.text


# --- Later lives ----------------------------------------------------------------------------------------------------


async def test_a_restart_without_open_calls_asks_for_none_and_says_reset_once() -> None:
    async with FakeEngine(ScriptedModel([asyncio.Event()], says("x"))) as engine:
        turn = await engine.turns.start("ada", None, "?")
        await engine.restart()
        events = await engine.seen(turn)

    assert "open_calls" not in engine.store.begun
    assert [type(event).__name__ for event in events[:2]] == ["TurnStarted", "Reset"]


async def test_a_turn_that_another_engine_owns_is_dropped_and_shows_nothing_more() -> None:
    store = MemoryStore()
    hold = store.hold["finish"] = asyncio.Event()
    async with FakeEngine(ScriptedModel(says("x")), store=store) as engine:
        turn = await engine.turns.start("ada", None, "?")
        await wait_until(lambda: "finish" in store.begun)
        dropping = asyncio.create_task(engine.turns.drop(turn))
        await breathe()
        hold.set()
        await dropping
        events = await engine.seen(turn)

    assert [type(event).__name__ for event in events] == ["TurnStarted", "TextDelta"]


async def test_a_stop_during_an_adoption_waits_for_the_end_at_the_new_owner() -> None:
    async with FakeEngine(ScriptedModel([TextDelta("a"), asyncio.Event()])) as engine:
        turn = await engine.turns.start("ada", None, "?")
        await engine.until(turn, is_text("a"))
        stopping = asyncio.create_task(engine.turns.cancel(turn.turn_id))
        await asyncio.sleep(0)
        await engine.turns.drop(turn)
        [left] = await engine.store.adopt_own()
        engine.turns.run(left.turn, stopped=left.stopped)
        assert await stopping
        assert done_of(await engine.seen(turn)).reason is DoneReason.CANCELLED


async def test_a_turn_that_was_stopped_between_two_lives_shows_what_was_committed_before_it_ends() -> None:
    async with FakeEngine(ScriptedModel([TextDelta("a"), asyncio.Event()])) as engine:
        turn = await engine.turns.start("ada", None, "?")
        await engine.until(turn, is_text("a"))
        await engine.turns.close(0)
        await engine.store.request_stop(turn.turn_id)
        [left] = await engine.store.adopt_own()
        engine.turns.run(left.turn, stopped=left.stopped)
        events = await engine.seen(turn)

    assert [type(event).__name__ for event in events] == ["TurnStarted", "Reset", "Done"]
    assert done_of(events).reason is DoneReason.CANCELLED


async def test_a_turn_with_a_failure_ends_with_it_and_asks_no_model() -> None:
    worker = FakeWorker({"a__b": gives(succeeded("x"), asyncio.Event())})
    model = ScriptedModel(asks(("a__b", "")))
    async with FakeEngine(model, tools=SHELF, worker=worker) as engine:
        turn = await engine.turns.start("ada", None, "?")
        await engine.until(turn, is_step(ToolStatus.RUNNING, "a__b"))
        await engine.turns.close(0)
        [left] = await engine.store.adopt_own()
        engine.turns.run(left.turn, failure=TurnCrashesError("why"))
        events = await engine.seen(turn)

    assert [type(event).__name__ for event in events] == ["TurnStarted", "Reset", "ToolStep", "TurnFailed", "Done"]
    assert TurnFailed("TURN_CRASHES", "why") in events
    assert (done_of(events).reason, done_of(events).usage) == (DoneReason.ERROR, SPENT)
    assert engine.store.left_open(turn) == []


async def test_the_usage_of_earlier_lives_is_in_done() -> None:
    finish = asyncio.Event()
    worker = FakeWorker({"a__b": gives(succeeded("x"), finish)})
    model = ScriptedModel(asks(("a__b", "")), says("x"))
    async with FakeEngine(model, tools=SHELF, worker=worker) as engine:
        turn = await engine.turns.start("ada", None, "?")
        await engine.until(turn, is_step(ToolStatus.RUNNING, "a__b"))
        await engine.restart()
        finish.set()
        events = await engine.seen(turn)

    assert done_of(events).usage == SPENT + SPENT


async def test_a_turn_that_was_adopted_does_not_end_twice() -> None:
    model = ScriptedModel(says("x"))
    store = MemoryStore()
    async with FakeEngine(model, store=store) as engine:
        hold = store.hold["finish"] = asyncio.Event()
        turn = await engine.turns.start("ada", None, "?")
        await wait_until(lambda: "finish" in store.begun)
        store.turns[turn.turn_id].turn = replace(turn, epoch=2)
        hold.set()
        events = await engine.seen(turn)

    assert store.turns[turn.turn_id].status == "running"
    assert not any(isinstance(event, MessageFinished) for event in events)


async def test_a_finish_reason_of_tool_calls_with_calls_makes_a_round_whatever_it_says() -> None:
    odd: list[Line] = [ToolCallEvent("call_1", "a__b", ""), StreamEnd(FinishReason.STOP, SPENT)]
    async with FakeEngine(ScriptedModel(odd, says("x")), tools=SHELF) as engine:
        events = await engine.turn("?")

    assert steps_of(events)[-1] is ToolStatus.SUCCEEDED
