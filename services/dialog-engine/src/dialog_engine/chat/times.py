"""How often running turns are looked after."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TurnTimes:
    """The times of running turns, in seconds."""

    check: float = 1.0
    """How often it is checked whether the credentials that began the running turns are revoked."""
    finish_retry: float = 2.0
    """How often the end of a turn is committed again while the store is unavailable."""
    look: float = 1.0
    """How often messages that wait and may begin, and parked turns that go on, are looked for."""
