"""`python -m tests.support.tag_provider PORT`: an OpenAI-compatible server of a model without function calling.

It refuses requests with tools in the words of Ollama. Otherwise its model reads the system message, calls the first
tool it finds there whose name ends in `add`, twice, by tags; then it invents results and goes on, unless a stop
sequence ends its reply. Real results it repeats. A reply comes in pieces of five characters.
"""

import json
import re
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

REFUSAL = {"error": {"message": "registry.ollama.ai/library/tiny:latest does not support tools", "type": "api_error"}}
BLOCK = '<tool_use>\n<name>{}</name>\n<arguments>\n{{"a": {}, "b": 2}}\n</arguments>\n</tool_use>\n'
INVENTED = "<tool_use_result>\n<name>add</name>\n<result>1000</result>\n</tool_use_result>\nThe sum is 1000."


class Provider(BaseHTTPRequestHandler):
    """Answers every POST as a chat completion."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer(200, "application/json", b"{}")

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if "tools" in request:
            self._answer(400, "application/json", json.dumps(REFUSAL).encode())
            return
        reply = _reply(request["messages"])
        for stop in request.get("stop", []):
            reply = reply.partition(stop)[0]
        chunks = [_event({"content": reply[at : at + 5]}) for at in range(0, len(reply), 5)]
        body = b"".join(chunks) + _event({}, finish_reason="stop") + b"data: [DONE]\n\n"
        self._answer(200, "text/event-stream", body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 -- the base class names it
        """Say nothing."""

    def _answer(self, status: int, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _reply(messages: list[dict[str, Any]]) -> str:
    if results := re.findall(r"<result>(.*?)</result>", messages[-1]["content"], re.DOTALL):
        return f"The sums: {', '.join(results)}"
    adder = re.search(r"<name>(\w*add)</name>", messages[0]["content"])
    if adder is None:
        return "There is nothing to add with."
    blocks = "".join(BLOCK.format(adder[1], number) for number in (1, 40))
    return f"I would write `<tool_use>`, so:\n\n{blocks}{INVENTED}"


def _event(delta: dict[str, Any], finish_reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Provider).serve_forever()
