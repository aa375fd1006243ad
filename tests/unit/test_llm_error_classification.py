"""Failures that a provider reports inside a stream get the engine's names, and hold no secrets."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import httpx2
import pytest

from dialog_engine.errors import (
    LLMAuthenticationError,
    LLMContextLengthError,
    LLMError,
    LLMOverloadedError,
    LLMQuotaError,
    LLMRateLimitedError,
    LLMRequestError,
    LLMUnavailableError,
)
from dialog_engine.llm.error_classification import MAX_PROVIDER_CHARACTERS, ErrorClassifier, retry_after_seconds
from dialog_engine.llm.openai_decoding import decode_chunk

TOO_LONG = LLMContextLengthError


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"code": 429, "message": "slow down"}, LLMRateLimitedError),
        ({"type": "insufficient_quota", "message": "pay"}, LLMQuotaError),
        ({"code": "invalid_api_key", "type": "invalid_request_error"}, LLMAuthenticationError),
        ({"code": 400, "type": "BadRequestError", "message": "too long"}, LLMRequestError),
        ({"type": "invalid_request_error", "code": "context_length_exceeded"}, LLMContextLengthError),
        ({"code": 502, "message": "Provider disconnected"}, LLMUnavailableError),
        ({"type": "overloaded_error", "message": "Overloaded"}, LLMOverloadedError),
        (
            {"type": "invalid_request_error", "message": "prompt is too long: 9 tokens > 8 maximum"},
            LLMContextLengthError,
        ),
        ({"code": 503, "status": "UNAVAILABLE", "message": "The model is overloaded."}, LLMOverloadedError),
        ("engine died", LLMUnavailableError),
    ],
)
def test_an_error_in_the_stream_gets_its_name(error: object, kind: type[LLMError]) -> None:
    assert type(ErrorClassifier().from_stream(error)) is kind


def openai(message: str, kind: str = "invalid_request_error", code: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def anthropic(kind: str, message: str) -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": message}}


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (400, openai("This model's maximum context length is 8192 tokens.", code="context_length_exceeded"), TOO_LONG),
        (400, openai("This model's maximum context length is 8192 tokens. However, you requested 9000"), TOO_LONG),
        (400, anthropic("invalid_request_error", "prompt is too long: 215000 tokens > 200000 maximum"), TOO_LONG),
        (400, {"error": {"message": "the request exceeds the available context size", "code": 400}}, TOO_LONG),
        (413, anthropic("request_too_large", "Request exceeds the maximum size"), TOO_LONG),
        (400, openai("Invalid schema for function 'x'"), LLMRequestError),
        (400, openai("'too long a name' is not a name"), LLMRequestError),
        (404, anthropic("not_found_error", "model: claude-0"), LLMRequestError),
        (401, anthropic("authentication_error", "invalid x-api-key"), LLMAuthenticationError),
        (403, anthropic("permission_error", "no"), LLMAuthenticationError),
        (429, openai("You exceeded your current quota", "insufficient_quota", "insufficient_quota"), LLMQuotaError),
        (429, openai("Rate limit reached for requests", "requests", "rate_limit_exceeded"), LLMRateLimitedError),
        (429, anthropic("rate_limit_error", "This request would exceed your rate limit"), LLMRateLimitedError),
        (429, None, LLMRateLimitedError),
        (400, anthropic("invalid_request_error", "Your credit balance is too low to access the API"), LLMQuotaError),
        (402, {"error": {"message": "Insufficient Balance", "type": "unknown_error"}}, LLMQuotaError),
        (403, anthropic("billing_error", "pay"), LLMQuotaError),
        (529, anthropic("overloaded_error", "Overloaded"), LLMOverloadedError),
        (503, "<html>busy</html>", LLMOverloadedError),
        (500, {"error": {"message": "x", "type": "engine_overloaded"}}, LLMOverloadedError),
        (500, anthropic("api_error", "Internal server error"), LLMUnavailableError),
        (504, None, LLMUnavailableError),
    ],
)
def test_an_answer_with_a_status_gets_its_name(status: int, body: object, kind: type[LLMError]) -> None:
    assert type(ErrorClassifier().from_response(status, body, {})) is kind


@pytest.mark.parametrize(
    "payload",
    [
        b'{"error":{"message":"engine died","code":500}}',
        b'{"error":"engine died"}',
        b'{"object":"error","message":"engine died","code":500}',
        b'{"detail":"engine died"}',
        b'{"choices":[{"delta":{"content":""},"finish_reason":"error"}],"error":{"message":"engine died"}}',
    ],
)
def test_every_way_to_write_an_error_is_seen(payload: bytes) -> None:
    assert "engine died" in str(ErrorClassifier().from_stream(decode_chunk(payload).error))


@pytest.mark.parametrize("payload", [b'{"error":null,"choices":[]}', b'{"choices":[]}', b"null", b'{"usage":{}}'])
def test_what_is_no_error_is_none(payload: bytes) -> None:
    assert not decode_chunk(payload).error


@pytest.mark.parametrize(
    "words",
    [
        "Incorrect API key provided: hunter2hunter2",
        "Authorization: Bearer tok3n-of-someone",
        "no route to https://user:passw0rd@host/v1/chat",
        "bad key sk-proj-abcdefgh12345678",
        "GET /v1?key=AIzaSecret failed",
    ],
)
def test_secrets_are_taken_out(words: str) -> None:
    text = str(ErrorClassifier("hunter2hunter2").from_stream({"message": words}))
    assert "***" in text
    for secret in ("hunter2", "tok3n", "passw0rd", "abcdefgh", "AIza"):
        assert secret not in text


def test_the_providers_words_are_bounded() -> None:
    error: dict[str, Any] = {"message": "long " * 1000}
    text = str(ErrorClassifier().from_stream(error))
    assert MAX_PROVIDER_CHARACTERS <= len(text) < MAX_PROVIDER_CHARACTERS + 100


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7),
        ({"Retry-After": "0.5"}, 0.5),
        ({"retry-after-ms": "250", "retry-after": "7"}, 0.25),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0),
        ({}, None),
    ],
)
def test_retry_after_is_read_as_seconds(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after_seconds(httpx2.Headers(headers)) == seconds


def test_a_date_in_retry_after_is_seconds_from_now() -> None:
    date = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)
    assert 3_500 < (retry_after_seconds({"retry-after": date}) or 0) <= 3_600
