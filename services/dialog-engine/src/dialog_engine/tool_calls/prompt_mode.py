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
    FinishReason,
    Message,
    StreamEnd,
    SystemMessage,
    TextDelta,
    ToolCallEvent,
    ToolMessage,
    Usage,
    UserMessage,
)
from dialog_engine.tool_calls.dialects.dialect import Dialect
from dialog_engine.tool_calls.parsers.reply import ReplyReader
from dialog_engine.tool_calls.parsers.thoughts import Thoughts
from dialog_engine.tool_calls.ports import StreamChat
from plugins_contract.ids import new_id

MAX_DROPPED = 1_000
"""Characters after a call that are put up with, for the sake of the usage at the end; then the stream is closed."""


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
        reply = _Reply(ReplyReader(dialect.grammar(request.tools), known, mint))
        async with aclosing(llm(_in_words(request, dialect, stop=stop))) as events:
            async for event in events:
                for told in reply.read(event):
                    yield told
                if reply.over:
                    break
        for told in reply.end():
            yield told

    return stream_chat


class _Reply:
    """One reply as it comes in, and as it is told."""

    def __init__(self, reader: ReplyReader) -> None:
        self._reader = reader
        self._thoughts = Thoughts()
        self._end: StreamEnd | None = None
        self._called = False

    @property
    def over(self) -> bool:
        """The rest is not worth waiting for."""
        return self._reader.dropped > MAX_DROPPED

    def read(self, event: ChatEvent) -> Sequence[ChatEvent]:
        match event:
            case TextDelta(text):
                return self._told(self._thoughts.feed(text))
            case StreamEnd():
                self._end = event
                return ()
            case _:
                self._called = self._called or isinstance(event, ToolCallEvent)
                return (event,)

    def end(self) -> Sequence[ChatEvent]:
        """What is left to be told; without an end of its own a stream gets none here."""
        if self._end is None and not self.over:
            return ()
        reason, usage = (self._end.finish_reason, self._end.usage) if self._end else (FinishReason.STOP, Usage())
        cleanly = reason not in (FinishReason.LENGTH, FinishReason.CONTENT_FILTER)
        told = [*self._told(self._thoughts.finish()), *self._noted(self._reader.finish(cleanly=cleanly))]
        if cleanly:
            reason = FinishReason.TOOL_CALLS if self._called else FinishReason.STOP
        return (*told, StreamEnd(reason, usage))

    def _told(self, pieces: Sequence[ChatEvent]) -> list[ChatEvent]:
        told: list[ChatEvent] = []
        for piece in pieces:
            told += self._noted(self._reader.feed(piece.text)) if isinstance(piece, TextDelta) else (piece,)
        return told

    def _noted(self, found: Sequence[TextDelta | ToolCallEvent]) -> Sequence[TextDelta | ToolCallEvent]:
        self._called = self._called or any(isinstance(each, ToolCallEvent) for each in found)
        return found


def _called(messages: Sequence[Message]) -> set[str]:
    """The names of the tools that were ever called: the model may imitate itself when none is offered any more."""
    calls = (call for message in messages if isinstance(message, AssistantMessage) for call in message.tool_calls)
    return {call.name for call in calls}


def _in_words(request: ChatRequest, dialect: Dialect, *, stop: bool) -> ChatRequest:
    """The same request without anything of function calling in it."""
    described = dialect.describe(request.tools, stop) if request.tools else dialect.no_tools
    messages = [*_instructed(request.messages, described)]
    stops = (dialect.stop,) if stop else ()
    return replace(request, messages=tuple(_said(messages, dialect)), tools=(), stop=request.stop + stops)


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
