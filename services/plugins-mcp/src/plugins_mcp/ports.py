"""What the handler tells those who count."""

from typing import Protocol

from plugins_contract.messages import ToolCallRequested
from plugins_contract.outcomes import ToolOutcome


class Observer(Protocol):
    """Takes facts. It must not wait and must not raise."""

    def finished(self, request: ToolCallRequested, outcome: ToolOutcome) -> None:
        """A call was made terminal by this worker."""
        ...

    def retried(self, request: ToolCallRequested) -> None:
        """A call that is safe to repeat is run again."""
        ...

    def lease_lost(self, request: ToolCallRequested) -> None:
        """A running call was given up, because another worker may have it by now."""
        ...
