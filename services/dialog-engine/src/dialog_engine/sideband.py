"""The side band: the user's view of a turn while the pipeline works on it.

It is the sole reader of the model's stream. What it reads goes two ways: text to the user as it comes, and the whole
reply, once complete, to the pipeline.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from dialog_engine.errors import LLMStreamBrokenError
from dialog_engine.model import (
    ChatEvent,
    FinishReason,
    ReasoningDelta,
    StreamEnd,
    TextDelta,
    ToolCallEvent,
    Usage,
)


@dataclass(frozen=True, slots=True)
class Reply:
    """All that the model said in one round."""

    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCallEvent, ...] = ()
    finish_reason: FinishReason = FinishReason.STOP
    usage: Usage = Usage()


class SideBand:
    """One turn's way out. `emit` never waits: whoever iterates takes what is there; no event is ever dropped."""

    def __init__(self) -> None:
        self._events: deque[ChatEvent] = deque()
        self._grown = asyncio.Event()
        self._closed = False

    def emit(self, event: ChatEvent) -> None:
        """Show `event` to the user."""
        self._events.append(event)
        self._grown.set()

    async def fork(self, stream: AsyncGenerator[ChatEvent]) -> Reply:
        """Read the model's stream to its end; the user sees the text meanwhile.

        Raises:
            LLMError: as the stream does.
            LLMStreamBrokenError: the stream stopped without its end.
        """
        text: list[str] = []
        reasoning: list[str] = []
        calls: list[ToolCallEvent] = []
        end: StreamEnd | None = None
        async with aclosing(stream) as events:
            async for event in events:
                match event:
                    case TextDelta(piece):
                        text.append(piece)
                        self.emit(event)
                    case ReasoningDelta(piece):
                        reasoning.append(piece)
                        self.emit(event)
                    case ToolCallEvent():
                        calls.append(event)
                    case StreamEnd():
                        end = event
                    case _:
                        self.emit(event)
        if end is None:
            raise LLMStreamBrokenError("the model's stream stopped before its end")
        return Reply("".join(text), "".join(reasoning), tuple(calls), end.finish_reason, end.usage)

    async def carry(self, work: asyncio.Task[Any]) -> AsyncGenerator[ChatEvent]:
        """The events of `work`, which emits into this band, until it ends; closing the generator ends it.

        Raises:
            Exception: what `work` raises, after its last event.
        """
        work.add_done_callback(lambda _: self._close())
        try:
            async for event in self:
                yield event
            await work
        finally:
            work.cancel()
            await asyncio.wait([work])

    async def __aiter__(self) -> AsyncIterator[ChatEvent]:
        while True:
            while self._events:
                yield self._events.popleft()
            if self._closed:
                return
            self._grown.clear()
            await self._grown.wait()

    def _close(self) -> None:
        self._closed = True
        self._grown.set()
