"""Decisions on tool calls that wait for approval, whichever engine is asked."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

from dialog_engine.chat.archive import Archive, CallRecord
from dialog_engine.chat.journal import Journal, NotSharedError
from dialog_engine.errors import (
    AmbiguousCallError,
    ApprovalDecidedError,
    ApprovalNotFoundError,
    TurnElsewhereError,
)
from dialog_engine.tool_calls.desk import ApprovalDesk, NotWaitingHereError
from dialog_engine.tool_calls.questions import Decision, Given
from dialog_engine.tool_calls.views import decision_details, status_of

OWNER_SECONDS = 5.0
"""How long a turn may be without an owner that takes decisions: it is about to ask, or being taken up."""
LOOK_SECONDS = 0.05


class OwnDecisions:
    """Takes decisions on calls of turns that run here."""

    def __init__(self, desk: ApprovalDesk, journal: Journal, in_doubt: Callable[[str], bool] = lambda _: False) -> None:
        """`in_doubt` says of a turn that what is committed of it here may not be what happened."""
        self._desk = desk
        self._journal = journal
        self._in_doubt = in_doubt

    async def take(self, turn_id: str, correlation_id: str, given: Given) -> Decision:
        """Have the turn decide. Returns when every engine knows the decision, unless Redis is away.

        Raises:
            NotWaitingHereError: the call does not wait here; or another engine has taken the turn over, and what was
                committed here does not count.
            ApprovalError: it cannot be taken.
            StorageUnavailableError: it cannot be committed now.
        """
        decision = await self._desk.hand_in(correlation_id, given)
        with suppress(NotSharedError):
            if not await self._journal.settled(turn_id):
                raise NotWaitingHereError
        return decision

    async def stand(self, turn_id: str) -> bool:
        """Whether the decisions that are found here now count. One that was committed and not shared is gone with
        this engine's turn: if another engine runs that, it asks again."""
        with suppress(NotSharedError):
            await self._journal.settled()
        return not self._in_doubt(turn_id)

    def expects(self, correlation_id: str) -> bool:
        """Whether that call waits here."""
        return self._desk.expects(correlation_id)


class Handover(Protocol):
    """The way to the engine that runs a turn."""

    async def hand_over(self, turn_id: str, correlation_id: str, given: Given) -> Decision:
        """Have another engine take a decision. Returns when it is committed there.

        Raises:
            NotWaitingHereError: no other engine took it.
            ApprovalError, StorageUnavailableError: as it was raised there.
        """
        ...


class SharedApprovals:
    """What users do about calls that wait for them."""

    def __init__(self, archive: Archive, own: OwnDecisions, handover: Handover) -> None:
        self._archive = archive
        self._own = own
        self._handover = handover

    async def decide(self, subject: str, turn_id: str, call_id: str, given: Given) -> tuple[CallRecord, Decision]:
        """Decide on a call of a turn, by its correlation id or its provider's. The same decision may be given again.

        Raises:
            TurnNotFoundError: there is no such turn for this subject.
            ApprovalError: it cannot be taken; nothing has changed, or a new question was put.
            TurnElsewhereError: nobody takes it just now; nothing has changed.
            StorageUnavailableError: likewise.
        """
        ends_at = asyncio.get_running_loop().time() + OWNER_SECONDS
        while True:
            record = await self._find(subject, turn_id, call_id)
            if _is_open(record):
                with suppress(NotWaitingHereError):
                    # Else it is about to be asked, or was just decided on, or nobody runs the turn just now.
                    return record, await self._hand_in(turn_id, record.call.correlation_id, given)
            elif await self._own.stand(turn_id):
                record = await self._find(subject, turn_id, call_id)  # what did not count may be gone by now
                if decision := _decided(record, given):
                    return record, decision
            if asyncio.get_running_loop().time() > ends_at:
                raise TurnElsewhereError("no engine takes decisions on this call just now: try again")
            await asyncio.sleep(LOOK_SECONDS)

    async def _hand_in(self, turn_id: str, correlation_id: str, given: Given) -> Decision:
        if self._own.expects(correlation_id):
            return await self._own.take(turn_id, correlation_id, given)
        return await self._handover.hand_over(turn_id, correlation_id, given)

    async def _find(self, subject: str, turn_id: str, call_id: str) -> CallRecord:
        turn = await self._archive.turn(subject, turn_id)
        _, messages = await self._archive.transcript(subject, turn.session_id)
        calls = [call for message in messages if message.turn_id == turn_id for call in message.calls]
        return _named(call_id, [call for call in calls if call.approval is not None])


def _named(call_id: str, calls: Sequence[CallRecord]) -> CallRecord:
    """The call of that id: of several, the one that waits; of several that do not, the last."""
    found = [call for call in calls if call.call.correlation_id == call_id]
    found = found or [call for call in calls if call.call.tool_call_id == call_id]
    if not found:
        raise ApprovalNotFoundError(f"no call {call_id} of this turn needs approval")
    waiting = [call for call in found if call.outcome is None and call.approval and call.approval.decision is None]
    if len(waiting) > 1:
        raise AmbiguousCallError(
            f"{len(waiting)} calls have the id {call_id}: use the correlationId of the one you mean"
        )
    return (waiting or found)[-1]


def _is_open(record: CallRecord) -> bool:
    return record.outcome is None and (record.approval is None or record.approval.decision is None)


def _decided(record: CallRecord, given: Given) -> Decision | None:
    """The decision, when `given` only repeats it; None when there is none.

    Raises:
        ApprovalDecidedError: there is another one, or nothing is left to decide.
    """
    decision = record.approval.decision if record.approval else None
    if decision is not None:
        if decision.same_as(given):
            return decision
        stands = {"status": decision.status} | decision_details(decision)
        raise ApprovalDecidedError(f"this call was decided on before: {decision.status}", {"decision": stands})
    if record.outcome is not None:
        status = status_of(record.outcome)
        raise ApprovalDecidedError(f"this call waits no more: {status}", {"callStatus": status})
    return None
