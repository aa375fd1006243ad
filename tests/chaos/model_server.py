"""`python -m tests.chaos.model_server PORT`: a model that asks for as many tool calls as the user tells it to.

The user's message is an `Order` as JSON. The first answer is that many parallel calls, each with a token of its own;
with their results in hand the model says "done". Asked again, it says the same again.
"""

import asyncio
import json
import random
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from tests.chaos.tools import ONCE, REPEATABLE, SERVER

KINDS = {"once": (ONCE,), "repeatable": (REPEATABLE,), "both": (ONCE, REPEATABLE)}


@dataclass(frozen=True, slots=True)
class Order:
    """What a user's message asks for: calls of one kind or of both in turns, that work for so many milliseconds."""

    tag: str
    calls: int
    kind: str
    shortest_ms: int
    longest_ms: int

    def __str__(self) -> str:
        return json.dumps(asdict(self))

    def tool_calls(self) -> list[dict[str, Any]]:
        """The calls, as a provider streams them; the same ones every time."""
        tools, dice = KINDS[self.kind], random.Random(self.tag)
        return [
            {
                "index": number,
                "id": f"call_{number}",
                "type": "function",
                "function": {
                    "name": f"{SERVER}__{tools[number % len(tools)]}",
                    "arguments": json.dumps(
                        {"token": f"{self.tag}-{number}", "work_ms": dice.randint(self.shortest_ms, self.longest_ms)}
                    ),
                },
            }
            for number in range(self.calls)
        ]


def answer(messages: Sequence[dict[str, Any]]) -> bytes:
    """The model's answer to this conversation, as the body of an event stream."""
    asked = next(at for at in reversed(range(len(messages))) if messages[at]["role"] == "user")
    if any(message["role"] == "tool" for message in messages[asked:]):
        delta, reason = {"content": "done"}, "stop"
    else:
        delta, reason = {"tool_calls": Order(**json.loads(messages[asked]["content"])).tool_calls()}, "tool_calls"
    return _event(delta) + _event({}, reason) + b"data: [DONE]\n\n"


def _event(delta: dict[str, Any], finish_reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError, asyncio.IncompleteReadError):
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            _, _, length = head.partition("content-length:")
            body = await reader.readexactly(int(length.split("\r\n")[0])) if length else b""
            data = answer(json.loads(body)["messages"]) if body else b""
            kind = b"content-type: text/event-stream\r\n"
            writer.write(b"HTTP/1.1 200 OK\r\n" + kind + b"content-length: %d\r\n\r\n" % len(data) + data)
            await writer.drain()
    writer.close()


async def main(port: int) -> None:
    """Serve for ever."""
    server = await asyncio.start_server(_serve, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
