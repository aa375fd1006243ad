"""The circuit breaker of one MCP server: whether calls may go to it, and when it is tried again. Pure: facts in,
decisions out, on an injected clock.

Closed: calls go through. Open: they are refused at once, until `retry_at`. Half-open: that time has come, and one
probe is under way. While the server cannot be reached the probe is its owner's attempt to connect or to list;
otherwise it is the next call.

| fact | closed | open | half-open |
|---|---|---|---|
| a call was answered | forgets everything | closed | closed |
| a call was not | opens, at so many in a row | | open, for longer |
| its owner cannot reach it | opens, when the next try is later than calls wait | open, for longer | open, for longer |
| its owner has reached it | | closed, if it was out of reach | the same |

Every pause is twice the one before, with jitter, up to a limit, until a call is answered or the server stays in reach.
"""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from plugins_contract.catalog import BreakerState


@dataclass(frozen=True, slots=True)
class Limits:
    """When it opens, and for how long. Times are seconds."""

    failures: int = 5
    """Calls in a row without an answer open it."""
    first_pause: float = 0.5
    longest_pause: float = 30.0
    call_waits: float = 5.0
    """How long calls wait for a server that was lost a moment ago, or is just being tried."""
    stable_after: float = 30.0
    """A server that was in reach for so long begins with the first pause again."""


@dataclass(frozen=True, slots=True)
class Permit:
    """A call may go. Its end is to be told with this in hand."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """A call may not go. `retry_in`: after so many seconds it may be worth asking again."""

    retry_in: float


class Breaker:
    """Begins closed. `retry_at` is on the injected clock; None while nothing is wrong."""

    def __init__(
        self,
        limits: Limits | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = lambda: random.uniform(0.8, 1.2),
    ) -> None:
        self.state = BreakerState.CLOSED
        self.reason: str | None = None
        self.retry_at: float | None = None
        self._limits = limits or Limits()
        self._clock = clock
        self._jitter = jitter
        self._epoch = 0
        self._failures = 0
        self._pauses = 0
        self._down_since: float | None = None
        self._waits_from = 0.0
        self._reached_at = clock()

    @property
    def down(self) -> bool:
        """Whether the server is out of reach, as far as it is known; its owner finds out when it is back."""
        return self._down_since is not None

    @property
    def owner_probes(self) -> bool:
        """Whether its owner is trying to reach it right now."""
        return self.state is BreakerState.HALF_OPEN and self.down

    def retry_in(self) -> float:
        """Seconds until it is tried again."""
        return max(0.0, (self.retry_at or 0.0) - self._clock())

    def patience(self) -> float:
        """For how many seconds a call may wait for the server to be in reach again."""
        if self._down_since is None or self.state is BreakerState.OPEN:
            return 0.0
        return max(0.0, self._waits_from + self._limits.call_waits - self._clock())

    def refusal(self) -> Refusal | None:
        """Whether a call has to be refused before it waits for anything."""
        match self.state:
            case BreakerState.CLOSED:
                return None
            case BreakerState.OPEN:
                due = self._down_since is None and self.retry_in() <= 0
                return None if due else Refusal(self.retry_in())
            case BreakerState.HALF_OPEN:
                return None if self.owner_probes else Refusal(self._limits.first_pause)

    def admit(self) -> Permit | Refusal:
        """Let a call go, now. When it is time to try again, this call is the probe."""
        refused = Refusal(self._limits.first_pause) if self.owner_probes else self.refusal()
        if refused is not None:
            return refused
        if self.state is BreakerState.OPEN:
            self._become(BreakerState.HALF_OPEN)
        return Permit(self._epoch)

    def answered(self) -> None:
        """The server answered a call, or said how far it is."""
        if self.state is BreakerState.CLOSED and not self._failures and not self._pauses and self._down_since is None:
            return  # as nearly always
        self._failures = self._pauses = 0
        self._in_reach()
        self._become(BreakerState.CLOSED)

    def failed(self, permit: Permit, reason: str, wish: float | None = None) -> None:
        """A call went without an answer; `wish` is for how long the server wants to be left alone.

        What went before the breaker last changed says nothing about the server of now.
        """
        if permit.epoch != self._epoch or self.state is BreakerState.OPEN:
            return
        self._failures += 1
        if self.state is BreakerState.HALF_OPEN or self._failures >= self._limits.failures:
            self._pause(reason, wish)
            self._become(BreakerState.OPEN)

    def untold(self, permit: Permit) -> None:
        """A call ended in a way that says nothing. If it was the probe, the next call is."""
        if self.state is BreakerState.HALF_OPEN and permit.epoch == self._epoch and not self.owner_probes:
            self._become(BreakerState.OPEN)

    def trying(self) -> None:
        """Its owner tries to reach it."""
        if self.state is BreakerState.OPEN and self._down_since is not None:
            self._waits_from = self._clock()
            self._become(BreakerState.HALF_OPEN)

    def lost(self) -> None:
        """It is out of reach; its owner has not tried again yet."""
        if self._down_since is None:
            now = self._clock()
            self._down_since = self._waits_from = now
            if now - self._reached_at > self._limits.stable_after:
                self._pauses = 0

    def unreachable(self, reason: str) -> None:
        """Its owner could not reach it, or has lost it: it is to be tried again after `retry_in`."""
        self.lost()
        self._pause(reason, None)
        out_of_patience = (self.retry_at or 0.0) > (self._down_since or 0.0) + self._limits.call_waits
        if self.state is not BreakerState.CLOSED or out_of_patience:
            self._become(BreakerState.OPEN)

    def reachable(self) -> None:
        """Its owner has reached it. Whether it answers calls is another matter: the next failure opens it again."""
        if self._down_since is None:
            return
        if self.state is not BreakerState.CLOSED:
            self._failures = self._limits.failures - 1
            self._become(BreakerState.CLOSED)
        self._in_reach()

    def _in_reach(self) -> None:
        self._down_since, self._reached_at = None, self._clock()
        self.reason = self.retry_at = None

    def _pause(self, reason: str, wish: float | None) -> None:
        longest = self._limits.longest_pause
        pause = min(self._limits.first_pause * 2 ** min(self._pauses, 20), longest) * self._jitter()
        self.retry_at = self._clock() + max(pause, min(wish or 0.0, longest))
        self.reason = reason
        self._pauses += 1

    def _become(self, state: BreakerState) -> None:
        if state is not self.state:
            self.state = state
            self._epoch += 1
