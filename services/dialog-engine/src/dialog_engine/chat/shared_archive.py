"""Sessions and what was said in them, whichever engine is asked."""

from contextlib import suppress

from dialog_engine.chat.archive import Archive, MessageRecord, SessionRecord, Sessions, TurnRecord
from dialog_engine.chat.copies import SessionHead
from dialog_engine.chat.imports import Imports
from dialog_engine.chat.journal import Journal, NotSharedError
from dialog_engine.chat.runs import Busy, Forgotten, RunsUnavailableError, SharedCopies
from dialog_engine.errors import SessionNotFoundError, StorageUnavailableError, TurnRunningError
from dialog_engine.tool_calls.results import Answers, whole_result
from dialog_engine.tool_calls.texts import WholeResult
from plugins_contract.outcomes import ToolOutcome


class SharedArchive(Archive):
    """This engine's archive, which fetches what it lacks."""

    def __init__(self, archive: Archive, imports: Imports, answers: Answers) -> None:
        self._archive = archive
        self._imports = imports
        self._answers = answers

    async def transcript(self, subject: str, session_id: str) -> tuple[SessionRecord, list[MessageRecord]]:
        await self._imports.fresh(session_id)
        return await self._archive.transcript(subject, session_id)

    async def turns(self, subject: str, session_id: str) -> list[TurnRecord]:
        return await self._archive.turns(subject, session_id)

    async def turn(self, subject: str, turn_id: str) -> TurnRecord:
        await self._imports.fresh_turn(turn_id)
        return await self._archive.turn(subject, turn_id)

    async def outcome(self, subject: str, turn_id: str, correlation_id: str) -> ToolOutcome | None:
        await self._imports.fresh_turn(turn_id)
        return await self._archive.outcome(subject, turn_id, correlation_id)

    async def whole(self, subject: str, turn_id: str, correlation_id: str) -> WholeResult | None:
        outcome = await self.outcome(subject, turn_id, correlation_id)
        if outcome is None:
            return None
        stored = await self._archive.whole(subject, turn_id, correlation_id)
        return await whole_result(outcome, stored, self._answers, correlation_id)


class SharedSessions(Sessions):
    """The sessions of all engines. While Redis is away: those that are here."""

    def __init__(self, sessions: Sessions, shared: SharedCopies, journal: Journal) -> None:
        self._sessions = sessions
        self._shared = shared
        self._journal = journal

    async def create(self, subject: str) -> str:
        session_id = await self._sessions.create(subject)
        with suppress(NotSharedError):
            await self._journal.settled()
        return session_id

    async def list(self, subject: str, *, limit: int, before: int | None) -> list[SessionRecord]:
        records = {each.session_id: each for each in await self._sessions.list(subject, limit=limit, before=before)}
        with suppress(RunsUnavailableError):
            shared = {head.session_id: head for head in await self._shared.newest(subject, limit=limit, before=before)}
            for session_id in set(records) - set(shared):
                if isinstance(await self._shared.head(session_id), Forgotten):
                    del records[session_id]  # this engine has yet to forget it
            records |= {session_id: _newer(records.get(session_id), head) for session_id, head in shared.items()}
        return sorted(records.values(), key=lambda each: each.updated_at, reverse=True)[:limit]

    async def delete(self, subject: str, session_id: str) -> None:
        try:
            await self._forget(subject, session_id)
        except RunsUnavailableError as error:
            raise StorageUnavailableError("the session cannot be deleted everywhere now: try again") from error

    async def _forget(self, subject: str, session_id: str) -> None:
        found = await self._shared.head(session_id)
        if isinstance(found, tuple):
            if found[0].subject != subject:
                raise SessionNotFoundError(f"there is no session {session_id}")
            with suppress(NotSharedError):
                await self._journal.settled()  # the end of its last turn may be on its way
            if isinstance(answer := await self._shared.forget(session_id, subject), Busy):
                raise TurnRunningError(answer.turn_id)
            with suppress(SessionNotFoundError):
                await self._sessions.delete(subject, session_id)
            return
        await self._sessions.delete(subject, session_id)
        if not isinstance(found, Forgotten):
            await self._shared.forget(session_id, subject)


def _newer(here: SessionRecord | None, head: SessionHead) -> SessionRecord:
    if here is not None and here.updated_at > head.updated_at:
        return here
    awaits = here is not None and here.awaits_approval and here.running_turn_id == head.running_turn_id
    return SessionRecord(head.session_id, head.title, head.created_at, head.updated_at, head.running_turn_id, awaits)
