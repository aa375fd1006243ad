"""The ledger as an engine uses it: publish calls, cancel them, and read their state."""

import uuid
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import msgspec
from redis.asyncio import Redis

from plugins_contract.encryption import Cipher
from plugins_contract.keys import Keys
from plugins_contract.ledger import replies, steps
from plugins_contract.ledger.scripts import LOST_REPLY, Call, Command, Scripts, finished, reply_to, unexpected
from plugins_contract.messages import ToolCallRequested, arguments_hash, encode_request
from plugins_contract.outcomes import CallFinished, ToolOutcome
from plugins_contract.pools import OWN_POOL, Route
from plugins_contract.sessions import SessionMode, owner_of
from plugins_contract.signing import RequestKeys

NEVER_OFFERED = ""
"""The incarnation of a request that was certainly never offered to any."""
UNKNOWN_INCARNATION = "?"
"""The incarnation of a request that may have been offered to any."""
_ANY = "*"
LOST_MS = 25_000
"""How much of its latest writes a server may have lost, with the time until the next one was there. Less than
RECENT_SECONDS: living workers know for so long what they ended."""
SILENT_MS = 8_000
"""A worker that has not renewed a call for longer has given it up."""
AUDIT_BATCH = 128
"""How many calls one AUDIT may read: other clients wait for as long as a script runs."""
AUDIT_BYTES = 1024 * 1024
"""An AUDIT stops when its replies have reached this size; another one reads the rest."""


class Offer(NamedTuple):
    """A request, and the incarnation of Redis that it is, or may have been, offered to."""

    request: ToolCallRequested
    incarnation: str
    sent: bool = True
    """False when nobody has sent it before."""


class PoolFinder(Protocol):
    """Finds the pool of workers for a call: see `callstream_runtime.pool_directory.PoolDirectory`."""

    async def route(self, server: str, version: int) -> Route:
        """A pool whose workers can run a call on that server, requested in that version; that of all without one."""
        ...


SESSION_LEASE_MS = 10_000
"""For how long a worker that ENQUEUE has made the holder of a session is that without having renewed it."""


class EngineLedger:
    """The ledger's side of one engine."""

    def __init__(
        self,
        redis: Redis,
        keys: Keys,
        request_keys: RequestKeys | None = None,
        *,
        cipher: Cipher,
        pools: PoolFinder | None = None,
    ) -> None:
        """With `pools` a request is put on the stream of a pool whose workers have its server (`pools.py`), or of the
        worker that keeps its state (`sessions.py`)."""
        self._pools = pools
        self._scripts = Scripts(redis)
        self._keys = keys
        self._cipher = cipher
        self._request_keys = request_keys or RequestKeys()

    async def incarnation(self) -> str:
        """Which incarnation of Redis this is: `<id>/<run id>`. Raises what redis raises.

        A flush changes the first part; a restart and a failover change the second one, which is empty where it cannot
        be read.
        """
        step = steps.incarnation(incarnation_key=self._keys.incarnation, id_=uuid.uuid4().hex)
        answer: Any = await self._scripts.run(step)
        return answer.decode()

    async def enqueue(self, request: ToolCallRequested, *, backlog_limit: int = 0) -> replies.Enqueued:
        """Put the request on the stream, once. With `backlog_limit` set, refuse when the stream holds that many."""
        [answer] = await self.enqueue_each([Offer(request, _ANY)], backlog_limit=backlog_limit)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def enqueue_each(
        self, offers: Sequence[Offer], *, backlog_limit: int = 0
    ) -> list[replies.Enqueued | Exception]:
        """Put requests on the stream, in their order and sent in one write. Errors stand in place of answers.

        Where nothing is known of a request, and this is another incarnation than it was offered to, nothing is written:
        it may have run. But a server that has the data of the one before it, without its latest writes, takes a call
        that was sent there: no worker starts it before all have reported (START).
        """
        commands = [self._enqueue(each, backlog_limit, await self._route_of(each.request)) for each in offers]
        answers = await self._scripts.run_each(commands)
        return [self._enqueued(each.request, answer) for each, answer in zip(offers, answers, strict=True)]

    async def _route_of(self, request: ToolCallRequested) -> Route:
        if request.next_round and request.next_round.holder:
            return Route(request.next_round.holder)
        return await self._pools.route(request.server, request.event_version) if self._pools else Route("")

    def _enqueue(self, offer: Offer, backlog_limit: int, route: Route) -> Command:
        request, event = offer.request, encode_request(offer.request)
        keys, shared = self._keys, route.session is SessionMode.SHARED
        return steps.enqueue(
            call=keys.call(request.correlation_id),
            common=keys.requests,
            requests=keys.requests_of(route.pool),
            channel=request.response_channel,
            incarnation_key=keys.incarnation,
            session=keys.requests if shared else keys.session(owner_of(route.session, request)),
            workers=keys.workers,
            server_name="" if shared else request.server,
            streams=keys.requests_of(OWN_POOL),
            lease_ms=SESSION_LEASE_MS,
            id_=request.correlation_id,
            hash_=arguments_hash(request),
            class_=request.execution_class,
            deadline=request.deadline,
            mailbox=request.mailbox,
            event=event,
            signature=self._request_keys.sign(event, has_ledger=True),
            limit=backlog_limit,
            offered_to=offer.incarnation,
            sent=int(offer.sent),
            lost_ms=LOST_MS,
        )

    def _enqueued(self, request: ToolCallRequested, answer: Any) -> replies.Enqueued | Exception:
        match answer:
            case [b"QUEUED", entry, backlog]:
                return replies.Queued(entry.decode(), backlog)
            case [b"EXISTS", entry]:
                return replies.AlreadyQueued(entry.decode())
            case [b"FINISHED", reply]:
                return replies.AlreadyFinished(self._finished(request, reply))
            case [b"CONFLICT"]:
                return replies.Conflict()
            case [b"OVERLOADED", backlog]:
                return replies.Overloaded(backlog)
            case [b"MOVED"]:
                return replies.Moved()
            case Exception():
                return answer
            case _:
                return unexpected("ENQUEUE", answer)

    async def cancel(
        self,
        request: ToolCallRequested,
        outcome: ToolOutcome,
        *,
        unseen: ToolOutcome | None = None,
        offered_to: str = UNKNOWN_INCARNATION,
    ) -> replies.Cancelled:
        """End a call that has not started with `outcome`; ask the worker of one that has to cancel it.

        `unseen` is the outcome of a call that may have started without this server knowing it: one that was offered to
        another incarnation of Redis and is not known here, or that was enqueued at another server and may have been
        started there. It defaults to `outcome`.
        """
        absent = unseen or outcome
        answer = await self._scripts.run(
            steps.cancel(
                of=Call.of(request, self._keys),
                requests=self._keys.requests,
                incarnation_key=self._keys.incarnation,
                workers=self._keys.workers,
                state=outcome.state,
                reply=reply_to(request, CallFinished(outcome), self._cipher),
                unseen_state=absent.state,
                unseen_reply=reply_to(request, CallFinished(absent), self._cipher),
                control=self._keys.control,
                message=msgspec.json.encode({"kind": "cancel", "correlationId": request.correlation_id}),
                offered_to=offered_to,
            )
        )
        match answer:
            case [b"ENDED"]:
                return replies.CancelledAtOnce()
            case [b"UNSEEN"]:
                return replies.CancelledUnseen()
            case [b"REQUESTED"]:
                return replies.CancelRequested()
            case [b"FINISHED", reply]:
                return replies.AlreadyFinished(self._finished(request, reply))
            case _:
                raise unexpected("CANCEL", answer)

    async def audit(
        self, correlation_ids: Sequence[str], *, silent_ms: int = SILENT_MS
    ) -> list[tuple[str, bytes | replies.Loss]]:
        """What became of up to AUDIT_BATCH calls. A call that is open, and of which nothing is lost, is left out.

        Each result is the undecoded terminal reply from the channel, or what Redis has lost of the call. Large replies
        are read in several scripts, between which other clients are served.
        """
        found: list[tuple[str, bytes | replies.Loss]] = []
        left = correlation_ids
        while left:
            keys = [key(correlation_id) for correlation_id in left for key in (self._keys.call, self._keys.response)]
            step = steps.audit(requests=self._keys.requests, calls=keys, silent_ms=silent_ms, max_bytes=AUDIT_BYTES)
            checked, rows = await self._scripts.run(step)
            for number, reply, *loss in rows:
                found.append((left[int(number) - 1], replies.Loss(loss[0].decode()) if loss else reply or LOST_REPLY))
            left = left[int(checked) :]
        return found

    async def lose(
        self, request: ToolCallRequested, loss: replies.Loss, outcome: ToolOutcome, *, silent_ms: int = SILENT_MS
    ) -> replies.Lost:
        """End a call with `outcome`, if it is still lost as the audit found it."""
        answer = await self._scripts.run(
            steps.lose(
                of=Call.of(request, self._keys),
                requests=self._keys.requests,
                silent_ms=silent_ms,
                found=loss,
                state=outcome.state,
                reply=reply_to(request, CallFinished(outcome), self._cipher),
            )
        )
        match answer:
            case [b"ENDED"]:
                return replies.EndedLost()
            case [b"FINISHED", reply]:
                return replies.AlreadyFinished(self._finished(request, reply))
            case [b"FOUND"]:
                return replies.NotLost()
            case _:
                raise unexpected("LOSE", answer)

    def _finished(self, request: ToolCallRequested, reply: bytes) -> ToolOutcome:
        return finished(reply, request.correlation_id, self._cipher, sealed=bool(request.sealed))
