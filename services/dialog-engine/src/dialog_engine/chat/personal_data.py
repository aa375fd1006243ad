"""The data of one subject as a whole: deleted session by session, erased, and exported."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Protocol

from dialog_engine.chat.archive import (
    Archive,
    DeletedSession,
    MessageRecord,
    SessionPlace,
    SessionRecord,
    Sessions,
    TurnRecord,
)
from dialog_engine.chat.audit import AuditAction, AuditEvent, AuditLog
from dialog_engine.errors import SessionNotFoundError, TurnRunningError

PAGE = 100


class Traces(Protocol):
    """What a conversation leaves outside the store."""

    async def erase(self, session: DeletedSession) -> None:
        """Remove what the session left. What cannot be removed now expires by itself."""
        ...


@dataclass(frozen=True, slots=True)
class Erased:
    """How many sessions were deleted, and those that were not, because a turn of theirs runs."""

    deleted: int
    running: tuple[str, ...]


class PersonalData:
    """Deletes and reads the data of a subject, and records it. `key_id` names the credential that was used."""

    def __init__(self, sessions: Sessions, archive: Archive, traces: Traces, audit: AuditLog) -> None:
        self._sessions = sessions
        self._archive = archive
        self._traces = traces
        self._audit = audit

    async def delete(self, subject: str, session_id: str, *, key_id: str = "") -> None:
        """Delete a session and its traces. Raises the errors of `Sessions.delete`."""
        await self._traces.erase(await self._sessions.delete(subject, session_id, key_id=key_id))

    async def erase(self, subject: str, *, key_id: str = "") -> Erased:
        """Delete every session of the subject that has no running turn."""
        deleted, running = 0, list[str]()
        for session in [session async for session in self._each(subject)]:
            try:
                await self.delete(subject, session.session_id, key_id=key_id)
                deleted += 1
            except TurnRunningError:
                running.append(session.session_id)
            except SessionNotFoundError:
                pass  # deleted meanwhile
        outcome = f"{deleted} sessions deleted, {len(running)} running"
        await self._audit.record(AuditEvent(AuditAction.DATA_ERASED, subject, key_id=key_id, outcome=outcome))
        return Erased(deleted, tuple(running))

    async def export(
        self, subject: str, *, key_id: str = ""
    ) -> AsyncGenerator[tuple[SessionRecord, list[MessageRecord], list[TurnRecord]], None]:
        """Every session of the subject with its messages and turns, the one changed last first."""
        await self._audit.record(AuditEvent(AuditAction.DATA_EXPORTED, subject, key_id=key_id))
        async for session in self._each(subject):
            try:
                record, messages = await self._archive.transcript(subject, session.session_id)
                yield record, messages, await self._archive.turns(subject, session.session_id)
            except SessionNotFoundError:
                pass  # deleted meanwhile

    async def _each(self, subject: str) -> AsyncGenerator[SessionRecord, None]:
        """The sessions by pages."""
        before: SessionPlace | None = None
        while page := await self._sessions.list(subject, limit=PAGE, before=before):
            for session in page:
                yield session
            before = page[-1].place
