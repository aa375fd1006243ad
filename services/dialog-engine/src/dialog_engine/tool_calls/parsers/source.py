"""Text that comes in pieces, for grammars that are written as if it were all there.

A grammar is a generator: it yields whenever it must see more, and is resumed when there is more text, or the news that
there is none. However the text is cut, a grammar reads the same.
"""

import re
from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")
Reading = Generator[None, None, T]
"""Reads a T; each yield asks for more text."""

MAX_LAYOUT = 200
"""White space after which a closing tag counts without a look at what follows."""

_SPACE = re.compile(r"\s*")
_OUTSIDE_STRINGS = re.compile(r'["<]')
_INSIDE_STRINGS = re.compile(r'["\\]')
_TAGS = re.compile("<")


class CutError(Exception):
    """The text ended where it could have gone on. `text` is what an unfinished `until` or `upto` had read; of the head
    of a block, its name as far as it goes."""

    def __init__(self, text: str = "") -> None:
        super().__init__("the text is cut")
        self.text = text


class Source:
    """What has come and is not read yet. Text behind the reader is dropped, unless there is a mark to go back to."""

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self._mark: int | None = None
        self.ended = False
        """No more will come."""
        self.doubt = ""
        """What is wrong with everything from here on, if it cannot be told any more what stands in a string."""

    def add(self, text: str) -> None:
        """More has come."""
        kept = self._at if self._mark is None else self._mark
        self._text = self._text[kept:] + text
        self._at -= kept
        self._mark = None if self._mark is None else 0

    # --- Going back ---

    def mark(self) -> None:
        """Keep what is read from here on, for `back`."""
        self._mark = self._at

    def unmark(self) -> None:
        """There is no going back any more."""
        self._mark = None

    def back(self) -> None:
        """Be at the mark again, and drop it."""
        self._at = self._at if self._mark is None else self._mark
        self._mark = None

    def put_back(self, text: str) -> None:
        """`text` is to be read next, again."""
        self._text = text + self._text[self._at :]
        self._at = 0

    @property
    def since_mark(self) -> int:
        """Characters read since the mark."""
        return self._at - (self._at if self._mark is None else self._mark)

    @property
    def available_since_mark(self) -> int:
        """Characters that have come since the mark, read or not."""
        return len(self._text) - (self._at if self._mark is None else self._mark)

    @property
    def blank_since_mark(self) -> bool:
        """Whether nothing but white space has come since the mark."""
        return not self._text[self._at if self._mark is None else self._mark :].strip()

    # --- What is there ---

    @property
    def empty(self) -> bool:
        """Nothing is there to be read now."""
        return self._at >= len(self._text)

    def before(self, character: str) -> str:
        """Read up to `character`, or all that is there."""
        found = self._text.find(character, self._at)
        return self.take((len(self._text) if found < 0 else found) - self._at)

    def take(self, count: int) -> str:
        """Read so many characters, or as many as are there."""
        taken = self._text[self._at : self._at + count]
        self._at += len(taken)
        return taken

    def rest(self) -> str:
        """Read all that is there."""
        return self.take(len(self._text))

    def take_space(self) -> str:
        """Read the white space that is there."""
        found = _SPACE.match(self._text, self._at)
        return self.take(found.end() - self._at if found else 0)

    # --- Readings ---

    def space(self) -> Reading[None]:
        """Read white space."""
        self.take_space()
        while self.empty and not self.ended:
            yield
            self.take_space()

    def peek(self) -> Reading[str]:
        """The next character, which is not read; "" at the end."""
        while self.empty and not self.ended:
            yield
        return self._text[self._at : self._at + 1]

    def one_of(self, *literals: str) -> Reading[str | None]:
        """Read the one of `literals` with which the text goes on; None, and nothing is read, if it is another text.

        Raises:
            CutError: the text ended before that could be told.
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
        """Read up to `character`, and it too; returns what is before it.

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
        """Read up to the first of `closers`, which are tags, and it too: the text, and which it was.

        With `strings`, what stands inside a JSON string is no closer. With `before`, only a closer that is followed by
        one of these, or by the end, is one: white space may stand between.

        Raises:
            CutError: with all the text there was, without the beginning of a closer.
        """
        parts: list[str] = []
        in_string = False
        start = self._at
        while True:
            pattern = _INSIDE_STRINGS if in_string else _OUTSIDE_STRINGS if strings else _TAGS
            found = pattern.search(self._text, self._at)
            self._at = found.start() if found else len(self._text)
            match found and found[0]:
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
        """Which of `closers` the text goes on with: None for none, "" if more text must come to tell."""
        for closer in closers:
            if self._text.startswith(closer, self._at):
                return self._followed(closer, before) if before else closer
        rest = self._text[self._at :]
        return "" if any(closer.startswith(rest) for closer in closers) else None

    def _followed(self, closer: str, followers: tuple[str, ...]) -> str | None:
        at = self._at + len(closer)
        found = _SPACE.match(self._text, at, at + MAX_LAYOUT)
        after = found.end() if found else at
        rest = self._text[after : after + max(map(len, followers))]
        if after - at == MAX_LAYOUT or any(rest.startswith(follower) for follower in followers):
            return closer
        if any(follower.startswith(rest) for follower in followers):
            return closer if self.ended else ""
        return None
