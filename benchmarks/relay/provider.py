"""`python -m benchmarks.relay.provider PORT`: a provider that streams prepared bytes.

The user's message is an `Answer` as JSON. One token is one event and one chunk of the HTTP response, as most servers
send them.
"""

import asyncio
import json
import random
import sys
from collections import deque

import uvloop

from benchmarks.relay.answers import MARKDOWN, MODEL, WORDS, Answer

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"


def _event(payload: bytes) -> bytes:
    line = b"data: " + payload + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(line), line)


def _chunk(delta: dict[str, str], reason: str | None = None) -> bytes:
    """One chunk of a chat completion in OpenAI's format."""
    chunk: dict[str, object] = {
        "id": "chatcmpl-CxBq3mLZ0aPq9vQm6sO2yJt8hKfWd",
        "object": "chat.completion.chunk",
        "created": 1790000000,
        "model": MODEL,
        "service_tier": "default",
        "system_fingerprint": "fp_44709d6fcb",
        "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}],
        "usage": None,
    }
    return _event(json.dumps(chunk, separators=(",", ":")).encode())


def _usage(tokens: int) -> bytes:
    usage = {"prompt_tokens": 20, "completion_tokens": tokens, "total_tokens": tokens + 20}
    chunk = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1790000000, "model": MODEL}
    return _event(json.dumps(chunk | {"choices": [], "usage": usage}).encode())


BEGIN = HEAD + _chunk({"role": "assistant", "content": ""})
TOKENS = tuple(_chunk({"content": word}) for word in WORDS)
MARKDOWN_TOKENS = tuple(_chunk({"content": piece}) for piece in MARKDOWN)
CYCLE = b"".join(TOKENS)
STOP = _chunk({}, "stop")
END = _event(b"[DONE]") + b"0\r\n\r\n"


class Provider(asyncio.Protocol):
    """One connection, which serves one request after the other."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._received = b""
        self._waiting: deque[bytes] = deque()
        self._paused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Store the transport."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Answer every request that has arrived completely."""
        self._received += data
        head, blank, rest = self._received.partition(b"\r\n\r\n")
        if not blank:
            return
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
        if len(rest) < length:
            return
        self._received = rest[length:]
        answer = Answer(**json.loads(json.loads(rest[:length])["messages"][-1]["content"]))
        if answer.every_ms:
            self._transport.write(BEGIN + _chunk({"content": answer.first}))
            due = self._loop.time() + random.random() * answer.every_ms / 1000
            self._loop.call_at(due, self._say, answer, 1, due)
        else:
            whole, rest_of_it = divmod(answer.tokens - 1, len(TOKENS))
            self._waiting += [BEGIN + _chunk({"content": answer.first})] + [CYCLE] * whole
            self._waiting += [b"".join(TOKENS[:rest_of_it]) + STOP + _usage(answer.tokens) + END]
            self._write()

    def _say(self, answer: Answer, number: int, due: float) -> None:
        """Write the next token and schedule the one after it, at the pace of the answer even if the machine is late."""
        if self._transport.is_closing():
            return
        if number < answer.tokens:
            tokens = MARKDOWN_TOKENS if answer.markdown else TOKENS
            self._transport.write(tokens[(number - 1) % len(tokens)])
            due += answer.every_ms / 1000
            self._loop.call_at(due, self._say, answer, number + 1, due)
        elif not answer.stays:
            self._transport.write(STOP + _usage(answer.tokens) + END)

    def pause_writing(self) -> None:
        """The client reads more slowly than the provider writes."""
        self._paused = True

    def resume_writing(self) -> None:
        """The client has read: continue."""
        self._paused = False
        self._write()

    def _write(self) -> None:
        while self._waiting and not self._paused:
            self._transport.write(self._waiting.popleft())


async def main(port: int) -> None:
    """Serve until cancelled."""
    server = await asyncio.get_running_loop().create_server(Provider, "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))
