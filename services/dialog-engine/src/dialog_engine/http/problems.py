"""Errors as problem documents (RFC 9457). Each names the field and the fix; none shows the inside of the engine."""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from callstream_runtime.connection_limits import (
    PROBLEM_MEDIA_TYPE,
    RETRY_AFTER_SECONDS,
    SHOULD_RETRY,
    problem_document,
    should_retry,
)
from dialog_engine.errors import (
    AmbiguousCallError,
    ApprovalDecidedError,
    ApprovalExpiredError,
    ApprovalNotFoundError,
    ApprovalStaleError,
    ArgumentsRefusedError,
    ClientCallAnsweredError,
    ClientCallNotFoundError,
    ClientMessageReusedError,
    ClientToolError,
    ClientToolsNotNowError,
    CredentialRevokedError,
    EngineError,
    ForbiddenError,
    IdempotencyKeyReusedError,
    IdentityProviderError,
    LimitExceededError,
    NotServedError,
    SessionNotFoundError,
    StorageUnavailableError,
    ToolChangedError,
    TooManyAddedError,
    TooManyAttemptsError,
    TooManyBranchesError,
    TurnNotFoundError,
    TurnRunningError,
    TurnStartedError,
    UnauthenticatedError,
)
from dialog_engine.tool_calls.questions.values import (
    AnswerRefusedError,
    QuestionAnsweredError,
    QuestionNotFoundError,
)

log = logging.getLogger(__name__)

MAX_LOGGED = 200
"""How many characters of what a stranger has chosen are logged."""

_STATUS: dict[type[EngineError], HTTPStatus] = {
    NotServedError: HTTPStatus.NOT_FOUND,
    SessionNotFoundError: HTTPStatus.NOT_FOUND,
    TurnNotFoundError: HTTPStatus.NOT_FOUND,
    TurnRunningError: HTTPStatus.CONFLICT,
    TooManyBranchesError: HTTPStatus.CONFLICT,
    TooManyAddedError: HTTPStatus.CONFLICT,
    TurnStartedError: HTTPStatus.CONFLICT,
    ClientMessageReusedError: HTTPStatus.CONFLICT,
    IdempotencyKeyReusedError: HTTPStatus.UNPROCESSABLE_ENTITY,
    UnauthenticatedError: HTTPStatus.UNAUTHORIZED,
    CredentialRevokedError: HTTPStatus.UNAUTHORIZED,
    TooManyAttemptsError: HTTPStatus.TOO_MANY_REQUESTS,
    ForbiddenError: HTTPStatus.FORBIDDEN,
    IdentityProviderError: HTTPStatus.SERVICE_UNAVAILABLE,
    LimitExceededError: HTTPStatus.TOO_MANY_REQUESTS,
    StorageUnavailableError: HTTPStatus.SERVICE_UNAVAILABLE,
    ApprovalNotFoundError: HTTPStatus.NOT_FOUND,
    AmbiguousCallError: HTTPStatus.CONFLICT,
    ApprovalDecidedError: HTTPStatus.CONFLICT,
    ApprovalExpiredError: HTTPStatus.CONFLICT,
    ApprovalStaleError: HTTPStatus.CONFLICT,
    ToolChangedError: HTTPStatus.CONFLICT,
    ArgumentsRefusedError: HTTPStatus.UNPROCESSABLE_ENTITY,
    QuestionNotFoundError: HTTPStatus.NOT_FOUND,
    QuestionAnsweredError: HTTPStatus.CONFLICT,
    AnswerRefusedError: HTTPStatus.UNPROCESSABLE_ENTITY,
    ClientToolError: HTTPStatus.UNPROCESSABLE_ENTITY,
    ClientToolsNotNowError: HTTPStatus.SERVICE_UNAVAILABLE,
    ClientCallNotFoundError: HTTPStatus.NOT_FOUND,
    ClientCallAnsweredError: HTTPStatus.CONFLICT,
}


class ProblemError(Exception):
    """Raised by a route or its dependencies; the response is this problem."""

    def __init__(
        self,
        status: HTTPStatus,
        code: str,
        detail: str,
        *,
        field: str | None = None,
        headers: dict[str, str] | None = None,
        **extra: Any,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.headers = headers
        self.extra = extra | ({"errors": [{"field": field, "message": detail}]} if field else {})


def problem(
    status: HTTPStatus,
    code: str,
    detail: str,
    extra: dict[str, Any] | None = None,
    headers: dict[str, str] | None = None,
) -> "Problem":
    """A problem document as a response."""
    return Problem(code, problem_document(status, code, detail) | (extra or {}), status, headers)


class Problem(JSONResponse):
    """A problem document as a response; `code` is the document's. `headers` win over the default of SHOULD_RETRY."""

    def __init__(self, code: str, body: dict[str, Any], status: HTTPStatus, headers: dict[str, str] | None) -> None:
        said = {SHOULD_RETRY: should_retry(status)} | (headers or {})
        super().__init__(body, status, said, media_type=PROBLEM_MEDIA_TYPE)
        self.code = code
        self.document = body


ErrorForms = Mapping[str, Callable[[Problem], Response]]
"""How the clients of other protocols get an error, by the beginnings of their paths."""

_Handler = Callable[[Request, Exception], Awaitable[Problem]]
_Noted = Callable[[Request, Exception], Awaitable[Response]]


def install(app: FastAPI, allowed: Callable[[Request], str]) -> None:
    """Make every error of `app` a problem document. `allowed` returns the methods of a path."""

    async def on_http(request: Request, error: Exception) -> Problem:
        answer = await _on_http(request, error)
        if answer.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
            answer.headers["Allow"] = allowed(request)
        return answer

    app.add_exception_handler(ProblemError, _noted(_on_problem))
    app.add_exception_handler(EngineError, _noted(_on_engine_error))
    app.add_exception_handler(RequestValidationError, _noted(_on_invalid))
    app.add_exception_handler(HTTPException, _noted(on_http))
    app.add_exception_handler(Exception, _noted(_on_anything))


def _noted(handler: _Handler) -> _Noted:
    """The handler; what it answers is logged and counted. The path has ids, and no text of a user."""

    async def handle(request: Request, error: Exception) -> Response:
        return note(request, await handler(request, error))

    return handle


def note(request: Request, answer: Problem, subject: str = "") -> Response:
    """Log and count the answer, which is returned in the form of the request's protocol. `subject` is the sender, if
    the request was not admitted."""
    subject = subject or subject_of(request)
    fields = {"method": request.method, "path": _path(request), "status": answer.status_code, "code": answer.code}
    log.info("request refused", extra=fields | {"subject": subject})
    services = getattr(request.state, "services", None)  # not there before the engine has started
    if services is not None:
        services.on_refused(answer.code, subject)
    forms: ErrorForms = request.app.error_forms
    form = next((form for start, form in forms.items() if request.scope["path"].startswith(start)), None)
    return form(answer) if form else answer


def subject_of(request: Request) -> str:
    """The subject of an admitted request; '' when the request was not admitted."""
    principal = getattr(request.state, "principal", None)
    return principal.subject if principal else ""


def _path(request: Request) -> str:
    """The path for a line of the log, which a stranger must not fill."""
    return str(request.scope["path"])[:MAX_LOGGED]


async def _on_problem(_: Request, error: Exception) -> Problem:
    assert isinstance(error, ProblemError)  # noqa: S101 -- narrows the type that Starlette dispatched on
    return problem(error.status, error.code, error.detail, error.extra, error.headers)


async def _on_engine_error(_: Request, error: Exception) -> Problem:
    assert isinstance(error, EngineError)  # noqa: S101 -- see above
    return problem_of(error)


def problem_of(error: EngineError) -> Problem:
    """The problem document of a named failure."""
    status = _STATUS.get(type(error), HTTPStatus.INTERNAL_SERVER_ERROR)
    headers: dict[str, str] = {}
    match error:
        case LimitExceededError(retry_in=retry_in):
            headers["Retry-After"] = str(retry_in)
        case TooManyAttemptsError(retry_in=retry_in):  # a repetition is one more attempt
            headers |= {"Retry-After": str(retry_in), SHOULD_RETRY: "false"}
        case UnauthenticatedError():
            headers["WWW-Authenticate"] = "Bearer"
        case _ if status is HTTPStatus.SERVICE_UNAVAILABLE:
            headers["Retry-After"] = str(RETRY_AFTER_SECONDS)
        case _:
            pass
    return problem(status, error.code, str(error), _extra(error), headers)


def _extra(error: EngineError) -> dict[str, Any] | None:
    """Fields that a problem document has in addition to the common ones."""
    match error:
        case TurnRunningError(turn_id=turn_id, waits_for=waits_for) if waits_for:
            return {"turnId": turn_id, "waitsFor": [*waits_for]}
        case (
            TurnRunningError(turn_id=turn_id)
            | TurnStartedError(turn_id=turn_id)
            | ClientMessageReusedError(turn_id=turn_id)
        ):
            return {"turnId": turn_id}
        case IdempotencyKeyReusedError():
            return {"errors": [{"field": "Idempotency-Key", "message": str(error)}]}
        case AnswerRefusedError(problems=problems):
            return {"errors": [{"field": f"content.{name}", "message": why} for name, why in problems.items()]}
        case (
            ApprovalDecidedError(stands=stands)
            | QuestionAnsweredError(stands=stands)
            | ClientCallAnsweredError(stands=stands)
        ):
            return dict(stands)
        case ClientToolError(number=number, field=field):
            parts = ["clientTools", *(() if number is None else (str(number),)), *([field] if field else [])]
            return {"errors": [{"field": ".".join(parts), "message": str(error)}]}
        case UnauthenticatedError(signs_in=signs_in):
            errors = [{"field": "Authorization", "message": str(error)}]
            return {"errors": errors} | ({"signIn": "/sign-in"} if signs_in else {})
        case ArgumentsRefusedError(field=field, message=message):
            name = field if field.startswith("arguments") else f"arguments.{field}".removesuffix(".")
            return {"errors": [{"field": name, "message": message}]}
        case _:
            return None


async def _on_invalid(request: Request, error: Exception) -> Problem:
    assert isinstance(error, RequestValidationError)  # noqa: S101 -- see above
    found: Sequence[Any] = error.errors()
    if any(each["type"] == "json_invalid" for each in found):
        reason = found[0].get("ctx", {}).get("error", "it cannot be read")
        return _invalid_json(reason)
    if any(tuple(each["loc"]) == ("body",) for each in found) and not _says_json(request):
        detail = "the body must be JSON, sent with Content-Type: application/json"
        errors = {"errors": [{"field": "Content-Type", "message": detail}]}
        return problem(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "UNSUPPORTED_MEDIA_TYPE", detail, errors)
    errors = [{"field": _field(each["loc"]), "message": _message(each)} for each in found]
    detail = "; ".join(f"{each['field']}: {each['message']}" for each in errors)
    return problem(HTTPStatus.UNPROCESSABLE_ENTITY, "INVALID_REQUEST", detail, {"errors": errors})


async def _on_http(_: Request, error: Exception) -> Problem:
    assert isinstance(error, HTTPException)  # noqa: S101 -- see above
    status = HTTPStatus(error.status_code)
    if status is HTTPStatus.BAD_REQUEST and error.__cause__ is not None:
        # FastAPI could not read the body, for another reason than its syntax.
        reason = "is not UTF-8 text" if isinstance(error.__cause__, UnicodeError) else "is nested too deeply"
        return _invalid_json(f"it {reason}")
    return problem(status, status.name, str(error.detail), headers=dict(error.headers or {}))


async def _on_anything(request: Request, error: Exception) -> Problem:
    fields = {"subject": subject_of(request)}
    log.error("%s %s failed", request.method, _path(request), exc_info=error, extra=fields)
    return problem(
        HTTPStatus.INTERNAL_SERVER_ERROR, "INTERNAL_ERROR", "internal error; the log of the server has the details"
    )


def _says_json(request: Request) -> bool:
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    return content_type == "application/json" or (
        content_type.startswith("application/") and content_type.endswith("+json")
    )


def _invalid_json(reason: str) -> Problem:
    detail = f"the body is not valid JSON: {reason}"
    return problem(HTTPStatus.BAD_REQUEST, "INVALID_JSON", detail, {"errors": [{"field": "body", "message": detail}]})


def _field(location: Sequence[Any]) -> str:
    """The name of a field, without the `body` or `query` that FastAPI puts in front."""
    names = [str(part) for part in location[1:]] or [str(part) for part in location]
    return ".".join(names)


def _message(error: Any) -> str:
    match error["type"]:
        case "extra_forbidden":
            return "is not a known field; leave it out"
        case "missing":
            return "is required"
        case _:
            return str(error["msg"]).removeprefix("Value error, ")
