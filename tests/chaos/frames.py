"""Where one command or reply ends and the next begins in a stream of the Redis protocol (RESP2 and RESP3)."""

from collections.abc import Generator

_BULK = frozenset(b"$=!")
_AGGREGATES = {ord("*"): 1, ord("~"): 1, ord(">"): 1, ord("%"): 2, ord("|"): 2}
_ARRAY = ord("*")
_ATTRIBUTE = ord("|")
_PUSH = ord(">")


class Frames:
    """Cuts the bytes of one direction of a connection into whole frames."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._at = 0
        self._values = 1
        """How many values are still to come of the frame at the beginning of `_data`."""

    def feed(self, data: bytes) -> Generator[bytes]:
        self._data += data
        while (end := self._end()) is not None:
            frame = bytes(self._data[:end])
            del self._data[:end]
            self._at, self._values = 0, 1
            yield frame

    def _end(self) -> int | None:
        """Where the first frame ends; None when it is not all there. Goes on where it stopped the last time."""
        data = self._data
        while self._values:
            line_end = data.find(b"\r\n", self._at)
            if line_end < 0:
                return None
            kind, after = data[self._at], line_end + 2
            values = -1
            if kind in _BULK:
                length = int(data[self._at + 1 : line_end])
                if length >= 0:
                    after += length + 2
                if after > len(data):
                    return None
            elif kind in _AGGREGATES:
                # A null array has the length -1. An attribute stands before the value that it belongs to.
                count = max(int(data[self._at + 1 : line_end]), 0)
                values = _AGGREGATES[kind] * count - (kind != _ATTRIBUTE)
            self._values += values
            self._at = after
        return self._at


def is_push(frame: bytes) -> bool:
    """Whether this is no reply to a command: something the server tells by itself."""
    return frame[0] == _PUSH


def words_of(frame: bytes, count: int) -> list[bytes]:
    if frame[0] != _ARRAY:
        return frame.split(maxsplit=count)[:count]
    words: list[bytes] = []
    at = frame.find(b"\r\n") + 2
    while len(words) < count and at < len(frame):
        line_end = frame.find(b"\r\n", at)
        length = int(frame[at + 1 : line_end])
        words.append(frame[line_end + 2 : line_end + 2 + length])
        at = line_end + 2 + length + 2
    return words
