"""Decisions on tool calls that wait for approval. Any engine accepts them, for the turns of any engine."""

from collections.abc import Sequence

from dialog_engine.chat.archive import Archive, CallRecord
from dialog_engine.chat.parked import ParkedTurns
from dialog_engine.chat.ports import Control, Credentials
from dialog_engine.chat.turns import RunningTurns
from dialog_engine.errors import (
    AmbiguousCallError,
    ApprovalDecidedError,
    ApprovalNotFoundError,
    CredentialRevokedError,
)
from dialog_engine.tool_calls.approvals.pending import PendingApprovals
from dialog_engine.tool_calls.results.steps import decision_details, status_of
from dialog_engine.tool_calls.values import Asked, Decision, Given


class Approvals:
    """Accepts decisions of users."""

    def __init__(
        self,
        archive: Archive,
        pending: PendingApprovals,
        turns: RunningTurns,
        parked: ParkedTurns,
        control: Control,
        credentials: Credentials,
    ) -> None:
        self._archive = archive
        self._turns = turns
        self._parked = parked
        self._pending = pending
        self._control = control
        self._credentials = credentials

    async def decide(
        self, subject: str, turn_id: str, call_id: str, given: Given, roles: Sequence[str] = ()
    ) -> tuple[CallRecord, Decision]:
        """Decide on a call of a turn, named by its correlation id or its provider's id. Idempotent.

        A tool that the sender, with these roles, may not use cannot be approved, nor can a call of a turn that a
        credential began which is revoked: its engine ends it soon.

        Raises:
            TurnNotFoundError: there is no such turn for this subject.
            ApprovalError: the decision is not accepted; nothing has changed, or a new question was stored.
            IdempotencyKeyReusedError: the key of the request with the decision stands for another one.
            StorageUnavailableError: nothing can be committed now.
        """
        while True:
            record = await self._find(subject, turn_id, call_id)
            approval = record.approval
            if approval is None or approval.decision is not None or record.outcome is not None:
                return record, _decided(record, given)
            try:
                # None: the question was replaced or decided since it was read.
                asked = Asked(record.call, approval.question)
                with self._turns.committing(turn_id):
                    decision = await self._pending.decide(turn_id, asked, given, subject, roles, self._parked.resume)
                if decision:
                    return record, decision
            finally:
                self._control.decision()

    async def _find(self, subject: str, turn_id: str, call_id: str) -> CallRecord:
        turn = await self._archive.turn(subject, turn_id)
        found = _named(call_id, await self._archive.asked(turn_id, call_id))
        if turn.status != "running" and found.waits:
            raise ApprovalDecidedError(f"this call does not wait for approval any more: its turn is {turn.status}")
        if found.waits and await self._credentials.revoked(turn.credential):
            raise ApprovalDecidedError(f"this call does not wait for approval any more: {CredentialRevokedError()}")
        return found


def _named(call_id: str, calls: Sequence[CallRecord]) -> CallRecord:
    """The call with that id: of several, the one that waits for approval; otherwise the last one."""
    if not calls or calls[0].by_client:
        raise ApprovalNotFoundError(f"no call {call_id} of this turn needs approval")
    if len(calls) > 1 and all(each.waits for each in calls) and calls[0].call.correlation_id != call_id:
        raise AmbiguousCallError(f"several calls have the id {call_id}: use the correlationId of the one you mean")
    return calls[0]


def _decided(record: CallRecord, given: Given) -> Decision:
    """The stored decision, when `given` repeats it.

    Raises:
        ApprovalDecidedError: it was decided differently, or there is nothing to decide any more.
    """
    decision = record.approval.decision if record.approval else None
    if decision is not None:
        if decision.same_as(given):
            return decision
        stands = {"status": decision.status} | decision_details(decision)
        raise ApprovalDecidedError(f"this call was decided before: {decision.status}", {"decision": stands})
    status = status_of(record.outcome) if record.outcome else "pending"
    raise ApprovalDecidedError(f"this call does not wait for approval any more: {status}", {"callStatus": status})
