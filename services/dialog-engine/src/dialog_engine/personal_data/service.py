"""The data of one subject as a whole: erased, and exported.

An erasure is accepted when it is committed. Whatever happens then, engines go on with it until nothing is left.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Protocol

from callstream_runtime.outage_log import OutageLog
from dialog_engine.chat.archive import Archive, Page, Sessions, Transcript
from dialog_engine.chat.audit import AuditAction, AuditEvent, AuditLog
from dialog_engine.errors import SessionNotFoundError, StorageUnavailableError

log = logging.getLogger(__name__)

PAGE = 100


@dataclass(frozen=True, slots=True)
class ErasureTimes:
    """The times of erasures, in seconds."""

    look: float = 2.0
    """How often an engine looks for erasures that are due."""
    settle: float = 10.0
    """How long after a deletion its traces are erased. What was on its way to Redis has arrived then: a fact that a
    relay had in hand, the last entries of a turn's log."""
    claim: float = 30.0
    """When the traces are due again, if the engine that erases them dies, Redis is away, or a call of them still
    runs."""


@dataclass(frozen=True, slots=True)
class ErasedSession:
    """A session that the store has no more, with the ids by which Redis keeps its traces. `created_at` is Unix
    milliseconds."""

    session_id: str
    created_at: int
    turn_ids: frozenset[str] = frozenset()
    correlation_ids: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Left:
    """What is left of the erasures of a subject: sessions that are still in the store, `running` those of them with a
    running turn, and the number of deleted ones whose traces in Redis are not erased yet."""

    sessions: int
    traces: int
    running: tuple[str, ...]


class Erasures(Protocol):
    """Durable erasures. Every method raises StorageUnavailableError."""

    async def delete(self, subject: str, session_id: str, *, key_id: str = "") -> Left:
        """Delete the session from the store, and accept the erasure of its traces. It may be repeated until those are
        erased. `key_id` names the credential, for the audit.

        Raises:
            SessionNotFoundError: the subject has no such session, and none that is being erased.
            TurnRunningError: a turn runs.
        """
        ...

    async def erase(self, subject: str, *, key_id: str = "") -> Left:
        """Accept the erasure of every session that the subject has now."""
        ...

    async def due(self) -> Sequence[ErasedSession]:
        """Delete the accepted sessions without a running turn from the store. Returns those whose traces are to be
        erased now; the others follow later, and these again unless they are `done`."""
        ...

    async def done(self, session_ids: Collection[str]) -> None:
        """Nothing is left of these sessions."""
        ...


class Traces(Protocol):
    """What conversations leave outside the store."""

    async def erase(self, sessions: Sequence[ErasedSession]) -> Collection[str]:
        """Remove what these sessions left, all in one pass. Returns the ids of those of which nothing can come any
        more: not of one with a call that still runs, and of none while it cannot be done."""
        ...

    async def end_state(self, subject: str = "", session_ids: Sequence[str] = ()) -> bool:
        """End what MCP servers keep for a subject and for sessions. False when that cannot be done now."""
        ...


class PersonalData:
    """Erases and exports the data of a subject. `key_id` names the credential that was used."""

    def __init__(
        self, sessions: Sessions, archive: Archive, erasures: Erasures, traces: Traces, audit: AuditLog, look_s: float
    ) -> None:
        """Erasures that are due are looked for every `look_s` seconds."""
        self._look_s = look_s
        self._sessions = sessions
        self._archive = archive
        self._erasures = erasures
        self._traces = traces
        self._audit = audit
        self._wake = asyncio.Event()
        self._subjects = set[str]()
        """Those whose state at MCP servers could not be ended yet. If this engine dies, it ends when it is not used."""
        self._outages = OutageLog(log, "the store for erasures")

    async def delete(self, subject: str, session_id: str, *, key_id: str = "") -> Left:
        """Erase a session. Raises the errors of `Erasures.delete`."""
        left = await self._erasures.delete(subject, session_id, key_id=key_id)
        await self._traces.end_state(session_ids=[session_id])  # with its other traces, if it cannot be done now
        return left

    async def erase(self, subject: str, *, key_id: str = "") -> Left:
        """Erase every session of the subject; one with a running turn when that has ended."""
        left = await self._erasures.erase(subject, key_id=key_id)
        if not await self._traces.end_state(subject):
            self._subjects.add(subject)
        last = ""
        while page := await self._sessions.ids(subject, after=last, limit=PAGE):
            await self._traces.end_state(session_ids=[each for each in page if each not in left.running])
            last = page[-1]
        self._wake.set()
        return left

    async def run(self) -> None:
        """Go on with the erasures of all engines, until cancelled."""
        while True:
            self._wake.clear()
            for subject in [*self._subjects]:
                if await self._traces.end_state(subject):
                    self._subjects.discard(subject)
            try:
                if (due := await self._erasures.due()) and (clean := await self._traces.erase(due)):
                    await self._erasures.done(clean)
                    log.info("nothing is left of %d erased sessions", len(clean))
                self._outages.worked()
            except StorageUnavailableError as error:
                self._outages.failed(error)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._look_s):
                    await self._wake.wait()

    async def export(self, subject: str, *, key_id: str = "") -> AsyncGenerator[Transcript]:
        """Every session of the subject in pages, oldest messages first, in the order of the sessions' ids, which no use
        of a session changes. Only the last page of a session has no `more`."""
        await self._audit.record(AuditEvent(AuditAction.DATA_EXPORTED, subject, key_id=key_id))
        last = ""
        while page := await self._sessions.ids(subject, after=last, limit=PAGE):
            for session_id in page:
                async for part in self._exported(subject, session_id):
                    yield part
            last = page[-1]

    async def _exported(self, subject: str, session_id: str) -> AsyncGenerator[Transcript]:
        part: Transcript | None = None
        after = 0
        try:
            while part is None or part.page.more:
                part = await self._archive.transcript(subject, session_id, limit=PAGE, after=after)
                after = part.page.messages[-1].message_id if part.page.messages else after
                yield part
        except SessionNotFoundError:  # deleted meanwhile
            if part is not None:
                yield replace(part, page=Page((), more=False), turns=())
