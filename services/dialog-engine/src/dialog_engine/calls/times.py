"""How long others have to answer about a call."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ExecutorTimes:
    """How long others have to answer, in seconds."""

    grace: float = 2.0
    """A worker, after the deadline of a call."""
    cancel: float = 3.0
    """A worker, when the user stopped a call."""
    ask: float = 2.0
    """The ledger, when a call is ended."""


TIMES = ExecutorTimes()
