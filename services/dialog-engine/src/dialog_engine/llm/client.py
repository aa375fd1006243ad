"""A chat model at a provider: one request through the provider's SDK, its answer decoded here, in bounded time."""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Generator, Iterable, Mapping
from contextlib import aclosing, closing, contextmanager
from typing import Any, ClassVar, cast

import httpx2
from aiohttp import ClientError

from callstream_runtime.long_texts import reading
from dialog_engine.context import characters_of
from dialog_engine.errors import (
    LLMAuthenticationError,
    LLMRequestError,
)
from dialog_engine.llm.bounded_reading import Deadline, checked_size, drain, next_read, whole
from dialog_engine.llm.connections import StatusError, closed_early, connection_error, refused_options
from dialog_engine.llm.decoding import Decoder
from dialog_engine.llm.error_classification import ErrorClassifier
from dialog_engine.llm.profiles import Profile, profile_of
from dialog_engine.llm.provider import CHOICE, DEFAULT_TIMEOUTS, IMAGE, Json, Provider, Timeouts
from dialog_engine.model import ChatRequest, LLMEvent, Sampling, StreamEnd, ToolMessage, UserMessage
from dialog_engine.sideband import ModelStream
from dialog_engine.tool_calls.ports import AnswerObserver, ModelObserver

log = logging.getLogger(__name__)

_AS_CONFIGURED = Sampling()
RETRIES_FIELD = "x-stainless-retry-count"
"""The SDKs' header field with the number of earlier attempts."""


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
        with seen, closing(Deadline(self._timeouts)) as deadline:
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
                            body = await whole(reads)
                        async for event in _in_parts(await reading(len(body), decoder.feed_whole, body)):
                            yield event
                    while not decoder.done and (read := await next_read(reads, decoder, deadline)):
                        size = checked_size(size + len(read))
                        for event in await reading(decoder.held + len(read), decoder.feed, read):
                            yield event
                        deadline.extend(decoder.pieces)
                    async for event in _in_parts(await reading(size, decoder.finish)):
                        if isinstance(event, StreamEnd):
                            seen.completed(event.usage)
                        yield event
                    await drain(reads, self._timeouts.end)
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
                    refused = refused_options(self._sent(request, options), cast("StatusError", error))
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
            if self._max_retries or not closed_early(error):
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
        has_images = any(isinstance(each, ToolMessage | UserMessage) and each.media for each in request.messages)
        absent = {CHOICE: not request.answer_only, self.stop_option: not request.stop, IMAGE: not has_images}
        return (name for name in options if not absent.get(name))

    @contextmanager
    def _translated(self) -> Generator[None]:
        """Raises LLMError for the errors of the SDK and of its transport, without causes, which contain URLs."""
        try:
            yield
        except self._provider.status_error as error:
            answer = cast("StatusError", error)
            raise self._errors.from_response(answer.status_code, answer.body, answer.response.headers) from None
        except self._provider.credential_errors:
            raise LLMAuthenticationError(self._provider.credential_help) from None
        except (self._provider.error, httpx2.HTTPError, ClientError) as error:
            raise connection_error(error) from None


def sampling_of(request: ChatRequest) -> Sampling:
    """How the sender of the turn wants its answers to be sampled."""
    return request.turn.brought.sampling if request.turn.brought else _AS_CONFIGURED


async def _in_parts(events: Iterable[LLMEvent]) -> AsyncGenerator[LLMEvent]:
    """The events, which may be many thousand calls, with a turn of the loop for all others between them."""
    for number, event in enumerate(events, 1):
        yield event
        if number % 100 == 0:
            await asyncio.sleep(0)
