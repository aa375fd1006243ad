"""The ledger as a worker uses it: begin calls, keep them, report, end them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from plugins_contract.errors import ErrorCode
from plugins_contract.keys import GROUP, Keys
from plugins_contract.ledger import replies, scripts
from plugins_contract.ledger.scripts import LOST_REPLY, encode_reply, unexpected
from plugins_contract.messages import ExecutionClass, ToolCallRequested, arguments_hash, encode_request
from plugins_contract.outcomes import CallFinished, CallProgress, CallState, ToolOutcome

LEASE_MS = 10_000
"""How long a worker's word that it runs a call holds. All workers of a group must have the same."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """One entry of the request stream in the hands of one consumer. `token` is unique to this delivery."""

    request: ToolCallRequested
    entry: str
    consumer: str
    token: str


class WorkerLedger:
    """The worker's side: begin, report, end."""

    def __init__(self, redis: scripts.AsyncCommands, keys: Keys) -> None:
        self._redis = redis
        self._keys = keys

    async def adopt(self, delivery: Delivery, *, timeout_ms: int) -> replies.Adoption:
        """Give a request of another producer its ledger, once; with deadline 0 it gets `timeout_ms` from now on.

        What is not known of a call that may have been begun before is lost, as in START.
        """
        request = delivery.request
        answer = await scripts.run(
            self._redis,
            "adopt",
            [self._keys.call(request.correlation_id), self._keys.requests, request.response_channel],
            [
                GROUP,
                delivery.consumer,
                delivery.entry,
                arguments_hash(request.tool_name, request.arguments),
                request.execution_class,
                request.deadline or "",
                timeout_ms,
                request.mailbox,
                request.server,
                request.tool,
            ],
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
        """Server and tool of a call that some worker has adopted."""
        known = await self._redis.execute_command("HMGET", self._keys.call(correlation_id), "server", "tool")
        return (known[0].decode(), known[1].decode()) if known[0] else None

    async def start(
        self, delivery: Delivery, *, max_starts: int, expired: ToolOutcome, lease_ms: int = LEASE_MS
    ) -> replies.Started:
        """The durable mark before any byte goes to an MCP server.

        A call past its deadline is answered with `expired` instead. One that runs elsewhere under a living lease, and
        comes here because the group was lost, goes back there.
        """
        request = delivery.request
        answer = await scripts.run(
            self._redis,
            "start",
            self._call_keys(request),
            [
                request.correlation_id,
                GROUP,
                delivery.consumer,
                delivery.entry,
                delivery.token,
                max_starts,
                encode_reply(CallFinished(expired)),
                b'{"kind":"started","attempt":',
                lease_ms,
                request.tool_call_id,
                LOST_REPLY,
            ],
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
            case _:
                raise unexpected("START", answer)

    async def progress(self, request: ToolCallRequested, fence: int, progress: CallProgress) -> bool:
        """Pass on the tool's progress. Returns False when the call is no longer ours."""
        answer = await scripts.run(
            self._redis,
            "progress",
            [self._keys.call(request.correlation_id), request.response_channel, _mailbox(request)],
            [request.correlation_id, fence, encode_reply(progress), request.tool_call_id],
        )
        return answer[0] == b"OK"

    async def complete(
        self, delivery: Delivery, fence: int, outcome: ToolOutcome, *, dead_reason: str = ""
    ) -> replies.Completed | replies.Stale | replies.Duplicate:
        """Make the call terminal: state, response, doorbell, XACK and XDEL in one step.

        With `dead_reason` the request is kept among the dead letters as well.
        """
        request = delivery.request
        answer = await scripts.run(
            self._redis,
            "complete",
            [*self._call_keys(request), self._keys.dead],
            [
                request.correlation_id,
                GROUP,
                delivery.entry,
                fence,
                outcome.state,
                encode_reply(CallFinished(outcome)),
                dead_reason,
                encode_request(request) if dead_reason else b"",
                delivery.consumer,
                request.tool_call_id,
            ],
        )
        match answer:
            case [b"OK"]:
                return replies.Completed()
            case [b"STALE"]:
                return replies.Stale()
            case [b"DUPLICATE", state]:
                return replies.Duplicate(CallState(state.decode()))
            case _:
                raise unexpected("COMPLETE", answer)

    async def release(self, delivery: Delivery, fence: int, *, lease_ms: int) -> replies.Completed | replies.Stale:
        """Give a call back that was provably not sent: the attempt does not count, another worker takes it."""
        answer = await scripts.run(
            self._redis,
            "release",
            [self._keys.call(delivery.request.correlation_id), self._keys.requests],
            [GROUP, delivery.consumer, delivery.entry, fence, lease_ms],
        )
        return replies.Completed() if answer[0] == b"OK" else replies.Stale()

    async def pass_on(self, delivery: Delivery, *, lease_ms: int) -> bool:
        """Leave a call that has not begun to other workers, who find it at once. False when START is to be asked."""
        answer = await scripts.run(
            self._redis,
            "pass",
            [self._keys.call(delivery.request.correlation_id), self._keys.requests],
            [GROUP, delivery.consumer, delivery.entry, lease_ms],
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
    ) -> None:
        """Move an entry that cannot be handled to the dead letters. When its call is known, it is answered so.

        One that was not `enqueued` by an engine is answered though no ledger knows it: in `channel` as well, and with a
        ring in `mailbox`.
        """
        call, response = self._keys.call(correlation_id), self._keys.response(correlation_id)
        known = await self._redis.execute_command("HGET", call, "mailbox")
        outcome = ToolOutcome.failure(CallState.DEAD, code, f"it was not run: {reason}")
        await scripts.run(
            self._redis,
            "bury",
            [
                self._keys.requests,
                self._keys.dead,
                call,
                response,
                known.decode() if known else mailbox or response,
                channel or response,
            ],
            [
                GROUP,
                entry,
                reason,
                event,
                correlation_id,
                encode_reply(CallFinished(outcome)),
                outcome.state,
                tool_call_id,
                int(enqueued),
            ],
        )

    async def retire(self, consumer: str, *, lease_ms: int) -> bool:
        """Take a consumer out of the group. False when it still holds entries: they would be lost with it.

        Its worker must have ended: what it holds is free for others at once, as if a lease of `lease_ms` had run out.
        """
        answer = await scripts.run(self._redis, "retire", [self._keys.requests], [GROUP, consumer, lease_ms + 1])
        return answer[0] == b"OK"

    def _call_keys(self, request: ToolCallRequested) -> list[str]:
        return [
            self._keys.call(request.correlation_id),
            self._keys.requests,
            request.response_channel,
            _mailbox(request),
        ]


def _mailbox(request: ToolCallRequested) -> str:
    """The key of its doorbell; for a caller without one its channel, which the scripts take to be none."""
    return request.mailbox or request.response_channel


def renew_each(
    redis: scripts.SyncCommands, keys: Keys, held: Sequence[tuple[Delivery, int]]
) -> list[replies.Renewed | replies.Stale | Exception]:
    """Keep the leases of running calls, each under its fence, in one round trip; what Redis lost of one is put back.

    The answers are in the order of `held`: one that fails is an exception in its place. Blocking: leases are renewed
    from a thread, so that a busy loop loses none.

    Raises:
        RedisError, OSError: no answer came.
    """
    answers = scripts.run_each_sync(redis, "renew", [_renewal(keys, delivery, fence) for delivery, fence in held])
    return [_renewed(answer) for answer in answers]


def _renewal(keys: Keys, delivery: Delivery, fence: int) -> scripts.Command:
    request = delivery.request
    return [keys.call(request.correlation_id), keys.requests], [
        GROUP,
        delivery.consumer,
        delivery.entry,
        fence,
        delivery.token,
        request.execution_class,
        request.deadline,
        request.mailbox,
    ]


def _renewed(answer: Any) -> replies.Renewed | replies.Stale | Exception:
    match answer:
        case [b"OK", cancel]:
            return replies.Renewed(bool(cancel))
        case [b"STALE"]:
            return replies.Stale()
        case Exception():
            return answer
        case _:
            return unexpected("RENEW", answer)
