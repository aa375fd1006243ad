"""The ledger of tool calls: typed calls of the scripts.

Every call is one script, so one atomic step on the server, on the server's own clock. Each may be sent again when its
reply was lost: ENQUEUE by the correlation id, START by the delivery token, COMPLETE by its terminal state.

States: `published → started → succeeded | failed | unknown | expired | cancelled | dead`; terminal states are final.
Each delivery that starts or ends a call raises its fence; only the current fence may write.
"""

from dataclasses import dataclass
from typing import Any

import msgspec

from plugins_contract.errors import ErrorCode
from plugins_contract.keys import GROUP, Keys
from plugins_contract.ledger import replies, scripts
from plugins_contract.messages import ToolCallRequested, arguments_hash, encode_request
from plugins_contract.outcomes import CallFinished, CallProgress, CallReply, CallState, ToolOutcome

_reply_decoder = msgspec.json.Decoder[CallReply](CallReply)


def encode_reply(reply: CallReply) -> bytes:
    """A message of the response channel as JSON."""
    return msgspec.json.encode(reply)


def decode_reply(data: bytes) -> CallReply:
    """A message of the response channel.

    Raises:
        msgspec.DecodeError: it is not one.
    """
    return _reply_decoder.decode(data)


def _finished(data: bytes) -> ToolOutcome:
    reply = decode_reply(data)
    if not isinstance(reply, CallFinished):
        raise msgspec.ValidationError("the stored reply of a finished call is not terminal")
    return reply.outcome


@dataclass(frozen=True, slots=True)
class Delivery:
    """One entry of the request stream in the hands of one consumer. `token` is unique to this delivery."""

    request: ToolCallRequested
    entry: str
    consumer: str
    token: str


class EngineLedger:
    """The engine's side: ask for a call, ask for its end."""

    def __init__(self, redis: scripts.AsyncCommands, keys: Keys) -> None:
        self._redis = redis
        self._keys = keys

    async def enqueue(self, request: ToolCallRequested, *, backlog_limit: int = 0) -> replies.Enqueued:
        """Put the request on the stream, once. With `backlog_limit` set, refuse when as many stand there already."""
        answer = await scripts.run(
            self._redis,
            "enqueue",
            [self._keys.call(request.correlation_id), self._keys.requests],
            [
                request.correlation_id,
                arguments_hash(request.tool_name, request.arguments),
                encode_request(request),
                request.deadline,
                request.execution_class,
                backlog_limit,
                request.mailbox,
                GROUP,
            ],
        )
        match answer:
            case [b"QUEUED", entry, backlog]:
                return replies.Queued(entry.decode(), backlog)
            case [b"EXISTS", entry]:
                return replies.AlreadyQueued(entry.decode())
            case [b"FINISHED", reply]:
                return replies.AlreadyFinished(_finished(reply))
            case [b"CONFLICT"]:
                return replies.Conflict()
            case [b"OVERLOADED", backlog]:
                return replies.Overloaded(backlog)
            case _:
                raise _unexpected("ENQUEUE", answer)

    async def cancel(
        self, correlation_id: str, mailbox: str, outcome: ToolOutcome, control_message: bytes
    ) -> replies.Cancelled:
        """End a call that has not begun with `outcome`; of one that has, ask its worker for the end."""
        answer = await scripts.run(
            self._redis,
            "cancel",
            [
                self._keys.call(correlation_id),
                self._keys.requests,
                self._keys.response(correlation_id),
                mailbox,
            ],
            [
                correlation_id,
                GROUP,
                outcome.state,
                encode_reply(CallFinished(outcome)),
                self._keys.control,
                control_message,
            ],
        )
        match answer:
            case [b"ENDED"]:
                return replies.CancelledAtOnce()
            case [b"REQUESTED"]:
                return replies.CancelRequested()
            case [b"FINISHED", reply]:
                return replies.AlreadyFinished(_finished(reply))
            case _:
                raise _unexpected("CANCEL", answer)


class WorkerLedger:
    """The worker's side: begin, report, end."""

    def __init__(self, redis: scripts.AsyncCommands, keys: Keys) -> None:
        self._redis = redis
        self._keys = keys

    async def start(self, delivery: Delivery, *, max_starts: int, expired: ToolOutcome) -> replies.Started:
        """The durable mark before any byte goes to an MCP server.

        A call past its deadline is answered with `expired` instead.
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
                raise _unexpected("START", answer)

    async def progress(self, request: ToolCallRequested, fence: int, progress: CallProgress) -> bool:
        """Pass on the tool's progress. Returns False when the call is no longer ours."""
        answer = await scripts.run(
            self._redis,
            "progress",
            [self._keys.call(request.correlation_id), request.response_channel, request.mailbox],
            [request.correlation_id, fence, encode_reply(progress)],
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
                raise _unexpected("COMPLETE", answer)

    async def release(self, delivery: Delivery, fence: int, *, lease_ms: int) -> replies.Completed | replies.Stale:
        """Give a call back that was provably not sent: the attempt does not count, another worker takes it."""
        answer = await scripts.run(
            self._redis,
            "release",
            [self._keys.call(delivery.request.correlation_id), self._keys.requests],
            [GROUP, delivery.consumer, delivery.entry, fence, lease_ms],
        )
        return replies.Completed() if answer[0] == b"OK" else replies.Stale()

    async def bury(self, entry: str, reason: str, event: bytes, correlation_id: str = "") -> None:
        """Move an entry that cannot even be read to the dead letters. When its call is known, it is answered so."""
        call = self._keys.call(correlation_id)
        mailbox = await self._redis.execute_command("HGET", call, "mailbox")
        outcome = ToolOutcome.failure(CallState.DEAD, ErrorCode.UNKNOWN_ERROR, f"no worker can read it: {reason}")
        await scripts.run(
            self._redis,
            "bury",
            [
                self._keys.requests,
                self._keys.dead,
                call,
                self._keys.response(correlation_id),
                (mailbox or b"").decode(),
            ],
            [GROUP, entry, reason, event, correlation_id, encode_reply(CallFinished(outcome))],
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
            request.mailbox,
        ]


def renew(
    redis: scripts.SyncCommands, keys: Keys, correlation_id: str, entry: str, consumer: str, fence: int
) -> replies.Renewed | replies.Stale:
    """Keep the lease of a running call. Blocking: leases are renewed from a thread, so that a busy loop loses none."""
    answer = scripts.run_sync(
        redis, "renew", [keys.call(correlation_id), keys.requests], [GROUP, consumer, entry, fence]
    )
    match answer:
        case [b"OK", cancel]:
            return replies.Renewed(bool(cancel))
        case _:
            return replies.Stale()


def _unexpected(script: str, answer: Any) -> RuntimeError:
    return RuntimeError(f"{script} answered {answer!r}: engine and workers run different releases of the contract?")
