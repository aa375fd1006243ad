"""What all transports have in common: their two ways to a server, what they report, how messages are written and read,
and how a request is sent directly.

The SDK passes each request and each answer through several tasks and streams, which costs two to eight times the
processor time (docs/tuning.md). It still negotiates, subscribes to changes, answers the requests of the server, encodes
requests and validates results. Calls go through a second session, whose layer below in the SDK's architecture, the
dispatcher, sends them in the task of their caller.
"""

import asyncio
import json
from abc import abstractmethod
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import anyio
import anyio.abc
import msgspec
from mcp import ClientSession, MCPError
from mcp.shared.dispatcher import (
    CallOptions,
    Dispatcher,
    OnNotify,
    OnNotifyIntercept,
    OnRequest,
    ProgressFnT,
    coerce_request_id,
)
from mcp.shared.transport_context import TransportContext
from mcp.types import (
    CLIENT_CAPABILITIES_META_KEY,
    DiscoverResult,
    Implementation,
    InitializeResult,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCResponse,
    RequestId,
    jsonrpc_message_adapter,
)
from opentelemetry import propagate
from opentelemetry.trace import SpanKind

from callstream_runtime.long_texts import LOOP_CHARACTERS, exceeds
from callstream_runtime.tracing import span
from plugins_mcp.mcp.calls import SendState, note_request
from plugins_mcp.mcp.content import MAX_VALUES
from plugins_mcp.mcp.unreadable import invalid_answer, mended, too_many_values

Negotiated = DiscoverResult | InitializeResult
MAX_UNANSWERED = 100
"""The most requests of a server, such as pings, whose answers wait to be written. The SDK has a task for each."""
_POLL_SECONDS = 0.001
_ASKS: dict[str, Any] = {"elicitation": {"form": {}, "url": {}}}


class TransportListener(Protocol):
    """Takes the events of a transport. Called while messages are read: must not block or raise."""

    def lost(self) -> None:
        """The connection has ended. May be called more than once."""
        ...

    async def result(self, result: dict[str, Any]) -> None:
        """A result arrived that the SDK has not read yet; it may be changed in place."""
        ...

    def updated(self, uri: str) -> None:
        """The server says that a resource was updated. The SDK does not get it: there may be thousands in a second."""


def updated_resource(message: JSONRPCMessage) -> str | None:
    """The resource that a notification says was updated; None for any other message."""
    match message:
        case JSONRPCNotification(method="notifications/resources/updated", params={"uri": str(uri)}):
            return uri
        case _:
            return None


async def room_for_request(unanswered: Callable[[], int]) -> None:
    """Wait until fewer than MAX_UNANSWERED answers wait. A server that does not read them is not read meanwhile."""
    while unanswered() >= MAX_UNANSWERED:  # noqa: ASYNC110 -- nothing signals it
        await asyncio.sleep(_POLL_SECONDS)


@contextmanager
def encoded_request(
    request_id: int, method: str, params: Mapping[str, Any] | None, *, reports: bool, asks: bool = False
) -> Generator[bytes]:
    """The message of a request, for the time of the request, which is a span. `reports`: ask for progress reports;
    `asks`: declare that questions are answered, where each request declares what its client can do."""
    fields = dict(params or {})
    meta: dict[str, Any] = dict(fields.pop("_meta", None) or {})
    if reports:
        meta["progressToken"] = request_id
    if asks and CLIENT_CAPABILITIES_META_KEY in meta:
        meta[CLIENT_CAPABILITIES_META_KEY] = {**meta[CLIENT_CAPABILITIES_META_KEY], **_ASKS}
    name = f"MCP send {method} {fields.get('name', '')}".rstrip()
    with span(name, SpanKind.CLIENT, None, {"mcp.method.name": method}) as traced:
        if traced is not None:
            propagate.inject(meta)
        if meta:
            fields["_meta"] = meta
        message = {"jsonrpc": "2.0", "id": request_id, "method": method} | ({"params": fields} if fields else {})
        yield encoded(message)


def encoded(message: Mapping[str, Any]) -> bytes:
    """A message as JSON in UTF-8, without line breaks.

    Raises:
        ValueError: it holds NaN, an infinite number or half a character, which JSON cannot express.
    """
    return json.dumps(message, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


class Progress(NamedTuple):
    """A report about the request whose progress token is `token`."""

    token: RequestId
    progress: float
    total: float | None
    message: str | None


def progress_of(params: Mapping[str, Any] | None) -> Progress | None:
    """The report in a progress notification; None when it is not valid."""
    match params:
        case {"progressToken": str() | int() as token, "progress": int() | float() as progress} if not (
            isinstance(token, bool) or isinstance(progress, bool)
        ):
            total, message = params.get("total"), params.get("message")
            try:
                return Progress(
                    coerce_request_id(token),
                    float(progress),
                    float(total) if isinstance(total, int | float) else None,
                    message if isinstance(message, str) else None,
                )
            except OverflowError:  # an integer that is larger than every float
                return None
        case _:
            return None


def validated(message: bytes | str, *, by_name: bool = False) -> JSONRPCMessage:
    """The message. A long one takes a tenth of the time in which the SDK's adapter reads the JSON of it.

    Raises:
        ValueError: it is not a message of JSON-RPC, or not quite JSON.
    """
    if len(message) <= LOOP_CHARACTERS:
        return jsonrpc_message_adapter.validate_json(message, by_name=by_name)
    try:
        value = msgspec.json.decode(message)
    except (ValueError, RecursionError):
        return jsonrpc_message_adapter.validate_json(message, by_name=by_name)
    return jsonrpc_message_adapter.validate_python(value, by_name=by_name)


def refusal(message: bytes) -> JSONRPCError | None:
    """The error in place of a message of more than MAX_VALUES values. No objects are made of it to find out."""
    return too_many_values(message) if exceeds(message, MAX_VALUES) else None


def parse_line(line: bytes) -> JSONRPCMessage | None:
    """The message on a line, or what it was meant to be: see `unreadable`. None when the line holds no message."""
    if refused := refusal(line):
        return refused
    try:
        return validated(line)
    except ValueError:
        better = mended(line)
    if not isinstance(better, bytes):
        return better
    try:
        return validated(better)
    except ValueError:
        return invalid_answer(better)


@dataclass(slots=True)
class DirectRequest:
    """One request. What happens to a tool call is recorded in its `send_state`."""

    id: int
    message: bytes
    headers: Mapping[str, str]
    """For transports that have header fields."""
    send_state: SendState
    report: ProgressFnT | None
    """Takes the progress that the server reports."""


class DirectDispatcher(Dispatcher[TransportContext]):
    """Sends requests of the SDK's session, each in the task of its caller. A transport implements `exchange`."""

    def __init__(self, listener: TransportListener, *, first_id: int = 0) -> None:
        """The ids of the requests follow `first_id`."""
        self.listener = listener
        self._last_id = first_id

    async def run(
        self,
        on_request: OnRequest,
        on_notify: OnNotify,
        on_notify_intercept: OnNotifyIntercept | None = None,
        *,
        task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        """Runs until cancelled. Requests and notifications of the server go to the session that negotiated."""
        task_status.started()
        await anyio.sleep_forever()

    async def notify(self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None) -> None:
        """Does nothing: the session that negotiated sends the notifications."""

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> dict[str, Any]:
        """Send a request and return its result. A request that is cancelled is cancelled at the server as well.

        Raises:
            MCPError: the server answered with an error, or there is no answer; then the call's `SendState` says more.
        """
        options: CallOptions = opts or {}
        send_state = note_request(method) or SendState()
        report = options.get("on_progress")
        request_id = self._last_id = self._last_id + 1
        # Servers list some tools only for clients that can be asked; a call declares what holds for its own producer.
        asks = send_state.may_ask or method != "tools/call"
        with encoded_request(request_id, method, params, reports=report is not None, asks=asks) as message:
            request = DirectRequest(request_id, message, options.get("headers", {}), send_state, report)
            answer = await self.exchange(request)
        if isinstance(answer, JSONRPCError):
            raise MCPError.from_error_data(answer.error)
        await self.listener.result(answer.result)
        return answer.result

    @abstractmethod
    async def exchange(self, request: DirectRequest) -> JSONRPCResponse | JSONRPCError:
        """Send a request, and return what answers it. Raises MCPError when nothing does."""

    def close(self) -> None:
        """End the requests that wait for an answer."""


class Connection(NamedTuple):
    """The two ways to a server."""

    streams: Any
    """For the SDK's client: a stream to read and one to write, as its own transports have them."""
    direct: Callable[[Negotiated], DirectDispatcher | None]
    """What sends calls, by what was negotiated; None where only the SDK does."""


@asynccontextmanager
async def direct_session(
    dispatcher: DirectDispatcher, negotiated: Negotiated, client_info: Implementation
) -> AsyncGenerator[ClientSession]:
    """A session of the dispatcher with the server that `negotiated`. Its requests end with it."""
    async with ClientSession(dispatcher=dispatcher, client_info=client_info) as session:
        session.adopt(negotiated)
        with closing(dispatcher):
            yield session
