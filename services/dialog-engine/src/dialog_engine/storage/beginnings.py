"""The beginning of a turn, in the transaction of whatever begins it."""

from dialog_engine.chat.audit import AuditAction, AuditEvent
from dialog_engine.model import AssistantMessage, Leaving, Turn
from dialog_engine.storage.branches import BEGIN_AT, MESSAGES_TO
from dialog_engine.storage.calls import insert_message
from dialog_engine.storage.resent import question_digest
from dialog_engine.storage.store import StoreTransaction
from plugins_contract.choice import encode_choice

_BEGIN = (
    "INSERT INTO turns (turn_id, session_id, status, owner, owned_since, traceparent, chosen_model, tool_mode,"
    " roles, credential, chosen_tools, created_at, parent_turn_id, path_before, question_digest, leave_ms) SELECT $1,"
    f" $2, 'running', $3, now_ms(), $4, $5, $6, $7, $8, $10, now_ms(), place.parent, {MESSAGES_TO}, $11,"
    f" $12{BEGIN_AT}"
)


def begin_turn(tx: StoreTransaction, turn: Turn, text: str) -> None:
    """Insert a running turn of this engine with its user's message. The row of the session is locked."""
    choice = turn.choice
    tx.change(
        _BEGIN,
        turn.turn_id,
        turn.session_id,
        tx.engine_id,
        turn.traceparent,
        choice.model,
        choice.tool_mode,
        "\n".join(turn.roles),
        turn.credential,
        turn.parent,
        encode_choice(choice.tools),
        question_digest(tx.trail, turn.subject, text),
        leave_ms(turn.leaving),
    )
    insert_message(tx, turn, "user", AssistantMessage(text))
    ids = {"session_id": turn.session_id, "turn_id": turn.turn_id}
    tx.audit(AuditEvent(AuditAction.TURN_STARTED, turn.subject, key_id=turn.key_id, **ids))


def leave_ms(leaving: Leaving | None) -> int | None:
    """The column `leave_ms` of a turn, or of a message that waits; `left_by` reads it."""
    if leaving is None:
        return None
    return round(leaving.seconds * 1000) * (-1 if leaving.asleep else 1)


def left_by(leave_ms: int | None) -> Leaving | None:
    """`Turn.leaving` from that column, which is below 0 once the turn was parked."""
    return None if leave_ms is None else Leaving(abs(leave_ms) / 1000, asleep=leave_ms < 0)
