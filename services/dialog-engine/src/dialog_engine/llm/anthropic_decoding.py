"""From the bytes of an answer of the Anthropic Messages API to the model's events. Pure."""

from collections.abc import Iterable

from dialog_engine.errors import LLMError, LLMStreamBrokenError
from dialog_engine.llm.anthropic_assembly import AnthropicAssembler
from dialog_engine.llm.anthropic_wire import Event, decode_event
from dialog_engine.llm.decoding import SSEParser, merged, not_empty
from dialog_engine.llm.failures import Failures
from dialog_engine.llm.reading import Decoder
from dialog_engine.model import LLMEvent


class AnthropicDecoder(Decoder):
    """Reads one answer of `model`. What the provider reports as an error is raised by `finish`, after what it said."""

    def __init__(self, model: str, failures: Failures) -> None:
        self._failures = failures
        self._sse = SSEParser()
        self._assembler = AnthropicAssembler(model)
        self._failure: LLMError | None = None
        self._heard = 0
        self._done = False

    @property
    def heard(self) -> int:
        return self._heard

    @property
    def done(self) -> bool:
        return self._done

    @property
    def complete(self) -> bool:
        return self._done or self._assembler.stop_reason is not None

    def feed(self, read: bytes) -> list[LLMEvent]:
        return self._events(self._sse.feed(read))

    def feed_whole(self, body: bytes) -> list[LLMEvent]:
        self._done = True
        try:
            answer = self._read(body)
        except LLMError as error:
            self._failure = error
            return []
        return [] if answer is None else self._assembler.feed_whole(answer)

    def finish(self) -> list[LLMEvent]:
        """The events at the end: tool calls, then StreamEnd.

        Raises:
            LLMError: what the provider reported.
            LLMStreamBrokenError: the answer is not whole.
            LLMStreamEmptyError: it holds neither text nor calls, and no limit or filter explains that.
        """
        events = [] if self._done else self._events(self._sse.finish())
        if self._failure is not None:
            raise self._failure
        if not self.complete:
            raise LLMStreamBrokenError("the model's stream broke off before its end")
        return events + not_empty(self._assembler.finish(), spoke=self._assembler.spoke)

    def _events(self, payloads: Iterable[bytes]) -> list[LLMEvent]:
        events: list[LLMEvent] = []
        for payload in payloads:
            try:
                event = self._read(payload)
            except LLMError as error:
                self._failure, self._done = error, True
                break
            if event is None:
                continue
            if event.type == "message_stop":
                self._done = True
                break
            # Neither a ping nor the head of a message or a block: thinking, which may not be shown, comes after those.
            if event.delta is not None or (event.content_block is not None and event.content_block.name):
                self._heard += 1
            events += self._assembler.feed(event)
        return merged(events)

    def _read(self, payload: bytes) -> Event | None:
        """The event; None for what can do no more harm."""
        try:
            event = decode_event(payload)
        except ValueError as error:
            if self.complete or payload.startswith(b"[DONE]") or not payload.strip():
                return None
            raise LLMStreamBrokenError("the model's provider sent something that is not JSON") from error
        if event.error:
            raise self._failures.of_object(event.error)
        return event
