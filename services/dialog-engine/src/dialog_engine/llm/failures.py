"""What goes wrong at the provider, as the engine's named errors. The texts are fit for users: secrets are taken out."""

import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, cast

from aiohttp import ClientError, ServerTimeoutError

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
from dialog_engine.llm.patience import advised_seconds
from dialog_engine.llm.rejections import tools_rejected

MAX_PROVIDER_CHARACTERS = 500
"""How much of a provider's own words an error repeats."""

SHORTEST_SECRET = 6
"""Characters of what is taken out: anything shorter stands in many words, and keeps nobody out."""

_SECRETS = re.compile(r"\b(?:sk|pk|gsk|key|xai)[-_][\w*.-]{8,}|(?<=Bearer )\S+|(?<=://)[^/\s@]+(?=@)|(?<=[?&]key=)\w+")

_CODES: tuple[tuple[type[LLMError], str], ...] = (
    (LLMQuotaError, r"quota|insufficient_balance|billing|payment|spend.?limit"),
    (LLMOverloadedError, r"overload|at.?capacity"),
    (LLMRateLimitedError, r"rate.?limit|too.?many|throttl"),
    (LLMAuthenticationError, r"authenti|unauthorized|api.?key|permission|forbidden"),
    (LLMContextLengthError, r"context.?(length|window)|string_above_max_length|request_too_large"),
    (LLMRequestError, r"invalid|bad.?request|content.?(filter|policy)|not.?found|unprocessable"),
)
"""What a provider's own code or type of an error says about its kind; the first that fits."""

_MESSAGES: tuple[tuple[type[LLMError], str], ...] = (
    (LLMQuotaError, r"credit balance is too low|exceeded your current quota|insufficient (balance|credit|funds)"),
    (
        LLMContextLengthError,
        r"maximum context length|context (length|window|size)|(prompt|input|request)( is|) too (long|large)"
        r"|reduce the length of the (messages|prompt)|exceeds? the max(imum)?( allowed)? (number of )?(input )?tokens",
    ),
)
"""What only its words say: providers give these kinds no code of their own, or all refusals the same one."""

_OWN_WORDS: dict[type[LLMError], str] = {
    LLMQuotaError: "the account at the model's provider is used up or not paid for; waiting does not help",
    LLMOverloadedError: "the model's provider is overloaded; try again in a while",
    LLMRateLimitedError: "the model's provider gets too many requests from here; try again {when}",
    LLMAuthenticationError: "the model's provider does not accept the key or the rights that this server has",
    LLMContextLengthError: "the conversation is longer than the model can read; shorten the message, or begin anew",
    LLMRequestError: "the model's provider does not accept the request",
    LLMToolsRejectedError: "the model takes no tools by function calling; TOOL_MODE=auto offers them in another way",
}
_REPORTED = "the model's provider reported an error"


class RefusedError(Exception):
    """The provider answered with a status that is no success. `body` is JSON as objects, or text."""

    def __init__(self, status: int, body: object, headers: Mapping[str, str]) -> None:
        super().__init__(f"HTTP {status}")
        self.status = status
        self.body = body
        self.headers = headers


class Failures:
    """Translates failures of one provider; `secrets` never appear in the texts, but for those that are too short."""

    def __init__(self, *secrets: str) -> None:
        self._secrets = tuple(secret for secret in secrets if len(secret) >= SHORTEST_SECRET)

    @contextmanager
    def translated(self) -> Generator[None]:
        """Turns what is raised inside, while an answer is asked for, into LLMError.

        The causes are left out: aiohttp's tell addresses, and keys may be in them.
        """
        try:
            yield
        except RefusedError as error:
            raise self.of_status(error.status, error.body, error.headers) from None
        except ServerTimeoutError:
            raise LLMUnavailableError("the model's provider did not answer in time") from None
        except ClientError as error:
            raise LLMUnavailableError(
                f"the connection to the model's provider failed ({type(error).__name__})"
            ) from None

    def of_status(self, status: int, body: object, headers: Mapping[str, str]) -> LLMError:
        """The failure that a provider answers instead of a stream."""
        if 300 <= status < 400:
            return LLMRequestError(
                f"the model's provider redirects to elsewhere (HTTP {status}): is its base URL right?"
            )
        words = _message(body)
        kind = tools_rejected(status, words)
        kind = kind or (_first(_MESSAGES, words) if status in (400, 403, 413, 422, 429) else None)
        return self._named(kind or _of_status(status, _codes(body)), words, f"HTTP {status}", advised_seconds(headers))

    def of_object(self, error: object) -> LLMError:
        """The failure that a provider reports inside a stream that began well."""
        words, codes = _message(error), _codes(error)
        status = re.search(r"\b[45]\d\d\b", codes)
        if status:
            kind = (
                tools_rejected(int(status[0]), words) or _first(_MESSAGES, words) or _of_status(int(status[0]), codes)
            )
            return self._named(kind, words, f"code {status[0]}")
        kind = _first(_CODES, codes) or LLMUnavailableError
        if kind is LLMRequestError:
            kind = _first(_MESSAGES, words) or kind
        return self._named(kind, words, "in the stream")

    def _named(self, kind: type[LLMError], words: str, where: str, retry_after: float | None = None) -> LLMError:
        said = self._redacted(words)
        when = "in a while" if retry_after is None else f"in {max(1, round(retry_after))} seconds"
        text = f"{_OWN_WORDS.get(kind, _REPORTED).format(when=when)} ({where})" + (f": {said}" if said else "")
        return kind(text, retry_after) if issubclass(kind, LLMRateLimitedError) else kind(text)

    def _redacted(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return _SECRETS.sub("***", text)[:MAX_PROVIDER_CHARACTERS]


def _of_status(status: int, codes: str) -> type[LLMError]:
    told = _first(_CODES, codes)
    match status:
        case 402:
            return LLMQuotaError
        case 401 | 403:
            return LLMQuotaError if told is LLMQuotaError else LLMAuthenticationError
        case 429:
            return told if told in (LLMQuotaError, LLMOverloadedError) else LLMRateLimitedError
        case 408 | 409 | 425:
            return LLMUnavailableError
        case 413:
            return LLMContextLengthError
        case 503 | 529:
            return LLMOverloadedError
        case _ if status >= 500:
            return LLMOverloadedError if told is LLMOverloadedError else LLMUnavailableError
        case _:
            return told if told in (LLMQuotaError, LLMContextLengthError) else LLMRequestError


def _first(patterns: tuple[tuple[type[LLMError], str], ...], text: str) -> type[LLMError] | None:
    return next((kind for kind, pattern in patterns if re.search(pattern, text, re.IGNORECASE)), None)


def _codes(body: object) -> str:
    """All that names the kind of an error, at whatever depth: `code`, `type`, `status`."""
    found: list[str] = []
    while isinstance(body, dict):
        fields = cast("dict[str, Any]", body)
        found += [str(fields[key]) for key in ("code", "type", "status") if isinstance(fields.get(key), str | int)]
        if isinstance(details := fields.get("details"), dict):
            found.append(str(cast("dict[str, Any]", details).get("error_code") or ""))
        body = fields.get("error")
    return " ".join(found)


def _message(body: object) -> str:
    """The provider's own words; a page of HTML is none."""
    while isinstance(body, dict):
        fields = cast("dict[str, Any]", body)
        body = next((fields[key] for key in ("message", "error", "detail") if fields.get(key)), None)
    text = "" if body is None else str(body)
    return "" if text.lstrip().startswith("<") else " ".join(text.split())
