"""What the executor and the relay report about tool calls. Observers count, log and trace; this one does nothing."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

from plugins_contract.ledger.replies import Loss
from plugins_contract.messages import ToolCallRequested
from plugins_contract.outcomes import ToolOutcome


class CallObserver:
    """Takes the facts of one engine's tool calls. Its methods must not block and must not raise."""

    def requested(self, request: ToolCallRequested) -> None:
        """The call is committed, and waited for from now on."""

    def publishing(self, requests: Sequence[ToolCallRequested]) -> AbstractContextManager[object]:
        """The calls are being put on the stream while the context is open."""
        return nullcontext()

    def enqueued(self, request: ToolCallRequested, entry: str, backlog: int) -> None:
        """The call is on the stream as `entry`, behind `backlog` others."""

    def refused(self, correlation_id: str, reason: str, detail: str) -> None:
        """The call is not on the stream: `reason` is overloaded, conflict or error."""

    def lost(self, request: ToolCallRequested, loss: Loss) -> None:
        """Redis has lost something of the call."""

    def finished(self, request: ToolCallRequested, outcome: ToolOutcome, seconds: float | None = None) -> None:
        """The call has its outcome, after it was waited for `seconds`; None for a call of an earlier life."""
