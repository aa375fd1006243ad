"""The resources of one server whose updates are wanted, and what is reported of them. Pure but for its events."""

import asyncio
import time
from collections.abc import AsyncGenerator, Generator, Iterable, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import NamedTuple

from mcp import types as sdk

from plugins_contract.updates import MAX_WATCHED, WATCHED_MS

WATCHED_SECONDS = WATCHED_MS / 1000
REPORT_SECONDS = 1.0
"""Updates of one server are reported together, this often at most, however many it sends."""
SUBSCRIBED_SECONDS = 0.5
"""How long the first read of a resource waits for its subscription: a change between both would not be known."""


class Updates:
    """What the servers of a worker have to say to engines and other workers, until it is published."""

    def __init__(self) -> None:
        self.news = asyncio.Event()
        """Set when there is something."""
        self.wanted: dict[tuple[str, str], None] = {}
        """Resources that were read, by server and URI."""
        self.updated: dict[tuple[str, Whose], dict[str, None]] = {}
        """URIs by server, and by whose session said so."""

    def add(self, server: str, whose: "Whose", uris: Iterable[str]) -> None:
        """These were updated."""
        self.updated.setdefault((server, whose), {}).update(dict.fromkeys(uris))
        self.news.set()


class Whose(NamedTuple):
    """Whose session it is at a server that keeps state, and the subject; both are '' for a session of all."""

    owner: str = ""
    subject: str = ""


OF_ALL = Whose()


class Watched:
    """The watched resources of one server, in the sessions of one owner, one after the other."""

    def __init__(self, server: str, updates: Updates, whose: Whose = OF_ALL) -> None:
        self._server = server
        self._updates = updates
        self._whose = whose
        self._until: dict[str, float] = {}
        self._known: set[str] = set()
        """Those for which there was a subscription, here or in another worker, before the present one."""
        self._learned = False
        self._pending: dict[str, None] = {}
        self._due = asyncio.Event()
        self._settled = asyncio.Event()
        self.changed = asyncio.Event()
        """Set when others are wanted than `begin` has returned."""
        self.supported = False
        """Whether the server takes subscriptions, as it has said last."""
        self._live = False

    def __len__(self) -> int:
        return len(self._until)

    @contextmanager
    def in_session(self, offers: sdk.ResourcesCapability | None) -> Generator[None]:
        """For the time of a session with a server that offers this."""
        self.supported = self._live = offers is not None and bool(offers.subscribe)
        try:
            yield
        finally:
            self._live = False

    @asynccontextmanager
    async def read(self, uri: str) -> AsyncGenerator[None]:
        """Around a read: the resource is watched from before it, unless it fails."""
        if not self._live:
            yield
            return
        new = self._want(uri, WATCHED_SECONDS)
        if new:
            with suppress(TimeoutError):
                async with asyncio.timeout(SUBSCRIBED_SECONDS):
                    await self._settled.wait()
        try:
            yield
        except Exception:
            if new:
                self._forget([uri])
            raise
        if not self._whose.owner:
            self._updates.wanted[self._server, uri] = None
            self._updates.news.set()

    def learn(self, shared: Mapping[str, float]) -> None:
        """Watch what workers share, for so many seconds each. What was watched before this server was here may have
        changed meanwhile."""
        for uri, seconds in shared.items():
            if not self._learned and uri not in self._until:
                self._known.add(uri)
            self._want(uri, seconds)
        self._learned = True

    def begin(self) -> frozenset[str]:
        """The resources that are to be subscribed to now."""
        now = time.monotonic()
        self._forget([uri for uri, until in self._until.items() if until <= now])
        self.changed.clear()
        return frozenset(self._until)

    def subscribed(self, wanted: frozenset[str], *, anew: bool) -> None:
        """These are subscribed to. `anew`: for the first time in a session, or after a loss: nothing is known of the
        time before."""
        if anew:
            for uri in [each for each in self._until if each in self._known & wanted]:
                self.updated(uri)
        self._known = set(wanted)
        if not self.changed.is_set():
            self._settled.set()

    def updated(self, uri: str) -> None:
        """The server says that a resource was updated: one that is watched, or a part of some."""
        if uri in self._pending:
            return
        for each in self._until:
            if uri == each or uri.startswith(f"{each.rstrip('/')}/"):
                self._pending[each] = None
                self._due.set()

    async def report(self) -> None:
        """Report updates, until cancelled."""
        while True:
            await self._due.wait()
            self._due.clear()
            self._updates.add(self._server, self._whose, self._pending)
            self._pending.clear()
            await asyncio.sleep(REPORT_SECONDS)

    def _want(self, uri: str, seconds: float) -> bool:
        """Whether it was not watched before. It is the last to make room for others."""
        new = uri not in self._until
        until = max(self._until.pop(uri, 0.0), time.monotonic() + seconds)
        if len(self._until) >= MAX_WATCHED:
            self._forget([next(iter(self._until))])
        self._until[uri] = until
        if new:
            self._note_change()
        return new

    def _forget(self, uris: Iterable[str]) -> None:
        for uri in uris:
            if self._until.pop(uri, None) is not None:
                self._note_change()

    def _note_change(self) -> None:
        self.changed.set()
        self._settled.clear()
