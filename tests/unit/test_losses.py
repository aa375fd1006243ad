"""What is done about calls of which Redis has lost something: first certain, then true, and nothing runs twice."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from callstream_runtime.redis_errors import RedisUnavailable
from dialog_engine.calls.losses import (
    CERTAIN_AFTER_SECONDS,
    GAP_SECONDS,
    EndAs,
    EnqueueAgain,
    GivenUp,
    Known,
    LeaveIt,
    LossDetector,
    given_up,
    of_class,
    remedy,
)
from dialog_engine.calls.mailbox import Auditor
from dialog_engine.calls.subscriptions import CallMessage, Subscriptions
from dialog_engine.chat.outbox import OutboxRow
from dialog_engine.errors import StorageUnavailableError
from dialog_engine.model import CallQueued, CallRunning
from dialog_engine.tool_calls.results.steps import status_of
from dialog_engine.tool_calls.results.texts import for_model
from plugins_contract.encryption import CLEAR
from plugins_contract.errors import ErrorCode
from plugins_contract.keys import Keys
from plugins_contract.ledger import SILENT_MS, EngineLedger
from plugins_contract.ledger.replies import Loss, Queued
from plugins_contract.ledger.scripts import finished
from plugins_contract.messages import ExecutionClass, ToolCallRequested
from plugins_contract.outcomes import CallStarted, CallState
from plugins_mcp.leases import LeaseTimes
from tests.integration.engines import MemoryOutbox, request
from tests.marks import promise
from tests.support.publishers import FakePublisher

ONCE = request(deadline=1000)
REPEATABLE = msgspec.structs.replace(ONCE, execution_class=ExecutionClass.REPEATABLE)


@pytest.mark.parametrize(
    ("loss", "call", "state"),
    [
        (Loss.MISSING, ONCE, CallState.UNKNOWN),
        (Loss.VANISHED, ONCE, CallState.FAILED),
        (Loss.VANISHED, REPEATABLE, CallState.FAILED),
        (Loss.STRANDED, ONCE, CallState.UNKNOWN),
        (Loss.STRANDED, REPEATABLE, CallState.FAILED),
    ],
)
def test_each_kind_of_loss_has_its_outcome(loss: Loss, call: ToolCallRequested, state: CallState) -> None:
    for now in (0, 2000):
        match remedy(loss, call, now):
            case EndAs(outcome):
                assert outcome.state is state
                assert outcome.error is not None
                assert outcome.error.code is ErrorCode.LOST
            case other:
                raise AssertionError(other)


def test_a_repeatable_call_is_published_again_before_its_deadline() -> None:
    assert remedy(Loss.MISSING, REPEATABLE, 999) == EnqueueAgain()
    assert remedy(Loss.MISSING, REPEATABLE, 1000) == LeaveIt()


C, E, G, K = CallState, ErrorCode, GivenUp, Known


@promise(
    "a repeatable call is never unknown: past its deadline it is a timeout, for the user, the model and the history"
)
@pytest.mark.parametrize(
    ("why", "known", "once", "repeatable"),
    [
        (G.STOPPED, K.NOT_BEGUN, (C.CANCELLED, E.CANCELLED), (C.CANCELLED, E.CANCELLED)),
        (G.STOPPED, K.RUNNING, (C.UNKNOWN, E.OUTCOME_UNKNOWN), (C.CANCELLED, E.CANCELLED)),
        (G.STOPPED, K.LOST, (C.UNKNOWN, E.LOST), (C.CANCELLED, E.CANCELLED)),
        (G.STOPPED, K.NOTHING, (C.UNKNOWN, E.OUTCOME_UNKNOWN), (C.CANCELLED, E.CANCELLED)),
        (G.OVERDUE, K.NOT_BEGUN, (C.EXPIRED, E.TIMEOUT), (C.EXPIRED, E.TIMEOUT)),
        (G.OVERDUE, K.RUNNING, (C.UNKNOWN, E.TIMEOUT), (C.FAILED, E.TIMEOUT)),
        (G.OVERDUE, K.LOST, (C.UNKNOWN, E.LOST), (C.FAILED, E.TIMEOUT)),
        (G.OVERDUE, K.NOTHING, (C.UNKNOWN, E.TIMEOUT), (C.FAILED, E.TIMEOUT)),
    ],
)
def test_a_call_that_is_given_up_ends_by_its_class_and_by_what_is_known(
    why: GivenUp, known: Known, once: tuple[CallState, ErrorCode], repeatable: tuple[CallState, ErrorCode]
) -> None:
    for call, end in ((ONCE, once), (REPEATABLE, repeatable)):
        outcome = given_up(why, known, call)
        assert outcome.error is not None
        assert (outcome.state, outcome.error.code) == end
        assert status_of(outcome) == ("timeout" if why is G.OVERDUE and outcome.state is not C.UNKNOWN else end[0])
        assert ("Do not repeat" in for_model(outcome)) is (outcome.state is C.UNKNOWN)
        assert any(part in outcome.error.message for part in ("not run", "before it began")) is (known is K.NOT_BEGUN)


def test_no_reply_makes_a_repeatable_call_unknown() -> None:
    lost = finished(b"", "", CLEAR)
    assert lost.state is CallState.UNKNOWN
    assert of_class(ONCE, lost) == lost
    assert of_class(REPEATABLE, lost) == msgspec.structs.replace(lost, state=CallState.FAILED)


def test_a_living_worker_has_time_to_restore_its_ledger() -> None:
    times = LeaseTimes()
    assert CERTAIN_AFTER_SECONDS[Loss.MISSING] > 2 * 1.1 * times.renew
    assert CERTAIN_AFTER_SECONDS[Loss.STRANDED] > 1.1 * times.renew


LOOKS: dict[str, tuple[list[float], float, bool]] = {
    "found so for long enough": ([0.0, 2.5, 4.0, 5.9], 6.0, True),
    "found so once": ([], 6.0, False),
    "not for long enough": ([0.0, 2.5, 5.0], 5.9, False),
    "no audit for a while": ([0.0, 2.9], 2.9 + GAP_SECONDS + 0.1, False),
}


@pytest.mark.parametrize("looks", LOOKS)
def test_a_loss_is_certain_after_every_audit_of_a_period_found_it(looks: str) -> None:
    before, at, certain = LOOKS[looks]
    detector = LossDetector()
    for now in before:
        assert detector.audited(["a", "b"], [("a", Loss.MISSING)], now) == []
    assert detector.audited(["a"], [("a", Loss.MISSING)], at) == ([("a", Loss.MISSING)] if certain else [])
    assert len(detector) == 1


def test_a_vanished_request_is_certain_at_once() -> None:
    assert LossDetector().audited(["a"], [("a", Loss.VANISHED)], 0.0) == [("a", Loss.VANISHED)]


@pytest.mark.parametrize("meanwhile", ["put back", "lost otherwise", "forgotten", "an outage"])
def test_a_suspicion_starts_over_when_something_happened_meanwhile(meanwhile: str) -> None:
    detector = LossDetector()
    detector.audited(["a"], [("a", Loss.MISSING)], 0.0)
    detector.audited(["a"], [("a", Loss.MISSING)], 2.5)
    match meanwhile:
        case "put back":
            detector.audited(["a"], [], 5.0)
        case "lost otherwise":
            detector.audited(["a"], [("a", Loss.STRANDED)], 5.0)
        case "forgotten":
            detector.forget("a")
        case _:
            detector.clear()
    assert detector.audited(["a"], [("a", Loss.MISSING)], 6.5) == []


# --- The audit of waiting calls: only what is certain is reported, and only of calls that were published ---


CERTAIN_SECONDS = 0.1
CERTAIN_AFTER = dict.fromkeys(Loss, CERTAIN_SECONDS)


class Ledger(EngineLedger):
    def __init__(self) -> None:
        unused: Any = None
        super().__init__(unused, Keys(), cipher=CLEAR)
        self.says: list[tuple[str, bytes | Loss]] = [("a", Loss.MISSING)]
        self.away = False

    async def audit(
        self, correlation_ids: Sequence[str], *, silent_ms: int = SILENT_MS
    ) -> list[tuple[str, bytes | Loss]]:
        if self.away:
            raise RedisUnavailable("away")
        return self.says


class FullDisk(MemoryOutbox):
    async def calls(self, correlation_ids: Sequence[str]) -> Sequence[OutboxRow]:
        raise StorageUnavailableError("the disk is full")


@pytest.fixture
async def a_while(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Moves the clock of the event loop on, by more than a loss needs to be certain."""
    loop = asyncio.get_running_loop()
    real, passed = loop.time, 0.0

    def pass_time() -> None:
        nonlocal passed
        passed += 1.5 * CERTAIN_SECONDS

    monkeypatch.setattr(loop, "time", lambda: real() + passed)
    return pass_time


async def test_after_an_outage_workers_have_the_whole_time_again(a_while: Callable[[], None]) -> None:
    ledger = Ledger()
    auditor = Auditor(ledger, MemoryOutbox(), FakePublisher(), CERTAIN_AFTER)
    await auditor.look(["a"])
    ledger.away = True
    with pytest.raises(RedisUnavailable):
        await auditor.look(["a"])
    ledger.away = False
    a_while()
    assert await auditor.look(["a"]) == []
    a_while()
    assert await auditor.look(["a"]) == [("a", Loss.MISSING)]


async def test_after_its_publication_a_call_has_its_whole_time(a_while: Callable[[], None]) -> None:
    outbox = MemoryOutbox()
    outbox.call(msgspec.structs.replace(request(0), correlation_id="a"))
    auditor = Auditor(Ledger(), outbox, FakePublisher(), CERTAIN_AFTER)
    await auditor.look(["a"])
    a_while()
    assert await auditor.look(["a"]) == []
    await outbox.published(await outbox.calls(["a"]))
    assert await auditor.look(["a"]) == []
    a_while()
    assert await auditor.look(["a"]) == [("a", Loss.MISSING)]


async def test_when_the_outbox_cannot_be_read_a_call_may_have_been_published(a_while: Callable[[], None]) -> None:
    auditor = Auditor(Ledger(), FullDisk(), FakePublisher(), CERTAIN_AFTER)
    assert await auditor.unpublished(["a"]) == {}
    await auditor.look(["a"])
    a_while()
    assert await auditor.look(["a"]) == [("a", Loss.MISSING)]


# --- Which messages reach the task that waits for a tool call ---


@pytest.mark.parametrize("fast_worker", [False, True])
async def test_a_call_that_runs_is_not_shown_as_queued_afterwards(*, fast_worker: bool) -> None:
    subscriptions, seen = Subscriptions(), list[CallMessage]()
    steps = [lambda: subscriptions.enqueued("c", Queued("1-0", 3)), lambda: subscriptions.replied("c", CallStarted(1))]
    with subscriptions.subscribed(["c"], seen.append):
        for step in reversed(steps) if fast_worker else steps:
            step()
    assert seen == ([CallRunning("c", 1)] if fast_worker else [CallQueued("c", 3), CallRunning("c", 1)])
