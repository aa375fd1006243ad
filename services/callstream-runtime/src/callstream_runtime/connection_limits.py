"""The limits of a client's connection, and what a client beyond them is answered and causes to be logged."""

import json
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

log = logging.getLogger(__name__)

HEADER_OBJECTS = 160
"""What Python needs for one header besides its characters, in bytes."""
PROBLEM_MEDIA_TYPE = "application/problem+json"
RETRY_AFTER_SECONDS = 5
"""Sent with every 503."""
SHOULD_RETRY = "x-should-retry"
"""The header that tells the SDKs of OpenAI and Anthropic whether to repeat a request."""
REPEATABLE = frozenset(
    (
        HTTPStatus.REQUEST_TIMEOUT,
        HTTPStatus.TOO_MANY_REQUESTS,
        HTTPStatus.INTERNAL_SERVER_ERROR,
        HTTPStatus.BAD_GATEWAY,
        HTTPStatus.SERVICE_UNAVAILABLE,
        HTTPStatus.GATEWAY_TIMEOUT,
    )
)
"""What is answered to a request that may be repeated: it has begun nothing, or its repetition finds what it has begun.
Any other refusal would be repeated in vain."""
LINE_SECONDS = 10.0
TOO_MANY = "a connection is refused: there are too many %s"
INVALID, NOT_COMPLETE = "Invalid HTTP request received.", "ASGI callable returned without completing response."
"""Lines of Uvicorn."""


class _Lines(logging.Filter):
    """Of lines that a stranger can cause with each connection one per LINE_SECONDS is logged.

    None is of a response that is not complete: so an application has the connection closed.
    """

    def __init__(self) -> None:
        super().__init__()
        self._next = dict.fromkeys((INVALID, TOO_MANY), 0.0)

    def filter(self, record: logging.LogRecord) -> bool:
        if record.msg not in self._next:
            return record.msg != NOT_COMPLETE
        if record.created < self._next[record.msg]:
            return False
        self._next[record.msg] = record.created + LINE_SECONDS
        return True


for _log in (log, logging.getLogger("uvicorn.error")):
    _log.addFilter(_Lines())


def _nothing(_: Iterable[tuple[bytes, bytes]]) -> Sequence[str]:
    return ()


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """`head_bytes` bounds the head of a request, and any run of bytes that is neither head nor body, such as trailers.

    It also bounds the memory that Python needs for the head. `headers` bounds the number of headers and trailers.
    `head_seconds` counts from the first byte of a request, or from the beginning of the connection; `body_seconds` from
    the end of the head. A refusal also has the header fields that `also_answer` returns for those that were read.
    """

    connections: int = 10_000
    connections_per_address: int = 1_000
    head_bytes: int = 32_768
    headers: int = 100
    head_seconds: float = 10.0
    body_seconds: float = 30.0
    also_answer: Callable[[Iterable[tuple[bytes, bytes]]], Sequence[str]] = _nothing


def problem_document(status: HTTPStatus, code: str, detail: str) -> dict[str, Any]:
    """The fields that every problem document (RFC 9457) of both services has."""
    return {
        "type": f"urn:callstream:problem:{code.lower().replace('_', '-')}",
        "title": status.phrase,
        "status": status,
        "detail": detail,
        "code": code,
    }


def should_retry(status: HTTPStatus) -> str:
    """The value of SHOULD_RETRY in an answer with this status."""
    return "true" if status in REPEATABLE else "false"


@dataclass(frozen=True, slots=True)
class Refusal:
    """A problem document that ends a connection."""

    status: HTTPStatus
    code: str
    detail: str

    def answer(self, also: Sequence[str] = ()) -> bytes:
        """The whole response; `also` are more header fields."""
        body = json.dumps(problem_document(self.status, self.code, self.detail)).encode()
        fields = [*also, f"content-type: {PROBLEM_MEDIA_TYPE}", f"content-length: {len(body)}", "connection: close"]
        fields.append(f"{SHOULD_RETRY}: {should_retry(self.status)}")
        if self.status is HTTPStatus.SERVICE_UNAVAILABLE:
            fields.append(f"retry-after: {RETRY_AFTER_SECONDS}")
        head = "\r\n".join([f"HTTP/1.1 {self.status:d} {self.status.phrase}", *fields, "", ""])
        return head.encode() + body


INVALID_REQUEST = Refusal(
    HTTPStatus.BAD_REQUEST, "INVALID_REQUEST", "this is no HTTP/1.1 request: correct or replace the client"
)
UPGRADE_WITH_BODY = Refusal(
    HTTPStatus.BAD_REQUEST,
    "UPGRADE_WITH_BODY",
    "this server has no other protocol: send a request that has a body without Upgrade",
)


def too_many_connections(whose: str) -> Refusal:
    """`whose` are too many: those in all, or those from an address. This is logged."""
    log.warning(TOO_MANY, whose)
    detail = f"there are too many connections {whose}: close some, or try again later"
    return Refusal(HTTPStatus.SERVICE_UNAVAILABLE, "TOO_MANY_CONNECTIONS", detail)


def head_too_large(limits: ConnectionLimits) -> Refusal:
    """The head, or its trailers, exceed `limits`."""
    detail = (
        f"the head of the request has more than {limits.headers} headers, or more than {limits.head_bytes} bytes"
        f" with {HEADER_OBJECTS} for each header: send fewer or shorter headers"
    )
    return Refusal(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "HEAD_TOO_LARGE", detail)


def too_slow(part: str, seconds: float) -> Refusal:
    """A `part` of the request took longer than `seconds`."""
    detail = f"the {part} of the request was not complete after {seconds:g} seconds: send it again"
    return Refusal(HTTPStatus.REQUEST_TIMEOUT, "REQUEST_TOO_SLOW", detail)
