"""Which text is quoted: code and comments of Markdown, in which a tag is not a call.

What is not certain counts as quoted. A backtick that nothing has closed yet quotes the rest of its paragraph, because
the reply may be ended, by the stop sequence, before the one that closes it.
"""

import re

MOST_UNREAD = 4_000
"""Characters that wait to be examined, if there is a space among the last of them."""
LINE_START = 200
"""Characters of a line that are kept. What decides about its kind is at its beginning."""
COMMENT = -1
"""What is open in a paragraph where it is not a run of backticks, of which the length is kept."""

_MARKS = re.compile("`+|<!--|-->")
_FENCE = re.compile(r"[ \t>]*(?:(?:[-*+]|\d{1,9}[.)])[ \t]+)?(`{3,}|~{3,})")
_COMMENT_BLOCK = re.compile(r"[ \t>]*<!--")
_QUOTATION = re.compile(r"(?: {0,3}> ?)*")
_ITEM = re.compile(r"[ \t]*(?:[-*+]|\d{1,9}[.)])[ \t]+")
_SPACE = re.compile(r"[ \t]*")
_NO_PARAGRAPH = re.compile(r" {0,3}(?:#{1,6}[ \t]|([-=*_])(?:[ \t]*\1)*[ \t]*$)|.*-->[ \t]*$")
CODE_COLUMNS = 4


class QuoteTracker:
    """Tracks whether the text that was shown ends inside a quotation, or at the beginning of a line.

    The text is examined when a property is read, and before when there is much of it.
    """

    def __init__(self) -> None:
        self._unread: list[str] = []
        self.unread = 0
        """The characters that are not examined yet."""
        self._fence = ""
        self._comment = False
        """Whether a comment that began a line is open, which a blank line does not end."""
        self._open = 0
        """The backticks, or the comment, that are open in this paragraph; 0: none."""
        self._may_indent = True
        """Whether a line that is indented now is code, and continues no paragraph."""
        self._item_columns = 0
        """How far the text of a list item is indented."""
        self._start_line()

    def add(self, text: str) -> None:
        """Append text that has been shown."""
        self._unread.append(text)
        self.unread += len(text)
        if self.unread > MOST_UNREAD and (end := text.rfind(" ") + 1):  # no mark has a space in it
            self._unread[-1] = text[:end]
            self._examine()
            self._unread, self.unread = [text[end:]], len(text) - end

    @property
    def quoted(self) -> bool:
        """Whether what is shown next is in code, in a comment, or on the line that opens a code fence."""
        self._examine()
        return bool(self._fence or self._comment or self._open or self._span or self._opened() or self._indented())

    @property
    def at_line_start(self) -> bool:
        """Whether only white space precedes what is shown next on its line."""
        self._examine()
        return self._blank

    def _examine(self) -> None:
        first, *lines = "".join(self._unread).split("\n")
        self._unread.clear()
        self.unread = 0
        self._extend(first)
        for line in lines:
            self._end_line()
            self._extend(line)

    def _start_line(self) -> None:
        self._start, self._length, self._ticks, self._span, self._blank = "", 0, 0, 0, True

    def _extend(self, text: str) -> None:
        self._start += text[: LINE_START - len(self._start)]
        self._length += len(text)
        # A mark never ends with `text`: a tag follows it.
        for mark in _MARKS.finditer(text):
            self._read_mark(mark[0])
        self._blank = self._blank and not text.strip()

    def _read_mark(self, mark: str) -> None:
        if mark[0] == "`":
            run = len(mark)
            self._ticks += run
            # Inline code ends with as many backticks as it began with.
            self._span = 0 if self._span == run else self._span or run
            if not self._comment:
                self._open = 0 if self._open == run else self._open or run
        elif mark == "-->":
            self._comment = False
            self._open = 0 if self._open == COMMENT else self._open
        elif not self._fence and _COMMENT_BLOCK.fullmatch(self._start[: self._start.find(mark) + len(mark)]):
            self._comment, self._open = True, 0
        else:
            self._open = self._open or COMMENT

    def _end_line(self) -> None:
        if self._fence:
            if self._length <= LINE_START:
                marks = self._start.strip(" \t\r>")
                closed = marks.startswith(self._fence) and not marks.strip(self._fence[0])
                self._fence = "" if closed else self._fence
            self._end_paragraph()
        elif not self._comment:
            self._end_line_of_text()
        self._start_line()

    def _end_line_of_text(self) -> None:
        self._fence = self._opened()
        start = _QUOTATION.sub("", self._start, count=1)
        if self._fence or not start.strip() or _NO_PARAGRAPH.match(start) or self._indented():
            self._end_paragraph()
            return
        if item := _ITEM.match(start):
            self._item_columns = _columns(item[0])
        elif self._may_indent and _columns(_space_of(start)) < self._item_columns:
            self._item_columns = 0
        self._may_indent = False

    def _end_paragraph(self) -> None:
        self._open, self._may_indent = 0, True

    def _indented(self) -> bool:
        """Whether this line is code by its indentation."""
        space = _space_of(_QUOTATION.sub("", self._start, count=1))
        return self._may_indent and _columns(space) >= self._item_columns + CODE_COLUMNS

    def _opened(self) -> str:
        """The fence that this line opens, or ""."""
        found = _FENCE.match(self._start)
        if not found:
            return ""
        fence = found[1]
        return "" if fence[0] == "`" and self._ticks > len(fence) else fence


def _space_of(line: str) -> str:
    found = _SPACE.match(line)
    return found[0] if found else ""


def _columns(text: str) -> int:
    return len(text.expandtabs(4))
