"""Whole turns with a gateway or a search: what is run, stored, shown and sent back."""

from typing import Any

import msgspec

from dialog_engine.chat import events as protocol
from dialog_engine.chat.archive import CallRecord
from dialog_engine.model import (
    ApprovalStep,
    AssistantMessage,
    MessageFinished,
    Reset,
    ToolMessage,
    ToolStatus,
    ToolStep,
    Turn,
    TurnEvent,
)
from dialog_engine.tool_calls.exposure.exposure import Exposure, ExposureMode
from dialog_engine.tool_calls.planning import DEFAULT_LIMITS
from dialog_engine.tool_calls.values import Approve
from plugins_contract.catalog import ApprovalPolicy, ToolEntry
from tests.marks import promise
from tests.support.fakes.engine import FakeEngine, is_step, steps_of
from tests.support.fakes.models import Line, ScriptedModel, asks, says
from tests.support.fakes.worker import FakeCatalog, tool
from tests.support.waiting import wait_until

PATH = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
READ = tool("files__read", PATH, title="Read")
DELETE = tool("files__delete", PATH, approval=ApprovalPolicy.ALWAYS)


def query(operation: str, **params: Any) -> tuple[str, str]:
    arguments = {"resource": "files", "operation": operation, "params": params}
    return "mcp_query", msgspec.json.encode(arguments).decode()


def behind_gateway(model: ScriptedModel, *tools: ToolEntry, **fields: Any) -> FakeEngine:
    return FakeEngine(
        model, tools=FakeCatalog(*(tools or (READ, DELETE))), exposure=Exposure(ExposureMode.GATEWAY), **fields
    )


def shown(events: list[TurnEvent]) -> list[tuple[str, str, str]]:
    """The controls of calls in the words of the protocol: status, tool and server."""
    steps = [protocol.encode(e)[1] for e in events if isinstance(e, ToolStep | ApprovalStep)]
    return [(step["status"], step["toolName"], step["server"]) for step in steps]


async def stored(engine: FakeEngine, turn: Turn) -> list[CallRecord]:
    return [call for record in await engine.store.archive.turn_messages(turn.turn_id) for call in record.calls]


# --- Gateway --------------------------------------------------------------------------------------------------------


@promise("a call through the gateway is that of the tool it means, for users, workers and approvals, in every life")
@promise("one gateway tool can stand for all")
async def test_users_and_workers_see_the_real_tool_and_the_model_its_own_call() -> None:
    model = ScriptedModel(asks(query("read", path="/a")), says("Read."))
    async with behind_gateway(model) as engine:
        turn = await engine.begun("Read!", is_step(ToolStatus.QUEUED))
        events = await engine.seen(turn)

        assert set(shown(events)) >= {("pending", "files__read", "files"), ("succeeded", "files__read", "files")}
        [pending] = [e for e in events if isinstance(e, ToolStep) and e.status is ToolStatus.PENDING]
        assert pending.details == {"arguments": {"path": "/a"}, "title": "Read"}
        message = next(e for e in events if isinstance(e, MessageFinished))
        assert protocol.encode(message)[1]["toolCalls"][0]["toolName"] == "files__read"
        [record] = await stored(engine, turn)
        assert (record.call.name, record.call.tool, record.server) == ("mcp_query", "files__read", "files")
    _, asked, result = model.requests[1].messages
    assert isinstance(asked, AssistantMessage)
    assert (asked.tool_calls[0].name, asked.tool_calls[0].arguments) == query("read", path="/a")
    assert isinstance(result, ToolMessage)
    assert result.name == "mcp_query"


@promise("a call through the gateway is that of the tool it means, for users, workers and approvals, in every life")
async def test_a_call_that_waits_for_approval_is_resumed_after_a_restart() -> None:
    model = ScriptedModel(asks(query("delete", path="/a")), says("Deleted."))
    async with behind_gateway(model) as engine:
        turn = await engine.turns.start("ada", None, "Delete!")
        await engine.question(turn)
        await engine.restart()
        [answer] = await wait_until(
            lambda: [e.events for e in engine.logs.lives[turn.turn_id][-1].events if isinstance(e, Reset)]
        )
        assert shown([*answer]) == [("pending", "files__delete", "files"), ("asked", "files__delete", "files")]
        asked = next(e for e in answer if isinstance(e, ApprovalStep))

        await engine.decide(asked.call.correlation_id, Approve(asked.details["hash"]))

        assert steps_of(await engine.seen(turn), "files__delete")[-1] is ToolStatus.SUCCEEDED


@promise("a call that no worker ran says how long it took, and a refused call of a known tool names its server")
async def test_every_refusal_of_a_known_tool_names_its_server_and_its_title() -> None:
    many = [("files__read", '{"path": "/a"}')] * (DEFAULT_LIMITS.per_reply + 1)
    model = ScriptedModel(asks(*many), asks(("files__read", "{}"), ("files__nope", "{}")), says("Enough."))
    async with FakeEngine(model, tools=FakeCatalog(READ)) as engine:
        events = await engine.turn("Read!")

    ended = [event for event in events if isinstance(event, ToolStep) and "error" in event.details]
    assert [(event.details["error"]["code"], event.server) for event in ended] == [
        ("OVERLOADED", "files"),
        ("INVALID_ARGUMENTS", "files"),
        ("TOOL_NOT_FOUND", ""),
    ]
    begun = [event for event in events if isinstance(event, ToolStep) and event.status is ToolStatus.PENDING]
    assert {event.details.get("title") for event in begun if event.server} == {READ.title}


async def test_a_history_from_one_exposure_works_with_another() -> None:
    """A setting was changed, or the catalog has grown, in the middle of a session."""
    model = ScriptedModel(asks(query("read", path="/a"), ("files__read", '{"path": "/b"}')), says("Read."))
    async with FakeEngine(model, tools=FakeCatalog(READ), exposure=Exposure(ExposureMode.DIRECT)) as engine:
        events = await engine.turn("Read!")

    assert [*map(str, steps_of(events, "files__read"))].count("succeeded") == 2


# --- Search ---------------------------------------------------------------------------------------------------------


FIVE_HUNDRED = tuple(
    tool(f"server{n % 20}__do_{n}", PATH, description=f"Does the thing number {n}, which is one of very many things.")
    for n in range(500)
)


def offered(model: ScriptedModel) -> list[list[str]]:
    return [[entry.name for entry in request.tools] for request in model.requests]


@promise("a catalog that outgrows the budget is searched, and what was found stays on offer")
@promise("tools are searched when the catalog outgrows its budget")
async def test_with_five_hundred_tools_found_ones_are_offered_for_the_whole_session() -> None:
    search = asks(("tool_search", '{"query": "thing number 321", "limit": 2}'))
    call = asks(("server1__do_321", '{"path": "/a"}'))
    model = ScriptedModel(search, call, says("Done."), call, says("Done again."))
    async with FakeEngine(model, tools=FakeCatalog(*FIVE_HUNDRED), exposure=Exposure()) as engine:
        turn = await engine.turns.start("ada", None, "Do 321!")
        events = await engine.seen(turn) + await engine.turn("Again!", turn.session_id, subject="ada")

    assert [*map(str, steps_of(events, "server1__do_321"))].count("succeeded") == 2
    first, *later = offered(model)
    assert first == ["tool_search"]
    assert later[0][:2] == ["tool_search", "server1__do_321"]
    assert later == [later[0]] * 4
    assert len(later[0]) == 3


@promise("a catalog that outgrows the budget is searched, and what was found stays on offer")
async def test_a_tool_that_was_not_offered_runs_and_is_offered_from_then_on() -> None:
    call: list[Line] = asks(("server2__do_42", '{"path": "/a"}'))
    model = ScriptedModel(call, says("Done."))
    async with FakeEngine(model, tools=FakeCatalog(*FIVE_HUNDRED), exposure=Exposure()) as engine:
        events = await engine.turn("Do 42!")

    assert steps_of(events, "server2__do_42")[-1] is ToolStatus.SUCCEEDED
    assert offered(model) == [["tool_search"], ["tool_search", "server2__do_42"]]
