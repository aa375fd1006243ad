"""Reasoning that a model writes into its text, as `<think>…</think>` before everything else."""

from dialog_engine.model import ReasoningDelta, TextDelta
from dialog_engine.tool_calls.parsers.source import CutError, Reading, Source

OPENERS = ("<think>", "<thinking>")


class Thoughts:
    """Tells reasoning from text. `feed` all text in its order, then `finish`."""

    def __init__(self) -> None:
        self._source = Source()
        self._found: list[TextDelta | ReasoningDelta] = []
        self._steps = self._read()
        self._over = False

    def feed(self, text: str) -> list[TextDelta | ReasoningDelta]:
        """What the next piece of text holds, as far as it can be told."""
        if self._over:
            return [TextDelta(text)] if text else []
        self._source.add(text)
        return self._step()

    def finish(self) -> list[TextDelta | ReasoningDelta]:
        """What was held back."""
        self._source.ended = True
        return [] if self._over else self._step()

    def _step(self) -> list[TextDelta | ReasoningDelta]:
        next(self._steps, None)
        found, self._found = self._found, []
        return found

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
            self._found.append(kind(text))
