"""RunningTurns: a turn that is stopped, or whose engine shuts down, at each awkward moment."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace

import pytest

from dialog_engine.context import tokens_of_message, tokens_of_tool
from dialog_engine.errors import LLMRateLimitedError, LLMStreamBrokenError
from dialog_engine.model import (
    AssistantMessage,
    ChatEvent,
    ChatRequest,
    Done,
    DoneReason,
    MessageFinished,
    SystemMessage,
    TextDelta,
    ToolStatus,
    ToolStep,
    Turn,
    TurnEvent,
    Usage,
    UserMessage,
    WaitingForUser,
)
from plugins_contract.catalog import ApprovalPolicy
from tests.marks import promise
from tests.support.fakes.engine import FakeEngine, breathe, done_of, is_step, is_text, steps_of
from tests.support.fakes.models import SPENT, ScriptedModel, asks, opened, says
from tests.support.fakes.stores import MemoryStore
from tests.support.fakes.worker import FakeCatalog, FakeWorker, WatchedWorker, gives, succeeded, tool
from tests.support.waiting import wait_until

SHELF = FakeCatalog(tool("a__b"), tool("a__c"))


# --- Stop, at each awkward moment -----------------------------------------------------------------------------------


async def stopped(engine: FakeEngine, turn: Turn) -> list[TurnEvent]:
    async with asyncio.timeout(5):
        assert await engine.turns.cancel(turn.turn_id)
    return await engine.seen(turn)


@pytest.mark.parametrize("at_once", [False, True])
async def test_a_stop_before_the_first_token_stores_no_message(*, at_once: bool) -> None:
    model = ScriptedModel([asyncio.Event()])
    async with FakeEngine(model) as engine:
        turn = await engine.turns.start("ada", None, "?")
        if not at_once:
            await wait_until(lambda: model.open)

        events = await stopped(engine, turn)

    assert [type(event).__name__ for event in events] == ["TurnStarted", "Done"]
    spent = Usage(tokens_of_message(UserMessage("?")), 0, estimated=True)
    assert replace(done_of(events), total_ms=0) == Done(turn.turn_id, DoneReason.CANCELLED, spent, None)


async def stopped_during(step: str, engine: FakeEngine) -> tuple[Turn, list[TurnEvent]]:
    """A turn that is stopped while the store is at this step, and its events."""
    commit = engine.store.hold[step] = asyncio.Event()
    turn = await engine.turns.start("ada", None, "?")
    await wait_until(lambda: step in engine.store.begun)
    stopping = asyncio.create_task(engine.turns.cancel(turn.turn_id))
    await breathe()
    commit.set()
    await stopping
    return turn, await engine.seen(turn)


async def test_a_stop_during_the_commit_of_a_round_shows_the_round_and_its_calls_never_begin() -> None:
    model = ScriptedModel(asks(("a__b", ""), text="Let me see."))
    async with FakeEngine(model, tools=SHELF) as engine:
        turn, events = await stopped_during("add_round", engine)
        said = await engine.store.messages(turn.session_id)

    assert steps_of(events) == [ToolStatus.PENDING, ToolStatus.CANCELLED]
    assert [event.message.content for event in events if isinstance(event, MessageFinished)] == ["Let me see."]
    assert [message.content for message in said][1] == "Let me see."
    assert len(said) == 3  # question, request, result: the text is not stored a second time
    assert engine.worker.executed == []
    assert done_of(events).usage == SPENT


async def test_a_stop_during_the_commit_of_a_result_shows_the_result() -> None:
    worker = FakeWorker({"a__c": gives(succeeded("x"), asyncio.Event())})
    model = ScriptedModel(asks(("a__b", ""), ("a__c", "")))
    async with FakeEngine(model, tools=SHELF, worker=worker) as engine:
        _, events = await stopped_during("add_result", engine)

    assert steps_of(events, "a__b")[-1] is ToolStatus.SUCCEEDED
    assert steps_of(events, "a__c")[-1] is ToolStatus.CANCELLED


async def test_a_stop_during_the_commit_of_the_end_has_no_effect() -> None:
    async with FakeEngine(ScriptedModel(says("All of it."))) as engine:
        turn, events = await stopped_during("finish", engine)

        assert done_of(events).reason is DoneReason.STOP
        assert MessageFinished(2, AssistantMessage("All of it.")) in events
        assert engine.store.usage(turn) == done_of(events).usage


async def test_a_stop_ends_the_wait_for_calls_before_they_are_cancelled() -> None:
    worker = WatchedWorker({"a__b": gives(succeeded("x"), asyncio.Event())})
    async with FakeEngine(ScriptedModel(asks(("a__b", ""))), tools=SHELF, worker=worker) as engine:
        turn = await engine.begun("?", is_step(ToolStatus.RUNNING))
        await stopped(engine, turn)

    assert worker.heard == ()


async def test_the_rounds_before_a_stop_are_in_the_usage() -> None:
    model = ScriptedModel(asks(("a__b", "")), [TextDelta("So"), asyncio.Event()])
    async with FakeEngine(model, tools=SHELF) as engine:
        turn = await engine.begun("?", is_text("So"))
        await stopped(engine, turn)

        usage = done_of(await engine.seen(turn)).usage
        assert usage.input_tokens > SPENT.input_tokens
        assert usage.output_tokens == SPENT.output_tokens


PROMPT = sum(map(tokens_of_message, (SystemMessage("Be brief."), UserMessage("?")))) + sum(
    map(tokens_of_tool, SHELF.tools())
)


@promise("a stopped reply is counted: what was reported, the rest as an estimate that is marked")
@pytest.mark.parametrize(
    ("reported", "written", "usage"),
    [
        (None, "x" * 400, Usage(PROMPT, 100, estimated=True)),
        # What the provider has reported counts, and what it had not yet counted is added by the client.
        (Usage(70, 12), "x" * 400, Usage(70, 12)),
        (Usage(70, 12, True, 9, 8, 7), "x" * 400, Usage(70, 100, True, 9, 8, 7)),
        (Usage(0, 120, estimated=True), "x" * 400, Usage(PROMPT, 120, estimated=True)),
    ],
    ids=["nothing reported", "all reported", "text after the report", "pieces alone"],
)
@pytest.mark.parametrize("fails", [False, True], ids=["stopped", "broken off"])
async def test_a_reply_that_is_stopped_or_breaks_off_is_counted(
    reported: Usage | None, written: str, usage: Usage, fails: bool
) -> None:
    @opened
    async def model(request: ChatRequest) -> AsyncGenerator[ChatEvent]:
        try:
            yield TextDelta(written)
            if fails:
                raise LLMStreamBrokenError("away")
            await asyncio.Event().wait()
        finally:
            request.meter.reported = reported or Usage()

    async with FakeEngine(model, tools=SHELF, system_prompt="Be brief.") as engine:
        turn = await engine.begun("?", is_text(written))
        events = await (engine.seen(turn) if fails else stopped(engine, turn))

    done = done_of(events)
    assert (done.reason, done.usage) == (DoneReason.ERROR if fails else DoneReason.CANCELLED, usage)


@promise("a stopped reply is counted: what was reported, the rest as an estimate that is marked")
async def test_a_request_that_fails_before_its_reply_begins_costs_nothing() -> None:
    async with FakeEngine(ScriptedModel([LLMRateLimitedError("busy")])) as engine:
        assert done_of(await engine.turn("?")).usage == Usage()


async def test_an_error_while_closing_the_stream_does_not_make_a_stop_an_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @opened
    async def model(request: ChatRequest) -> AsyncGenerator[ChatEvent]:
        yield TextDelta("a")
        try:
            await asyncio.Event().wait()
        finally:
            raise LLMRateLimitedError("while closing")

    async with FakeEngine(model) as engine:
        turn = await engine.begun("?", is_text("a"))
        events = await stopped(engine, turn)

    assert done_of(events).reason is DoneReason.CANCELLED
    assert "while closing" in caplog.text


async def test_the_round_of_a_call_that_is_stopped_is_its_own_in_a_later_life_too() -> None:
    worker = FakeWorker({"a__c": gives(succeeded("x"), asyncio.Event())})
    model = ScriptedModel(asks(("a__b", "")), asks(("a__c", "")))
    store = MemoryStore()
    async with FakeEngine(model, tools=SHELF, worker=worker, store=store) as engine:
        turn = await engine.begun("?", is_step(ToolStatus.RUNNING, "a__c"))
        hold = store.hold["open_calls"] = asyncio.Event()
        await engine.restart()
        stopping = asyncio.create_task(engine.turns.cancel(turn.turn_id))
        await breathe()
        hold.set()
        await stopping
        events = await engine.seen(turn)

    assert [event.round for event in events if isinstance(event, ToolStep)] == [2]


# --- Shutting down --------------------------------------------------------------------------------------------------


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

        assert store.status(turn) == "done"
        assert done_of(engine.logs.lives[turn.turn_id][-1].events).reason is DoneReason.STOP


@pytest.mark.parametrize("stop", [True, False])
async def test_a_turn_that_is_parked_during_a_stop_or_a_shutdown_has_not_failed(
    caplog: pytest.LogCaptureFixture, stop: bool
) -> None:
    """Whatever it does at that moment: each time it is one step further."""
    asking = FakeCatalog(tool("a__b", approval=ApprovalPolicy.ALWAYS))
    for steps in range(30):
        store = MemoryStore()
        commit = store.hold["park"] = asyncio.Event()
        async with FakeEngine(ScriptedModel(asks(("a__b", "{}"))), tools=asking, store=store, parks=True) as engine:
            turn = await engine.turns.start("ada", None, "?")
            await wait_until(lambda store=store: "park" in store.begun)
            asyncio.get_running_loop().call_soon(commit.set)
            for _ in range(steps):
                await asyncio.sleep(0)
            if stop:
                assert await engine.turns.cancel(turn.turn_id)
                await engine.seen(turn)
            assert await engine.turns.close(0) == []
        assert (store.turn(turn).owner, store.status(turn)) == (("engine", "cancelled") if stop else ("", "running"))
    assert caplog.text == ""


async def test_a_turn_is_parked_once_when_its_task_and_the_look_for_such_turns_try_together(
    caplog: pytest.LogCaptureFixture,
) -> None:
    asking = FakeCatalog(tool("a__b", approval=ApprovalPolicy.ALWAYS))
    store = MemoryStore()
    commit = store.hold["park"] = asyncio.Event()
    async with FakeEngine(ScriptedModel(asks(("a__b", "{}"))), tools=asking, store=store, parks=True) as engine:
        turn = await engine.begun("?", lambda event: isinstance(event, WaitingForUser))
        looking = asyncio.create_task(engine.turns.park_again())
        await wait_until(lambda: "park" in store.begun)
        await breathe()
        commit.set()
        await looking
        await wait_until(lambda: len(engine.turns) == 0)
    assert (store.turn(turn).owner, store.begun.count("park"), caplog.text) == ("", 1, "")


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
        monkeypatch.setattr("tests.support.fakes.logs.MemoryLog.close", close)
        await engine.turns.start("ada", None, "?")
        await wait_until(lambda: len(engine.turns) == 0)

    assert "OSError: no" in caplog.text
