"""The ledger under any order of events: engines, workers, crashes and duplicates, against a model and its invariants.

I1 every call reaches exactly one terminal state, I2 only the current fence completes, I3 one terminal answer, I4 what
is unknown is never run again, I5 the request stays until the terminal state is written.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, ClassVar, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from plugins_contract.connections import command_client, thread_client
from plugins_contract.ledger import Delivery, replies
from plugins_contract.messages import ExecutionClass, encode_request
from plugins_contract.outcomes import CallFinished, CallProgress, CallState
from tests.contract.ledger_model import Call, Held
from tests.support.ledger import CANCELLED, LEASE_MS, UNKNOWN, Bench, answered

T = TypeVar("T")

CONSUMERS = st.sampled_from(["a", "b", "c"])
FEW = 3
"""Calls per run: the fewer there are, the more happens to each."""
CLASSES = st.sampled_from(["once", "repeatable"])


class LedgerMachine(RuleBasedStateMachine):
    """Drives the scripts of one server, which is its own for as long."""

    url: ClassVar[str]

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.Runner()
        self.thread = thread_client(self.url)
        self.thread.flushall()
        self.bench = Bench(command_client(self.url), self.thread)
        self.calls: list[Call] = []
        self.held: list[Held] = []
        self.do(self.bench.open())

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """One step of asynchronous work."""
        return self.loop.run(work)

    def owner(self, delivery: Delivery) -> str | None:
        """Who has this entry in the pending list."""
        return {row.entry: row.consumer for row in self.do(self.bench.pending())}.get(delivery.entry)

    # The engine asks

    @initialize(calls=st.lists(st.tuples(CLASSES, st.sampled_from(["new", "sent", "read"])), min_size=1, max_size=FEW))
    def some_calls(self, calls: list[tuple[str, str]]) -> None:
        for execution_class, progress in calls:
            call = Call(self.do(self.bench.request(execution_class)))
            self.calls.append(call)
            if progress != "new":
                self.send(call)
            if progress == "read":
                self.read("a")

    @rule(data=st.data())
    def send_again(self, data: st.DataObject) -> None:
        self.send(data.draw(st.sampled_from(self.calls)))

    @rule(data=st.data())
    def cancel_a_call(self, data: st.DataObject) -> None:
        self.cancel(data.draw(st.sampled_from(self.calls)))

    @precondition(lambda self: any(call.entry for call in self.calls))
    @rule(data=st.data())
    def send_blindly(self, data: st.DataObject) -> None:
        """A retried XADD whose first reply was lost."""
        call = data.draw(st.sampled_from([call for call in self.calls if call.entry]))
        self.thread.xadd(self.bench.keys.requests, {"event": encode_request(call.request)})

    def send(self, call: Call) -> None:
        answer = self.do(self.bench.engine.enqueue(call.request))
        assert type(answer) is call.enqueued()
        match answer:
            case replies.Queued(entry):
                call.entry = entry
            case replies.AlreadyQueued(entry):
                assert entry == call.entry
            case replies.AlreadyFinished(outcome):
                assert outcome == call.outcome
            case _:
                raise AssertionError(answer)

    def cancel(self, call: Call) -> None:
        answer = self.do(self.bench.cancel(call.request))
        assert type(answer) is call.cancelled()
        match answer:
            case replies.CancelledAtOnce():
                call.outcome = CANCELLED
            case replies.CancelRequested():
                call.cancel_asked = True
            case replies.AlreadyFinished(outcome):
                assert outcome == call.outcome

    # Workers get entries, keep them, lose them

    @rule(consumer=CONSUMERS)
    def read(self, consumer: str) -> None:
        if delivery := self.do(self.bench.next_delivery(consumer)):
            self.hold(delivery, at_once=False)

    @rule(consumer=CONSUMERS, at_once=st.booleans(), data=st.data())
    def take_over(self, consumer: str, at_once: bool, data: st.DataObject) -> None:
        """A sweep takes an entry whose lease ran out; whoever held it may be gone or only stalled."""
        if overdue := self.do(self.bench.pending()):
            row = data.draw(st.sampled_from(overdue))
            self.hold(self.do(self.bench.claim_entry(row.entry, consumer)), at_once=at_once)

    def hold(self, delivery: Delivery, *, at_once: bool) -> None:
        (call,) = (call for call in self.calls if call.request == delivery.request)
        self.held.append(Held(call, delivery))
        if at_once:
            self.begin(self.held[-1])

    @rule(consumer=CONSUMERS)
    def crash(self, consumer: str) -> None:
        self.held = [held for held in self.held if held.delivery.consumer != consumer]

    # Workers use what they hold, whether it is still theirs or not

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def start(self, data: st.DataObject) -> None:
        self.begin(data.draw(st.sampled_from(self.held)))

    def begin(self, held: Held) -> None:
        call, delivery = held.call, held.delivery
        expected = call.begun(delivery, self.owner(delivery))
        answer = self.do(self.bench.start(delivery))
        if isinstance(answer, replies.NothingToDo):
            assert expected is None, answer
            return
        assert answer == expected
        assert not isinstance(answer, replies.NoLedger | None)
        if answer.fence == call.fence:
            return
        if isinstance(answer, replies.Run):
            assert not (call.started and call.request.execution_class is ExecutionClass.ONCE), "a second run"
            call.started = True
        held.fence = call.fence = answer.fence
        call.starts, call.token, call.verdict = answer.starts, delivery.token, answer

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def renew(self, data: st.DataObject) -> None:
        held = data.draw(st.sampled_from(self.held))
        owner = self.owner(held.delivery)
        match self.bench.renew(held.delivery, held.fence):
            case replies.Renewed(cancel_requested):
                assert held.call.renewable(held.delivery, held.fence, owner)
                assert cancel_requested == held.call.cancel_asked
            case replies.Stale():
                assert not held.call.renewable(held.delivery, held.fence, owner)
        assert self.owner(held.delivery) == owner

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def progress(self, data: st.DataObject) -> None:
        held = data.draw(st.sampled_from(self.held))
        passed_on = self.do(self.bench.worker.progress(held.call.request, held.fence, CallProgress(1)))
        assert passed_on == (held.call.started and held.call.current(held.fence))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        held = data.draw(st.sampled_from(self.held))
        call, releasable = held.call, held.call.releasable(held.delivery, held.fence, self.owner(held.delivery))
        answer = self.do(self.bench.worker.release(held.delivery, held.fence, lease_ms=LEASE_MS))
        assert (answer == replies.Completed()) == releasable
        if releasable:
            call.fence, call.starts, call.started = call.fence + 1, call.starts - 1, False
            call.token = call.verdict = None

    @precondition(lambda self: any(held.fence for held in self.held))
    @rule(data=st.data())
    def complete(self, data: st.DataObject) -> None:
        self.end(data.draw(st.sampled_from([held for held in self.held if held.fence])))

    def end(self, held: Held) -> None:
        call, fence = held.call, held.fence
        outcome = UNKNOWN if isinstance(call.verdict, replies.Abandoned) else answered(f"under fence {fence}")
        match self.do(self.bench.worker.complete(held.delivery, fence, outcome)):
            case replies.Completed():
                assert call.current(fence)
                call.outcome = outcome
            case replies.Stale():
                assert call.outcome is None
                assert fence < call.fence
            case replies.Duplicate(state):
                assert call.outcome
                assert state == call.outcome.state

    # What holds at every moment

    @invariant()
    def every_call_is_either_open_in_the_stream_or_answered_once(self) -> None:
        rows: list[tuple[bytes, object]] = self.do(self.bench.redis.xrange(self.bench.keys.requests))
        standing = {entry.decode() for entry, _ in rows}
        for call in self.calls:
            answers = [reply for reply in self.do(self.bench.channel(call.request)) if isinstance(reply, CallFinished)]
            assert answers == ([CallFinished(call.outcome)] if call.outcome else [])
            assert (call.entry in standing) == (call.entry is not None and call.outcome is None)
            if call.entry or call.outcome:
                ledger = self.do(self.bench.ledger(call.request))
                assert (ledger["state"], ledger["fence"]) == (self.state(call), str(call.fence))

    def state(self, call: Call) -> CallState:
        if call.outcome:
            return call.outcome.state
        return CallState.STARTED if call.started else CallState.PUBLISHED

    # What holds in the end

    def teardown(self) -> None:
        try:
            while self.do(self.bench.backlog()):
                self.rescue()
            assert all(call.outcome for call in self.calls if call.entry)
            self.every_call_is_either_open_in_the_stream_or_answered_once()
            assert self.do(self.bench.pending()) == []
        finally:
            self.do(self.bench.redis.aclose())
            self.thread.close()
            self.loop.close()

    def rescue(self) -> None:
        """One worker outlives all others and ends what it finds."""
        while delivery := self.do(self.bench.next_delivery("rescuer")):
            self.hold(delivery, at_once=False)
        for row in self.do(self.bench.pending()):
            self.hold(self.do(self.bench.claim_entry(row.entry, "rescuer")), at_once=True)
            held = self.held[-1]
            if held.fence:
                self.end(held)


@pytest.mark.every_redis
def test_no_order_of_events_breaks_the_ledger(redis_url: str) -> None:
    class Machine(LedgerMachine):
        url = redis_url

    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=100,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        ),
    )
