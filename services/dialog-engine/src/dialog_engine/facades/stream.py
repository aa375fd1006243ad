"""The stream of a turn in another protocol: its events through an encoder, as a response.

A stream ends with the end that its protocol has, or its connection is closed: clients take an orderly end without the
last event for success. So it is when this engine shuts down, another one has adopted the turn, or the sender's
credential is revoked.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from collections.abc import Set as AbstractSet
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any

from dialog_engine.chat import events
from dialog_engine.chat.events import START, Batch, Cursor, Frame
from dialog_engine.errors import TurnNotFoundError
from dialog_engine.facades.encoder import Encoder, Lacking, Output, data_of
from dialog_engine.http import turns
from dialog_engine.http.services import Services
from dialog_engine.http.sse import BrokenStreamError, EventStream


@dataclass(frozen=True, slots=True)
class Part:
    """Which outputs of a turn a client gets. Its stream ends behind the first one that is the last of a request.

    `after`: those that a client lacks that has got the outputs up to this number. `answered`: those that
    follow on the user's answers to these calls, or on their client's results, by correlation id. `beyond`: the stream
    goes on behind the last output of a request up to this place of the log.
    """

    after: int = 0
    answered: AbstractSet[str] = frozenset()
    beyond: Cursor = START


WHOLE = Part()


Read = Callable[[], Awaitable[AsyncGenerator[Batch] | None]]
"""Reads the log of a turn from its first event on. None: there are no events."""


async def outputs(
    batches: AsyncGenerator[Batch], encoder: Callable[[], Encoder], part: Part, again: Read
) -> AsyncGenerator[bytes]:
    """What a client is sent, as much at once as there is. Where the place is lost on which calls waited, the log is
    read `again`: no reader holds what it may have to send.

    Raises:
        BrokenStreamError: the events have ended before the protocol's end.
    """
    try:
        async with aclosing(_taken(batches, encoder(), part)) as taken:
            async for data in taken:
                yield data
    except _PlaceLostError as lost:
        read = await again()
        if read is None:
            raise BrokenStreamError from None
        async with aclosing(_taken(read, encoder(), lost.part)) as taken:
            async for data in taken:
                yield data


async def _taken(batches: AsyncGenerator[Batch], encoder: Encoder, part: Part) -> AsyncGenerator[bytes]:
    selection = _Selection(part)
    async with aclosing(batches):
        async for batch in batches:
            taken: list[bytes] = []
            complete = False
            for frame in batch:
                taken += [selection.taken(frame, output) for output in encoder.feed(frame)]
                if complete := selection.is_complete(frame):
                    break
            if data := b"".join(taken):
                yield data
            if complete:
                return
    raise BrokenStreamError


class _PlaceLostError(Exception):
    """What follows on the user's answers cannot be told from what came before. The client gets this part instead."""

    def __init__(self, part: Part) -> None:
        super().__init__()
        self.part = part


class _Selection:
    """Takes the outputs of a part. Nothing is sent before one raises _PlaceLostError."""

    def __init__(self, part: Part) -> None:
        self._part = part
        self._lacking = Lacking(part.after)
        self._before = bool(part.answered)
        """Whether the place was not reached behind which the client gets everything."""
        self._had = 0
        """The number of the last output of an earlier request."""
        self._at_end = False
        """Whether the newest output is the last one of a request."""

    def is_complete(self, frame: Frame) -> bool:
        """Whether the stream ends behind this event, which may have had no output."""
        return self._at_end and Cursor.parse(frame.id) >= self._part.beyond

    def taken(self, frame: Frame, output: Output) -> bytes:
        """What the client is sent with this output of the event."""
        self._at_end = False
        if self._part.answered and frame.name == "control":
            waits = self._waits(data_of(frame))
            self._before = self._before and not waits
            if output.last and (waits or self._before):  # an earlier request has ended here
                self._had = output.number
                return b""
        self._at_end = output.last
        if not self._before:
            return output.data if self._lacking.has(output, ends=self.is_complete(frame)) else b""
        if self._is_decided(frame) or self.is_complete(frame):
            raise _PlaceLostError(Part(self._had, beyond=Cursor.parse(frame.id)))
        return b""

    def _waits(self, data: dict[str, Any]) -> bool:
        return not self._part.answered.isdisjoint(data.get("calls", ()))

    def _is_decided(self, frame: Frame) -> bool:
        """Whether it is a reset that says what was answered: the place is lost, and is not reached any more."""
        replayed = data_of(frame)["events"] if frame.name == events.RESET else ()
        steps = [each["data"] for each in replayed if each["data"].get("correlationId") in self._part.answered]
        return any("durationMs" in step or (step["type"] == "approval" and step["status"] != "asked") for step in steps)


async def stream_of(
    engine: Services,
    subject: str,
    turn_id: str,
    encoder: Callable[[], Encoder],
    headers: Mapping[str, str],
    part: Part = WHOLE,
    *,
    on_end: Callable[[], Coroutine[Any, Any, None]],
) -> EventStream:
    """The response with the outputs of a turn, through an encoder of its own. `on_end` is awaited at its end.

    Raises:
        TurnNotFoundError: there is no such turn.
    """
    read = partial(turns.batches_of, turn_id, engine, subject)
    batches = await read()
    if batches is None:
        raise TurnNotFoundError(f"there is no turn {turn_id}")
    return EventStream(
        engine.streams,
        batches,
        on_end=on_end,
        encoded=lambda batches: outputs(batches, encoder, part, read),
        headers=headers,
    )
