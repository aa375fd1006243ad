"""Requests of other producers: completed with what they leave out, or answered with what is wrong about them.

An engine puts a request on the stream through the ledger, whose mark its entry bears. An entry without the mark comes
from somebody who speaks Redis and nothing more (`docs/wire.md`). It gets its ledger here, before it is begun.
"""

import contextlib
import logging
import uuid
from dataclasses import dataclass
from typing import Any

import msgspec

from plugins_contract.clock import Clock
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
from plugins_mcp.ports import NamedTools

log = logging.getLogger(__name__)

MARK = b"ledger"
"""The field by which ENQUEUE marks its entries."""
MAX_ID = 128
"""Characters of a correlation id."""
AGAIN = "correct it and send it under a new correlationId (docs/wire.md)"


@dataclass(frozen=True, slots=True)
class ReturnAddress:
    """Where a request can be answered that is not to be run, as far as it says so in a usable way."""

    correlation_id: str = ""
    tool_call_id: str = ""
    channel: str = ""
    mailbox: str = ""


class RefusedError(ValueError):
    """The request is not to be run; the text names the field and the fix."""

    def __init__(self, reason: str, code: ErrorCode = ErrorCode.INVALID_ARGUMENTS) -> None:
        super().__init__(reason)
        self.code = code


class Adoption:
    """Takes in requests of other producers, for one consumer."""

    def __init__(
        self, ledger: WorkerLedger, tools: NamedTools, keys: Keys, clock: Clock, *, default_timeout_ms: int
    ) -> None:
        self._ledger = ledger
        self._tools = tools
        self._keys = keys
        self._clock = clock
        self._default_timeout_ms = default_timeout_ms

    async def adopt(self, entry: str, consumer: str, fields: dict[bytes, bytes]) -> Delivery | None:
        """The delivery of such an entry; None when it was answered, or is another worker's.

        Raises what redis raises.
        """
        try:
            submitted = self._read(fields)
            request, timeout_ms = await self._completed(submitted)
        except RefusedError as refusal:
            await self._refuse(entry, fields, refusal)
            return None
        delivery = Delivery(request, entry, consumer, uuid.uuid4().hex)
        match await self._ledger.adopt(delivery, timeout_ms=timeout_ms):
            case Adopted(execution_class, deadline):
                request = msgspec.structs.replace(request, execution_class=execution_class, deadline=deadline)
                return Delivery(request, entry, consumer, delivery.token)
            case NoLedger():
                return delivery  # START says the same, and what is to be done then
            case Conflict():
                reason = "its correlationId names another request, or its responseChannel holds something else"
                log.warning("entry %s goes to the dead letters: %s", entry, reason)
                await self._ledger.bury(entry, reason, fields.get(b"event", b""))
            case NothingToDo(why):
                log.info("call %s is not run: %s", request.correlation_id, why)
        return None

    def _read(self, fields: dict[bytes, bytes]) -> SubmittedRequest:
        if b"event" not in fields:
            raise RefusedError(f"the entry has no field `event`: put the request there, as JSON; {AGAIN}")
        try:
            request = decode_submitted(fields[b"event"])
        except UnsupportedEventError as error:
            raise RefusedError(f"{error}; {AGAIN}") from error
        if wrong := problem(request, self._keys, self._clock.now_ms()):
            raise RefusedError(f"{wrong}; {AGAIN}")
        return request

    async def _completed(self, request: SubmittedRequest) -> tuple[ToolCallRequested, int]:
        """The whole request, and its time in milliseconds should it name no deadline."""
        entry = self._tools.own(request.tool_name)
        if request.server and request.tool:
            server, tool = request.server, request.tool
        elif entry:
            server, tool = entry.server, entry.tool
        elif known := await self._ledger.adopted_tool(request.correlation_id):
            server, tool = known
        elif entry := await self._tools.find(request.tool_name):
            server, tool = entry.server, entry.tool
        else:
            raise RefusedError(
                f"toolName is {request.tool_name!r}, and no MCP server has such a tool: send a name as in the"
                f" catalog, `server__tool`; {AGAIN}",
                ErrorCode.TOOL_NOT_FOUND,
            )
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
            traceparent=request.traceparent,
        )
        return complete, (entry.timeout_ms if entry else None) or self._default_timeout_ms

    async def _refuse(self, entry: str, fields: dict[bytes, bytes], refusal: RefusedError) -> None:
        log.warning("entry %s goes to the dead letters: %s", entry, refusal)
        address = return_address(fields, self._keys)
        await self._ledger.bury(
            entry,
            str(refusal),
            fields.get(b"event", b""),
            address.correlation_id,
            code=refusal.code,
            tool_call_id=address.tool_call_id,
            enqueued=False,
            channel=address.channel,
            mailbox=address.mailbox,
        )


def problem(request: SubmittedRequest, keys: Keys, now_ms: int) -> str | None:
    """What is wrong about a request that can be read; None when it can be run."""
    if not 1 <= len(request.correlation_id) <= MAX_ID:
        return f"correlationId must have 1 to {MAX_ID} characters"
    # One call, one channel: its entries are found by the ledger, live as long, and nobody writes into another's.
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
    """Who is to be told, out of an entry of which nothing is certain: its JSON, or else its own fields."""
    said: dict[str, Any] = {
        name.decode(errors="replace"): value.decode(errors="replace") for name, value in fields.items()
    }
    with contextlib.suppress(*NOT_READABLE):
        said |= msgspec.json.decode(fields.get(b"event", b""), type=dict[str, Any])

    def text(name: str) -> str:
        value = said.get(name)
        return value if isinstance(value, str) else ""

    correlation_id, channel, mailbox = text("correlationId"), text("responseChannel"), text("mailbox")
    return ReturnAddress(
        correlation_id if len(correlation_id) <= MAX_ID else "",
        text("toolCallId"),
        channel if _below(channel, keys.response("")) else "",
        mailbox if _below(mailbox, keys.mailbox("")) else "",
    )


def _below(key: str, start: str) -> bool:
    return key.startswith(start) and key != start
