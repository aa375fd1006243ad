"""`python -m tests.support.anthropic_provider PORT`: a server with Anthropic's Messages API, for one conversation.

It is as strict about the order of messages as the real one: every `tool_use` has its `tool_result` at the beginning of
the next message. It says something, calls the first tool it is offered whose name ends in `add`, twice in one message,
and then repeats the results. A model whose name begins with `busy` is overloaded.
"""

import json
from typing import Any

from tests.support.json_provider import JsonProvider

Json = dict[str, Any]


class Provider(JsonProvider):
    def reply(self, request: Any) -> None:
        if self.path != "/v1/messages" or not self.headers["anthropic-version"]:
            self._refuse(404, "not_found_error", self.path)
        elif request["model"].startswith("busy"):
            self._refuse(529, "overloaded_error", "Overloaded")
        elif wrong := _wrong(request):
            self._refuse(400, "invalid_request_error", wrong)
        else:
            events = _reply(request)
            body = b"".join(b"event: %b\ndata: %b\n\n" % (e["type"].encode(), json.dumps(e).encode()) for e in events)
            self.answer(200, "text/event-stream; charset=utf-8", body)

    def _refuse(self, status: int, kind: str, message: str) -> None:
        body = json.dumps({"type": "error", "error": {"type": kind, "message": message}}).encode()
        self.answer(status, "application/json", body)


def _blocks(message: Json, kind: str) -> list[Json]:
    content = message["content"]
    return [] if isinstance(content, str) else [block for block in content if block["type"] == kind]


def _wrong(request: Json) -> str | None:
    """What the real one would complain about."""
    if "max_tokens" not in request:
        return "max_tokens: Field required"
    asked: list[str] = []
    for message in request["messages"]:
        if message["role"] not in ("user", "assistant"):
            return f"messages: unexpected role {message['role']}"
        answered = [block["tool_use_id"] for block in _blocks(message, "tool_result")]
        if asked != answered:
            return "messages: `tool_use` ids were found without `tool_result` blocks immediately after"
        asked = [block["id"] for block in _blocks(message, "tool_use")]
    return None


def _reply(request: Json) -> list[Json]:
    results = [_text(block["content"]) for block in _blocks(request["messages"][-1], "tool_result")]
    adder = next((tool["name"] for tool in request.get("tools", []) if tool["name"].endswith("add")), None)
    if results or adder is None:
        said, calls = "The sums: " + ", ".join(results), list[Json]()
    else:
        said, calls = "Let me add.", [{"a": 1, "b": 2}, {"a": 20, "b": 22}]
    events: list[Json] = [{"type": "message_start", "message": {"usage": {"input_tokens": 5, "output_tokens": 1}}}]
    events += _block(
        0, {"type": "text", "text": ""}, [{"type": "text_delta", "text": piece} for piece in (said[:4], said[4:])]
    )
    for number, arguments in enumerate(calls, 1):
        start: Json = {"type": "tool_use", "id": f"toolu_{number}", "name": adder, "input": {}}
        whole = json.dumps(arguments)
        pieces = [{"type": "input_json_delta", "partial_json": piece} for piece in ("", whole[:5], whole[5:])]
        events += _block(number, start, pieces)
    reason = "tool_use" if calls else "end_turn"
    events.append({"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": 3}})
    return [*events, {"type": "message_stop"}]


def _block(index: int, start: Json, deltas: list[Json]) -> list[Json]:
    return [
        {"type": "content_block_start", "index": index, "content_block": start},
        *[{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas],
        {"type": "content_block_stop", "index": index},
    ]


def _text(content: str | list[Json]) -> str:
    return content if isinstance(content, str) else "".join(block.get("text", "") for block in content)


if __name__ == "__main__":
    Provider.serve()
