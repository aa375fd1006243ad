"""Sessions, messages and turns as the model and users read them."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

import msgspec

from dialog_engine.chat.archive import (
    Archive,
    CallRecord,
    MessageRecord,
    SessionPlace,
    SessionRecord,
    Sessions,
    TurnRecord,
)
from dialog_engine.chat.ports import History
from dialog_engine.errors import SessionNotFoundError, TurnNotFoundError
from dialog_engine.model import (
    AssistantMessage,
    Message,
    ToolCall,
    Turn,
    TurnFailed,
    Usage,
    UserMessage,
)
from dialog_engine.storage.calls import SqlCalls, read_whole
from dialog_engine.storage.database import Database, Row
from dialog_engine.storage.sealed import open_data, open_text
from dialog_engine.storage.turns import add_session
from dialog_engine.tool_calls.approvals.rules import Approval, Decision, Question
from dialog_engine.tool_calls.execution import OpenCall
from dialog_engine.tool_calls.results.shortening import WholeResult, whole_of
from dialog_engine.tool_calls.results.views import tool_message
from plugins_contract.encryption import CLEAR, Cipher
from plugins_contract.messages import new_id
from plugins_contract.outcomes import ToolOutcome

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
    " (SELECT count(*) FROM tool_calls c WHERE c.turn_id = t.turn_id)"
    " FROM turns t JOIN sessions s USING (session_id)"
)
_MESSAGES = (
    "SELECT m.number, m.turn_id, m.role, m.content, m.reasoning, m.interrupted, m.created_at,"
    " c.tool_call_id, c.correlation_id, c.name, c.arguments, c.tool, c.extra, c.server, c.outcome,"
    " a.question, a.decision FROM messages m LEFT JOIN tool_calls c ON c.message_id = m.message_id"
    " LEFT JOIN approvals a ON a.correlation_id = c.correlation_id"
    " WHERE m.{} = $1 ORDER BY m.number, m.message_id, c.ordinal"
)
_MESSAGES_OF_SESSION = _MESSAGES.format("session_id")
_MESSAGES_OF_TURN = _MESSAGES.format("turn_id")


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

    async def transcript(self, subject: str, session_id: str) -> tuple[SessionRecord, list[MessageRecord]]:
        sessions = await self._database.read(
            f"{_SESSION} WHERE s.session_id = $1 AND s.subject = $2", session_id, subject
        )
        if not sessions:
            raise SessionNotFoundError(f"there is no session {session_id}")
        rows = await self._database.read(_MESSAGES_OF_SESSION, session_id)
        return _session_record(self._cipher, *sessions[0]), [_message_record(*each) for each in self._by_message(rows)]

    async def turns(self, subject: str, session_id: str) -> list[TurnRecord]:
        rows = await self._database.read(
            f"{_TURN} WHERE s.session_id = $1 AND subject = $2 ORDER BY t.created_at, turn_id", session_id, subject
        )
        return [_turn_record(self._cipher, *row) for row in rows]

    async def turn(self, subject: str, turn_id: str) -> TurnRecord:
        rows = await self._database.read(f"{_TURN} WHERE turn_id = $1 AND subject = $2", turn_id, subject)
        if not rows:
            raise TurnNotFoundError(f"there is no turn {turn_id}")
        return _turn_record(self._cipher, *rows[0])

    async def outcome(self, subject: str, turn_id: str, correlation_id: str) -> ToolOutcome | None:
        await self.turn(subject, turn_id)
        rows = await self._database.read(
            "SELECT outcome FROM tool_calls WHERE turn_id = $1 AND correlation_id = $2", turn_id, correlation_id
        )
        return _outcome(self._cipher, correlation_id, rows[0][0]) if rows else None

    async def whole(self, subject: str, turn_id: str, correlation_id: str) -> WholeResult | None:
        outcome = await self.outcome(subject, turn_id, correlation_id)
        if outcome is None or not outcome.truncated:
            return outcome and whole_of(outcome)
        rows = await self._database.read("SELECT whole FROM whole_results WHERE correlation_id = $1", correlation_id)
        return read_whole(self._cipher, correlation_id, rows[0][0]) if rows else None

    async def messages(self, session_id: str) -> list[Message]:
        messages: list[Message] = []
        for head, calls in self._by_message(await self._database.read(_MESSAGES_OF_SESSION, session_id)):
            _, _, role, content, reasoning, interrupted, _ = head
            if role == "user":
                messages.append(UserMessage(content))
                continue
            tool_calls = tuple(record.call for record in calls)
            messages.append(AssistantMessage(content, tool_calls, reasoning, bool(interrupted)))
            messages.extend(
                tool_message(record.call, record.outcome, _edited(record))
                for record in calls
                if record.outcome is not None
            )
        return messages

    async def turn_messages(self, turn: Turn) -> list[MessageRecord]:
        rows = await self._database.read(_MESSAGES_OF_TURN, turn.turn_id)
        return [_message_record(*each) for each in self._by_message(rows)]

    async def open_calls(self, turn: Turn) -> Sequence[OpenCall]:
        return await self._calls.open_calls(turn)

    def _by_message(self, rows: Iterable[Row]) -> Iterable[tuple[Row, list[CallRecord]]]:
        """The columns of each message, and its calls."""
        for (number, turn_id, role, content, reasoning, *rest), group in groupby(rows, key=lambda row: row[:7]):
            content = open_text(self._cipher, content, "messages.content", turn_id, role)  # noqa: PLW2901
            reasoning = open_text(self._cipher, reasoning, "messages.reasoning", turn_id, role)  # noqa: PLW2901
            calls = [_call_record(self._cipher, *row[7:]) for row in group if row[8] is not None]
            yield (number, turn_id, role, content, reasoning, *rest), calls


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


def _call_record(
    cipher: Cipher,
    tool_call_id: str,
    correlation_id: str,
    name: str,
    arguments: str,
    tool: str,
    extra: bytes | None,
    server: str,
    outcome: bytes | None,
    question: bytes | None,
    decision: bytes | None,
) -> CallRecord:
    arguments = open_text(cipher, arguments, "tool_calls.arguments", correlation_id)
    echoed = msgspec.json.decode(open_data(cipher, extra, "tool_calls.extra", correlation_id)) if extra else None
    call = ToolCall(tool_call_id, correlation_id, name, arguments, echoed, tool)
    approval = _approval(cipher, correlation_id, question, decision) if question else None
    return CallRecord(call, server, _outcome(cipher, correlation_id, outcome), approval)


def _approval(cipher: Cipher, correlation_id: str, question: bytes, decision: bytes | None) -> Approval:
    asked = msgspec.json.decode(open_data(cipher, question, "approvals.question", correlation_id), type=Question)
    if not decision:
        return Approval(asked)
    data = open_data(cipher, decision, "approvals.decision", correlation_id)
    return Approval(asked, msgspec.json.decode(data, type=Decision))


def _edited(record: CallRecord) -> Mapping[str, Any] | None:
    return record.approval.edited if record.approval else None


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
) -> TurnRecord:
    message = open_text(cipher, error_message or "", "turns.error_message", turn_id)
    failure = TurnFailed(error_code, message) if error_code else None
    usage = Usage(input_tokens, output_tokens, bool(estimated))
    return TurnRecord(
        turn_id, session_id, status, reason, usage, ttft_ms, failure, created_at, finished_at, model, tool_calls
    )


def _message_record(head: Row, calls: list[CallRecord]) -> MessageRecord:
    message_id, turn_id, role, content, _, interrupted, created_at = head
    return MessageRecord(message_id, turn_id, role, content, bool(interrupted), created_at, tuple(calls))


def _outcome(cipher: Cipher, correlation_id: str, data: bytes | None) -> ToolOutcome | None:
    if data is None:
        return None
    return msgspec.json.decode(open_data(cipher, data, "tool_calls.outcome", correlation_id), type=ToolOutcome)
