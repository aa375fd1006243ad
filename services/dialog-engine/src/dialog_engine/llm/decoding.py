"""From the bytes of an answer, server-sent events, to the model's events. Pure: the transport is elsewhere."""

from collections.abc import Iterable
from itertools import groupby
from typing import cast

from dialog_engine.errors import LLMError, LLMStreamBrokenError, LLMStreamEmptyError
from dialog_engine.llm.assembly import MessageAssembler
from dialog_engine.llm.failures import Failures
from dialog_engine.llm.wire import decode_chunk
from dialog_engine.model import FinishReason, LLMEvent, ReasoningDelta, StreamEnd, TextDelta

_BOM = b"\xef\xbb\xbf"


class SSEParser:
    """Takes an event stream apart, wherever the network cut it. Only `data` is kept: no provider needs the rest.

    Written for the hot path: a whole network read is split at once, and nothing is decoded here.

    Unlike a browser it also delivers an event that the end of the stream cut off before its blank line: some providers
    leave that line out. And what begins as a JSON document is one payload: some gateways call an error an event stream.
    """

    def __init__(self) -> None:
        self._line: list[bytes] = []
        self._data: list[bytes] = []
        self._after_cr = False
        self._at_start = True
        self._is_document = False

    def feed(self, read: bytes) -> list[bytes]:
        """The payloads that `read` completes, in order; several `data` lines of one event are joined by newlines."""
        if self._after_cr and read:
            read = read.removeprefix(b"\n")
            self._after_cr = False
        if b"\r" in read:
            self._after_cr = read.endswith(b"\r")
            read = read.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if b"\n" not in read:
            if read:
                self._line.append(read)
            return []
        if self._line:
            read = b"".join((*self._line, read))
            self._line.clear()
        *lines, rest = read.split(b"\n")
        if rest:
            self._line.append(rest)
        return self._take(lines)

    def finish(self) -> list[bytes]:
        """What is left at the end of the stream."""
        line = b"".join(self._line)
        self._line.clear()
        payloads = self._take([line, b""])
        return [b"\n".join(self._data).rstrip()] if self._is_document else payloads

    def _take(self, lines: list[bytes]) -> list[bytes]:
        if self._at_start:
            lines[0] = lines[0].removeprefix(_BOM)
            self._at_start = False
            self._is_document = lines[0].startswith(b"{")
        if self._is_document:
            self._data += lines
            return []
        payloads: list[bytes] = []
        data = self._data
        for line in lines:
            if line.startswith(b"data:"):
                data.append(line[6:] if line[5:6] == b" " else line[5:])
            elif not line:
                if data:
                    payloads.append(data[0] if len(data) == 1 else b"\n".join(data))
                    data.clear()
            elif line == b"data":
                data.append(b"")
        return payloads


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
