"""A tool that fails gives the model a result like any other. It does not end the turn."""

import pytest

from dialog_engine.model import DoneReason, ToolMessage, ToolStatus, ToolStep
from tests.marks import promise
from tests.support.fakes.engine import FakeEngine, done_of, steps_of, text_of
from tests.support.fakes.models import ScriptedModel, asks, says
from tests.support.fakes.worker import FakeCatalog, FakeWorker, failed, gives, tool


@promise("a tool's failure goes to the model and the turn goes on")
async def test_a_failure_is_a_result_for_the_model_and_the_turn_continues() -> None:
    model = ScriptedModel(asks(("files__read", '{"name": "a"}')), says("I cannot read it."))
    worker = FakeWorker({"files__read": gives(failed("no such file"))})
    async with FakeEngine(model, tools=FakeCatalog(tool("files__read")), worker=worker) as engine:
        events = await engine.turn("Read a.")

    assert steps_of(events)[-1] is ToolStatus.FAILED
    assert model.requests[1].messages[-1] == ToolMessage(
        "call_1", "files__read", "Error TOOL_EXECUTION_FAILED: no such file", failed=True
    )
    assert text_of(events) == "I cannot read it."
    assert done_of(events).reason is DoneReason.STOP


@promise("arguments that do not fit are not sent, and the model gets an error")
@pytest.mark.parametrize(
    ("name", "arguments", "code", "words"),
    [
        ("files__raed", "{}", "TOOL_NOT_FOUND", "there is no tool 'files__raed'"),
        ("files__read", '{"name": 1', "INVALID_ARGUMENTS", "not valid JSON"),
        ("files__read", '{"name": 1}', "INVALID_ARGUMENTS", "name: 1 is not of type 'string'"),
    ],
)
async def test_a_call_that_cannot_run_is_answered_at_once_with_an_error(
    name: str, arguments: str, code: str, words: str
) -> None:
    schema = {"type": "object", "properties": {"name": {"type": "string"}}}
    model = ScriptedModel(asks((name, arguments)), says("Sorry."))
    worker = FakeWorker()
    async with FakeEngine(model, tools=FakeCatalog(tool("files__read", schema)), worker=worker) as engine:
        events = await engine.turn("Read a.")

    assert worker.executed == []
    assert steps_of(events) == [ToolStatus.PENDING, ToolStatus.FAILED]
    [_, last] = [event for event in events if isinstance(event, ToolStep)]
    assert last.details["error"]["code"] == code
    assert words in last.details["error"]["message"]
    assert words in model.requests[1].messages[-1].content


async def test_an_invalid_call_does_not_keep_the_others_from_running() -> None:
    model = ScriptedModel(asks(("files__raed", ""), ("files__read", "")), says("Half of it."))
    async with FakeEngine(model, tools=FakeCatalog(tool("files__read"))) as engine:
        events = await engine.turn("Read a.")

    assert steps_of(events, "files__raed")[-1] is ToolStatus.FAILED
    assert steps_of(events, "files__read")[-1] is ToolStatus.SUCCEEDED
