"""Classification of HTTP responses and of errors of the SDK, beyond what the integration tests show."""

from datetime import UTC, datetime
from typing import Any

import httpx2
import pytest
from mcp import MCPError
from pydantic import BaseModel, ValidationError

from plugins_contract.errors import ErrorCode
from plugins_mcp.mcp.calls import Ambiguous, CallResult, NotSent, Rejected, RetryLater, SendState
from plugins_mcp.mcp.error_classification import (
    HttpAnswer,
    ServerExitedError,
    classify_error,
    describe_error,
    is_expected,
    retry_after,
    session_lost,
)

CLOSED = MCPError(-32000, "Connection closed")
JSON = {"content-type": "application/json"}


@pytest.mark.parametrize(
    ("error", "send_state", "lost", "expected"),
    [
        (CLOSED, SendState(sent=False), True, NotSent("Connection closed")),
        (RuntimeError("not entered"), SendState(sent=False), False, NotSent("internal error: not entered")),
        (CLOSED, SendState(sent=True), True, Ambiguous("the connection was lost during the call")),
        (CLOSED, SendState(sent=True), False, Rejected(ErrorCode.TOOL_EXECUTION_FAILED, "Connection closed")),
        (RuntimeError("bad"), SendState(sent=True), False, Ambiguous("internal error after the call was sent")),
        (CLOSED, SendState(sent=True, http_result=RetryLater("x")), True, RetryLater("x")),
        (
            CLOSED,
            SendState(sent=True, rounds=2, http_result=NotSent("x")),
            True,
            Ambiguous("after the server had begun: x"),
        ),
        (MCPError(-32601, "no"), SendState(sent=True, answered=True), False, Ambiguous),
        (MCPError(-32020, "header"), SendState(sent=True, answered=True), False, Rejected),
    ],
)
def test_an_error_is_classified_by_the_send_state_and_not_by_its_code(
    error: Exception, send_state: SendState, lost: bool, expected: CallResult | type[CallResult]
) -> None:
    seen = classify_error(error, send_state, lost=lost)
    assert seen == expected if not isinstance(expected, type) else isinstance(seen, expected)


@pytest.mark.parametrize(
    ("answer", "lost"),
    [
        (HttpAnswer(404, {}, b"", in_session=True), True),
        (HttpAnswer(404, {}, b"", in_session=False), False),
        (HttpAnswer(400, {}, b"Bad Request: No valid session ID provided", in_session=True), True),
        (
            HttpAnswer(400, JSON, b'{"jsonrpc":"2.0","error":{"code":-32000,"message":"Session x not found"}}', True),
            True,
        ),
        (
            HttpAnswer(400, JSON, b'{"jsonrpc":"2.0","error":{"code":-32602,"message":"unknown session_id"}}', True),
            False,
        ),
        (HttpAnswer(400, JSON, b'{"jsonrpc":"2.0","error":{"code":-32000,"message":"a bad day"}}', True), False),
        (HttpAnswer(500, {}, b"session not found", in_session=True), False),
    ],
)
def test_a_session_is_lost_only_when_the_server_says_so(answer: HttpAnswer, lost: bool) -> None:
    assert session_lost(answer) is lost


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        ("5", 5.0),
        ("soon", None),
        ("Wed, 01 Jan 2025 00:00:30 GMT", 30.0),
        ("Tue, 31 Dec 2024 00:00:00 GMT", 0.0),
        ("-5", None),
    ],
)
def test_retry_after_is_a_number_or_a_date(value: str | None, seconds: float | None) -> None:
    assert retry_after(value, datetime(2025, 1, 1, tzinfo=UTC)) == seconds


def invalid() -> ValidationError:
    class Thing(BaseModel):
        secret: int

    with pytest.raises(ValidationError) as caught:
        Thing.model_validate({"secret": "hush"})
    return caught.value


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ExceptionGroup("a", [ExceptionGroup("b", [OSError("x"), OSError("x")])]), "x"),
        (TimeoutError(), "no answer in time"),
        (httpx2.ReadTimeout(""), "no answer in time"),
        (httpx2.ConnectError(""), "the connection failed"),
        (ServerExitedError(3), "the server process exited with code 3 during the handshake"),
        (ServerExitedError(-9), "the server process was killed by signal 9 during the handshake"),
        (MCPError(-32000, "gone"), "gone"),
        (invalid(), "the server sent a Thing that is not valid MCP"),
        (
            httpx2.HTTPStatusError(
                "for url http://h?key=k", request=httpx2.Request("GET", "http://h"), response=httpx2.Response(401)
            ),
            "HTTP 401: the server does not accept the credentials: check headers, or MCP_API_KEY",
        ),
        (
            MCPError(-32099, "HTTP 404"),
            "HTTP 404: there is no MCP server at this address: check url, or MCP_SERVER_ENDPOINT",
        ),
        (MCPError(-32099, "HTTP 500"), "HTTP 500"),
        (MCPError(-32700, "Failed to parse: 4 errors\n and each of them"), "Failed to parse: 4 errors"),
    ],
)
def test_errors_are_described_in_one_line_without_class_names(error: Any, text: str) -> None:
    assert describe_error(error) == text
    assert is_expected(error)


def test_defects_of_the_worker_are_not_expected() -> None:
    assert not is_expected(ExceptionGroup("a", [OSError(), KeyError("x")]))
