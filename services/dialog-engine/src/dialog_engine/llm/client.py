"""What every client of a provider has in common, whatever protocol it speaks."""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Iterable
from functools import partial
from typing import Any, ClassVar

import msgspec
from aiohttp import ClientResponse

from dialog_engine.llm.asking import Asker
from dialog_engine.llm.endpoint import Endpoint
from dialog_engine.llm.failures import Failures, RefusedError
from dialog_engine.llm.reading import Decoder, Waits, stream_answer
from dialog_engine.model import ChatRequest, LLMEvent, ToolMessage

Json = dict[str, Any]

CHOICE = "tool_choice"
"""The option that forbids calls."""

IMAGE = "image"
"""The option to show the images of results. A complaint may be about one of them, so it is back in the next request."""

_NO_KEY = "no-key"


class ChatClient(ABC):
    """A chat model at one endpoint. A protocol is what is asked there, and how answers are read.

    Owns its connections: `aclose` it. To be made where an event loop runs.

    `options` are parts of requests that some servers refuse, and without which an answer can be had. Each is named by
    a word that stands in what such a server complains; it is left out from then on.
    """

    stop_option: ClassVar[str]
    """The field with the stop sequences."""

    def __init__(
        self, endpoint: Endpoint, failures: Failures, options: frozenset[str], waits: Waits, max_retries: int
    ) -> None:
        self._failures = failures
        self._waits = waits
        self._options = options
        self._asker = Asker(endpoint, connect_seconds=waits.connect, max_retries=max_retries)

    async def aclose(self) -> None:
        """Close the connections, when no answer is read any more."""
        await self._asker.aclose()

    def stream_chat(self, request: ChatRequest) -> AsyncGenerator[LLMEvent]:
        """Stream the model's answer: text and reasoning as they come, tool calls at the end, StreamEnd last.

        Closing the generator closes the stream at the provider.

        Raises:
            LLMError: the provider cannot be reached, refuses, breaks off, or answers nothing.
        """
        return stream_answer(partial(self._open, request), self._decoder(), self._failures, self._waits)

    @abstractmethod
    def _decoder(self) -> Decoder:
        """Reads one answer."""

    @abstractmethod
    def _question(self, request: ChatRequest, options: frozenset[str]) -> Json:
        """The request as JSON, with those `options` only."""

    async def _open(self, request: ChatRequest) -> ClientResponse:
        """Send the request, again without those of its options that the provider says it does not know."""
        options = self._options
        while True:
            try:
                answer = await self._asker.ask(msgspec.json.encode(self._question(request, options)))
                break
            except RefusedError as error:
                refused = _named(self._sent(request, options), error)
                if not refused:
                    raise
                options -= refused
        # Others may have been refused meanwhile.
        self._options &= options | {IMAGE}
        return answer

    def _sent(self, request: ChatRequest, options: frozenset[str]) -> Iterable[str]:
        """Those of the options that can be in a question for this request."""
        shown = any(isinstance(message, ToolMessage) and message.media for message in request.messages)
        unasked = {CHOICE: not request.answer_only, self.stop_option: not request.stop, IMAGE: not shown}
        return (name for name in options if not unasked.get(name))


def bearer(key: str | None) -> dict[str, str]:
    """The header field with the key, or with something in its place for servers that need none."""
    return {"Authorization": f"Bearer {key or _NO_KEY}"}


def _named(options: Iterable[str], error: RefusedError) -> set[str]:
    """Those that the provider's complaint is about."""
    if error.status not in (400, 422):
        return set()
    words = str(error.body).lower()
    return {name for name in options if name in words or name.replace("_", " ") in words}
