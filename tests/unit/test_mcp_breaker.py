"""The circuit breaker, fact by fact, on a clock that the test turns."""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from plugins_contract.catalog import BreakerState
from plugins_mcp.mcp.circuit_breaker import CircuitBreaker, ConnectionPolicy, NoPermit, Permit
from plugins_mcp.mcp.late_calls import MAX_CIRCUITS, LateCalls
from tests.marks import promise

CLOSED, OPEN, HALF_OPEN = BreakerState
POLICY = ConnectionPolicy(failure_threshold=3, first_delay=1.0, longest_delay=8.0, call_wait=5.0, stable_after=60.0)


@dataclass
class Bench:
    """A breaker and its clock. The server is in reach unless a test says otherwise."""

    now: float = 1000.0
    jitter: float = 1.0
    breaker: CircuitBreaker = field(init=False)

    def __post_init__(self) -> None:
        self.breaker = CircuitBreaker(POLICY, clock=lambda: self.now, jitter=lambda: self.jitter)

    def wait(self, seconds: float) -> None:
        self.now += seconds

    def permit(self) -> Permit:
        permit = self.breaker.admit()
        assert isinstance(permit, Permit)
        return permit

    def fail(self, times: int = 1) -> None:
        for _ in range(times):
            self.breaker.failed(self.permit(), "no answer", None)

    def as_it_is(self) -> None:
        """Nothing has happened."""

    def open_by_calls(self) -> None:
        self.fail(3)

    def open_by_owner(self) -> None:
        """Lost, and every attempt fails until calls do not wait for the next one any more."""
        while self.breaker.state is not OPEN:
            self.breaker.unreachable("refused")
            self.wait(self.breaker.retry_in())

    def half_open_by_calls(self) -> Permit:
        self.open_by_calls()
        self.wait(self.breaker.retry_in())
        return self.permit()

    def half_open_by_owner(self) -> None:
        self.open_by_owner()
        self.breaker.attempt_started()


@pytest.fixture
def bench() -> Bench:
    return Bench()


FACTS: dict[str, Callable[[Bench], object]] = {
    "answered": lambda bench: bench.breaker.answered(),
    "owner cannot reach it": lambda bench: bench.breaker.unreachable("refused"),
    "owner has reached it": lambda bench: bench.breaker.reachable(),
    "owner tries": lambda bench: bench.breaker.attempt_started(),
}


@promise("a circuit breaker per MCP server, its state visible")
@pytest.mark.parametrize(
    ("before", "fact", "after"),
    [
        (Bench.as_it_is, "answered", CLOSED),
        (Bench.as_it_is, "owner cannot reach it", CLOSED),
        (Bench.as_it_is, "owner has reached it", CLOSED),
        (Bench.as_it_is, "owner tries", CLOSED),
        (Bench.open_by_calls, "answered", CLOSED),
        (Bench.open_by_calls, "owner cannot reach it", OPEN),
        (Bench.open_by_calls, "owner has reached it", OPEN),
        (Bench.open_by_calls, "owner tries", OPEN),
        (Bench.open_by_owner, "answered", CLOSED),
        (Bench.open_by_owner, "owner cannot reach it", OPEN),
        (Bench.open_by_owner, "owner has reached it", CLOSED),
        (Bench.open_by_owner, "owner tries", HALF_OPEN),
        (Bench.half_open_by_calls, "answered", CLOSED),
        (Bench.half_open_by_calls, "owner cannot reach it", OPEN),
        (Bench.half_open_by_calls, "owner has reached it", HALF_OPEN),
        (Bench.half_open_by_owner, "answered", CLOSED),
        (Bench.half_open_by_owner, "owner cannot reach it", OPEN),
        (Bench.half_open_by_owner, "owner has reached it", CLOSED),
    ],
)
def test_each_fact_leads_to_its_state(
    bench: Bench, before: Callable[[Bench], object], fact: str, after: BreakerState
) -> None:
    before(bench)
    FACTS[fact](bench)
    assert bench.breaker.state is after


def test_a_probe_that_fails_opens_it_for_twice_as_long_up_to_a_limit(bench: Bench) -> None:
    bench.open_by_calls()
    pauses: list[float] = []
    for _ in range(6):
        pauses.append(bench.breaker.retry_in())
        bench.wait(bench.breaker.retry_in())
        bench.fail()
    assert pauses == [1.0, 2.0, 4.0, 8.0, 8.0, 8.0]


def test_calls_that_went_before_it_opened_do_not_open_it_for_longer(bench: Bench) -> None:
    early = [bench.permit() for _ in range(10)]
    for permit in early:
        bench.breaker.failed(permit, "no answer")
    assert bench.breaker.retry_in() == 1.0
    bench.wait(1.0)
    probe = bench.permit()
    bench.breaker.failed(early[0], "no answer")
    assert bench.breaker.state is HALF_OPEN
    bench.breaker.failed(probe, "no answer")
    assert bench.breaker.state is OPEN


def test_a_server_that_was_lost_a_moment_ago_is_waited_for(bench: Bench) -> None:
    bench.breaker.lost()
    assert bench.breaker.call_wait() == 5.0
    bench.wait(1.0)
    bench.breaker.unreachable("refused")
    assert bench.breaker.state is CLOSED
    assert bench.breaker.call_wait() == 4.0
    bench.breaker.reachable()
    assert bench.breaker.call_wait() == 0.0


def test_it_opens_when_the_next_try_is_later_than_calls_wait(bench: Bench) -> None:
    bench.breaker.lost()
    for pause in (1.0, 2.0):
        bench.breaker.unreachable("refused")
        assert (bench.breaker.state, bench.breaker.retry_in()) == (CLOSED, pause)
        bench.wait(pause)
    bench.breaker.unreachable("refused")
    assert (bench.breaker.state, bench.breaker.retry_in()) == (OPEN, 4.0)
    assert bench.breaker.call_wait() == 0.0


def test_while_it_cannot_be_reached_its_owner_is_the_probe_and_no_call(bench: Bench) -> None:
    bench.open_by_owner()
    bench.wait(60.0)
    assert isinstance(bench.breaker.admit(), NoPermit)
    bench.breaker.attempt_started()
    assert bench.breaker.refusal() is None, "a call may wait for what the owner finds"
    assert bench.breaker.call_wait() == 5.0
    assert isinstance(bench.breaker.admit(), NoPermit)
    bench.breaker.reachable()
    assert isinstance(bench.breaker.admit(), Permit)


def test_a_server_that_is_back_has_to_answer_before_it_is_trusted_again(bench: Bench) -> None:
    bench.half_open_by_owner()
    bench.breaker.reachable()
    pause = bench.breaker.retry_at
    assert pause is None
    bench.fail()
    assert bench.breaker.state is OPEN
    assert bench.breaker.retry_in() == 8.0


def test_a_server_that_comes_and_goes_is_tried_less_and_less(bench: Bench) -> None:
    pauses: list[float] = []
    for _ in range(4):
        bench.breaker.unreachable("it died")
        pauses.append(bench.breaker.retry_in())
        bench.wait(bench.breaker.retry_in())
        bench.breaker.attempt_started()
        bench.breaker.reachable()
    assert pauses == [1.0, 2.0, 4.0, 8.0]


def test_one_that_stayed_in_reach_for_long_begins_with_the_first_pause_again(bench: Bench) -> None:
    bench.half_open_by_owner()
    bench.breaker.reachable()
    bench.wait(61.0)
    bench.breaker.unreachable("it died")
    assert (bench.breaker.state, bench.breaker.retry_in()) == (CLOSED, 1.0)


def test_late_calls_open_the_circuit_of_their_tool_and_subject_which_an_answer_closes(bench: Bench) -> None:
    calls = LateCalls(POLICY, new=lambda policy: CircuitBreaker(policy, clock=lambda: bench.now, jitter=lambda: 1.0))
    slow = ("slow", "ann")
    for _ in range(POLICY.failure_threshold):
        permit = calls.admit(slow)
        assert isinstance(permit, Permit)
        calls.late(slow, permit, "no answer in time")
    assert calls.refusal(slow) == calls.admit(slow) == NoPermit(1.0)
    assert calls.refusal(("slow", "bob")) is calls.refusal(("fast", "ann")) is None

    bench.wait(1.0)
    probe = calls.admit(slow)
    assert isinstance(probe, Permit)
    assert isinstance(calls.admit(slow), NoPermit)
    calls.inconclusive(slow, probe)
    assert isinstance(calls.admit(slow), Permit)
    calls.answered(slow)
    assert calls.admit(slow) == Permit(0)


def test_of_the_tools_and_subjects_with_late_calls_the_oldest_is_forgotten() -> None:
    calls = LateCalls(ConnectionPolicy(failure_threshold=1))
    for number in range(MAX_CIRCUITS + 1):
        calls.late(("slow", str(number)), Permit(0), "no answer in time")
    assert calls.refusal(("slow", "0")) is None
    assert calls.refusal(("slow", "1"))
