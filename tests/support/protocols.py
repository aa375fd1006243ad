"""The two protocols of providers: the same answer in each."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dialog_engine.llm.provider import DEFAULT_TIMEOUTS, Timeouts
from tests.support.hello import KEY
from tests.support.llm_clients import AnthropicModel, OpenAIModel

Json = dict[str, Any]
Model = OpenAIModel | AnthropicModel


@dataclass(frozen=True)
class Protocol:
    """One protocol. Answers say "Hello" in two pieces; `hel` is what comes up to the end of the first."""

    kind: type[OpenAIModel] | type[AnthropicModel]
    path: str
    """The part of the path that belongs to the base URL."""
    opening: bytes
    """The start of an answer, which does not count as its first piece."""
    hel: bytes
    lo: bytes
    end: bytes
    ending: bytes
    """The part of the end after which the message is complete."""
    call: bytes
    """The beginning of a tool call, after the opening."""
    thought: bytes
    """The beginning of a thought, after the opening, of which nothing is shown yet."""
    ping: bytes
    error: Callable[[str], bytes]
    """An overload error with this message, inside a stream."""
    usage: Callable[[int, int], bytes]
    """A report of the tokens so far, in the middle of a stream: 40 of those read are from a cache, 20 are written to
    it, and 1 of those written is reasoning."""

    def client(self, url: str, *, max_retries: int = 0, timeouts: Timeouts = DEFAULT_TIMEOUTS, **options: Any) -> Model:
        """A client, for its caller to close."""
        return self.kind(url, KEY, "model", max_retries=max_retries, timeouts=timeouts, **options)

    @property
    def hello(self) -> bytes:
        return self.opening + self.hel + self.lo + self.end


def openai_sse(*chunks: Json) -> bytes:
    return b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks)


def anthropic_sse(*events: Json) -> bytes:
    return b"".join(b"event: %b\ndata: %b\n\n" % (e["type"].encode(), json.dumps(e).encode()) for e in events)


def _openai_delta(**delta: Any) -> bytes:
    return openai_sse({"choices": [{"delta": delta}]})


def _anthropic_text(words: str) -> bytes:
    return anthropic_sse({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": words}})


_STOPPED = openai_sse({"choices": [{"delta": {}, "finish_reason": "stop"}]})
_END_TURN = anthropic_sse(
    {"type": "content_block_stop", "index": 0},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 3}},
)
_TEXT = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
_THOUGHT = {"type": "thinking", "thinking": ""}
_CALL: Json = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
_OPENAI_PARTS: Json = {
    "prompt_tokens_details": {"cached_tokens": 40, "cache_write_tokens": 20},
    "completion_tokens_details": {"reasoning_tokens": 1},
}
_ANTHROPIC_PARTS: Json = {
    "cache_read_input_tokens": 40,
    "cache_creation_input_tokens": 20,
    "output_tokens_details": {"thinking_tokens": 1},
}

PROTOCOLS = {
    "openai": Protocol(
        kind=OpenAIModel,
        path="/v1",
        opening=_openai_delta(role="assistant", content=""),
        hel=_openai_delta(content="Hel"),
        lo=_openai_delta(content="lo"),
        end=_STOPPED + b"data: [DONE]\n\n",
        ending=_STOPPED,
        call=_openai_delta(tool_calls=[{"index": 0, "id": "a", "function": {"name": "f"}}]),
        thought=_openai_delta(reasoning_content=""),
        ping=b": still working\n\n",
        error=lambda words: openai_sse({"error": {"code": 529, "message": words}}),
        usage=lambda read, written: openai_sse(
            {"choices": [], "usage": {"prompt_tokens": read, "completion_tokens": written, **_OPENAI_PARTS}}
        ),
    ),
    "anthropic": Protocol(
        kind=AnthropicModel,
        path="",
        opening=anthropic_sse({"type": "message_start", "message": {"usage": {"output_tokens": 1}}}, _TEXT),
        hel=_anthropic_text("Hel"),
        lo=_anthropic_text("lo"),
        end=_END_TURN + anthropic_sse({"type": "message_stop"}),
        ending=_END_TURN,
        call=anthropic_sse({"type": "content_block_start", "index": 1, "content_block": _CALL}),
        thought=anthropic_sse({"type": "content_block_start", "index": 1, "content_block": _THOUGHT}),
        ping=anthropic_sse({"type": "ping"}),
        error=lambda words: anthropic_sse({"type": "error", "error": {"type": "overloaded_error", "message": words}}),
        usage=lambda read, written: anthropic_sse(
            {
                "type": "message_delta",
                "delta": {},
                "usage": {"input_tokens": read - 60, "output_tokens": written, **_ANTHROPIC_PARTS},
            }
        ),
    ),
}
