"""`python -m tests.chaos.text_model PORT`: a model that says numbered words, one after the other, at a fixed pace.

The user's message is an `Essay` as JSON. Words are sent by the clock of the stream, so that a machine that is late
does not slow the model down.
"""

import asyncio
import json
import random
import re
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Essay:
    """So many words, one every so many milliseconds; the first `loud` of them are long, of so many characters.

    A `stamped` word carries the time when it was said, in microseconds on the clock of this machine.
    """

    words: int
    every_ms: float
    loud: int = 0
    length: int = 0
    stamped: bool = False

    def __str__(self) -> str:
        return json.dumps(asdict(self))

    @property
    def text(self) -> str:
        """The whole answer, without stamps."""
        return "".join(map(self.word, range(self.words)))

    def word(self, number: int) -> str:
        """One piece of the answer, without its stamp."""
        return f"w{number}".ljust(self.length if number < self.loud else 0, ".") + " "

    def said(self, number: int) -> str:
        """One piece of the answer as it is said now."""
        return f"{time.monotonic_ns() // 1000}@{self.word(number)}" if self.stamped else self.word(number)


def without_stamps(text: str) -> str:
    """What was said, whenever that was."""
    return re.sub(r"\d+@", "", text)


def _event(delta: dict[str, str], reason: str | None = None) -> bytes:
    return (
        b"data: " + json.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}).encode() + b"\n\n"
    )


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError, asyncio.IncompleteReadError):
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        _, _, length = head.partition("content-length:")
        body = json.loads(await reader.readexactly(int(length.split("\r\n")[0])))
        essay = Essay(**json.loads(body["messages"][-1]["content"]))
        writer.write(HEAD)
        loop = asyncio.get_running_loop()
        due = loop.time() + random.random() * essay.every_ms / 1000
        for number in range(essay.words):
            await asyncio.sleep(due - loop.time())
            writer.write(_event({"content": essay.said(number)}))
            due += essay.every_ms / 1000
        writer.write(_event({}, "stop") + b"data: [DONE]\n\n")
        await writer.drain()
    writer.close()


async def main(port: int) -> None:
    """Serve until the process ends."""
    server = await asyncio.start_server(_serve, "127.0.0.1", port, backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
