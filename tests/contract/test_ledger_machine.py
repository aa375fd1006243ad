"""The ledger under any order of events: engines, workers, crashes, duplicates and losses, against a model of it.

I1 every call reaches exactly one terminal state, I2 only the current fence completes, I3 one terminal answer, I4 what
is unknown is never run again, I5 the request stays until the terminal state is written, I7 what vanished is answered.
Whatever Redis loses, a call that must not run twice is never started twice.
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

from callstream_runtime.connections import command_client, thread_client
from dialog_engine.calls import losses
from dialog_engine.calls.losses import GivenUp, Known
from plugins_contract.keys import GROUP
from plugins_contract.ledger import Delivery, encode_reply, replies
from plugins_contract.messages import encode_request
from plugins_contract.outcomes import CallFinished, CallProgress, CallState
from tests.contract.ledger_model import Call, Group, Held, Ledger
from tests.marks import exhaustive, promise
from tests.support.ledger import CANCELLED, LEASE_MS, LOST, UNKNOWN, Bench, answered

T = TypeVar("T")

CONSUMERS = st.sampled_from(["a", "b", "c"])
FEW = 3
"""Calls per run: the fewer there are, the more happens to each."""
CLASSES = st.sampled_from(["once", "repeatable"])
ROUNDS = 3
"""A call that is put on the stream again in the first round ends in the second."""
AT_ONCE = -1
"""As silence in milliseconds: any worker counts as silent."""


def order(entry: str) -> tuple[int, ...]:
    return tuple(int(part) for part in entry.split("-"))


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
        self.deleted: set[str] = set()
        self.do(self.bench.open())

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run(work)

    def group(self, entry: str) -> Group:
        rows = {row.entry: row for row in self.do(self.bench.pending())}
        (info,) = self.do(self.bench.redis.xinfo_groups(self.bench.keys.requests))
        passed = order(entry) <= order(info["last-delivered-id"].decode())
        return Group(entry in self.standing(), passed, rows.get(entry))

    def standing(self) -> set[str]:
        rows: list[tuple[bytes, object]] = self.do(self.bench.redis.xrange(self.bench.keys.requests))
        return {entry.decode() for entry, _ in rows}

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
        """As the relay does. What it has published it never sends again, so not what was lost since."""
        if relayed := [call for call in self.calls if not call.sent or call.ledger or call.outcome]:
            self.send(data.draw(st.sampled_from(relayed)))

    @precondition(lambda self: self.calls)
    @rule(data=st.data())
    def cancel_a_call(self, data: st.DataObject) -> None:
        self.cancel(data.draw(st.sampled_from(self.calls)))

    @precondition(lambda self: any(call.sent for call in self.calls))
    @rule(data=st.data())
    def send_blindly(self, data: st.DataObject) -> None:
        """A retried XADD whose first reply was lost."""
        call = data.draw(st.sampled_from([call for call in self.calls if call.sent]))
        self.thread.xadd(self.bench.keys.requests, {"event": encode_request(call.request)})

    def send(self, call: Call) -> None:
        answer = self.do(self.bench.engine.enqueue(call.request))
        assert type(answer) is call.enqueued()
        call.sent = True
        match answer:
            case replies.Queued(entry):
                fence = int(self.do(self.bench.ledger(call.request))["fence"])
                call.ledger = Ledger(entry, fence, fence)
            case replies.AlreadyQueued(entry):
                assert call.ledger
                assert entry == call.ledger.entry
            case replies.AlreadyFinished(outcome):
                assert outcome == call.outcome
            case _:
                raise AssertionError(answer)

    def cancel(self, call: Call) -> None:
        unseen = losses.given_up(GivenUp.STOPPED, Known.LOST, call.request) if call.sent else CANCELLED
        answer = self.do(self.bench.cancel(call.request, unseen=unseen))
        assert type(answer) is call.cancelled()
        match answer:
            case replies.CancelledAtOnce():
                call.outcome = CANCELLED
            case replies.CancelledUnseen():
                call.outcome = unseen
            case replies.CancelRequested():
                assert call.ledger
                call.ledger.cancel_asked = True
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
        standing = self.standing()
        if overdue := [row for row in self.do(self.bench.pending()) if row.entry in standing]:
            row = data.draw(st.sampled_from(overdue))
            self.hold(self.do(self.bench.claim_entry(row.entry, consumer)), at_once=at_once)

    def hold(self, delivery: Delivery, *, at_once: bool) -> None:
        call = next((call for call in self.calls if call.request == delivery.request), None)
        if call is None:
            return  # a call that had ended before everything was lost
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
        group = self.group(delivery.entry)
        expected, goes_back = call.begun(delivery, group), call.goes_back(group)
        answer = self.do(self.bench.start(delivery))
        if isinstance(answer, replies.NothingToDo):
            assert expected is None, answer
            if goes_back and call.ledger and delivery.entry == call.ledger.entry and group.owner == delivery.consumer:
                assert self.group(delivery.entry).owner == call.ledger.owner
            return
        assert answer == expected
        if isinstance(answer, replies.NoLedger):
            held.blind = True
            return
        assert not isinstance(answer, replies.NotYet), "there is one server"
        ledger = call.ledger
        assert ledger
        if answer.fence == ledger.fence:
            return
        if isinstance(answer, replies.Run):
            call.runs += 1
            assert call.runs == 1 or not call.once, "a second run"
            ledger.started, ledger.owner = True, delivery.consumer
        held.fence = ledger.fence = answer.fence
        held.runs = isinstance(answer, replies.Run)
        ledger.owner, ledger.starts, ledger.token, ledger.verdict = (
            delivery.consumer, answer.starts, delivery.token, answer,
        )  # fmt: skip

    @precondition(lambda self: any(held.runs for held in self.held))
    @rule(data=st.data())
    def renew(self, data: st.DataObject) -> None:
        held = data.draw(st.sampled_from([held for held in self.held if held.runs]))
        group = self.group(held.delivery.entry)
        renewable = held.call.renewable(held.delivery, held.fence, group)
        match self.bench.renew(held.delivery, held.fence):
            case replies.Renewed(cancel_requested):
                assert renewable
                held.call.put_back(held.delivery, held.fence)
                assert held.call.ledger
                assert cancel_requested == held.call.ledger.cancel_asked
                assert self.group(held.delivery.entry).owner in (None, held.delivery.consumer)
            case replies.Stale():
                assert not renewable
                assert self.group(held.delivery.entry).owner == group.owner
                held.runs = False

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def progress(self, data: st.DataObject) -> None:
        held = data.draw(st.sampled_from(self.held))
        passed_on = self.do(self.bench.worker.progress(held.call.request, held.fence, CallProgress(1)))
        assert passed_on == held.call.reports(held.fence)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        held = data.draw(st.sampled_from(self.held))
        call = held.call
        releasable = call.releasable(held.delivery, held.fence, self.group(held.delivery.entry))
        answer = self.do(self.bench.worker.release(held.delivery, held.fence, lease_ms=LEASE_MS))
        assert (answer == replies.Completed()) == releasable
        held.runs = held.runs and not releasable
        if releasable and (ledger := call.ledger):
            call.runs -= 1
            ledger.fence = int(self.do(self.bench.ledger(call.request))["fence"])
            assert ledger.fence > held.fence
            ledger.starts, ledger.started = ledger.starts - 1, False
            ledger.owner = ledger.token = ledger.verdict = None

    @precondition(lambda self: any(held.fence or held.blind for held in self.held))
    @rule(data=st.data())
    def complete(self, data: st.DataObject) -> None:
        self.end(data.draw(st.sampled_from([held for held in self.held if held.fence or held.blind])))

    def end(self, held: Held) -> None:
        call, fence = held.call, held.fence
        outcome = answered(f"under fence {fence}") if held.runs else UNKNOWN if fence else LOST
        speaks = call.speaks(fence)
        held.runs = False
        match self.do(self.bench.worker.complete(held.delivery, fence, outcome)):
            case replies.Completed():
                assert speaks
                call.outcome = outcome
            case replies.Stale():
                assert not speaks
                assert call.outcome is None
            case replies.Duplicate(state):
                assert call.outcome
                assert state == call.outcome.state

    # Redis loses things

    @precondition(lambda self: any(call.open for call in self.calls))
    @rule(data=st.data())
    def lose_a_ledger(self, data: st.DataObject) -> None:
        call = data.draw(st.sampled_from([call for call in self.calls if call.open]))
        self.do(self.bench.forget(call.request))
        self.do(self.bench.a_moment())
        call.ledger = None

    @rule(data=st.data())
    def lose_a_request(self, data: st.DataObject) -> None:
        if standing := sorted(self.standing()):
            entry = data.draw(st.sampled_from(standing))
            self.thread.xdel(self.bench.keys.requests, entry)
            self.deleted.add(entry)

    @rule()
    def lose_the_group(self) -> None:
        self.do(self.bench.regroup())

    @rule(consumer=CONSUMERS)
    def lose_a_consumer(self, consumer: str) -> None:
        """An operator takes one out of the group, with all it held."""
        self.thread.execute_command("XGROUP", "DELCONSUMER", self.bench.keys.requests, GROUP, consumer)

    @rule()
    def lose_everything(self) -> None:
        self.deleted |= self.standing()
        self.do(self.bench.flush())
        self.do(self.bench.open())
        # Calls that had ended are of no more interest: their answers are in the engine's own hands.
        self.calls = [call for call in self.calls if call.outcome is None]
        self.held = [held for held in self.held if held.of_any(self.calls)]
        for call in self.calls:
            call.ledger = None

    # The engine finds out

    @precondition(lambda self: self.calls)
    @rule(data=st.data())
    def audit(self, data: st.DataObject) -> None:
        self.settle(data.draw(st.sampled_from(self.calls)))

    def settle(self, call: Call) -> None:
        """What an engine does about a call that was not heard of for long."""
        entry = call.ledger.entry if call.ledger else None
        (found,) = self.do(self.bench.audit(call.request, silent_ms=AT_ONCE))
        if call.outcome:
            assert found == encode_reply(CallFinished(call.outcome))
            return
        assert found == call.lost(self.group(entry) if entry else None)
        if not isinstance(found, replies.Loss) or not call.sent:
            return
        match losses.remedy(found, call.request, 0):
            case losses.EnqueueAgain():
                assert not call.once
                self.send(call)
            case losses.EndAs(outcome):
                answer = self.do(self.bench.engine.lose(call.request, found, outcome, silent_ms=AT_ONCE))
                assert answer == replies.EndedLost()
                call.outcome = outcome
            case losses.LeaveIt():
                raise AssertionError("its deadline is far away")

    # What holds at every moment

    @invariant()
    def every_call_is_answered_once_and_kept_until_then(self) -> None:
        standing = self.standing()
        for call in self.calls:
            answers = [reply for reply in self.do(self.bench.channel(call.request)) if isinstance(reply, CallFinished)]
            assert answers == ([CallFinished(call.outcome)] if call.outcome else [])
            if call.ledger:
                assert (call.ledger.entry in standing) == (not call.outcome and call.ledger.entry not in self.deleted)
                ledger = self.do(self.bench.ledger(call.request))
                assert (ledger["state"], ledger["fence"]) == (self.state(call), str(call.ledger.fence))

    def state(self, call: Call) -> CallState:
        if call.outcome:
            return call.outcome.state
        return CallState.STARTED if call.ledger and call.ledger.started else CallState.PUBLISHED

    # What holds in the end

    def teardown(self) -> None:
        try:
            for _ in range(ROUNDS):
                self.rescue()
                for call in self.calls:
                    self.settle(call)
            assert all(self.group(entry).out_of_reach for entry in self.standing())  # duplicates, if at all
            assert all(call.outcome for call in self.calls if call.sent)
            self.every_call_is_answered_once_and_kept_until_then()
            assert self.do(self.bench.pending()) == []
        finally:
            self.do(self.bench.redis.aclose())
            self.thread.close()
            self.loop.close()

    def rescue(self) -> None:
        """One worker outlives all others and ends what it finds."""
        while delivery := self.do(self.bench.next_delivery("rescuer")):
            self.hold(delivery, at_once=False)
        standing = self.standing()
        for row in self.do(self.bench.pending()):
            if row.entry not in standing:
                self.thread.xack(self.bench.keys.requests, GROUP, row.entry)
                continue
            taken = self.do(self.bench.claim_entry(row.entry, "rescuer"))
            self.hold(taken, at_once=True)
            held = self.held[-1]
            if held.delivery == taken and (held.fence or held.blind):
                self.end(held)


@promise("I1 every committed call reaches exactly one terminal state")
@promise("I5 a request stays until its terminal state is written")
@promise("after a flush every call is answered, runs on, or is queued again, and nothing runs twice that must not")
@pytest.mark.every_redis
def test_no_order_of_events_breaks_the_ledger(redis_url: str) -> None:
    examine(redis_url, examples=20)


@exhaustive("many more orders")
def test_none_of_many_more_orders_of_events_breaks_the_ledger(redis_url: str) -> None:
    examine(redis_url, examples=150)


def examine(redis_url: str, examples: int) -> None:
    class Machine(LedgerMachine):
        url = redis_url

    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        ),
    )
