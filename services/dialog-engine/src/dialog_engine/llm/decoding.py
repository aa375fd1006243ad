"""What the decoders of all protocols share: server-sent events, and the steps from payloads to model events. Pure."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import replace
from itertools import groupby
from typing import Protocol, cast

import msgspec

from callstream_runtime.long_texts import exceeds
from dialog_engine.errors import LLMError, LLMStreamBrokenError
from dialog_engine.model import LLMEvent, ReasoningDelta, TextDelta, Usage

NONE_REPORTED = Usage()
"""The usage before the first report."""


def parts_bounded(usage: Usage) -> Usage:
    """The usage with no part above what it is a part of: some providers count reasoning beside the output."""
    cached = min(usage.cached_tokens, usage.input_tokens)
    written = min(usage.cache_write_tokens, usage.input_tokens - cached)
    reasoning = min(usage.reasoning_tokens, usage.output_tokens)
    return replace(usage, cached_tokens=cached, cache_write_tokens=written, reasoning_tokens=reasoning)


MAX_VALUES = 100_000
"""The most values of one message of a provider, with those in its lists and objects: each becomes an object."""
MAX_LINES = 100_000
"""The most lines of one message."""

_BOM = b"\xef\xbb\xbf"


class Framing(Protocol):
    """Splits the bytes of a response into payloads, wherever the network has cut them."""

    def feed(self, read: bytes) -> list[bytes]:
        """The payloads that `read` completes, in order."""
        ...

    def finish(self) -> list[bytes]:
        """The payloads that are left at the end of the stream."""
        ...


class SSEParser(Framing):
    """Parses server-sent events. Only `data` is kept: no provider needs the other fields.

    This is the hot path of a relay: a whole network read is split at once, and nothing is decoded here.

    Unlike a browser it also delivers an event that the end of the stream cut off before its blank line, because some
    providers leave that line out. A stream that begins as a JSON document is one payload, because some gateways send an
    error document with the content type of an event stream.
    """

    def __init__(self) -> None:
        self._line: list[bytes] = []
        self._data: list[bytes] = []
        self._after_cr = False
        self._at_start = True
        self._is_document = False

    def feed(self, read: bytes) -> list[bytes]:
        """The payloads that `read` completes; several `data` lines of one event are joined by newlines.

        Raises:
            LLMStreamBrokenError: a message has more than MAX_LINES.
        """
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
        line = b"".join(self._line)
        self._line.clear()
        payloads = self._take([line, b""])
        return [b"\n".join(self._data).rstrip()] if self._is_document else payloads

    def _take(self, lines: list[bytes]) -> list[bytes]:
        if self._at_start:
            lines[0] = lines[0].removeprefix(_BOM)
            self._at_start = False
            self._is_document = lines[0].startswith(b"{")
        if len(self._data) > MAX_LINES:
            raise LLMStreamBrokenError(f"the model's provider sent a message of more than {MAX_LINES:,} lines")
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


class Decoder(ABC):
    """Reads one answer: `feed` its bytes until it is `done`, then call `finish`.

    An error that the provider reports inside the stream is raised by `finish`, so that the text which came before it in
    the same network read is not lost.
    """

    def __init__(self, framing: Framing) -> None:
        self._framing = framing
        self._failure: LLMError | None = None
        self._incomplete = 0
        self.pieces = 0
        """Number of pieces of the answer so far, 0 until it begins. Keep-alive messages are not counted."""
        self.done = False
        """The provider has sent its last message, or an error: nothing more is expected."""
        self._reported: Usage = NONE_REPORTED
        self._pieces_reported = 0

    def feed(self, read: bytes) -> list[LLMEvent]:
        """The events of one network read; adjacent deltas are merged."""
        payloads = self._framing.feed(read)
        self._incomplete = 0 if payloads else self._incomplete + len(read)
        return self._events(payloads)

    def feed_whole(self, body: bytes) -> list[LLMEvent]:
        """The events of an answer that is one JSON document, from a gateway that does not stream."""
        events: list[LLMEvent] = []
        try:
            _check_values(body)
            self._take_whole(body, events)
        except LLMError as error:
            self._failure = error
        self.done = True
        return merged(events)

    def finish(self) -> list[LLMEvent]:
        """The events at the end: tool calls, then StreamEnd.

        Raises:
            LLMError: the error that the provider reported.
            LLMStreamBrokenError: the answer is incomplete.
        """
        events = [] if self.done else self._events(self._framing.finish())
        if self._failure is not None:
            raise self._failure
        if not self.complete:
            raise LLMStreamBrokenError("the model's stream broke off before its end")
        return events + self._ending()

    @property
    def held(self) -> int:
        """How much of the answer so far the next read may have to be read with."""
        return self._incomplete

    @property
    def cost(self) -> Usage:
        """What the provider has reported of the cost so far. Each piece that came since is counted as one token."""
        unreported = self.pieces - self._pieces_reported
        known = self._reported
        return replace(known, output_tokens=known.output_tokens + unreported, estimated=unreported > 0)

    @property
    @abstractmethod
    def usage(self) -> Usage:
        """What the provider has reported last: NONE_REPORTED, then a new object with each report."""

    @property
    @abstractmethod
    def complete(self) -> bool:
        """Whether the message is complete, even if the connection breaks now."""

    @abstractmethod
    def _take(self, payload: bytes, events: list[LLMEvent]) -> None:
        """Read one payload, add its events, and count it in `pieces` if it belongs to the answer.

        Raises:
            LLMError: the provider reports an error, or the payload is not JSON.
        """

    @abstractmethod
    def _take_whole(self, body: bytes, events: list[LLMEvent]) -> None:
        """The same for an answer that is one document."""

    @abstractmethod
    def _ending(self) -> list[LLMEvent]:
        """The tool calls and StreamEnd of a complete answer."""

    def _events(self, payloads: Iterable[bytes]) -> list[LLMEvent]:
        events: list[LLMEvent] = []
        for payload in payloads:
            if not payload or payload.isspace():
                continue
            if payload.startswith(b"[DONE]"):
                self.done = True
            else:
                try:
                    _check_values(payload)
                    self._take(payload, events)
                    if self.usage is not self._reported:
                        self._reported, self._pieces_reported = self.usage, self.pieces
                except LLMError as error:
                    self._failure, self.done = error, True
            if self.done:
                break
        return merged(events)

    def _not_json(self, error: ValueError) -> None:
        """Called for a payload that is not JSON: after a complete message it is ignored."""
        if not self.complete:
            raise LLMStreamBrokenError("the model's provider sent something that is not JSON") from error


def is_complete(text: str) -> bool:
    """Whether `text`, the arguments of a call, is one complete JSON object."""
    if not text.rstrip().endswith("}"):
        return False
    try:
        return isinstance(msgspec.json.decode(text), dict)
    except (ValueError, RecursionError):
        return False


def _check_values(payload: bytes) -> None:
    if exceeds(payload, MAX_VALUES):
        raise LLMStreamBrokenError(f"the model's provider sent a message of more than {MAX_VALUES:,} values")


def merged(events: list[LLMEvent]) -> list[LLMEvent]:
    """The same events with adjacent deltas of a kind joined, which saves work at every later step."""
    if len(events) < 2:
        return events
    result: list[LLMEvent] = []
    for kind, group in groupby(events, type):
        if kind is TextDelta or kind is ReasoningDelta:
            result.append(kind("".join(event.text for event in cast("Iterable[TextDelta | ReasoningDelta]", group))))
        else:
            result.extend(group)
    return result
