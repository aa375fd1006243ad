"""Errors as clients of OpenAI's API read them: an object `error` beside the fields of the problem document."""

from http import HTTPStatus

from fastapi import Response

from dialog_engine.facades.openai.objects import error_object
from dialog_engine.http.problems import Problem

_CODES = {"UNAUTHORIZED": "invalid_api_key", "LIMIT_EXCEEDED": "rate_limit_exceeded"}


def with_error(problem: Problem) -> Response:
    """The problem document with its error."""
    status, code = problem.status_code, problem.code
    named = problem.document.get("errors", [])
    kind = "server_error" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error"
    kind = "rate_limit_error" if status == HTTPStatus.TOO_MANY_REQUESTS else kind
    param = named[0]["field"] if named else None
    error = error_object(problem.document["detail"], _CODES.get(code, code.lower()), kind=kind, param=param)
    problem.body = problem.render({**problem.document, "error": error})
    problem.headers["Content-Length"] = str(len(problem.body))
    return problem
