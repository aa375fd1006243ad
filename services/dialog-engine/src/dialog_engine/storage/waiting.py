"""Messages that wait for the turns before them in their session.

Each unit that inserts, changes or begins one, and each end of a turn, locks the row of the session first: an end that
begins the next message and a message that comes meanwhile cannot miss each other.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace

from dialog_engine.chat.audit import AuditAction, AuditEvent
from dialog_engine.chat.requests import StartingRequest
from dialog_engine.chat.waiting_messages import MAX_WAITING, Candidate, HeldReason, WaitingMessage, WaitingStore
from dialog_engine.errors import LimitExceededError, TurnNotFoundError, TurnStartedError
from dialog_engine.model import Choice, Turn
from dialog_engine.storage.added_items import give_back
from dialog_engine.storage.beginnings import begin_turn, leave_ms, left_by
from dialog_engine.storage.branches import begin_behind
from dialog_engine.storage.brought import committed_of, forget_all_brought, forget_brought
from dialog_engine.storage.database import Row, placeholders
from dialog_engine.storage.requests import note_key
from dialog_engine.storage.store import SealedDatabase, Store, StoreTransaction
from plugins_contract.choice import decode_choice, encode_choice

RETRY_SECONDS = 5
"""When a client may try again whose message had no place."""
KEPT_MS = 7 * 86_400_000
"""How long it is known that a message was withdrawn."""
ASKED_AT_ONCE = 500

_WAITS = "session_id = $session_id AND withdrawn_at IS NULL"
_ADD = (
    "INSERT INTO waiting_messages (turn_id, session_id, subject, waiting_text, chosen_model, tool_mode, chosen_tools,"
    " parent_turn_id, traceparent, leave_ms, roles, key_id, credential, expires_at, created_at, released, place)"
    " VALUES ($turn_id, $session_id, $subject, $waiting_text, $chosen_model, $tool_mode, $chosen_tools,"
    " $parent_turn_id, $traceparent, $leave_ms, $roles, $key_id, $credential, $expires_at, now_ms(), $released, {})"
)
_LAST_PLACE = f"(SELECT 1 + coalesce(max(place), 0) FROM waiting_messages WHERE {_WAITS})"
_FIRST_PLACE = f"(SELECT coalesce(min(place), 1) - 1 FROM waiting_messages WHERE {_WAITS})"
_COLUMNS = (
    "w.turn_id, w.session_id, w.subject, w.chosen_model, w.tool_mode, w.chosen_tools, w.parent_turn_id, w.traceparent,"
    " w.leave_ms, w.roles, w.key_id, w.credential, w.expires_at, w.created_at, w.version, w.released, w.held,"
    " w.withdrawn_at"
)
_FIRST = f"SELECT {_COLUMNS} FROM waiting_messages w WHERE {_WAITS} ORDER BY place LIMIT 1"
_NEXT = (
    f"SELECT {_COLUMNS}, b.brought FROM waiting_messages w LEFT JOIN turn_inputs b ON b.turn_id = w.turn_id"
    " WHERE w.session_id = $1 AND w.withdrawn_at IS NULL ORDER BY place LIMIT 1"
)
_WHOLE = f"SELECT {_COLUMNS}, w.waiting_text FROM waiting_messages w WHERE w.subject = $1"
_TAKE = "DELETE FROM waiting_messages WHERE turn_id = $1 RETURNING turn_id, waiting_text"
_LAST = "SELECT turn_id FROM messages WHERE session_id = $1 ORDER BY number DESC LIMIT 1"
_HOLD = "UPDATE waiting_messages SET held = $held, released = 0 WHERE turn_id = $turn_id"
_DUE = (
    "SELECT w.session_id FROM waiting_messages w WHERE w.withdrawn_at IS NULL AND w.held = '' AND w.place ="
    " (SELECT min(place) FROM waiting_messages o WHERE o.session_id = w.session_id AND o.withdrawn_at IS NULL)"
    " AND NOT EXISTS (SELECT 1 FROM turns t WHERE t.session_id = w.session_id AND t.status = 'running') LIMIT $1"
)
_RUNNING = "SELECT turn_id FROM turns WHERE session_id = $1 AND status = 'running'"
# A parked turn is due now: some engine takes it up, and finds that it is stopped.
_STOP = (
    "UPDATE turns SET stop_requested = 1, parked_until = CASE owner WHEN '' THEN now_ms() ELSE parked_until END"
    " WHERE status = 'running' AND session_id = (SELECT session_id FROM waiting_messages"
    " WHERE turn_id = $1 AND subject = $2 AND withdrawn_at IS NULL)"
)
_SENDER = "roles = $roles, key_id = $key_id, credential = $credential, expires_at = $expires_at, version = version + 1"
_EDIT = f"UPDATE waiting_messages SET waiting_text = $waiting_text, {_SENDER} WHERE turn_id = $turn_id"
_SEND = (
    f"UPDATE waiting_messages SET {_SENDER}, held = '', released = 1, place ="
    f" (SELECT min(place) - 1 FROM waiting_messages WHERE {_WAITS}) WHERE turn_id = $turn_id"
)
_WITHDRAW = "UPDATE waiting_messages SET waiting_text = $waiting_text, withdrawn_at = now_ms() WHERE turn_id = $turn_id"
_FORGET = (
    "DELETE FROM waiting_messages WHERE turn_id IN (SELECT turn_id FROM waiting_messages"
    " WHERE withdrawn_at < now_ms() - $1 LIMIT 100 {})"
    " RETURNING turn_id"
)


def add_waiting(tx: StoreTransaction, turn: Turn, text: str, *, first: bool = False) -> None:
    """Let a message wait behind all others of its session, whose row is locked; or `first`, and sent whatever becomes
    of the turn before it. So is one of another protocol, whose client cannot say later that it is sent.

    Raises:
        LimitExceededError: MAX_WAITING messages wait there.
    """
    [count] = tx.execute(f"SELECT count(*) AS waiting FROM waiting_messages WHERE {_WAITS}", session_id=turn.session_id)
    if count.waiting >= MAX_WAITING:
        raise LimitExceededError(f"{MAX_WAITING} messages may wait in a session", RETRY_SECONDS)
    tx.change(
        _ADD.format(_FIRST_PLACE if first else _LAST_PLACE),
        **_sender(turn),
        session_id=turn.session_id,
        subject=turn.subject,
        waiting_text=text,
        chosen_model=turn.choice.model,
        tool_mode=turn.choice.tool_mode,
        chosen_tools=encode_choice(turn.choice.tools),
        parent_turn_id=turn.parent,
        traceparent=turn.traceparent,
        released=int(first or not turn.of_own_api),
        leave_ms=leave_ms(turn.leaving),
    )
    tx.audit(_event(AuditAction.MESSAGE_QUEUED, turn))


def begin_next(
    tx: StoreTransaction, session_id: str, candidate: Candidate | None, after: HeldReason | None = None
) -> bool:
    """Begin the turn of the first message of a session, whose row is locked and in which no turn runs; hold the message
    if it is to be held: by the candidate, or `after` a turn that was stopped or has failed."""
    first = _first(tx, session_id)
    if first is None or first.held:
        return False
    if after and not first.released:
        return _hold(tx, first, after)
    if candidate is None or (first.turn_id, first.version) != (candidate.turn.turn_id, candidate.version):
        return False
    if candidate.held:
        return _hold(tx, first, candidate.held)
    if not (taken := tx.execute(_TAKE, first.turn_id)):
        return False  # erased meanwhile
    turn = candidate.turn
    if turn.parent is None and (last := tx.execute(_LAST, session_id)):
        turn = replace(turn, parent=last[0].turn_id)  # what it was queued behind, whatever path is shown
    begin_behind(tx, session_id, turn.turn_id, turn.parent or "")
    begin_turn(tx, turn, taken[0].waiting_text)
    tx.free(session_id)
    return True


class SqlWaiting(WaitingStore):
    """The messages of all sessions."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def first(self, session_id: str) -> WaitingMessage | None:
        found = await self._store.read(_NEXT, session_id)
        if not found or found[0].held:
            return None
        message = _message(found[0])
        return replace(message, turn=replace(message.turn, brought=committed_of(found[0])))

    async def begin(self, candidate: Candidate) -> bool:
        session_id = candidate.turn.session_id

        def unit(tx: StoreTransaction) -> bool:
            tx.change_session(session_id)
            return not tx.execute(_RUNNING, session_id) and begin_next(tx, session_id, candidate)

        return await self._store.write(unit)

    async def due(self, limit: int) -> Sequence[str]:
        return [row.session_id for row in await self._store.read(_DUE, limit)]

    async def waiting(self, turn_ids: Collection[str]) -> Collection[str]:
        ids, found = [*turn_ids], set[str]()
        for at in range(0, len(ids), ASKED_AT_ONCE):
            some = ids[at : at + ASKED_AT_ONCE]
            these = f"turn_id IN ({placeholders(1, len(some))}) AND withdrawn_at IS NULL"
            rows = await self._store.read(f"SELECT turn_id FROM waiting_messages WHERE {these}", *some)
            found |= {row.turn_id for row in rows}
        return found

    async def find(self, subject: str, turn_id: str) -> WaitingMessage | None:
        found = await self._store.read(f"{_WHOLE} AND w.turn_id = $2", subject, turn_id)
        return _message(found[0], found[0].waiting_text) if found else None

    async def of_session(self, subject: str, session_id: str) -> Sequence[WaitingMessage]:
        return await waiting_in(self._store, subject, session_id)

    async def of_subject(self, subject: str, limit: int) -> Sequence[WaitingMessage]:
        query = f"{_WHOLE} AND w.withdrawn_at IS NULL ORDER BY w.created_at, w.turn_id LIMIT $2"
        return [_message(row, row.waiting_text) for row in await self._store.read(query, subject, limit)]

    async def count(self) -> int:
        """How many messages wait."""
        [row] = await self._store.read("SELECT count(*) AS waiting FROM waiting_messages WHERE withdrawn_at IS NULL")
        return row.waiting

    async def edit(self, sender: Turn, text: str) -> None:
        def unit(tx: StoreTransaction) -> None:
            message = _locked(tx, sender.subject, sender.turn_id)
            tx.change(_EDIT, **_sender(sender), waiting_text=text)
            tx.audit(_event(AuditAction.MESSAGE_EDITED, message.turn, sender.key_id))

        await self._store.write(unit)

    async def send(
        self, sender: Turn, request: StartingRequest = StartingRequest(), *, stop: bool = False
    ) -> tuple[str, str | None]:
        def unit(tx: StoreTransaction) -> tuple[str, str | None]:
            note_key(tx, sender.subject, request, turn_id=sender.turn_id)
            if stop:  # the turn's row is locked before that of its session: see `fence`
                tx.change(_STOP, sender.turn_id, sender.subject)
            message = _locked(tx, sender.subject, sender.turn_id)
            tx.change(_SEND, **_sender(sender), session_id=message.turn.session_id)
            tx.audit(_event(AuditAction.MESSAGE_RELEASED, message.turn, sender.key_id))
            running = tx.execute(_RUNNING, message.turn.session_id)
            return message.turn.session_id, running[0].turn_id if running else None

        return await self._store.write(unit)

    async def withdraw(self, subject: str, turn_id: str, *, key_id: str = "") -> str:
        def unit(tx: StoreTransaction) -> str:
            message = _locked(tx, subject, turn_id, withdrawn=True)
            session_id = message.turn.session_id
            if not message.withdrawn:
                tx.change(_WITHDRAW, turn_id=turn_id, waiting_text="")
                give_back(tx, session_id, turn_id)
                forget_brought(tx, message.turn)
                following = _first(tx, session_id)
                if message.held in (HeldReason.STOPPED, HeldReason.FAILED) and following and not following.held:
                    _hold(tx, following, HeldReason(message.held))
                tx.audit(_event(AuditAction.MESSAGE_WITHDRAWN, message.turn, key_id))
                for row in tx.execute(_FORGET.format(tx.skip_locked), KEPT_MS):
                    forget_all_brought(tx, row.turn_id)
                tx.free(session_id)
            return session_id

        return await self._store.write(unit)


async def waiting_in(store: SealedDatabase, subject: str, session_id: str) -> Sequence[WaitingMessage]:
    """The messages that wait in a session, in their order."""
    query = f"{_WHOLE} AND w.session_id = $2 AND w.withdrawn_at IS NULL ORDER BY w.place"
    return [_message(row, row.waiting_text) for row in await store.read(query, subject, session_id)]


def withdraw_all(tx: StoreTransaction, subject: str) -> None:
    """Delete what waits in any session of a subject, whose data are erased."""
    for row in tx.execute("DELETE FROM waiting_messages WHERE subject = $1 RETURNING session_id", subject):
        tx.free(row.session_id)


def _first(tx: StoreTransaction, session_id: str) -> Row | None:
    return next(iter(tx.execute(_FIRST, session_id=session_id)), None)


def _hold(tx: StoreTransaction, first: Row, why: HeldReason) -> bool:
    tx.change(_HOLD, turn_id=first.turn_id, held=why)
    return False


def _locked(tx: StoreTransaction, subject: str, turn_id: str, *, withdrawn: bool = False) -> WaitingMessage:
    """The message, while nothing else can change or begin it; also a `withdrawn` one. Raises as WaitingStore.edit."""
    query = f"SELECT {_COLUMNS} FROM waiting_messages w WHERE turn_id = $1 AND subject = $2"
    if (found := tx.execute(query, turn_id, subject)) and tx.change_session(found[0].session_id):
        found = tx.execute(query, turn_id, subject)  # it may have begun before the session was locked
    if found and (withdrawn or found[0].withdrawn_at is None):
        return _message(found[0])
    begun = "SELECT 1 FROM turns JOIN sessions USING (session_id) WHERE turn_id = $1 AND subject = $2"
    if tx.execute(begun, turn_id, subject):
        raise TurnStartedError(turn_id)
    raise TurnNotFoundError(f"there is no turn {turn_id}")


def _sender(turn: Turn) -> dict[str, object]:
    return {
        "turn_id": turn.turn_id,
        "roles": "\n".join(turn.roles),
        "key_id": turn.key_id,
        "credential": turn.credential,
        "expires_at": None if turn.expires_at is None else round(turn.expires_at * 1000),
    }


def _event(action: AuditAction, turn: Turn, key_id: str = "") -> AuditEvent:
    ids = {"session_id": turn.session_id, "turn_id": turn.turn_id}
    return AuditEvent(action, turn.subject, key_id=key_id or turn.key_id, **ids)


def _message(row: Row, text: str = "") -> WaitingMessage:
    turn = Turn(
        row.turn_id,
        row.session_id,
        row.subject,
        traceparent=row.traceparent,
        choice=Choice(row.chosen_model, row.tool_mode, decode_choice(row.chosen_tools)),
        roles=tuple(row.roles.split("\n")) if row.roles else (),
        key_id=row.key_id,
        credential=row.credential,
        expires_at=None if row.expires_at is None else row.expires_at / 1000,
        parent=row.parent_turn_id,
        leaving=left_by(row.leave_ms),
    )
    return WaitingMessage(turn, row.version, row.created_at, row.held, row.withdrawn_at is not None, text)
