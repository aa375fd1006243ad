"""What a client is given of its provider: an account with its connections, and how long to wait for it."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

import httpx2

from dialog_engine.llm.decoding import Framing, SSEParser

Json = dict[str, Any]

CHOICE = "tool_choice"
"""The option that forbids calls."""

IMAGE = "image"
"""The option to send the images of results. A refusal may concern one image: the next request has the option again."""
NO_KEY = "no-key"
"""Sent in the place of a key to servers that need none."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long a provider is waited for, in seconds.

    `connect` bounds each attempt to connect. `first_token` bounds the time from the request to the first piece of the
    answer, retries included: reasoning models are silent for long. `silence` bounds the time between two pieces after
    that. Messages that only keep the connection open do not count as pieces. `end` bounds the wait for the end of the
    response after a complete answer, so that its connection can be reused.
    """

    connect: float = 10.0
    first_token: float = 300.0
    silence: float = 120.0
    end: float = 0.1


DEFAULT_TIMEOUTS = Timeouts()


class Post(Protocol):
    """Sends the body of a request through the SDK, which retries it up to `max_retries` times."""

    def __call__(self, body: Json, max_retries: int) -> Awaitable[httpx2.Response]:
        """The response as soon as its headers have arrived. Raises the errors of the SDK."""
        ...


@dataclass(frozen=True, slots=True)
class Provider:
    """One account at a provider, shared by its models: an SDK client with its connection pool. `close` it."""

    post: Post
    close: Callable[[], Awaitable[None]]
    base_url: str
    status_error: type[Exception]
    """What the SDK raises for a response that is not a success."""
    error: type[Exception]
    """The base of all errors of the SDK."""
    secrets: tuple[str, ...] = ()
    """Keys that must not appear in errors."""
    credential_errors: tuple[type[Exception], ...] = ()
    """What the SDK raises when it finds no credentials, and the text that tells operators which settings to check."""
    credential_help: str = ""
    framing: Callable[[], Framing] = SSEParser
    """How events are framed in its responses."""
