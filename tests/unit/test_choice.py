"""Which tools a message may use: the choice of its sender, at the engine and in a worker."""

import asyncio
import time

import msgspec
import pytest

from dialog_engine.model import ApprovalStep, Choice, ToolMessage, ToolStatus
from dialog_engine.tool_calls.exposure.exposure import Exposure, ExposureMode, OfferedTools
from dialog_engine.tool_calls.exposure.quarantine import Quarantine
from plugins_contract.catalog import ApprovalPolicy
from plugins_contract.choice import MAX_ENTRIES, MAX_ENTRY_CHARS, ToolChoice, decode_choice, encode_choice
from plugins_contract.errors import ErrorCode
from plugins_contract.messages import decode_request, encode_request
from tests.marks import promise
from tests.support.fakes.engine import FakeEngine, is_step
from tests.support.fakes.models import ScriptedModel, asks, says
from tests.support.fakes.worker import FakeWorker, succeeded
from tests.support.fakes.worker import gives as gives_tool
from tests.support.handling import DONE, Bench, delivery, gives
from tests.unit.test_rights import NOW, READ, WRITE, Directory

ONLY_READ = ToolChoice(servers=("files",), deny=("*/write",))


@pytest.mark.parametrize(
    ("choice", "allowed"),
    [
        (ToolChoice(), ["files/read", "files/write", "time/now"]),
        (ToolChoice(servers=("files",)), ["files/read", "files/write"]),
        (ToolChoice(servers=("f*s", "other")), ["files/read", "files/write"]),
        (ToolChoice(servers=()), []),
        (ToolChoice(allow=()), []),
        (ToolChoice(allow=("files/read", "time/*")), ["files/read", "time/now"]),
        (ToolChoice(servers=("time",), allow=("files/*",)), []),
        (ToolChoice(deny=("*/*r*",)), ["time/now"]),
        (ToolChoice(allow=("*/*",), deny=("files/*",)), ["time/now"]),
        (ToolChoice(allow=("files/rea", "files/read*d", "*s/*w*t*e")), ["files/write"]),
    ],
)
def test_a_choice_is_a_part_of_the_tools(choice: ToolChoice, allowed: list[str]) -> None:
    tools = [tuple(each.split("/")) for each in ("files/read", "files/write", "time/now")]
    assert ["/".join(each) for each in tools if choice.allows(*each)] == allowed
    assert decode_choice(encode_choice(choice)) == choice
    for server in {server for server, name in tools if choice.allows(server, name)}:
        assert choice.sees(server)


def test_the_longest_choice_takes_no_noticeable_time() -> None:
    pattern = "*a" * (MAX_ENTRY_CHARS // 2 - 2) + "/*b"
    choice = ToolChoice(servers=(pattern,) * MAX_ENTRIES, allow=(pattern,) * MAX_ENTRIES)
    started = time.thread_time()
    assert not ToolChoice(deny=(pattern,) * MAX_ENTRIES, allow=(pattern,) * MAX_ENTRIES).allows("a" * 200, "a" * 200)
    assert not choice.allows("a" * 200, "x")
    assert time.thread_time() - started < 0.05


def engine(model: ScriptedModel, mode: ExposureMode, worker: FakeWorker | None = None) -> FakeEngine:
    asked = msgspec.structs.replace(WRITE, approval=ApprovalPolicy.ALWAYS)
    tools = OfferedTools(Directory(READ, asked, NOW), Quarantine())
    return FakeEngine(model, tools=tools, exposure=Exposure(mode), worker=worker)


@promise("a tool that a message has not chosen is neither offered nor found nor requested nor run")
@pytest.mark.parametrize(
    ("mode", "call"),
    [
        (ExposureMode.DIRECT, ("files__write", "{}")),
        (ExposureMode.DIRECT, ("now", "{}")),
        (ExposureMode.GATEWAY, ("mcp_query", '{"resource": "files", "operation": "write", "params": {}}')),
        (ExposureMode.GATEWAY, ("mcp_query", '{"resource": "time", "operation": "now", "params": {}}')),
        (ExposureMode.SEARCH, ("tool_search", '{"query": "write files, or what time it is now"}')),
    ],
)
async def test_what_a_message_has_not_chosen_is_not_there_for_its_model(
    mode: ExposureMode, call: tuple[str, str]
) -> None:
    model = ScriptedModel(asks(call, ("files__write", "{}"), ("files__read", "{}")), says("Done."))
    async with engine(model, mode) as running:
        turn = await running.turns.start("ann", None, "Try", choice=Choice(tools=ONLY_READ))
        events = await running.seen(turn)
        assert len(running.worker.executed) == 1
        assert not [each for each in events if isinstance(each, ApprovalStep)], "nobody is asked about such a tool"
    for request in model.requests:
        offered = msgspec.json.encode([(each.name, each.description) for each in request.tools]).decode()
        results = [each.content for each in request.messages if isinstance(each, ToolMessage)]
        for text in (offered, *results[:1]):
            assert "time__now" not in text
            assert "write" not in text.replace("'write'", "").replace("'files__write'", "")


@promise("a tool that a message has not chosen is neither offered nor found nor requested nor run")
async def test_a_turn_that_is_resumed_has_the_choice_that_it_began_with() -> None:
    model, finish = (
        ScriptedModel(asks(("files__read", "{}")), asks(("time__now", "{}")), says("Done.")),
        asyncio.Event(),
    )
    async with engine(
        model, ExposureMode.DIRECT, FakeWorker({"files__read": gives_tool(succeeded("x"), finish)})
    ) as it:
        turn = await it.turns.start("ann", None, "Try", choice=Choice(tools=ONLY_READ))
        await it.until(turn, is_step(ToolStatus.RUNNING, "files__read"))
        assert await it.restart() == 1
        finish.set()
        await it.seen(turn)
        assert len(it.worker.executed) == 1
    assert [[each.name for each in request.tools] for request in model.requests] == [["files__read"]] * 3


# --- In a worker ---


@promise("a tool that a message has not chosen is neither offered nor found nor requested nor run")
async def test_a_worker_does_not_run_what_the_choice_in_the_request_excludes() -> None:
    for choice, runs in ((ToolChoice(deny=("*/add",)), 0), (ToolChoice(servers=("demo",)), 1), (msgspec.UNSET, 1)):
        bench = Bench()
        await bench.handle(gives(DONE), choice=choice)
        assert len(bench.server.calls) == runs
        if not runs:
            assert bench.outcome.error
            assert bench.outcome.error.code is ErrorCode.PERMISSION_DENIED
            assert "it was not run" in bench.outcome.error.message


def test_a_request_without_a_choice_is_the_same_bytes_as_before_and_one_with_it_keeps_it() -> None:
    plain = delivery().request
    assert b"choice" not in encode_request(plain)
    chosen = msgspec.structs.replace(plain, choice=ONLY_READ)
    assert decode_request(encode_request(chosen)) == chosen
