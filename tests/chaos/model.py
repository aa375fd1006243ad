"""`python -m tests.chaos.model PORT NOTES`: a model that does what the user's message says, and is strict.

The message is an `Order` as JSON: rounds of tool calls, then words. Asked again, the model says the same again. It
refuses every conversation that a provider would refuse. Refusals and streams that the other end left go into NOTES.
"""

import asyncio
import json
import random
import re
import sys
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.chaos.notes import Notes, What
from tests.chaos.tools import ONCE, RARE, REPEATABLE, SERVER

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
REFUSAL = b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n"
ASIDE, DONE = "One moment.", "done"
"""What it says with its tool calls, and when no words were ordered."""
ENDLESS = 1 << 40
"""Words that nobody waits for."""
_ONCE, _AGAIN = f"{SERVER}__{ONCE}", f"{SERVER}__{REPEATABLE}"
KINDS = {
    "both": (_ONCE, _AGAIN),
    "mostly once": (_ONCE, _ONCE, _ONCE, _AGAIN),
    "with rare": (_ONCE, _AGAIN, f"{RARE}__{ONCE}"),
}
Call = tuple[str, dict[str, Any]]
"""The full name of a tool, and the arguments."""
Shown = tuple[str, str, list[str]]
"""A message as the model is shown it: role, text, and the ids of its calls or of the one that it answers."""


@dataclass(frozen=True, slots=True)
class Order:
    """What a user's message asks for: these rounds of parallel calls, then so many words, one every `word_ms`.

    The first `loud` words are long, of `length` characters. A `stamped` word carries the time when it was said, in
    microseconds on the monotonic clock. One that `recalls` says instead what it was shown, as JSON.
    """

    tag: str = ""
    rounds: Sequence[Sequence[Call]] = ()
    words: int = 0
    word_ms: float = 0
    loud: int = 0
    length: int = 0
    stamped: bool = False
    recalls: bool = False

    def __str__(self) -> str:
        return json.dumps(asdict(self))

    @property
    def text(self) -> str:
        return "".join(map(self.word, range(self.words))) or DONE

    def word(self, number: int) -> str:
        return f"w{number}".ljust(self.length if number < self.loud else 0, ".") + " "


def calls_of(tag: str, count: int, kind: str, shortest_ms: int, longest_ms: int) -> list[Call]:
    """A round of calls of one kind or of both in turns, that work for so long; the same ones every time."""
    tools, dice = KINDS[kind], random.Random(tag)
    return [
        (tools[number % len(tools)], {"token": f"{tag}-{number}", "work_ms": dice.randint(shortest_ms, longest_ms)})
        for number in range(count)
    ]


def without_stamps(text: str) -> str:
    return re.sub(r"\d+@", "", text)


def mistake_in(messages: Sequence[Mapping[str, Any]]) -> str | None:
    """What a provider would not accept in this conversation. Pure."""
    open_ids: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            if message["tool_call_id"] not in open_ids:
                return f"a result that nothing waits for: {message['tool_call_id']}"
            open_ids.remove(message["tool_call_id"])
            continue
        if open_ids:
            return f"calls without a result: {open_ids}"
        open_ids = [call["id"] for call in message.get("tool_calls") or ()]
        if len(set(open_ids)) < len(open_ids):
            return f"the same id twice: {open_ids}"
        if not message.get("content") and not open_ids:
            return f"a message of {message['role']} says nothing"
    if open_ids:
        return f"calls without a result: {open_ids}"
    return None if messages[-1]["role"] in ("user", "tool") else "there is no question"


def _shown(message: Mapping[str, Any]) -> Shown:
    answered = [message["tool_call_id"]] if message["role"] == "tool" else []
    asked: list[dict[str, Any]] = message.get("tool_calls") or []
    return message["role"], message["content"] or "", [*answered, *(call["id"] for call in asked)]


def _event(delta: dict[str, Any], reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


def _calls(calls: Sequence[Call]) -> bytes:
    asked = [
        {
            "index": number,
            "id": f"call_{number}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments)},
        }
        for number, (name, arguments) in enumerate(calls)
    ]
    return _event({"content": ASIDE}) + _event({"tool_calls": asked}) + _event({}, "tool_calls")


async def _answer(order: Order, messages: Sequence[Mapping[str, Any]], rounds: int) -> AsyncGenerator[bytes]:
    """The pieces of the stream. Words come by its clock: a machine that is late does not slow the model down."""
    if rounds < len(order.rounds):
        yield _calls(order.rounds[rounds])
        return
    if order.recalls:
        shown = [_shown(message) for message in messages if message["role"] != "system"]
        yield _event({"content": json.dumps(shown)})
    elif not order.words:
        yield _event({"content": DONE})
    loop, pause = asyncio.get_running_loop(), order.word_ms / 1000
    due = loop.time() + random.random() * pause
    for number in range(order.words):
        await asyncio.sleep(due - loop.time())
        stamp = f"{time.monotonic_ns() // 1000}@" if order.stamped else ""
        yield _event({"content": stamp + order.word(number)})
        due += pause
    yield _event({}, "stop")


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, notes: Notes) -> None:
    with suppress(ConnectionError, asyncio.IncompleteReadError):
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        _, _, length = head.partition("content-length:")
        messages = json.loads(await reader.readexactly(int(length.split("\r\n")[0])))["messages"]
        asked = next(at for at in reversed(range(len(messages))) if messages[at]["role"] == "user")
        order = Order(**json.loads(messages[asked]["content"]))
        if wrong := mistake_in(messages):
            notes.add(What.INVALID, f"{order.tag}: {wrong}")
            writer.write(REFUSAL + json.dumps({"error": {"message": wrong}}).encode())
        else:
            rounds = sum(bool(message.get("tool_calls")) for message in messages[asked:])
            answer = _answer(order, messages, rounds)
            await _write(answer, reader, writer, lambda: notes.add(What.LEFT, order.tag))
    writer.close()


async def _write(
    answer: AsyncGenerator[bytes], reader: asyncio.StreamReader, writer: asyncio.StreamWriter, left: Callable[[], None]
) -> None:
    """Write the answer to its end, or until the other end is gone: then `left` is called at once."""
    writing: asyncio.Task[Any] | None = asyncio.current_task()
    assert writing is not None

    async def watch() -> None:
        with suppress(ConnectionError):
            await reader.read()
        left()
        writing.cancel()

    watching = asyncio.create_task(watch())
    writer.write(HEAD)
    with suppress(asyncio.CancelledError):
        async with aclosing(answer) as pieces:
            async for piece in pieces:
                writer.write(piece)
        writer.write(b"data: [DONE]\n\n")
        await writer.drain()
    watching.cancel()


async def main(port: int, notes: Notes) -> None:
    server = await asyncio.start_server(
        lambda reader, writer: _serve(reader, writer, notes), "127.0.0.1", port, backlog=1024
    )
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), Notes(Path(sys.argv[2]))))
