"""The stream of a turn in another protocol: its events through an encoder, as a response.

A stream ends with the end that its protocol has, or its connection is closed: clients take an orderly end without the
last event for success. So it is when this engine shuts down, another one has adopted the turn, or the sender's
credential is revoked.
"""

from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from collections.abc import Set as AbstractSet
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from dialog_engine.chat import events
from dialog_engine.chat.events import START, Batch, Cursor, Frame
from dialog_engine.facades.encoder import EPOCH_SHIFT, Encoder, Output, data_of
from dialog_engine.http.sse import REBUILT_EPOCH, BrokenStreamError, EventStream
from dialog_engine.http.streams import Streams


@dataclass(frozen=True, slots=True)
class Part:
    """Which outputs of a turn a client gets. Its stream ends behind the first one that is the last of a request.

    `after`: those with higher numbers, or, where the log of the turn is gone meanwhile, its end. `answered`: those that
    follow on the user's answers to these calls, by correlation id. `beyond`: the stream goes on behind the last output
    of a request up to this place of the log.
    """

    after: int = 0
    answered: AbstractSet[str] = frozenset()
    beyond: Cursor = START


WHOLE = Part()


async def outputs(batches: AsyncGenerator[Batch], encoder: Encoder, part: Part) -> AsyncGenerator[bytes]:
    """What a client is sent, as much at once as there is.

    Raises:
        BrokenStreamError: the events have ended before the protocol's end.
    """
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


class _Selection:
    """Takes the outputs of a part."""

    def __init__(self, part: Part) -> None:
        self._part = part
        self._holds = bool(part.answered)
        """Whether the place was not reached behind which the client gets everything."""
        self._held: list[bytes] = []
        self._at_end = False
        """Whether the newest output is the last one of a request."""

    def is_complete(self, frame: Frame) -> bool:
        """Whether the stream ends behind this event, which may have had no output."""
        return self._at_end and Cursor.parse(frame.id) >= self._part.beyond

    def taken(self, frame: Frame, output: Output) -> bytes:
        """What the client is sent now, with this output of the event."""
        self._at_end = False
        if self._part.answered and frame.name == "control":
            waits = self._waits(data_of(frame))
            self._holds = self._holds and not waits
            if output.last and (waits or self._holds):  # an earlier request has ended here
                self._held.clear()
                return b""
        if self._holds and frame.name == events.RESET:
            # The place is lost: what came before it is sent again.
            self._holds = not any(map(self._is_decided, data_of(frame)["events"]))
        self._at_end = output.last
        self._held.append(output.data if self._is_new(frame, output) else b"")
        if self._holds and not self.is_complete(frame):
            return b""
        data = b"".join(self._held)
        self._held.clear()
        return data

    def _is_new(self, frame: Frame, output: Output) -> bool:
        after = self._part.after
        lost = after and output.epoch >= REBUILT_EPOCH > after >> EPOCH_SHIFT
        return output.number > after and (not lost or frame.name == events.DONE)

    def _waits(self, data: dict[str, Any]) -> bool:
        return not self._part.answered.isdisjoint(data.get("calls", ()))

    def _is_decided(self, event: dict[str, Any]) -> bool:
        data = event["data"]
        is_step = data.get("type") == "approval" and data["status"] != "asked"
        return is_step and data["correlationId"] in self._part.answered


def stream_of(
    streams: Streams,
    batches: AsyncGenerator[Batch],
    encoder: Encoder,
    headers: Mapping[str, str],
    part: Part = WHOLE,
    *,
    on_end: Callable[[], Coroutine[Any, Any, None]],
) -> EventStream:
    """The response with the outputs of a turn. `on_end` is awaited at its end."""
    return EventStream(
        streams,
        batches,
        on_end=on_end,
        encoded=lambda batches: outputs(batches, encoder, part),
        headers=headers,
    )
