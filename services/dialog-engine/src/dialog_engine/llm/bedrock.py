"""Claude on Amazon Bedrock: requests signed by the AWS SDK, answers in the binary event stream of AWS.

Its imports need the optional extra `bedrock`.
"""

from base64 import b64decode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from struct import error as StructError  # noqa: N812 -- an exception of the standard library
from typing import Any, Protocol, cast

import msgspec
from anthropic import DefaultAioHttpClient
from anthropic.lib.bedrock import AsyncAnthropicBedrock
from botocore.eventstream import EventStreamBuffer, ParserError
from botocore.exceptions import BotoCoreError

from dialog_engine.errors import LLMStreamBrokenError
from dialog_engine.llm.anthropic_client import provider_of, without_empty
from dialog_engine.llm.connections import check_headers, open_connections
from dialog_engine.llm.decoding import Framing
from dialog_engine.llm.provider import DEFAULT_TIMEOUTS, Provider

NO_HEADERS: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class AwsCredentials:
    """The explicit credentials of a request. None of them: the default chain of the AWS SDK finds some.

    `bearer_token` is an API key of Bedrock, and excludes the others.
    """

    access_key_id: str | None = None
    secret_access_key: str | None = None
    session_token: str | None = None
    profile: str | None = None
    bearer_token: str | None = None


def bedrock_provider(
    region: str,
    credentials: AwsCredentials,
    *,
    base_url: str | None = None,
    headers: Mapping[str, str] = NO_HEADERS,
    connect_seconds: float = DEFAULT_TIMEOUTS.connect,
) -> Provider:
    """Bedrock in an AWS `region`; `base_url` is for gateways and private endpoints.

    Raises:
        ConfigurationError: a value cannot be sent.
    """
    check_headers({"key": credentials.bearer_token or "", **headers})
    sdk = AsyncAnthropicBedrock(
        aws_region=region,
        aws_access_key=credentials.access_key_id,
        aws_secret_key=credentials.secret_access_key,
        aws_session_token=credentials.session_token,
        aws_profile=credentials.profile,
        api_key=credentials.bearer_token,
        base_url=base_url,
        default_headers=without_empty(headers),
        http_client=open_connections(DefaultAioHttpClient, connect_seconds),
        open_telemetry=False,
    )
    secrets = (credentials.secret_access_key, credentials.session_token, credentials.bearer_token, *headers.values())
    return replace(
        provider_of(sdk, tuple(secret for secret in secrets if secret)),
        framing=EventStreamParser,
        credential_errors=(BotoCoreError, RuntimeError),
        credential_help=(
            "no valid AWS credentials were found for Bedrock: set AWS_BEARER_TOKEN_BEDROCK, or AWS_ACCESS_KEY_ID and"
            " AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or give this machine a role"
        ),
    )


class EventStreamParser(Framing):
    """Parses AWS event stream messages. The payload of each is an event of the Messages API, in base64.

    An exception message becomes an error event of that API.
    """

    def __init__(self) -> None:
        self._buffer = EventStreamBuffer()
        self._failure: LLMStreamBrokenError | None = None

    def feed(self, read: bytes) -> list[bytes]:
        """The payloads that `read` completes, up to a message that cannot be read.

        Raises:
            LLMStreamBrokenError: the next message has a wrong checksum, header or payload.
        """
        payloads: list[bytes] = []
        if self._failure is None:
            self._buffer.add_data(read)
            try:
                for message in cast("Iterable[_Message]", self._buffer):
                    payloads.append(_payload(message.headers, message.payload))  # noqa: PERF401 -- keeps the readable
            except (ParserError, ValueError, StructError) as error:
                self._failure = LLMStreamBrokenError("the model's provider sent an event stream that cannot be read")
                self._failure.__cause__ = error
        return payloads or self.finish()

    def finish(self) -> list[bytes]:
        """None: a message that is cut off has no payload. Raises LLMStreamBrokenError as `feed` does."""
        if self._failure is not None:
            raise self._failure
        return []


class _Message(Protocol):
    headers: dict[str, Any]
    payload: bytes


def _payload(headers: Mapping[str, Any], payload: bytes) -> bytes:
    fields = msgspec.json.decode(payload or b"{}", type=dict[str, Any])
    if isinstance(fields.get("bytes"), str):
        return b64decode(fields["bytes"])
    kind = headers.get(":exception-type") or headers.get(":error-code")
    if not kind:
        return b""
    message = fields.get("message") or headers.get(":error-message") or ""
    return msgspec.json.encode({"type": "error", "error": {"type": kind, "message": message}})
