"""A reply with calls as tags in its text, turned into the events of a reply with native calls."""

from collections.abc import Callable, Collection, Sequence

from dialog_engine.model import ChatEvent, FinishReason, ReasoningDelta, StreamEnd, TextDelta, ToolCallEvent, Usage
from dialog_engine.tool_calls.prompt_mode.dialect import Grammar
from dialog_engine.tool_calls.prompt_mode.reply import ReplyReader
from dialog_engine.tool_calls.prompt_mode.source import CutError, Reading, Source

OPENERS = ("<think>", "<thinking>")


class Thoughts:
    """Separates reasoning, which some models write as `<think>…</think>` at the beginning, from the text.

    Call `feed` with all text in order, then `finish`.
    """

    def __init__(self) -> None:
        self._source = Source()
        self._found: list[tuple[type[TextDelta] | type[ReasoningDelta], list[str]]] = []
        """Neighbouring texts of a kind are one delta."""
        self._steps = self._read()
        self._over = False

    def feed(self, text: str) -> list[TextDelta | ReasoningDelta]:
        """The deltas of the next piece of text, as far as they are certain."""
        if self._over:
            return [TextDelta(text)] if text else []
        self._source.add(text)
        return self._step()

    def finish(self) -> list[TextDelta | ReasoningDelta]:
        """The deltas that were held back."""
        self._source.finish()
        return [] if self._over else self._step()

    def _step(self) -> list[TextDelta | ReasoningDelta]:
        self._source.resume(self._steps)
        found, self._found = self._found, []
        return [kind("".join(texts)) for kind, texts in found]

    def _read(self) -> Reading[None]:
        opener = yield from self._opener()
        if opener:
            yield from self._reasoning(opener.replace("<", "</"))
        self._over = True
        self._add(TextDelta, self._source.rest())

    def _opener(self) -> Reading[str | None]:
        while True:
            self._add(TextDelta, self._source.take_space())
            if not self._source.empty:
                break
            if self._source.ended:
                return None
            yield
        try:
            return (yield from self._source.one_of(*OPENERS))
        except CutError:
            return None

    def _reasoning(self, closer: str) -> Reading[None]:
        while True:
            self._add(ReasoningDelta, self._source.before("<"))
            if self._source.empty:
                if self._source.ended:
                    return
                yield
                continue
            try:
                closed = yield from self._source.one_of(closer)
            except CutError:
                self._add(ReasoningDelta, self._source.rest())
                return
            if closed:
                return
            self._add(ReasoningDelta, self._source.take(1))

    def _add(self, kind: type[TextDelta] | type[ReasoningDelta], text: str) -> None:
        if text:
            if not self._found or self._found[-1][0] is not kind:
                self._found.append((kind, []))
            self._found[-1][1].append(text)


MAX_DROPPED = 1_000
"""Characters after a call after which the stream is closed. Up to there it is read, for the usage at its end."""


class TaggedReply:
    """Converts the events of one reply. Call `read` with each event in order, then `end`."""

    def __init__(
        self, grammar: Grammar, known: Collection[str], mint: Callable[[], str], *, may_quote_results: bool = False
    ) -> None:
        """The parameters are those of ReplyReader."""
        self._reader = ReplyReader(grammar, known, mint, may_quote_results=may_quote_results)
        self._thoughts = Thoughts()
        self._end: StreamEnd | None = None
        self._called = False
        self.size = 0
        """The characters of the reply so far. Much of it may be read again at its end."""

    @property
    def held(self) -> int:
        """The characters so far that the next ones may have to be read with."""
        return self._reader.held

    @property
    def over(self) -> bool:
        """Whether the rest of the stream can be skipped."""
        return self._reader.dropped > MAX_DROPPED

    def read(self, event: ChatEvent) -> Sequence[ChatEvent]:
        """The events to pass on for the next event of the stream."""
        match event:
            case TextDelta(text):
                self.size += len(text)
                return self._split(self._thoughts.feed(text))
            case StreamEnd():
                self._end = event
                return ()
            case _:
                self._called = self._called or isinstance(event, ToolCallEvent)
                return (event,)

    def end(self) -> Sequence[ChatEvent]:
        """The last events. They include a StreamEnd only if the stream had one, or was skipped."""
        if self._end is None and not self.over:
            return ()
        reason, usage = (self._end.finish_reason, self._end.usage) if self._end else (FinishReason.STOP, Usage())
        cleanly = reason not in (FinishReason.LENGTH, FinishReason.CONTENT_FILTER)
        events: list[ChatEvent] = [
            *self._split(self._thoughts.finish()),
            *self._record(self._reader.finish(cleanly=cleanly)),
        ]
        if cleanly:
            reason = FinishReason.TOOL_CALLS if self._called else FinishReason.STOP
        return (*events, StreamEnd(reason, usage))

    def _split(self, pieces: Sequence[ChatEvent]) -> list[ChatEvent]:
        events: list[ChatEvent] = []
        for piece in pieces:
            events += self._record(self._reader.feed(piece.text)) if isinstance(piece, TextDelta) else (piece,)
        return events

    def _record(self, found: Sequence[TextDelta | ToolCallEvent]) -> Sequence[TextDelta | ToolCallEvent]:
        self._called = self._called or any(isinstance(each, ToolCallEvent) for each in found)
        return found
