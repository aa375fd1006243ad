"""A tool that the provider refuses is left out and reported, and the request continues without it."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace

import msgspec
import pytest

from dialog_engine.errors import LLMRateLimitedError, LLMRequestError
from dialog_engine.llm.routing import guarded
from dialog_engine.model import ChatEvent, ChatRequest, Message, TextDelta, ToolMessage, Turn, UserMessage
from dialog_engine.tool_calls.arguments import validate
from dialog_engine.tool_calls.bounded_validation import validating
from dialog_engine.tool_calls.exposure import search
from dialog_engine.tool_calls.exposure.exposure import OfferedTools
from dialog_engine.tool_calls.exposure.quarantine import MAX_REFUSED, Quarantine, refused_tool
from dialog_engine.tool_calls.ports import OpenChat
from plugins_contract.catalog import ToolEntry
from tests.marks import promise
from tests.support.fakes.models import Line, ScriptedModel, opened, says
from tests.support.fakes.worker import FakeDirectory, tool

TOOLS = (tool("a__good"), tool("a__bad", {"type": "object", "properties": {"x": {"type": "array"}}}), tool("b__fine"))
GOOD, BAD, FINE = TOOLS
REQUEST = ChatRequest((UserMessage("Hi"),), Turn("turn", "session", "subject"), TOOLS)


@pytest.mark.parametrize(
    ("words", "refused"),
    [
        ("Invalid schema for function 'a__bad': In context=('properties', 'x'), array schema missing items.", BAD),
        ('Invalid JSON schema for tool "b__fine"', FINE),
        ("tools.1.custom.input_schema: JSON schema is invalid. It must match JSON Schema draft 2020-12", BAD),
        ("Invalid 'tools[2].function.name': string does not match pattern", FINE),
        ("GenerateContentRequest.tools[0].function_declarations[1].parameters.properties: should be non-empty", BAD),
        ("[{'loc': ['body', 'tools', 1, 'function', 'parameters'], 'msg': 'Input should be a dictionary'}]", BAD),
        ("The tool 'a__gone' has a bad schema", None),
        ("tools[7].function.parameters is invalid", None),
        ("this model does not support tools", None),
        ("the word 'a__bad' is not allowed in messages", None),
        ("maximum context length is 8192 tokens", None),
    ],
)
def test_the_tool_is_found_in_the_error_of_the_provider(words: str, refused: ToolEntry | None) -> None:
    assert refused_tool(words, TOOLS) == refused


def complaint(name: str) -> list[Line]:
    return [LLMRequestError(f"the model's provider refuses (HTTP 400): Invalid schema for function '{name}'")]


async def ask(quarantine: Quarantine, model: ScriptedModel, request: ChatRequest = REQUEST) -> list[ChatEvent]:
    return await answered(guarded(model, "one", quarantine), request)


async def answered(llm: OpenChat, request: ChatRequest = REQUEST) -> list[ChatEvent]:
    async with aclosing(await llm(request)) as events:
        return [event async for event in events]


def offered(model: ScriptedModel) -> list[list[str]]:
    return [[entry.name for entry in request.tools] for request in model.requests]


@promise("a tool with an invalid schema is left out, and the reason reported")
async def test_the_request_is_repeated_without_the_tool_which_is_not_offered_again() -> None:
    noted: list[tuple[ToolEntry, str]] = []
    quarantine = Quarantine(lambda tool, model: noted.append((tool, model)))
    model = ScriptedModel(complaint("a__bad"), says("Hello"), says("Hello"))
    llm = guarded(model, "one", quarantine)

    assert (await answered(llm))[0] == TextDelta("Hello")
    await answered(llm)

    assert offered(model) == [["a__good", "a__bad", "b__fine"], ["a__good", "b__fine"], ["a__good", "b__fine"]]
    assert noted == [(BAD, "one")]
    assert "Invalid schema for function 'a__bad'" in (quarantine.reason(BAD, "one") or "")


@promise("a tool with an invalid schema is left out, and the reason reported")
async def test_a_refused_tool_is_removed_from_search_answers_for_that_model_only() -> None:
    answer = search.FoundTools(tuple(search.Found(each.name, "") for each in (BAD, FINE)))
    content = msgspec.json.encode(answer).decode() + "\n\n(a note)"
    result = ToolMessage("c", search.NAME, content)
    only = ToolMessage("d", search.NAME, msgspec.json.encode(replace_tools(answer, BAD.name)).decode())
    other = ToolMessage("e", "a__good", content)
    request = replace(REQUEST, messages=(*REQUEST.messages, result, only, other))
    quarantine = Quarantine()
    fussy, easy = ScriptedModel(complaint("a__bad"), says("Hello"), says("Hello")), ScriptedModel(says("Hello"))
    one, another = guarded(fussy, "one", quarantine), guarded(easy, "another", quarantine)

    for llm in (one, one, another):
        await answered(llm, request)

    assert easy.requests[0].messages == fussy.requests[0].messages == request.messages
    for asked in fussy.requests[1:]:
        *_, of_two, of_one, of_another_tool = asked.messages
        assert [*search.names_in(content_of(of_two))] == ["b__fine"]
        assert content_of(of_two).endswith("\n\n(a note)")
        assert [*search.names_in(content_of(of_one))] == []
        assert "cannot be used" in content_of(of_one)
        assert of_another_tool == other


def replace_tools(answer: search.FoundTools, *names: str) -> search.FoundTools:
    return search.FoundTools(tuple(tool for tool in answer.tools if tool.name in names))


def content_of(message: Message) -> str:
    assert isinstance(message, ToolMessage)
    return message.content


async def test_a_tool_that_has_changed_is_offered_again() -> None:
    quarantine = Quarantine()
    model = ScriptedModel(complaint("a__bad"), says("Hello"), says("Hello"))
    llm = guarded(model, "one", quarantine)
    await answered(llm)
    await answered(llm, replace(REQUEST, tools=(GOOD, tool("a__bad", {"type": "object"}))))

    assert offered(model)[-1] == ["a__good", "a__bad"]


async def test_a_tool_is_kept_if_doing_without_it_does_not_help() -> None:
    quarantine = Quarantine()
    with pytest.raises(LLMRequestError, match="too long"):
        await ask(quarantine, ScriptedModel(complaint("a__bad"), [LLMRequestError("the prompt is too long")]))

    assert quarantine.reason(BAD, "one") is None


@pytest.mark.parametrize(
    "reply",
    [
        [TextDelta("Hel"), LLMRequestError("Invalid schema for function 'a__bad'")],
        [LLMRateLimitedError("too many requests for function 'a__bad'")],
        [LLMRequestError("the prompt is too long")],
    ],
    ids=["after text", "another kind", "names none"],
)
async def test_every_other_failure_is_the_failure_of_the_request(reply: Sequence[Line]) -> None:
    model = ScriptedModel(reply, says("never"))
    with pytest.raises((LLMRequestError, LLMRateLimitedError)):
        await ask(Quarantine(), model)
    assert len(model.requests) == 1


async def test_the_number_of_refused_tools_per_request_is_bounded() -> None:
    many = tuple(tool(f"a__t{n}") for n in range(MAX_REFUSED + 2))
    asked = 0

    @opened
    async def fussy(request: ChatRequest) -> AsyncGenerator[ChatEvent]:
        nonlocal asked
        asked += 1
        raise LLMRequestError(f"Invalid schema for function '{request.tools[0].name}'")
        yield

    with pytest.raises(LLMRequestError):
        async for _ in await guarded(fussy, "one", Quarantine())(replace(REQUEST, tools=many)):
            pass
    assert asked == MAX_REFUSED + 1


@promise("a tool with an invalid schema is left out, and the reason reported")
async def test_the_directory_shows_refused_tools_with_model_and_reason() -> None:
    quarantine = Quarantine()
    directory = OfferedTools(FakeDirectory(*TOOLS), quarantine)
    assert directory.tools() == TOOLS

    await ask(quarantine, ScriptedModel(complaint("a__bad"), says("Hello")))

    view, _ = directory.servers
    assert [entry.name for entry in view.catalog.tools] == ["a__good"]
    [refused] = view.refused
    assert (refused.tool, refused.model) == ("bad", "one")
    assert "Invalid schema for function 'a__bad'" in refused.reason
    assert directory.tools() == (GOOD, FINE)
    assert directory.find("a__bad") == BAD


async def test_a_tool_that_one_model_accepts_stays_in_the_catalog() -> None:
    quarantine = Quarantine()
    directory = OfferedTools(FakeDirectory(*TOOLS), quarantine)
    guarded(ScriptedModel(), "other", quarantine)

    await ask(quarantine, ScriptedModel(complaint("a__bad"), says("Hello")))

    view, _ = directory.servers
    assert [entry.name for entry in view.catalog.tools] == ["a__good", "a__bad"]
    assert [(refused.tool, refused.model) for refused in view.refused] == [("bad", "one")]
    assert directory.tools() == TOOLS


async def test_where_no_model_is_asked_nothing_is_refused() -> None:
    assert OfferedTools(FakeDirectory(*TOOLS), Quarantine()).tools() == TOOLS


async def test_a_tool_whose_schema_takes_too_long_is_listed_and_no_longer_offered_until_it_changes() -> None:
    doubling = {
        "type": "object",
        "$ref": "#/$defs/d0",
        "$defs": {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(30)} | {"d30": {}},
    }
    slow, other = tool("slow__one", doubling), tool("slow__two")
    offered_tools = OfferedTools(FakeDirectory(slow, other), Quarantine())
    assert offered_tools.tools() == (slow, other)

    assert "takes too long" in (await validating(validate, slow, {}, 0.05) or "")
    assert offered_tools.tools() == (other,)
    [view] = [view for view in offered_tools.servers if view.catalog.quarantined]
    assert [(each.tool, each.reason) for each in view.catalog.quarantined] == [
        (slow.tool, "the input schema takes too long to apply")
    ]
    assert view.catalog.tools == (other,)

    mended = tool("slow__one")
    assert OfferedTools(FakeDirectory(mended), Quarantine()).tools() == (mended,)
