"""Whether a client waits for what a task does.

A client gets an error within a second and tries again; work of the engine's own rather bridges a short outage. The
tasks that a request starts inherit its wait, which ends for all of them when the answer begins.
"""

from contextvars import ContextVar


class ClientWait:
    """The wait of the client of one request."""

    __slots__ = ("over",)

    def __init__(self) -> None:
        self.over = False


_current: ContextVar[ClientWait | None] = ContextVar("client wait", default=None)


def begin_client_wait() -> ClientWait:
    """From now on a client waits for this task. Whoever answers the client sets `over`."""
    _current.set(wait := ClientWait())
    return wait


def client_waits() -> bool:
    """Whether a client waits for this task."""
    wait = _current.get()
    return wait is not None and not wait.over
