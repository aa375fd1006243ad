"""Results of calls that clients run themselves. Any engine accepts them, for the turns of any engine."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from dialog_engine.chat.archive import Archive, CallRecord, TurnRecord
from dialog_engine.chat.parked import ParkedTurns
from dialog_engine.chat.ports import Control, Credentials
from dialog_engine.chat.turns import RunningTurns
from dialog_engine.errors import (
    AmbiguousCallError,
    ClientCallAnsweredError,
    ClientCallNotFoundError,
    CredentialRevokedError,
    TurnNotFoundError,
)
from dialog_engine.model import ApprovalStatus, ToolStep, Turn
from dialog_engine.sideband import run_shielded
from dialog_engine.tool_calls.approvals.pending import PendingApprovals
from dialog_engine.tool_calls.ports import ApprovalStore, ClientResult
from dialog_engine.tool_calls.results.steps import Steps, status_of
from dialog_engine.tool_calls.results.texts import shorten, storable_outcome
from dialog_engine.tool_calls.values import AnswerKey, Asked, Decision, timed
from plugins_contract.outcomes import ToolOutcome


@dataclass(frozen=True, slots=True)
class GivenResult:
    """What a client says about a call, which is named by its correlation id or its provider's id."""

    call_id: str
    outcome: ToolOutcome

    @property
    def digest(self) -> str:
        """By which a repetition is known."""
        return hashlib.sha256(msgspec.json.encode(self.outcome)).hexdigest()


class ClientCalls:
    """Accepts the results of clients."""

    def __init__(
        self,
        archive: Archive,
        store: ApprovalStore,
        pending: PendingApprovals,
        turns: RunningTurns,
        parked: ParkedTurns,
        control: Control,
        credentials: Credentials,
        *,
        now_ms: Callable[[], int],
        result_max_chars: int,
    ) -> None:
        """`now_ms` is the clock of Redis."""
        self._archive = archive
        self._store = store
        self._turns = turns
        self._parked = parked
        self._pending = pending
        self._control = control
        self._credentials = credentials
        self._now_ms = now_ms
        self._result_max_chars = result_max_chars

    async def answer(
        self,
        subject: str,
        turn_id: str,
        results: Sequence[GivenResult],
        key_id: str = "",
        answer_key: AnswerKey | None = None,
    ) -> Sequence[CallRecord]:
        """Commit the results of calls of a turn, all of them together. Idempotent. The calls with their results.

        Raises:
            TurnNotFoundError: there is no such turn for this subject.
            ClientCallNotFoundError, AmbiguousCallError: a result names no call, or several.
            ClientCallAnsweredError: a call has another result, or waits for none any more. Nothing is committed.
            IdempotencyKeyReusedError: the key of the request with the results stands for another one.
            StorageUnavailableError: nothing can be committed now.
        """
        while True:
            turn = await self._archive.turn(subject, turn_id)
            records = [await self._find(turn, each.call_id) for each in results]
            waits = await self._open(turn, records, results)
            if not waits:
                return records
            try:
                with self._turns.committing(turn_id):
                    await run_shielded(self._commit(turn_id, waits, key_id, answer_key))
            finally:
                self._control.decision()

    async def turn_of(self, subject: str, correlation_id: str) -> TurnRecord:
        """The turn with a call of the subject. Raises ClientCallNotFoundError."""
        turn_id = await self._store.turn_of(correlation_id)
        try:
            return await self._archive.turn(subject, turn_id or "")
        except TurnNotFoundError:
            raise ClientCallNotFoundError(f"there is no call {correlation_id} of a tool of your client") from None

    async def waiting(self, turn_id: str, results: Sequence[GivenResult]) -> list[GivenResult]:
        """Those of the results whose calls wait for one, in a turn that the subject was found to own."""
        found: list[GivenResult] = []
        for each in results:
            calls = await self._archive.asked(turn_id, each.call_id)
            found += [each for call in calls[:1] if call.by_client and call.waits]
        return found

    async def _find(self, turn: TurnRecord, call_id: str) -> CallRecord:
        calls = [each for each in await self._archive.asked(turn.turn_id, call_id) if each.by_client]
        if not calls:
            raise ClientCallNotFoundError(f"turn {turn.turn_id} has no call {call_id} of a tool of its client")
        if len(calls) > 1 and all(each.waits for each in calls) and calls[0].call.correlation_id != call_id:
            raise AmbiguousCallError(f"several calls have the id {call_id}: use the correlationId of the one you mean")
        return calls[0]

    async def _open(
        self, turn: TurnRecord, records: Sequence[CallRecord], results: Sequence[GivenResult]
    ) -> dict[str, tuple[Asked, GivenResult]]:
        """The calls that wait for their result, by correlation id. Of the others the result is the one that stands."""
        found: dict[str, tuple[Asked, GivenResult]] = {}
        for record, given in zip(records, results, strict=True):
            call, approval = record.call, record.approval
            earlier = found.setdefault(call.correlation_id, (_asked(record), given))[1]
            if earlier.digest != given.digest:
                raise ClientCallAnsweredError(f"two results are given for call {call.correlation_id}", {})
            if not record.waits:
                del found[call.correlation_id]
                decision = approval.decision if approval else None
                if decision is None or decision.digest != given.digest:
                    raise _over(record, "has its result already")
            elif turn.status != "running":
                raise _over(record, f"waits for no result any more: its turn is {turn.status}")
            elif self._now_ms() >= _asked(record).question.expires_at:
                raise _over(record, "has expired")
        if found and await self._credentials.revoked(turn.credential):
            raise ClientCallAnsweredError(f"the calls wait for no results: {CredentialRevokedError()}", {})
        return found

    async def _commit(
        self, turn_id: str, waits: dict[str, tuple[Asked, GivenResult]], key_id: str, answer_key: AnswerKey | None
    ) -> None:
        """Commit the results, and go on with the turn if it was parked. Nothing, if one of the calls waits no more."""
        now = self._now_ms()
        results = [self._result(asked, given, now, key_id) for asked, given in waits.values()]
        committed = await self._store.answer(turn_id, results, answer_key)
        if committed and (turn := committed.taken):
            self._parked.resume(turn, [_step(turn, each) for each in results])
        self._pending.wake()

    def _result(self, asked: Asked, given: GivenResult, now: int, key_id: str) -> ClientResult:
        correlation_id = asked.call.correlation_id
        outcome = msgspec.structs.replace(timed(storable_outcome(given.outcome), correlation_id), attempts=1)
        shown, whole = shorten(outcome, correlation_id, self._result_max_chars)
        decision = Decision(status=ApprovalStatus.ANSWERED, at=now, key_id=key_id, digest=given.digest)
        return ClientResult(asked, decision, shown, whole)


def _asked(record: CallRecord) -> Asked:
    assert record.approval is not None, "a call of a client waits like one for approval"  # noqa: S101 -- `by_client`
    return Asked(record.call, record.approval.question)


def _step(turn: Turn, result: ClientResult) -> ToolStep:
    call = result.asked.call
    return Steps(turn, turn.rounds, {call.correlation_id: result.asked.question.server}).finished(call, result.outcome)


def _over(record: CallRecord, why: str) -> ClientCallAnsweredError:
    stands = {"callStatus": status_of(record.outcome)} if record.outcome else {}
    return ClientCallAnsweredError(f"call {record.call.correlation_id} {why}", stands)
