"""What the proxy can do to what passes through it, and what it has counted."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Faults:
    """What happens to every connection, existing and new. As it is made here, nothing."""

    delay_replies: float = 0
    """Seconds by which what the server sends is late."""
    bytes_per_second: float = 0
    """The most that passes in each direction of each connection; 0 is no limit."""
    hold_requests: bool = False
    """What clients send goes nowhere, the end of a connection included, until this ends: then it arrives, late."""
    hold_replies: bool = False
    """The same for what the server sends. Both together are a black hole: connections open, and then silence."""
    refuse: bool = False
    """No process listens: new connections are refused."""
    lose_share: float = 0
    """The share of commands, 0 to 1, whose reply is lost."""
    lose_first_of_each: bool = False
    """The first reply to each kind of command is lost."""


NO_FAULTS = Faults()
BLACK_HOLE = Faults(hold_requests=True, hold_replies=True)


class Break:
    """End the open connections."""


@dataclass(frozen=True)
class Counts:
    """What has passed since the start. The kind of a command is its name; of a script, with its SHA-1."""

    by_kind: Mapping[str, int] = field(default_factory=dict[str, int])
    """Commands, by kind."""
    lost: Mapping[str, int] = field(default_factory=dict[str, int])
    """Replies that were lost, by the kind of their command."""
