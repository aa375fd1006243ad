"""Makes a conversation acceptable to every provider, whatever crashes, cancellations and providers left in it. Pure.

It runs before each request: a single call without its result would make every later request of the session fail.
"""

import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace

from dialog_engine.model import AssistantMessage, Message, ToolCall, ToolMessage, UserMessage

UNKNOWN_OUTCOME = (
    "The result of this call is not known: it was interrupted before a result was recorded. It may or may not have "
    "taken effect. Do not assume either; check first if repeating it could do harm."
)
"""What the model reads in place of a result that is missing."""

NO_REPLY = "(There was no reply.)"
"""Inserted before a user's message that directly follows another one, or a result, because the model said
nothing, because the turn was stopped or failed. Some providers and local models refuse two in a row."""

MAX_CALL_ID_CHARACTERS = 40
"""The longest tool call id that OpenAI accepts in a request."""

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
"""What OpenAI and Anthropic accept as the name of a call in a request, whether or not such a tool exists."""

_Place = tuple[int, int]
"""The place of a tool call: the position of its message, and its position in that message."""


def normalise(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The same conversation with these properties:

    - directly behind each assistant message with tool calls is one result per call, in the order of the calls;
    - there are no other tool results, and no assistant messages without text and calls;
    - before each message of the user but the first the model says something, if only NO_REPLY;
    - tool call ids are unique in the whole history: a repeated id gets a suffix, and so does that of its result;
    - ids and names of calls have a form that every provider accepts, also those of tools that do not exist.

    Normalising is idempotent, and adding messages at the end does not change the result for those before them.
    """
    results = _results(messages)
    return tuple(_in_turn(_normalised(messages, results, _Ids())))


def plain_name(name: str) -> str:
    """`name` in characters that every provider accepts. The name of a tool that exists is returned as it is."""
    return name if _NAME.fullmatch(name) else re.sub(r"[^a-zA-Z0-9_-]", "_", name)[:64] or "_"


def _in_turn(messages: Iterator[Message]) -> Iterator[Message]:
    previous: Message | None = None
    for message in messages:
        if isinstance(message, UserMessage) and isinstance(previous, UserMessage | ToolMessage):
            yield AssistantMessage(NO_REPLY)
        yield message
        previous = message


def _normalised(messages: Sequence[Message], results: dict[_Place, ToolMessage], ids: "_Ids") -> Iterator[Message]:
    for position, message in enumerate(messages):
        match message:
            case ToolMessage():
                pass
            case AssistantMessage(tool_calls=()):
                if message.content.strip():
                    yield message
            case AssistantMessage(tool_calls=calls):
                renamed = tuple(_named(ids.unique(call)) for call in calls)
                yield replace(message, tool_calls=renamed)
                for number, call in enumerate(renamed):
                    result = results.get((position, number))
                    known = result or ToolMessage("", "", UNKNOWN_OUTCOME, failed=True)
                    yield replace(known, tool_call_id=call.tool_call_id, name=call.name)
            case _:
                yield message


def _named(call: ToolCall) -> ToolCall:
    name = plain_name(call.name)
    return call if name == call.name else replace(call, name=name)


def _results(messages: Sequence[Message]) -> dict[_Place, ToolMessage]:
    """The result of each call: the first one with its id that comes after it, and before the id is used again."""
    waiting: dict[str, deque[_Place]] = {}
    results: dict[_Place, ToolMessage] = {}
    for position, message in enumerate(messages):
        match message:
            case AssistantMessage(tool_calls=calls):
                fresh: dict[str, deque[_Place]] = {}
                for number, call in enumerate(calls):
                    fresh.setdefault(call.tool_call_id, deque()).append((position, number))
                waiting |= fresh
            case ToolMessage(tool_call_id) if waiting.get(tool_call_id):
                results[waiting[tool_call_id].popleft()] = message
            case _:
                pass
    return results


class _Ids:
    """Makes the ids of calls unique. The first call with an id keeps it."""

    def __init__(self) -> None:
        self._used: set[str] = set()
        self._numbers: dict[str, int] = {}
        """The last suffix of each id: a provider may give all calls of a session the same one."""

    def unique(self, call: ToolCall) -> ToolCall:
        call_id = wanted = call.tool_call_id[:MAX_CALL_ID_CHARACTERS]
        number = self._numbers.get(wanted, 1)
        while not call_id or call_id in self._used:
            number += 1
            suffix = f"_{number}"
            call_id = (call.tool_call_id or "call")[: MAX_CALL_ID_CHARACTERS - len(suffix)] + suffix
        self._used.add(call_id)
        self._numbers[wanted] = number
        return call if call_id == call.tool_call_id else replace(call, tool_call_id=call_id)
