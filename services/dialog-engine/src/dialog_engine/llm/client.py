"""A chat model at a provider: one request through the provider's SDK, its answer decoded here, in bounded time."""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterable, Iterator, Mapping
from contextlib import aclosing, closing, contextmanager, suppress
from dataclasses import dataclass
from ssl import SSLCertVerificationError
from typing import Any, ClassVar, Protocol, cast

import httpx2
from aiohttp import ClientConnectorDNSError, ClientConnectorError, ClientError, ClientOSError, ServerDisconnectedError

from callstream_runtime.long_texts import reading
from dialog_engine.context import characters_of
from dialog_engine.errors import (
    LLMAuthenticationError,
    LLMError,
    LLMRequestError,
    LLMStreamBrokenError,
    LLMUnavailableError,
)
from dialog_engine.llm.decoding import Decoder, Framing, SSEParser
from dialog_engine.llm.error_classification import ErrorClassifier
from dialog_engine.llm.profiles import Profile, profile_of
from dialog_engine.model import ChatRequest, LLMEvent, StreamEnd, ToolMessage
from dialog_engine.sideband import ModelStream
from dialog_engine.tool_calls.ports import AnswerObserver, ModelObserver

log = logging.getLogger(__name__)

Json = dict[str, Any]

CHOICE = "tool_choice"
"""The option that forbids calls."""

IMAGE = "image"
"""The option to send the images of results. A refusal may concern one image: the next request has the option again."""

RETRIES_FIELD = "x-stainless-retry-count"
"""The SDKs' header field with the number of earlier attempts."""

NO_KEY = "no-key"
"""Sent in the place of a key to servers that need none."""

DRAIN_SECONDS = 0.1
"""How long the end of the response is waited for after a complete answer, so that its connection can be reused."""

MAX_ANSWER_BYTES = 64_000_000
"""The bytes of one answer that are read, with everything that the protocol adds to its text."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long a provider is waited for, in seconds.

    `connect` bounds each attempt to connect. `first_token` bounds the time from the request to the first piece of the
    answer, retries included: reasoning models are silent for long. `silence` bounds the time between two pieces after
    that. Messages that only keep the connection open do not count as pieces.
    """

    connect: float = 10.0
    first_token: float = 300.0
    silence: float = 120.0


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


class ChatClient(ABC):
    """A chat model of one provider. A protocol is how requests are encoded and how answers are decoded.

    `profile` describes the provider's deviations; by default it is derived from the address and the model. `max_tokens`
    bounds the answer; None leaves that to the protocol. `max_retries` counts retries before the first byte of an
    answer; later nothing is retried. `extra_body` is merged into every request, such as a temperature.
    Retries are logged. The facts about each request go to `observer`.
    """

    stop_option: ClassVar[str]
    """The field with the stop sequences."""

    def __init__(
        self,
        provider: Provider,
        model: str,
        *,
        profile: Profile | None = None,
        max_tokens: int | None = None,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
        max_retries: int = 2,
        extra_body: Mapping[str, Any] | None = None,
        observer: ModelObserver | None = None,
    ) -> None:
        self._provider = provider
        self._model = model
        self._profile = profile or profile_of(provider.base_url, model)
        self._max_tokens = max_tokens
        self._timeouts = timeouts
        self._max_retries = max_retries
        self._extra_body = dict(extra_body or {})
        self._observer = observer or ModelObserver()
        self._errors = ErrorClassifier(*provider.secrets)
        self._options = self._wanted()

    @abstractmethod
    def _wanted(self) -> frozenset[str]:
        """The options of the first request: parts of requests that some servers refuse, and that can be left out.

        Each has the name that occurs in the message of such a refusal; it is left out from then on.
        """

    @abstractmethod
    def _decoder(self) -> Decoder:
        """A decoder for one answer."""

    @abstractmethod
    def _body(self, request: ChatRequest, options: frozenset[str]) -> Json:
        """The request as JSON, with only those `options`."""

    async def open(self, request: ChatRequest) -> ModelStream:
        """The model's answer, once it begins: text and reasoning as they arrive, tool calls at the end, StreamEnd last.

        Closing the stream closes the connection to the provider. The meter of the request then has what the answer has
        cost up to there.

        Raises:
            LLMError: the provider cannot be reached, refuses, breaks off, or is silent for too long.
        """
        seen = self._observer.request(request.turn)
        stream = await ModelStream.begun(self._answer(request, seen))
        if not isinstance(stream.first, StreamEnd):
            seen.began()
        return stream

    async def _answer(self, request: ChatRequest, seen: AnswerObserver) -> AsyncGenerator[LLMEvent]:
        with seen, closing(_Deadline(self._timeouts)) as deadline:
            with deadline.translated(), deadline:
                response = await self._send(request)
            meter, decoder = request.meter, self._decoder()
            del request  # it may be long, and is not needed while its answer is read
            try:
                kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
                if kind == "text/html":
                    raise LLMRequestError("the model's provider answered with a web page: is its base URL right?")
                size = 0
                async with aclosing(response.aiter_bytes()) as reads:
                    if kind == "application/json":
                        with deadline.translated(), self._translated(), deadline:
                            body = await _whole(reads)
                        async for event in _in_parts(await reading(len(body), decoder.feed_whole, body)):
                            yield event
                    while not decoder.done and (read := await _next(reads, decoder, deadline)):
                        size = _checked_size(size + len(read))
                        for event in await reading(decoder.held + len(read), decoder.feed, read):
                            yield event
                        deadline.extend(decoder.pieces)
                    async for event in _in_parts(await reading(size, decoder.finish)):
                        if isinstance(event, StreamEnd):
                            seen.completed(event.usage)
                        yield event
                    await _drain(reads)
            finally:
                meter.reported = decoder.cost
                await response.aclose()

    async def _send(self, request: ChatRequest) -> httpx2.Response:
        """Send the request, and again without the options that the provider refuses. Raises LLMError."""
        options, size = self._options, characters_of(request.messages)
        with self._translated():
            while True:
                try:
                    response = await self._posted(await reading(size, self._body, request, options))
                    break
                except self._provider.status_error as error:
                    refused = _refused(self._sent(request, options), cast("_StatusError", error))
                    if not refused:
                        raise
                    options -= refused
        # Concurrent requests may have found more that is refused.
        self._options &= options | {IMAGE}
        # The SDK keeps the request with its response: a long history would live as long as its answer is read.
        response.request = httpx2.Request("POST", "/")
        return response

    async def _posted(self, body: Json) -> httpx2.Response:
        try:
            response = await self._provider.post(body, self._max_retries)
        except self._provider.error as error:
            self._count_retries(getattr(error, "request", None))
            # The provider may have closed a kept connection at that moment. A model without retries, because another
            # one stands behind it, must not lose its turn to that.
            if self._max_retries or not _was_closed_without_answer(error):
                raise
            log.warning("a request to %s is repeated, because its connection was closed without an answer", self._model)
            self._observer.retried(1)
            return await self._provider.post(body, 0)
        self._count_retries(response.request)
        return response

    def _count_retries(self, request: httpx2.Request | None) -> None:
        """Log and report the retries that the SDK made; it numbers them in a header field of the last request."""
        if request is not None and (times := int(request.headers.get(RETRIES_FIELD, "0"))):
            often = "once" if times == 1 else f"{times} times"
            log.warning("a request to %s was repeated %s before an answer began", self._model, often)
            self._observer.retried(times)

    def _sent(self, request: ChatRequest, options: frozenset[str]) -> Iterable[str]:
        """Those of the options that the body for this request can contain."""
        has_images = any(isinstance(message, ToolMessage) and message.media for message in request.messages)
        absent = {CHOICE: not request.answer_only, self.stop_option: not request.stop, IMAGE: not has_images}
        return (name for name in options if not absent.get(name))

    @contextmanager
    def _translated(self) -> Generator[None]:
        """Raises LLMError for the errors of the SDK and of its transport, without causes, which contain URLs."""
        try:
            yield
        except self._provider.status_error as error:
            answer = cast("_StatusError", error)
            raise self._errors.from_response(answer.status_code, answer.body, answer.response.headers) from None
        except self._provider.credential_errors:
            raise LLMAuthenticationError(self._provider.credential_help) from None
        except (self._provider.error, httpx2.HTTPError, ClientError) as error:
            raise _connection_error(error) from None


async def _in_parts(events: Iterable[LLMEvent]) -> AsyncGenerator[LLMEvent]:
    """The events, which may be many thousand calls, with a turn of the loop for all others between them."""
    for number, event in enumerate(events, 1):
        yield event
        if number % 100 == 0:
            await asyncio.sleep(0)


def _checked_size(size: int) -> int:
    """`size`. Raises LLMRequestError when an answer has more bytes than are read."""
    if size > MAX_ANSWER_BYTES:
        raise LLMRequestError(f"the model's provider sent more than {MAX_ANSWER_BYTES // 1_000_000} MB in one answer")
    return size


async def _whole(reads: AsyncIterator[bytes]) -> bytes:
    body = bytearray()
    async for read in reads:
        body += read
        _checked_size(len(body))
    return bytes(body)


class _StatusError(Protocol):
    """What the SDKs' errors for a status have in common."""

    status_code: int
    body: object
    response: httpx2.Response


class _Deadline:
    """When the next piece of one answer must have arrived: each wait for one is a `with` block. Starts when it is made.

    One timer serves all waits of an answer, of which there is one for each token. It is set again only when it fires
    too early.
    """

    def __init__(self, timeouts: Timeouts) -> None:
        self._timeouts = timeouts
        self._loop = asyncio.get_running_loop()
        self._at = self._loop.time() + timeouts.first_token
        self._pieces = 0
        self._timer: asyncio.TimerHandle | None = None
        self._waiting: asyncio.Task[Any] | None = None
        self._cancelled_before = 0
        self._is_exceeded = False

    def __enter__(self) -> None:
        """Begin to wait for the next piece."""
        self._waiting = asyncio.current_task()
        self._cancelled_before = self._waiting.cancelling() if self._waiting else 0
        if self._timer is None:
            self._timer = self._loop.call_at(self._at, self._fired)

    def __exit__(self, _type: object, error: BaseException | None, _traceback: object) -> None:
        """Raises TimeoutError where this cancelled the wait, by the same rule as `asyncio.timeout`."""
        task, self._waiting = self._waiting, None
        if task is not None and self._is_exceeded and isinstance(error, asyncio.CancelledError):
            self._is_exceeded = task.uncancel() <= self._cancelled_before
            if self._is_exceeded:
                raise TimeoutError from error

    def _fired(self) -> None:
        self._timer = None
        if self._loop.time() < self._at:
            self._timer = self._loop.call_at(self._at, self._fired)
        elif self._waiting is not None:
            self._is_exceeded = True
            self._waiting.cancel()

    def extend(self, pieces: int) -> None:
        """`pieces` of the answer have arrived in total."""
        if pieces != self._pieces:
            self._pieces = pieces
            self._at = self._loop.time() + self._timeouts.silence
            if self._timer is not None and self._timer.when() > self._at:  # `silence` is shorter than `first_token`
                self._timer.cancel()
                self._timer = None

    def close(self) -> None:
        """Nothing is waited for any more."""
        if self._timer is not None:
            self._timer.cancel()

    @contextmanager
    def translated(self) -> Generator[None]:
        """Raises LLMError when the limit is exceeded."""
        try:
            yield
        except TimeoutError:
            raise self.exceeded() from None

    def exceeded(self) -> LLMError:
        """The error for an exceeded limit."""
        if self._pieces:
            return LLMStreamBrokenError(f"the model's stream was silent for {self._timeouts.silence:g} seconds")
        return LLMUnavailableError(
            f"the model's provider did not answer in time: nothing came for {self._timeouts.first_token:g} seconds"
        )


async def _next(reads: AsyncIterator[bytes], decoder: Decoder, deadline: _Deadline) -> bytes:
    """The next bytes, none at the end. A connection that breaks after a complete message has simply ended."""
    try:
        with deadline:
            return await anext(reads, b"")
    except (httpx2.HTTPError, ClientError, TimeoutError) as error:
        if decoder.complete:
            return b""
        if isinstance(error, TimeoutError):
            raise deadline.exceeded() from error
        raise LLMStreamBrokenError("the model's stream broke off before its end") from error


async def _drain(reads: AsyncIterator[bytes]) -> None:
    with suppress(TimeoutError, httpx2.HTTPError, ClientError):
        async with asyncio.timeout(DRAIN_SECONDS):
            async for _ in reads:
                pass


def _refused(options: Iterable[str], error: _StatusError) -> set[str]:
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


def _was_closed_without_answer(error: Exception) -> bool:
    """Whether the connection was closed before a byte of the answer, which aiohttp would put into the error."""
    return any(
        (isinstance(cause, ServerDisconnectedError) and isinstance(cause.message, str))
        or (isinstance(cause, ClientOSError) and not isinstance(cause, ClientConnectorError))
        for cause in _causes(error)
    )


def _connection_error(error: Exception) -> LLMError:
    """The SDKs' transport reports every failure to connect as a timeout: only aiohttp's own error tells which it is."""
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
