"""Classifies the errors of providers. Pure. The texts are shown to users: secrets are removed from them."""

import math
import re
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any, cast

from dialog_engine.errors import (
    LLMAuthenticationError,
    LLMContextLengthError,
    LLMError,
    LLMOverloadedError,
    LLMQuotaError,
    LLMRateLimitedError,
    LLMRequestError,
    LLMToolsRejectedError,
    LLMUnavailableError,
)
from dialog_engine.model import storable

MAX_PROVIDER_CHARACTERS = 500
"""Length of the excerpt of a provider's message in an error."""

MAX_READ = 20_000
"""Characters of a provider's message in which words are looked for."""

SHORTEST_SECRET = 6
"""Length in characters: a shorter key occurs inside ordinary words, and is not removed."""

_SECRETS = re.compile(r"\b(?:sk|pk|gsk|key|xai)[-_][\w*.-]{8,}|(?<=Bearer )\S+|(?<=://)[^/\s@]+(?=@)|(?<=[?&]key=)\w+")

_CODES: tuple[tuple[type[LLMError], str], ...] = (
    (LLMQuotaError, r"quota|insufficient_balance|billing|payment|spend.?limit"),
    (LLMOverloadedError, r"overload|at.?capacity"),
    (LLMRateLimitedError, r"rate.?limit|too.?many|throttl"),
    (LLMAuthenticationError, r"authenti|unauthorized|api.?key|permission|forbidden"),
    (LLMContextLengthError, r"context.?(length|window)|string_above_max_length|request_too_large"),
    (LLMRequestError, r"invalid|validation|bad.?request|content.?(filter|policy)|not.?found|unprocessable"),
)
"""Patterns for a provider's own error code or type; the first match counts."""

_MESSAGES: tuple[tuple[type[LLMError], str], ...] = (
    (LLMQuotaError, r"credit balance is too low|exceeded your current quota|insufficient (balance|credit|funds)"),
    (
        LLMContextLengthError,
        r"maximum context length|context (length|window|size)|(prompt|input|request)( is|) too (long|large)"
        r"|reduce the length of the (messages|prompt)|exceeds? the max(imum)?( allowed)? (number of )?(input )?tokens",
    ),
)
"""Patterns for its message: providers give these kinds no code of their own, or one code for all refusals."""

_TEXTS: dict[type[LLMError], str] = {
    LLMQuotaError: "the account at the model's provider is used up or not paid for; waiting does not help",
    LLMOverloadedError: "the model's provider is overloaded; try again in a while",
    LLMRateLimitedError: "the rate limit of the model's provider is reached; try again {when}",
    LLMAuthenticationError: "the model's provider does not accept the key or the rights that this server has",
    LLMContextLengthError: "the conversation is too long for the model, also without its older part; shorten the"
    " message, or start a new session",
    LLMRequestError: "the model's provider does not accept the request",
    LLMToolsRejectedError: "the model does not support function calling; TOOL_MODE=auto offers tools in another way",
}
_OTHER_TEXT = "the model's provider reported an error"


class ErrorClassifier:
    """Classifies the errors of one provider. `secrets` never appear in the texts, except very short ones."""

    def __init__(self, *secrets: str) -> None:
        self._secrets = tuple(secret for secret in secrets if len(secret) >= SHORTEST_SECRET)

    def from_response(self, status: int, body: object, headers: Mapping[str, str]) -> LLMError:
        """The error of a response that is not a success. `body` is parsed JSON, or text."""
        if 300 <= status < 400:
            return LLMRequestError(
                f"the model's provider redirects to elsewhere (HTTP {status}): is its base URL right?"
            )
        words = _message(body)
        kind = _tools_rejected(status, words)
        kind = kind or (_first(_MESSAGES, words) if status in (400, 403, 413, 422, 429) else None)
        return self._named(
            kind or _of_status(status, _codes(body)), words, f"HTTP {status}", retry_after_seconds(headers)
        )

    def from_stream(self, error: object) -> LLMError:
        """The error that a provider reports inside a stream, in any form."""
        words, codes = _message(error), _codes(error)
        status = re.search(r"\b[45]\d\d\b", codes)
        if status:
            kind = (
                _tools_rejected(int(status[0]), words) or _first(_MESSAGES, words) or _of_status(int(status[0]), codes)
            )
            return self._named(kind, words, f"code {status[0]}")
        kind = _first(_CODES, codes) or LLMUnavailableError
        if kind is LLMRequestError:
            kind = _first(_MESSAGES, words) or kind
        return self._named(kind, words, "in the stream")

    def _named(self, kind: type[LLMError], words: str, where: str, retry_after: float | None = None) -> LLMError:
        excerpt = self._redacted(words)
        when = "in a while" if retry_after is None else f"in {max(1, round(retry_after))} seconds"
        text = f"{_TEXTS.get(kind, _OTHER_TEXT).format(when=when)} ({where})" + (f": {excerpt}" if excerpt else "")
        return kind(text, retry_after) if issubclass(kind, LLMRateLimitedError) else kind(text)

    def _redacted(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return storable(_SECRETS.sub("***", text)[:MAX_PROVIDER_CHARACTERS])


def _of_status(status: int, codes: str) -> type[LLMError]:
    kind = _first(_CODES, codes)
    match status:
        case 402:
            return LLMQuotaError
        case 401 | 403:
            return LLMQuotaError if kind is LLMQuotaError else LLMAuthenticationError
        case 429:
            return kind if kind in (LLMQuotaError, LLMOverloadedError) else LLMRateLimitedError
        case 408 | 409 | 425:
            return LLMUnavailableError
        case 413:
            return LLMContextLengthError
        case 503 | 529:
            return LLMOverloadedError
        case _ if status >= 500:
            return LLMOverloadedError if kind is LLMOverloadedError else LLMUnavailableError
        case _:
            return kind if kind in (LLMQuotaError, LLMContextLengthError) else LLMRequestError


def _first(patterns: tuple[tuple[type[LLMError], str], ...], text: str) -> type[LLMError] | None:
    return next((kind for kind, pattern in patterns if re.search(pattern, text, re.IGNORECASE)), None)


def _codes(body: object) -> str:
    """All codes of an error, at any depth: `code`, `type`, `status`."""
    found: list[str] = []
    while isinstance(body, dict):
        fields = cast("dict[str, Any]", body)
        found += [str(fields[key]) for key in ("code", "type", "status") if isinstance(fields.get(key), str | int)]
        if isinstance(details := fields.get("details"), dict):
            found.append(str(cast("dict[str, Any]", details).get("error_code") or ""))
        body = fields.get("error")
    return " ".join(found)


def _message(body: object) -> str:
    """The provider's message; a page of HTML is none."""
    while isinstance(body, dict):
        fields = cast("dict[str, Any]", body)
        body = next((fields[key] for key in ("message", "error", "detail") if fields.get(key)), None)
    text = "" if body is None else str(body)
    return "" if text.lstrip().startswith("<") else " ".join(text[:MAX_READ].split())


_ABOUT_TOOLS = re.compile(r"\b(?:tools?|tool_(?:choice|use)|functions|function[ _-]call(?:s|ing)?)\b", re.IGNORECASE)
_NOT_TAKEN = re.compile(
    r"(?:n[o']t|un)[ -]?(?:be )?(?:currently )?"
    r"(?:support|allow|enabled|permit|available|implement|recogni|compatible|have|used)"
    r"|lacks|cannot use|only (?:be )?supported (?:by|with)|(?:unknown|invalid) (?:parameter|field|argument)"
    r"|no endpoints found|requires? --|disabled",
    re.IGNORECASE,
)
_ABOUT_ONE = re.compile(
    r"schema|\[\d|parallel|role|tool (?:message|result|response|output)|too (?:long|many)|maximum", re.IGNORECASE
)
_FIELD = re.compile(r"'body', 'tools'\]")


def _tools_rejected(status: int, message: str) -> type[LLMError] | None:
    """LLMToolsRejectedError if the server reports that the model takes no tools at all.

    A complaint about one tool, its schema or a message is another error. Some servers answer 500 for a missing feature.
    """
    if status not in (400, 404, 405, 422, 500, 501):
        return None
    plain = _ABOUT_TOOLS.search(message) and _NOT_TAKEN.search(message) and not _ABOUT_ONE.search(message)
    return LLMToolsRejectedError if plain or _FIELD.search(message) else None


def retry_after_seconds(headers: Mapping[str, str]) -> float | None:
    """The provider's `retry-after`, in seconds from now; None without one that can be read."""
    if (milliseconds := _number(headers.get("retry-after-ms"))) is not None:
        return milliseconds / 1000
    text = headers.get("retry-after")
    if (seconds := _number(text)) is not None:
        return seconds
    try:
        return max(0.0, parsedate_to_datetime(text or "").timestamp() - time.time())
    except ValueError:
        return None


def _number(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if math.isfinite(number) and number >= 0 else None
