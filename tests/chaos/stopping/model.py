"""`python -m tests.chaos.stopping.model PORT NOTES`: a model that does what the user's message says, and is strict.

A message is a `Plan` as JSON: first the tool calls, if there are any, then words until the other end has had enough. It
refuses every conversation that a provider would refuse.
"""

import asyncio
import itertools
import json
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.chaos.stopping.notes import Notes, What

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
REFUSAL = b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n"
DONE = "done"
"""What it says with the results of the tools in hand, unless it is to talk."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is asked of the model: these calls, as pairs of a name and arguments, and then words without end or not.

    `word_ms` is the time between two words; 0 for one word and no more.
    """

    token: str
    calls: tuple[tuple[str, dict[str, Any]], ...] = ()
    word_ms: int = 0

    def __str__(self) -> str:
        return json.dumps(asdict(self))


def word(number: int) -> str:
    """One word of many."""
    return f"w{number} "


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


def _event(delta: dict[str, Any], reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


async def _answer(plan: Plan, *, called: bool) -> AsyncGenerator[bytes]:
    if plan.calls and not called:
        calls = [
            {
                "index": number,
                "id": f"call_{number}",
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(arguments)},
            }
            for number, (name, arguments) in enumerate(plan.calls)
        ]
        yield _event({"content": "One moment."}) + _event({"tool_calls": calls}) + _event({}, "tool_calls")
        return
    for number in itertools.count() if plan.word_ms else ():
        yield _event({"content": word(number)})
        await asyncio.sleep(plan.word_ms / 1000)
    yield _event({"content": DONE}) + _event({}, "stop")


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, notes: Notes) -> None:
    with suppress(ConnectionError, asyncio.IncompleteReadError):
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        _, _, length = head.partition("content-length:")
        messages = json.loads(await reader.readexactly(int(length.split("\r\n")[0])))["messages"]
        asked = next(at for at in reversed(range(len(messages))) if messages[at]["role"] == "user")
        plan = Plan(**json.loads(messages[asked]["content"]))
        if wrong := mistake_in(messages):
            notes.add(What.INVALID, f"{plan.token}: {wrong}")
            writer.write(REFUSAL + json.dumps({"error": {"message": wrong}}).encode())
        else:
            answer = _answer(plan, called=any(each["role"] == "tool" for each in messages[asked:]))
            await _write(answer, reader, writer, lambda: notes.add(What.LEFT, plan.token))
    writer.close()


async def _write(
    answer: AsyncGenerator[bytes], reader: asyncio.StreamReader, writer: asyncio.StreamWriter, left: Any
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
    """Serve until the process ends."""
    server = await asyncio.start_server(lambda reader, writer: _serve(reader, writer, notes), "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), Notes(Path(sys.argv[2]))))
