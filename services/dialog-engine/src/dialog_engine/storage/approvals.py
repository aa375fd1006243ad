"""Approvals: a question is stored with its call, and a decision with its consequence, in one transaction.

Any engine commits a decision; the owner of the turn finds it in the store.
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from dialog_engine.chat.audit import AuditAction, AuditEvent
from dialog_engine.chat.outbox import OfferRows, OutboxRow
from dialog_engine.model import ApprovalStatus, ToolCall, Turn
from dialog_engine.storage.audit import AuditTrail
from dialog_engine.storage.calls import add_requests, answer_call, call_of
from dialog_engine.storage.database import Database, Transaction, fence, fence_look, placeholders
from dialog_engine.storage.outbox import may_have_run
from dialog_engine.storage.sealed import open_data, owner
from dialog_engine.storage.turns import roles_of
from dialog_engine.tool_calls.ports import ApprovalStore, MakeRequest
from dialog_engine.tool_calls.values import ApprovalState, Asked, Decision, Question
from plugins_contract.encryption import CLEAR, Cipher
from plugins_contract.ledger import NEVER_OFFERED
from plugins_contract.messages import EVENT_TYPE as TOOL_CALL_REQUESTED
from plugins_contract.messages import decode_request
from plugins_contract.outcomes import ToolOutcome

_WAITING = (
    "SELECT c.tool_call_id, c.correlation_id, c.name, c.arguments, c.tool, a.question FROM approvals a"
    " JOIN tool_calls c ON c.correlation_id = a.correlation_id"
    " WHERE c.turn_id = $1 AND c.outcome IS NULL AND a.decision IS NULL ORDER BY c.message_id, c.ordinal"
)
# The turn's row is locked first, as each write of a turn does.
_TURN = (
    "UPDATE turns SET crashes = 0 WHERE turn_id = $1 AND status = 'running'"
    " RETURNING turn_id, session_id, owner, epoch, rounds, traceparent, roles"
)
# Matches an undecided question.
_UPDATE = (
    "UPDATE approvals SET {} = $1 WHERE correlation_id = $2 AND decision IS NULL AND EXISTS"
    " (SELECT 1 FROM tool_calls c WHERE c.correlation_id = approvals.correlation_id AND c.outcome IS NULL)"
)
_DECIDE = _UPDATE.format("decision")
_ASK_AGAIN = _UPDATE.format("question")
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
}


class SqlApprovals(ApprovalStore):
    """The approvals of all turns. `mailbox_of` names the mailbox of an engine."""

    def __init__(
        self,
        database: Database,
        engine_id: str,
        offer: OfferRows,
        mailbox_of: Callable[[str], str],
        audit: AuditTrail,
        cipher: Cipher = CLEAR,
    ) -> None:
        self._database = database
        self._engine_id = engine_id
        self._offer = offer
        self._mailbox_of = mailbox_of
        self._audit = audit
        self._cipher = cipher

    async def waiting(self, turn: Turn) -> list[Asked]:
        def unit(tx: Transaction) -> list[Asked]:
            fence_look(tx, turn, self._engine_id)
            return _waiting(tx, self._cipher, turn)

        return await self._database.write(unit)

    async def states(self, correlation_ids: Sequence[str]) -> list[ApprovalState]:
        found: list[ApprovalState] = []
        for at in range(0, len(correlation_ids), STATES_AT_ONCE):
            ids = correlation_ids[at : at + STATES_AT_ONCE]
            query = _STATES.format(placeholders(2, len(ids)))
            found += [_state(self._cipher, *row) for row in await self._database.read(query, TOOL_CALL_REQUESTED, *ids)]
        return found

    async def decide(
        self,
        turn_id: str,
        asked: Asked,
        decision: Decision,
        request: MakeRequest | None,
        outcome: ToolOutcome | None,
    ) -> bool:
        def unit(tx: Transaction) -> list[OutboxRow] | None:
            call = asked.call
            if not (found := tx.execute(_TURN, turn_id)):
                return None
            turn, owned_by = _turn(tx, *found[0])
            if not self._update(tx, _DECIDE, "approvals.decision", decision, asked):
                return None
            rows = self._audit.add(tx, self._decided(turn, asked, decision))
            if request is not None:
                addressed = msgspec.structs.replace(request(turn), mailbox=self._mailbox_of(owned_by))
                offered_to = None if may_have_run(tx, call.correlation_id) else NEVER_OFFERED
                rows += add_requests(tx, self._audit, self._cipher, owned_by, turn, [addressed], [offered_to])
            if outcome is not None:
                rows += answer_call(tx, self._audit, self._cipher, owned_by, turn, call, outcome)
            return rows if owned_by == self._engine_id else []  # otherwise their owner polls the table

        rows = await self._database.write(unit)
        self._offer(rows or [])
        return rows is not None

    async def ask_again(self, turn_id: str, asked: Asked, question: Question) -> bool:
        def unit(tx: Transaction) -> bool:
            return bool(tx.execute(_TURN, turn_id)) and self._update(
                tx, _ASK_AGAIN, "approvals.question", question, asked
            )

        return await self._database.write(unit)

    async def close(
        self, turn: Turn, outcome_of: Callable[[ToolCall], ToolOutcome]
    ) -> Sequence[tuple[Asked, ToolOutcome]]:
        def unit(tx: Transaction) -> tuple[list[tuple[Asked, ToolOutcome]], list[OutboxRow]]:
            fence(tx, turn, self._engine_id)
            closed = [(each, outcome_of(each.call)) for each in _waiting(tx, self._cipher, turn)]
            facts = [
                row
                for each, outcome in closed
                for row in answer_call(tx, self._audit, self._cipher, self._engine_id, turn, each.call, outcome)
            ]
            return closed, facts

        closed, facts = await self._database.write(unit)
        self._offer(facts)
        return closed

    def _update(self, tx: Transaction, statement: str, column: str, value: Question | Decision, asked: Asked) -> bool:
        """Update the call's row, if its question is still `asked`. The turn's lock keeps it from changing meanwhile."""
        call_id = asked.call.correlation_id
        found = tx.execute("SELECT question FROM approvals WHERE correlation_id = $1", call_id)
        if not found or _question(self._cipher, call_id, found[0][0]) != asked.question:
            return False
        sealed = self._cipher.seal(msgspec.json.encode(value), owner(column, call_id))
        return bool(tx.change(statement, sealed, call_id))

    def _decided(self, turn: Turn, asked: Asked, decision: Decision) -> AuditEvent:
        return AuditEvent(
            _ACTIONS[decision.status],
            turn.subject,
            key_id=decision.key_id,
            session_id=turn.session_id,
            turn_id=turn.turn_id,
            correlation_id=asked.call.correlation_id,
            server=asked.question.server,
            tool=asked.call.tool_name,
            digest=self._audit.digest(asked.question.arguments),
            outcome=decision.status,
        )


def _waiting(tx: Transaction, cipher: Cipher, turn: Turn) -> list[Asked]:
    return [
        Asked(call_of(cipher, *call), _question(cipher, call[1], question))
        for *call, question in tx.execute(_WAITING, turn.turn_id)
    ]


def _question(cipher: Cipher, correlation_id: str, data: bytes) -> Question:
    return msgspec.json.decode(open_data(cipher, data, "approvals.question", correlation_id), type=Question)


def _turn(
    tx: Transaction,
    turn_id: str,
    session_id: str,
    owner: str,
    epoch: int,
    rounds: int,
    traceparent: str | None,
    roles: str,
) -> tuple[Turn, str]:
    [(subject,)] = tx.execute("SELECT subject FROM sessions WHERE session_id = $1", session_id)
    return Turn(turn_id, session_id, subject, epoch, rounds, traceparent, roles=roles_of(roles)), owner


def _state(
    cipher: Cipher, correlation_id: str, question: bytes, decision: Any, outcome: Any, payload: Any
) -> ApprovalState:
    def opened(column: str, data: bytes) -> bytes:
        return open_data(cipher, data, column, correlation_id)

    return ApprovalState(
        correlation_id,
        _question(cipher, correlation_id, question),
        msgspec.json.decode(opened("approvals.decision", decision), type=Decision) if decision is not None else None,
        msgspec.json.decode(opened("tool_calls.outcome", outcome), type=ToolOutcome) if outcome is not None else None,
        decode_request(payload) if payload is not None else None,
    )
