"""A model without function calling writes its calls as tags in the text. Everything else works as before."""

from dialog_engine.model import AssistantMessage, DoneReason, SystemMessage, ToolStatus, TurnStarted, UserMessage
from dialog_engine.tool_calls.prompt_mode.modes import in_prompt_mode
from dialog_engine.tool_calls.prompt_mode.tool_use import TOOL_USE
from tests.marks import promise
from tests.support.fakes.engine import FakeEngine, done_of, steps_of, text_of
from tests.support.fakes.models import ScriptedModel, asks, says
from tests.support.fakes.worker import FakeCatalog, FakeWorker, gives, succeeded, tool

CALL = '<tool_use>\n<name>files__read</name>\n<arguments>{"name": "a"}</arguments>\n</tool_use>'


async def test_a_call_in_the_text_runs_like_any_other_and_the_user_sees_no_tag() -> None:
    model = ScriptedModel(says(f"Let me look.\n{CALL}"), says("It says hello."))
    worker = FakeWorker({"files__read": gives(succeeded("hello"))})
    async with FakeEngine(
        in_prompt_mode(model, TOOL_USE), tools=FakeCatalog(tool("files__read")), worker=worker
    ) as engine:
        events = await engine.turn("Read a.")

    assert steps_of(events)[-1] is ToolStatus.SUCCEEDED
    assert text_of(events) == "Let me look.\nIt says hello."
    assert done_of(events).reason is DoneReason.STOP
    first, second = model.requests
    assert isinstance(system := first.messages[0], SystemMessage)
    assert "<name>files__read</name>" in system.content
    assert second.messages[-2:] == (
        AssistantMessage(f"Let me look.\n{CALL}"),
        UserMessage("<tool_use_result>\n<name>files__read</name>\n<result>hello</result>\n</tool_use_result>"),
    )


@promise("prompt mode: results in the dialect's own form, parse errors go to the model")
async def test_a_call_that_cannot_be_parsed_is_answered_with_an_error() -> None:
    model = ScriptedModel(says(CALL.replace("}", "")), says(CALL.replace("read", "raed")), says("I give up."))
    worker = FakeWorker()
    async with FakeEngine(
        in_prompt_mode(model, TOOL_USE), tools=FakeCatalog(tool("files__read")), worker=worker
    ) as engine:
        events = await engine.turn("Read a.")

    assert worker.executed == []
    results = [request.messages[-1].content for request in model.requests[1:]]
    assert "Error INVALID_ARGUMENTS: the arguments are not valid JSON" in results[0]
    assert "Error TOOL_NOT_FOUND: there is no tool 'files__raed'" in results[1]
    assert text_of(events) == "I give up."


@promise("prompt mode: a result that the model makes up is never shown, nor what it says of it")
async def test_a_fabricated_result_is_not_shown_and_the_model_makes_the_call() -> None:
    fabricated = "<tool_use_result>\n<name>files__read</name>\n<result>42</result>\n</tool_use_result>\nIt says 42."
    model = ScriptedModel(says(f"Let me look.\n{fabricated}"), says(CALL), says("It says hello."))
    worker = FakeWorker({"files__read": gives(succeeded("hello"))})
    async with FakeEngine(
        in_prompt_mode(model, TOOL_USE), tools=FakeCatalog(tool("files__read")), worker=worker
    ) as engine:
        events = await engine.turn("Read a.")

    assert text_of(events) == "Let me look.\nIt says hello."
    assert "nothing was run" in model.requests[1].messages[-1].content
    assert len(worker.executed) == 1


@promise("a session may change between function calling and prompt mode")
async def test_a_session_can_continue_in_another_tool_mode() -> None:
    """Calls are stored, not tags, so that each model reads them in its own form."""
    tags, native = ScriptedModel(says(CALL), says("Hello.")), ScriptedModel(asks(("files__read", "{}")), says("Again."))
    catalog = FakeCatalog(tool("files__read"))
    async with FakeEngine(in_prompt_mode(tags, TOOL_USE), tools=catalog) as engine:
        started, *_ = await engine.turn("Read a.")
        assert isinstance(started, TurnStarted)
    async with FakeEngine(native, tools=catalog, store=engine.store) as engine:
        assert text_of(await engine.turn("And again.", started.session_id)) == "Again."

    stored = native.requests[0].messages[1]
    assert isinstance(stored, AssistantMessage)
    assert (stored.content, stored.tool_calls[0].name) == ("", "files__read")
