"""`python -m tests.support.other_provider PORT`: an OpenAI-compatible server that shares no code with the demo model.

It does what some providers do: every tool call has index 0, there is no usage, no role and no `finish_reason` of
"tool_calls", lines end with CRLF, and comments stand between the events. It calls the first tool it is offered whose
name ends in `add`, twice at once, and then repeats the results.
"""

from typing import Any

from tests.support.json_provider import JsonProvider, chunk_of


class Provider(JsonProvider):
    def reply(self, request: Any) -> None:
        results = [message["content"] for message in request["messages"] if message["role"] == "tool"]
        offered = [tool["function"]["name"] for tool in request.get("tools", [])]
        adder = next((name for name in offered if name.endswith("add")), None)
        deltas = _text("The sums: " + ", ".join(results)) if results or adder is None else _calls(adder)
        chunks = [chunk_of(delta) for delta in deltas] + [chunk_of({}, finish_reason="stop")]
        body = b"\r\n\r\n".join([b": hello", *chunks, b"data: [DONE]\r\n\r\n"])
        self.answer(200, "text/event-stream; charset=utf-8", body)


def _calls(tool: str) -> list[dict[str, Any]]:
    deltas: list[dict[str, Any]] = []
    for number, arguments in enumerate(('{"a": 1, "b": 2}', '{"a": 20, "b": 22}')):
        whole = {"id": f"x{number}", "type": "function", "function": {"name": tool, "arguments": arguments}}
        deltas.append({"tool_calls": [{"index": 0, **whole}]})
    return deltas


def _text(text: str) -> list[dict[str, Any]]:
    return [{"content": text[at : at + 5]} for at in range(0, len(text), 5)]


if __name__ == "__main__":
    Provider.serve()
