"""How patient and how eager the owner of a server is."""

from dataclasses import dataclass

from plugins_mcp.mcp.breaker import Limits


@dataclass(frozen=True)
class Pace:
    """All in seconds."""

    first_delay: float = 0.5
    """Before a server that was lost is tried again; each further try waits twice as long."""
    longest_delay: float = 30.0
    stable_after: float = 30.0
    """A server that was in reach this long starts the delays from the first again."""
    call_waits: float = 5.0
    """How long after the loss of a connection calls wait for the next one."""
    failures: int = 5
    """So many calls in a row without an answer, and calls are refused for a while."""
    relist_every: float = 300.0
    """Notifications of changes are lost now and then: a legacy HTTP stream may go silent for good."""
    relist_gap: float = 0.5
    """Between two listings, whatever the server says."""
    list_within: float = 30.0
    drain: float = 2.0
    """How long calls on a lost session may still end by themselves."""

    def limits(self) -> Limits:
        """What of it concerns the circuit breaker."""
        return Limits(self.failures, self.first_delay, self.longest_delay, self.call_waits, self.stable_after)
