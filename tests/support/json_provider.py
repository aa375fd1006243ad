"""The HTTP of a small provider in a process of its own: it reads JSON, and answers whole bodies."""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class JsonProvider(BaseHTTPRequestHandler):
    """Gives every POST to `reply`, which answers it."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.answer(200, "application/json", b"{}")

    def do_POST(self) -> None:
        self.reply(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def reply(self, request: Any) -> None:
        """Answer it."""
        raise NotImplementedError

    def answer(self, status: int, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 -- the base class names it
        """Say nothing."""

    @classmethod
    def serve(cls) -> None:
        """Serve on the port of the command line until the process ends."""
        ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), cls).serve_forever()


def chunk_of(delta: dict[str, Any], finish_reason: str | None = None) -> bytes:
    """A chunk of a chat completion, without the end of its line."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return b"data: " + json.dumps({"choices": [choice]}).encode()
