"""Lookups of host names that wait for nobody else's.

An event loop gives its lookups to a few threads which all peers share. A name server that does not answer holds each of
them for ten seconds and more, and then no connection to any peer can be made. Here each peer has one lookup at a time,
in a thread of its own, and what it answered last is used while it fails.
"""

import asyncio
import contextlib
import ipaddress
import socket
import threading
from dataclasses import dataclass
from typing import Any, NamedTuple

Addresses = list[tuple[Any, ...]]
"""What `socket.getaddrinfo` returns."""

GOOD_ANSWER_WAITS_SECONDS = 0.1
"""How long a lookup may take before the last good answer is used in its place."""
LONGEST_PAUSE_SECONDS = 5.0
MAX_PEERS = 256


@dataclass(frozen=True, slots=True)
class LookupTimes:
    """The times of lookups, in seconds."""

    fresh: float = 1.0
    """An answer is used so long without asking again."""
    lookup: float = 3.0
    """How long a lookup may take where there is no good answer."""
    first_pause: float = 0.1
    """After a failed lookup the peer is looked up again after this, then twice as long, up to the longest pause."""


class Query(NamedTuple):
    """The arguments of `socket.getaddrinfo`: a peer."""

    host: str | bytes | None
    port: str | bytes | int | None
    family: int = 0
    type: int = 0
    proto: int = 0
    flags: int = 0


class Lookups:
    """The lookups of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, times: LookupTimes = LookupTimes()) -> None:
        self._loop = loop
        self._times = times
        self._peers: dict[Query, _Peer] = {}

    async def addresses(self, query: Query) -> Addresses:
        """The addresses of `query`. Without a lookup, if its host is an address.

        Raises:
            socket.gaierror: the name cannot be looked up, and never could. The text has the name.
        """
        if is_address(query.host):
            return socket.getaddrinfo(*query)
        if query not in self._peers:
            self._make_room()
            self._peers[query] = _Peer(self._loop, query, self._times)
        return await self._peers[query].addresses()

    def _make_room(self) -> None:
        if len(self._peers) >= MAX_PEERS:
            self._peers = {query: peer for query, peer in self._peers.items() if peer.pending is not None}


class _Peer:
    """One name, as it was last known."""

    def __init__(self, loop: asyncio.AbstractEventLoop, query: Query, times: LookupTimes) -> None:
        self._loop = loop
        self._query = query
        self._times = times
        self._good: Addresses | None = None
        self._failure: Exception | None = None
        self._failures = 0
        self._begun_at = 0.0
        self._again_at = 0.0
        self.pending: asyncio.Future[None] | None = None

    async def addresses(self) -> Addresses:
        if self.pending is None and self._loop.time() >= self._again_at:
            self._begin()
        if self.pending is not None:
            limit = self._times.lookup if self._good is None else GOOD_ANSWER_WAITS_SECONDS
            left = self._begun_at + limit - self._loop.time()
            # Its result is for every caller: one that is cancelled, or waits no longer, does not end it.
            if left > 0:
                await asyncio.wait([self.pending], timeout=left)
        if self._good is not None:
            return self._good
        raise self._error()

    def _begin(self) -> None:
        self.pending = self._loop.create_future()
        self._begun_at = self._loop.time()
        # Not a thread of a pool: a name server that does not answer would hold it.
        threading.Thread(target=self._look_up, name="name lookup", daemon=True).start()

    def _look_up(self) -> None:
        found, failure = None, None
        try:
            found = socket.getaddrinfo(*self._query)
        except (OSError, UnicodeError) as error:  # a name that IDNA cannot encode
            failure = error
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._end, found, failure)

    def _end(self, found: Addresses | None, failure: Exception | None) -> None:
        if found is not None:
            self._good, self._failures, pause = found, 0, self._times.fresh
        else:
            self._failure, self._failures = failure, self._failures + 1
            pause = min(LONGEST_PAUSE_SECONDS, self._times.first_pause * 2 ** min(self._failures - 1, 10))
        self._again_at = self._loop.time() + pause
        pending, self.pending = self.pending, None
        if pending is not None:
            pending.set_result(None)

    def _error(self) -> socket.gaierror:
        host = self._query.host
        name = host.decode(errors="replace") if isinstance(host, bytes) else host
        code, reason = socket.EAI_AGAIN, f"no answer for {self._times.lookup:g} s"
        if self.pending is None:
            code = getattr(self._failure, "errno", None) or socket.EAI_NONAME
            reason = getattr(self._failure, "strerror", None) or str(self._failure)
        return socket.gaierror(code, f"the name {name!r} cannot be looked up: {reason}")


def is_address(host: str | bytes | None) -> bool:
    """Whether `host` is an IP address, or none at all: no name server is asked."""
    if not host:
        return True
    text = host.decode("ascii", errors="replace") if isinstance(host, bytes) else host
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
