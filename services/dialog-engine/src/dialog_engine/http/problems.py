"""Errors as problem documents (RFC 9457). Each names the field and says what to do; none holds a secret."""

import logging
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from dialog_engine.errors import (
    EngineError,
    SessionNotFoundError,
    StorageUnavailableError,
    TurnNotFoundError,
    TurnRunningError,
)

log = logging.getLogger(__name__)

RETRY_AFTER_SECONDS = 5

_STATUS: dict[type[EngineError], HTTPStatus] = {
    SessionNotFoundError: HTTPStatus.NOT_FOUND,
    TurnNotFoundError: HTTPStatus.NOT_FOUND,
    TurnRunningError: HTTPStatus.CONFLICT,
    StorageUnavailableError: HTTPStatus.SERVICE_UNAVAILABLE,
}


class ProblemError(Exception):
    """Answer with this problem."""

    def __init__(self, status: HTTPStatus, code: str, detail: str, *, field: str | None = None, **extra: Any) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.extra = extra | ({"errors": [{"field": field, "message": detail}]} if field else {})


def problem(
    status: HTTPStatus,
    code: str,
    detail: str,
    extra: dict[str, Any] | None = None,
    headers: dict[str, str] | None = None,
) -> JSONResponse:
    """A problem document as a response."""
    body = {
        "type": f"urn:callstream:problem:{code.lower().replace('_', '-')}",
        "title": status.phrase,
        "status": status,
        "detail": detail,
        "code": code,
    }
    return JSONResponse(body | (extra or {}), status, headers, media_type="application/problem+json")


def install(app: FastAPI) -> None:
    """Make every error of `app` a problem document."""
    app.add_exception_handler(ProblemError, _on_problem)
    app.add_exception_handler(EngineError, _on_engine_error)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(Exception, _on_anything)


async def _on_problem(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ProblemError)  # noqa: S101 -- narrows the type that Starlette dispatched on
    return problem(error.status, error.code, error.detail, error.extra)


async def _on_engine_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, EngineError)  # noqa: S101 -- see above
    status = _STATUS.get(type(error), HTTPStatus.INTERNAL_SERVER_ERROR)
    extra = {"turnId": error.turn_id} if isinstance(error, TurnRunningError) else None
    headers = {"Retry-After": str(RETRY_AFTER_SECONDS)} if status is HTTPStatus.SERVICE_UNAVAILABLE else None
    return problem(status, error.code, str(error), extra, headers)


async def _on_invalid(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)  # noqa: S101 -- see above
    found: Sequence[Any] = error.errors()
    if any(each["type"] == "json_invalid" for each in found):
        reason = found[0].get("ctx", {}).get("error", "it cannot be read")
        return problem(HTTPStatus.BAD_REQUEST, "INVALID_JSON", f"the body is not valid JSON: {reason}")
    errors = [{"field": _field(each["loc"]), "message": _message(each)} for each in found]
    detail = "; ".join(f"{each['field']}: {each['message']}" for each in errors)
    return problem(HTTPStatus.UNPROCESSABLE_ENTITY, "INVALID_REQUEST", detail, {"errors": errors})


async def _on_http(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)  # noqa: S101 -- see above
    status = HTTPStatus(error.status_code)
    return problem(status, status.name, str(error.detail), headers=dict(error.headers or {}))


async def _on_anything(request: Request, error: Exception) -> JSONResponse:
    log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return problem(HTTPStatus.INTERNAL_SERVER_ERROR, "INTERNAL_ERROR", "the engine made a mistake; it was logged")


def _field(location: Sequence[Any]) -> str:
    """The name of what is wrong, without the `body` or `query` that FastAPI puts in front."""
    names = [str(part) for part in location[1:]] or [str(part) for part in location]
    return ".".join(names)


def _message(error: Any) -> str:
    match error["type"]:
        case "extra_forbidden":
            return "there is no such field; leave it out"
        case "missing":
            return "is required"
        case _:
            return str(error["msg"]).removeprefix("Value error, ")
