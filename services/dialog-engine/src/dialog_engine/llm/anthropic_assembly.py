"""From the events of the Anthropic Messages API to the model's events. Pure; `tests/corpus/anthropic` has the cases.

A message is a list of content blocks, streamed one after the other. What the model thought before a call must go back
with that call, block by block and unchanged: it travels in the call's `extra`, see `Thought`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from dialog_engine.llm.anthropic_wire import Block, Delta, Event, Tokens
from dialog_engine.llm.arguments import is_complete, settle
from dialog_engine.llm.assembly import CUT_OFF, mint_call_id
from dialog_engine.model import FinishReason, LLMEvent, ReasoningDelta, StreamEnd, TextDelta, ToolCallEvent, Usage

EXTRA = "anthropic"
"""The key in a call's `extra` under which its thoughts are."""

_REASONS = {
    "max_tokens": FinishReason.LENGTH,
    "model_context_window_exceeded": FinishReason.LENGTH,
    "pause_turn": FinishReason.LENGTH,  # the provider stopped in the middle of it
    "refusal": FinishReason.CONTENT_FILTER,
}


class Thought(msgspec.Struct, frozen=True):
    """A block that the model thought in, and before which character of the message's text."""

    at: int
    block: dict[str, Any]


class Thoughts(msgspec.Struct, frozen=True):
    """What a model thought before a call, since the call before it. Only the model that thought it reads it again."""

    model: str
    blocks: list[Thought]


@dataclass(slots=True, eq=False)
class _Part:
    """A content block as far as it has come. `at` counts the characters of text that were said before it."""

    kind: str
    at: int
    start: Block
    fragments: list[str] = field(default_factory=list[str])
    signature: list[str] = field(default_factory=list[str])
    stopped: bool = False


class AnthropicAssembler:
    """Puts one assistant message of `model` together. Text and reasoning leave at once, tool calls at the end."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._parts: list[_Part] = []
        self._by_index: dict[int, _Part] = {}
        self._said = 0
        self._tokens = Tokens()
        self.stop_reason: str | None = None
        """As the provider wrote it, None while it has not."""

    @property
    def spoke(self) -> bool:
        """Whether any text was said."""
        return self._said > 0

    def feed(self, event: Event) -> list[LLMEvent]:
        """Take the next event; returns the text and reasoning it holds."""
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
        """Take an answer that is not streamed."""
        events: list[LLMEvent] = []
        for number, block in enumerate(answer.content or ()):
            self._open(number, block, events)
            self._parts[-1].stopped = True
        if answer.usage is not None:
            self._count(answer.usage)
        self.stop_reason = answer.stop_reason or "end_turn"
        return events

    def finish(self) -> list[LLMEvent]:
        """The stream ended well: its tool calls in their order, then StreamEnd.

        A call that the length limit cut off has that as its problem. A message that was refused calls nothing.
        """
        reason = _REASONS.get(self.stop_reason or "", FinishReason.STOP)
        calls = [] if reason is FinishReason.CONTENT_FILTER else list(self._calls(cut=reason is FinishReason.LENGTH))
        if calls and reason is FinishReason.STOP:
            reason = FinishReason.TOOL_CALLS
        return [*calls, StreamEnd(reason, self._usage())]

    def _open(self, index: int | None, block: Block, events: list[LLMEvent]) -> None:
        part = _Part(block.type or "text", self._said, block)
        self._parts.append(part)
        if index is not None:
            self._by_index[index] = part
        # All of it may come at once.
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
            self._said += len(delta.text)
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

    def _count(self, tokens: Tokens) -> None:
        known = self._tokens
        self._tokens = Tokens(
            tokens.input_tokens or known.input_tokens,
            tokens.cache_creation_input_tokens or known.cache_creation_input_tokens,
            tokens.cache_read_input_tokens or known.cache_read_input_tokens,
            tokens.output_tokens or known.output_tokens,
        )

    def _usage(self) -> Usage:
        """The provider counts input that goes through its cache apart."""
        tokens = self._tokens
        read = (tokens.input_tokens, tokens.cache_creation_input_tokens, tokens.cache_read_input_tokens)
        return Usage(sum(count or 0 for count in read), tokens.output_tokens or 0)


def _arguments(part: _Part) -> str:
    if not part.fragments and part.start.input:
        return msgspec.json.encode(part.start.input).decode()
    return settle(part.fragments)


def _thought(part: _Part) -> dict[str, Any] | None:
    """The block as it goes back; one whose signature did not come would be refused."""
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
