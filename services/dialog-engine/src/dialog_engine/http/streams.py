"""The open event streams of one engine, and those of them that are ended before their turn."""

import asyncio
import enum
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class StreamTimes:
    """The times of event streams, in seconds."""

    unread: float = 20.0
    """How long a client may leave what is sent to it unread before its stream is ended. It can reconnect and resume."""
    check: float = 20.0
    """How often a stream checks the credential of its request, which may be revoked or expire meanwhile."""
    end: float = 1.0
    """How long the log of a turn may lack its last event after the end of the turn was committed."""


class EarlyEnd(enum.Enum):
    """Why a stream is ended before its turn."""

    UNREAD = enum.auto()
    REFUSED = enum.auto()


class OpenStream(Protocol):
    """An event stream that is being sent."""

    checked_at: float
    """When its credential was checked last, in seconds on the monotonic clock."""

    unread_since: float
    """Since when something that was sent has waited for the client to read, on the same clock; infinite if nothing."""

    def end(self, why: EarlyEnd) -> None:
        """End the stream, unless it is ended already."""
        ...

    async def check(self) -> None:
        """End the stream if its sender is not admitted any more."""
        ...


class Streams:
    """The open event streams of one engine. `on_drop` is called for each client that does not read.

    A comment is sent each `ping_seconds`, so that proxies and clients can tell a quiet stream from a dead one.
    """

    def __init__(self, ping_seconds: float, on_drop: Callable[[], None], times: StreamTimes = StreamTimes()) -> None:
        self.times = times
        self.open: set[OpenStream] = set()
        self.ping_seconds = ping_seconds
        self.on_drop = on_drop

    async def check(self) -> None:
        """End each stream that its client does not read, or whose sender is not admitted any more. Runs until
        cancelled."""
        while True:
            await asyncio.sleep(min(self.times.unread, self.times.check) / 20)
            now = time.monotonic()
            for stream in [each for each in self.open if now - each.unread_since >= self.times.unread]:
                stream.end(EarlyEnd.UNREAD)
            for stream in [each for each in self.open if now - each.checked_at >= self.times.check]:
                stream.checked_at = now
                await stream.check()
                await asyncio.sleep(0)  # many streams may be due, and a check need not wait for anything
