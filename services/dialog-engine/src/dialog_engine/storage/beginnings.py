"""The beginning of a turn, in the transaction of whatever begins it, and what clients have sent before."""

from dataclasses import asdict
from typing import Any

from dialog_engine.chat.audit import AuditAction, AuditEvent
from dialog_engine.errors import ClientMessageReusedError, SentBeforeError
from dialog_engine.model import AssistantMessage, Choice, Turn
from dialog_engine.storage.branches import BEGIN_AT, MESSAGES_TO
from dialog_engine.storage.calls import insert_message
from dialog_engine.storage.store import StoreTransaction
from plugins_contract.choice import encode_choice

KEPT_MS = 7 * 86_400_000
"""How long a client's name of a message is known."""

_BEGIN = (
    "INSERT INTO turns (turn_id, session_id, status, owner, owned_since, traceparent, chosen_model, tool_mode,"
    " roles, credential, chosen_tools, created_at, parent_turn_id, path_before) SELECT $1, $2, 'running', $3, now_ms(),"
    f" $4, $5, $6, $7, $8, $10, now_ms(), place.parent, {MESSAGES_TO}{BEGIN_AT}"
)
_FORGET = (
    "DELETE FROM client_messages WHERE message_key IN (SELECT message_key FROM client_messages"
    " WHERE created_at < now_ms() - $1 LIMIT 100 {})"
)
_NOTE = (
    "INSERT INTO client_messages (message_key, text_digest, turn_id, session_id, created_at)"
    " VALUES ($1, $2, $3, $4, now_ms()) ON CONFLICT (message_key) DO NOTHING"
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
    )
    insert_message(tx, turn, "user", AssistantMessage(text))
    ids = {"session_id": turn.session_id, "turn_id": turn.turn_id}
    tx.audit(AuditEvent(AuditAction.TURN_STARTED, turn.subject, key_id=turn.key_id, **ids))


def note_sent(tx: StoreTransaction, turn: Turn, text: str, client_message_id: str) -> None:
    """Keep that the subject has named this message so.

    Raises:
        SentBeforeError: it was sent before.
        ClientMessageReusedError: the name was used for another text or choice.
    """
    key = tx.trail.digest({"subject": turn.subject, "clientMessageId": client_message_id})
    digest = tx.trail.digest({"clientMessageId": client_message_id, "message": text} | _chosen(turn))
    tx.change(_FORGET.format(tx.skip_locked), KEPT_MS)
    if tx.change(_NOTE, key, digest, turn.turn_id, turn.session_id):
        return
    query = "SELECT turn_id, session_id, text_digest FROM client_messages WHERE message_key = $1"
    [sent] = tx.execute(query, key)
    if sent.text_digest != digest:
        raise ClientMessageReusedError(sent.turn_id)
    raise SentBeforeError(sent.turn_id, sent.session_id)


def _chosen(turn: Turn) -> dict[str, Any]:
    """What was chosen beside the text. Without a choice the digest is as in the releases before: of the text alone."""
    default = asdict(Choice())
    chosen = {name: value for name, value in asdict(turn.choice).items() if value != default[name]}
    return chosen if turn.parent is None else chosen | {"parent": turn.parent}
