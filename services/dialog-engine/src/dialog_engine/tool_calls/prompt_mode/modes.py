"""Calls as tags in the text, for models without function calling.

The tools are described in the system message. The events that come out, and the stored history, are those of function
calling, so that a session can change its mode between two requests.
"""

from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import replace

import msgspec

from callstream_runtime.long_texts import reading
from dialog_engine.errors import LLMRequestError
from dialog_engine.model import (
    AssistantMessage,
    ChatEvent,
    ChatRequest,
    Message,
    SystemMessage,
    TextDelta,
    ToolMessage,
    UserMessage,
)
from dialog_engine.sideband import ModelStream
from dialog_engine.tool_calls.ports import OpenChat
from dialog_engine.tool_calls.prompt_mode.dialect import Dialect
from dialog_engine.tool_calls.prompt_mode.tagged_reply import TaggedReply
from plugins_contract.catalog import ToolEntry
from plugins_contract.messages import new_id

_SLOW = 4
"""How many times as long as another text one takes in which everything may be a tag."""


def in_prompt_mode(llm: OpenChat, dialect: Dialect, *, stop: bool = True, mint: Callable[[], str] = new_id) -> OpenChat:
    """`llm` with calls in `dialect`. Its requests contain nothing of function calling.

    With `stop`, a stop sequence ends the reply after its first call, so that the model cannot continue with a
    fabricated result. `mint` makes the ids of calls; each must be unique.
    """

    async def open_chat(request: ChatRequest) -> ModelStream:
        if request.must_call:
            raise LLMRequestError("this model's tool calls are read from its text: nothing can make it call a tool")
        tools = [*request.tools, *_by_bare_names(request.tools)]
        known = {tool.name for tool in tools} | _called(request.messages)
        if not known:
            return await llm(request)
        reply = TaggedReply(dialect.grammar(tools), known, mint, may_quote_results=_has_results(request))
        return await ModelStream.begun(_without_tags(await llm(_as_text(request, dialect, stop=stop)), reply))

    return open_chat


async def _without_tags(stream: ModelStream, reply: TaggedReply) -> AsyncGenerator[ChatEvent]:
    """The events of a stream whose text contains calls: the text without them, and the calls. It closes the stream."""
    async with aclosing(stream):
        async for event in stream:
            size = reply.held + len(event.text) if isinstance(event, TextDelta) else 0
            for each in await reading(size * _SLOW, reply.read, event):
                yield each
            if reply.over:
                break
    for each in await reading(reply.size, reply.end):
        yield each


def _by_bare_names(tools: Sequence[ToolEntry]) -> list[ToolEntry]:
    """The tools once more under the names that their servers give them, where these are of one tool only."""
    times = Counter(name for tool in tools for name in {tool.name, tool.label})
    return [
        msgspec.structs.replace(tool, name=tool.label)
        for tool in tools
        if times[tool.label] == 1 and tool.label != tool.name
    ]


def _called(messages: Sequence[Message]) -> set[str]:
    """The names of all tools that were called: a model may repeat such a call when no tool is offered any more."""
    calls = (call for message in messages if isinstance(message, AssistantMessage) for call in message.tool_calls)
    return {call.name for call in calls}


def _has_results(request: ChatRequest) -> bool:
    """Whether the model has just been given results, or may not call tools.

    A result in its reply is then not written in place of a call.
    """
    latest = (message for message in reversed(request.messages) if isinstance(message, UserMessage | ToolMessage))
    return request.answer_only or not request.tools or isinstance(next(latest, None), ToolMessage)


def _as_text(request: ChatRequest, dialect: Dialect, *, stop: bool) -> ChatRequest:
    """The same request with tools, calls and results as text."""
    described = [dialect.describe(request.tools, stop)] if request.tools else []
    if request.answer_only or not request.tools:
        described.append(dialect.no_tools)
    messages = [*_instructed(request.messages, "\n\n".join(described))]
    stops = request.stop + ((dialect.stop,) if stop else ())
    return replace(
        request, messages=tuple(_messages_as_text(messages, dialect)), tools=(), answer_only=False, stop=stops
    )


def _instructed(messages: Sequence[Message], described: str) -> Iterator[Message]:
    match messages:
        case [SystemMessage(content), *others]:
            yield SystemMessage(f"{content}\n\n{described}")
        case others:
            yield SystemMessage(described)
    yield from others


def _messages_as_text(messages: Sequence[Message], dialect: Dialect) -> Iterator[Message]:
    """Calls as text of the assistant's message, and the results of a round as one message of the user.

    A user's message right after results is joined to them, because many models accept no two in a row.
    """
    results: list[ToolMessage] = []
    for message in messages:
        if isinstance(message, ToolMessage):
            results.append(message)
            continue
        pending, results = results, []
        match message:
            case UserMessage(content) if pending:
                yield replace(message, content=f"{dialect.results(pending)}\n\n{content}")
                continue
            case _ if pending:
                yield UserMessage(dialect.results(pending))
            case _:
                pass
        match message:
            case AssistantMessage(content, calls) if calls:
                gap = "" if not content or content.endswith("\n") else "\n\n"
                yield replace(message, content=content + gap + dialect.calls(calls), tool_calls=())
            case _:
                yield message
    if results:
        yield UserMessage(dialect.results(results))
