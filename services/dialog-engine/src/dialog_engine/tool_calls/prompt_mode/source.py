"""Text that arrives in pieces, and how it is read.

A parser is written as if the whole text were there. It is a generator that yields whenever it needs more text, and is
resumed when there is more or the text has ended. How the text is cut into pieces does not change what is parsed.

A parser sees PIECE characters more at a time, however long the text is that has arrived: so what it reads again, or
copies, is never the whole reply.
"""

import re
from collections import deque
from collections.abc import Generator
from functools import lru_cache
from typing import TypeVar

T = TypeVar("T")
Reading = Generator[None, None, T]
"""A parser that returns a T; each yield asks for more text."""

PIECE = 2_000
MAX_WHITE_SPACE = 200
"""Characters of white space behind a closing tag after which it counts, whatever follows."""

_SPACE = re.compile(r"\s*")
_INSIDE_STRINGS = re.compile(r'["\\]')


@lru_cache
def _any_of(closers: tuple[str, ...], *, strings: bool) -> re.Pattern[str]:
    """One of these tags, what may be the beginning of one at the end of the text, and with `strings` also a quote."""
    found = ['"'] if strings else []
    return re.compile("|".join([*found, *map(re.escape, closers), rf"<[^<]{{0,{max(map(len, closers))}}}\Z"]))


class CutError(Exception):
    """The text ended inside something unfinished.

    `text` is what an unfinished `until` or `upto` had read; for the head of a block it is the beginning of the name.
    """

    def __init__(self, text: str = "") -> None:
        super().__init__("the text is cut")
        self.text = text


class Source:
    """The text that has arrived and is not read yet. Text that was read is dropped, unless a mark keeps it."""

    def __init__(self) -> None:
        self._text: str = ""
        self._at = 0
        self._mark: int | None = None
        self._unseen: deque[str] = deque()
        """Text that has arrived, and that parsers do not see yet."""
        self._finished = False
        self.doubt = ""
        """The problem of every call from here on, when it is not certain any more what is inside a string."""

    def add(self, text: str) -> None:
        """Append the next piece of text."""
        self._unseen.extend(_pieces(text))

    def finish(self) -> None:
        """All text has arrived."""
        self._finished = True

    @property
    def ended(self) -> bool:
        """Whether a parser sees all text up to its end."""
        return self._finished and not self._unseen

    def resume(self, parser: Reading[object]) -> None:
        """Let `parser` read all that has arrived."""
        self._show_more()
        next(parser, None)
        while self._show_more():
            next(parser, None)

    def _show_more(self) -> bool:
        if not self._unseen:
            return False
        kept = self._at if self._mark is None else self._mark
        self._text = self._text[kept:] + self._unseen.popleft()
        self._at -= kept
        self._mark = None if self._mark is None else 0
        return True

    # --- Going back ---

    def mark(self) -> None:
        """Keep what is read from here on, so that `back` can return to it."""
        self._mark = self._at

    def unmark(self) -> None:
        """Drop the mark."""
        self._mark = None

    def back(self) -> None:
        """Return to the mark, and drop it."""
        self._at = self._at if self._mark is None else self._mark
        self._mark = None

    def put_back(self, text: str) -> None:
        """Insert `text` before what is read next."""
        text += self._text[self._at :]
        self._text, self._at = text[:PIECE], 0
        self._unseen.extendleft(reversed([*_pieces(text[PIECE:])]))

    @property
    def since_mark(self) -> int:
        """Characters read since the mark."""
        return self._at - (self._at if self._mark is None else self._mark)

    @property
    def available_since_mark(self) -> int:
        """Characters that have arrived since the mark, read or not."""
        return len(self._text) - (self._at if self._mark is None else self._mark)

    @property
    def blank_since_mark(self) -> bool:
        """Whether only white space has arrived since the mark."""
        return not self._text[self._at if self._mark is None else self._mark :].strip()

    # --- Reading what has arrived ---

    @property
    def empty(self) -> bool:
        """Whether everything that a parser sees is read."""
        return self._at >= len(self._text)

    def before(self, character: str) -> str:
        """Read up to `character`, or everything that has arrived."""
        found = self._text.find(character, self._at)
        return self.take((len(self._text) if found < 0 else found) - self._at)

    def take(self, count: int) -> str:
        """Read `count` characters, or as many as have arrived."""
        taken = self._text[self._at : self._at + count]
        self._at += len(taken)
        return taken

    def rest(self) -> str:
        """Read everything that has arrived."""
        unseen = "".join(self._unseen)
        self._unseen.clear()
        return self.take(len(self._text)) + unseen

    def take_space(self) -> str:
        """Read the white space that has arrived."""
        return self._take_run(_SPACE)

    def _take_run(self, run: re.Pattern[str]) -> str:
        found = run.match(self._text, self._at)
        return self.take(found.end() - self._at if found else 0)

    # --- Parsers ---

    def space(self) -> Reading[None]:
        """Read white space."""
        yield from self.run(_SPACE)

    def run(self, run: re.Pattern[str]) -> Reading[str]:
        """Read as long as `run`, a pattern of single characters that may match nothing, matches. Returns the text."""
        parts = [self._take_run(run)]
        while self.empty and not self.ended:
            yield
            parts.append(self._take_run(run))
        return "".join(parts)

    def peek(self) -> Reading[str]:
        """The next character, without reading it; "" at the end."""
        while self.empty and not self.ended:
            yield
        return self._text[self._at : self._at + 1]

    def one_of(self, *literals: str) -> Reading[str | None]:
        """Read the one of `literals` that comes next. Returns None, and reads nothing, if none of them does.

        Raises:
            CutError: the text ended before this could be decided.
        """
        while True:
            for literal in literals:
                if self._text.startswith(literal, self._at):
                    self._at += len(literal)
                    return literal
            rest = self._text[self._at : self._at + max(map(len, literals))]
            if not any(literal.startswith(rest) for literal in literals):
                return None
            if self.ended:
                raise CutError
            yield

    def upto(self, character: str) -> Reading[str]:
        """Read up to and including `character`. Returns what is before it.

        Raises:
            CutError: it does not come.
        """
        parts: list[str] = []
        while True:
            parts.append(self.before(character))
            if not self.empty:
                self.take(1)
                return "".join(parts)
            if self.ended:
                raise CutError("".join(parts))
            yield

    def until(self, *closers: str, strings: bool = False, before: tuple[str, ...] = ()) -> Reading[tuple[str, str]]:
        """Read up to and including the first of `closers`, which are tags. Returns the text, and the closer.

        With `strings`, tags inside JSON strings do not count. With `before`, a closer counts only if one of these, or
        the end of the text, follows it, possibly after white space.

        Raises:
            CutError: the text ended; its `text` is what was read, without the beginning of a closer.
        """
        parts: list[str] = []
        in_string = False
        start = self._at
        while True:
            pattern = _INSIDE_STRINGS if in_string else _any_of(closers, strings=strings)
            found = pattern.search(self._text, self._at)
            self._at = found.start() if found else len(self._text)
            match found and found[0][0]:
                case '"':
                    in_string = not in_string
                    self._at += 1
                    continue
                case "\\" if self._at + 1 < len(self._text):
                    self._at += 2
                    continue
                case "<":
                    closer = self._closer(closers, before)
                    if closer:
                        parts.append(self._text[start : self._at])
                        self._at += len(closer)
                        return "".join(parts), closer
                    if closer is None:
                        self._at += 1
                        continue
                case _:
                    pass
            parts.append(self._text[start : self._at])
            if self.ended:
                raise CutError("".join(parts))
            yield
            start = self._at

    def _closer(self, closers: tuple[str, ...], before: tuple[str, ...]) -> str | None:
        """Which of `closers` comes next: None for none of them, "" if that needs more text."""
        for closer in closers:
            if self._text.startswith(closer, self._at):
                return self._followed(closer, before) if before else closer
        rest = self._text[self._at : self._at + max(map(len, closers))]
        return "" if any(closer.startswith(rest) for closer in closers) else None

    def _followed(self, closer: str, followers: tuple[str, ...]) -> str | None:
        at = self._at + len(closer)
        found = _SPACE.match(self._text, at, at + MAX_WHITE_SPACE)
        after = found.end() if found else at
        rest = self._text[after : after + max(map(len, followers))]
        if after - at == MAX_WHITE_SPACE or any(rest.startswith(follower) for follower in followers):
            return closer
        if any(follower.startswith(rest) for follower in followers):
            return closer if self.ended else ""
        return None


def _pieces(text: str) -> Generator[str]:
    return (text[at : at + PIECE] for at in range(0, len(text), PIECE))
