"""What the clients in Python have in common: what they are asked is JSON on the standard input, and each answer is a
line of JSON."""

import json
import sys
from collections.abc import Callable
from typing import Any

asked: dict[str, Any] = json.load(sys.stdin)
elsewhere: str = asked["urls"][-1]
"""Where a client goes on that has run a tool of its own, or whose user has decided about a call."""
said: list[Any] = []
"""What was said in the chat, as the client keeps it."""
_ran: list[Any] = []


def run(arguments: Any) -> str:
    """The client's own tool."""
    _ran.append(arguments)
    return "teal"


def tools() -> list[dict[str, Any]] | None:
    """The client's own tool, as the API of OpenAI has it."""
    if (tool := asked["tool"]) is None:
        return None
    return [{"type": "function", "function": {"name": tool["name"], "parameters": tool["inputSchema"]}}]


def answers(ask: Callable[[str, str, bool], dict[str, Any]]) -> None:
    """`ask` returns the answer to a question at an engine. If its last argument is true, it leaves as soon as it has
    some of it. A client that comes back for the answer to the question that it has left asks again."""
    for place, question in enumerate(asked["questions"]):
        if place == asked["again"]:
            said.clear()
        try:
            answer = ask(question, asked["urls"][place % len(asked["urls"])], place == asked["cut"])
        except Exception as error:  # noqa: BLE001 -- what the client shows is the answer
            answer = {"error": str(error)}
        print(json.dumps({**answer, "ran": _ran}), flush=True)
        _ran.clear()
