"""A bench for the ledger: one engine, any number of consumers, and a look at everything the scripts wrote."""

from dataclasses import dataclass, field
from typing import Any

from redis import Redis as SyncRedis

from plugins_contract.encryption import CLEAR
from plugins_contract.errors import ErrorCode
from plugins_contract.keys import GROUP, Keys
from plugins_contract.ledger import (
    LEASE_MS,
    SILENT_MS,
    Delivery,
    EngineLedger,
    WorkerLedger,
    decode_reply,
    renew_each,
    replies,
)
from plugins_contract.messages import ExecutionClass, ToolCallRequested, decode_request, encode_request, new_id
from plugins_contract.outcomes import CallReply, CallState, TextBlock, ToolOutcome
from tests.support.requests import ENGINE, requested
from tests.support.waiting import wait_until

MAX_STARTS = 3
MINUTE_MS = 60_000

EXPIRED = ToolOutcome.failure(CallState.EXPIRED, ErrorCode.TIMEOUT, "The deadline passed before it could start.")
CANCELLED = ToolOutcome.failure(CallState.CANCELLED, ErrorCode.CANCELLED, "The user cancelled it.")
LOST = ToolOutcome.failure(CallState.FAILED, ErrorCode.LOST, "Its request vanished.")
UNKNOWN = ToolOutcome.failure(CallState.UNKNOWN, ErrorCode.OUTCOME_UNKNOWN, "The worker was lost while it ran.")


def answered(text: str) -> ToolOutcome:
    return ToolOutcome(state=CallState.SUCCEEDED, content=(TextBlock(text),), duration_ms=1, attempts=1)


DONE = answered("done")


@dataclass(frozen=True, slots=True)
class Above:
    """Equal to every fence above this one: how far above depends on the time."""

    fence: int

    def __eq__(self, other: object) -> bool:
        return isinstance(other, int) and other > self.fence

    def __hash__(self) -> int:
        return hash(self.fence)


def above(fence: int) -> Any:
    """Any fence above this one."""
    return Above(fence)


@dataclass(frozen=True, slots=True)
class Pending:
    """One row of the group's pending list."""

    entry: str
    consumer: str
    idle_ms: int
    deliveries: int


@dataclass
class Bench:
    """Drives the ledger of one server as engine and as workers."""

    redis: Any  # an asyncio client: its own types are too partial to be of use here
    thread: SyncRedis
    keys: Keys = field(default_factory=Keys)

    @property
    def engine(self) -> EngineLedger:
        return EngineLedger(self.redis, self.keys, cipher=CLEAR)

    @property
    def worker(self) -> WorkerLedger:
        return WorkerLedger(self.redis, self.keys, cipher=CLEAR)

    async def now_ms(self) -> int:
        seconds, microseconds = await self.command("TIME")
        return int(seconds) * 1000 + int(microseconds) // 1000

    async def command(self, *words: Any) -> Any:
        return await self.redis.execute_command(*words)

    async def open(self) -> None:
        await self.command("XGROUP", "CREATE", self.keys.requests, GROUP, "0", "MKSTREAM")

    async def request(self, execution_class: str = "once", *, expires_in_ms: int = MINUTE_MS) -> ToolCallRequested:
        deadline, kind = await self.now_ms() + expires_in_ms, ExecutionClass(execution_class)
        return requested(self.keys, arguments={"a": 1, "b": [2, 3]}, deadline=deadline, execution_class=kind)

    async def queued(self, execution_class: str = "once", *, expires_in_ms: int = MINUTE_MS) -> ToolCallRequested:
        """A new call that stands in the stream."""
        request = await self.request(execution_class, expires_in_ms=expires_in_ms)
        await self.engine.enqueue(request)
        return request

    async def read(self, execution_class: str = "once", *, expires_in_ms: int = MINUTE_MS) -> Delivery:
        """A new call that consumer `a` has read and not started."""
        await self.queued(execution_class, expires_in_ms=expires_in_ms)
        return await self.deliver("a")

    async def next_delivery(self, consumer: str, stream: str = "") -> Delivery | None:
        """The next undelivered request of the stream, delivered to `consumer`."""
        rows = await self.redis.xreadgroup(GROUP, consumer, {stream or self.keys.requests: ">"}, count=1)
        return _delivery(rows[0][1], consumer, stream) if rows else None

    async def deliver(self, consumer: str = "a", stream: str = "") -> Delivery:
        """The same where there must be one."""
        delivery = await self.next_delivery(consumer, stream)
        assert delivery, "nothing to read"
        return delivery

    async def claim_entry(self, entry: str, consumer: str) -> Delivery:
        """Another consumer takes an entry over, as a sweep does once the lease has run out."""
        return _delivery(await self.redis.xclaim(self.keys.requests, GROUP, consumer, 0, [entry]), consumer)

    async def claim(self, delivery: Delivery, consumer: str) -> Delivery:
        return await self.claim_entry(delivery.entry, consumer)

    async def consumers(self) -> dict[str, int]:
        """The consumers of the group, and how many entries each holds."""
        rows = await self.redis.xinfo_consumers(self.keys.requests, GROUP)
        return {row["name"].decode(): row["pending"] for row in rows}

    async def age(self, delivery: Delivery, ms: int = 6 * LEASE_MS) -> None:
        """Let the entry look as if its consumer had not been heard of for so long."""
        entry, consumer = delivery.entry, delivery.consumer
        await self.redis.xclaim(self.keys.requests, GROUP, consumer, 0, [entry], idle=ms, justid=True)

    async def sweep(self, consumer: str) -> list[str]:
        """The entries that a sweep for overdue leases hands to `consumer`."""
        entries = await self.redis.xautoclaim(self.keys.requests, GROUP, consumer, LEASE_MS, justid=True)
        return [entry.decode() for entry in entries]

    async def start(
        self, delivery: Delivery, *, max_starts: int = MAX_STARTS, lease_ms: int = LEASE_MS
    ) -> replies.Started:
        return await self.worker.start(delivery, max_starts=max_starts, expired=EXPIRED, lease_ms=lease_ms)

    async def run(self, delivery: Delivery) -> int:
        """START, which must say RUN; the fence."""
        match await self.start(delivery):
            case replies.Run(fence, _):
                return fence
            case other:
                raise AssertionError(f"START said {other}")

    async def running(self, execution_class: str = "once", consumer: str = "a") -> tuple[Delivery, int]:
        """A new call that `consumer` has started, and its fence."""
        await self.queued(execution_class)
        delivery = await self.deliver(consumer)
        return delivery, await self.run(delivery)

    def renew(self, delivery: Delivery, fence: int) -> replies.Renewed | replies.Stale:
        """RENEW, on the connection of a thread."""
        (answer,) = renew_each(self.thread, self.keys, [(delivery, fence)])
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def cancel(
        self, request: ToolCallRequested, outcome: ToolOutcome = CANCELLED, *, unseen: ToolOutcome | None = None
    ) -> replies.Cancelled:
        return await self.engine.cancel(request, outcome, unseen=unseen)

    async def audit(
        self, *requests: ToolCallRequested, silent_ms: int = SILENT_MS
    ) -> list[bytes | replies.Loss | None]:
        ids = [request.correlation_id for request in requests]
        said = dict(await self.engine.audit(ids, silent_ms=silent_ms))
        return [said.get(correlation_id) for correlation_id in ids]

    async def ledger(self, request: ToolCallRequested) -> dict[str, str]:
        fields: dict[bytes, bytes] = await self.redis.hgetall(self.keys.call(request.correlation_id))
        return {name.decode(): value.decode() for name, value in fields.items()}

    async def channel(self, request: ToolCallRequested) -> list[CallReply]:
        rows = await self.redis.xrange(request.response_channel)
        return [decode_reply(fields[b"reply"], cipher=CLEAR) for _, fields in rows]

    async def entries(self, request: ToolCallRequested) -> list[dict[str, str]]:
        """The entries of the response channel of a call, as they stand there."""
        rows = await self.redis.xrange(request.response_channel)
        return [{name.decode(): value.decode() for name, value in fields.items()} for _, fields in rows]

    async def submit(self, request: ToolCallRequested) -> None:
        """Put a request on the stream as another producer does, which knows no ledger."""
        await self.redis.xadd(self.keys.requests, {"event": encode_request(request)})

    async def adopt(self, delivery: Delivery, *, timeout_ms: int = MINUTE_MS) -> replies.Adoption:
        return await self.worker.adopt(delivery, timeout_ms=timeout_ms)

    async def mailbox(self) -> list[tuple[str, bytes]]:
        """The mailbox of the engine: correlation id and payload."""
        rows = await self.redis.xrange(self.keys.mailbox(ENGINE))
        return [(fields[b"id"].decode(), fields[b"reply"]) for _, fields in rows]

    async def backlog(self) -> int:
        """How many requests the stream holds."""
        return await self.redis.xlen(self.keys.requests)

    async def regroup(self) -> None:
        """The group is lost with its pending list, and made anew from the start of the stream."""
        await self.redis.xgroup_destroy(self.keys.requests, GROUP)
        await self.command("XGROUP", "CREATE", self.keys.requests, GROUP, "0", "MKSTREAM")

    async def flush(self) -> None:
        await self.redis.flushall()
        await self.a_moment()

    async def a_moment(self) -> None:
        """Fences and entry ids are distinguished by the time: what comes next comes some milliseconds later."""
        now = await self.now_ms()

        async def passed() -> bool:
            return await self.now_ms() > now + 3

        await wait_until(passed)

    async def forget(self, request: ToolCallRequested) -> None:
        """The ledger entry of a call is lost."""
        await self.redis.delete(self.keys.call(request.correlation_id))

    async def pending(self) -> list[Pending]:
        rows = await self.redis.xpending_range(self.keys.requests, GROUP, "-", "+", 1000)
        return [
            Pending(
                row["message_id"].decode(),
                row["consumer"].decode(),
                row["time_since_delivered"],
                row["times_delivered"],
            )
            for row in rows
        ]

    async def dead_letters(self) -> list[dict[str, str]]:
        rows = await self.redis.xrange(self.keys.dead)
        return [{name.decode(): value.decode() for name, value in fields.items()} for _, fields in rows]


def _delivery(rows: list[tuple[bytes, dict[bytes, bytes]]], consumer: str, stream: str = "") -> Delivery:
    ((entry, fields),) = rows
    request = decode_request(fields[b"event"])
    return Delivery(request, entry.decode(), consumer, new_id(), b"ledger" not in fields, stream)
