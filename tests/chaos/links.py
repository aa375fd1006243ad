"""The links of the proxy: one per connection of a client, with a lane in each direction, and books over all of them."""

import asyncio
import contextlib
import hashlib
import random
import socket
import struct
from collections import Counter, deque

from tests.chaos.faults import NO_FAULTS, Counts, Faults
from tests.chaos.frames import Frames, is_push, words_of

HIGH_WATER = 1 << 20
"""Bytes waiting in a lane above which their sender is not read any further."""
_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER: close with RST."""
_PUSHED = ("SUBSCRIBE", "PSUBSCRIBE", "SSUBSCRIBE", "UNSUBSCRIBE", "PUNSUBSCRIBE", "SUNSUBSCRIBE")
"""On RESP3 these are answered by pushes only."""


class Books:
    """What all links share: the faults, and the counts."""

    def __init__(self, redis: bool, seed: int) -> None:
        self.redis = redis
        self.faults = NO_FAULTS
        self.links: set[Link] = set()
        self._random = random.Random(seed)
        self._by_kind: Counter[str] = Counter()
        self._lost: Counter[str] = Counter()

    def set(self, faults: Faults) -> None:
        self.faults = faults
        for link in list(self.links):
            link.requests.flush()
            link.replies.flush()

    def counts(self) -> Counts:
        return Counts(dict(self._by_kind), dict(self._lost))

    def came(self, kind: str) -> bool:
        """Count a command. True when its reply is to be lost."""
        self._by_kind[kind] += 1
        return (
            self.faults.lose_first_of_each and kind not in self._lost
        ) or self._random.random() < self.faults.lose_share

    def lost(self, kind: str) -> None:
        self._lost[kind] += 1


class Link:
    """One connection of a client, and its twin to the server."""

    def __init__(self, books: Books, server_port: int) -> None:
        self.books = books
        self.client = Side(self)
        self.server = Side(self)
        self.requests = Lane(self, self.client, self.server)
        self.replies = Lane(self, self.server, self.client)
        self._server_port = server_port
        self._connecting: asyncio.Task[None] | None = None
        self._commands = Frames()
        self._answers = Frames()
        self._unanswered: deque[tuple[str, bool]] = deque()
        """Commands in order: the kind, and whether the reply is to be lost."""

    def opened(self, side: "Side") -> None:
        if side is self.client:
            self.books.links.add(self)
            self._connecting = asyncio.create_task(self._connect())
        elif self not in self.books.links:
            side.abort()  # broken while it was connecting

    def passed(self, side: "Side", data: bytes) -> None:
        if side is self.client:
            if self.books.redis:
                self._note(data)
            self.requests.put(data)
        elif self.books.redis:
            self._answer(data)
        else:
            self.replies.put(data)

    def ended(self, side: "Side") -> None:
        """A side will send no more; the news travels behind what it has sent."""
        (self.requests if side is self.client else self.replies).put(b"")
        self.settle()

    def settle(self) -> None:
        """Close what nothing will pass any more."""
        replied = self.replies.over and (self.requests.over or self.server.is_gone)
        if replied or (self.requests.over and self.client.is_gone):
            self.client.close()
            self.server.close()
            self.books.links.discard(self)

    def abort(self) -> None:
        self.books.links.discard(self)
        for lane in (self.requests, self.replies):
            lane.drop()
        for side in (self.client, self.server):
            side.abort()

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.create_connection(lambda: self.server, "127.0.0.1", self._server_port)
        except OSError:
            self.abort()

    def _note(self, data: bytes) -> None:
        for frame in self._commands.feed(data):
            name, *rest = words_of(frame, 2)
            kind = name.decode().upper()
            if kind == "EVAL":
                kind = f"EVALSHA {hashlib.sha1(rest[0], usedforsecurity=False).hexdigest()}"
            elif kind == "EVALSHA":
                kind = f"EVALSHA {rest[0].decode()}"
            if kind not in _PUSHED:
                self._unanswered.append((kind, self.books.came(kind)))

    def _answer(self, data: bytes) -> None:
        """Pass on the replies in `data`, up to one that is to be lost."""
        whole: list[bytes] = []
        lose = False
        for frame in self._answers.feed(data):
            if self._unanswered and not is_push(frame):
                kind, lose = self._unanswered.popleft()
                if lose:
                    self.books.lost(kind)
                    break
            whole.append(frame)
        if whole:
            self.replies.put(b"".join(whole))
        if lose:
            self.replies.put(b"")
            self.server.abort()


class Lane:
    """One direction of a link: what is late or held waits here. Nothing at all (`b""`) is the end, and travels too."""

    def __init__(self, link: Link, source: "Side", sink: "Side") -> None:
        self._link = link
        self._source = source
        self._sink = sink
        self._waiting: deque[tuple[float, bytes]] = deque()
        self._size = 0
        self._free_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.over = False
        """Whether its end has arrived, or nothing can arrive any more."""

    def put(self, data: bytes) -> None:
        if self.over:
            return
        faults = self._link.books.faults
        delay = faults.delay_replies if self is self._link.replies else 0
        due = max(asyncio.get_running_loop().time() + delay, self._free_at)
        if faults.bytes_per_second:
            due += len(data) / faults.bytes_per_second
        self._free_at = due
        self._waiting.append((due, data))
        self._size += len(data)
        if self._size > HIGH_WATER:
            self._source.read_on(False)
        self.flush()

    def flush(self) -> None:
        """Let go what is due."""
        loop = asyncio.get_running_loop()
        while self._waiting and not self._held() and self._waiting[0][0] <= loop.time():
            _, data = self._waiting.popleft()
            self._size -= len(data)
            self._sink.write(data)
            if not data:
                self.over = True
                self._link.settle()
        if self._size <= HIGH_WATER:
            self._source.read_on(True)
        if self._waiting and self._timer is None and not self._held():
            self._timer = loop.call_at(self._waiting[0][0], self._wake)

    def drop(self) -> None:
        """Nothing more arrives."""
        self._waiting.clear()
        self.over = True

    def _wake(self) -> None:
        self._timer = None
        self.flush()

    def _held(self) -> bool:
        faults = self._link.books.faults
        return faults.hold_requests if self is self._link.requests else faults.hold_replies


class Side(asyncio.Protocol):
    def __init__(self, link: Link) -> None:
        self._link = link
        self._transport: asyncio.Transport | None = None
        self._early: list[bytes] = []
        self._paused = False
        self.is_gone = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._link.opened(self)
        for data in self._early:
            self.write(data)

    def data_received(self, data: bytes) -> None:
        self._link.passed(self, data)

    def eof_received(self) -> bool:
        self._link.ended(self)
        return True  # the other direction stays open

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_gone = True
        self._link.ended(self)

    def write(self, data: bytes) -> None:
        """Send it; `b""` says that no more will come."""
        if self._transport is None:
            self._early.append(data)
        elif self._transport.is_closing():
            pass
        elif data:
            self._transport.write(data)
        else:
            with contextlib.suppress(OSError):  # a peer that is gone answers what comes late with RST
                self._transport.write_eof()

    def read_on(self, more: bool) -> None:
        """Whether to take what the peer sends."""
        if self._transport is not None and self._paused is more and not self._transport.is_closing():
            self._paused = not more
            self._transport.resume_reading() if more else self._transport.pause_reading()

    def close(self) -> None:
        """End it when what was written has been sent."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Break it: the peer gets RST."""
        if self._transport is not None and not self._transport.is_closing():
            raw: socket.socket = self._transport.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self._transport.abort()
