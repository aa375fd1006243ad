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
from dialog_engine.storage.calls import SqlCalls, read_whole
from dialog_engine.storage.database import Database, placeholders
from dialog_engine.storage.media import StoredMedia
from dialog_engine.storage.messages import StoredMessages
from dialog_engine.storage.sealed import open_text
from dialog_engine.storage.turns import add_session
from dialog_engine.tool_calls.execution import OpenCall
from dialog_engine.tool_calls.results.shortening import whole_of
from dialog_engine.tool_calls.values import WholeResult
from plugins_contract.encryption import CLEAR, Cipher
from plugins_contract.messages import new_id
from plugins_contract.outcomes import MediaBlock, ToolOutcome

PAGE_BYTES = 1_000_000
"""A page of a transcript ends with the message that reaches this many bytes."""
_SESSION = (
    "SELECT s.session_id, s.title, s.created_at, s.updated_at,"
    " (SELECT turn_id FROM turns t WHERE t.session_id = s.session_id AND t.status = 'running'),"
    " EXISTS (SELECT 1 FROM turns t JOIN tool_calls c USING (turn_id) JOIN approvals a USING (correlation_id)"
    " WHERE t.session_id = s.session_id AND t.status = 'running' AND c.outcome IS NULL AND a.decision IS NULL)"
    " FROM sessions s"
)
_NEWEST = SessionPlace(2**62)
_TURN = (
    "SELECT turn_id, s.session_id, status, reason, input_tokens, output_tokens, estimated, ttft_ms, error_code,"
    " error_message, t.created_at, finished_at, t.model,"
    " (SELECT count(*) FROM tool_calls c WHERE c.turn_id = t.turn_id), credential"
    " FROM turns t JOIN sessions s USING (session_id)"
)


class SqlSessions(Sessions):
    """The sessions of all subjects."""

    def __init__(self, database: Database, cipher: Cipher = CLEAR) -> None:
        self._database = database
        self._cipher = cipher

    async def create(self, subject: str) -> str:
        session_id = new_id()
        await self._database.write(lambda tx: add_session(tx, self._cipher, session_id, subject, ""))
        return session_id

    async def list(self, subject: str, *, limit: int, before: SessionPlace | None) -> list[SessionRecord]:
        place = before or _NEWEST
        rows = await self._database.read(
            f"{_SESSION} WHERE s.subject = $1 AND (s.updated_at, s.session_id) < ($2, $3)"
            " ORDER BY s.updated_at DESC, s.session_id DESC LIMIT $4",
            subject,
            place.updated_at,
            place.session_id,
            limit,
        )
        return [_session_record(self._cipher, *row) for row in rows]

    async def ids(self, subject: str, *, after: str, limit: int) -> Sequence[str]:
        query = "SELECT session_id FROM sessions WHERE subject = $1 AND session_id > $2 ORDER BY session_id LIMIT $3"
        return [session_id for (session_id,) in await self._database.read(query, subject, after, limit)]


class SqlArchive(Archive, History):
    """Messages and turns, for the model and for users."""

    def __init__(self, database: Database, calls: SqlCalls, cipher: Cipher = CLEAR) -> None:
        self._database = database
        self._cipher = cipher
        self._calls = calls
        self._messages = StoredMessages(database, cipher)
        self._media = StoredMedia(database, cipher)

    async def transcript(
        self, subject: str, session_id: str, *, limit: int, before: int | None = None, after: int | None = None
    ) -> Transcript:
        found = await self._database.read(f"{_SESSION} WHERE s.session_id = $1 AND s.subject = $2", session_id, subject)
        if not found:
            raise SessionNotFoundError(f"there is no session {session_id}")
        if after is None:
            page = (await self.page(session_id, before=before, limit=limit, size=PAGE_BYTES)).from_a_question()
        else:
            newer = await self._messages.newer(session_id, after=after, limit=limit, size=PAGE_BYTES)
            page = Page(newer, more=bool(newer))
        ids = sorted({message.turn_id for message in page.messages})
        rows = await self._database.read(
            f"{_TURN} WHERE turn_id IN ({placeholders(1, len(ids))}) ORDER BY t.created_at, turn_id", *ids
        )
        return Transcript(
            _session_record(self._cipher, *found[0]), page, [_turn_record(self._cipher, *row) for row in rows]
        )

    async def turn(self, subject: str, turn_id: str) -> TurnRecord:
        rows = await self._database.read(f"{_TURN} WHERE turn_id = $1 AND subject = $2", turn_id, subject)
        if not rows:
            raise TurnNotFoundError(f"there is no turn {turn_id}")
        return _turn_record(self._cipher, *rows[0])

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
        rows = await self._database.read("SELECT whole FROM whole_results WHERE correlation_id = $1", correlation_id)
        return read_whole(self._cipher, correlation_id, rows[0][0]) if rows else None

    async def page(self, session_id: str, *, before: int | None, limit: int, size: int) -> Page:
        return await self._messages.older(session_id, before=before, limit=limit, size=size)

    async def turn_messages(self, turn_id: str) -> Sequence[MessageRecord]:
        return await self._messages.of_turn(turn_id)

    async def open_calls(self, turn: Turn) -> Sequence[OpenCall]:
        return await self._calls.open_calls(turn)


def _session_record(
    cipher: Cipher,
    session_id: str,
    title: str,
    created_at: int,
    updated_at: int,
    running_turn_id: str | None,
    awaits_approval: int,
) -> SessionRecord:
    title = open_text(cipher, title, "sessions.title", session_id)
    return SessionRecord(session_id, title, created_at, updated_at, running_turn_id, bool(awaits_approval))


def _turn_record(
    cipher: Cipher,
    turn_id: str,
    session_id: str,
    status: str,
    reason: str | None,
    input_tokens: int,
    output_tokens: int,
    estimated: int,
    ttft_ms: int | None,
    error_code: str | None,
    error_message: str | None,
    created_at: int,
    finished_at: int | None,
    model: str | None,
    tool_calls: int,
    credential: str,
) -> TurnRecord:
    message = open_text(cipher, error_message or "", "turns.error_message", turn_id)
    failure = TurnFailed(error_code, message) if error_code else None
    usage = Usage(input_tokens, output_tokens, bool(estimated))
    return TurnRecord(
        turn_id,
        session_id,
        status,
        reason,
        usage,
        ttft_ms,
        failure,
        created_at,
        finished_at,
        model,
        tool_calls,
        credential,
    )
