"""Which call is meant, and who takes the decision: the part that is the same at every engine."""

from collections.abc import Callable, Sequence

import pytest

from dialog_engine.chat import approvals
from dialog_engine.chat.approvals import Handover, OwnDecisions, SharedApprovals
from dialog_engine.chat.archive import Archive, CallRecord, MessageRecord, SessionRecord, TurnRecord
from dialog_engine.chat.journal import Journal, NotSharedError
from dialog_engine.errors import AmbiguousCallError, ApprovalNotFoundError, TurnElsewhereError
from dialog_engine.model import ApprovalStatus, ToolCall, Turn, Usage
from dialog_engine.tool_calls.approvals import question_for
from dialog_engine.tool_calls.desk import ApprovalDesk, NotWaitingHereError
from dialog_engine.tool_calls.questions import Approval, Decision, Given, Refuse
from dialog_engine.tool_calls.texts import WholeResult
from plugins_contract.catalogue import ApprovalPolicy
from plugins_contract.outcomes import ToolOutcome
from tests.support.twins import MemoryStore, Shelf, Workshop, failed, tool

pytestmark = pytest.mark.anyio

QUESTION = question_for(tool("a__b", approval=ApprovalPolicy.ALWAYS), {}, 0, 60_000)
NO = Refuse("no")
REFUSED = Decision(status=ApprovalStatus.REFUSED, at=1, reason="no")


def a_call(call_id: str, correlation_id: str, decision: Decision | None = None, *, asked: bool = True) -> CallRecord:
    assert QUESTION is not None
    outcome = failed("x") if decision else None
    approval = Approval(QUESTION, decision) if asked else None
    return CallRecord(ToolCall(call_id, correlation_id, "a__b", "{}"), "a", outcome, approval)


class Told(Archive):
    """An archive with one turn, of these calls."""

    def __init__(self, *calls: CallRecord) -> None:
        self.calls = calls

    async def transcript(self, subject: str, session_id: str) -> tuple[SessionRecord, list[MessageRecord]]:
        message = MessageRecord(1, "turn", "assistant", "", False, 0, self.calls)
        return SessionRecord(session_id, "", 0, 0, "turn"), [message]

    async def turn(self, subject: str, turn_id: str) -> TurnRecord:
        return TurnRecord(turn_id, "session", "running", None, Usage(), None, None, 0, None)

    async def turns(self, subject: str, session_id: str) -> list[TurnRecord]:
        return []

    async def outcome(self, subject: str, turn_id: str, correlation_id: str) -> ToolOutcome | None:
        return None

    async def whole(self, subject: str, turn_id: str, correlation_id: str) -> WholeResult | None:
        return None


class GivenAway(Told):
    """Its first readings are of a decision that does not count; then the call is as its new owner has it."""

    def __init__(self, readings: int) -> None:
        super().__init__(a_call("call_1", "one", REFUSED))
        self._readings = readings

    async def turn(self, subject: str, turn_id: str) -> TurnRecord:
        if self._readings == 0:
            self.calls = (a_call("call_1", "one"),)
        self._readings -= 1
        return await super().turn(subject, turn_id)


class Elsewhere(Handover):
    """Another engine, which takes a decision after so many times."""

    def __init__(self, takes_after: int = 0) -> None:
        self.handed_over: list[str] = []
        self._takes_after = takes_after

    async def hand_over(self, turn_id: str, correlation_id: str, given: Given) -> Decision:
        self.handed_over.append(correlation_id)
        if len(self.handed_over) <= self._takes_after:
            raise NotWaitingHereError
        return REFUSED


class Shared(Journal):
    """A journal that is shared, or cannot be, or by now belongs to another engine."""

    def __init__(self, answer: bool | Exception = True) -> None:
        self._answer = answer

    def version(self, session_id: str, known: int) -> int:
        return known

    def taken_over(self, turn_id: str) -> None: ...

    async def settled(self, turn_id: str = "") -> bool:
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer

    async def share_whole(self, turn: Turn) -> bool:
        return True


class Here(ApprovalDesk):
    """A desk that takes everything."""

    def __init__(self) -> None:
        super().__init__(MemoryStore(), Shelf(), Workshop(), now_ms=lambda: 0, timeout_seconds=1)

    def expects(self, correlation_id: str) -> bool:
        return True

    async def hand_in(self, correlation_id: str, given: Given) -> Decision:
        return REFUSED


class Nobody(Here):
    """A desk where nobody waits."""

    def expects(self, correlation_id: str) -> bool:
        return False


def shared(
    *calls: CallRecord,
    desk: ApprovalDesk | None = None,
    elsewhere: Handover | None = None,
    archive: Archive | None = None,
    in_doubt: Callable[[str], bool] = lambda _: False,
) -> SharedApprovals:
    own = OwnDecisions(desk or Nobody(), Shared(), in_doubt)
    return SharedApprovals(archive or Told(*calls), own, elsewhere or Elsewhere())


async def decided_on(calls: Sequence[CallRecord], call_id: str) -> str:
    record, _ = await shared(*calls).decide("ada", "turn", call_id, NO)
    return record.call.correlation_id


async def test_a_call_is_meant_by_either_of_its_ids() -> None:
    calls = [a_call("call_1", "one"), a_call("call_2", "two")]

    assert await decided_on(calls, "call_2") == "two"
    assert await decided_on(calls, "one") == "one"


async def test_of_calls_whose_provider_used_an_id_again_the_one_that_waits_is_meant() -> None:
    calls = [a_call("call_1", "earlier", REFUSED), a_call("call_1", "now"), a_call("call_1", "free", asked=False)]

    assert await decided_on(calls, "call_1") == "now"


async def test_where_several_that_wait_have_the_id_none_is_guessed() -> None:
    calls = [a_call("call_1", "one"), a_call("call_1", "two")]

    with pytest.raises(AmbiguousCallError, match="correlationId"):
        await decided_on(calls, "call_1")
    assert await decided_on(calls, "two") == "two"


async def test_a_call_that_needs_no_approval_has_none_to_give() -> None:
    with pytest.raises(ApprovalNotFoundError):
        await decided_on([a_call("call_1", "one", asked=False)], "call_1")


async def test_a_decision_is_taken_here_where_the_call_waits_and_else_handed_over() -> None:
    elsewhere = Elsewhere()
    await shared(a_call("call_1", "one"), desk=Here(), elsewhere=elsewhere).decide("ada", "turn", "one", NO)
    assert elsewhere.handed_over == []

    await shared(a_call("call_1", "one"), elsewhere=elsewhere).decide("ada", "turn", "one", NO)
    assert elsewhere.handed_over == ["one"]


async def test_a_turn_between_two_owners_is_waited_for() -> None:
    elsewhere = Elsewhere(takes_after=2)
    _, decision = await shared(a_call("call_1", "one"), elsewhere=elsewhere).decide("ada", "turn", "one", NO)

    assert decision == REFUSED
    assert len(elsewhere.handed_over) == 3


async def test_a_decision_that_nobody_takes_is_not_lost_silently(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(approvals, "OWNER_SECONDS", 0.1)

    with pytest.raises(TurnElsewhereError, match="try again"):
        await shared(a_call("call_1", "one"), elsewhere=Elsewhere(takes_after=1000)).decide("ada", "turn", "one", NO)


async def test_what_was_decided_here_counts_only_if_the_turn_is_still_ours() -> None:
    own = OwnDecisions(Here(), Shared(answer=False))

    with pytest.raises(NotWaitingHereError):
        await own.take("turn", "one", NO)
    assert await OwnDecisions(Here(), Shared(NotSharedError("Redis is away"))).take("turn", "one", NO) == REFUSED


async def test_a_decision_that_was_committed_here_does_not_count_while_another_engine_may_have_the_turn() -> None:
    doubts, elsewhere = [False, True, True], Elsewhere()
    shown = shared(archive=GivenAway(2), elsewhere=elsewhere, in_doubt=lambda _: doubts.pop())
    await shown.decide("ada", "turn", "one", NO)

    assert elsewhere.handed_over == ["one"]
    assert doubts == [False]  # once it is given away, it is not asked about


async def test_a_decision_that_was_given_away_while_it_was_looked_at_does_not_count_either() -> None:
    elsewhere = Elsewhere()
    await shared(archive=GivenAway(1), elsewhere=elsewhere).decide("ada", "turn", "one", NO)

    assert elsewhere.handed_over == ["one"]


async def test_a_decision_whose_turn_stays_in_doubt_is_not_confirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(approvals, "OWNER_SECONDS", 0.1)

    with pytest.raises(TurnElsewhereError, match="try again"):
        await shared(a_call("call_1", "one", REFUSED), in_doubt=lambda _: True).decide("ada", "turn", "one", NO)


async def test_a_decision_that_counts_is_given_again() -> None:
    elsewhere = Elsewhere()
    _, decision = await shared(a_call("call_1", "one", REFUSED), elsewhere=elsewhere).decide("ada", "turn", "one", NO)

    assert decision == REFUSED
    assert elsewhere.handed_over == []
