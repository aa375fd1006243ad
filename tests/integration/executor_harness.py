"""An executor with its mailbox on a real Redis, the operations of a worker, and tasks that wait for calls."""

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import aclosing
from typing import Any

import msgspec
from redis import Redis as SyncRedis

from callstream_runtime.clock import RedisClock, RedisWatch
from callstream_runtime.connections import blocking_client, command_client
from dialog_engine.calls.executor import CallExecutor
from dialog_engine.calls.large_results import LargeResults, LargeResultStore
from dialog_engine.calls.mailbox import BLOCK_SECONDS, Mailbox, MailboxTimes
from dialog_engine.calls.recent_ends import RecentEnds
from dialog_engine.calls.subscriptions import BlockedCalls, Subscriptions
from dialog_engine.calls.times import TIMES, ExecutorTimes
from dialog_engine.model import CallAnswered, CallUpdate
from dialog_engine.peers.catalog import DisabledTools
from dialog_engine.tool_calls.ports import ServerView
from plugins_contract.catalog import ServerCatalog, ServerState
from plugins_contract.encryption import CLEAR
from plugins_contract.errors import ErrorCode
from plugins_contract.keys import Keys
from plugins_contract.ledger import EngineLedger
from plugins_contract.messages import ExecutionClass, ToolCallRequested
from plugins_contract.outcomes import CallState, ToolOutcome
from plugins_contract.signing import RequestKeys
from tests.integration.engines import ENGINE, MemoryOutbox, request
from tests.support.ledger import Bench
from tests.support.publishers import FakePublisher


class Workers(DisabledTools):
    """The number of workers for the server `demo`."""

    def __init__(self) -> None:
        self.there = 1

    @property
    def servers(self) -> tuple[ServerView, ...]:
        return (ServerView(ServerCatalog(server="demo"), ServerState.READY, None, self.there),)


class NoResults(LargeResultStore):
    """No worker sends one."""

    async def keep(self, correlation_id: str, fence: int, digest: str, data: bytes) -> bool:
        return False

    async def fetch(self, correlation_id: str, digest: str) -> bytes | None:
        return None


class Harness:
    """An executor with its mailbox, and the operations of a worker."""

    def __init__(
        self,
        url: str,
        times: ExecutorTimes = TIMES,
        calls: Subscriptions | None = None,
        mailbox_times: MailboxTimes = MailboxTimes(),
    ) -> None:
        self.keys = Keys()
        self.redis: Any = command_client(url)
        self.blocking = blocking_client(url, block_seconds=BLOCK_SECONDS)
        self.thread = SyncRedis.from_url(url)
        self.clock = RedisClock()
        self.outbox = MemoryOutbox()
        self.calls = Subscriptions() if calls is None else calls
        self.unmarked: Callable[[], Collection[str]] = frozenset
        self.mailbox = Mailbox(
            self.blocking,
            self.redis,
            self.keys,
            ENGINE,
            self.outbox,
            self.calls,
            publisher=FakePublisher(unmarked=self._unmarked),
            cipher=CLEAR,
            times=mailbox_times,
        )
        self.ledger = EngineLedger(self.redis, self.keys, cipher=CLEAR)
        self.watch = RedisWatch(self.redis, self.keys, self.clock)
        self.workers = Workers()
        self.blocked = BlockedCalls(self.watch, self.workers)
        self.ended = RecentEnds(self.ledger, self.watch)
        self.executor = self.executor_with(times)
        self.bench = Bench(self.redis, self.thread)

    def executor_with(self, times: ExecutorTimes) -> CallExecutor:
        return CallExecutor(
            self.ledger,
            self.calls,
            self.mailbox,
            self.blocked,
            self.keys,
            self.clock,
            self.ended,
            LargeResults(NoResults(), RequestKeys(), CLEAR, reachable=False),
            default_timeout_ms=30_000,
            cipher=CLEAR,
            times=times,
        )

    def _unmarked(self) -> Collection[str]:
        return self.unmarked()

    def request(self, in_ms: int = 60_000, *, execution_class: str = "once") -> ToolCallRequested:
        """A call that is committed, and not published."""
        call = request(self.clock.now_ms() + in_ms)
        call = msgspec.structs.replace(call, execution_class=ExecutionClass(execution_class))
        self.outbox.call(call)
        return call

    async def publish(self, *requests: ToolCallRequested) -> None:
        """As the relay does."""
        for each in requests:
            self.calls.enqueued(each.correlation_id, await self.ledger.enqueue(each))
        await self.outbox.published(await self.outbox.calls([each.correlation_id for each in requests]))

    def long_steady(self, seconds: float = 60) -> None:
        """As if Redis had answered for so long, every second."""
        now, there = time.monotonic(), round(time.time())
        self.watch.available = False
        for ago in range(round(seconds), -1, -1):
            self.watch.sample((there - ago, 0), now - ago, now - ago)
            self.watch.available = True

    def run(self, *requests: ToolCallRequested) -> "Waiter":
        return Waiter(self.executor, requests)

    async def aclose(self) -> None:
        self.thread.close()
        await self.redis.aclose()
        await self.blocking.aclose()


class Waiter:
    def __init__(self, executor: CallExecutor, requests: Sequence[ToolCallRequested]) -> None:
        self.updates: list[CallUpdate] = []
        self.task = asyncio.create_task(self._run(executor, requests))

    async def _run(self, executor: CallExecutor, requests: Sequence[ToolCallRequested]) -> None:
        async with aclosing(executor.run(requests)) as updates:
            async for update in updates:
                self.updates.append(update)

    async def outcomes(self) -> list[ToolOutcome]:
        """All answers, once every call has its own."""
        async with asyncio.timeout(15):
            await self.task
        return [update.outcome for update in self.updates if isinstance(update, CallAnswered)]

    async def outcome(self) -> ToolOutcome:
        [outcome] = await self.outcomes()
        return outcome


def truth(outcome: ToolOutcome) -> tuple[CallState, ErrorCode | None]:
    """What a call was said to have come to."""
    return outcome.state, outcome.error.code if outcome.error else None
