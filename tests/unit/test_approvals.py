"""A turn with a call that waits for approval, on fakes: what runs meanwhile, and what each decision does."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from dialog_engine.chat.ports import OpenCalls
from dialog_engine.errors import ApprovalError, ApprovalExpiredError, StorageUnavailableError
from dialog_engine.model import (
    ApprovalStatus,
    ApprovalStep,
    AssistantMessage,
    DoneReason,
    ToolMessage,
    ToolStatus,
    ToolStep,
    Turn,
    TurnEvent,
    WaitingForUser,
)
from dialog_engine.storage.open_calls import SqlOpenCalls
from dialog_engine.tool_calls.values import Approve, Refuse
from plugins_contract.catalog import ApprovalPolicy
from plugins_contract.outcomes import ToolOutcome
from tests.marks import promise
from tests.support.fakes.engine import FakeEngine, breathe, done_of, is_asked, is_step, steps_of
from tests.support.fakes.models import Line, ScriptedModel, asks, says
from tests.support.fakes.worker import Execution, FakeCatalog, FakeWorker, gives, succeeded, tool
from tests.support.waiting import wait_until

DELETE = tool(
    "files__delete", {"type": "object", "properties": {"path": {"type": "string"}}}, approval=ApprovalPolicy.ALWAYS
)
READ = tool("files__read")
ASKS = asks(("files__delete", '{"path": "/a"}'))


def a_stage(*replies: Sequence[Line], **options: Any) -> FakeEngine:
    model = ScriptedModel(*(replies or (ASKS, says("Done."))))
    return FakeEngine(model, tools=FakeCatalog(DELETE, READ), **options)


def approvals_of(events: Sequence[TurnEvent]) -> list[ApprovalStatus]:
    return [event.status for event in events if isinstance(event, ApprovalStep)]


async def waiting_turn(engine: FakeEngine) -> tuple[Turn, ApprovalStep]:
    turn = await engine.turns.start("someone", None, "Delete it.")
    return turn, await engine.question(turn)


def waiting_for(*asked: ApprovalStep) -> WaitingForUser:
    hashes = {each.call.correlation_id: each.details["hash"] for each in asked}
    return WaitingForUser(len(asked), (), tuple(hashes), hashes=hashes)


def approve(step: ApprovalStep, arguments: dict[str, object] | None = None) -> Approve:
    return Approve(step.details["hash"], arguments)


def requests(engine: FakeEngine) -> list[str]:
    return [row.event_id for row in engine.store.requests()]


async def test_users_see_that_a_turn_waits_for_them_alone() -> None:
    three = asks(("files__read", ""), ("files__delete", '{"path": "/a"}'), ("files__delete", '{"path": "/b"}'))
    async with a_stage(three, says("Done.")) as engine:
        turn, _ = await waiting_turn(engine)
        await engine.until(turn, lambda event: isinstance(event, WaitingForUser))
        first, second = [each for each in engine.logs.lives[turn.turn_id][-1].events if isinstance(each, ApprovalStep)]
        await engine.decide(first.call.correlation_id, approve(first))
        left = waiting_for(second)
        await engine.until(turn, lambda event: isinstance(event, WaitingForUser) and event.approvals == 1)
        await engine.decide(second.call.correlation_id, Refuse())
        events = await engine.seen(turn)

    shown = [
        event.status if isinstance(event, ToolStep) else replace(event, usage=None)
        for event in events
        if isinstance(event, WaitingForUser) or is_step(ToolStatus.SUCCEEDED)(event)
    ]
    both = waiting_for(first, second)
    assert shown == [ToolStatus.SUCCEEDED, both, ToolStatus.SUCCEEDED, left]


SAME = asks(("files__delete", ' {"path" : "/a"}'))
OTHER = asks(("files__delete", '{"path": "/b"}'))
THROUGH_GATEWAY = asks(("mcp_query", '{"resource": "files", "operation": "delete", "params": {"path": "/a"}}'))


@promise("approvals: a person is not asked again in a turn about a call that they refused")
@pytest.mark.parametrize("first", [ASKS, THROUGH_GATEWAY], ids=["by its name", "through the gateway"])
@pytest.mark.parametrize("again", [SAME, THROUGH_GATEWAY], ids=["by its name", "through the gateway"])
@pytest.mark.parametrize("restarts", [False, True], ids=["", "after a restart"])
async def test_a_call_that_a_person_refused_is_not_put_to_them_again_in_the_turn(
    first: list[Line], again: list[Line], restarts: bool
) -> None:
    pause: list[Line] = [asyncio.Event()]
    async with a_stage(first, *([pause] if restarts else []), again, again, says("Very well.")) as engine:
        turn, step = await waiting_turn(engine)
        await engine.decide(step.call.correlation_id, Refuse("not on a Friday"))
        if restarts:
            await wait_until(lambda: isinstance(engine.model, ScriptedModel) and len(engine.model.requests) == 2)
            await engine.restart()
        events = await engine.seen(turn)

        assert not any(is_asked(event) and event.round > 1 for event in events if isinstance(event, ApprovalStep))
        refused = [event for event in events if isinstance(event, ToolStep) and event.status is ToolStatus.REFUSED]
        assert [event.details["error"]["message"].endswith("not on a Friday") for event in refused[-2:]] == [True] * 2
        assert engine.worker.executed == []
        assert done_of(events).reason is DoneReason.REPEATED_CALLS


@promise("approvals: a person is not asked again in a turn about a call that they refused")
async def test_what_was_not_refused_by_a_person_in_this_turn_is_put_to_them() -> None:
    async with a_stage(ASKS, OTHER, says("Very well."), SAME, SAME, says("Done."), approval_seconds=0.05) as engine:
        turn, _ = await waiting_turn(engine)
        events = await engine.seen(turn)
        assert approvals_of(events) == [ApprovalStatus.ASKED, ApprovalStatus.EXPIRED] * 2
        events = await engine.turn("Do delete it.", turn.session_id)
        assert approvals_of(events) == [ApprovalStatus.ASKED, ApprovalStatus.EXPIRED] * 2


async def test_a_call_runs_with_edited_arguments_and_the_model_reads_them() -> None:
    ran: list[dict[str, object]] = []

    async def delete(execution: Execution) -> ToolOutcome:
        ran.append(execution.arguments)
        return succeeded("deleted")

    async with a_stage(worker=FakeWorker({"files__delete": delete})) as engine:
        turn, step = await waiting_turn(engine)
        await engine.decide(step.call.correlation_id, approve(step, {"path": "/b"}))
        await engine.seen(turn)
        assert isinstance(engine.model, ScriptedModel)
        *_, said, result = engine.model.requests[1].messages
        stored = [m for m in await engine.store.messages(turn.session_id) if isinstance(m, ToolMessage)]

    assert ran == [{"path": "/b"}]
    assert isinstance(said, AssistantMessage)
    assert said.tool_calls[0].arguments == '{"path": "/a"}', "its own words stay"
    assert '{"path":"/b"}' in result.content
    assert [m.content for m in stored] == [result.content], "and so the model sees it in later turns"


async def test_a_decision_after_the_timeout_runs_nothing_and_is_refused() -> None:
    async with a_stage() as engine:
        turn, step = await waiting_turn(engine)
        in_an_hour, now = engine.clock.now_ms() // 1000 + 3600, time.monotonic()
        engine.clock.sample((in_an_hour, 0), now, now)
        with pytest.raises(ApprovalExpiredError):
            await engine.decide(step.call.correlation_id, approve(step))

        assert approvals_of(await engine.seen(turn)) == [ApprovalStatus.ASKED, ApprovalStatus.EXPIRED]
        assert engine.worker.executed == []


async def test_a_stop_during_an_approval_gives_the_call_one_outcome() -> None:
    async with a_stage(worker=FakeWorker({"files__delete": gives(succeeded("x"), asyncio.Event())})) as engine:
        turn, step = await waiting_turn(engine)
        engine.store.hold["decide"] = asyncio.Event()
        handing_in = asyncio.create_task(engine.decide(step.call.correlation_id, approve(step)))
        await wait_until(lambda: "decide" in engine.store.begun)
        stopping = asyncio.create_task(engine.turns.cancel(turn.turn_id))
        await breathe()
        engine.store.hold.pop("decide").set()
        await stopping
        events = await engine.seen(turn)
        await asyncio.gather(handing_in, return_exceptions=True)

        assert approvals_of(events) == [ApprovalStatus.ASKED, ApprovalStatus.APPROVED], "committed, so it is sent"
        assert steps_of(events)[-1] is ToolStatus.CANCELLED
        assert requests(engine) == []


@promise("destructive tools wait for approval, durably")
@pytest.mark.parametrize("decided_first", [True, False])
async def test_a_decision_while_the_turn_is_resumed_is_followed(
    monkeypatch: pytest.MonkeyPatch, decided_first: bool
) -> None:
    stored = SqlOpenCalls.open_calls
    async with a_stage() as engine:
        turn, step = await waiting_turn(engine)

        async def open_calls(store: SqlOpenCalls, turn: Turn) -> OpenCalls:
            monkeypatch.setattr(SqlOpenCalls, "open_calls", stored)
            found = None if decided_first else await stored(store, turn)
            await engine.decide(step.call.correlation_id, approve(step))
            return found or await stored(store, turn)

        monkeypatch.setattr(SqlOpenCalls, "open_calls", open_calls)
        await engine.restart()
        events = await engine.seen(turn)

        assert approvals_of(events) == [ApprovalStatus.APPROVED]
        assert steps_of(events) == [ToolStatus.QUEUED, ToolStatus.RUNNING, ToolStatus.SUCCEEDED]
        assert len(engine.worker.executed) == 1
        assert done_of(events).reason is DoneReason.STOP


async def test_after_a_tool_has_changed_only_the_new_question_can_be_approved() -> None:
    catalog = FakeCatalog(DELETE)
    async with FakeEngine(ScriptedModel(ASKS, says("Done.")), tools=catalog) as engine:
        turn, old = await waiting_turn(engine)
        catalog.put(tool("files__delete", description="Deletes the whole disk", approval=ApprovalPolicy.ALWAYS))
        with pytest.raises(ApprovalError, match="changed"):
            await engine.decide(old.call.correlation_id, approve(old))
        with pytest.raises(ApprovalError, match="look at the new question"):
            await engine.decide(old.call.correlation_id, approve(old))
        log = engine.logs.lives[turn.turn_id][-1]
        await wait_until(lambda: len(approvals_of(log.events)) == 2, what="the new question")
        new = await engine.question(turn)
        assert new.details["hash"] != old.details["hash"]
        await engine.decide(new.call.correlation_id, approve(new))

        asked, again = ApprovalStatus.ASKED, ApprovalStatus.ASKED
        assert approvals_of(await engine.seen(turn)) == [asked, again, ApprovalStatus.APPROVED]


@promise("an approval is bound to its arguments, given once, and expires")
async def test_a_decision_that_cannot_be_committed_fails_and_can_be_given_again() -> None:
    async with a_stage() as engine:
        turn, step = await waiting_turn(engine)
        engine.store.refuse["decide"] = StorageUnavailableError("the disk is full")
        with pytest.raises(StorageUnavailableError):
            await engine.decide(step.call.correlation_id, approve(step))
        assert engine.worker.executed == []

        del engine.store.refuse["decide"]
        await engine.decide(step.call.correlation_id, approve(step))
        assert done_of(await engine.seen(turn)).reason is DoneReason.STOP
        assert engine.worker.executed != []


async def test_a_decision_that_the_store_refuses_changes_nothing() -> None:
    async with a_stage() as engine:
        turn, step = await waiting_turn(engine)
        turn_id, asked = engine.store.asked(step.call.correlation_id) or ("", None)
        assert asked is not None
        await engine.store.approvals.close(turn, lambda _: succeeded("elsewhere"))
        assert await engine.pending.decide(turn_id, asked, approve(step)) is None

        assert engine.worker.executed == []
        assert engine.decided == []
