"""Calls that the model repeats: which are not run again, and when the turn has to end. Pure.

Everything is computed from the messages of the turn, so that it is the same on an engine that takes the turn up again.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

import msgspec

from dialog_engine.model import AssistantMessage, FinishReason, Message, ToolCall, ToolMessage, UserMessage
from dialog_engine.tool_calls.arguments import read_arguments
from dialog_engine.tool_calls.exposure import gateway
from dialog_engine.tool_calls.normalise import plain_name
from plugins_contract.errors import ErrorCode
from plugins_contract.outcomes import CallState, ToolOutcome

SAME_RESULTS = 3
"""How often a call may have the same result, with no new result in between; after that it is not run again."""
REFUSED_ROUNDS = 2
"""The number of rounds with such a refused call after which the model has to answer without calls."""

NOTE = (
    "(You have made this exact call {} times now, and nothing new came of it. It will not be run again: use what you"
    " have, try something else, or tell the user.)"
)
LAST_NOTE = (
    "(No more tool calls can be made for this answer. Answer the user now with what you have, and say what is missing.)"
)
"""What the model reads behind the last result before its last answer."""
EMPTY_NOTE = (
    "(Your last reply had nothing in it that the user can read, and no tool call. The user does not see results. Reply"
    " again: answer in words, or call a tool if one is needed.)"
)
"""What the model reads behind the last message when it is asked once more, because its reply was empty."""
_REFUSAL = (
    "you made this exact call {} times and nothing new came of it, so it was not run again. Its result still holds:"
    " use that, try something else, or answer the user."
)

_Call = tuple[str, str]
_Pair = tuple[_Call, str, tuple[object, ...]]


@dataclass(slots=True)
class Repeats:
    """The calls that a turn has repeated since its last new result, and those that a person has refused in it.

    New is a pair of call and result that the turn has not had before: a tool that is polled until its answer changes,
    or tests that are run again after each edit, repeat nothing.
    """

    times: dict[_Call, int] = field(default_factory=dict[_Call, int])
    refused_rounds: int = 0
    refused_by_person: dict[_Call, str] = field(default_factory=dict[_Call, str])
    """With the messages that the refused calls were answered with."""
    _seen: set[_Pair] = field(default_factory=set[_Pair])

    def refusal(self, call: ToolCall) -> ToolOutcome | None:
        """The outcome of a call that must not be run or put to a person again; None for all others."""
        key = _key(call)
        if message := self.refused_by_person.get(key):
            return ToolOutcome.failure(CallState.FAILED, ErrorCode.NOT_APPROVED, message)
        times = self.times.get(key, 0)
        if times < SAME_RESULTS:
            return None
        return ToolOutcome.failure(CallState.FAILED, ErrorCode.REPEATED, _REFUSAL.format(times))

    def last_answer(self, depth: int, max_rounds: int) -> FinishReason | None:
        """Why the model's next reply must be its answer, after `depth` rounds; None when it may still call tools."""
        if depth >= max_rounds:
            return FinishReason.MAX_ROUNDS
        return FinishReason.REPEATED_CALLS if self.refused_rounds >= REFUSED_ROUNDS else None

    def add_round(self, answered: Sequence[tuple[ToolCall, ToolMessage]]) -> list[ToolMessage]:
        """Count the calls of the next round. Returns its results, with a note on those that repeat too often."""
        refused = {_key(call) for call, _ in answered if self.refusal(call)}
        new = False
        noted: list[ToolMessage] = []
        for call, result in answered:
            key = _key(call)
            if key in refused:
                noted.append(result)
                continue
            if result.refusal:
                self.refused_by_person[key] = result.refusal
            pair = (key, result.content, result.media)
            if pair not in self._seen:
                self._seen.add(pair)
                self.times.clear()
                new = True
            times = self.times[key] = self.times.get(key, 0) + 1
            noted.append(result if times < SAME_RESULTS else _with_note(result, NOTE.format(times)))
        self.refused_rounds = 0 if new else self.refused_rounds + bool(refused)
        return noted


def find_repeats(messages: Sequence[Message]) -> tuple[Repeats, tuple[Message, ...]]:
    """What the turn that `messages` end with has repeated, and the messages with a note on results that repeat.

    The messages must be normalised, and stay so. Adding messages at the end does not change those before them.
    """
    repeats = Repeats()
    noted: list[Message] = []
    rest = iter(messages)
    for message in rest:
        noted.append(message)
        match message:
            case UserMessage():
                repeats = Repeats()
            case AssistantMessage(tool_calls=calls) if calls:
                results = [each for each in islice(rest, len(calls)) if isinstance(each, ToolMessage)]
                noted.extend(repeats.add_round(list(zip(calls, results, strict=True))))
            case _:
                pass
    return repeats, tuple(noted)


def with_last_note(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The same messages with LAST_NOTE behind the result that they end with, if they end with one."""
    return with_note(messages, LAST_NOTE) if messages and isinstance(messages[-1], ToolMessage) else tuple(messages)


def with_note(messages: Sequence[Message], note: str) -> tuple[Message, ...]:
    """The same messages with `note` behind the text of the last one.

    It is not a message of its own, because some providers refuse one between a result and the model's next message.
    """
    *before, last = messages
    return (*before, replace(last, content=f"{last.content}\n\n{note}"))


def _key(call: ToolCall) -> _Call:
    """Equal for calls of one tool with equal arguments: however these are formatted, through the gateway or not, and
    whether or not their names are normalised."""
    arguments = read_arguments(call.arguments)
    name = plain_name(call.tool_name)
    if call.name == gateway.NAME and call.tool and isinstance(arguments, dict):
        arguments = gateway.params_of(arguments)
    if isinstance(arguments, str):
        return name, ""  # such a call is not run, and its result says what is wrong
    return name, msgspec.json.encode(arguments, order="deterministic").decode()


def _with_note(result: ToolMessage, note: str) -> ToolMessage:
    return replace(result, content=f"{result.content}\n\n{note}")
