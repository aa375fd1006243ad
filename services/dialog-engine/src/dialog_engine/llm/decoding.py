"""From the bytes of an answer to the model's events. Pure: the transport is elsewhere."""

from collections.abc import Iterable
from itertools import groupby
from typing import cast

from dialog_engine.errors import LLMError, LLMStreamBrokenError, LLMStreamEmptyError
from dialog_engine.llm.assembly import MessageAssembler
from dialog_engine.llm.failures import Failures
from dialog_engine.llm.sse import SSEParser
from dialog_engine.llm.wire import decode_chunk
from dialog_engine.model import FinishReason, LLMEvent, ReasoningDelta, StreamEnd, TextDelta

_BROKEN_REASONS = ("error", "network_error", "insufficient_system_resource")
"""Finish reasons by which providers say that the answer is not finished."""


class AnswerDecoder:
    """Reads one answer. `feed` its bytes until it is `done`, then `finish`.

    What the provider reports as an error is raised by `finish`: what it said before, in the same read, is not lost.
    """

    def __init__(self, failures: Failures, model: str = "") -> None:
        """`model` is who answers, see MessageAssembler."""
        self._failures = failures
        self._sse = SSEParser()
        self._assembler = MessageAssembler(model=model)
        self._failure: LLMError | None = None
        self.heard = 0
        """How many pieces of the answer have come, 0 until it begins. What only keeps the connection open is none."""
        self.done = False
        """The provider said `[DONE]`, or that it failed: nothing more will come."""

    @property
    def complete(self) -> bool:
        """Whether the message is whole, even if the connection breaks off now."""
        return self.done or self._assembler.finish_reason is not None

    def feed(self, read: bytes) -> list[LLMEvent]:
        """The events of one network read of an event stream; adjacent deltas are merged."""
        return self._events(self._sse.feed(read))

    def feed_whole(self, body: bytes) -> list[LLMEvent]:
        """The events of an answer that is one JSON document, from a gateway that does not stream."""
        events = self._events((body,))
        self.done = True
        return events

    def finish(self) -> list[LLMEvent]:
        """The events at the end: tool calls, then StreamEnd.

        Raises:
            LLMError: what the provider reported.
            LLMStreamBrokenError: the answer is not whole.
            LLMStreamEmptyError: it holds neither text nor calls, and no limit or filter explains that.
        """
        events = [] if self.done else self._events(self._sse.finish())
        if self._failure is not None:
            raise self._failure
        if not self.complete:
            raise LLMStreamBrokenError("the model's stream broke off before its end")
        if (self._assembler.finish_reason or "").lower() in _BROKEN_REASONS:
            raise LLMStreamBrokenError("the model's provider gave up before the end of the answer")
        return events + not_empty(self._assembler.finish(), spoke=self._assembler.spoke)

    def _events(self, payloads: Iterable[bytes]) -> list[LLMEvent]:
        events: list[LLMEvent] = []
        for payload in payloads:
            if payload.startswith(b"[DONE]"):
                self.done = True
                break
            if payload and not payload.isspace():
                try:
                    self._take(payload, events)
                except LLMError as error:
                    self._failure, self.done = error, True
                    break
        return merged(events)

    def _take(self, payload: bytes, events: list[LLMEvent]) -> None:
        try:
            chunk = decode_chunk(payload)
        except ValueError as error:
            if self.complete:
                return
            raise LLMStreamBrokenError("the model's provider sent something that is not JSON") from error
        if chunk.error:
            raise self._failures.of_object(chunk.error)
        events += self._assembler.feed(chunk)
        if events or self.heard or self._assembler.calls:
            self.heard += 1


def not_empty(ending: list[LLMEvent], *, spoke: bool) -> list[LLMEvent]:
    """The end of an answer that did, or did not, say anything.

    Raises:
        LLMStreamEmptyError: it holds neither text nor calls, and no limit or filter explains that.
    """
    match ending:
        case [StreamEnd(FinishReason.STOP)] if not spoke:
            raise LLMStreamEmptyError("the model's answer holds neither text nor a tool call")
        case _:
            return ending


def merged(events: list[LLMEvent]) -> list[LLMEvent]:
    """The same with adjacent deltas of a kind made one: less work for everyone downstream."""
    if len(events) < 2:
        return events
    result: list[LLMEvent] = []
    for kind, group in groupby(events, type):
        if kind is TextDelta or kind is ReasoningDelta:
            result.append(kind("".join(event.text for event in cast("Iterable[TextDelta | ReasoningDelta]", group))))
        else:
            result.extend(group)
    return result
