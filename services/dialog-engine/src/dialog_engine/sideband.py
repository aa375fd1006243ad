"""The side band: carries the events of a turn to the user while the pipeline works on the turn.

It is the only reader of the model's stream. Text goes to the user as it comes, and the complete reply to the pipeline.
"""

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from dialog_engine.errors import LLMStreamBrokenError
from dialog_engine.model import (
    AnsweredBy,
    ChatEvent,
    FinishReason,
    Meter,
    ReasoningDelta,
    StreamEnd,
    TextDelta,
    ToolCallEvent,
    Usage,
    storable,
    storable_json,
)

log = logging.getLogger(__name__)

T = TypeVar("T")

MAX_DELAY_SECONDS = 10.0
"""How long a commit delays a cancellation at most."""


class TextBuffer:
    """A growing text, kept as UTF-8. `str` is the text so far and costs by its length, as growing does.

    A list of strings takes about 60 bytes more per token: 10,000 tokens of six characters would take 630 KiB, and take
    66 KiB here.
    """

    __slots__ = ("_utf8",)

    def __init__(self) -> None:
        self._utf8 = bytearray()

    def add(self, piece: str) -> None:
        """Append `piece`, which may be half of a surrogate pair."""
        self._utf8 += piece.encode("utf-8", "surrogatepass")

    def __str__(self) -> str:
        return self._utf8.decode("utf-8", "surrogatepass")


@dataclass(frozen=True, slots=True)
class Reply:
    """The complete reply of the model in one round."""

    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCallEvent, ...] = ()
    finish_reason: FinishReason = FinishReason.STOP
    usage: Usage = Usage()
    model: str = ""


class SideBand:
    """The events of one turn. `emit` never waits; `carry` yields the events in the order in which they were emitted."""

    def __init__(self) -> None:
        self._events: list[ChatEvent] = []
        self._grown = asyncio.Event()

    def emit(self, event: ChatEvent) -> None:
        """Pass `event` on to the user."""
        self._events.append(event)
        self._grown.set()

    async def fork(
        self, stream: AsyncGenerator[ChatEvent], max_bytes: float = math.inf, meter: Meter | None = None
    ) -> Reply:
        """Read the model's stream to its end, and emit what the user may see as it comes. `meter` counts what came.

        A reply that grows beyond `max_bytes` is cut there, as by the model's own length limit: its stream is closed.

        Raises:
            LLMError: the stream raised it.
            LLMStreamBrokenError: the stream stopped without a StreamEnd.
        """
        text, reasoning = TextBuffer(), TextBuffer()
        calls: list[ToolCallEvent] = []
        end: StreamEnd | None = None
        model = ""
        meter = meter or Meter()
        async with aclosing(stream) as events:
            async for event in events:
                meter.read += _size(event)
                if meter.read > max_bytes:
                    end = StreamEnd(FinishReason.LENGTH, Usage())
                    break
                event = _storable(event)  # noqa: PLW2901 -- nothing behind this point sees the other one
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
                        model = event.model if isinstance(event, AnsweredBy) else model
                        self.emit(event)
        if end is None:
            raise LLMStreamBrokenError("the model's stream stopped before its end")
        return Reply(str(text), str(reasoning), tuple(calls), end.finish_reason, end.usage, model)

    async def carry(self, work: asyncio.Task[Any]) -> AsyncGenerator[ChatEvent]:
        """Yield the events of `work`, which emits into this band, until it ends.

        When the reader is cancelled `work` is cancelled too, and the reader still gets every event up to its end, so
        that everything that was committed is shown. Closing the generator cancels `work` and drops its events.

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
        """Remove and return the events that wait to be read."""
        taken, self._events = self._events, []
        return taken


def _storable(event: ChatEvent) -> ChatEvent:
    match event:
        case TextDelta(text) if "\0" in text:
            return TextDelta(storable(text))
        case ReasoningDelta(text) if "\0" in text:
            return ReasoningDelta(storable(text))
        case ToolCallEvent(tool_call_id, name, arguments):
            ids = {"tool_call_id": storable(tool_call_id), "name": storable(name)}
            return replace(event, **ids, arguments=storable_json(arguments))
        case _:
            return event


def _size(event: ChatEvent) -> int:
    """The bytes that a reply keeps of this event."""
    match event:
        case TextDelta(text) | ReasoningDelta(text):
            return len(text.encode())
        case ToolCallEvent():
            return sum(len(text.encode()) for text in (event.tool_call_id, event.name, event.arguments))
        case _:
            return 0


async def _ended(work: asyncio.Task[Any]) -> None:
    """Cancel `work` and wait for its end. An exception that it raises now is logged, because no caller is left."""
    if not work.done():
        work.cancel()
        await asyncio.wait([work])
        if not work.cancelled() and (error := work.exception()):
            log.warning("%s failed while it was being cancelled: %s", work.get_name(), error)
    elif not work.cancelled():
        work.exception()  # retrieved, or asyncio logs it: a reader that still listens gets it from `carry`


async def run_shielded(work: Coroutine[Any, Any, T]) -> T:
    """Await `work`. A cancellation is delayed until `work` has ended, by at most MAX_DELAY_SECONDS.

    It is for a commit and the events that announce it: cancelled between the two, the user would see something else
    than what is stored.
    """
    task = asyncio.create_task(work, name=work.__qualname__)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task], timeout=MAX_DELAY_SECONDS)
        if not task.done():
            log.error("%s has not ended in %g s and is cancelled", task.get_name(), MAX_DELAY_SECONDS)  # noqa: TRY400
            task.cancel()
        elif not task.cancelled() and (error := task.exception()):
            log.warning("%s failed while it was being cancelled: %s", task.get_name(), error)
        raise
