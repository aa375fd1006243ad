"""What of a reply has been shown, as far as it tells what stands next: in code, or at the beginning of a line."""

import re

_LINE_START = 200
"""Characters of a line that are kept: a fence is at its beginning."""

_FENCE = re.compile(r"[ \t>]*(?:(?:[-*+]|\d{1,9}[.)])[ \t]+)?(`{3,}|~{3,})")


class Page:
    """Lines and code fences are looked for only when somebody asks: most text is never looked at."""

    def __init__(self) -> None:
        self._unread: list[str] = []
        self._fence = ""
        self._start_line()

    def add(self, text: str) -> None:
        """This has been shown."""
        self._unread.append(text)

    @property
    def in_code(self) -> bool:
        """What is shown next stands in a code fence, on the line that opens one, or in code within a line."""
        self._look()
        return bool(self._fence or self._opened()) or self._ticks % 2 == 1

    @property
    def at_line_start(self) -> bool:
        """Nothing but white space is before it on its line."""
        self._look()
        return self._blank

    def _look(self) -> None:
        first, *lines = "".join(self._unread).split("\n")
        self._unread.clear()
        self._extend(first)
        for line in lines:
            self._end_line()
            self._extend(line)

    def _start_line(self) -> None:
        self._start, self._length, self._ticks, self._blank = "", 0, 0, True

    def _extend(self, text: str) -> None:
        self._start += text[: _LINE_START - len(self._start)]
        self._length += len(text)
        self._ticks += text.count("`")
        self._blank = self._blank and not text.strip()

    def _end_line(self) -> None:
        if not self._fence:
            self._fence = self._opened()
        elif self._length <= _LINE_START:
            marks = self._start.strip(" \t\r>")
            closed = marks.startswith(self._fence) and not marks.strip(self._fence[0])
            self._fence = "" if closed else self._fence
        self._start_line()

    def _opened(self) -> str:
        """The fence that this line opens, "" for none."""
        found = _FENCE.match(self._start)
        if not found:
            return ""
        fence = found[1]
        return "" if fence[0] == "`" and self._ticks > len(fence) else fence
