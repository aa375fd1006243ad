"""Turns: they begin with the user's message and end with their last one, each in one transaction."""

from collections.abc import Callable

import msgspec

from dialog_engine.chat.audit import AuditAction, AuditEvent
from dialog_engine.chat.outbox import (
    TURN_FINISHED,
    OfferRows,
    OutboxRow,
    TurnFinished,
    TurnUsage,
)
from dialog_engine.chat.ports import TurnStore
from dialog_engine.errors import SessionNotFoundError, TurnFencedError, TurnRunningError
from dialog_engine.model import AssistantMessage, Done, DoneReason, Turn, TurnFailed
from dialog_engine.storage.audit import AuditTrail
from dialog_engine.storage.calls import insert_message
from dialog_engine.storage.database import Database, Transaction
from dialog_engine.storage.outbox import add_event
from dialog_engine.storage.sealed import open_text, owner
from dialog_engine.storage.usage import count_turn
from plugins_contract.encryption import CLEAR, Cipher, fact_owner

OnFree = Callable[[str], None]
"""Called with a session whose next message waits at another engine. Must not block."""
TITLE_LENGTH = 80


# The turn before one that is about to begin: the running one, otherwise the first of those that wait.
_FIRST = (
    "SELECT turn_id FROM (SELECT turn_id, 0 AS place FROM turns WHERE session_id = $1 AND status = 'running'"
    " UNION ALL SELECT turn_id, seq FROM waiting_turns WHERE session_id = $1) AS ahead ORDER BY place LIMIT 1"
)
_BEGIN = (
    "INSERT INTO turns (turn_id, session_id, status, owner, owned_since, traceparent, chosen_model, tool_mode,"
    " roles, credential, created_at) VALUES ($1, $2, 'running', $3, now_ms(), $4, $5, $6, $7, $8, now_ms())"
)
_FINISH = (
    "UPDATE turns SET status = $1, reason = $2, input_tokens = $3, output_tokens = $4, estimated = $5, ttft_ms = $6,"
    " model = coalesce($7, model), error_code = $8, error_message = $9, finished_at = now_ms()"
    " WHERE turn_id = $10 AND owner = $11 AND epoch = $12 AND status = 'running' RETURNING finished_at, model"
)


class SqlTurns(TurnStore):
    """The turns that this engine runs."""

    def __init__(
        self,
        database: Database,
        engine_id: str,
        offer: OfferRows,
        audit: AuditTrail,
        on_free: OnFree = lambda _: None,
        *,
        facts_with_text: bool = False,
        cipher: Cipher = CLEAR,
    ) -> None:
        self._database = database
        self._engine_id = engine_id
        self._offer = offer
        self._audit = audit
        self._on_free = on_free
        self._facts_with_text = facts_with_text
        self._cipher = cipher

    async def begin(self, turn: Turn, text: str, *, new_session: bool = False, queue: bool = False) -> None:
        def unit(tx: Transaction) -> tuple[str | None, list[OutboxRow]]:
            if new_session:
                add_session(tx, self._cipher, turn.session_id, turn.subject, text)
            else:
                _touch_session(tx, self._cipher, turn.session_id, turn.subject, text)
                [first] = tx.execute(_FIRST, turn.session_id) or [(turn.turn_id,)]
                if first[0] != turn.turn_id:
                    if not queue:
                        raise TurnRunningError(first[0])
                    tx.execute(
                        "INSERT INTO waiting_turns (turn_id, session_id, engine_id) VALUES ($1, $2, $3)"
                        " ON CONFLICT (turn_id) DO NOTHING",
                        turn.turn_id,
                        turn.session_id,
                        self._engine_id,
                    )
                    return first[0], []
            choice = turn.choice
            tx.execute(
                _BEGIN,
                turn.turn_id,
                turn.session_id,
                self._engine_id,
                turn.traceparent,
                choice.model,
                choice.tool_mode,
                stored_roles(turn),
                turn.credential,
            )
            if queue:
                tx.execute("DELETE FROM waiting_turns WHERE turn_id = $1", turn.turn_id)
            insert_message(tx, self._cipher, turn, "user", AssistantMessage(text))
            started = AuditEvent(
                AuditAction.TURN_STARTED,
                turn.subject,
                key_id=turn.key_id,
                session_id=turn.session_id,
                turn_id=turn.turn_id,
            )
            return None, self._audit.add(tx, started)

        running, rows = await self._database.write(unit)
        if running:
            raise TurnRunningError(running)
        if rows:
            self._offer(rows)

    async def leave(self, turn: Turn) -> None:
        def unit(tx: Transaction) -> bool:
            tx.execute("DELETE FROM waiting_turns WHERE turn_id = $1", turn.turn_id)
            return self._others_wait(tx, turn.session_id)

        if await self._database.write(unit):
            self._on_free(turn.session_id)

    async def finish(
        self, turn: Turn, message: AssistantMessage | None, done: Done, failure: TurnFailed | None
    ) -> int | None:
        def unit(tx: Transaction) -> tuple[int | None, list[OutboxRow], bool]:
            ended = tx.execute(
                _FINISH,
                _status(done.reason),
                done.reason,
                done.usage.input_tokens,
                done.usage.output_tokens,
                int(done.usage.estimated),
                done.ttft_ms,
                done.model,
                failure.code if failure else None,
                self._cipher.seal_text(failure.message, owner("turns.error_message", turn.turn_id))
                if failure
                else None,
                turn.turn_id,
                self._engine_id,
                turn.epoch,
            )
            if not ended:
                self._check_ended_here(tx, turn)
                return None, [], False
            number = insert_message(tx, self._cipher, turn, "assistant", message)[1] if message else None
            tx.execute("UPDATE sessions SET updated_at = now_ms() WHERE session_id = $1", turn.session_id)
            [(at, model)] = ended
            payload = msgspec.json.encode(self._fact(tx, turn, message, done, at=at))
            fact = add_event(tx, self._engine_id, turn.turn_id, TURN_FINISHED, turn.turn_id, payload)
            count_turn(tx, self._engine_id, turn, done, model or "", at=at)
            return number, [fact], self._others_wait(tx, turn.session_id)

        number, rows, others_wait = await self._database.write(unit)
        self._offer(rows)
        if others_wait:
            self._on_free(turn.session_id)
        return number

    async def request_stop(self, turn_id: str) -> str | None:
        def unit(tx: Transaction) -> str | None:
            found = tx.execute(
                "UPDATE turns SET stop_requested = 1 WHERE turn_id = $1 AND status = 'running' RETURNING owner", turn_id
            )
            return found[0][0] if found else None

        return await self._database.write(unit)

    async def is_running(self, turn_id: str) -> bool:
        return bool(await self._database.read("SELECT 1 FROM turns WHERE turn_id = $1 AND status = 'running'", turn_id))

    def _fact(
        self, tx: Transaction, turn: Turn, message: AssistantMessage | None, done: Done, *, at: int
    ) -> TurnFinished:
        user_message, assistant_message = None, None
        if self._facts_with_text:
            [(content,)] = tx.execute(
                "SELECT content FROM messages WHERE turn_id = $1 AND role = 'user' ORDER BY number LIMIT 1",
                turn.turn_id,
            )
            asked = open_text(self._cipher, content, "messages.content", turn.turn_id, "user")
            said = message.content if message else ""
            user_message = self._cipher.seal_text(asked, fact_owner(turn.turn_id, "userMessage"))
            assistant_message = self._cipher.seal_text(said, fact_owner(turn.turn_id, "assistantMessage"))
        return TurnFinished(
            turn_id=turn.turn_id,
            session_id=turn.session_id,
            subject=turn.subject,
            reason=done.reason,
            usage=TurnUsage(done.usage.input_tokens, done.usage.output_tokens, done.usage.estimated),
            user_message=user_message,
            assistant_message=assistant_message,
            at=at,
        )

    def _others_wait(self, tx: Transaction, session_id: str) -> bool:
        """Whether the next message of the session waits at another engine."""
        first = tx.execute("SELECT engine_id FROM waiting_turns WHERE session_id = $1 ORDER BY seq LIMIT 1", session_id)
        return bool(first) and first[0][0] != self._engine_id

    def _check_ended_here(self, tx: Transaction, turn: Turn) -> None:
        """Check that this engine has ended the turn before. Raises TurnFencedError otherwise."""
        if not tx.execute(
            "SELECT 1 FROM turns WHERE turn_id = $1 AND owner = $2 AND epoch = $3",
            turn.turn_id,
            self._engine_id,
            turn.epoch,
        ):
            raise TurnFencedError(turn.turn_id)


def add_session(tx: Transaction, cipher: Cipher, session_id: str, subject: str, first_message: str) -> None:
    """Insert a session, titled after the first message."""
    tx.execute(
        "INSERT INTO sessions (session_id, subject, title, created_at, updated_at)"
        " VALUES ($1, $2, $3, now_ms(), now_ms())",
        session_id,
        subject,
        cipher.seal_text(_title(first_message), owner("sessions.title", session_id)),
    )


def _touch_session(tx: Transaction, cipher: Cipher, session_id: str, subject: str, text: str) -> None:
    """Update the session for a new message. The lock of its row serialises the turns that begin in it."""
    found = tx.change(
        "UPDATE sessions SET updated_at = now_ms(), title = CASE title WHEN '' THEN $1 ELSE title END"
        " WHERE session_id = $2 AND subject = $3",
        cipher.seal_text(_title(text), owner("sessions.title", session_id)),
        session_id,
        subject,
    )
    if not found:
        raise SessionNotFoundError(f"there is no session {session_id}")


def stored_roles(turn: Turn) -> str:
    """The roles as the column has them: one in each line, none as an empty text."""
    return "\n".join(turn.roles)


def roles_of(stored: str) -> tuple[str, ...]:
    """The roles in the column of a turn."""
    return tuple(stored.split("\n")) if stored else ()


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
