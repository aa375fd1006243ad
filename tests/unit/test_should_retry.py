"""What the SDKs are told of a refusal: whether to repeat the request."""

from http import HTTPStatus

import pytest

from callstream_runtime.connection_limits import (
    INVALID_REQUEST,
    ConnectionLimits,
    Refusal,
    head_too_large,
    too_many_connections,
    too_slow,
)
from dialog_engine import errors
from dialog_engine.http.problems import problem, problem_of

SAFE = (
    errors.LimitExceededError("too many", 5),
    errors.StorageUnavailableError("away"),
    errors.IdentityProviderError("away"),
    errors.EngineError("unexpected"),
)
IN_VAIN = (
    errors.TurnRunningError("1"),
    errors.TurnStartedError("1"),
    errors.ApprovalDecidedError("decided"),
    errors.ToolChangedError("changed"),
    errors.ClientMessageReusedError("1"),
    errors.IdempotencyKeyReusedError("1"),
    errors.ArgumentsRefusedError("day", "wrong"),
    errors.TurnNotFoundError("none"),
    errors.UnauthenticatedError("no key"),
    errors.TooManyAttemptsError(5),
)


@pytest.mark.parametrize("error", [*SAFE, *IN_VAIN], ids=lambda error: error.code)
def test_a_refusal_says_whether_the_request_may_be_repeated(error: errors.EngineError) -> None:
    answer = problem_of(error)
    assert answer.headers["x-should-retry"] == ("true" if error in SAFE else "false")
    if answer.status_code in (429, 503):
        assert int(answer.headers["retry-after"]) > 0


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_only_these_are_repeated_otherwise(status: int) -> None:
    assert problem(HTTPStatus(status), "ANY", "any").headers["x-should-retry"] == "true"
    said = {"x-should-retry": "false"}
    assert problem(HTTPStatus(status), "ANY", "any", headers=said).headers["x-should-retry"] == "false"


@pytest.mark.parametrize(
    ("refusal", "safe"),
    [
        (too_slow("body", 1), True),
        (too_many_connections("in all"), True),
        (head_too_large(ConnectionLimits()), False),
        (INVALID_REQUEST, False),
    ],
    ids=lambda each: getattr(each, "code", ""),
)
def test_a_refused_connection_says_it_too(refusal: Refusal, safe: bool) -> None:
    assert f"\r\nx-should-retry: {str(safe).lower()}\r\n".encode() in refusal.answer()
