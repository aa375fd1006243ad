"""When a turn has to come to its end: a model that goes round in circles, or has had all its rounds. Pure.

Everything is worked out anew from the messages of the turn, so it holds in the next life of the turn as well.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

import msgspec

from dialog_engine.model import AssistantMessage, FinishReason, Message, ToolCall, ToolMessage, UserMessage
from dialog_engine.tool_calls.arguments import read_arguments
from dialog_engine.tool_calls.normalise import plain_name
from plugins_contract.errors import ErrorCode
from plugins_contract.outcomes import CallState, ToolOutcome

SAME_RESULTS = 3
"""So often a call may have the same result, with nothing new in between; after that it is not run again."""
REFUSED_ROUNDS = 2
"""So many rounds in which such a call is asked for again, and the model has to answer without calls."""

NOTE = (
    "(You have made this exact call {} times now, and nothing new came of it. It will not be run again: use what you"
    " have, try something else, or tell the user.)"
)
_REFUSAL = (
    "you made this exact call {} times and nothing new came of it, so it was not run again. What it told you stands:"
    " use that, try something else, or answer the user."
)

_Call = tuple[str, str]
_Pair = tuple[_Call, str, tuple[object, ...]]


@dataclass(slots=True)
class Repeats:
    """What a turn has repeated so far, since something new came of a call.

    New is a pair of call and result that the turn has not had before: a tool that is polled until its answer changes,
    or tests that are run again after each edit, repeat nothing.
    """

    times: dict[_Call, int] = field(default_factory=dict[_Call, int])
    refused_rounds: int = 0
    _seen: set[_Pair] = field(default_factory=set[_Pair])

    @property
    def hopeless(self) -> bool:
        """Whether being told has not helped."""
        return self.refused_rounds >= REFUSED_ROUNDS

    def refusal(self, call: ToolCall) -> ToolOutcome | None:
        """The outcome of a call that is not to be run again; None for all others."""
        times = self.times.get(_key(call), 0)
        if times < SAME_RESULTS:
            return None
        return ToolOutcome.failure(CallState.FAILED, ErrorCode.REPEATED, _REFUSAL.format(times))

    def take(self, answered: Sequence[tuple[ToolCall, ToolMessage]]) -> list[ToolMessage]:
        """Take account of the next round; its results, with a note for those that repeat too often."""
        refused = {_key(call) for call, _ in answered if self.refusal(call)}
        new = False
        noted: list[ToolMessage] = []
        for call, result in answered:
            key = _key(call)
            if key in refused:
                noted.append(result)
                continue
            pair = (key, result.content, result.media)
            if pair not in self._seen:
                self._seen.add(pair)
                self.times.clear()
                new = True
            times = self.times[key] = self.times.get(key, 0) + 1
            noted.append(result if times < SAME_RESULTS else _with_note(result, NOTE.format(times)))
        self.refused_rounds = 0 if new else self.refused_rounds + bool(refused)
        return noted


def repeats(messages: Sequence[Message]) -> Repeats:
    """What the turn that `messages` end with has repeated. They are normalised."""
    return _replay(messages)[0]


def noted(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The same messages, normalised as they are, where results that repeat too often say so to the model.

    Messages added at the end do not change what came before them.
    """
    return tuple(_replay(messages)[1])


def with_last_note(messages: Sequence[Message], note: str) -> tuple[Message, ...]:
    """The same messages with a note for the model behind the result they end with, if they end with one.

    A message of its own would be refused: some providers take none between a result and what the model says next.
    """
    match messages:
        case [*before, ToolMessage() as result]:
            return (*before, _with_note(result, note))
        case _:
            return tuple(messages)


def _replay(messages: Sequence[Message]) -> tuple[Repeats, list[Message]]:
    state = Repeats()
    result: list[Message] = []
    rest = iter(messages)
    for message in rest:
        result.append(message)
        match message:
            case UserMessage():
                state = Repeats()
            case AssistantMessage(tool_calls=calls) if calls:
                results = [each for each in islice(rest, len(calls)) if isinstance(each, ToolMessage)]
                result.extend(state.take(list(zip(calls, results, strict=True))))
            case _:
                pass
    return state, result


def _key(call: ToolCall) -> _Call:
    """Calls with the same key are the same: how the arguments are written does not count, nor whether the name has
    been normalised."""
    arguments = read_arguments(call.arguments)
    name = plain_name(call.name)
    if isinstance(arguments, str):
        return name, ""  # nothing is run, and what was wrong is in the result
    return name, msgspec.json.encode(arguments, order="deterministic").decode()


def _with_note(result: ToolMessage, note: str) -> ToolMessage:
    return replace(result, content=f"{result.content}\n\n{note}")


LAST_NOTE = (
    "(No more tool calls can be made for this answer. Answer the user now with what you have, and say what is missing.)"
)
"""What the model reads behind the last result before its last answer."""


def last_answer(messages: Sequence[Message], depth: int, max_rounds: int) -> FinishReason | None:
    """Why the model's next reply must be its answer, None when it may still call tools. `messages` are normalised."""
    if depth >= max_rounds:
        return FinishReason.MAX_ROUNDS
    return FinishReason.REPEATED_CALLS if repeats(messages).hopeless else None
