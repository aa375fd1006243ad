"""What the tests of the engine's adapters share: stand-ins for what lies on the other side of a port."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

from dialog_engine.chat.outbox import Outbox, OutboxRow
from plugins_contract.ids import new_id
from plugins_contract.keys import Keys
from plugins_contract.messages import EVENT_TYPE, ExecutionClass, ToolCallRequested, encode_request

ENGINE = "engine-1"
MINUTE_MS = 60_000


@asynccontextmanager
async def at_work(*loops: Callable[[], Coroutine[Any, Any, None]]) -> AsyncGenerator[list[asyncio.Task[None]]]:
    """Loops that run for ever run for as long as the block; one that fails fails the test."""
    tasks = [asyncio.create_task(run()) for run in loops]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        failures = [each for each in ended if isinstance(each, Exception)]
        if failures:
            raise ExceptionGroup("loops failed", failures)


def request(
    deadline: int, *, keys: Keys | None = None, tool: str = "add", correlation_id: str = ""
) -> ToolCallRequested:
    """A tool call of engine-1 that nobody has seen yet."""
    keys = keys or Keys()
    correlation_id = correlation_id or new_id()
    return ToolCallRequested(
        correlation_id=correlation_id,
        session_id="session",
        turn_id="turn",
        turn=1,
        tool_call_id="call_1",
        tool_name=f"demo__{tool}",
        server="demo",
        tool=tool,
        arguments={"a": 1},
        response_channel=keys.response(correlation_id),
        mailbox=keys.mailbox(ENGINE),
        deadline=deadline,
        execution_class=ExecutionClass.ONCE,
        subject="somebody",
    )


class MemoryOutbox(Outbox):
    """The in-process twin of the outbox table. Times are seconds on the loop's clock."""

    def __init__(self) -> None:
        self.rows: dict[int, OutboxRow] = {}
        self.marked: list[OutboxRow] = []
        self.postponed: list[tuple[int, str, int]] = []
        self.failure: Exception | None = None
        self.looks = 0
        self._next_at: dict[int, float] = {}

    def add(self, event_type: str, event_id: str, payload: bytes) -> OutboxRow:
        """Commit a row."""
        row = OutboxRow(len(self.rows) + 1, event_type, event_id, payload)
        self.rows[row.seq] = row
        return row

    def call(self, event: ToolCallRequested) -> OutboxRow:
        """Commit the row of a tool call."""
        return self.add(EVENT_TYPE, event.correlation_id, encode_request(event))

    @property
    def left(self) -> list[int]:
        """The rows that are not marked."""
        marked = {row.seq for row in self.marked}
        return [seq for seq in self.rows if seq not in marked]

    async def waiting(self, limit: int) -> Sequence[OutboxRow]:
        self.looks += 1
        now = asyncio.get_running_loop().time()
        due = [self.rows[seq] for seq in self.left if self._next_at.get(seq, 0.0) <= now]
        return sorted(due, key=lambda row: (self._next_at.get(row.seq, 0.0), row.seq))[:limit]

    async def published(self, rows: Sequence[OutboxRow]) -> None:
        if self.failure is not None:
            raise self.failure
        self.marked += rows

    async def postpone(self, row: OutboxRow, error: str, retry_in_ms: int) -> None:
        self.postponed.append((row.seq, error, retry_in_ms))
        self.rows[row.seq] = OutboxRow(row.seq, row.event_type, row.event_id, row.payload, row.attempts + 1)
        self._next_at[row.seq] = asyncio.get_running_loop().time() + retry_in_ms / 1000
