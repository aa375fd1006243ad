"""Turns: they begin with the user's message and end with their last one, each in one transaction."""

from dataclasses import replace
from typing import Any

import msgspec

from dialog_engine.chat import facts
from dialog_engine.chat.copies import MessageRow
from dialog_engine.chat.journal import JournalEntry, Step
from dialog_engine.chat.outbox import OutboxRow
from dialog_engine.chat.ports import TurnStore, UnfinishedTurns
from dialog_engine.errors import SessionNotFoundError, TurnRunningError
from dialog_engine.model import AssistantMessage, Choice, Done, DoneReason, Turn, TurnFailed, Usage
from dialog_engine.storage.calls import OfferRows, insert_message
from dialog_engine.storage.copies import message_row
from dialog_engine.storage.database import Database, Transaction, now_ms
from dialog_engine.storage.journal import OfferEntries, add_turn_entry, nobody
from dialog_engine.storage.outbox import add_event

TITLE_LENGTH = 80


class SqliteTurns(TurnStore, UnfinishedTurns):
    """The turns of this engine."""

    def __init__(self, database: Database, offer: OfferRows, share: OfferEntries = nobody) -> None:
        self._database = database
        self._offer = offer
        self._share = share

    async def begin(self, turn: Turn, text: str, *, new_session: bool = False) -> None:
        def unit(tx: Transaction) -> JournalEntry:
            if new_session:
                add_session(tx, turn.session_id, turn.subject, text)
            else:
                _touch_session(tx, turn.session_id, turn.subject, text)
            begun = tx.execute(
                "INSERT INTO turns (turn_id, session_id, status, traceparent, chosen_model, tool_mode, created_at)"
                " VALUES (?, ?, 'running', ?, ?, ?, ?) ON CONFLICT DO NOTHING RETURNING 1",
                turn.turn_id,
                turn.session_id,
                turn.traceparent,
                turn.choice.model,
                turn.choice.tool_mode,
                now_ms(),
            )
            if not begun:
                # Only the unique index on running turns can refuse: the id is new.
                [(running,)] = tx.execute(
                    "SELECT turn_id FROM turns WHERE session_id = ? AND status = 'running'", turn.session_id
                )
                raise TurnRunningError(running)
            message_id, _ = insert_message(tx, turn, "user", AssistantMessage(text))
            return add_turn_entry(tx, turn, Step.BEGINS, [message_row(tx, message_id)])

        self._share([await self._database.write(unit)])

    async def finish(
        self, turn: Turn, message: AssistantMessage | None, done: Done, failure: TurnFailed | None
    ) -> int | None:
        def unit(tx: Transaction) -> tuple[int, OutboxRow, JournalEntry] | None:
            ended = tx.execute(
                "UPDATE turns SET status = ?, reason = ?, input_tokens = ?, output_tokens = ?, ttft_ms = ?, model = ?,"
                " error_code = ?, error_message = ?, finished_at = ?"
                " WHERE turn_id = ? AND epoch = ? AND status = 'running' RETURNING 1",
                _status(done.reason),
                done.reason,
                done.usage.input_tokens,
                done.usage.output_tokens,
                done.ttft_ms,
                done.model,
                failure.code if failure else None,
                failure.message if failure else None,
                now_ms(),
                turn.turn_id,
                turn.epoch,
            )
            if not ended:
                return None
            number, rows = 0, list[MessageRow]()
            if message:
                message_id, number = insert_message(tx, turn, "assistant", message)
                rows.append(message_row(tx, message_id))
            tx.execute("UPDATE sessions SET updated_at = ? WHERE session_id = ?", now_ms(), turn.session_id)
            payload = msgspec.json.encode(_fact(tx, turn, message, done))
            fact = add_event(tx, facts.TURN_FINISHED, turn.turn_id, payload)
            return number, fact, add_turn_entry(tx, turn, Step.ENDS, rows)

        finished = await self._database.write(unit)
        if finished is None:
            return None
        number, row, entry = finished
        self._share([entry])
        self._offer([row])
        return number if message else None

    async def unfinished(self) -> list[Turn]:
        rows = await self._database.read(
            "SELECT turn_id, session_id, subject, epoch, rounds, traceparent, input_tokens, output_tokens,"
            " chosen_model, tool_mode"
            " FROM turns JOIN sessions USING (session_id) WHERE status = 'running' AND owned ORDER BY turns.created_at"
        )
        return [_turn(*row) for row in rows]

    async def go_on(self, turn: Turn, epoch: int) -> Turn:
        def unit(tx: Transaction) -> None:
            tx.execute("UPDATE turns SET epoch = ? WHERE turn_id = ?", epoch, turn.turn_id)

        await self._database.write(unit)
        return replace(turn, epoch=epoch)


def _turn(
    turn_id: str,
    session_id: str,
    subject: str,
    epoch: int,
    rounds: int,
    traceparent: str | None,
    *usage_and_choice: Any,
) -> Turn:
    read, written, *choice = usage_and_choice
    return Turn(turn_id, session_id, subject, epoch, rounds, traceparent, Usage(read, written), Choice(*choice))


def add_session(tx: Transaction, session_id: str, subject: str, first_message: str) -> None:
    """Make a session, titled after the first message."""
    tx.execute(
        "INSERT INTO sessions (session_id, subject, title, created_at, updated_at) VALUES (?, ?, ?, ?, ?)",
        session_id,
        subject,
        _title(first_message),
        now_ms(),
        now_ms(),
    )


def _touch_session(tx: Transaction, session_id: str, subject: str, text: str) -> None:
    found = tx.execute(
        "UPDATE sessions SET updated_at = ?, title = CASE title WHEN '' THEN ? ELSE title END"
        " WHERE session_id = ? AND subject = ? RETURNING 1",
        now_ms(),
        _title(text),
        session_id,
        subject,
    )
    if not found:
        raise SessionNotFoundError(f"there is no session {session_id}")


def _fact(tx: Transaction, turn: Turn, message: AssistantMessage | None, done: Done) -> facts.TurnFinished:
    [(user_message,)] = tx.execute(
        "SELECT content FROM messages WHERE turn_id = ? AND role = 'user' ORDER BY number LIMIT 1", turn.turn_id
    )
    return facts.TurnFinished(
        turn_id=turn.turn_id,
        session_id=turn.session_id,
        subject=turn.subject,
        reason=done.reason,
        usage=facts.Usage(done.usage.input_tokens, done.usage.output_tokens),
        user_message=user_message,
        assistant_message=message.content if message else "",
        at=now_ms(),
    )


def _status(reason: DoneReason) -> str:
    match reason:
        case DoneReason.CANCELLED:
            return "cancelled"
        case DoneReason.ERROR:
            return "failed"
        case _:
            return "done"


def _title(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= TITLE_LENGTH else words[: TITLE_LENGTH - 1].rstrip() + "…"
