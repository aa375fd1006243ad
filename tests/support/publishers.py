"""What a mailbox needs of a relay, for tests that have none."""

from collections.abc import Callable, Collection

from dialog_engine.calls.mailbox import Publisher


class FakePublisher(Publisher):
    """Nothing is unmarked and every notification is ignored, unless a test says otherwise."""

    def __init__(
        self,
        begun: Callable[[str], None] = lambda _: None,
        unmarked: Callable[[], Collection[str]] = frozenset[str],
    ) -> None:
        self._begun = begun
        self._unmarked = unmarked

    def begun(self, correlation_id: str) -> None:
        self._begun(correlation_id)

    def unmarked(self) -> Collection[str]:
        return self._unmarked()
