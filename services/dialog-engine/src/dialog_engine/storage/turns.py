"""Turns: they begin with the user's message and end with their last one, each in one transaction."""

from dataclasses import replace

from dialog_engine.chat.outbox import TurnFinished, TurnUsage
from dialog_engine.chat.ports import Ended, TurnStore
from dialog_engine.chat.requests import StartingRequest
from dialog_engine.chat.waiting_messages import Candidate, HeldReason
from dialog_engine.errors import SessionNotFoundError, TurnFencedError, TurnRunningError
from dialog_engine.model import AssistantMessage, Choice, Done, DoneReason, Turn, TurnFailed
from dialog_engine.storage import branches, token_counts
from dialog_engine.storage.added_items import with_added
from dialog_engine.storage.beginnings import begin_turn, left_by
from dialog_engine.storage.brought import brought_for, keep_brought
from dialog_engine.storage.calls import insert_message
from dialog_engine.storage.database import Row
from dialog_engine.storage.requests import name_session, note_message
from dialog_engine.storage.store import NEXT_REVISION, SealedTransaction, Store, StoreTransaction
from dialog_engine.storage.usage import count_turn
from dialog_engine.storage.waiting import add_waiting, begin_next
from plugins_contract.choice import decode_choice

TITLE_LENGTH = 80
_HELD_AFTER = {DoneReason.CANCELLED: HeldReason.STOPPED, DoneReason.ERROR: HeldReason.FAILED}
"""What a turn that ends so does to the message that is next, unless its user has said that it is sent."""

# The turn before one that is about to begin: the running one, otherwise the first message that waits.
_FIRST = (
    "SELECT turn_id FROM (SELECT turn_id, 0 AS waits, 0 AS place FROM turns WHERE session_id = $1"
    " AND status = 'running' UNION ALL SELECT turn_id, 1, place FROM waiting_messages WHERE session_id = $1"
    " AND withdrawn_at IS NULL) AS ahead ORDER BY waits, place LIMIT 1"
)
_FINISH = (
    f"UPDATE turns SET status = $status, reason = $reason, {token_counts.SET},"
    " ttft_ms = $ttft_ms, model = coalesce($model, model), error_code = $error_code,"
    " error_message = $error_message, left_out = $left_out, finished_at = now_ms() WHERE turn_id = $turn_id"
    " AND owner = $owner AND epoch = $epoch AND status = 'running' RETURNING finished_at, model"
)
_ADD_SESSION = (
    "INSERT INTO sessions (session_id, subject, title, created_at, updated_at, revision, stateless)"
    f" VALUES ($session_id, $subject, $title, now_ms(), now_ms(), {NEXT_REVISION}, $stateless)"
)
_TOUCHED = ", updated_at = now_ms()"
_TITLED = f"{_TOUCHED}, title = CASE title WHEN '' THEN $title ELSE title END"


class SqlTurns(TurnStore):
    """The turns that this engine runs."""

    def __init__(self, store: Store, *, facts_with_text: bool = False) -> None:
        self._store = store
        self._facts_with_text = facts_with_text

    async def begin(
        self,
        turn: Turn,
        text: str,
        *,
        new_session: bool = False,
        queue: bool = False,
        request: StartingRequest = StartingRequest(),
    ) -> Turn | None:
        def unit(tx: StoreTransaction) -> Turn | None:
            begun, brought = turn, turn.brought
            note_message(tx, turn, text, request)
            if new_session:
                add_session(tx, turn.session_id, turn.subject, text, stateless=bool(brought and brought.stateless))
                if request.session_name:
                    name_session(tx, turn, request.session_name)
            else:
                begun = in_session(tx, turn, text)
            if begun.brought is not None:
                begun = keep_brought(tx, begun)
            if not new_session:
                if turn.parent is not None:
                    branches.open_branch(tx, turn.session_id, turn.parent, limited=turn.of_own_api)
                if ahead := tx.execute(_FIRST, turn.session_id):
                    if not queue:
                        raise TurnRunningError(ahead[0].turn_id)
                    add_waiting(tx, begun, text)
                    return None
            begin_turn(tx, begun, text)
            return begun

        return await self._store.write(unit)

    async def finish(
        self,
        turn: Turn,
        message: AssistantMessage | None,
        done: Done,
        failure: TurnFailed | None,
        candidate: Candidate | None = None,
    ) -> Ended:
        def unit(tx: StoreTransaction) -> Ended:
            ended = tx.execute(
                _FINISH,
                status=_status(done.reason),
                reason=done.reason,
                **token_counts.parameters(done.usage),
                ttft_ms=done.ttft_ms,
                model=done.model,
                error_code=failure.code if failure else None,
                error_message=failure.message if failure else None,
                left_out=done.left_out,
                turn_id=turn.turn_id,
                owner=tx.engine_id,
                epoch=turn.epoch,
            )
            if not ended:
                _check_ended_here(tx, turn)
                return Ended(None)
            # After this lock, a message that came meanwhile is found by `begin_next`; a later one finds the turn ended.
            tx.change_session(turn.session_id, _TOUCHED)
            number = insert_message(tx, turn, "assistant", message).number if message else None
            [row] = ended
            tx.publish(self._fact(tx, turn, message, done, at=row.finished_at))
            begun = begin_next(tx, turn.session_id, candidate, _HELD_AFTER.get(done.reason))
            count_turn(tx, turn, done, row.model or "", at=row.finished_at)
            return Ended(number, begun)

        return await self._store.write(unit)

    async def request_stop(self, turn_id: str) -> str | Turn | None:
        def unit(tx: StoreTransaction) -> str | Turn | None:
            found = tx.execute(
                "UPDATE turns SET stop_requested = 1 WHERE turn_id = $1 AND status = 'running' RETURNING owner", turn_id
            )
            return (found[0].owner or take(tx, turn_id)) if found else None

        return await self._store.write(unit)

    async def is_running(self, turn_id: str) -> bool:
        return bool(await self._store.read("SELECT 1 FROM turns WHERE turn_id = $1 AND status = 'running'", turn_id))

    def _fact(
        self, tx: StoreTransaction, turn: Turn, message: AssistantMessage | None, done: Done, *, at: int
    ) -> TurnFinished:
        user_message, assistant_message = None, None
        if self._facts_with_text:
            [asked] = tx.execute(
                "SELECT turn_id, role, content FROM messages WHERE turn_id = $1 AND role = 'user'"
                " ORDER BY number LIMIT 1",
                turn.turn_id,
            )
            user_message, assistant_message = asked.content, message.content if message else ""
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


def _check_ended_here(tx: StoreTransaction, turn: Turn) -> None:
    """Check that this engine has ended the turn before. Raises TurnFencedError otherwise."""
    found = "SELECT 1 FROM turns WHERE turn_id = $1 AND owner = $2 AND epoch = $3"
    if not tx.execute(found, turn.turn_id, tx.engine_id, turn.epoch):
        raise TurnFencedError(turn.turn_id)


def add_session(
    tx: StoreTransaction, session_id: str, subject: str, first_message: str, *, stateless: bool = False
) -> None:
    """Insert a session, titled after the first message. One that is `stateless` is not listed."""
    tx.sessions_changed = True
    values = {"session_id": session_id, "subject": subject, "title": _title(first_message)}
    tx.change(_ADD_SESSION, **values, stateless=int(stateless))


def in_session(tx: StoreTransaction, turn: Turn, text: str) -> Turn:
    """Update the session for a new message, whose turn uses the session's choice of tools if it has none of its own,
    and gets what clients have added. The lock of the session's row serialises the turns that begin in it.

    Raises:
        SessionNotFoundError: the subject has no such session.
    """
    values = {"subject": turn.subject, "title": _title(text)}
    session = tx.change_session(turn.session_id, _TITLED, " AND subject = $subject", **values)
    if not session:
        raise SessionNotFoundError(f"there is no session {turn.session_id}")
    if session[0].has_additions:
        turn = with_added(tx, turn)
    if turn.choice.tools is not None or not session[0].chosen_tools:
        return turn
    return replace(turn, choice=replace(turn.choice, tools=decode_choice(session[0].chosen_tools)))


TURN_COLUMNS = (
    f"turn_id, session_id, epoch, rounds, traceparent, roles, credential, {token_counts.COLUMNS},"
    " chosen_model, tool_mode, chosen_tools, model, ttft_ms, leave_ms"
)
"""What `turn_of` needs of the row of a turn."""
PARKED = "status = 'running' AND owner = ''"
"""The condition on the rows of parked turns, as the indexes of them have it."""
_TAKE = (
    "UPDATE turns SET owner = $1, epoch = epoch + 1, owned_since = now_ms(), crashes = 0, parked_until = NULL,"
    " leave_ms = -abs(leave_ms),"
    f" stop_requested = CASE WHEN $2 = 1 THEN 1 ELSE stop_requested END WHERE turn_id = $3 AND {PARKED}"
    f" RETURNING {TURN_COLUMNS}"
)


def turn_of(tx: SealedTransaction, row: Row) -> Turn:
    """A running turn with its present epoch, from its row."""
    [session] = tx.execute("SELECT subject FROM sessions WHERE session_id = $1", row.session_id)
    [calls] = tx.execute("SELECT count(*) AS made FROM tool_calls WHERE turn_id = $1", row.turn_id)
    return Turn(
        row.turn_id,
        row.session_id,
        session.subject,
        row.epoch,
        row.rounds,
        row.traceparent,
        token_counts.usage_of(row),
        Choice(row.chosen_model, row.tool_mode, decode_choice(row.chosen_tools)),
        roles_of(row),
        credential=row.credential,
        calls=calls.made,
        model=row.model or "",
        ttft_ms=row.ttft_ms,
        brought=brought_for(tx, row.turn_id),
        leaving=left_by(row.leave_ms),
    )


def roles_of(row: Row) -> tuple[str, ...]:
    """The roles of a turn's sender, from its row."""
    return tuple(row.roles.split("\n")) if row.roles else ()


def take(tx: StoreTransaction, turn_id: str, *, stop: bool = False) -> Turn | None:
    """Give a parked turn to the engine of this transaction, in a new epoch, with a request to `stop` it. None when it
    is not parked."""
    found = tx.execute(_TAKE, tx.engine_id, int(stop), turn_id)
    return turn_of(tx, found[0]) if found else None


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
