"""Whether a client waits for what a task does.

A client gets an error within a second and tries again; work of the engine's own rather bridges a short outage. The
tasks that a request starts inherit its wait, which ends for all of them when the answer begins.
"""

from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(slots=True)
class ClientWait:
    """The wait of the client of one request. Whoever answers the client sets `over`."""

    over: bool = False


client_wait: ContextVar[ClientWait | None] = ContextVar("client wait", default=None)
"""That of the client that waits for the current task."""


def client_waits() -> bool:
    """Whether a client waits for this task."""
    wait = client_wait.get()
    return wait is not None and not wait.over
