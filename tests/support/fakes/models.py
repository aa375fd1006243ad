"""A chat model with scripted answers."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence

from dialog_engine.model import ChatEvent, ChatRequest, FinishReason, StreamEnd, TextDelta, ToolCallEvent, Usage
from dialog_engine.sideband import ModelStream, SideBand
from dialog_engine.tool_calls.ports import OpenChat

SPENT = Usage(10, 5)
"""What every reply of the scripted model costs."""


Line = ChatEvent | Exception | asyncio.Event
"""What a reply is made of: an event is streamed, an exception raised, an asyncio.Event waited for."""


def says(text: str, finish: FinishReason = FinishReason.STOP) -> list[Line]:
    """A reply of text, word by word."""
    words = text.split(" ")
    pieces = [word + " " for word in words[:-1]] + words[-1:]
    return [*(TextDelta(piece) for piece in pieces), StreamEnd(finish, SPENT)]


def asks(*calls: tuple[str, str], text: str = "") -> list[Line]:
    """A reply with tool calls, each a tool's name and its arguments as JSON text."""
    said: list[Line] = [TextDelta(text)] if text else []
    said += [ToolCallEvent(f"call_{n}", name, arguments) for n, (name, arguments) in enumerate(calls, 1)]
    return [*said, StreamEnd(FinishReason.TOOL_CALLS, SPENT)]


class ScriptedModel:
    """An OpenChat that gives one reply after the other, and remembers what it was asked."""

    def __init__(self, *replies: Sequence[Line]) -> None:
        self._replies = list(replies)
        self.requests: list[ChatRequest] = []
        self.open = 0

    async def __call__(self, request: ChatRequest) -> ModelStream:
        return await ModelStream.begun(self._reply(request))

    async def _reply(self, request: ChatRequest) -> AsyncGenerator[ChatEvent]:
        self.requests.append(request)
        self.open += 1
        try:
            for line in self._replies.pop(0):
                match line:
                    case Exception():
                        raise line
                    case asyncio.Event():
                        await line.wait()
                    case _:
                        yield line
        finally:
            self.open -= 1


class MemoryBand(SideBand):
    """What the user sees."""

    def __init__(self) -> None:
        self.events: list[ChatEvent] = []

    def emit(self, event: ChatEvent) -> None:
        self.events.append(event)

    async def ready(self) -> None:
        pass


def opened(answers: Callable[[ChatRequest], AsyncGenerator[ChatEvent]]) -> OpenChat:
    """The chat model whose answers this generator produces."""

    async def open_chat(request: ChatRequest) -> ModelStream:
        return await ModelStream.begun(answers(request))

    return open_chat
