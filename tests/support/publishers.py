"""What a mailbox needs of a relay, for tests that have none."""

from collections.abc import Callable, Collection

from dialog_engine.calls.mailbox import Publisher
from dialog_engine.chat.outbox import OutboxRow
from plugins_contract.ledger import NEVER_OFFERED


class FakePublisher(Publisher):
    """Nothing is unmarked and every notification is ignored, unless a test says otherwise."""

    def __init__(
        self, begun: Callable[[str], None] = lambda _: None, unmarked: Callable[[], Collection[str]] = frozenset[str]
    ) -> None:
        self._begun = begun
        self._unmarked = unmarked

    def begun(self, correlation_id: str) -> None:
        self._begun(correlation_id)

    def unmarked(self) -> Collection[str]:
        return self._unmarked()

    def offered_to(self, row: OutboxRow) -> str:
        return row.offered_to or NEVER_OFFERED
