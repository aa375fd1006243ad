"""Putting back what Redis has lost, whatever happens while it is done."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from redis.asyncio import Redis

from dialog_engine.chat.journal import Change, JournalEntry, JournalTable, SharedVersions
from dialog_engine.errors import StorageUnavailableError
from dialog_engine.streams.reseeding import AT_ONCE, Reseeding
from dialog_engine.streams.runs import RedisRuns
from plugins_contract.keys import Keys

pytestmark = pytest.mark.anyio
KEYS = Keys()
TTL = 1000


class Table(JournalTable):
    """Idle sessions. `on_read` is told of each that is read."""

    def __init__(self, sessions: int) -> None:
        self.sessions = [f"session-{n}" for n in range(sessions)]
        self.read: list[str] = []
        self.failure: Exception | None = None
        self.on_read: Any = None

    async def idle_since(self, at: int, limit: int) -> Sequence[str]:
        return self.sessions[:limit]

    async def ended(self, session_id: str) -> Change | None:
        self.read.append(session_id)
        if self.on_read:
            await self.on_read(len(self.read))
        if self.failure:
            raise self.failure
        return Change(subject="ada", created_at=1, updated_at=2, rows={"turn:1": msgspec.Raw(b"{}")})

    async def waiting(self, after: int, limit: int) -> Sequence[JournalEntry]:
        raise NotImplementedError

    async def shared(self, entries: Sequence[JournalEntry], versions: Sequence[SharedVersions]) -> None:
        raise NotImplementedError

    async def whole(self, session_id: str) -> Change | None:
        raise NotImplementedError


@pytest.fixture
def table() -> Table:
    return Table(AT_ONCE + 3)


@pytest.fixture
def reseeding(table: Table, redis: Redis) -> Reseeding:
    return Reseeding(table, redis, KEYS, RedisRuns(redis, KEYS, "one", ttl_seconds=TTL), ttl_seconds=TTL)


async def there(redis: Redis) -> int:
    """How many sessions Redis knows."""
    return len(await redis.keys(KEYS.session("*")))


async def test_it_is_done_once_and_again_when_redis_has_lost_its_data(
    reseeding: Reseeding, table: Table, redis: Redis
) -> None:
    for life in (1, 2):
        for _ in range(3):
            await reseeding.look()
            assert len(table.read) == life * len(table.sessions)
        assert await there(redis) == len(table.sessions)
        await redis.flushall()


async def test_what_is_lost_while_it_is_put_back_is_put_back_too(
    reseeding: Reseeding, table: Table, redis: Redis
) -> None:
    async def lose(reads: int) -> None:
        if reads == AT_ONCE + 1:
            await redis.flushall()

    table.on_read = lose
    await reseeding.look()
    assert await there(redis) == len(table.sessions) - AT_ONCE
    await reseeding.look()
    assert await there(redis) == len(table.sessions)


async def test_what_was_begun_and_not_done_is_begun_again(reseeding: Reseeding, table: Table, redis: Redis) -> None:
    table.failure = StorageUnavailableError("the disk is away")
    with pytest.raises(StorageUnavailableError):
        await reseeding.look()
    table.failure = None
    await reseeding.look()
    assert await there(redis) == len(table.sessions)
