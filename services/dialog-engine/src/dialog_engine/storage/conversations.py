"""Sessions as conversations: what clients say of them, and add to them."""

from collections.abc import Mapping, Sequence

import msgspec

from dialog_engine.chat.audit import AuditAction, AuditEvent
from dialog_engine.chat.conversations import (
    MAX_INSTRUCTION_BYTES,
    MAX_WAITING,
    MAX_WAITING_BYTES,
    AddedItem,
    Addition,
    Conversation,
    Conversations,
)
from dialog_engine.chat.requests import StartingRequest
from dialog_engine.errors import SentBeforeError, SessionNotFoundError, TooManyAddedError
from dialog_engine.storage.added_items import message_of
from dialog_engine.storage.branches import LEAF, PARENT
from dialog_engine.storage.database import Row
from dialog_engine.storage.requests import note_request
from dialog_engine.storage.store import Store, StoreTransaction
from dialog_engine.storage.turns import add_session
from plugins_contract.messages import new_id

_FIND = (
    f"SELECT s.session_id, s.metadata, coalesce({LEAF}, '') AS leaf FROM sessions s"
    " WHERE s.session_id = $1 AND s.subject = $2"
)
_OWN = " AND subject = $subject"
_DESCRIBE = "UPDATE sessions SET metadata = $metadata WHERE session_id = $session_id"
_ADD_TO = ", updated_at = now_ms(), has_additions = 1"
_ADD = (
    "INSERT INTO added_items (addition_id, number, session_id, standing, added_item, place)"
    " VALUES ($addition_id, $number, $session_id, $standing, $added_item,"
    " (SELECT 1 + coalesce(max(place), 0) FROM added_items WHERE session_id = $session_id))"
)
_ITEMS = "SELECT addition_id, number, coalesce(turn_id, '') AS turn_id, added_item FROM added_items"
_WAITING = f"{_ITEMS} WHERE session_id = $1 AND turn_id IS NULL ORDER BY place"
_ADDED = f"{_ITEMS} WHERE addition_id = $1 AND session_id = $2 ORDER BY number"
_WAIT = (
    "SELECT count(*) AS items, coalesce(sum(length(added_item)), 0) AS size FROM added_items"
    " WHERE session_id = $1 AND turn_id IS NULL"
)
_STANDING = (
    "SELECT coalesce(sum(length(added_item)), 0) AS size FROM added_items"
    " WHERE session_id = $1 AND standing = 1 AND (turn_id IS NULL OR standing = 1)"
)
_REMOVE = "DELETE FROM added_items WHERE addition_id = $1 AND number = $2 AND session_id = $3 AND turn_id IS NULL"
_BACK = (
    "WITH RECURSIVE path (turn_id, depth) AS (SELECT CAST($1 AS TEXT), 1 UNION ALL"
    f" SELECT (SELECT {PARENT} FROM turns t WHERE t.turn_id = path.turn_id), depth + 1 FROM path"
    " WHERE turn_id <> '' AND depth <= $2)"
    " SELECT turn_id FROM path WHERE turn_id <> '' ORDER BY depth LIMIT $2"
)
_FORTH = (
    "WITH RECURSIVE path (turn_id, depth) AS (SELECT CAST($1 AS TEXT), 1 UNION ALL"
    f" SELECT (SELECT {PARENT} FROM turns t WHERE t.turn_id = path.turn_id), depth + 1 FROM path"
    " WHERE turn_id NOT IN ('', $2))"
    " SELECT turn_id FROM path ORDER BY depth DESC LIMIT $3"
)


class SqlConversations(Conversations):
    """The conversations of all subjects."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def create(
        self,
        subject: str,
        metadata: Mapping[str, str],
        addition: Addition,
        request: StartingRequest,
        *,
        key_id: str = "",
    ) -> str:
        session_id = new_id()

        def unit(tx: StoreTransaction) -> None:
            note_request(tx, subject, request, session_id=session_id)
            add_session(tx, session_id, subject, "")
            if metadata:
                tx.change(_DESCRIBE, session_id=session_id, metadata=_encoded(metadata))
            if addition.messages:
                _add(tx, subject, session_id, addition, key_id)

        try:
            await self._store.write(unit)
        except SentBeforeError as before:
            return before.session_id
        return session_id

    async def find(self, subject: str, session_id: str) -> Conversation:
        rows = await self._store.read(_FIND, session_id, subject)
        if not rows:
            raise _none(session_id)
        [row] = rows
        metadata = msgspec.json.decode(row.metadata, type=dict[str, str]) if row.metadata else {}
        return Conversation(row.session_id, row.leaf, metadata)

    async def describe(self, subject: str, session_id: str, metadata: Mapping[str, str]) -> None:
        def unit(tx: StoreTransaction) -> None:
            if not tx.change_session(session_id, "", _OWN, subject=subject):
                raise _none(session_id)
            tx.change(_DESCRIBE, session_id=session_id, metadata=_encoded(metadata))

        await self._store.write(unit)

    async def add(
        self, subject: str, session_id: str, addition: Addition, request: StartingRequest, *, key_id: str = ""
    ) -> str:
        def unit(tx: StoreTransaction) -> None:
            note_request(tx, subject, request, session_id=session_id, turn_id=addition.addition_id)
            _add(tx, subject, session_id, addition, key_id)

        try:
            await self._store.write(unit)
        except SentBeforeError as before:
            return before.turn_id
        return addition.addition_id

    async def waiting(self, session_id: str) -> Sequence[AddedItem]:
        return [*map(_item, await self._store.read(_WAITING, session_id))]

    async def added(self, session_id: str, addition_id: str) -> Sequence[AddedItem]:
        return [*map(_item, await self._store.read(_ADDED, addition_id, session_id))]

    async def remove(self, subject: str, session_id: str, item: AddedItem, *, key_id: str = "") -> bool:
        def unit(tx: StoreTransaction) -> bool:
            if not tx.change_session(session_id, "", _OWN, subject=subject):
                raise _none(session_id)
            if not tx.change(_REMOVE, item.addition_id, item.number, session_id):
                return False
            tx.audit(AuditEvent(AuditAction.ITEM_DELETED, subject, key_id=key_id, session_id=session_id))
            return True

        return await self._store.write(unit)

    async def back(self, turn_id: str, limit: int) -> Sequence[str]:
        return [row.turn_id for row in await self._store.read(_BACK, turn_id, limit)]

    async def forth(self, leaf_turn_id: str, turn_id: str, limit: int) -> Sequence[str]:
        # The last step is to the turn itself, or to '' behind the first one: the walk goes up, from the leaf.
        found = [row.turn_id for row in await self._store.read(_FORTH, leaf_turn_id, turn_id, limit + 1)]
        if turn_id:
            return found[:limit] if found[0] == turn_id else []
        return found[1:]


def _add(tx: StoreTransaction, subject: str, session_id: str, addition: Addition, key_id: str) -> None:
    if not tx.change_session(session_id, _ADD_TO, _OWN, subject=subject):
        raise _none(session_id)
    for number, message in enumerate(addition.messages):
        tx.change(
            _ADD,
            addition_id=addition.addition_id,
            number=number,
            session_id=session_id,
            standing=int(message.is_instruction),
            added_item=msgspec.json.encode(message),
        )
    [waiting], [standing] = tx.execute(_WAIT, session_id), tx.execute(_STANDING, session_id)
    if waiting.items > MAX_WAITING or waiting.size > MAX_WAITING_BYTES:
        raise TooManyAddedError(
            f"{MAX_WAITING} items of {MAX_WAITING_BYTES} bytes may wait in a conversation: ask a question, which takes"
            " them, or delete some"
        )
    if standing.size > MAX_INSTRUCTION_BYTES:
        raise TooManyAddedError(
            f"the instructions in a conversation may have {MAX_INSTRUCTION_BYTES} bytes: they are sent with every"
            " question"
        )
    tx.audit(AuditEvent(AuditAction.ITEMS_ADDED, subject, key_id=key_id, session_id=session_id))


def _item(row: Row) -> AddedItem:
    return AddedItem(row.addition_id, row.number, row.turn_id, message_of(row) if not row.turn_id else None)


def _encoded(metadata: Mapping[str, str]) -> str:
    return msgspec.json.encode(metadata).decode()


def _none(session_id: str) -> SessionNotFoundError:
    return SessionNotFoundError(f"there is no session {session_id}")
