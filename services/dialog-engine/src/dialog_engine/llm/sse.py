"""Server-sent events, from bytes as they arrive to data payloads.

Written for the hot path: a whole network read is split at once, and nothing is decoded here.
"""

_BOM = b"\xef\xbb\xbf"


class SSEParser:
    """Takes an event stream apart, wherever the network cut it. Only `data` is kept: no provider needs the rest.

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
