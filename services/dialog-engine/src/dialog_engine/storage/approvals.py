"""Approvals: a question is stored with its call, and a decision with its consequence, in one transaction. A call that
its client runs is a question to that, and its result the decision.

Any engine commits a decision. The owner of the turn finds it in the store; a parked turn is its engine's from then on.
"""

from collections.abc import Callable, Sequence

import msgspec

from dialog_engine.chat.audit import AuditAction, AuditEvent
from dialog_engine.model import ApprovalStatus, Turn
from dialog_engine.storage.calls import add_requests, answer_call, call_of, keep_whole
from dialog_engine.storage.database import Row, placeholders
from dialog_engine.storage.fence import fence
from dialog_engine.storage.outbox import RESTORED_AT
from dialog_engine.storage.requests import note_answer
from dialog_engine.storage.store import SealedTransaction, Store, StoreTransaction
from dialog_engine.storage.turns import TURN_COLUMNS, take, turn_of
from dialog_engine.tool_calls.ports import ApprovalStore, ClientResult, MakeRequest
from dialog_engine.tool_calls.values import (
    CLIENT_CLASS,
    AnswerKey,
    ApprovalState,
    Asked,
    Committed,
    Decision,
    PendingApproval,
    Question,
    outcome_of_refusal,
    outcome_unanswered,
    timed,
)
from plugins_contract.ledger import NEVER_OFFERED
from plugins_contract.messages import EVENT_TYPE as TOOL_CALL_REQUESTED
from plugins_contract.messages import decode_request
from plugins_contract.outcomes import ToolOutcome

WAITING = (
    "SELECT c.tool_call_id, c.correlation_id, c.name, c.arguments, c.tool, a.question FROM approvals a"
    " JOIN tool_calls c ON c.correlation_id = a.correlation_id"
    " WHERE c.turn_id = $1 AND c.outcome IS NULL AND a.decision IS NULL ORDER BY c.message_id, c.ordinal"
)
"""The calls of a turn that wait for approval, or for the client that runs them, for `asked_from`."""
_PENDING = (
    "SELECT s.session_id, t.turn_id, c.tool_call_id, c.correlation_id, c.name, c.arguments, c.tool, a.question"
    " FROM sessions s JOIN turns t ON t.session_id = s.session_id AND t.status = 'running'"
    " JOIN tool_calls c ON c.turn_id = t.turn_id JOIN approvals a ON a.correlation_id = c.correlation_id"
    f" WHERE s.subject = $1 AND c.outcome IS NULL AND a.decision IS NULL AND c.execution_class {{}} '{CLIENT_CLASS}'"
    " ORDER BY c.message_id, c.ordinal LIMIT $2"
)
# The turn's row is locked first, as each write of a turn does.
TURN = f"UPDATE turns SET crashes = 0 WHERE turn_id = $1 AND status = 'running' RETURNING {TURN_COLUMNS}, owner"
"""Locks the row of a running turn."""
# Both match an undecided question.
_UNDECIDED = (
    " WHERE correlation_id = $correlation_id AND decision IS NULL AND EXISTS"
    " (SELECT 1 FROM tool_calls c WHERE c.correlation_id = approvals.correlation_id AND c.outcome IS NULL)"
)
_DECIDE = f"UPDATE approvals SET decision = $decision{_UNDECIDED}"
_CLASS = "UPDATE tool_calls SET execution_class = $1 WHERE correlation_id = $2"
_ASK_AGAIN = f"UPDATE approvals SET question = $question{_UNDECIDED}"
_STATES = (
    "SELECT a.correlation_id, a.question, a.decision, c.outcome, o.payload FROM approvals a"
    " JOIN tool_calls c ON c.correlation_id = a.correlation_id"
    " LEFT JOIN outbox o ON o.event_type = $1 AND o.event_id = a.correlation_id WHERE a.correlation_id IN ({})"
)
STATES_AT_ONCE = 500
_ACTIONS = {
    ApprovalStatus.APPROVED: AuditAction.CALL_APPROVED,
    ApprovalStatus.EDITED: AuditAction.CALL_APPROVED,
    ApprovalStatus.REFUSED: AuditAction.CALL_DENIED,
    ApprovalStatus.EXPIRED: AuditAction.APPROVAL_EXPIRED,
    ApprovalStatus.ANSWERED: AuditAction.CALL_ANSWERED,
}


class NotOpenError(Exception):
    """A call has its outcome or another question, or its turn has ended: what the transaction has written is taken
    back."""


class SqlApprovals(ApprovalStore):
    """The approvals of all turns."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def states(self, correlation_ids: Sequence[str]) -> list[ApprovalState]:
        found: list[ApprovalState] = []
        for at in range(0, len(correlation_ids), STATES_AT_ONCE):
            ids = correlation_ids[at : at + STATES_AT_ONCE]
            query = _STATES.format(placeholders(2, len(ids)))
            found += map(_state, await self._store.read(query, TOOL_CALL_REQUESTED, *ids))
        return found

    async def pending(self, subject: str, limit: int) -> list[PendingApproval]:
        """The calls in running turns of the subject that wait for approval, the oldest first."""
        return await self._pending("<>", subject, limit)

    async def client_calls(self, subject: str, limit: int) -> list[PendingApproval]:
        """Those that wait for the clients that run them."""
        return await self._pending("=", subject, limit)

    async def _pending(self, compared: str, subject: str, limit: int) -> list[PendingApproval]:
        rows = await self._store.read(_PENDING.format(compared), subject, limit)
        return [PendingApproval(row.session_id, row.turn_id, Asked(call_of(row), _question(row))) for row in rows]

    async def decide(
        self,
        turn_id: str,
        asked: Asked,
        decision: Decision,
        request: MakeRequest | None,
        outcome: ToolOutcome | None,
        answer_key: AnswerKey | None = None,
    ) -> Committed | None:
        def unit(tx: StoreTransaction) -> Committed:
            call = asked.call
            note_answer(tx, turn_id, answer_key)
            if not (found := tx.execute(TURN, turn_id)):
                raise NotOpenError
            turn, owner = turn_of(tx, found[0]), found[0].owner
            if not (_is_asked(tx, asked) and _decide(tx, turn, asked, decision)):
                raise NotOpenError
            tx.change_session(turn.session_id)
            if taken := take(tx, turn_id):
                turn, owner = taken, tx.engine_id
            if request is not None:
                addressed = msgspec.structs.replace(request(turn), mailbox=tx.mailbox_of(owner))
                offered_to = None if may_have_run(tx, call.correlation_id) else NEVER_OFFERED
                tx.change(_CLASS, addressed.execution_class, call.correlation_id)
                add_requests(tx, turn, [addressed], [offered_to], owner)
            if outcome is not None:
                answer_call(tx, turn, call, outcome, owner)
            return Committed(taken)

        return await if_open(self._store, unit)

    async def ask_again(self, turn_id: str, asked: Asked, question: Question) -> Committed | None:
        def unit(tx: StoreTransaction) -> Committed | None:
            changed = {"correlation_id": asked.call.correlation_id, "question": msgspec.json.encode(question)}
            if tx.execute(TURN, turn_id) and _is_asked(tx, asked) and tx.change(_ASK_AGAIN, **changed):
                return Committed(take(tx, turn_id))
            return None

        return await self._store.write(unit)

    async def turn_of(self, correlation_id: str) -> str | None:
        rows = await self._store.read("SELECT turn_id FROM tool_calls WHERE correlation_id = $1", correlation_id)
        return rows[0].turn_id if rows else None

    async def answer(
        self, turn_id: str, results: Sequence[ClientResult], answer_key: AnswerKey | None = None
    ) -> Committed | None:
        def unit(tx: StoreTransaction) -> Committed:
            note_answer(tx, turn_id, answer_key)
            if not (found := tx.execute(TURN, turn_id)):
                raise NotOpenError
            turn, owner = turn_of(tx, found[0]), found[0].owner
            if taken := take(tx, turn_id):
                turn, owner = taken, tx.engine_id
            for each in results:
                if not _decide(tx, turn, each.asked, each.decision):
                    raise NotOpenError
                answer_call(tx, turn, each.asked.call, each.outcome, owner)
                if each.whole is not None:
                    keep_whole(tx, each.asked.call.correlation_id, each.whole)
            tx.change_session(turn.session_id)
            return Committed(taken)

        return await if_open(self._store, unit)

    async def close(
        self, turn: Turn, outcome_of: Callable[[Asked], ToolOutcome]
    ) -> Sequence[tuple[Asked, ToolOutcome]]:
        def unit(tx: StoreTransaction) -> list[tuple[Asked, ToolOutcome]]:
            fence(tx, turn)
            closed = [(each, outcome_of(each)) for each in asked_of(tx, turn.turn_id)]
            for each, outcome in closed:
                answer_call(tx, turn, each.call, outcome)
            if closed:
                tx.change_session(turn.session_id)
            return closed

        return await self._store.write(unit)


async def if_open(store: Store, unit: Callable[[StoreTransaction], Committed]) -> Committed | None:
    """What the unit of work has committed. None, and nothing is committed, when it raises NotOpenError."""
    try:
        return await store.write(unit)
    except NotOpenError:
        return None


def _is_asked(tx: SealedTransaction, asked: Asked) -> bool:
    """Whether the question of the call is still `asked`. The turn's lock keeps it from changing meanwhile."""
    found = "SELECT correlation_id, question FROM approvals WHERE correlation_id = $1"
    return any(_question(row) == asked.question for row in tx.execute(found, asked.call.correlation_id))


def may_have_run(tx: SealedTransaction, correlation_id: str) -> bool:
    """Whether the store was restored from a backup since the call was committed: it may have been approved, and run,
    after the backup was made."""
    restored = (
        "SELECT 1 FROM tool_calls c JOIN meta m ON m.key = $1"
        " WHERE c.correlation_id = $2 AND c.created_at <= CAST(m.value AS bigint)"
    )
    return bool(tx.execute(restored, RESTORED_AT, correlation_id))


def _decided(tx: StoreTransaction, turn: Turn, asked: Asked, decision: Decision) -> AuditEvent:
    return AuditEvent(
        _ACTIONS[decision.status],
        turn.subject,
        key_id=decision.key_id,
        session_id=turn.session_id,
        turn_id=turn.turn_id,
        correlation_id=asked.call.correlation_id,
        server=asked.question.server,
        tool=asked.call.tool_name,
        digest=tx.trail.digest(asked.question.arguments),
        outcome=decision.status,
    )


def asked_of(tx: SealedTransaction, turn_id: str) -> list[Asked]:
    """The calls of the turn that wait for approval, or for the client that runs them."""
    return asked_from(tx.execute(WAITING, turn_id))


def asked_from(rows: Sequence[Row]) -> list[Asked]:
    """What rows of WAITING say."""
    return [Asked(call_of(row), _question(row)) for row in rows]


def refuse(tx: StoreTransaction, turn: Turn, decision: Decision, owner: str) -> list[tuple[Asked, ToolOutcome]]:
    """Refuse every call of the turn that waits for approval, or for its client. `owner` runs the turn."""
    refused = [
        (each, timed(_outcome_of_refusal(each, decision.reason), each.call.correlation_id))
        for each in asked_of(tx, turn.turn_id)
    ]
    for each, outcome in refused:
        _decide(tx, turn, each, decision)
        answer_call(tx, turn, each.call, outcome, owner)
    return refused


def _outcome_of_refusal(asked: Asked, reason: str) -> ToolOutcome:
    return outcome_unanswered(reason) if asked.question.by_client else outcome_of_refusal(reason)


def _decide(tx: StoreTransaction, turn: Turn, asked: Asked, decision: Decision) -> bool:
    changed = {"correlation_id": asked.call.correlation_id, "decision": msgspec.json.encode(decision)}
    decided = bool(tx.change(_DECIDE, **changed))
    if decided and (decision.status is ApprovalStatus.ANSWERED or not asked.question.by_client):
        tx.audit(_decided(tx, turn, asked, decision))
    return decided


def _question(row: Row) -> Question:
    return msgspec.json.decode(row.question, type=Question)


def _state(row: Row) -> ApprovalState:
    decision, outcome = row.decision, row.outcome
    return ApprovalState(
        row.correlation_id,
        _question(row),
        msgspec.json.decode(decision, type=Decision) if decision is not None else None,
        msgspec.json.decode(outcome, type=ToolOutcome) if outcome is not None else None,
        decode_request(row.payload) if row.payload is not None else None,
    )
