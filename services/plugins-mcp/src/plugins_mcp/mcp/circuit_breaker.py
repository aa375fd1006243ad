"""The circuit breaker of one MCP server: whether calls may go to it, and when it is tried again.

Pure: events in, decisions out, on an injected clock. Closed: calls go through. Open: calls are refused until
`retry_at`. Half-open: the pause is over and one probe is under way. While the server is unreachable the probe is the
worker's attempt to connect or to list; otherwise it is the next call.

| event | closed | open | half-open |
|---|---|---|---|
| a call was answered | resets the counts | closed | closed |
| a call was not answered | opens after `failure_threshold` in a row | | open, longer |
| connecting or listing failed | opens when calls would not wait for the next attempt | open, longer | open, longer |
| connecting and listing succeeded | | closed, if the server was unreachable | as open |

Of calls that were not answered in their time, at most MAX_LATE of each subject count.
Each pause is twice the previous one, with jitter, up to a limit. The first pause applies again after a call was
answered, or after the server was reachable for `stable_after`.
"""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from plugins_contract.catalog import BreakerState
from plugins_mcp.mcp.calls import Ambiguous, Answered, CallResult, InputAsked, NotSent, Rejected, RetryLater, TimedOut

MIN_COUNTED_TIMEOUT_SHARE = 0.5
"""A timeout after less of the call's time, or after less than the policy's `min_counted_timeout`, is no health signal:
the call had spent its time waiting elsewhere, on the stream or for a slot."""


MAX_LATE = 3
"""How many late calls in a row of one subject count: its arguments or deadlines may explain them, so those of others
must fail as well."""


@dataclass(frozen=True)
class ConnectionPolicy:
    """Timeouts and retry limits for the connection to one server. All times are seconds."""

    first_delay: float = 0.5
    """The first pause before a failing server is tried again."""
    longest_delay: float = 30.0
    stable_after: float = 30.0
    """A server that was reachable for this long starts again with `first_delay`."""
    call_wait: float = 5.0
    """How long after the loss of a connection calls wait for the next one."""
    failure_threshold: int = 5
    """This number of calls in a row without an answer opens the circuit."""
    relist_every: float = 300.0
    """Change notifications can get lost: a legacy HTTP stream may stop without an error."""
    relist_stateful: float = 3_600.0
    """A server that keeps state is listed by a session that is opened for that alone."""
    relist_gap: float = 0.25
    """The least time between two listings, however many notifications arrive."""
    list_timeout: float = 30.0
    drain_timeout: float = 2.0
    """How long calls of a lost session may still end by themselves."""
    min_counted_timeout: float = 1.0
    starting_children: int = 4
    """How many child processes may start at the same time: dozens that share the processors are all late."""
    start_share: float = 3.0
    """A child that has not answered for this long does not hold back the next one."""


@dataclass(frozen=True, slots=True)
class Healthy:
    """The server answered, possibly with an error."""


@dataclass(frozen=True, slots=True)
class Failing:
    """The server did not answer. `retry_after`: it asked for a pause of this many seconds."""

    reason: str
    retry_after: float | None = None


@dataclass(frozen=True, slots=True)
class Late:
    """The server did not answer in the call's time, which the call itself may explain."""

    reason: str


def health_signal(
    result: CallResult | None, policy: ConnectionPolicy, *, seconds: float, granted_s: float, lost: bool
) -> Healthy | Failing | Late | None:
    """What a call's result says about its server; None when it says nothing, as for a cancelled call (no result).

    `seconds` is the time that the server had, of the `granted_s` that the call was given in all. `lost`: the connection
    was lost. The connection's owner reports that once, so the calls that were lost with it do not count as well.
    """
    match result:
        case Answered() | InputAsked() | Rejected():
            return Healthy()
        case RetryLater(reason, after_s):
            return Failing(reason, after_s)
        case Ambiguous(reason) | NotSent(reason):
            return None if lost else Failing(reason)
        case TimedOut(sent, quiet_s):
            long_enough = seconds >= policy.min_counted_timeout and (
                quiet_s is not None or seconds >= MIN_COUNTED_TIMEOUT_SHARE * granted_s
            )
            return Late("no answer in time") if sent and long_enough and not lost else None
        case None:
            return None


@dataclass(frozen=True, slots=True)
class Permit:
    """Allows one call. The call's result is reported with it."""

    epoch: int


@dataclass(frozen=True, slots=True)
class NoPermit:
    """Refuses a call. `retry_in`: the seconds until another call may be allowed."""

    retry_in: float


class CircuitBreaker:
    """Starts closed. `retry_at` is a time of the injected clock, None while nothing is wrong.

    `trouble`: something was wrong since a call was last answered. Without it every call is let through, and an answer
    changes nothing.
    """

    def __init__(
        self,
        policy: ConnectionPolicy | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = lambda: random.uniform(0.8, 1.2),
    ) -> None:
        self.state = BreakerState.CLOSED
        self.reason: str | None = None
        self.retry_at: float | None = None
        self.trouble = False
        self._policy = policy or ConnectionPolicy()
        self._clock = clock
        self._jitter = jitter
        self.epoch = 0
        """That of the permits of calls which are let through now."""
        self._failures = 0
        self._late: dict[str, int] = {}
        self._pauses = 0
        self._down_since: float | None = None
        self._wait_from = 0.0
        self._reached_at = clock()

    @property
    def down(self) -> bool:
        """Whether the server is unreachable, as far as is known. The connection's owner finds out when it is back."""
        return self._down_since is not None

    def retry_in(self) -> float:
        """Seconds until the server is tried again."""
        return max(0.0, (self.retry_at or 0.0) - self._clock())

    def call_wait(self) -> float:
        """How many seconds a call may wait for the server to become reachable again."""
        if self._down_since is None or self.state is BreakerState.OPEN:
            return 0.0
        return max(0.0, self._wait_from + self._policy.call_wait - self._clock())

    # Called for calls.

    def refusal(self) -> NoPermit | None:
        """The refusal of a call that need not wait for anything; None when the call may try."""
        match self.state:
            case BreakerState.OPEN if self.down or self.retry_in() > 0:
                return NoPermit(self.retry_in())
            case BreakerState.HALF_OPEN if not self.down:
                return NoPermit(self._policy.first_delay)
            case _:
                return None

    def admit(self) -> Permit | NoPermit:
        """Decide on a call that is ready to be sent. The first call after the pause becomes the probe."""
        if self.state is BreakerState.HALF_OPEN:
            return NoPermit(self._policy.first_delay)  # one probe at a time: another call, or the owner's attempt
        if refusal := self.refusal():
            return refusal
        if self.state is BreakerState.OPEN:
            self._become(BreakerState.HALF_OPEN)
        return Permit(self.epoch)

    def answered(self) -> None:
        """The server answered a call or reported progress."""
        if not self.trouble:
            return
        self.trouble = False
        self._failures = self._pauses = 0
        self._late.clear()
        self._set_reachable()
        self._become(BreakerState.CLOSED)

    def failed(self, permit: Permit, reason: str, retry_after: float | None = None) -> None:
        """A call was not answered. A permit from before the last change of state does not count."""
        if permit.epoch != self.epoch or self.state is BreakerState.OPEN:
            return
        self.trouble = True
        self._failures += 1
        if self.state is BreakerState.HALF_OPEN or self._failures >= self._policy.failure_threshold:
            self._pause(reason, retry_after)
            self._become(BreakerState.OPEN)

    def late(self, permit: Permit, reason: str, subject: str) -> None:
        """A call of `subject` was not answered in its time. Of one subject MAX_LATE count, until a call is answered."""
        if self.state is BreakerState.CLOSED and permit.epoch == self.epoch:
            if self._late.get(subject, 0) >= MAX_LATE:
                return
            self.trouble = True
            self._late[subject] = self._late.get(subject, 0) + 1
        self.failed(permit, reason)

    def inconclusive(self, permit: Permit) -> None:
        """A call ended without a health signal. If it was the probe, the next call is the probe."""
        if self.state is BreakerState.HALF_OPEN and permit.epoch == self.epoch and not self.down:
            self._become(BreakerState.OPEN)

    # Called by the connection's owner.

    def attempt_started(self) -> None:
        """The owner tries to connect or to list."""
        if self.state is BreakerState.OPEN and self.down:
            self._wait_from = self._clock()
            self._become(BreakerState.HALF_OPEN)

    def lost(self) -> None:
        """The server is unreachable, and the owner has not tried again yet."""
        self.trouble = True
        if self._down_since is None:
            now = self._clock()
            self._down_since = self._wait_from = now
            if now - self._reached_at > self._policy.stable_after:
                self._pauses = 0

    def unreachable(self, reason: str) -> None:
        """The owner's attempt failed, or the connection was lost; the next attempt is due after `retry_in`."""
        self.lost()
        self._pause(reason, None)
        too_late_for_calls = (self.retry_at or 0.0) > (self._down_since or 0.0) + self._policy.call_wait
        if self.state is not BreakerState.CLOSED or too_late_for_calls:
            self._become(BreakerState.OPEN)

    def reachable(self) -> None:
        """The owner's attempt succeeded. It is not known yet whether calls are answered: one failure opens again."""
        if self._down_since is None:
            return
        if self.state is not BreakerState.CLOSED:
            self._failures = self._policy.failure_threshold - 1
            self._become(BreakerState.CLOSED)
        self._set_reachable()

    def _set_reachable(self) -> None:
        self._down_since, self._reached_at = None, self._clock()
        self.reason = self.retry_at = None

    def _pause(self, reason: str, retry_after: float | None) -> None:
        longest = self._policy.longest_delay
        pause = min(self._policy.first_delay * 2 ** min(self._pauses, 20), longest) * self._jitter()
        self.retry_at = self._clock() + max(pause, min(retry_after or 0.0, longest))
        self.reason = reason
        self._pauses += 1

    def _become(self, state: BreakerState) -> None:
        if state is not self.state:
            self.state = state
            self.epoch += 1
            self._late.clear()
