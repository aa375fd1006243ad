"""What an HTTP answer and an error of the SDK say about a call. Beyond what the integration tests show."""

from datetime import UTC, datetime
from typing import Any

import httpx2
import pytest
from mcp import MCPError
from pydantic import BaseModel, ValidationError

from plugins_contract.errors import ErrorCode
from plugins_mcp.mcp.calls import Ambiguous, CallResult, NotSent, Rejected, RetryLater
from plugins_mcp.mcp.failures import describe, expected
from plugins_mcp.mcp.flight import Flight
from plugins_mcp.mcp.http_answers import HttpAnswer, retry_after, session_lost
from plugins_mcp.mcp.verdict import verdict

CLOSED = MCPError(-32000, "Connection closed")
JSON = {"content-type": "application/json"}


@pytest.mark.parametrize(
    ("error", "flight", "lost", "expected"),
    [
        (CLOSED, Flight(sent=False), True, NotSent("Connection closed")),
        (RuntimeError("not entered"), Flight(sent=False), False, NotSent("not entered")),
        (CLOSED, Flight(sent=True), True, Ambiguous("the connection was lost during the call")),
        (CLOSED, Flight(sent=True), False, Rejected(ErrorCode.TOOL_EXECUTION_FAILED, "Connection closed")),
        (RuntimeError("bad"), Flight(sent=True), False, Ambiguous("the answer cannot be read: RuntimeError")),
        (CLOSED, Flight(sent=True, finding=RetryLater("x")), True, RetryLater("x")),
        (CLOSED, Flight(sent=True, rounds=2, finding=NotSent("x")), True, Ambiguous("after the server had begun: x")),
        (MCPError(-32601, "no"), Flight(sent=True, answered=True), False, Ambiguous),
        (MCPError(-32020, "header"), Flight(sent=True, answered=True), False, Rejected),
    ],
)
def test_an_error_is_read_by_the_facts_and_not_by_its_code(
    error: Exception, flight: Flight, lost: bool, expected: CallResult | type[CallResult]
) -> None:
    seen = verdict(error, flight, lost=lost)
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
        (ExceptionGroup("a", [ExceptionGroup("b", [OSError("x"), OSError("x")])]), "OSError: x"),
        (TimeoutError(), "no answer in time"),
        (MCPError(-32000, "gone"), "gone"),
        (invalid(), "the server sent a Thing that is not valid MCP"),
        (
            httpx2.HTTPStatusError(
                "for url http://h?key=k", request=httpx2.Request("GET", "http://h"), response=httpx2.Response(401)
            ),
            "HTTP 401: it wants another login: check headers, or MCP_API_KEY",
        ),
        (MCPError(-32099, "HTTP 404"), "HTTP 404: it is not at this address: check url, or MCP_SERVER_ENDPOINT"),
        (MCPError(-32099, "HTTP 500"), "HTTP 500"),
        (MCPError(-32700, "Failed to parse: 4 errors\n and each of them"), "Failed to parse: 4 errors"),
    ],
)
def test_failures_are_told_in_one_line(error: Any, text: str) -> None:
    assert describe(error) == text
    assert expected(error)


def test_our_own_mistakes_are_not_expected() -> None:
    assert not expected(ExceptionGroup("a", [OSError(), KeyError("x")]))
