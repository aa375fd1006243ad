"""Requests that other producers put on the stream with a plain XADD (`docs/wire.md`).

An engine enqueues a request through the ledger, which marks its entry. An entry without the mark has no ledger yet: it
is completed with what it leaves out and gets its ledger here, or becomes a dead letter whose caller learns the reason.
"""

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from redis.asyncio import Redis

from callstream_runtime.clock import Clock
from callstream_runtime.tracing import call_ids
from callstream_runtime.watched_file import WatchedFile
from plugins_contract.catalog import ServerCatalog, ToolEntry, choice_of, exposed_name, named
from plugins_contract.errors import ErrorCode
from plugins_contract.keys import Keys
from plugins_contract.ledger import Delivery, WorkerLedger
from plugins_contract.ledger.replies import Adopted, Conflict, NoLedger, NothingToDo
from plugins_contract.messages import (
    MAX_TIMEOUT_MS,
    NOT_READABLE,
    ExecutionClass,
    SubmittedRequest,
    ToolCallRequested,
    UnsupportedEventError,
    decode_submitted,
)
from plugins_contract.rights import Rights
from plugins_contract.signing import LONGEST_ADOPTED_MS, RequestKeys
from plugins_contract.trust import CatalogTrust, digest_of
from plugins_mcp.mcp import McpServers
from plugins_mcp.ports import Observer, ToolLookup

log = logging.getLogger(__name__)

LEDGER_MARK = b"ledger"
"""The field that ENQUEUE adds to its entries."""
SIGNATURE = b"signature"
"""The field with the signature of `event`."""
NOT_SIGNED = (
    "it has no valid signature: this worker runs only requests that are signed with a key of its REQUEST_KEYS_FILE"
    " (docs/wire.md)"
)
MAX_ID_CHARS = 128
"""The longest correlation id."""
SEND_AGAIN = "correct it and send it under a new correlationId (docs/wire.md)"


@dataclass(frozen=True, slots=True)
class ReturnAddress:
    """Where to answer a request that is not run: the fields of it that are usable, otherwise empty. `subject` is what
    the entry says, which is not proved unless the entry is signed."""

    correlation_id: str = ""
    tool_call_id: str = ""
    channel: str = ""
    mailbox: str = ""
    subject: str = ""

    @property
    def log_ids(self) -> dict[str, str]:
        """The ids of its log lines."""
        return {"correlationId": self.correlation_id, "subject": self.subject}


class RefusedError(ValueError):
    """The request cannot be run; the text names the field and the fix."""

    def __init__(self, reason: str, code: ErrorCode = ErrorCode.INVALID_ARGUMENTS) -> None:
        super().__init__(reason)
        self.code = code


class RequestAdopter:
    """Gives requests of other producers their ledger, or refuses them."""

    def __init__(
        self,
        ledger: WorkerLedger,
        tools: ToolLookup,
        keys: Keys,
        clock: Clock,
        *,
        default_timeout_ms: int,
        request_keys: RequestKeys | None = None,
        rights: WatchedFile[Rights] | None = None,
        observer: Observer | None = None,
    ) -> None:
        """With `rights` a name that several servers have means the tool that the sender may use."""
        self._ledger = ledger
        self._tools = tools
        self._keys = keys
        self._clock = clock
        self._default_timeout_ms = default_timeout_ms
        self._request_keys = request_keys or RequestKeys()
        self._rights = rights
        self._observer = observer or Observer()

    async def adopt(self, entry: str, consumer: str, fields: dict[bytes, bytes], stream: str = "") -> Delivery | None:
        """The delivery of such an entry of `stream`; None when it was refused, or another worker has it.

        Raises `RedisUnavailable`.
        """
        try:
            submitted = self._read(fields)
            request, timeout_ms = await self._completed(submitted)
        except RefusedError as refusal:
            await self._refuse(entry, fields, refusal, stream)
            return None
        delivery = Delivery(request, entry, consumer, uuid.uuid4().hex, adopted=True, stream=stream)
        match await self._ledger.adopt(delivery, timeout_ms=timeout_ms):
            case Adopted(execution_class, deadline):
                # What the request says wins over the ledger, which others may have written.
                if execution_class is ExecutionClass.ONCE:
                    request = msgspec.structs.replace(request, execution_class=execution_class)
                request = msgspec.structs.replace(request, deadline=request.deadline or deadline)
                return replace(delivery, request=request)
            case NoLedger():
                return delivery  # START reports the same, and the handler decides
            case Conflict():
                reason = "its correlationId names another request, or its responseChannel holds something else"
                log.warning("entry %s goes to the dead letters: %s", entry, reason, extra=call_ids(request))
                self._observer.dead_letter("producer")
                await self._ledger.bury(entry, reason, fields.get(b"event", b""), stream=stream)
            case NothingToDo(why):
                log.info("call %s is not run: %s", request.correlation_id, why, extra=call_ids(request))
        return None

    def _read(self, fields: dict[bytes, bytes]) -> SubmittedRequest:
        if b"event" not in fields:
            raise RefusedError(f"the entry has no field `event`: put the request there, as JSON; {SEND_AGAIN}")
        if not self._signed(fields):
            raise RefusedError(NOT_SIGNED, ErrorCode.PERMISSION_DENIED)
        try:
            request = decode_submitted(fields[b"event"])
        except UnsupportedEventError as error:
            raise RefusedError(f"{error}; {SEND_AGAIN}") from error
        now_ms = self._clock.now_ms()
        wrong = problem(request, self._keys, now_ms)
        if self._request_keys and not (request.deadline and request.deadline <= now_ms + LONGEST_ADOPTED_MS):
            wrong = "deadline must be within 24 hours in a signed request, so that a copy of it cannot run later"
        if wrong:
            raise RefusedError(f"{wrong}; {SEND_AGAIN}")
        return request

    def _signed(self, fields: dict[bytes, bytes]) -> bool:
        return self._request_keys.accept(fields.get(b"event", b""), fields.get(SIGNATURE, b""), has_ledger=False)

    async def _completed(self, request: SubmittedRequest) -> tuple[ToolCallRequested, int]:
        """The complete request, and its timeout in milliseconds, used when it has no deadline."""
        entry = self._tools.own(request.tool_name)
        if request.server and request.tool:
            server, tool = request.server, request.tool
        elif entry:
            server, tool = entry.server, entry.tool
        elif (known := await self._ledger.adopted_tool(request.correlation_id)) and _means(request, *known):
            server, tool = known
        else:
            entry = await self._only(request)
            server, tool = entry.server, entry.tool
        complete = ToolCallRequested(
            correlation_id=request.correlation_id,
            session_id=request.session_id,
            turn_id=request.turn_id,
            turn=request.turn,
            tool_call_id=request.tool_call_id,
            tool_name=request.tool_name,
            server=server,
            tool=tool,
            arguments=request.arguments,
            response_channel=request.response_channel,
            mailbox=request.mailbox,
            deadline=request.deadline or 0,
            execution_class=request.execution_class or (entry.execution_class if entry else ExecutionClass.ONCE),
            subject=request.subject,
            roles=request.roles,
            traceparent=request.traceparent,
            approved=request.approved,
            choice=request.choice,
        )
        return complete, (entry.timeout_ms if entry else None) or self._default_timeout_ms

    async def _only(self, request: SubmittedRequest) -> ToolEntry:
        """The tool that `toolName` means; of several, the only one that the sender may use."""
        found = await self._tools.find(request.tool_name)
        if len(found) > 1 and self._rights:
            access = self._rights.content.access(request.subject, request.roles)
            # Without any, the first one is answered as the one of a complete name is: it may not be used.
            found = [tool for tool in found if access.allows(tool.server, tool.tool)] or found[:1]
        match found:
            case [only]:
                return only
            case []:
                why = "no MCP server has a tool of that name: send a name of the catalog, `server__tool`"
            case several:
                why = f"several MCP servers have a tool of that name: send {choice_of(several)}"
        reason = f"toolName is {request.tool_name!r}, and {why}; {SEND_AGAIN}"
        raise RefusedError(reason, ErrorCode.TOOL_NOT_FOUND)

    async def _refuse(self, entry: str, fields: dict[bytes, bytes], refusal: RefusedError, stream: str) -> None:
        address = return_address(fields, self._keys)
        ids = address.log_ids | {"code": str(refusal.code)}
        log.warning("entry %s goes to the dead letters: %s", entry, refusal, extra=ids)
        self._observer.dead_letter("producer")
        await self._ledger.bury(
            entry,
            str(refusal),
            fields.get(b"event", b""),
            address.correlation_id,
            code=refusal.code,
            tool_call_id=address.tool_call_id,
            enqueued=False,
            # A forged request must not write into the channel of another call, nor into a mailbox.
            channel=address.channel if self._signed(fields) else "",
            mailbox=address.mailbox if self._signed(fields) else "",
            stream=stream,
        )


def _means(request: SubmittedRequest, server: str, tool: str) -> bool:
    """Whether `toolName` can mean this tool."""
    return request.tool_name in (tool, exposed_name(server, tool))


def problem(request: SubmittedRequest, keys: Keys, now_ms: int) -> str | None:
    """What is wrong with a decoded request; None when it can be run."""
    if not 1 <= len(request.correlation_id) <= MAX_ID_CHARS:
        return f"correlationId must have 1 to {MAX_ID_CHARS} characters"
    # The ledger finds a call's channel by this name and expires both together; no call may write to another's channel.
    if request.response_channel != (expected := keys.response(request.correlation_id)):
        return f"responseChannel is {request.response_channel!r}: it must be {expected!r}"
    if request.mailbox and not _below(request.mailbox, keys.mailbox("")):
        return f"mailbox is {request.mailbox!r}: leave it out, or let it begin with {keys.mailbox('')!r}"
    if request.deadline is not None and not 0 < request.deadline <= now_ms + MAX_TIMEOUT_MS:
        return "deadline must be Unix milliseconds, at most 30 days from now"
    if bool(request.server) != bool(request.tool):
        return "server and tool go together: send both, or neither and a toolName of the catalog"
    return None


def return_address(fields: dict[bytes, bytes], keys: Keys) -> ReturnAddress:
    """The return address in an entry that may be malformed: from its JSON, otherwise from the entry's own fields."""
    found: dict[str, Any] = {
        name.decode(errors="replace"): value.decode(errors="replace") for name, value in fields.items()
    }
    with contextlib.suppress(*NOT_READABLE):
        found |= msgspec.json.decode(fields.get(b"event", b""), type=dict[str, Any])

    def text(name: str) -> str:
        value = found.get(name)
        return value if isinstance(value, str) else ""

    correlation_id, channel, mailbox = text("correlationId"), text("responseChannel"), text("mailbox")
    return ReturnAddress(
        correlation_id if len(correlation_id) <= MAX_ID_CHARS else "",
        text("toolCallId"),
        channel if _below(channel, keys.response("")) else "",
        mailbox if _below(mailbox, keys.mailbox("")) else "",
        text("subject"),
    )


def _below(key: str, start: str) -> bool:
    return key.startswith(start) and key != start


class CatalogToolLookup(ToolLookup):
    """Finds tools by name in this worker's own catalogs, then in the catalogs that all workers publish."""

    def __init__(
        self, servers: McpServers, redis: Redis, keys: Keys, clock: Clock, request_keys: RequestKeys, seconds: float
    ) -> None:
        """Servers that were not tried yet are waited for so many `seconds`: less than the lease of the request."""
        self._connect_seconds = seconds
        self._servers = servers
        self._clock = clock
        self._trust = CatalogTrust(request_keys)
        self._redis: Any = redis  # redis-py types its commands only partly
        self._keys = keys

    def own(self, name: str) -> ToolEntry | None:
        return next((tool for tool in self._own() if tool.name == name), None)

    async def find(self, name: str) -> Sequence[ToolEntry]:
        published = await self._published()
        if name in published:
            return [published[name]]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._connect_seconds):
                await self._servers.attempted()
        return named(name, (published | {tool.name: tool for tool in self._own()}).values())

    def _own(self) -> Iterator[ToolEntry]:
        return (tool for catalog in self._servers.catalogs().values() for tool in catalog.tools)

    async def _published(self) -> dict[str, ToolEntry]:
        """The tools of all published servers that are believed, by name."""
        tools: dict[str, ToolEntry] = {}
        for member in await self._redis.execute_command("SMEMBERS", self._keys.catalog):
            server = member.decode()
            fields = await self._redis.hgetall(self._keys.catalog_of(server))
            data = fields.get(b"catalog")
            if data and self._trust.judge(server, fields, self._clock.now_ms()).attests(digest_of(data)):
                tools |= {tool.name: tool for tool in msgspec.json.decode(data, type=ServerCatalog).tools}
        return tools
