"""Failures that a provider reports inside a stream get the engine's names, and hold no secrets."""

from typing import Any

import pytest

from dialog_engine.errors import (
    LLMAuthenticationError,
    LLMError,
    LLMRateLimitedError,
    LLMRequestError,
    LLMUnavailableError,
)
from dialog_engine.llm.failures import MAX_PROVIDER_CHARACTERS, Failures
from dialog_engine.llm.wire import decode_chunk


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"code": 429, "message": "slow down"}, LLMRateLimitedError),
        ({"code": "rate_limit_exceeded", "message": "slow down"}, LLMRateLimitedError),
        ({"type": "insufficient_quota", "message": "pay"}, LLMRateLimitedError),
        ({"code": 401, "message": "who?"}, LLMAuthenticationError),
        ({"code": "invalid_api_key", "type": "invalid_request_error"}, LLMAuthenticationError),
        ({"code": 400, "type": "BadRequestError", "message": "too long"}, LLMRequestError),
        ({"type": "invalid_request_error", "code": "context_length_exceeded"}, LLMRequestError),
        ({"code": 502, "message": "Provider disconnected"}, LLMUnavailableError),
        ({"type": "server_error"}, LLMUnavailableError),
        ({"type": "overloaded_error"}, LLMUnavailableError),
        ("engine died", LLMUnavailableError),
    ],
)
def test_an_error_in_the_stream_gets_its_name(error: object, kind: type[LLMError]) -> None:
    assert type(Failures().of_object(error)) is kind


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
    assert "engine died" in str(Failures().of_object(decode_chunk(payload).error))


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
    text = str(Failures("hunter2hunter2").of_object({"message": words}))
    assert "***" in text
    for secret in ("hunter2", "tok3n", "passw0rd", "abcdefgh", "AIza"):
        assert secret not in text


def test_the_providers_words_are_bounded() -> None:
    error: dict[str, Any] = {"message": "long " * 1000}
    text = str(Failures().of_object(error))
    assert MAX_PROVIDER_CHARACTERS <= len(text) < MAX_PROVIDER_CHARACTERS + 100
