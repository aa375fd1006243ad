"""The side band: what a model says goes to the user as it comes, and the complete reply to the pipeline.

`fork` is the only reader of a model's stream.
"""

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Coroutine, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

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


class ModelStream(AsyncIterator[ChatEvent]):
    """An answer of a model that has begun. It belongs to whoever opened it, who reads it and closes it.

    It ends with StreamEnd; reading raises LLMError when the answer breaks off. It is read in place: no generator
    stands between its reader and the one that produces the events.
    """

    __slots__ = ("_begun", "_events")

    def __init__(self, first: ChatEvent, events: AsyncGenerator[ChatEvent]) -> None:
        """`first` was taken from `events`, which this closes."""
        self._begun = [first]
        """The events that are there, in reverse order."""
        self._events = events

    @classmethod
    async def begun(cls, events: AsyncGenerator[ChatEvent]) -> "ModelStream":
        """The stream of `events` as soon as the first of them is there.

        Raises:
            LLMError: the answer has failed before it began; LLMStreamBrokenError: it has no event at all.
        """
        async for first in events:
            return cls(first, events)
        raise LLMStreamBrokenError("the model's stream stopped before its end")

    @property
    def first(self) -> ChatEvent:
        """The event with which the answer begins. It can be asked before anything was read."""
        return self._begun[-1]

    def put_first(self, event: ChatEvent) -> None:
        """Let the answer begin with `event`. This can be called before anything was read."""
        self._begun.append(event)

    def __anext__(self) -> Awaitable[ChatEvent]:
        return _at_once(self._begun.pop()) if self._begun else anext(self._events)

    async def aclose(self) -> None:
        """Close the stream at the provider, if it has not ended."""
        await self._events.aclose()


async def _at_once(event: ChatEvent) -> ChatEvent:
    return event


class SideBand(Protocol):
    """Takes the events of one turn to the user."""

    def emit(self, event: ChatEvent) -> None:
        """Pass `event` on to the user. Never waits."""
        ...

    async def ready(self) -> None:
        """Wait until the turn is committed: nothing may be emitted or written before that."""
        ...

    async def park(self, shown: Mapping[str, str]) -> None:
        """All open calls wait for people: give the turn up, if that is possible. `shown` are the questions that its
        user has seen, by correlation id their hashes.

        Raises:
            TurnParkedError: the turn was given up. Whoever takes it up again begins with the committed messages.
        """


async def fork(stream: ModelStream, band: SideBand, max_bytes: float = math.inf, meter: Meter | None = None) -> Reply:
    """Read the model's stream to its end, close it, and emit what the user may see as it comes.

    `meter` counts what came. A reply that grows beyond `max_bytes` is cut there, as by the model's own length limit.

    Raises:
        LLMError: the stream raised it.
        LLMStreamBrokenError: the stream stopped without a StreamEnd.
    """
    text, reasoning = TextBuffer(), TextBuffer()
    calls: list[ToolCallEvent] = []
    end: StreamEnd | None = None
    model = ""
    meter = meter or Meter()
    async with aclosing(stream):
        await band.ready()
        async for event in stream:
            meter.read += _size(event)
            if meter.read > max_bytes:
                end = StreamEnd(FinishReason.LENGTH, Usage())
                break
            event = _storable(event)  # noqa: PLW2901 -- nothing behind this point sees the other one
            match event:
                case TextDelta(piece):
                    text.add(piece)
                    band.emit(event)
                case ReasoningDelta(piece):
                    reasoning.add(piece)
                    band.emit(event)
                case ToolCallEvent():
                    calls.append(event)
                case StreamEnd():
                    end = event
                case _:
                    model = event.model if isinstance(event, AnsweredBy) else model
                    band.emit(event)
    if end is None:
        raise LLMStreamBrokenError("the model's stream stopped before its end")
    return Reply(str(text), str(reasoning), tuple(calls), end.finish_reason, end.usage, model)


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


async def run_shielded(work: Coroutine[Any, Any, T], max_delay_seconds: float = MAX_DELAY_SECONDS) -> T:
    """Await `work`. A cancellation is delayed until `work` has ended, by at most `max_delay_seconds`.

    It is for a commit and the events that announce it: cancelled between the two, the user would see something else
    than what is stored.
    """
    task = asyncio.create_task(work, name=work.__qualname__)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task], timeout=max_delay_seconds)
        if not task.done():
            log.error("%s has not ended in %g s and is cancelled", task.get_name(), max_delay_seconds)  # noqa: TRY400
            task.cancel()
        elif not task.cancelled() and (error := task.exception()):
            log.warning("%s failed while it was being cancelled: %s", task.get_name(), error)
        raise
