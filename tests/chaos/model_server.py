"""`python -m tests.chaos.model_server PORT`: a model that asks for as many tool calls as the user tells it to.

The user's message is an `Order` as JSON. The first answer is that many parallel calls, each with a token of its own;
with their results in hand it asks for the next round of calls, or says "done", or as many numbered words, at a fixed
pace. Asked again, it says the same again.
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

KINDS = {
    "once": (ONCE,),
    "repeatable": (REPEATABLE,),
    "both": (ONCE, REPEATABLE),
    "mostly once": (ONCE, ONCE, ONCE, REPEATABLE),
}


@dataclass(frozen=True, slots=True)
class Order:
    """What a user's message asks for: calls of one kind or of both in turns, that work for so many milliseconds.

    After so many `rounds` of them come `words`, one every `word_ms`.
    """

    tag: str
    calls: int
    kind: str
    shortest_ms: int
    longest_ms: int
    words: int = 0
    word_ms: int = 0
    rounds: int = 1

    @property
    def text(self) -> str:
        """The whole of what the model says in the end."""
        return "".join(map(_word, range(self.words))) or "done"

    def __str__(self) -> str:
        return json.dumps(asdict(self))

    def tool_calls(self, number_of_round: int = 0) -> list[dict[str, Any]]:
        """The calls of a round, as a provider streams them; the same ones every time."""
        tag = f"{self.tag}.{number_of_round}" if number_of_round else self.tag
        tools, dice = KINDS[self.kind], random.Random(tag)
        return [
            {
                "index": number,
                "id": f"call_{number}",
                "type": "function",
                "function": {
                    "name": f"{SERVER}__{tools[number % len(tools)]}",
                    "arguments": json.dumps(
                        {"token": f"{tag}-{number}", "work_ms": dice.randint(self.shortest_ms, self.longest_ms)}
                    ),
                },
            }
            for number in range(self.calls)
        ]


def answer(messages: Sequence[dict[str, Any]]) -> tuple[list[bytes], float]:
    """The model's answer to this conversation, as pieces of an event stream, and the seconds between two of them."""
    asked = next(at for at in reversed(range(len(messages))) if messages[at]["role"] == "user")
    order = Order(**json.loads(messages[asked]["content"]))
    rounds = sum(bool(message.get("tool_calls")) for message in messages[asked:])
    if rounds == order.rounds:
        said = [_event({"content": _word(number)}) for number in range(order.words)] or [_event({"content": "done"})]
        said[-1] += _end("stop")
        return said, order.word_ms / 1000
    return [_event({"tool_calls": order.tool_calls(rounds)}) + _end("tool_calls")], 0


def _word(number: int) -> str:
    return f"w{number} "


def _end(reason: str) -> bytes:
    return _event({}, reason) + b"data: [DONE]\n\n"


def _event(delta: dict[str, Any], finish_reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError, asyncio.IncompleteReadError):
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            _, _, length = head.partition("content-length:")
            body = await reader.readexactly(int(length.split("\r\n")[0])) if length else b""
            pieces, seconds = answer(json.loads(body)["messages"]) if body else ([b""], 0.0)
            kind = b"content-type: text/event-stream\r\n"
            writer.write(b"HTTP/1.1 200 OK\r\n" + kind + b"content-length: %d\r\n\r\n" % sum(map(len, pieces)))
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(seconds)
    writer.close()


async def main(port: int) -> None:
    """Serve until the process ends."""
    server = await asyncio.start_server(_serve, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
