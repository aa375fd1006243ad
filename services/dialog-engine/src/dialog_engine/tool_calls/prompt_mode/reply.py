"""Parses the reply of a model: which of its text is for the user, and which calls it contains."""

import re
from collections.abc import Callable, Collection
from typing import TypeVar

from dialog_engine.model import TextDelta, ToolCallEvent
from dialog_engine.tool_calls.prompt_mode.dialect import Grammar
from dialog_engine.tool_calls.prompt_mode.quotes import QuoteTracker
from dialog_engine.tool_calls.prompt_mode.source import CutError, Reading, Source
from dialog_engine.tool_calls.prompt_mode.tool_call import ToolCallGrammar

T = TypeVar("T")

MAX_HEAD = 1_000
"""Characters after the opening tag within which a block must have named its tool; otherwise it is text."""

_NAME_BEGUN = re.compile(r"[\w.\-]*")

CUT_OFF = "the reply broke off inside this call. Write the whole call again, shorter if it was too long."

RESULT_CLOSERS = {
    f"<{tag}>": f"</{tag}>"
    for tag in ("tool_use_result", "function_results", "tool_response")  # the last one goes with <tool_call>
}
RESULT_OPENERS = tuple(RESULT_CLOSERS)

MAX_PLAIN_RESULT = 20_000
"""The longest result without inner tags. It is held back until its end; a longer text is not taken for a result."""

FABRICATED = (
    "you wrote its result yourself, and nothing was run. Results come from the tools alone, in the message after a"
    " call. If the call is needed, and the user wants it, write it in the form above, with nothing after it; otherwise"
    " answer without it, and claim no result."
)

_NAME_TAGS = ("<name>", "<tool_name>")
_OPENING_TAGS = (*_NAME_TAGS, "<result>", "<stdout>", "<error>")
_CLOSING_TAGS = tuple(tag.replace("<", "</") for tag in _OPENING_TAGS)


class ReplyReader:
    """Parses one reply. Call `feed` with its text in order, then `finish`.

    A block is a call when it is not quoted (see `quotes`) and names a `known` tool. With another name it is a call,
    which is answered with an error, if it is complete and begins a line or follows a call. Everything else is text.
    After a call only further calls count, because other text was written without knowledge of the result. Results that
    the model writes itself are never shown: see `_fabricated_result`.
    """

    def __init__(
        self, grammar: Grammar, known: Collection[str], mint: Callable[[], str], *, may_quote_results: bool = False
    ) -> None:
        """`mint` makes ids for calls. `may_quote_results`: the reply may repeat a result that the model was given."""
        self._grammars = {opener: each for each in (grammar, ToolCallGrammar()) for opener in each.openers}
        self._openers = (*self._grammars, *RESULT_OPENERS)
        self._known = known
        self._mint = mint
        self._may_quote_results = may_quote_results
        self._source = Source()
        self._quotes = QuoteTracker()
        self._shown: list[str] = []
        self._calls: list[ToolCallEvent] = []
        self._in_text = True
        self._cleanly = True
        self._steps = self._reply()
        next(self._steps)
        self._block_size = 0
        self.dropped = 0
        """The number of characters after the last call that were dropped."""

    @property
    def held(self) -> int:
        """The characters so far that the next piece may have to be read with: those of a block, of a quotation."""
        return self._block_size + self._quotes.unread

    def feed(self, text: str) -> list[TextDelta | ToolCallEvent]:
        """The events of the next piece of text."""
        if self._in_text and "<" not in text and self._source.empty:
            self._quotes.add(text)
            return [TextDelta(text)]
        self._source.add(text)
        self._block_size += len(text)
        found = self._step()
        if self._in_text:
            self._block_size = 0
        return found

    def finish(self, *, cleanly: bool) -> list[TextDelta | ToolCallEvent]:
        """The events of the end of the reply. `cleanly`: the model ended it, rather than a limit or a filter."""
        self._source.finish()
        self._cleanly = cleanly
        return self._step()

    def _step(self) -> list[TextDelta | ToolCallEvent]:
        self._source.resume(self._steps)
        text = "".join(self._shown)
        found: list[TextDelta | ToolCallEvent] = [TextDelta(text)] if text else []
        found += self._calls
        self._shown, self._calls = [], []
        return found

    def _show(self, text: str) -> None:
        if text:
            self._quotes.add(text)
            self._shown.append(text)

    def _reply(self) -> Reading[None]:
        while (opener := (yield from self._text())) is not None:
            if opener in RESULT_OPENERS:
                over = yield from self._fabricated_result(opener)
            else:
                over = yield from self._block(opener)
            if over:
                yield from self._after_call()
                return

    def _text(self) -> Reading[str | None]:
        """Show text up to an opening tag that may begin a block. Returns the tag, or None at the end."""
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
                if self._cleanly or self._quotes.quoted:
                    self._show(begun)
                return None
            self._in_text = False
            if opener and not self._quotes.quoted:
                return opener
            self._show(opener or self._source.take(1))

    def _block(self, opener: str, *, follows: bool = False) -> Reading[bool]:
        """Read a block behind its opening tag. Returns False if it is not a block: then the tag is shown as text."""
        self._source.mark()
        grammar = self._grammars[opener]
        standing = follows or self._quotes.at_line_start
        try:
            head = yield from self._head(grammar.head(self._source, opener), MAX_HEAD)
        except CutError as cut:
            # It ended before the name of the tool: this is neither a call nor text for the user.
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
        for call in (yield from grammar.body(self._source, head)):
            problem = call.problem or ("" if call.closed or self._cleanly else CUT_OFF)
            self._calls.append(ToolCallEvent(self._mint(), call.name, call.arguments, problem=problem))
        return True

    def _breaks_off(self, cut: CutError) -> bool:
        """Whether a block that ends with the reply is an unfinished call, rather than text about a tag.

        If it has a name, it becomes a call with a problem, so that the model reads about it.
        """
        name = cut.text.strip()
        if self._source.blank_since_mark or not _NAME_BEGUN.fullmatch(name):
            return False
        if name:
            self._calls.append(ToolCallEvent(self._mint(), name, "", problem=CUT_OFF))
        return True

    def _fabricated_result(self, opener: str) -> Reading[bool]:
        """Read a result that the model wrote itself, behind its opening tag, without showing it.

        Returns True if nothing after it counts: the tool was not called, which the model reads in an error, and
        the text after it builds on the fabricated result. Returns False if the model may have quoted a result, so that
        its answer follows, or if it is not a result: then the tag is shown as text.
        """
        self._source.mark()
        standing = self._quotes.at_line_start
        try:
            tag = yield from self._head(_result_head(self._source, opener), MAX_PLAIN_RESULT)
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
            name, tag = yield from _result_name(self._source, opener, tag)
            if name and not self._may_quote_results:
                self._calls.append(ToolCallEvent(self._mint(), name, "", problem=FABRICATED))
                return True
            yield from _result_rest(self._source, opener, tag)
        if standing:
            yield from self._source.space()
        return False

    def _head(self, reading: Reading[T], longest: int) -> Reading[T | None]:
        """What `reading` returns for the beginning of a block; None if that has more characters than `longest`."""
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
                opener = yield from self._source.one_of(*self._grammars)
                if opener is None or not (yield from self._block(opener, follows=True)):
                    break
        except CutError:
            return
        while not self._source.ended:
            self.dropped += len(self._source.rest())
            yield


# Results that the model writes itself, by the tags of any dialect.


def _result_head(source: Source, opener: str) -> Reading[str | None]:
    """Read the first inner tag of a result.

    Returns "" for a result without inner tags, which is read to its end, and None if another one begins before that.

    Raises:
        CutError: the text ended before this could be decided.
    """
    yield from source.space()
    tag = yield from source.one_of(*_OPENING_TAGS)
    if tag is None:
        _, end = yield from source.until(RESULT_CLOSERS[opener], *RESULT_OPENERS)
        return None if end in RESULT_OPENERS else ""
    return tag


def _result_name(source: Source, opener: str, tag: str) -> Reading[tuple[str, str]]:
    """Read what follows `tag` up to the name of the tool. Returns the name, or "", and the last tag that was read."""
    try:
        while tag not in _NAME_TAGS:
            yield from source.space()
            name_tag = yield from source.one_of(*_NAME_TAGS)
            if name_tag is None:
                return "", tag
            tag = name_tag
        name, tag = yield from source.until(*_inner_tags(opener))
    except CutError:
        source.rest()
        return "", tag
    return name.strip(), tag


def _result_rest(source: Source, opener: str, tag: str) -> Reading[None]:
    """Read what follows `tag`. A result without its closing tag ends where no tag follows a closing inner tag."""
    last: str | None = tag
    try:
        while last not in (None, RESULT_CLOSERS[opener]):
            if last in _OPENING_TAGS:
                _, last = yield from source.until(*_inner_tags(opener))
            else:
                yield from source.space()
                last = yield from source.one_of(*_inner_tags(opener))
    except CutError:
        source.rest()


def _inner_tags(opener: str) -> tuple[str, ...]:
    return (RESULT_CLOSERS[opener], *_OPENING_TAGS, *_CLOSING_TAGS)
