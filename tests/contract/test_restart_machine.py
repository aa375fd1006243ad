"""Restarts of Redis that lose its latest writes, in any order with the steps of engine and workers.

A call that must not run twice is never started twice, and a restart alone costs no call whose ENQUEUE was not answered.
"""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from callstream_runtime.connections import command_client, thread_client
from plugins_contract.encryption import CLEAR
from plugins_contract.ledger import Delivery, Offer, WorkerLedger, complete_again, decode_reply, replies, report
from plugins_contract.messages import ToolCallRequested
from plugins_contract.outcomes import CallFinished, CallState, ToolOutcome
from tests.marks import exhaustive, promise
from tests.support.ledger import DONE, EXPIRED, UNKNOWN, Bench

T = TypeVar("T")
NAMES = ("a", "b", "c")
ROUNDS = 3
"""What is put on the stream again in the first round ends in the second."""


@dataclass
class Call:
    """A `once` call as its engine knows it."""

    request: ToolCallRequested
    offered_to: str
    sent: bool = False
    published: bool = False
    restarts: int = 0
    """How often Redis was restarted since it was sent."""
    may_be_lost: bool = False
    """Redis may have lost it after it had answered ENQUEUE, or was restarted before all workers had reported to it."""
    runs: int = 0
    outcome: ToolOutcome | None = None


@dataclass
class Worker:
    """A worker, what it holds, and the run id of the server at which it has reported."""

    name: str
    ledger: WorkerLedger
    server: str
    held: list[Delivery] = field(default_factory=list[Delivery])
    running: list[tuple[Delivery, int]] = field(default_factory=list[tuple[Delivery, int]])
    alive: bool = True


class RestartMachine(RuleBasedStateMachine):
    """One server stands for all: at a restart it gets the data of the last save, in which its run id is another one."""

    url: ClassVar[str]

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.Runner()
        self.thread: Any = thread_client(self.url)
        self.thread.flushall()
        self.bench = Bench(command_client(self.url), self.thread)
        self.do(self.bench.open())
        self.incarnation = self.do(self.bench.engine.incarnation())
        self.here = self.incarnation.partition("/")[2]
        self.calls: list[Call] = []
        self.workers = [Worker(name, self.bench.worker, "") for name in NAMES]
        self.restarts = self.restarts_left = self.deaths_left = 0
        for worker in self.workers:
            self.report(worker)
        self.save()

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run(work)

    @property
    def living(self) -> list[Worker]:
        return [worker for worker in self.workers if worker.alive]

    # The engine

    @initialize(
        progress=st.lists(st.sampled_from(["new", "sent", "read", "started"]), min_size=1, max_size=2),
        restarts=st.sampled_from([1, 1, 2]),
        deaths=st.sampled_from([0, 0, 1]),
    )
    def some_calls(self, progress: list[str], restarts: int, deaths: int) -> None:
        self.restarts_left, self.deaths_left = restarts, deaths
        for reached in progress:
            self.calls.append(call := Call(self.do(self.bench.request()), self.incarnation))
            if reached != "new":
                self.enqueue(call, is_answered=False)
            if reached in ("read", "started"):
                self.get(self.workers[0])
            if reached == "started":
                self.begin(self.workers[0], self.workers[0].held[-1])

    @precondition(lambda self: any(not call.published for call in self.calls))
    @rule(data=st.data(), is_answered=st.booleans())
    def send(self, data: st.DataObject, is_answered: bool) -> None:
        self.enqueue(data.draw(st.sampled_from([call for call in self.calls if not call.published])), is_answered)

    def enqueue(self, call: Call, is_answered: bool) -> None:
        offer = Offer(call.request, call.offered_to, call.sent)
        [answer] = self.do(self.bench.engine.enqueue_each([offer]))
        assert not isinstance(answer, Exception)
        if isinstance(answer, replies.Moved) and not call.sent:
            call.offered_to = self.incarnation
            return
        call.sent, call.published = True, is_answered

    # Workers

    @rule(data=st.data(), starts=st.booleans())
    def read(self, data: st.DataObject, starts: bool) -> None:
        worker = data.draw(st.sampled_from(self.living))
        self.get(worker)
        if starts and worker.held:
            self.begin(worker, worker.held[-1])

    def get(self, worker: Worker) -> bool:
        """Read one entry; one that the worker has already is ignored, as its consumer does. Whether there was one."""
        if delivery := self.do(self.bench.next_delivery(worker.name)):
            has = {each.entry for each in (*worker.held, *(running for running, _ in worker.running))}
            worker.held += [] if delivery.entry in has else [delivery]
        return delivery is not None

    @precondition(lambda self: any(worker.held for worker in self.workers))
    @rule(data=st.data(), is_answered=st.booleans())
    def start(self, data: st.DataObject, is_answered: bool) -> None:
        worker = data.draw(st.sampled_from([worker for worker in self.workers if worker.held]))
        self.begin(worker, data.draw(st.sampled_from(worker.held)), is_answered)

    def begin(self, worker: Worker, delivery: Delivery, is_answered: bool = True, *, lease_ms: int = 10_000) -> None:
        times: dict[str, Any] = {"reported_at": worker.server, "known_ms": 0, "stops_ms": 0, "lease_ms": lease_ms}
        answer = self.do(worker.ledger.start(delivery, max_starts=3, expired=EXPIRED, **times))
        if isinstance(answer, replies.NotYet) or not is_answered:
            return
        worker.held.remove(delivery)
        match answer:
            case replies.Run(fence):
                [call] = [call for call in self.calls if call.request == delivery.request]
                call.runs += 1
                assert call.runs == 1, "a second run"
                worker.running.append((delivery, fence))
            case replies.Abandoned(fence):
                self.do(worker.ledger.complete(delivery, fence, UNKNOWN))
            case _:
                pass

    @precondition(lambda self: any(worker.running for worker in self.workers))
    @rule(data=st.data())
    def complete(self, data: st.DataObject) -> None:
        worker = data.draw(st.sampled_from([worker for worker in self.workers if worker.running]))
        self.do(worker.ledger.complete(*worker.running.pop(), DONE))

    @rule(data=st.data())
    def write_and_report(self, data: st.DataObject) -> None:
        self.report(data.draw(st.sampled_from(self.living)))

    def report(self, worker: Worker) -> None:
        for held in worker.running:
            self.bench.renew(*held)
        assert complete_again(self.thread, worker.ledger.recent) == []
        assert report(self.thread, self.bench.keys, worker.name, self.here)
        worker.server = self.here

    @precondition(lambda self: self.deaths_left)
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        self.deaths_left -= 1
        worker = data.draw(st.sampled_from(self.living))
        worker.alive, worker.held, worker.running = False, [], []

    # Redis

    @rule()
    def save(self) -> None:
        """What is written until now is lost by no restart."""
        self.saved = {key: self.thread.dump(key) for key in self.thread.scan_iter()}

    @precondition(lambda self: self.restarts_left)
    @rule(data=st.data())
    def restart(self, data: st.DataObject) -> None:
        """Some workers report at once, and the engine sends some calls again."""
        self.restarts, self.restarts_left = self.restarts + 1, self.restarts_left - 1
        earlier = f"{self.restarts:040x}"
        # The next server cannot know who ran what at one to which not all workers had reported.
        is_known = all(worker.server == self.here for worker in self.living)
        self.do(self.bench.flush())
        for key, dump in self.saved.items():
            self.thread.restore(key, 0, dump)
            if self.thread.type(key) == b"hash":
                fields: dict[bytes, bytes] = self.thread.hgetall(key)
                renamed = {name: value.replace(self.here.encode(), earlier.encode()) for name, value in fields.items()}
                self.thread.hset(key, mapping=renamed)
        for worker in self.workers:
            worker.server = worker.server.replace(self.here, earlier)
        for call in self.calls:
            call.offered_to = call.offered_to.replace(self.here, earlier)
            call.restarts += call.sent
            call.may_be_lost |= call.published or (call.sent and not is_known)
        self.save()
        for worker in self.living:
            if data.draw(st.booleans()):
                self.report(worker)
        for call in self.calls:
            if call.sent and not call.published and data.draw(st.booleans()):
                self.enqueue(call, is_answered=True)

    # In the end

    def teardown(self) -> None:
        try:
            for _ in range(ROUNDS):
                self.rescue()
            for call in self.calls:
                assert call.outcome, "every call reaches an outcome"
                assert call.runs or call.outcome.state is not CallState.SUCCEEDED
                may_be_unknown = call.may_be_lost or call.restarts > 1 or len(self.living) < len(NAMES)
                assert may_be_unknown or call.outcome.state is CallState.SUCCEEDED
        finally:
            self.do(self.bench.redis.aclose())
            self.thread.close()
            self.loop.close()

    def rescue(self) -> None:
        """The living report, end what they have, and take over what the dead left; the engine asks for the rest."""
        for worker in self.living:
            self.report(worker)
        for call in self.calls:
            while not call.published:
                self.enqueue(call, is_answered=True)
        self.do(self.bench.a_moment())
        for worker in self.living:
            while self.get(worker):
                pass
        names = {worker.name for worker in self.living}
        for row in self.do(self.bench.pending()):
            if row.consumer not in names:
                self.living[0].held.append(self.do(self.bench.claim_entry(row.entry, self.living[0].name)))
        for worker in self.living:
            for delivery in [*worker.held]:
                self.begin(worker, delivery, lease_ms=10_000 if len(names) == len(NAMES) else 0)
            while worker.running:
                self.do(worker.ledger.complete(*worker.running.pop(), DONE))
        for call in self.calls:
            self.settle(call)

    def settle(self, call: Call) -> None:
        [found] = self.do(self.bench.audit(call.request, silent_ms=-1))
        if isinstance(found, replies.Loss):
            self.do(self.bench.engine.lose(call.request, found, UNKNOWN, silent_ms=-1))
            call.outcome = UNKNOWN
        elif found:
            reply = decode_reply(found, cipher=CLEAR)
            assert isinstance(reply, CallFinished)
            call.outcome = reply.outcome


@promise("a call whose ENQUEUE was in flight when Redis was killed is run, and only once")
@promise("a once call that an earlier server of Redis may have started is not started at the next one")
@pytest.mark.timeout(600)
@pytest.mark.every_redis
@pytest.mark.parametrize("examples", [20, pytest.param(500, marks=exhaustive("many more orders"))])
def test_no_order_of_restarts_runs_a_once_call_twice_or_costs_one_that_was_in_flight(
    redis_url: str, examples: int
) -> None:
    class Machine(RestartMachine):
        url = redis_url

    checks = [HealthCheck.too_slow, HealthCheck.data_too_large]
    run_state_machine_as_test(
        Machine,
        settings=settings(max_examples=examples, stateful_step_count=15, deadline=None, suppress_health_check=checks),
    )
