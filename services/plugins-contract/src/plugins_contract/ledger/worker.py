"""The ledger as a worker uses it: start calls, report their progress, complete them. `renewals` holds their leases."""

from collections.abc import Sequence
from typing import Any

from redis.asyncio import Redis

from plugins_contract.encryption import Cipher
from plugins_contract.errors import ErrorCode
from plugins_contract.keys import Keys
from plugins_contract.ledger import replies, steps
from plugins_contract.ledger.renewals import RecentCompletions
from plugins_contract.ledger.scripts import (
    LOST_REPLY,
    Call,
    Command,
    Delivery,
    Held,
    Scripts,
    encode_reply,
    reply_to,
    unexpected,
)
from plugins_contract.messages import ExecutionClass, ToolCallRequested, arguments_hash, encode_request
from plugins_contract.outcomes import CallFinished, CallProgress, CallStarted, CallState, ToolOutcome

LEASE_MS = 10_000
"""How long the lease of a running call lasts after START or RENEW. All workers of a group must use the same."""
KNOWN_MS = 15_000
"""How long a worker must have been known before it starts a `once` call that was enqueued at another server: a server
that takes over from this one must know the worker too."""
STOPS_MS = 3_000
"""How long a server must have been known before a `once` call of another server is started there: engines write again
which calls they ended, which this server may have lost. They notice it within a second or so."""
_LARGE_REPLY = 16 * 1024
"""A larger reply is not kept: its call counts as ended, its result as lost."""


class WorkerLedger:
    """The ledger's side of one worker."""

    def __init__(self, redis: Redis, keys: Keys, cipher: Cipher) -> None:
        self._redis: Any = redis  # redis-py types its commands only partly
        self._scripts = Scripts(redis)
        self._keys = keys
        self._cipher = cipher
        self.recent = RecentCompletions()
        """The `once` calls that this worker ended last."""

    async def adopt(self, delivery: Delivery, *, timeout_ms: int) -> replies.Adoption:
        """Create the ledger entry of a request from another producer, once. Deadline 0 means `timeout_ms` from now.

        Returns NoLedger, as START does, for a call that may have been started before and whose entry is lost.
        """
        request = delivery.request
        answer = await self._scripts.run(
            steps.adopt(
                held=delivery.held(self._keys),
                call=self._keys.call(request.correlation_id),
                channel=request.response_channel,
                hash_=arguments_hash(request),
                class_=request.execution_class,
                deadline=request.deadline or "",
                timeout_ms=timeout_ms,
                mailbox=request.mailbox,
                server=request.server,
                tool=request.tool,
            )
        )
        match answer:
            case [b"ADOPTED", execution_class, deadline]:
                return replies.Adopted(ExecutionClass(execution_class.decode()), int(deadline))
            case [b"CONFLICT"]:
                return replies.Conflict()
            case [b"MISSING"]:
                return replies.NoLedger()
            case [b"NOT_OWNER"]:
                return replies.NothingToDo("another worker has it")
            case _:
                raise unexpected("ADOPT", answer)

    async def adopted_tool(self, correlation_id: str) -> tuple[str, str] | None:
        """Server and tool of a call that a worker has adopted; None for any other."""
        known = await self._redis.execute_command("HMGET", self._keys.call(correlation_id), "server", "tool")
        return (known[0].decode(), known[1].decode()) if known[0] else None

    async def start(
        self,
        delivery: Delivery,
        *,
        max_starts: int,
        expired: ToolOutcome,
        lease_ms: int = LEASE_MS,
        reported_at: str = "",
        known_ms: int = KNOWN_MS,
        stops_ms: int = STOPS_MS,
    ) -> replies.Started:
        """Record that the call is started, before any byte is sent to an MCP server.

        `reported_at` is the run id of the server at which this worker has reported (`report`): a `once` call is started
        at no other one. One that was enqueued at another server is started when every worker of the group has reported
        at this one, and is abandoned when one has not within a lease: that worker may have run it.

        A call past its deadline is completed with `expired` instead. A call that another worker runs under a valid
        lease, and that was delivered here because the group was lost, is handed back to that worker.

        An adopted call gets its `started` notice in the same step: with it ADOPT recognises a call whose ledger entry
        was lost after its start. Any other call gets it by `progress`, if it runs for long enough.
        """
        request = delivery.request
        answer = await self._scripts.run(
            steps.start(
                of=Call.of(request, self._keys),
                held=delivery.held(self._keys),
                workers=self._keys.workers,
                common=self._keys.requests,
                token=delivery.token,
                max_starts=max_starts,
                lease_ms=lease_ms,
                expired_reply=reply_to(request, CallFinished(expired), self._cipher),
                started_reply=b'{"kind":"started","attempt":' if delivery.adopted else b"",
                lost_reply=LOST_REPLY,
                reported_at=reported_at,
                known_ms=known_ms,
                stops_ms=stops_ms,
                requested_class=request.execution_class,
                limit=request.deadline,
            )
        )
        match answer:
            case [b"RUN", fence, starts]:
                return replies.Run(fence, starts)
            case [b"ABANDONED", fence, starts]:
                return replies.Abandoned(fence, starts)
            case [b"CANCELLED", fence, starts]:
                return replies.CancelledBefore(fence, starts)
            case [b"EXHAUSTED", fence, starts]:
                return replies.Exhausted(fence, starts)
            case [b"FINISHED", state]:
                return replies.NothingToDo(f"it is {state.decode()} already")
            case [b"EXPIRED"]:
                return replies.NothingToDo("its deadline has passed")
            case [b"NOT_OWNER"]:
                return replies.NothingToDo("another worker has it")
            case [b"MISSING"]:
                return replies.NoLedger()
            case [b"WAIT"]:
                return replies.NotYet()
            case _:
                raise unexpected("START", answer)

    async def progress(self, request: ToolCallRequested, fence: int, report: CallStarted | CallProgress) -> bool:
        """Write to the response channel that the call was started, or the tool's progress.

        False when another worker has the call.
        """
        answer = await self._scripts.run(
            steps.progress(
                of=Call.of(request, self._keys),
                fence=fence,
                reply=reply_to(request, report, self._cipher),
                kind="started" if isinstance(report, CallStarted) else "progress",
            )
        )
        return answer[0] == b"OK"

    async def complete(
        self, delivery: Delivery, fence: int, outcome: ToolOutcome, *, dead_reason: str = ""
    ) -> replies.Completed | replies.Stale | replies.Duplicate:
        """Make the call terminal: state, response, notification, XACK and XDEL in one step.

        With `dead_reason` the request is stored as a dead letter as well.
        """
        request = delivery.request

        def ended(state: CallState, reply: bytes) -> Command:
            return steps.complete(
                of=Call.of(request, self._keys),
                held=delivery.held(self._keys),
                dead=self._keys.dead,
                fence=fence,
                state=state,
                reply=reply,
                reason=dead_reason,
                event=encode_request(request) if dead_reason else b"",
            )

        reply = reply_to(request, CallFinished(outcome), self._cipher)
        command = ended(outcome.state, reply)
        answer = await self._scripts.run(command)
        match answer:
            case [b"OK"]:
                if request.execution_class is ExecutionClass.ONCE and not dead_reason:
                    large = len(reply) > _LARGE_REPLY
                    self.recent.add(ended(CallState.UNKNOWN, LOST_REPLY) if large else command)
                return replies.Completed()
            case [b"STALE"]:
                return replies.Stale()
            case [b"DUPLICATE", state]:
                return replies.Duplicate(CallState(state.decode()))
            case _:
                raise unexpected("COMPLETE", answer)

    async def release(self, delivery: Delivery, fence: int, *, lease_ms: int) -> replies.Completed | replies.Stale:
        """Give back a call that was provably not sent: the attempt does not count, and another worker takes it."""
        answer = await self._scripts.run(
            steps.release(
                call=self._keys.call(delivery.request.correlation_id),
                held=delivery.held(self._keys),
                fence=fence,
                lease_ms=lease_ms,
            )
        )
        return replies.Completed() if answer[0] == b"OK" else replies.Stale()

    async def pass_on(self, delivery: Delivery, *, to: str | None = None, lease_ms: int) -> bool:
        """Leave a call that has not started to the workers of the pool `to`, or, without one, to any, at once.

        False when START must decide instead.
        """
        correlation_id, entry, stream = delivery.request.correlation_id, delivery.entry, delivery.stream
        return await self.leave(correlation_id, entry, delivery.consumer, stream, to=to, lease_ms=lease_ms)

    async def leave(
        self, correlation_id: str, entry: str, consumer: str, stream: str, *, to: str | None, lease_ms: int
    ) -> bool:
        """The same for an entry whose request this release cannot read."""
        stream = stream or self._keys.requests
        answer = await self._scripts.run(
            steps.pass_(
                call=self._keys.call(correlation_id),
                held=Held(stream, entry, consumer),
                to=stream if to is None else self._keys.requests_of(to),
                id_=correlation_id,
                lease_ms=lease_ms,
            )
        )
        return answer[0] == b"OK"

    async def bury(
        self,
        entry: str,
        reason: str,
        event: bytes,
        correlation_id: str = "",
        *,
        code: ErrorCode = ErrorCode.UNKNOWN_ERROR,
        tool_call_id: str = "",
        enqueued: bool = True,
        channel: str = "",
        mailbox: str = "",
        stream: str = "",
    ) -> None:
        """Move an entry that cannot be handled to the dead letters, and end its call, if it is known, as dead.

        A request that was not `enqueued` by an engine is answered without a ledger entry too: in `channel` as well,
        with a notification in `mailbox`. `stream` is that of the entry, as in `Delivery`.
        """
        call, response = self._keys.call(correlation_id), self._keys.response(correlation_id)
        known = await self._redis.execute_command("HGET", call, "mailbox")
        outcome = ToolOutcome.failure(CallState.DEAD, code, f"it was not run: {reason}")
        await self._scripts.run(
            steps.bury(
                of=Call(call, response, known.decode() if known else mailbox or response, correlation_id, tool_call_id),
                requests=stream or self._keys.requests,
                entry=entry,
                dead=self._keys.dead,
                named=channel or response,
                reason=reason,
                event=event,
                reply=encode_reply(CallFinished(outcome)),
                state=outcome.state,
                enqueued=int(enqueued),
            )
        )

    async def retire(self, consumer: str, pools: Sequence[str] = (), *, lease_ms: int) -> bool:
        """Remove a consumer from the group, in these pools too.

        False when it still holds entries, which would be lost with it. Its worker must have ended:
        other workers may claim its entries at once, as if `lease_ms` had passed.
        """
        answer = await self._scripts.run(
            steps.retire(
                requests=self._keys.requests,
                workers=self._keys.workers,
                pools=[*map(self._keys.requests_of, pools)],
                consumer=consumer,
                free_ms=lease_ms + 1,
            )
        )
        return answer[0] == b"OK"
