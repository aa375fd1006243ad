"""What the routes may answer, for the description of the API at `/openapi.json`."""

from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

from callstream_runtime.connection_limits import PROBLEM_MEDIA_TYPE

Responses = dict[int | str, dict[str, Any]]

_DOCUMENT = {
    "type": "object",
    "required": ["type", "title", "status", "detail", "code"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "code": {"type": "string"},
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["field", "message"],
                "properties": {"field": {"type": "string"}, "message": {"type": "string"}},
            },
        },
    },
}


def content(status: HTTPStatus, *media_types: str, schema: dict[str, Any] | None = None) -> Responses:
    """An answer with a body of one of these types."""
    types = {each: {"schema": {"type": "string"} if schema is None else schema} for each in media_types}
    return {status.value: {"description": status.phrase, "content": types}}


def empty(status: HTTPStatus) -> Responses:
    """An answer without a body."""
    return {status.value: {"description": status.phrase}}


def problems(statuses: Iterable[HTTPStatus]) -> Responses:
    """Problem documents (RFC 9457)."""
    return {
        number: answer
        for status in statuses
        for number, answer in content(status, PROBLEM_MEDIA_TYPE, schema=_DOCUMENT).items()
    }


def sentences(answers: Responses) -> Responses:
    """The same problems, each as one sentence."""
    text = {"text/plain": {"schema": {"type": "string"}}}
    return {status: answer | {"content": text} for status, answer in answers.items()}


EVERYWHERE = problems(
    (
        HTTPStatus.UNAUTHORIZED,
        HTTPStatus.FORBIDDEN,
        HTTPStatus.REQUEST_TIMEOUT,
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        HTTPStatus.MISDIRECTED_REQUEST,
        HTTPStatus.TOO_MANY_REQUESTS,
        HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
        HTTPStatus.INTERNAL_SERVER_ERROR,
        HTTPStatus.SERVICE_UNAVAILABLE,
    )
) | problems((HTTPStatus.UNPROCESSABLE_ENTITY,))
"""What guards answer at any path, and what FastAPI describes for every parameter."""
BODY = problems((HTTPStatus.BAD_REQUEST, HTTPStatus.UNSUPPORTED_MEDIA_TYPE))
"""A body that is not JSON."""
ERASURE = content(
    HTTPStatus.ACCEPTED,
    "application/json",
    schema={
        "type": "object",
        "required": ["sessions", "running", "traces"],
        "properties": {
            "sessions": {"type": "integer", "description": "Sessions that are not deleted yet."},
            "running": {
                "type": "array",
                "items": {"type": "string"},
                "description": "Those of them with a running turn: they are deleted when it has ended.",
            },
            "traces": {"type": "integer", "description": "Deleted sessions whose traces in Redis are not erased yet."},
        },
    },
)
"""What is left to do of the erasures of a subject."""
NOT_FOUND = problems((HTTPStatus.NOT_FOUND,))
CONFLICT = problems((HTTPStatus.CONFLICT,))
_EVENT = {
    "type": "object",
    "required": ["id", "event", "data"],
    "properties": {
        "id": {"type": "string", "pattern": "^[0-9]+-[0-9]+$"},
        "event": {"enum": ["control", "text", "reasoning", "message", "reset", "error", "done", "withdrawn"]},
        "data": {"type": "string", "contentMediaType": "application/json"},
    },
}
EVENTS: Responses = {
    HTTPStatus.OK.value: {"description": "The turn's events.", "content": {"text/event-stream": {"schema": _EVENT}}}
}
"""An event stream; the schema describes each event of it."""
ANSWER: Responses = {
    HTTPStatus.OK.value: {
        "description": "The turn's events, or one document when it has ended or waits for its user.",
        "content": EVENTS[HTTPStatus.OK.value]["content"] | {"application/json": {"schema": {"type": "object"}}},
    }
}
QUEUED = content(HTTPStatus.ACCEPTED, "application/json", schema={"type": "object"})
"""A message that waits for the turns before it, for a client that reads no event stream."""
_SESSION_EVENT = {
    "type": "object",
    "required": ["id", "event", "data"],
    "properties": {
        "id": {"type": "string", "pattern": "^[0-9]+$"},
        "event": {"enum": ["session", "deleted", "tools", "resource", "reset"]},
        "data": {"type": "string", "contentMediaType": "application/json"},
    },
}
SESSION_EVENTS: Responses = {
    HTTPStatus.OK.value: {
        "description": "The subject's events.",
        "content": {"text/event-stream": {"schema": _SESSION_EVENT}},
    }
}
