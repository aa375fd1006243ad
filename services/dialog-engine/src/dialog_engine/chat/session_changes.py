"""Changes of sessions, as `GET /v1/events` sends them to the browsers of a subject.

Each change gives its session the next revision, in its own transaction. A reader has seen everything up to one, and
asks for what came after it. Revisions are settled in their order: up to `settled` none can appear any more.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from callstream_runtime.outage_log import OutageLog
from dialog_engine.chat.archive import SessionRecord
from dialog_engine.errors import StorageUnavailableError
from plugins_contract.updates import ResourcesUpdated

log = logging.getLogger(__name__)

POLL_SECONDS = 3.0
"""How often the store is asked for changes that no engine has announced, as while Redis is away."""
UNSETTLED_SECONDS = 0.05
"""When it is asked again for a change that is committed, but not settled."""
PAUSE_SECONDS = 0.25
"""A reader gets the changes of so long at once: a session is in at most four of them in a second."""
MAX_UPDATED = 1_000
"""How many updated resources a reader may lack. Those beyond are not sent: a reader so slow reads again anyway."""
MAX_CHANGES = 500
"""A reader that lacks more is asked to read the list of sessions again."""


@dataclass(frozen=True, slots=True)
class SessionChange:
    """What a session is now; `record` is None when it is deleted."""

    revision: int
    session_id: str
    record: SessionRecord | None


@dataclass(frozen=True, slots=True)
class Changes:
    """What a reader gets. It has seen everything up to `after`, and then up to `revision`. When `changes` is None, it
    has to read the list of sessions again."""

    after: int
    revision: int
    changes: Sequence[SessionChange] | None
    updated: Sequence[tuple[str, str]] = ()
    """Resources that may have changed, by server and URI."""


@dataclass(frozen=True, slots=True)
class Changed:
    """Whose sessions have changed. `unsettled`: further changes are committed."""

    settled: int
    owners: frozenset[str]
    """Subjects, and the digests of those whose sessions were deleted."""
    unsettled: bool


class SessionChangeStore(Protocol):
    """Revisions of sessions in the store. Raises StorageUnavailableError."""

    async def settled(self) -> int:
        """The last revision that is settled."""
        ...

    async def changed(self, after: int) -> Changed:
        """Whose sessions have changed after a revision."""
        ...

    async def of(self, subject: str, after: int, limit: int) -> Changes:
        """The settled changes of a subject's sessions after a revision, in their order; None when they are more than
        `limit`, or are not known: deletions are kept for a day, and the store may have been restored."""
        ...

    def digest(self, subject: str) -> str:
        """The digest of a subject that deletions have."""
        ...


@dataclass(eq=False, slots=True)
class _Reader:
    woken: asyncio.Event = field(default_factory=asyncio.Event)
    updated: dict[tuple[str, str], None] = field(default_factory=dict[tuple[str, str], None])


class SessionFeed:
    """Wakes the readers of this engine. `tools` changes with the state of the tools, of which they are woken too."""

    def __init__(self, store: SessionChangeStore, tools: Callable[[], object]) -> None:
        self._store = store
        self._tools = tools
        self._seen_tools = tools()
        self._seen: int | None = None
        self._readers: defaultdict[str, set[_Reader]] = defaultdict(set)
        self._announced = asyncio.Event()
        self._closed = False
        self._outages = OutageLog(log, "looking for changed sessions")

    @property
    def readers(self) -> int:
        """How many."""
        return sum(map(len, self._readers.values())) // 2  # each is there by its subject and by its digest

    def announce(self) -> None:
        """Some engine has committed a change."""
        self._announced.set()

    def resource_updated(self, update: ResourcesUpdated) -> None:
        """Tell the readers, or those of its subject. What each may know of is decided where they are answered."""
        owners = [update.subject] if update.subject else [*self._readers]
        for reader in {reader for owner in owners for reader in self._readers.get(owner, ())}:
            for uri in update.uris:
                if len(reader.updated) < MAX_UPDATED:
                    reader.updated[update.server, uri] = None
            reader.woken.set()

    def release_readers(self) -> None:
        """End the streams of all readers, now and later."""
        self._closed = True
        self._wake(self._readers)

    async def run(self) -> None:
        """Look for changes until cancelled."""
        while True:
            try:
                async with asyncio.timeout(POLL_SECONDS):
                    await self._announced.wait()
            except TimeoutError:
                pass
            self._announced.clear()
            if self._readers:
                try:
                    await self._look()
                except StorageUnavailableError as error:
                    self._outages.failed(error)
                else:
                    self._outages.worked()
            else:
                self._seen = None

    async def _look(self) -> None:
        if self._seen is None:
            self._seen = await self._store.settled()
            self._wake(self._readers)
        if (tools := self._tools()) != self._seen_tools:
            self._seen_tools = tools
            self._wake(self._readers)
        changed = await self._store.changed(self._seen)
        self._seen = changed.settled
        self._wake(changed.owners)
        if changed.unsettled:
            asyncio.get_running_loop().call_later(UNSETTLED_SECONDS, self.announce)

    def _wake(self, owners: Iterable[str]) -> None:
        for owner in owners:
            for reader in self._readers.get(owner, ()):
                reader.woken.set()

    async def follow(self, subject: str, after: int | None) -> AsyncGenerator[Changes]:
        """The changes of a subject's sessions after a revision; without one from now on.

        An item has no changes when only the tools may have changed. The stream ends when the engine shuts down, or the
        store is away: the reader must ask again.
        """
        reader, owners = _Reader(), (subject, self._store.digest(subject))
        for owner in owners:
            self._readers[owner].add(reader)
        try:
            while not self._closed:
                reader.woken.clear()
                updated = [*reader.updated]
                reader.updated.clear()
                if after is None:
                    found = Changes(0, await self._store.settled(), None)
                else:
                    found = await self._store.of(subject, after, MAX_CHANGES)
                yield replace(found, updated=updated) if updated else found
                after = found.revision
                await asyncio.sleep(PAUSE_SECONDS)
                await reader.woken.wait()
        except StorageUnavailableError:
            return
        finally:
            for owner in owners:
                self._readers[owner].discard(reader)
                if not self._readers[owner]:
                    del self._readers[owner]
