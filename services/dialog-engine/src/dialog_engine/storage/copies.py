"""Sessions as rows that travel: read out for other engines, and taken in from them."""

from collections.abc import Sequence
from typing import Any

import msgspec

from dialog_engine.chat.copies import (
    NOTHING,
    ApprovalRow,
    CallRow,
    MessageRow,
    OutcomeRow,
    SessionCopy,
    SessionHead,
    SessionRow,
    TurnRow,
)
from dialog_engine.chat.outbox import OutboxRow
from dialog_engine.chat.runs import LocalCopies
from dialog_engine.errors import TurnLostError
from dialog_engine.model import Choice, Turn, Usage
from dialog_engine.storage.database import Database, Row, Transaction
from dialog_engine.storage.outbox import add_event
from plugins_contract.messages import EVENT_TYPE as TOOL_CALL_REQUESTED
from plugins_contract.messages import UnsupportedEventError, decode_request, encode_request

_TURN = (
    "SELECT turn_id, status, rounds, reason, input_tokens, output_tokens, ttft_ms, error_code, error_message,"
    " traceparent, created_at, finished_at, model, chosen_model, tool_mode FROM turns"
)
_CALL = (
    "SELECT c.correlation_id, c.tool_call_id, c.name, c.server, c.arguments, c.tool, c.created_at, c.extra, o.payload,"
    " c.outcome, c.answered_at, a.question, a.decision FROM tool_calls c"
    " LEFT JOIN approvals a ON a.correlation_id = c.correlation_id"
    " LEFT JOIN outbox o ON o.event_type = ? AND o.event_id = c.correlation_id"
    " WHERE c.message_id = ? ORDER BY c.ordinal"
)


def session_head(tx: Transaction, session_id: str) -> SessionHead | None:
    """What is known of a session apart from what was said in it."""
    rows = tx.execute(
        "SELECT session_id, subject, title, created_at, updated_at FROM sessions WHERE session_id = ?", session_id
    )
    return SessionHead(*rows[0]) if rows else None


def turn_row(tx: Transaction, turn_id: str) -> TurnRow:
    """A turn as it stands."""
    [row] = tx.execute(f"{_TURN} WHERE turn_id = ?", turn_id)
    return _turn_row(row)


def message_row(tx: Transaction, message_id: int) -> MessageRow:
    """A message with its calls as they stand. `message_id` is the one of this file."""
    [(number, turn_id, role, content, reasoning, interrupted, created_at)] = tx.execute(
        "SELECT number, turn_id, role, content, reasoning, interrupted, created_at FROM messages WHERE message_id = ?",
        message_id,
    )
    calls = tuple(_call_row(*row) for row in tx.execute(_CALL, TOOL_CALL_REQUESTED, message_id))
    return MessageRow(
        number=number,
        turn_id=turn_id,
        role=role,
        content=content,
        created_at=created_at,
        reasoning=reasoning,
        interrupted=bool(interrupted),
        calls=calls,
    )


def session_rows(tx: Transaction, session_id: str) -> list[SessionRow]:
    """Everything of a session."""
    return _rows_of(tx, tx.execute(f"{_TURN} WHERE session_id = ? ORDER BY created_at", session_id))


def ended_rows(tx: Transaction, session_id: str) -> list[SessionRow]:
    """Everything of those turns of a session that have ended, as far as it is known here."""
    # A status alone does not tell: see `_merge_turn`.
    turns = tx.execute(f"{_TURN} WHERE session_id = ? AND finished_at IS NOT NULL ORDER BY created_at", session_id)
    return _rows_of(tx, turns)


def _rows_of(tx: Transaction, turns: Sequence[Row]) -> list[SessionRow]:
    rows = [_turn_row(turn) for turn in turns]
    messages = [
        message_row(tx, message_id)
        for row in rows
        for (message_id,) in tx.execute(
            "SELECT message_id FROM messages WHERE turn_id = ? ORDER BY number", row.turn_id
        )
    ]
    return [*rows, *messages]


class SqliteCopies(LocalCopies):
    """What this engine's file has of the sessions of all engines."""

    def __init__(self, database: Database, mailbox: str) -> None:
        """`mailbox` is where the answers to calls of turns that are taken over are to go."""
        self._database = database
        self._mailbox = mailbox

    async def version(self, session_id: str) -> int | None:
        rows = await self._database.read(
            "SELECT coalesce(version, 0) FROM sessions LEFT JOIN copies USING (session_id) WHERE session_id = ?",
            session_id,
        )
        return rows[0][0] if rows else None

    async def session_of(self, turn_id: str) -> tuple[str, bool] | None:
        rows = await self._database.read(
            "SELECT session_id, status = 'running' AND NOT owned FROM turns WHERE turn_id = ?", turn_id
        )
        return (rows[0][0], bool(rows[0][1])) if rows else None

    async def last_ran_here(self, session_id: str) -> bool:
        rows = await self._database.read(
            "SELECT owned FROM turns WHERE session_id = ? ORDER BY created_at DESC, turn_id DESC LIMIT 1", session_id
        )
        return not rows or bool(rows[0][0])

    async def merge(self, copy: SessionCopy) -> None:
        def unit(tx: Transaction) -> None:
            _merge(tx, copy)

        await self._database.write(unit)

    async def take_over(self, copy: SessionCopy, turn_id: str, epoch: int) -> tuple[Turn, Sequence[OutboxRow]] | None:
        def unit(tx: Transaction) -> tuple[Turn, list[OutboxRow]] | None:
            _merge(tx, copy)
            found = tx.execute(
                "UPDATE turns SET epoch = ?, owned = 1 WHERE turn_id = ? AND status = 'running'"
                " RETURNING rounds, traceparent, input_tokens, output_tokens, chosen_model, tool_mode",
                epoch,
                turn_id,
            )
            if not found:
                return None
            [(rounds, traceparent, read, written, *choice)] = found
            head = copy.head
            usage = Usage(read, written)
            turn = Turn(turn_id, head.session_id, head.subject, epoch, rounds, traceparent, usage, Choice(*choice))
            return turn, self._requests(tx, copy, turn_id)

        return await self._database.write(unit)

    async def give_away(self, turn_id: str, copy: SessionCopy | None) -> None:
        def unit(tx: Transaction) -> None:
            tx.execute("DELETE FROM journal WHERE turn_id = ?", turn_id)
            tx.execute(
                "DELETE FROM outbox WHERE event_type = ? AND event_id IN"
                " (SELECT correlation_id FROM tool_calls WHERE turn_id = ?)",
                TOOL_CALL_REQUESTED,
                turn_id,
            )
            # What was committed here of it and not shared is not what happened: the new owner's copy is.
            tx.execute("DELETE FROM messages WHERE turn_id = ?", turn_id)
            tx.execute(
                "UPDATE turns AS t SET owned = 0, finished_at = NULL, status = CASE WHEN EXISTS (SELECT 1 FROM turns o"
                " WHERE o.session_id = t.session_id AND o.turn_id != t.turn_id AND o.status = 'running')"
                " THEN 'failed' ELSE 'running' END WHERE turn_id = ?",
                turn_id,
            )
            tx.execute(
                "UPDATE copies SET version = -1 WHERE session_id = (SELECT session_id FROM turns WHERE turn_id = ?)",
                turn_id,
            )
            if copy is not None:
                _merge(tx, copy)  # in between, readers would miss the turn

        await self._database.write(unit)

    async def forget(self, session_ids: Sequence[str]) -> None:
        def unit(tx: Transaction) -> None:
            for session_id in session_ids:
                tx.execute(
                    "DELETE FROM outbox WHERE event_type = ? AND event_id IN (SELECT correlation_id FROM tool_calls"
                    " JOIN turns USING (turn_id) WHERE session_id = ?)",
                    TOOL_CALL_REQUESTED,
                    session_id,
                )
                tx.execute("DELETE FROM journal WHERE session_id = ?", session_id)
                tx.execute("DELETE FROM sessions WHERE session_id = ?", session_id)

        await self._database.write(unit)

    def _requests(self, tx: Transaction, copy: SessionCopy, turn_id: str) -> list[OutboxRow]:
        """Put the requests of the turn's open calls into the outbox: whether workers have them already is for ENQUEUE
        to tell."""
        open_calls = tx.execute("SELECT correlation_id FROM tool_calls WHERE turn_id = ? AND outcome IS NULL", turn_id)
        still_open = {correlation_id for (correlation_id,) in open_calls}
        rows: list[OutboxRow] = []
        for correlation_id, request in _requested(copy).items():
            if correlation_id not in still_open:
                continue
            tx.execute("DELETE FROM outbox WHERE event_type = ? AND event_id = ?", TOOL_CALL_REQUESTED, correlation_id)
            rows.append(add_event(tx, TOOL_CALL_REQUESTED, correlation_id, self._answered_here(request)))
        return rows

    def _answered_here(self, payload: bytes) -> bytes:
        try:
            request = decode_request(payload)
        except UnsupportedEventError:
            return payload  # whoever reads the row says what is wrong with it
        return encode_request(msgspec.structs.replace(request, mailbox=self._mailbox))


def _requested(copy: SessionCopy) -> dict[str, bytes]:
    """The requests in a copy, by correlation id: made with the message of the call, or when it was approved."""
    calls = [call for row in copy.rows if isinstance(row, MessageRow) for call in row.calls]
    approvals = [row for row in copy.rows if isinstance(row, ApprovalRow)]
    return {each.correlation_id: bytes(each.request) for each in (*calls, *approvals) if bytes(each.request)}


def _merge(tx: Transaction, copy: SessionCopy) -> None:
    """Take in what is not here yet. What this engine has committed itself, and nobody else knows yet, stays."""
    head = copy.head
    tx.execute(
        "INSERT INTO sessions (session_id, subject, title, created_at, updated_at) VALUES (?, ?, ?, ?, ?)"
        " ON CONFLICT (session_id) DO UPDATE SET title = CASE excluded.title WHEN '' THEN title ELSE excluded.title"
        " END,"
        " updated_at = max(updated_at, excluded.updated_at)",
        head.session_id,
        head.subject,
        head.title,
        head.created_at,
        head.updated_at,
    )
    # A turn that has ended makes room for one that runs: see the index one_running_turn.
    turns = [row for row in copy.rows if isinstance(row, TurnRow)]
    for row in sorted(turns, key=lambda row: row.status == "running"):
        _merge_turn(tx, head.session_id, row)
    for row in copy.rows:
        match row:
            case MessageRow():
                _merge_message(tx, head.session_id, row)
            case OutcomeRow(correlation_id=correlation_id, outcome=outcome, answered_at=answered_at):
                tx.execute(
                    "UPDATE tool_calls SET outcome = ?, answered_at = ? WHERE correlation_id = ? AND outcome IS NULL",
                    bytes(outcome),
                    answered_at,
                    correlation_id,
                )
            case ApprovalRow(correlation_id=correlation_id, question=question, decision=decision):
                tx.execute(
                    "UPDATE approvals SET question = ?, decision = ? WHERE correlation_id = ? AND decision IS NULL",
                    bytes(question),
                    _blob(decision),
                    correlation_id,
                )
            case TurnRow():
                pass
    tx.execute(
        "INSERT INTO copies (session_id, version) VALUES (?, ?)"
        " ON CONFLICT (session_id) DO UPDATE SET version = excluded.version",
        head.session_id,
        copy.version,
    )


def _merge_turn(tx: Transaction, session_id: str, row: TurnRow) -> None:
    tx.execute(
        "INSERT INTO turns (turn_id, session_id, status, rounds, reason, input_tokens, output_tokens, ttft_ms,"
        " error_code, error_message, traceparent, created_at, finished_at, model, chosen_model, tool_mode,"
        " owned)"
        # Two may run for a moment, when an engine was away. One is enough to show; the other's end is told with it.
        " VALUES (?1, ?2, CASE WHEN ?3 = 'running' AND EXISTS (SELECT 1 FROM turns WHERE session_id = ?2"
        " AND status = 'running' AND turn_id != ?1) THEN 'failed' ELSE ?3 END,"
        " ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, 0)"
        " ON CONFLICT (turn_id) DO UPDATE SET status = excluded.status, rounds = excluded.rounds,"
        " reason = excluded.reason, input_tokens = excluded.input_tokens, output_tokens = excluded.output_tokens,"
        " ttft_ms = excluded.ttft_ms, error_code = excluded.error_code, error_message = excluded.error_message,"
        " finished_at = excluded.finished_at, model = excluded.model WHERE NOT owned"
        # An end that others only suppose is no news of a turn whose end is known here.
        " AND (excluded.error_code IS NOT ?17 OR finished_at IS NULL OR error_code IS ?17)",
        row.turn_id,
        session_id,
        row.status,
        row.rounds,
        row.reason,
        row.input_tokens,
        row.output_tokens,
        row.ttft_ms,
        row.error_code,
        row.error_message,
        row.traceparent,
        row.created_at,
        row.finished_at,
        row.model,
        row.chosen_model,
        row.tool_mode,
        TurnLostError.code,
    )


def _merge_message(tx: Transaction, session_id: str, row: MessageRow) -> None:
    inserted = tx.execute(
        "INSERT INTO messages (session_id, turn_id, role, content, reasoning, interrupted, created_at, number)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING RETURNING message_id",
        session_id,
        row.turn_id,
        row.role,
        row.content,
        row.reasoning,
        row.interrupted,
        row.created_at,
        row.number,
    )
    if not inserted:
        return
    [(message_id,)] = inserted
    tx.execute_many(
        "INSERT INTO tool_calls (correlation_id, message_id, turn_id, ordinal, tool_call_id, name, server, arguments,"
        " tool, extra, outcome, created_at, answered_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (
                call.correlation_id,
                message_id,
                row.turn_id,
                ordinal,
                call.tool_call_id,
                call.name,
                call.server,
                call.arguments,
                call.tool,
                _blob(call.extra),
                _blob(call.outcome),
                call.created_at,
                call.answered_at,
            )
            for ordinal, call in enumerate(row.calls)
        ],
    )
    tx.execute_many(
        "INSERT INTO approvals (correlation_id, question, decision) VALUES (?, ?, ?)",
        [
            (call.correlation_id, bytes(call.question), _blob(call.decision))
            for call in row.calls
            if bytes(call.question)
        ],
    )


def _turn_row(row: Row) -> TurnRow:
    turn_id, status, rounds, reason, input_tokens, output_tokens, ttft_ms, code, message, traceparent, *rest = row
    created_at, finished_at, model, chosen_model, tool_mode = rest
    return TurnRow(
        turn_id=turn_id,
        status=status,
        rounds=rounds,
        reason=reason,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        ttft_ms=ttft_ms,
        error_code=code,
        error_message=message,
        traceparent=traceparent,
        created_at=created_at,
        finished_at=finished_at,
        model=model,
        chosen_model=chosen_model,
        tool_mode=tool_mode,
    )


def _call_row(
    correlation_id: str,
    tool_call_id: str,
    name: str,
    server: str,
    arguments: str,
    tool: str,
    created_at: int,
    *blobs: Any,
) -> CallRow:
    extra, request, outcome, answered_at, question, decision = blobs
    return CallRow(
        correlation_id=correlation_id,
        tool_call_id=tool_call_id,
        name=name,
        server=server,
        arguments=arguments,
        tool=tool,
        created_at=created_at,
        extra=raw(extra),
        request=raw(request),
        outcome=raw(outcome),
        answered_at=answered_at,
        question=raw(question),
        decision=raw(decision),
    )


def raw(data: bytes | None) -> msgspec.Raw:
    """A JSON column as it travels."""
    return NOTHING if data is None else msgspec.Raw(data)


def _blob(data: msgspec.Raw) -> bytes | None:
    return bytes(data) or None
