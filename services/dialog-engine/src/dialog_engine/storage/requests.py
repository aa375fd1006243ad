"""The requests that clients have sent before: each name of one is a row, in the transaction of what it has begun.

Rows have keyed digests and ids only. On PostgreSQL a transaction that notes a name waits for one that has noted the
same: of two equal requests at two engines one begins something, and the other one finds it.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from dialog_engine.chat.requests import SentRequests, SessionName, StartingRequest
from dialog_engine.errors import (
    ClientMessageReusedError,
    EngineError,
    IdempotencyKeyReusedError,
    SentBeforeError,
    SessionNamedError,
)
from dialog_engine.model import Choice, Turn
from dialog_engine.storage.audit import AuditTrail
from dialog_engine.storage.database import Row
from dialog_engine.storage.store import Store, StoreTransaction
from dialog_engine.tool_calls.values import AnswerKey

MESSAGE_MS = 7 * 86_400_000
KEY_MS = 86_400_000
CONTENT_MS = 600_000
"""How long a request is known by the client's name of its message, by its key, and by its content."""
FORGOTTEN_AT_ONCE = 1_000

_OVER = "client_messages.created_at + client_messages.kept_ms < now_ms()"
_NOTE = (
    "INSERT INTO client_messages (message_key, text_digest, turn_id, session_id, created_at, kept_ms)"
    " VALUES ($1, $2, $3, $4, now_ms(), $5) ON CONFLICT (message_key) DO UPDATE SET text_digest = excluded.text_digest,"
    " turn_id = excluded.turn_id, session_id = excluded.session_id, created_at = excluded.created_at"
    f" WHERE $6 = 1 OR {_OVER}"
)
_NAME = "INSERT INTO session_names (name_key, session_id) VALUES ($1, $2) ON CONFLICT (name_key) DO NOTHING"
_FIND = "SELECT turn_id, session_id, text_digest FROM client_messages WHERE message_key = $1"
_ANY_OVER = f"SELECT 1 FROM client_messages WHERE {_OVER} LIMIT 1"
_FORGET = (
    "DELETE FROM client_messages WHERE message_key IN"
    f" (SELECT message_key FROM client_messages WHERE {_OVER} LIMIT $1 {{}})"
)


@dataclass(frozen=True, slots=True)
class _Name:
    """A name of a request. `key` is unique, and stands for `content` as long as it is kept."""

    key: str
    content: str
    kept_ms: int
    reused: Callable[[str], EngineError]
    replaces: bool = False
    """Whether a request with this name is another one in any case, and the earlier one is forgotten."""


class SqlRequests(SentRequests):
    """The requests of all subjects."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def check_new(self, subject: str, request: StartingRequest) -> None:
        for name in _sent_as(self._store.trail, subject, request):
            if not name.replaces and (found := await self._store.read(f"{_FIND} AND NOT {_OVER}", name.key)):
                raise _sent_before(name, found[0])

    async def keep_answer(self, turn_id: str, answer_key: AnswerKey) -> None:
        await self._store.write(lambda tx: note_answer(tx, turn_id, answer_key))

    async def forget(self) -> int:
        if not await self._store.read(_ANY_OVER):
            return 0
        return await self._store.write(lambda tx: tx.change(_FORGET.format(tx.skip_locked), FORGOTTEN_AT_ONCE))


def note_key(
    tx: StoreTransaction, subject: str, request: StartingRequest, *, session_id: str = "", turn_id: str = ""
) -> None:
    """Keep the key of a request, if it has one, with what it begins. Raises as `SentRequests.check_new`."""
    if request.key:
        _note(tx, _sent_as(tx.trail, subject, request), session_id, turn_id)


def note_answer(tx: StoreTransaction, turn_id: str, answer_key: AnswerKey | None) -> None:
    """Keep the key of a request that answers calls of a turn, if it has one; it may be kept already. Called before the
    turn is locked, as each transaction notes keys first. Raises IdempotencyKeyReusedError."""
    if answer_key is not None:
        request = StartingRequest(answer_key.key, answer_key.content)
        with suppress(SentBeforeError):
            note_key(tx, answer_key.subject, request, turn_id=turn_id)


def note_request(
    tx: StoreTransaction, subject: str, request: StartingRequest, *, session_id: str, turn_id: str = ""
) -> None:
    """Keep a request by its key, or else its content, with what it begins. Raises as `SentRequests.check_new`."""
    _note(tx, _sent_as(tx.trail, subject, request), session_id, turn_id)


def name_key(trail: AuditTrail, subject: str, name: SessionName) -> str:
    """By what the store knows a client's name of a session."""
    return trail.digest({"subject": subject, "protocol": name.protocol, "sessionName": name.name})


def name_session(tx: StoreTransaction, turn: Turn, name: SessionName) -> None:
    """Give the session that begins with a turn its name. Raises SessionNamedError: another session has it."""
    if not tx.change(_NAME, name_key(tx.trail, turn.subject, name), turn.session_id):
        raise SessionNamedError(f"another session than {turn.session_id} has got the name of the client")


def note_message(tx: StoreTransaction, turn: Turn, text: str, request: StartingRequest) -> None:
    """Keep that a request has sent this message.

    Raises:
        SentBeforeError: the subject has sent it before.
        IdempotencyKeyReusedError: it has used the key for another request.
        ClientMessageReusedError: it has used the name of the message for another text or choice.
    """
    names = _sent_as(tx.trail, turn.subject, request)
    if request.message_id:
        names = [*names, _message(tx.trail, turn, text, request.message_id)]
    _note(tx, names, turn.session_id, turn.turn_id)


def _note(tx: StoreTransaction, names: Sequence[_Name], session_id: str, turn_id: str) -> None:
    for name in names:
        values = name.key, name.content, turn_id, session_id, name.kept_ms, int(name.replaces)
        if not tx.change(_NOTE, *values):
            [found] = tx.execute(_FIND, name.key)
            raise _sent_before(name, found)


def _sent_before(name: _Name, found: Row) -> EngineError:
    same = found.text_digest == name.content
    return SentBeforeError(found.turn_id, found.session_id) if same else name.reused(found.turn_id)


def _sent_as(trail: AuditTrail, subject: str, request: StartingRequest) -> Sequence[_Name]:
    """The name of a request as a whole: its key, or else its content, unless its message has a name."""
    if request.key:
        fields = {"idempotencyKey": request.key}
        key, content = trail.digest(fields | {"subject": subject}), trail.digest(fields | {"request": request.content})
        return [_Name(key, content, KEY_MS, IdempotencyKeyReusedError)]
    if not request.content or request.message_id:
        return []
    key = trail.digest({"subject": subject, "request": request.content})
    return [_Name(key, key, CONTENT_MS, IdempotencyKeyReusedError, replaces=not request.repeated)]


def _message(trail: AuditTrail, turn: Turn, text: str, message_id: str) -> _Name:
    key = trail.digest({"subject": turn.subject, "clientMessageId": message_id})
    digest = trail.digest({"clientMessageId": message_id, "message": text} | _chosen(turn))
    return _Name(key, digest, MESSAGE_MS, ClientMessageReusedError)


def _chosen(turn: Turn) -> dict[str, Any]:
    """What was chosen beside the text. Without a choice the digest is as in the releases before: of the text alone."""
    default = asdict(Choice())
    chosen = {name: value for name, value in asdict(turn.choice).items() if value != default[name]}
    return chosen if turn.parent is None else chosen | {"parent": turn.parent}
