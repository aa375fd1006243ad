"""What the SDKs and their transport raise: which options a provider refuses, and why a connection failed."""

from collections.abc import Iterable, Iterator
from ssl import SSLCertVerificationError
from typing import Protocol

import httpx2
from aiohttp import ClientConnectorDNSError, ClientConnectorError, ClientOSError, ServerDisconnectedError

from dialog_engine.errors import LLMError, LLMUnavailableError


class StatusError(Protocol):
    """What the SDKs' errors for a status have in common."""

    status_code: int
    body: object
    response: httpx2.Response


def refused_options(options: Iterable[str], error: StatusError) -> set[str]:
    """The options that the provider's message names."""
    if error.status_code not in (400, 422):
        return set()
    message = str(error.body).lower()
    return {name for name in options if name in message or name.replace("_", " ") in message}


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and what it was raised from: the SDK's, httpx2's, aiohttp's."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__


def closed_early(error: Exception) -> bool:
    """Whether the connection was closed before a byte of the answer, which aiohttp would put into the error."""
    return any(
        (isinstance(cause, ServerDisconnectedError) and isinstance(cause.message, str))
        or (isinstance(cause, ClientOSError) and not isinstance(cause, ClientConnectorError))
        for cause in _causes(error)
    )


def connection_error(error: Exception) -> LLMError:
    """Why a connection failed. The SDKs' transport reports every failure to connect as a timeout: only aiohttp's own
    error says which it is."""
    for cause in _causes(error):
        match cause:
            case TimeoutError():
                return LLMUnavailableError("the model's provider did not answer in time")
            case SSLCertVerificationError():
                return LLMUnavailableError(
                    "the connection to the model's provider failed: its certificate is not trusted"
                )
            case ClientConnectorDNSError():
                return LLMUnavailableError(
                    "the connection to the model's provider failed: its name cannot be looked up"
                )
            case ClientConnectorError():
                return LLMUnavailableError("the connection to the model's provider failed: it cannot be reached")
            case _:
                pass
    return LLMUnavailableError("the connection to the model's provider broke")
