"""What a transport learns about one tool call while it carries it.

A call's fate is decided where its bytes leave, several tasks away from the caller. A context variable goes with the
message: the SDK runs every request in a copy of its sender's context, so the facts reach the right call without ids.
"""

from contextvars import ContextVar
from dataclasses import dataclass

from plugins_mcp.mcp.calls import CallResult


@dataclass(eq=False, slots=True)
class Flight:
    """The facts about one call, written by the transport and read when the call ends.

    `sent`: a byte of it may have left. `rounds`: how often the SDK asked; more than one when the server wanted input.
    `answered`: an answer came, and the SDK asked for something else because of it. `finding`: what HTTP itself said.
    """

    sent: bool = False
    rounds: int = 0
    answered: bool = False
    finding: CallResult | None = None


@dataclass(frozen=True, slots=True)
class Cargo:
    """One message on its way out. `flight` is set for a tool call; `expects_answer` is false for notifications."""

    flight: Flight | None = None
    expects_answer: bool = True


flying: ContextVar[Flight | None] = ContextVar("flying", default=None)
"""The call on whose behalf the current task talks to the SDK."""

_NOTHING = Cargo()
cargo: ContextVar[Cargo] = ContextVar("cargo", default=_NOTHING)
"""The message that the current task carries to the server."""
