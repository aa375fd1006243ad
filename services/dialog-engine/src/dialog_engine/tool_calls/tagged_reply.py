"""A reply with calls in its text, as the events of one with calls beside it."""

from collections.abc import Callable, Collection, Sequence

from dialog_engine.model import ChatEvent, FinishReason, StreamEnd, TextDelta, ToolCallEvent, Usage
from dialog_engine.tool_calls.parsers.reply import Grammar, ReplyReader
from dialog_engine.tool_calls.parsers.thoughts import Thoughts

MAX_DROPPED = 1_000
"""Characters after a call that are put up with, for the sake of the usage at the end; then the stream is closed."""


class TaggedReply:
    """One reply. `read` its events in order, then take the `end`."""

    def __init__(
        self, grammar: Grammar, known: Collection[str], mint: Callable[[], str], *, repeats: bool = False
    ) -> None:
        """As ReplyReader."""
        self._reader = ReplyReader(grammar, known, mint, repeats=repeats)
        self._thoughts = Thoughts()
        self._end: StreamEnd | None = None
        self._called = False

    @property
    def over(self) -> bool:
        """The rest is not worth waiting for."""
        return self._reader.dropped > MAX_DROPPED

    def read(self, event: ChatEvent) -> Sequence[ChatEvent]:
        """What the next event of the stream tells."""
        match event:
            case TextDelta(text):
                return self._told(self._thoughts.feed(text))
            case StreamEnd():
                self._end = event
                return ()
            case _:
                self._called = self._called or isinstance(event, ToolCallEvent)
                return (event,)

    def end(self) -> Sequence[ChatEvent]:
        """What is left to be told; without an end of its own a stream gets none here."""
        if self._end is None and not self.over:
            return ()
        reason, usage = (self._end.finish_reason, self._end.usage) if self._end else (FinishReason.STOP, Usage())
        cleanly = reason not in (FinishReason.LENGTH, FinishReason.CONTENT_FILTER)
        told = [*self._told(self._thoughts.finish()), *self._noted(self._reader.finish(cleanly=cleanly))]
        if cleanly:
            reason = FinishReason.TOOL_CALLS if self._called else FinishReason.STOP
        return (*told, StreamEnd(reason, usage))

    def _told(self, pieces: Sequence[ChatEvent]) -> list[ChatEvent]:
        told: list[ChatEvent] = []
        for piece in pieces:
            told += self._noted(self._reader.feed(piece.text)) if isinstance(piece, TextDelta) else (piece,)
        return told

    def _noted(self, found: Sequence[TextDelta | ToolCallEvent]) -> Sequence[TextDelta | ToolCallEvent]:
        self._called = self._called or any(isinstance(each, ToolCallEvent) for each in found)
        return found
