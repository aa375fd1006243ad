"""Decodes a streamed chat completion: which fragment belongs to which tool call, and when a call is complete. Pure.

Providers disagree on every field of a streamed call. Each rule here has a recorded stream in `tests/corpus/streams`.
"""

import secrets
from collections.abc import Callable, Iterator

import msgspec

from dialog_engine.errors import LLMStreamBrokenError
from dialog_engine.llm.decoding import NONE_REPORTED, Decoder, SSEParser, is_complete, parts_bounded
from dialog_engine.llm.error_classification import ErrorClassifier
from dialog_engine.llm.lenient_json import join_arguments, salvage
from dialog_engine.llm.openai_boundaries import Boundaries, Slot, text_of
from dialog_engine.llm.openai_wire import (
    CallDelta,
    Chunk,
    CompletionDetails,
    Delta,
    PromptDetails,
    ReasoningDetails,
    TokenCount,
    bare_error,
    content_events,
)
from dialog_engine.model import (
    FinishReason,
    LLMEvent,
    ReasoningDelta,
    StreamEnd,
    TextDelta,
    ToolCallEvent,
    Usage,
)

_REASONS = {
    "tool_calls": FinishReason.TOOL_CALLS,
    "function_call": FinishReason.TOOL_CALLS,
    "tool_use": FinishReason.TOOL_CALLS,
    "length": FinishReason.LENGTH,
    "max_tokens": FinishReason.LENGTH,
    "model_length": FinishReason.LENGTH,
    "content_filter": FinishReason.CONTENT_FILTER,
    "safety": FinishReason.CONTENT_FILTER,
    "sensitive": FinishReason.CONTENT_FILTER,
}
_CUT = (FinishReason.LENGTH, FinishReason.CONTENT_FILTER)
_FAILED_REASONS = ("error", "network_error", "insufficient_system_resource")
"""Finish reasons with which providers report that the answer is incomplete."""

CUT_OFF = (
    "your reply reached its length limit while you were writing this call, so it was not run. Make it shorter, or split"
    " it into several calls."
)
"""The error that the model is sent for a call that the length limit cut off."""


def mint_call_id() -> str:
    """An id for a call to which the provider gave none."""
    return f"call_{secrets.token_hex(12)}"


def counted(tokens: TokenCount, known: Usage) -> Usage:
    """The usage after a count. Providers that count in several chunks repeat earlier counts, or send 0."""
    asked = tokens.prompt_tokens_details or PromptDetails()
    answered = tokens.completion_tokens_details or CompletionDetails()
    usage = Usage(
        tokens.prompt_tokens or known.input_tokens,
        tokens.completion_tokens or known.output_tokens,
        cached_tokens=asked.cached_tokens or known.cached_tokens,
        cache_write_tokens=asked.cache_write_tokens or known.cache_write_tokens,
        reasoning_tokens=answered.reasoning_tokens or known.reasoning_tokens,
    )
    return parts_bounded(usage)


class MessageAssembler:
    """Assembles one assistant message of `model`. Text and reasoning are returned at once, tool calls at the end.

    `mint` makes ids for calls to which the provider gave none.
    """

    def __init__(self, mint: Callable[[], str] = mint_call_id, model: str = "") -> None:
        self._mint = mint
        self._model = model
        self._details: ReasoningDetails | None = None
        self._slots: list[Slot] = []
        self._current: Slot | None = None
        self._by_index: dict[int, Slot] = {}
        self._by_id: dict[tuple[str, int | None], Slot] = {}
        """By id and index, and without an index the last one with that id."""
        self._boundaries = Boundaries()
        self.arguments_size = 0
        """Characters of the arguments of all calls so far, which the next fragments may be compared with."""
        self.usage = NONE_REPORTED
        """What was reported last."""
        self.spoke = False
        """Whether there was any text."""
        self.finish_reason: str | None = None
        """As the provider wrote it; None so far."""

    @property
    def calls(self) -> int:
        """Number of tool calls that have begun."""
        return len(self._slots)

    def feed(self, chunk: Chunk) -> list[LLMEvent]:
        """Add the next chunk. Returns the text and reasoning in it."""
        events: list[LLMEvent] = []
        if chunk.usage is not None:
            self.usage = counted(chunk.usage, self.usage)
        for choice in chunk.choices or ():
            if choice.delta is not None:
                self._read(choice.delta, events)
            if choice.message is not None:
                self._read_whole(choice.message, events)
            if choice.usage is not None:
                self.usage = counted(choice.usage, self.usage)
            if choice.finish_reason:
                self.finish_reason = choice.finish_reason
        return events

    def finish(self) -> list[LLMEvent]:
        """The end of a complete stream: its tool calls in the order of their first fragments, then StreamEnd.

        A call that a length limit cut off carries that as its problem; one that a filter cut off is left out. The
        calls that are present count more than the finish reason that the provider gave.
        """
        reason = _REASONS.get((self.finish_reason or "").lower(), FinishReason.STOP)
        events: list[LLMEvent] = list(self._calls(reason))
        if events and reason not in _CUT:
            reason = FinishReason.TOOL_CALLS
        elif not events and reason is FinishReason.TOOL_CALLS:
            reason = FinishReason.STOP
        events.append(StreamEnd(reason, self.usage))
        return events

    def _read(self, delta: Delta, events: list[LLMEvent]) -> None:
        if reasoning := delta.reasoning_content or delta.reasoning:
            events.append(ReasoningDelta(reasoning))
        if delta.reasoning_details:
            self._details = self._details or ReasoningDetails()
            self._details.add(delta.reasoning_details)
        if content := delta.content:
            # Chunks of text are by far the most frequent.
            events.extend((TextDelta(content),) if isinstance(content, str) else content_events(content))
            self.spoke = True
        if delta.refusal:
            events.append(TextDelta(delta.refusal))
            self.spoke = True
        for call in delta.tool_calls or ():
            self._add(call)
        if delta.function_call is not None:
            self._add(CallDelta(function=delta.function_call))

    def _read_whole(self, message: Delta, events: list[LLMEvent]) -> None:
        """A whole message is authoritative for its calls; its text counts only if none was streamed."""
        if not self.spoke:
            self._read(
                Delta(message.content, message.reasoning_content, message.reasoning, refusal=message.refusal), events
            )
        if message.reasoning_details:
            self._details = ReasoningDetails()
            self._details.add(message.reasoning_details)
        calls = list(message.tool_calls or ())
        if message.function_call is not None:
            calls.append(CallDelta(function=message.function_call))
        for call, streamed in self._boundaries.matched(calls, self._slots):
            slot = streamed or self._open(call.index)
            if text_of(call.function):
                slot.clear()
            self._extend(slot, call)

    def _add(self, call: CallDelta) -> None:
        name = (call.function and call.function.name) or ""
        slot = self._slot_for(call.index, call.id, name)
        # Most fragments have neither: they continue the call of their index.
        if slot is None or ((call.id or name) and self._boundaries.opens_another(slot, call, name)):
            slot = self._open(call.index)
        self._extend(slot, call)

    def _slot_for(self, index: int | None, call_id: str | None, name: str) -> Slot | None:
        """The call that a fragment continues, unless it opens another one with the same index."""
        if call_id:
            slot = self._by_id.get((call_id, index)) or self._by_id.get((call_id, None))
            if slot is not None and (index is None or slot.index in (None, index)):
                return slot
        if index is None:
            return self._current
        if index in self._by_index:
            return self._by_index[index]
        # The index came later than the call.
        last = self._current
        return last if last is not None and last.index is None and not call_id and not name else None

    def _open(self, index: int | None) -> Slot:
        slot = Slot(index)
        self._slots.append(slot)
        return slot

    def _extend(self, slot: Slot, call: CallDelta) -> None:
        self._current = slot
        if call.index is not None:
            slot.index = call.index if slot.index is None else slot.index
            self._by_index[call.index] = slot
        slot.id = slot.id or call.id or ""
        if slot.id:
            self._by_id[slot.id, slot.index] = self._by_id[slot.id, None] = slot
        if call.function is not None:
            slot.name = slot.name or call.function.name or ""
            text = call.function.arguments
            if isinstance(text, dict):  # the arguments as an object, which is whole
                slot.clear()
                text = text_of(call.function)
            if text:
                slot.fragments.append(text)
                self.arguments_size += len(text)
        if call.extra_content:
            slot.extra = {"extra_content": call.extra_content}

    def _calls(self, reason: FinishReason) -> Iterator[ToolCallEvent]:
        used: set[str] = set()
        kept = self._details.kept(self._model) if self._details else {}
        for slot in self._slots:
            arguments = "".join(slot.fragments)
            if not is_complete(arguments):
                arguments = join_arguments(slot.fragments)
            partial = reason in _CUT and self._is_partial(slot, arguments)
            if not slot.name or (partial and reason is FinishReason.CONTENT_FILTER):
                continue
            call_id = slot.id if slot.id and slot.id not in used else self._mint()
            used.add(call_id)
            extra, kept = {**(slot.extra or {}), **kept}, {}
            yield ToolCallEvent(call_id, slot.name, arguments, extra or None, CUT_OFF if partial else "")

    def _is_partial(self, slot: Slot, arguments: str) -> bool:
        """Whether the limit that ended the reply may have cut this call."""
        if slot is self._current and arguments.strip() in ("", "{}"):
            return True  # the arguments were still to come: some providers begin with an empty object
        return arguments != "" and not is_complete(arguments)


_chunks = msgspec.json.Decoder(Chunk)


def decode_chunk(data: bytes) -> Chunk:
    """Read one payload.

    Raises:
        ValueError: it is not JSON.
    """
    try:
        chunk = _chunks.decode(data)
    except (ValueError, RecursionError):
        chunk = salvage(data, Chunk)
    if not chunk.choices and not chunk.error and chunk.usage is None:
        chunk.error = bare_error(data)
    return chunk


class OpenAIDecoder(Decoder):
    """Decodes one answer of `model`."""

    def __init__(self, errors: ErrorClassifier, model: str = "") -> None:
        super().__init__(SSEParser())
        self._errors = errors
        self._assembler = MessageAssembler(model=model)

    @property
    def complete(self) -> bool:
        return self.done or self._assembler.finish_reason is not None

    @property
    def held(self) -> int:
        return super().held + self._assembler.arguments_size

    def _take(self, payload: bytes, events: list[LLMEvent]) -> None:
        try:
            chunk = decode_chunk(payload)
        except ValueError as error:
            self._not_json(error)
            return
        if chunk.error:
            raise self._errors.from_stream(chunk.error)
        events += self._assembler.feed(chunk)
        if events or self.pieces or self._assembler.calls:
            self.pieces += 1

    def _take_whole(self, body: bytes, events: list[LLMEvent]) -> None:
        self._take(body, events)

    @property
    def usage(self) -> Usage:
        return self._assembler.usage

    def _ending(self) -> list[LLMEvent]:
        if (self._assembler.finish_reason or "").lower() in _FAILED_REASONS:
            raise LLMStreamBrokenError("the model's provider gave up before the end of the answer")
        return self._assembler.finish()
