"""The outbox: events that are committed and not yet where they belong. Storage keeps it, the relay empties it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class OutboxRow:
    """An event on its way. `attempts` counts failed publications."""

    seq: int
    event_type: str
    event_id: str
    payload: bytes
    attempts: int = 0


OfferRows = Callable[[Sequence[OutboxRow]], None]
"""Told of outbox rows of this engine as soon as they are committed."""


class Outbox(Protocol):
    """The rows that wait."""

    async def waiting(self, limit: int, *, after: int = 0) -> Sequence[OutboxRow]:
        """The oldest rows behind number `after` that are not published, then those put off whose time has come."""
        ...

    async def calls(self, correlation_ids: Sequence[str]) -> Sequence[OutboxRow]:
        """The rows of these tool calls, as far as they are there and not published."""
        ...

    async def unanswered(self) -> Sequence[OutboxRow]:
        """The rows of tool calls that were published and have no answer yet."""
        ...

    async def published(self, rows: Sequence[OutboxRow]) -> None:
        """They are where they belong. A tool call's row stays, marked, until the call is answered."""
        ...

    async def postpone(self, row: OutboxRow, error: str, retry_in_ms: int) -> None:
        """This row could not be published; others are not held up by it."""
        ...
