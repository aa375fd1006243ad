"""Tools for models without function calling: described in the system message, called by tags in the text.

Above it nothing is different: the same events come out, and history is in the same form, so that a session can go from
one mode to another between two requests.
"""

from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import replace

from dialog_engine.model import (
    AssistantMessage,
    ChatEvent,
    ChatRequest,
    Message,
    SystemMessage,
    ToolMessage,
    UserMessage,
)
from dialog_engine.tool_calls.dialects.dialect import Dialect
from dialog_engine.tool_calls.ports import StreamChat
from dialog_engine.tool_calls.tagged_reply import TaggedReply
from plugins_contract.ids import new_id


def in_prompt_mode(
    llm: StreamChat, dialect: Dialect, *, stop: bool = True, mint: Callable[[], str] = new_id
) -> StreamChat:
    """`llm` with calls in `dialect`. It is never sent a tool, nor anything else of function calling.

    With `stop` the model is told to stop after its first block: it then cannot go on with results of its own invention.
    `mint` makes the ids of calls, each unique for all time.
    """

    async def stream_chat(request: ChatRequest) -> AsyncGenerator[ChatEvent]:
        known = {tool.name for tool in request.tools} | _called(request.messages)
        if not known:
            async with aclosing(llm(request)) as events:
                async for event in events:
                    yield event
            return
        reply = TaggedReply(dialect.grammar(request.tools), known, mint, repeats=_has_results(request))
        async with aclosing(llm(_in_words(request, dialect, stop=stop))) as events:
            async for event in events:
                for told in reply.read(event):
                    yield told
                if reply.over:
                    break
        for told in reply.end():
            yield told

    return stream_chat


def _called(messages: Sequence[Message]) -> set[str]:
    """The names of the tools that were ever called: the model may imitate itself when none is offered any more."""
    calls = (call for message in messages if isinstance(message, AssistantMessage) for call in message.tool_calls)
    return {call.name for call in calls}


def _has_results(request: ChatRequest) -> bool:
    """The model has results, or can have none: one that it writes itself then does not stand in the place of a call."""
    said = (message for message in reversed(request.messages) if isinstance(message, UserMessage | ToolMessage))
    return request.answer_only or not request.tools or isinstance(next(said, None), ToolMessage)


def _in_words(request: ChatRequest, dialect: Dialect, *, stop: bool) -> ChatRequest:
    """The same request without anything of function calling in it."""
    described = [dialect.describe(request.tools, stop)] if request.tools else []
    if request.answer_only or not request.tools:
        described.append(dialect.no_tools)
    messages = [*_instructed(request.messages, "\n\n".join(described))]
    stops = request.stop + ((dialect.stop,) if stop else ())
    return replace(request, messages=tuple(_said(messages, dialect)), tools=(), answer_only=False, stop=stops)


def _instructed(messages: Sequence[Message], described: str) -> Iterator[Message]:
    match messages:
        case [SystemMessage(content), *others]:
            yield SystemMessage(f"{content}\n\n{described}")
        case others:
            yield SystemMessage(described)
    yield from others


def _said(messages: Sequence[Message], dialect: Dialect) -> Iterator[Message]:
    """Calls as the model's own words, and the results of a round as one message of the user.

    What the user says right after results joins them: many models take no two messages of the user in a row.
    """
    results: list[ToolMessage] = []
    for message in messages:
        if isinstance(message, ToolMessage):
            results.append(message)
            continue
        told, results = results, []
        match message:
            case UserMessage(content) if told:
                yield replace(message, content=f"{dialect.results(told)}\n\n{content}")
                continue
            case _ if told:
                yield UserMessage(dialect.results(told))
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
