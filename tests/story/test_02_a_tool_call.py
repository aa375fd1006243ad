"""A tool call: the model asks for it, the user sees every step, and the model continues with the result."""

from dialog_engine.model import AssistantMessage, MessageFinished, RoundComplete, ToolMessage, ToolStatus, ToolStep
from plugins_contract.outcomes import ToolOutcome
from tests.marks import promise
from tests.support.fakes.engine import FakeEngine, steps_of
from tests.support.fakes.models import ScriptedModel, asks, says
from tests.support.fakes.worker import Execution, FakeCatalog, FakeWorker, succeeded, tool

CATALOG = FakeCatalog(tool("time__now", title="What time is it?"))


async def clock(execution: Execution) -> ToolOutcome:
    execution.progress(1, 2, "looking for the clock")
    return succeeded(f"It is noon in {execution.arguments['place']}.")


async def test_a_call_goes_from_pending_to_queued_to_running_to_succeeded() -> None:
    model = ScriptedModel(asks(("time__now", '{"place": "Rome"}'), text="Let me see."), says("Noon."))
    async with FakeEngine(model, tools=CATALOG, worker=FakeWorker({"time__now": clock})) as engine:
        events = await engine.turn("What time is it in Rome?")

    assert [str(step) for step in steps_of(events)] == ["pending", "queued", "running", "progress", "succeeded"]
    pending, *_, last = [event for event in events if isinstance(event, ToolStep)]
    assert pending.details == {"arguments": {"place": "Rome"}, "title": "What time is it?"}
    assert last.details["result"]["text"] == "It is noon in Rome."


@promise("message, calls and outbox rows are committed in one transaction")
async def test_the_message_with_the_call_is_stored_before_the_call_begins() -> None:
    model = ScriptedModel(asks(("time__now", '{"place": "Rome"}'), text="Let me see."), says("Noon."))
    async with FakeEngine(model, tools=CATALOG, worker=FakeWorker({"time__now": clock})) as engine:
        events = await engine.turn("What time is it in Rome?")

    kinds = [type(event) for event in events]
    assert kinds.index(MessageFinished) < kinds.index(ToolStep) < kinds.index(RoundComplete)
    [asked, answer] = [event.message for event in events if isinstance(event, MessageFinished)]
    assert asked.content == "Let me see."
    assert [call.name for call in asked.tool_calls] == ["time__now"]
    assert answer == AssistantMessage("Noon.")


async def test_the_model_gets_the_result_directly_behind_its_call() -> None:
    model = ScriptedModel(asks(("time__now", '{"place": "Rome"}')), says("Noon."))
    async with FakeEngine(model, tools=CATALOG, worker=FakeWorker({"time__now": clock})) as engine:
        await engine.turn("What time is it in Rome?")

    _, asked, result = model.requests[1].messages
    assert isinstance(asked, AssistantMessage)
    assert result == ToolMessage("call_1", "time__now", "It is noon in Rome.")


async def test_a_call_has_a_correlation_id_beside_the_id_of_the_provider() -> None:
    model = ScriptedModel(asks(("time__now", '{"place": "Rome"}')), says("Noon."))
    worker = FakeWorker({"time__now": clock})
    async with FakeEngine(model, tools=CATALOG, worker=worker) as engine:
        events = await engine.turn("What time is it in Rome?")

    ids = {(event.call.tool_call_id, event.call.correlation_id) for event in events if isinstance(event, ToolStep)}
    assert ids == {("call_1", worker.executed[0])}
    assert steps_of(events)[-1] is ToolStatus.SUCCEEDED
