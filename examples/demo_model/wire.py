"""Encodes a plan as chat-completions JSON: as one object, or in the chunks of a stream."""

import itertools
import json
import re
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from examples.demo_model.conversation import Plan, ToolUse
from examples.demo_model.request import MODEL_ID, CompletionRequest

Json = dict[str, Any]

_PIECE = re.compile(r"\s*\S{1,6}|\s+")
_ARGUMENT_PIECE = 6


@dataclass(frozen=True)
class Reply:
    """One completion as a sequence of deltas; each delta counts as one token."""

    id: str
    created: int
    deltas: tuple[Json, ...]
    finish_reason: str
    prompt_tokens: int

    @classmethod
    def to(cls, request: CompletionRequest, plan: Plan, *, created: int) -> "Reply":
        """The reply for the plan, cut at the request's token limit."""
        whole = tuple(_deltas(plan))
        deltas = whole[: request.token_limit]
        complete = "tool_calls" if plan.calls else "stop"
        return cls(
            id=f"chatcmpl-{secrets.token_hex(12)}",
            created=created,
            deltas=deltas,
            finish_reason=complete if len(deltas) == len(whole) else "length",
            prompt_tokens=sum(len(message.model_dump_json()) for message in request.messages) // 4,
        )

    @property
    def usage(self) -> Json:
        completion = len(self.deltas)
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": completion,
            "total_tokens": self.prompt_tokens + completion,
        }

    def chunks(self, *, include_usage: bool) -> Iterator[Json]:
        """The chunks of a stream: the role, the deltas, the finish reason, and the usage if it was requested."""
        usage = {"usage": None} if include_usage else {}
        for delta in ({"role": "assistant", "content": ""}, *self.deltas):
            yield self._chunk([{"index": 0, "delta": delta, "finish_reason": None}]) | usage
        yield self._chunk([{"index": 0, "delta": {}, "finish_reason": self.finish_reason}]) | usage
        if include_usage:
            yield self._chunk([]) | {"usage": self.usage}

    def completion(self) -> Json:
        """The answer to a request that does not stream: all deltas merged."""
        message: Json = {"role": "assistant", "content": None}
        for delta in self.deltas:
            _merge(message, delta)
        choice = {"index": 0, "message": message, "finish_reason": self.finish_reason}
        return self._envelope("chat.completion") | {"choices": [choice], "usage": self.usage}

    def _chunk(self, choices: list[Json]) -> Json:
        return self._envelope("chat.completion.chunk") | {"choices": choices}

    def _envelope(self, kind: str) -> Json:
        return {"id": self.id, "object": kind, "created": self.created, "model": MODEL_ID}


def sse(data: Json | str) -> str:
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return f"data: {text}\n\n"


def _deltas(plan: Plan) -> Iterator[Json]:
    for piece in _PIECE.findall(plan.reasoning):
        yield {"reasoning_content": piece}
    for piece in _PIECE.findall(plan.text):
        yield {"content": piece}
    yield from _call_deltas(plan.calls)


def _call_deltas(calls: Sequence[ToolUse]) -> Iterator[Json]:
    """The id and name of each call, then the arguments of all calls interleaved, a few characters at a time.

    Some providers interleave calls, so a client that assumes one call at a time fails with this model.
    """
    for index, call in enumerate(calls):
        opening = {"index": index, "id": f"call_{secrets.token_hex(12)}", "type": "function"}
        yield {"tool_calls": [opening | {"function": {"name": call.name, "arguments": ""}}]}
    for pieces in itertools.zip_longest(*(_argument_pieces(call) for call in calls)):
        for index, piece in enumerate(pieces):
            if piece is not None:
                yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def _argument_pieces(call: ToolUse) -> list[str]:
    text = json.dumps(call.arguments, ensure_ascii=False)
    return [text[at : at + _ARGUMENT_PIECE] for at in range(0, len(text), _ARGUMENT_PIECE)]


def _merge(message: Json, delta: Json) -> None:
    for name, value in delta.items():
        if name != "tool_calls":
            message[name] = (message.get(name) or "") + value
            continue
        calls: list[Json] = message.setdefault("tool_calls", [])
        for part in value:
            if "id" in part:
                calls.append({"id": part["id"], "type": "function", "function": dict(part["function"])})
            else:
                calls[part["index"]]["function"]["arguments"] += part["function"]["arguments"]
