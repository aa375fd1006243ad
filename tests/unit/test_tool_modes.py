"""Tool modes: function calling where it works, and tags where the provider rejects tools."""

import logging
from dataclasses import replace

import pytest

from dialog_engine.errors import LLMRequestError, LLMToolsRejectedError
from dialog_engine.llm.error_classification import ErrorClassifier
from dialog_engine.llm.routing import ToolMode, in_tool_mode, in_tool_modes
from dialog_engine.model import ChatEvent, ChatRequest, Choice, TextDelta, Turn, UserMessage
from dialog_engine.tool_calls.ports import OpenChat
from tests.marks import promise
from tests.support.fakes.engine import text_of
from tests.support.fakes.models import Line, ScriptedModel, asks, says
from tests.support.tags import TOOLS, calls_of

REQUEST = ChatRequest((UserMessage("Hi"),), Turn("turn", "session", "subject"), TOOLS)
REJECTED = LLMToolsRejectedError("this model does not support tools")
BLOCK = "<tool_use><name>now</name></tool_use>"


def mode(llm: OpenChat, tool_mode: ToolMode = "auto") -> OpenChat:
    return in_tool_mode(llm, tool_mode, stop=True, model="tiny")


async def ask(llm: OpenChat, request: ChatRequest = REQUEST) -> list[ChatEvent]:
    return [event async for event in await llm(request)]


@pytest.mark.parametrize("tool_mode", ["auto", "native"])
async def test_where_function_calling_works_nothing_is_different(tool_mode: ToolMode) -> None:
    model = ScriptedModel(asks(("now", "{}"), text=BLOCK))
    events = await ask(mode(model, tool_mode))
    assert model.requests == [REQUEST]
    assert text_of(events) == BLOCK
    assert len(calls_of(events)) == 1


@pytest.mark.parametrize(
    ("usual", "asked_for", "declared"),
    [
        ("native", "", True),
        ("native", "tool_use", False),
        ("function_calls", "native", True),
        ("tool_use", "", False),
        ("native", "of a later release", True),
        ("tool_use", "of a later release", False),
    ],
)
async def test_the_mode_of_the_turn_overrides_the_usual_one(usual: ToolMode, asked_for: str, declared: bool) -> None:
    model = ScriptedModel(says("Hello"))
    turn = Turn("turn", "session", "subject", choice=Choice(tool_mode=asked_for))
    await ask(in_tool_modes(model, usual, stop=True, model="tiny"), replace(REQUEST, turn=turn))
    assert bool(model.requests[0].tools) == declared


@promise("TOOL_MODE=auto falls back when the provider rejects tools")
async def test_rejected_tools_are_described_in_the_prompt_from_then_on_and_it_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = ScriptedModel([REJECTED], says(BLOCK), says("Hello"))
    llm = mode(model)
    with caplog.at_level(logging.WARNING):
        assert [call.name for call in calls_of(await ask(llm))] == ["now"]
        assert text_of(await ask(llm)) == "Hello"
    assert [bool(request.tools) for request in model.requests] == [True, False, False]
    assert len(caplog.records) == 1
    assert "model tiny rejects tools" in caplog.text


@pytest.mark.parametrize(
    ("reply", "tool_mode", "request_"),
    [
        ([REJECTED], "native", REQUEST),
        ([TextDelta("Hel"), REJECTED], "auto", REQUEST),
        ([REJECTED], "auto", replace(REQUEST, tools=())),
    ],
    ids=["native mode", "text has come", "a request without tools"],
)
async def test_nothing_is_asked_again(reply: list[Line], tool_mode: ToolMode, request_: ChatRequest) -> None:
    model = ScriptedModel(reply)
    with pytest.raises(LLMToolsRejectedError):
        await ask(mode(model, tool_mode), request_)
    assert len(model.requests) == 1


async def test_a_request_that_fails_in_both_modes_does_not_change_the_mode() -> None:
    model = ScriptedModel([REJECTED], [LLMRequestError("not in your region")], asks(("now", "{}")))
    llm = mode(model)
    with pytest.raises(LLMRequestError, match="region"):
        await ask(llm)
    assert len(calls_of(await ask(llm))) == 1
    assert [bool(request.tools) for request in model.requests] == [True, False, True]


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (400, "registry.ollama.ai/library/gemma:2b does not support tools"),
        (400, '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'),
        (404, "No endpoints found that support tool use. To learn more about provider routing, visit: https://…"),
        (500, "tools param requires --jinja flag"),
        (400, "`tool calling` is not supported with this model"),
        (400, "Function calling is not enabled for models/gemma-3-27b-it"),
        (400, "deepseek-reasoner does not support Function Calling"),
        (400, "tools is not supported in this model. For a list of supported models, refer to …"),
        (400, "Unrecognized request argument supplied: tools"),
        (400, "This model doesn't support tool use in streaming mode."),
        (422, "[{'type': 'extra_forbidden', 'loc': ['body', 'tools'], 'msg': 'Extra inputs are not permitted'}]"),
        (400, "Unknown parameter: 'tools'."),
        (400, "`functions` and `function_call` are not supported"),
        (400, "tool_use is not supported for this model"),
        (400, "This model does not have tool-calling capabilities"),
        (400, "model lacks support for tools"),
        (400, "tools cannot be used with this model"),
        (400, "Tool calling is only supported by the following models: a, b"),
    ],
)
def test_errors_about_tools_are_recognised(status: int, words: str) -> None:
    error = ErrorClassifier().from_response(status, {"error": {"message": words}}, {})
    assert isinstance(error, LLMToolsRejectedError)
    assert "TOOL_MODE=auto" in str(error)
    assert words in str(error)
    assert isinstance(ErrorClassifier().from_stream({"code": status, "message": words}), LLMToolsRejectedError)


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (400, "Invalid schema for function 'x': 'oneOf' is not permitted."),
        (400, "Unknown parameter: 'tools[0].function.strict'."),
        (400, "Invalid 'tools[0].function.name': string does not match pattern."),
        (400, "Invalid 'tools': array too long. Expected an array with maximum length 128, but got 200."),
        (400, "An assistant message with 'tool_calls' must be followed by tool messages responding to each call."),
        (400, "messages with role 'tool' must be a response to a preceding message with 'tool_calls'."),
        (400, "Images are not supported in tool messages"),
        (400, "Parallel tool calls are not supported"),
        (400, "This model's maximum context length is 8192 tokens (7000 in the messages, 2000 in the functions)."),
        (400, "Unsupported parameter: 'temperature' is not supported with this model."),
        (404, "The model `x` does not exist or you do not have access to it."),
        (400, "The tool call ids are too long and cannot be used"),
        (403, "Tools are not enabled for your account"),
        (429, "tool use is not available: too many requests"),
        (500, "Failed to parse tool call arguments as JSON"),
    ],
)
def test_other_errors_are_not_taken_for_errors_about_tools(status: int, words: str) -> None:
    assert not isinstance(
        ErrorClassifier().from_response(status, {"error": {"message": words}}, {}), LLMToolsRejectedError
    )
