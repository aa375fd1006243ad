"""The side band: the user's view of a turn while the pipeline works on it.

It is the sole reader of the model's stream. What it reads goes two ways: text to the user as it comes, and the whole
reply, once complete, to the pipeline.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator
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
from dialog_engine.text_buffer import TextBuffer

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Reply:
    """All that the model said in one round."""

    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCallEvent, ...] = ()
    finish_reason: FinishReason = FinishReason.STOP
    usage: Usage = Usage()


class SideBand:
    """One turn's way out. `emit` never waits; `carry` hands on what is there, in the order in which it came."""

    def __init__(self) -> None:
        self._events: list[ChatEvent] = []
        self._grown = asyncio.Event()

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
        text, reasoning = TextBuffer(), TextBuffer()
        calls: list[ToolCallEvent] = []
        end: StreamEnd | None = None
        async with aclosing(stream) as events:
            async for event in events:
                match event:
                    case TextDelta(piece):
                        text.add(piece)
                        self.emit(event)
                    case ReasoningDelta(piece):
                        reasoning.add(piece)
                        self.emit(event)
                    case ToolCallEvent():
                        calls.append(event)
                    case StreamEnd():
                        end = event
                    case _:
                        self.emit(event)
        if end is None:
            raise LLMStreamBrokenError("the model's stream stopped before its end")
        return Reply(str(text), str(reasoning), tuple(calls), end.finish_reason, end.usage)

    async def carry(self, work: asyncio.Task[Any]) -> AsyncGenerator[ChatEvent]:
        """The events of `work`, which emits into this band, until it ends.

        A reader that is cancelled takes `work` along, and still gets everything that `work` said to its end: what was
        committed is told. A reader that closes the generator ends `work` too and wants to hear no more.

        Raises:
            Exception: what `work` raises, after its last event.
        """
        work.add_done_callback(lambda _: self._grown.set())
        try:
            while self._events or not work.done():
                for event in self._taken():
                    yield event
                if not self._events and not work.done():
                    self._grown.clear()
                    await self._grown.wait()
            await work
        except asyncio.CancelledError:
            await _ended(work)
            for event in self._taken():
                yield event
            raise
        finally:
            await _ended(work)

    def _taken(self) -> list[ChatEvent]:
        """What is there now; nobody else gets it."""
        taken, self._events = self._events, []
        return taken


async def _ended(work: asyncio.Task[Any]) -> None:
    """Cancel `work` and wait for its end. What it raises now has nobody left to go to but the log."""
    if not work.done():
        work.cancel()
        await asyncio.wait([work])
        if not work.cancelled() and (error := work.exception()):
            log.warning("%s failed while it was being cancelled: %s", work.get_name(), error)
    elif not work.cancelled():
        work.exception()  # raised to the reader, or of no interest to one that has gone
