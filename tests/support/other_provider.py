"""`python -m tests.support.other_provider PORT`: an OpenAI-compatible server that shares no code with the demo model.

It does what some providers do: every tool call has index 0, there is no usage, no role and no `finish_reason` of
"tool_calls", lines end with CRLF, and comments stand between the events. It calls the first tool it is offered whose
name ends in `add`, twice at once, and then repeats the results.
"""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Provider(BaseHTTPRequestHandler):
    """Answers every POST as a chat completion."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._head("application/json", 2)
        self.wfile.write(b"{}")

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        results = [message["content"] for message in request["messages"] if message["role"] == "tool"]
        offered = [tool["function"]["name"] for tool in request.get("tools", [])]
        adder = next((name for name in offered if name.endswith("add")), None)
        deltas = _text("The sums: " + ", ".join(results)) if results or adder is None else _calls(adder)
        body = b": hello\r\n\r\n" + b"".join(_event(delta) for delta in deltas)
        body += _event({}, finish_reason="stop") + b"data: [DONE]\r\n\r\n"
        self._head("text/event-stream; charset=utf-8", len(body))
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 -- the base class names it
        """Say nothing."""

    def _head(self, content_type: str, length: int) -> None:
        self.send_response(200)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(length))
        self.end_headers()


def _calls(tool: str) -> list[dict[str, Any]]:
    deltas: list[dict[str, Any]] = []
    for number, arguments in enumerate(('{"a": 1, "b": 2}', '{"a": 20, "b": 22}')):
        whole = {"id": f"x{number}", "type": "function", "function": {"name": tool, "arguments": arguments}}
        deltas.append({"tool_calls": [{"index": 0, **whole}]})
    return deltas


def _text(text: str) -> list[dict[str, Any]]:
    return [{"content": text[at : at + 5]} for at in range(0, len(text), 5)]


def _event(delta: dict[str, Any], finish_reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\r\n\r\n"


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Provider).serve_forever()
