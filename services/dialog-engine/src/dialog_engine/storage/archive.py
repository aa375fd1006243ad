"""Sessions, messages and turns as the model and users read them."""

from collections.abc import Sequence

import msgspec

from dialog_engine.chat.archive import (
    Archive,
    CallRecord,
    MessageRecord,
    Page,
    SessionPlace,
    SessionRecord,
    Sessions,
    Transcript,
    TurnRecord,
)
from dialog_engine.chat.ports import History
from dialog_engine.errors import SessionNotFoundError, TurnNotFoundError
from dialog_engine.model import MediaInStore, Turn, TurnFailed, Usage
from dialog_engine.storage.calls import SqlCalls
from dialog_engine.storage.database import Row, placeholders
from dialog_engine.storage.media import StoredMedia
from dialog_engine.storage.messages import StoredMessages
from dialog_engine.storage.store import SealedDatabase, Store
from dialog_engine.storage.turns import add_session
from dialog_engine.tool_calls.execution import OpenCall
from dialog_engine.tool_calls.results.shortening import whole_of
from dialog_engine.tool_calls.values import WholeResult
from plugins_contract.messages import new_id
from plugins_contract.outcomes import MediaBlock, ToolOutcome

PAGE_BYTES = 1_000_000
"""A page of a transcript ends with the message that reaches this many bytes."""
SESSION = (
    "SELECT s.session_id, s.title, s.created_at, s.updated_at, s.revision,"
    " (SELECT turn_id FROM turns t WHERE t.session_id = s.session_id AND t.status = 'running') AS running_turn_id,"
    " EXISTS (SELECT 1 FROM turns t JOIN tool_calls c USING (turn_id) JOIN approvals a USING (correlation_id)"
    " WHERE t.session_id = s.session_id AND t.status = 'running' AND c.outcome IS NULL AND a.decision IS NULL)"
    " AS awaits_approval FROM sessions s"
)
"""Sessions as `session_record` reads them."""
_NEWEST = SessionPlace(2**62)
_TURN = (
    "SELECT turn_id, s.session_id, status, reason, input_tokens, output_tokens, estimated, ttft_ms, error_code,"
    " error_message, t.created_at, finished_at, t.model,"
    " (SELECT count(*) FROM tool_calls c WHERE c.turn_id = t.turn_id) AS tool_calls, credential"
    " FROM turns t JOIN sessions s USING (session_id)"
)


class SqlSessions(Sessions):
    """The sessions of all subjects."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def create(self, subject: str) -> str:
        session_id = new_id()
        await self._store.write(lambda tx: add_session(tx, session_id, subject, ""))
        return session_id

    async def list(self, subject: str, *, limit: int, before: SessionPlace | None) -> list[SessionRecord]:
        place = before or _NEWEST
        rows = await self._store.read(
            f"{SESSION} WHERE s.subject = $1 AND (s.updated_at, s.session_id) < ($2, $3)"
            " ORDER BY s.updated_at DESC, s.session_id DESC LIMIT $4",
            subject,
            place.updated_at,
            place.session_id,
            limit,
        )
        return [*map(session_record, rows)]

    async def ids(self, subject: str, *, after: str, limit: int) -> Sequence[str]:
        query = "SELECT session_id FROM sessions WHERE subject = $1 AND session_id > $2 ORDER BY session_id LIMIT $3"
        return [row.session_id for row in await self._store.read(query, subject, after, limit)]


class SqlArchive(Archive, History):
    """Messages and turns, for the model and for users."""

    def __init__(self, store: SealedDatabase, calls: SqlCalls) -> None:
        self._store = store
        self._calls = calls
        self._messages = StoredMessages(store)
        self._media = StoredMedia(store)

    async def transcript(
        self, subject: str, session_id: str, *, limit: int, before: int | None = None, after: int | None = None
    ) -> Transcript:
        found = await self._store.read(f"{SESSION} WHERE s.session_id = $1 AND s.subject = $2", session_id, subject)
        if not found:
            raise SessionNotFoundError(f"there is no session {session_id}")
        if after is None:
            page = (await self.page(session_id, before=before, limit=limit, size=PAGE_BYTES)).from_a_question()
        else:
            newer = await self._messages.newer(session_id, after=after, limit=limit, size=PAGE_BYTES)
            page = Page(newer, more=bool(newer))
        ids = sorted({message.turn_id for message in page.messages})
        rows = await self._store.read(
            f"{_TURN} WHERE turn_id IN ({placeholders(1, len(ids))}) ORDER BY t.created_at, turn_id", *ids
        )
        return Transcript(session_record(found[0]), page, [*map(_turn_record, rows)])

    async def turn(self, subject: str, turn_id: str) -> TurnRecord:
        rows = await self._store.read(f"{_TURN} WHERE turn_id = $1 AND subject = $2", turn_id, subject)
        if not rows:
            raise TurnNotFoundError(f"there is no turn {turn_id}")
        return _turn_record(rows[0])

    async def asked(self, turn_id: str, call_id: str) -> Sequence[CallRecord]:
        return await self._messages.asked(turn_id, call_id)

    async def outcome(self, subject: str, turn_id: str, correlation_id: str) -> ToolOutcome | None:
        await self.turn(subject, turn_id)
        return await self._messages.outcome(turn_id, correlation_id)

    async def media(self, subject: str, turn_id: str, correlation_id: str, number: int) -> MediaBlock | None:
        outcome = await self.outcome(subject, turn_id, correlation_id)
        if outcome is None or not 0 <= number < len(outcome.content):
            return None
        block = outcome.content[number]
        if not isinstance(block, MediaBlock) or block.data:
            return block if isinstance(block, MediaBlock) else None
        data = await self._media.fetch(correlation_id, number)
        return None if data is None else msgspec.structs.replace(block, data=data)

    async def fetched(self, media: MediaInStore) -> MediaBlock:
        data = await self._media.fetch(media.correlation_id, media.number)
        return MediaBlock(media.mime_type, data or "", media.uri)

    async def whole(self, subject: str, turn_id: str, correlation_id: str) -> WholeResult | None:
        outcome = await self.outcome(subject, turn_id, correlation_id)
        if outcome is None or not outcome.truncated:
            return outcome and whole_of(outcome)
        query = "SELECT correlation_id, whole FROM whole_results WHERE correlation_id = $1"
        rows = await self._store.read(query, correlation_id)
        return msgspec.json.decode(rows[0].whole, type=WholeResult) if rows else None

    async def page(self, session_id: str, *, before: int | None, limit: int, size: int) -> Page:
        return await self._messages.older(session_id, before=before, limit=limit, size=size)

    async def turn_messages(self, turn_id: str) -> Sequence[MessageRecord]:
        return await self._messages.of_turn(turn_id)

    async def open_calls(self, turn: Turn) -> Sequence[OpenCall]:
        return await self._calls.open_calls(turn)


def session_record(row: Row) -> SessionRecord:
    """A row of `SESSION`."""
    return SessionRecord(
        row.session_id,
        row.title,
        row.created_at,
        row.updated_at,
        row.running_turn_id,
        bool(row.awaits_approval),
        row.revision,
    )


def _turn_record(row: Row) -> TurnRecord:
    return TurnRecord(
        row.turn_id,
        row.session_id,
        row.status,
        row.reason,
        Usage(row.input_tokens, row.output_tokens, bool(row.estimated)),
        row.ttft_ms,
        TurnFailed(row.error_code, row.error_message or "") if row.error_code else None,
        row.created_at,
        row.finished_at,
        row.model,
        row.tool_calls,
        row.credential,
    )
