"""The ledger as an engine uses it: ask for calls, for their end, and for what has become of them."""

from collections.abc import Sequence

from plugins_contract.keys import GROUP, Keys
from plugins_contract.ledger import replies, scripts
from plugins_contract.ledger.scripts import LOST_REPLY, encode_reply, finished, unexpected
from plugins_contract.messages import ToolCallRequested, arguments_hash, encode_request
from plugins_contract.outcomes import CallFinished, ToolOutcome

SILENT_MS = 8_000
"""A worker that was not heard of for longer has given its calls up by itself."""
AUDIT_BATCH = 128
"""How many calls one AUDIT may look at: a script holds up everybody else for as long as it runs."""
AUDIT_BYTES = 1024 * 1024
"""An AUDIT whose replies have reached this size looks no further: the rest is for another one."""


class EngineLedger:
    """The ledger's side of one engine."""

    def __init__(self, redis: scripts.AsyncCommands, keys: Keys) -> None:
        self._redis = redis
        self._keys = keys

    async def enqueue(self, request: ToolCallRequested, *, backlog_limit: int = 0) -> replies.Enqueued:
        """Put the request on the stream, once. With `backlog_limit` set, refuse when as many stand there already."""
        answer = await scripts.run(
            self._redis,
            "enqueue",
            [self._keys.call(request.correlation_id), self._keys.requests, request.response_channel],
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
                return replies.AlreadyFinished(finished(reply))
            case [b"CONFLICT"]:
                return replies.Conflict()
            case [b"OVERLOADED", backlog]:
                return replies.Overloaded(backlog)
            case _:
                raise unexpected("ENQUEUE", answer)

    async def cancel(
        self,
        request: ToolCallRequested,
        outcome: ToolOutcome,
        control_message: bytes,
        *,
        unseen: ToolOutcome | None = None,
    ) -> replies.Cancelled:
        """End a call that has not begun with `outcome`; of one that has, ask its worker for the end.

        `unseen` is the outcome where the ledger does not know the call: give it when the call had been published, for
        then nobody can tell whether it ran. Without it that is `outcome` too.
        """
        absent = unseen or outcome
        answer = await scripts.run(
            self._redis,
            "cancel",
            [
                self._keys.call(request.correlation_id),
                self._keys.requests,
                request.response_channel,
                request.mailbox,
            ],
            [
                request.correlation_id,
                request.tool_call_id,
                GROUP,
                outcome.state,
                encode_reply(CallFinished(outcome)),
                self._keys.control,
                control_message,
                absent.state,
                encode_reply(CallFinished(absent)),
            ],
        )
        match answer:
            case [b"ENDED"]:
                return replies.CancelledAtOnce()
            case [b"ABSENT"]:
                return replies.CancelledUnseen()
            case [b"REQUESTED"]:
                return replies.CancelRequested()
            case [b"FINISHED", reply]:
                return replies.AlreadyFinished(finished(reply))
            case _:
                raise unexpected("CANCEL", answer)

    async def audit(
        self, correlation_ids: Sequence[str], *, silent_ms: int = SILENT_MS
    ) -> list[tuple[str, bytes | replies.Loss]]:
        """What has become of up to AUDIT_BATCH calls, as far as there is something to say.

        Of each the terminal reply from its channel, undecoded, or what Redis has lost of it. Large replies are fetched
        in several scripts, between which others have their turn.
        """
        found: list[tuple[str, bytes | replies.Loss]] = []
        left = correlation_ids
        while left:
            keys = [key(correlation_id) for correlation_id in left for key in (self._keys.call, self._keys.response)]
            arguments = [GROUP, silent_ms, AUDIT_BYTES]
            looked, rows = await scripts.run(self._redis, "audit", [self._keys.requests, *keys], arguments)
            for number, reply, *loss in rows:
                found.append((left[int(number) - 1], replies.Loss(loss[0].decode()) if loss else reply or LOST_REPLY))
            left = left[int(looked) :]
        return found

    async def lose(
        self, request: ToolCallRequested, loss: replies.Loss, outcome: ToolOutcome, *, silent_ms: int = SILENT_MS
    ) -> replies.Lost:
        """End a call with `outcome`, if it is still lost as the audit found it."""
        answer = await scripts.run(
            self._redis,
            "lose",
            [
                self._keys.call(request.correlation_id),
                self._keys.requests,
                request.response_channel,
                request.mailbox,
            ],
            [
                request.correlation_id,
                GROUP,
                silent_ms,
                loss,
                outcome.state,
                encode_reply(CallFinished(outcome)),
                request.tool_call_id,
            ],
        )
        match answer:
            case [b"ENDED"]:
                return replies.EndedLost()
            case [b"FINISHED", reply]:
                return replies.AlreadyFinished(finished(reply))
            case [b"FOUND"]:
                return replies.NotLost()
            case _:
                raise unexpected("LOSE", answer)
