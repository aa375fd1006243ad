"""Calls that a server answers too late for their deadline: a circuit for each tool and subject.

The arguments or the deadline of a call may explain why it was late, and both are its subject's. Such calls open this
circuit first, which refuses the calls of that subject to that tool, and nobody else's. The server's own circuit needs
late calls of several subjects: see `circuit_breaker`.
"""

from collections.abc import Callable

from plugins_mcp.mcp.circuit_breaker import CircuitBreaker, ConnectionPolicy, NoPermit, Permit

MAX_CIRCUITS = 1000
"""How many tools and subjects are remembered. A new one takes the place of the one that has been there for longest."""

Source = tuple[str, str]
"""A tool and a subject."""


class LateCalls:
    """The circuits of one server. Only those whose last call was late are kept; most of the time there is none."""

    def __init__(
        self, policy: ConnectionPolicy, *, new: Callable[[ConnectionPolicy], CircuitBreaker] = CircuitBreaker
    ) -> None:
        self._policy = policy
        self._new = new
        self.circuits: dict[Source, CircuitBreaker] = {}

    def admit(self, source: Source) -> Permit | NoPermit:
        """Decide on a call that is ready to be sent."""
        circuit = self.circuits.get(source)
        return circuit.admit() if circuit else Permit(0)

    def refusal(self, source: Source) -> NoPermit | None:
        """The refusal of a call that need not wait for anything; None when the call may try."""
        circuit = self.circuits.get(source)
        return circuit.refusal() if circuit else None

    def late(self, source: Source, permit: Permit, reason: str) -> None:
        """A call was not answered in its time."""
        if source not in self.circuits:
            if len(self.circuits) >= MAX_CIRCUITS:
                del self.circuits[next(iter(self.circuits))]
            self.circuits[source] = self._new(self._policy)
        self.circuits[source].failed(permit, reason)

    def answered(self, source: Source) -> None:
        """The server answered a call, or reported progress of it."""
        self.circuits.pop(source, None)

    def inconclusive(self, source: Source, permit: Permit) -> None:
        """A call ended in another way. If it was the probe, the next call is the probe."""
        if circuit := self.circuits.get(source):
            circuit.inconclusive(permit)
