"""One reply of a model: what of its text is for the user, and which calls it holds."""

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Protocol, TypeVar

from dialog_engine.model import TextDelta, ToolCallEvent
from dialog_engine.tool_calls.parsers import imitations
from dialog_engine.tool_calls.parsers.page import Page
from dialog_engine.tool_calls.parsers.source import CutError, Reading, Source

T = TypeVar("T")

MAX_HEAD = 1_000
"""Characters after its opening tag in which a block must have named its tool; with more it is none."""

_NAME_BEGUN = re.compile(r"[\w.\-]*")

CUT_OFF = "the reply broke off inside this call. Write the whole call again, shorter if it was too long."


@dataclass(frozen=True, slots=True)
class Written:
    """A call as it is written. `problem` says why it cannot be read. What is not `closed` ends where the reply does."""

    name: str
    arguments: str
    problem: str = ""
    closed: bool = True


@dataclass(frozen=True, slots=True)
class Head:
    """The beginning of a block, as far as it takes to know that it is one; `all` when there is no more of it.

    What is not `whole` is one only if its name is that of a tool: something is missing. `begun` is what was read of a
    call that is not told by tags.
    """

    name: str
    all: Written | None = None
    whole: bool = True
    begun: str = ""


class Grammar(Protocol):
    """How blocks of calls are written in one dialect."""

    @property
    def openers(self) -> tuple[str, ...]:
        """The tags a block begins with."""
        ...

    def head(self, source: Source, opener: str) -> Reading[Head | None]:
        """What follows `opener`, up to where it is sure to be a block; None if it is not. May raise CutError."""
        ...

    def body(self, source: Source, head: Head) -> Reading[list[Written]]:
        """The rest of the block. It never fails: what cannot be read becomes a problem of its call."""
        ...


class ReplyReader:
    """Reads one reply. `feed` its text in order, then `finish`; text comes out at once, calls when they are complete.

    A block is a call when it is not in code and names a tool that is `known`; of any other name, when it is whole and
    has a line of its own, or follows a call: a misspelled call is for the model to hear of. All else is text.
    After a call only further blocks count. What else a model says then it says without having seen the result.
    A result that it writes itself is never shown: see `_imitation`.
    """

    def __init__(
        self, grammar: Grammar, known: Collection[str], mint: Callable[[], str], *, repeats: bool = False
    ) -> None:
        """`mint` makes ids for calls. `repeats`: a result in the reply may be one that the model was given."""
        self._grammar = grammar
        self._openers = (*grammar.openers, *imitations.OPENERS)
        self._known = known
        self._mint = mint
        self._repeats = repeats
        self._source = Source()
        self._page = Page()
        self._shown: list[str] = []
        self._calls: list[ToolCallEvent] = []
        self._in_text = True
        self._cleanly = True
        self._steps = self._reply()
        next(self._steps)
        self.dropped = 0
        """Characters after the last call that were dropped."""

    def feed(self, text: str) -> list[TextDelta | ToolCallEvent]:
        """What the next piece of text adds."""
        if self._in_text and "<" not in text and self._source.empty:
            self._page.add(text)
            return [TextDelta(text)]
        self._source.add(text)
        return self._step()

    def finish(self, *, cleanly: bool) -> list[TextDelta | ToolCallEvent]:
        """What the end of the reply adds. `cleanly`: the model ended it, no limit and no filter."""
        self._source.ended, self._cleanly = True, cleanly
        return self._step()

    def _step(self) -> list[TextDelta | ToolCallEvent]:
        next(self._steps, None)
        text = "".join(self._shown)
        found: list[TextDelta | ToolCallEvent] = [TextDelta(text)] if text else []
        found += self._calls
        self._shown, self._calls = [], []
        return found

    def _show(self, text: str) -> None:
        if text:
            self._page.add(text)
            self._shown.append(text)

    def _reply(self) -> Reading[None]:
        while (opener := (yield from self._text())) is not None:
            if opener in imitations.OPENERS:
                over = yield from self._imitation(opener)
            else:
                over = yield from self._block(opener)
            if over:
                yield from self._after_call()
                return

    def _text(self) -> Reading[str | None]:
        """Show text up to the opening tag of what may be a block; None at the end."""
        while True:
            self._in_text = True
            self._show(self._source.before("<"))
            if self._source.empty:
                if self._source.ended:
                    return None
                yield
                continue
            try:
                opener = yield from self._source.one_of(*self._openers)
            except CutError:
                begun = self._source.rest()
                if self._cleanly or self._page.in_code:
                    self._show(begun)
                return None
            self._in_text = False
            if opener and not self._page.in_code:
                return opener
            self._show(opener or self._source.take(1))

    def _block(self, opener: str, *, follows: bool = False) -> Reading[bool]:
        """Read a block whose opening tag is read; False if it is none: then it is shown, and the rest is not read."""
        self._source.mark()
        standing = follows or self._page.at_line_start
        try:
            head = yield from self._head(self._grammar.head(self._source, opener), MAX_HEAD)
        except CutError as cut:
            # Before it named its tool: nobody can make use of that, and it is no text.
            head = None
            if not self._cleanly or (standing and self._breaks_off(cut)):
                self._source.rest()
                return True
        if head is None or not (head.name in self._known or (standing and head.whole)):
            self._source.back()
            if not follows:
                self._show(opener)
            return False
        self._source.unmark()
        for call in (yield from self._grammar.body(self._source, head)):
            problem = call.problem or ("" if call.closed or self._cleanly else CUT_OFF)
            self._calls.append(ToolCallEvent(self._mint(), call.name, call.arguments, problem=problem))
        return True

    def _breaks_off(self, cut: CutError) -> bool:
        """Whether what is `cut` at the model's own end is half a call, and not talk of a tag. The model hears of it, if
        it got as far as the name."""
        name = cut.text.strip()
        if self._source.blank_since_mark or not _NAME_BEGUN.fullmatch(name):
            return False
        if name:
            self._calls.append(ToolCallEvent(self._mint(), name, "", problem=CUT_OFF))
        return True

    def _imitation(self, opener: str) -> Reading[bool]:
        """Read a result of the model's own, whose opening tag is read, and show nothing of it; if it is none, the tag
        is shown.

        True if nothing after it counts: the tool it names was not asked, so the model has to hear of that, and what it
        goes on to say is made up as well. Where it may have repeated what it was given, its answer follows.
        """
        self._source.mark()
        standing = self._page.at_line_start
        try:
            tag = yield from self._head(imitations.head(self._source, opener), imitations.MAX_PLAIN)
        except CutError:
            tag = None
            if not self._cleanly:
                self._source.rest()
                return True
        if tag is None or not (tag or standing):
            self._source.back()
            self._show(opener)
            return False
        self._source.unmark()
        if tag:
            name, tag = yield from imitations.named(self._source, opener, tag)
            if name and not self._repeats:
                self._calls.append(ToolCallEvent(self._mint(), name, "", problem=imitations.INVENTED))
                return True
            yield from imitations.rest(self._source, opener, tag)
        if standing:
            yield from self._source.space()
        return False

    def _head(self, reading: Reading[T], longest: int) -> Reading[T | None]:
        """What `reading` reads of the beginning of a block, None if that has more characters than the `longest`."""
        while True:
            try:
                next(reading)
            except StopIteration as end:
                head: T = end.value
                return head if self._source.since_mark <= longest else None
            if self._source.available_since_mark > longest:
                return None
            yield

    def _after_call(self) -> Reading[None]:
        try:
            while True:
                yield from self._source.space()
                opener = yield from self._source.one_of(*self._grammar.openers)
                if opener is None or not (yield from self._block(opener, follows=True)):
                    break
        except CutError:
            return
        while not self._source.ended:
            self.dropped += len(self._source.rest())
            yield
