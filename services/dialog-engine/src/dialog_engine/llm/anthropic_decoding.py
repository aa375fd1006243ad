"""Decodes an answer of the Anthropic Messages API. Pure; `tests/corpus/anthropic` has recorded streams.

A message is a list of content blocks, streamed one after the other. The model's thinking before a call must go back
with that call, block by block and unchanged: it is kept in the call's `extra`, see `Thought`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from dialog_engine.llm.anthropic_wire import Block, Delta, Event, TokenCount, decode_event, usage_of
from dialog_engine.llm.decoding import NONE_REPORTED, Decoder, Framing, SSEParser, is_complete
from dialog_engine.llm.error_classification import ErrorClassifier
from dialog_engine.llm.lenient_json import join_arguments
from dialog_engine.llm.openai_decoding import CUT_OFF, mint_call_id
from dialog_engine.model import FinishReason, LLMEvent, ReasoningDelta, StreamEnd, TextDelta, ToolCallEvent, Usage

EXTRA = "anthropic"
"""The key of a call's thinking blocks in its `extra`."""

_REASONS = {
    "max_tokens": FinishReason.LENGTH,
    "model_context_window_exceeded": FinishReason.LENGTH,
    "pause_turn": FinishReason.LENGTH,  # the provider paused a long turn
    "refusal": FinishReason.CONTENT_FILTER,
}


class Thought(msgspec.Struct, frozen=True):
    """A thinking block, and the number of characters of text before it."""

    at: int
    block: dict[str, Any]


class Thoughts(msgspec.Struct, frozen=True):
    """The thinking of `model` before a call, since the previous call. It goes back to the same model only."""

    model: str
    blocks: list[Thought]


@dataclass(slots=True, eq=False)
class _Part:
    """A content block so far. `at` is the number of characters of text before it."""

    kind: str
    at: int
    start: Block
    fragments: list[str] = field(default_factory=list[str])
    signature: list[str] = field(default_factory=list[str])
    stopped: bool = False


class AnthropicAssembler:
    """Assembles one assistant message of `model`. Text and reasoning are returned at once, tool calls at the end."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._parts: list[_Part] = []
        self._by_index: dict[int, _Part] = {}
        self._text_length = 0
        self._tokens = TokenCount()
        self.usage = NONE_REPORTED
        """What was reported last."""
        self.stop_reason: str | None = None
        """As the provider wrote it; None so far."""

    def feed(self, event: Event) -> list[LLMEvent]:
        """Add the next event. Returns the text and reasoning in it."""
        events: list[LLMEvent] = []
        if event.message is not None and event.message.usage is not None:
            self._count(event.message.usage)
        if event.usage is not None:
            self._count(event.usage)
        if event.content_block is not None:
            self._open(event.index, event.content_block, events)
        if event.delta is not None:
            self._read(event, event.delta, events)
            self.stop_reason = event.delta.stop_reason or self.stop_reason
        if event.type == "content_block_stop" and (part := self._part(event.index)):
            part.stopped = True
        return events

    def feed_whole(self, answer: Event) -> list[LLMEvent]:
        """Add an answer that is not streamed."""
        events: list[LLMEvent] = []
        for number, block in enumerate(answer.content or ()):
            self._open(number, block, events)
            self._parts[-1].stopped = True
        if answer.usage is not None:
            self._count(answer.usage)
        self.stop_reason = answer.stop_reason or "end_turn"
        return events

    def finish(self) -> list[LLMEvent]:
        """The end of a complete stream: its tool calls in their order, then StreamEnd.

        A call that the length limit cut off carries that as its problem. A refused message has no calls.
        """
        reason = _REASONS.get(self.stop_reason or "", FinishReason.STOP)
        calls = [] if reason is FinishReason.CONTENT_FILTER else list(self._calls(cut=reason is FinishReason.LENGTH))
        if calls and reason is FinishReason.STOP:
            reason = FinishReason.TOOL_CALLS
        return [*calls, StreamEnd(reason, self.usage)]

    def _open(self, index: int | None, block: Block, events: list[LLMEvent]) -> None:
        part = _Part(block.type or "text", self._text_length, block)
        self._parts.append(part)
        if index is not None:
            self._by_index[index] = part
        # The block may be complete at its start.
        self._add(part, Delta(text=block.text, thinking=block.thinking, signature=block.signature), events)

    def _read(self, event: Event, delta: Delta, events: list[LLMEvent]) -> None:
        part = self._part(event.index)
        if part is None:
            if delta.text is None and delta.thinking is None:
                return
            self._open(event.index, Block("text" if delta.thinking is None else "thinking"), events)
            part = self._parts[-1]
        self._add(part, delta, events)

    def _part(self, index: int | None) -> _Part | None:
        if index is None:
            return self._parts[-1] if self._parts else None
        return self._by_index.get(index)

    def _add(self, part: _Part, delta: Delta, events: list[LLMEvent]) -> None:
        if delta.text and part.kind == "text":
            self._text_length += len(delta.text)
            events.append(TextDelta(delta.text))
        if delta.thinking and part.kind == "thinking":
            part.fragments.append(delta.thinking)
            events.append(ReasoningDelta(delta.thinking))
        if delta.signature:
            part.signature.append(delta.signature)
        if delta.partial_json:
            part.fragments.append(delta.partial_json)

    def _calls(self, *, cut: bool) -> Iterator[ToolCallEvent]:
        thoughts: list[Thought] = []
        used: set[str] = set()
        for part in self._parts:
            if block := _thought(part):
                thoughts.append(Thought(part.at, block))
            if part.kind != "tool_use" or not part.start.name:
                continue
            arguments = _arguments(part)
            partial = cut and part is self._parts[-1] and not (part.stopped and is_complete(arguments or "{}"))
            call_id = part.start.id if part.start.id and part.start.id not in used else mint_call_id()
            used.add(call_id)
            extra = {EXTRA: msgspec.to_builtins(Thoughts(self._model, thoughts))} if thoughts else None
            yield ToolCallEvent(call_id, part.start.name, arguments, extra, CUT_OFF if partial else "")
            thoughts = []

    def _count(self, tokens: TokenCount) -> None:
        known = self._tokens
        self._tokens = TokenCount(
            tokens.input_tokens or known.input_tokens,
            tokens.cache_creation_input_tokens or known.cache_creation_input_tokens,
            tokens.cache_read_input_tokens or known.cache_read_input_tokens,
            tokens.output_tokens or known.output_tokens,
            tokens.output_tokens_details or known.output_tokens_details,
        )
        self.usage = usage_of(self._tokens)


def _arguments(part: _Part) -> str:
    if not part.fragments and part.start.input:
        return msgspec.json.encode(part.start.input).decode()
    return join_arguments(part.fragments)


def _thought(part: _Part) -> dict[str, Any] | None:
    """The block as it goes back; the provider refuses one without its signature."""
    match part.kind:
        case "thinking" if part.signature:
            return {
                "type": "thinking",
                "thinking": "".join(part.fragments),
                "signature": "".join(part.signature),
            }
        case "redacted_thinking" if part.start.data:
            return {"type": "redacted_thinking", "data": part.start.data}
        case _:
            return None


class AnthropicDecoder(Decoder):
    """Decodes one answer of `model`; `framing` is that of its transport, server-sent events by default."""

    def __init__(self, model: str, errors: ErrorClassifier, framing: Framing | None = None) -> None:
        super().__init__(framing or SSEParser())
        self._errors = errors
        self._assembler = AnthropicAssembler(model)

    @property
    def complete(self) -> bool:
        return self.done or self._assembler.stop_reason is not None

    def _take(self, payload: bytes, events: list[LLMEvent]) -> None:
        event = self._read(payload)
        if event is None:
            return
        if event.type == "message_stop":
            self.done = True
            return
        # Neither a ping nor the start of a message or of a text block: thinking that is not shown comes after those.
        if event.delta is not None or (event.content_block is not None and event.content_block.name):
            self.pieces += 1
        events += self._assembler.feed(event)

    def _take_whole(self, body: bytes, events: list[LLMEvent]) -> None:
        answer = self._read(body)
        if answer is not None:
            events += self._assembler.feed_whole(answer)

    @property
    def usage(self) -> Usage:
        return self._assembler.usage

    def _ending(self) -> list[LLMEvent]:
        return self._assembler.finish()

    def _read(self, payload: bytes) -> Event | None:
        """The event; None for a payload after the end that is not JSON."""
        try:
            event = decode_event(payload)
        except ValueError as error:
            self._not_json(error)
            return None
        if event.error:
            raise self._errors.from_stream(event.error)
        return event
