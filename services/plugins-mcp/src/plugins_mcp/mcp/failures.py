"""Failures to connect or to list, in one line for people."""

import re
from typing import cast

import httpx2
from anyio import BrokenResourceError, ClosedResourceError
from mcp import MCPError
from pydantic import ValidationError

_STATUS = re.compile(r"HTTP (\d{3})")
"""What our HTTP client says of an answer that says nothing else."""

EXPECTED = (
    MCPError,
    OSError,
    TimeoutError,
    httpx2.HTTPError,
    httpx2.StreamError,
    ValidationError,
    # An answer that comes while the session is being closed.
    ClosedResourceError,
    BrokenResourceError,
)
"""What a server that is down, slow or broken makes the SDK raise."""


def leaves(error: BaseException) -> list[BaseException]:
    """The errors in an exception group, which is how most of them come, or the error itself."""
    if isinstance(error, BaseExceptionGroup):
        inside = cast("tuple[BaseException, ...]", error.exceptions)
        return [leaf for inner in inside for leaf in leaves(inner)]
    return [error]


def expected(error: BaseException) -> bool:
    """Whether it is the server's doing, rather than a mistake of ours."""
    return all(isinstance(leaf, EXPECTED) for leaf in leaves(error))


def describe(error: BaseException) -> str:
    """What went wrong. May contain secrets of the server: redact it."""
    return "; ".join(dict.fromkeys(_one(leaf) for leaf in leaves(error)))


def _one(error: BaseException) -> str:
    match error:
        case MCPError() if refused := _STATUS.fullmatch(error.message):
            return _status(int(refused[1]))
        case MCPError():
            return error.message.partition("\n")[0]  # of an answer that it cannot read the SDK tells every detail
        case httpx2.HTTPStatusError():
            return _status(error.response.status_code)
        case ValidationError():
            return f"the server sent a {error.title} that is not valid MCP"
        case TimeoutError():
            return "no answer in time"
        case _:
            return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _status(status: int) -> str:
    match status:
        case 401 | 403:
            return f"HTTP {status}: it wants another login: check headers, or MCP_API_KEY"
        case 301 | 302 | 307 | 308 | 404 | 405:
            return f"HTTP {status}: it is not at this address: check url, or MCP_SERVER_ENDPOINT"
        case _:
            return f"HTTP {status}"
