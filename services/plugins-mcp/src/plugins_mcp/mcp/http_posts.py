"""Requests to a stateless server over HTTP: each is one POST, made in the task of its caller.

Servers of 2026-07-28 and later keep no session, so nothing connects one request with another. Cancelling a request
closes its connection, which is how such a server learns of it.
"""

import httpx2
from mcp import MCPError
from mcp.shared.dispatcher import ProgressFnT, coerce_request_id
from mcp.types import (
    CONNECTION_CLOSED,
    PARSE_ERROR,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCResponse,
)
from pydantic import ValidationError

from callstream_runtime.long_texts import reading
from plugins_mcp.mcp.content import MAX_ANSWER_BYTES
from plugins_mcp.mcp.dispatcher import (
    DirectDispatcher,
    DirectRequest,
    TransportListener,
    progress_of,
    refusal,
    validated,
)
from plugins_mcp.mcp.error_classification import FAILED_TO_PARSE, TRANSPORT_FAILED, HttpAnswer, classify_response
from plugins_mcp.mcp.http_client import HttpClient, HttpResponse

_HEADERS = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}


class PostDispatcher(DirectDispatcher):
    """Sends requests by POST."""

    def __init__(self, http: HttpClient, url: str, listener: TransportListener) -> None:
        super().__init__(listener)
        self._http = http
        self._url = httpx2.URL(url)

    async def exchange(self, request: DirectRequest) -> JSONRPCResponse | JSONRPCError:
        """Post a request, and read the answer in the response."""
        headers = {**_HEADERS, **request.headers}
        try:
            response = await self._http.post(self._url, request.message, headers, request.send_state)
        except httpx2.TransportError as error:
            raise MCPError(TRANSPORT_FAILED, str(error)) from error
        try:
            return await _read_answer(response, request)
        finally:
            response.close()


async def _read_answer(response: HttpResponse, request: DirectRequest) -> JSONRPCResponse | JSONRPCError:
    answer = HttpAnswer(response.status, response.headers, response.body)
    request.send_state.http_result = classify_response(answer)
    if request.send_state.http_result is not None:
        raise MCPError(TRANSPORT_FAILED, f"HTTP {response.status}")
    if not response.is_read:
        return await _read_events(response, request.id, request.report)
    message = await reading(len(response.body), _parsed, response.body)
    if not isinstance(message, JSONRPCResponse | JSONRPCError):
        raise MCPError(PARSE_ERROR, f"{FAILED_TO_PARSE} JSON response")
    if message.id is not None and coerce_request_id(message.id) != request.id:
        raise MCPError(PARSE_ERROR, f"{FAILED_TO_PARSE} JSON response: it answers another request")
    return message


async def _read_events(
    response: HttpResponse, request_id: int, report: ProgressFnT | None
) -> JSONRPCResponse | JSONRPCError:
    """The answer in an event stream; what is reported before it is passed on. Raises MCPError when there is none."""
    stream = httpx2.Response(
        200, headers={"Content-Type": "text/event-stream"}, content=response.parts(), request=_ANY_REQUEST
    )
    try:
        async for event in httpx2.EventSource(stream, max_event_size=MAX_ANSWER_BYTES):
            if event.event != "message" or not event.data:
                continue
            match await reading(len(event.data), _parsed, event.data.encode()):
                case JSONRPCResponse() | JSONRPCError() as message:
                    return message
                case JSONRPCNotification(method="notifications/progress", params=params) if report is not None:
                    progress = progress_of(params)
                    if progress is not None and progress.token == request_id:
                        await report(*progress[1:])
                case None:
                    raise MCPError(PARSE_ERROR, f"{FAILED_TO_PARSE} SSE message")
                case _:
                    pass
    except httpx2.SSEError as error:
        raise MCPError(CONNECTION_CLOSED, f"SSE stream failed: {error}") from error
    except httpx2.TransportError:
        pass
    raise MCPError(CONNECTION_CLOSED, "SSE stream ended without a response")


_ANY_REQUEST = httpx2.Request("POST", "http://any")
"""The parser of events asks for one, and does not read it."""


def _parsed(data: bytes) -> JSONRPCMessage | None:
    if refused := refusal(data):
        raise MCPError.from_error_data(refused.error)
    try:
        return validated(data)
    except ValidationError:
        return None
