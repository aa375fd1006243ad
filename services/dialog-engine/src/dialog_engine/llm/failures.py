"""What goes wrong at the provider, as the engine's named errors. The texts are fit for users: secrets are taken out."""

import re
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, cast

import httpx2
from openai import APIConnectionError, APIStatusError, APITimeoutError, OpenAIError

from dialog_engine.errors import (
    LLMAuthenticationError,
    LLMError,
    LLMRateLimitedError,
    LLMRequestError,
    LLMUnavailableError,
)

MAX_PROVIDER_CHARACTERS = 500
"""How much of a provider's own words an error repeats."""

_SECRETS = re.compile(r"\b(?:sk|pk|gsk|key|xai)[-_][\w*.-]{8,}|(?<=Bearer )\S+|(?<=://)[^/\s@]+(?=@)|(?<=[?&]key=)\w+")

_WORDS: tuple[tuple[type[LLMError], str], ...] = (
    (LLMRateLimitedError, r"rate.?limit|too.?many|quota|insufficient_balance"),
    (LLMAuthenticationError, r"authenti|unauthorized|api.?key|permission|forbidden"),
    (LLMRequestError, r"invalid|bad.?request|context.?length|content.?(filter|policy)|not.?found|unprocessable"),
)
"""What codes and types of errors inside a stream say about their kind; no match means that trying later may help."""


class Failures:
    """Translates failures of one provider; `secrets` never appear in the texts."""

    def __init__(self, *secrets: str) -> None:
        self._secrets = tuple(secret for secret in secrets if secret)

    @contextmanager
    def translated(self) -> Generator[None]:
        """Turns what the SDK and its transport raise inside into LLMError."""
        try:
            yield
        except APIStatusError as error:
            raise self._named(_of_status(error.status_code), error.body, f"HTTP {error.status_code}") from error
        except (APITimeoutError, httpx2.TimeoutException) as error:
            raise LLMUnavailableError("the model's provider did not answer in time") from error
        except (APIConnectionError, httpx2.HTTPError) as error:
            raise LLMUnavailableError("the connection to the model's provider failed") from error
        except OpenAIError as error:
            raise LLMUnavailableError(f"the client for the model's provider failed: {type(error).__name__}") from error

    def of_object(self, error: object) -> LLMError:
        """The failure that a provider reports inside a stream that began well."""
        fields = cast("dict[str, Any]", error if isinstance(error, dict) else {"message": error})
        code = str(fields.get("code") or fields.get("status") or "")
        if re.fullmatch(r"[45]\d\d", code):
            return self._named(_of_status(int(code)), fields, f"code {code}")
        words = f"{code} {fields.get('type') or ''}"
        kind = next((kind for kind, pattern in _WORDS if re.search(pattern, words, re.IGNORECASE)), LLMUnavailableError)
        return self._named(kind, fields, "in the stream")

    def _named(self, kind: type[LLMError], body: object, where: str) -> LLMError:
        words = self._redacted(_message(body))
        return kind(f"the model's provider reported an error ({where})" + (f": {words}" if words else ""))

    def _redacted(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return _SECRETS.sub("***", text)[:MAX_PROVIDER_CHARACTERS]


def _of_status(status: int) -> type[LLMError]:
    match status:
        case 401 | 403:
            return LLMAuthenticationError
        case 429:
            return LLMRateLimitedError
        case 408 | 409 | 425:
            return LLMUnavailableError
        case _:
            return LLMRequestError if status < 500 else LLMUnavailableError


def _message(body: object) -> str:
    """The provider's own words; a page of HTML is none."""
    while isinstance(body, dict):
        fields = cast("dict[str, Any]", body)
        body = next((fields[key] for key in ("message", "error", "detail") if fields.get(key)), None)
    text = "" if body is None else str(body)
    return "" if text.lstrip().startswith("<") else " ".join(text.split())
