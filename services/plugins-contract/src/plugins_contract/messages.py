"""The request that travels on `events.plugins`, and ids, which sort by their time of creation."""

import contextlib
import hashlib
import os
import time
import uuid
from collections.abc import Sequence
from enum import StrEnum
from typing import Any, TypeVar

import msgspec

from plugins_contract.choice import ToolChoice
from plugins_contract.questions import NextRound
from plugins_contract.reads import ReadKind

EVENT_TYPE = "PluginToolCallRequested"
EVENT_VERSION = 1
SEALED_VERSION = 2
"""The version of a request whose arguments are encrypted: a release that cannot decrypt them refuses it."""
ROUND_VERSION = 3
"""The version of a round after the first, sealed or not: an earlier release would run it as a call of its own."""
READ_VERSION = 4
"""The version of a read, sealed or not: an earlier release would run it as a call of a tool."""
NEWEST_VERSION = READ_VERSION
"""The newest version of a request that this release can read."""
MAX_TIMEOUT_MS = 30 * 86_400_000
"""The longest timeout of a call. A deadline too far off for the expiry times of Redis would break the scripts."""


class ExecutionClass(StrEnum):
    """Whether a call may run again after it was started. Frozen when the call is requested."""

    REPEATABLE = "repeatable"
    """Read-only or idempotent by annotation of a trusted server, or so configured."""
    ONCE = "once"
    """The default: annotations of a server that is not trusted mean nothing."""


class Approval(msgspec.Struct, frozen=True, rename="camel"):
    """A person has approved a call. `by` names the person's credential, or the person.

    `arguments` is the `arguments_hash` of the request with the arguments that were approved.
    """

    by: str
    arguments: str


class ToolCallRequested(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """One tool call, as committed to the outbox. Times are Unix milliseconds on the clock of Redis.

    `arguments` is a JSON object that fits the tool's schema. With `sealed`, their encrypted form, they are not encoded,
    and empty until `encryption.open_request` has opened them. `tool_call_id` is the provider's id and unique only
    within its assistant message; `correlation_id` is unique among all calls. `roles` are those of `subject`.
    `approved` is None when no person was asked, and unset in requests of the previous release: see `is_approved`.
    `choice` is unset when the message may use every tool of its sender. With `kind` it is a read: see `reads`.
    With `may_ask` questions of the server reach a person. `next_round` is set in rounds after the first, whose
    `correlation_id` is that of the round: see `questions`.
    `keeps_large` says that engines take large results of this call themselves: see `large_results`.
    """

    event_type: str = EVENT_TYPE
    event_version: int = EVENT_VERSION
    correlation_id: str
    session_id: str
    turn_id: str
    turn: int
    tool_call_id: str
    tool_name: str
    server: str
    tool: str
    arguments: dict[str, Any]
    response_channel: str
    mailbox: str
    deadline: int
    execution_class: ExecutionClass
    subject: str
    roles: tuple[str, ...] = ()
    traceparent: str | None = None
    sealed: str | msgspec.UnsetType = msgspec.UNSET
    approved: Approval | msgspec.UnsetType | None = msgspec.UNSET
    choice: ToolChoice | msgspec.UnsetType = msgspec.UNSET
    kind: ReadKind | msgspec.UnsetType = msgspec.UNSET
    may_ask: bool | msgspec.UnsetType = msgspec.UNSET
    next_round: NextRound | msgspec.UnsetType = msgspec.UNSET
    keeps_large: bool | msgspec.UnsetType = msgspec.UNSET


class SubmittedRequest(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A request as any producer may write it. `docs/wire.md` gives the meaning of a missing field."""

    event_type: str
    event_version: int = EVENT_VERSION
    correlation_id: str
    session_id: str
    turn_id: str = ""
    turn: int
    tool_call_id: str
    tool_name: str
    server: str | None = None
    tool: str | None = None
    arguments: dict[str, Any]
    response_channel: str
    mailbox: str = ""
    deadline: int | None = None
    execution_class: ExecutionClass | None = None
    subject: str = ""
    roles: tuple[str, ...] = ()
    traceparent: str | None = None
    approved: Approval | None = None
    choice: ToolChoice | msgspec.UnsetType = msgspec.UNSET


class UnsupportedEventError(ValueError):
    """A request that this release cannot read: not JSON, a field missing or of a wrong type, another version."""


class NewerEventError(UnsupportedEventError):
    """A request in a version that this release cannot read, and a newer one may. The fields are '' where missing."""

    def __init__(self, reason: str, header: "RequestHeader") -> None:
        super().__init__(reason)
        self.header = header


class RequestHeader(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The fields that a request of any version has."""

    event_type: str
    event_version: int
    correlation_id: str = ""
    server: str = ""


NOT_READABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for unreadable data; text that is not UTF-8 and deep nesting have exceptions of their own."""


_decoder = msgspec.json.Decoder(ToolCallRequested)
_submitted_decoder = msgspec.json.Decoder(SubmittedRequest)
_header_decoder = msgspec.json.Decoder(RequestHeader)

_R = TypeVar("_R", ToolCallRequested, SubmittedRequest)


def encode_request(request: ToolCallRequested) -> bytes:
    """The request as JSON."""
    if request.sealed:
        request = msgspec.structs.replace(request, arguments={})
        if request.next_round:
            number, holder = request.next_round.number, request.next_round.holder
            request = msgspec.structs.replace(request, next_round=NextRound(number, holder=holder))
    return msgspec.json.encode(request)


def decode_request(data: bytes) -> ToolCallRequested:
    """The complete request in `data`.

    Raises:
        NewerEventError: it is in a newer version.
        UnsupportedEventError: it names the field that is wrong.
    """
    request = _decoded(_decoder, data, range(EVENT_VERSION, NEWEST_VERSION + 1))
    if bool(request.next_round) != (request.event_version == ROUND_VERSION):
        raise UnsupportedEventError(f"a request with `nextRound` has eventVersion {ROUND_VERSION}, and no other has")
    if bool(request.kind) != (request.event_version == READ_VERSION):
        raise UnsupportedEventError(f"a request with `kind` has eventVersion {READ_VERSION}, and no other has")
    if (
        not request.next_round
        and not request.kind
        and bool(request.sealed) != (request.event_version == SEALED_VERSION)
    ):
        raise UnsupportedEventError(f"a request with `sealed` has eventVersion {SEALED_VERSION}, and no other has")
    return request


def decode_submitted(data: bytes) -> SubmittedRequest:
    """The request of any producer in `data`.

    Raises:
        UnsupportedEventError: it names the field that is wrong.
    """
    return _decoded(_submitted_decoder, data, (EVENT_VERSION,))


def _decoded(decoder: msgspec.json.Decoder[_R], data: bytes, versions: Sequence[int]) -> _R:
    try:
        request = decoder.decode(data)
    except NOT_READABLE as error:
        _raise_newer(data, versions)
        raise UnsupportedEventError(f"not a {EVENT_TYPE} event: {error}") from error
    if request.event_type != EVENT_TYPE:
        raise UnsupportedEventError(f"eventType is {request.event_type!r}, expected {EVENT_TYPE!r}")
    if request.event_version not in versions:
        _raise_newer(data, versions)
        raise UnsupportedEventError(_unsupported(request.event_version, versions))
    return request


def _raise_newer(data: bytes, versions: Sequence[int]) -> None:
    with contextlib.suppress(*NOT_READABLE):
        header = _header_decoder.decode(data)
        if header.event_type == EVENT_TYPE and header.event_version > NEWEST_VERSION:
            raise NewerEventError(_unsupported(header.event_version, versions), header)


def _unsupported(version: int, versions: Sequence[int]) -> str:
    return f"eventVersion is {version}, this release reads {' and '.join(map(str, versions))}"


def arguments_hash(request: ToolCallRequested) -> str:
    """Distinguishes a repeated request from a different one with the same correlation id.

    Sealed arguments are hashed as they are: a hash of the arguments themselves would let a reader guess them.
    """
    hashed: list[Any] = [request.tool_name, request.sealed or request.arguments]
    if request.next_round and not request.sealed:
        hashed.append(request.next_round)
    canonical = msgspec.json.encode(hashed, order="deterministic")
    return hashlib.sha256(canonical).hexdigest()


def approve(request: ToolCallRequested, by: str) -> ToolCallRequested:
    """The request with the approval of its arguments; unapproved when `by` is empty."""
    return msgspec.structs.replace(request, approved=Approval(by, arguments_hash(request)) if by else None)


def is_approved(request: ToolCallRequested) -> bool:
    """Whether a person has approved this call with these arguments.

    Engines of the previous release do not say so, and enqueue no call before it is approved: theirs count as approved.
    """
    if request.approved is msgspec.UNSET:
        return True
    return request.approved is not None and request.approved.arguments == arguments_hash(request)


def new_id() -> str:
    """A new UUIDv7 as text: 48 bits of Unix milliseconds, then random bits (RFC 9562, section 5.7)."""
    stamp = time.time_ns() // 1_000_000
    tail = int.from_bytes(os.urandom(10))
    value = (stamp & (2**48 - 1)) << 80 | 0x7 << 76 | (tail >> 68 & 0xFFF) << 64 | 0b10 << 62 | tail & (2**62 - 1)
    return str(uuid.UUID(int=value))
