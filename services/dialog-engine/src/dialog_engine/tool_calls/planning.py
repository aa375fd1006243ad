"""Decides what is done with the calls of a reply: how many run, with what, and which are repeated too often. Pure.

Everything is computed from the messages of the turn, so that it is the same on an engine that takes the turn up again.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

import msgspec

from dialog_engine.model import AssistantMessage, FinishReason, Message, ToolCall, ToolMessage, UserMessage
from dialog_engine.tool_calls.arguments import read_arguments, validate, without_nulls
from dialog_engine.tool_calls.exposure import gateway
from dialog_engine.tool_calls.exposure.descriptions import signature
from dialog_engine.tool_calls.normalise import plain_name
from dialog_engine.tool_calls.ports import ToolSource
from dialog_engine.tool_calls.values import Runnable, Unrunnable
from plugins_contract.catalog import ToolEntry, choice_of, named
from plugins_contract.errors import ErrorCode
from plugins_contract.outcomes import CallState, ToolError, ToolOutcome

NO_TOOLS: Mapping[str, ToolEntry] = {}


def plan(call: ToolCall, source: ToolSource, own: Mapping[str, ToolEntry] = NO_TOOLS) -> Runnable | Unrunnable:
    """What to do with `call`. `own` are the engine's own tools, by name.

    The returned call has the name that its tool has in the catalog, also where the model wrote the name that the tool
    has at its server. If it goes through the gateway, it also names the tool that it resolves to.
    """
    if call.name == gateway.NAME:
        return _through_gateway(call, source)
    tool = own.get(call.name) or _found(call.name, source)
    if isinstance(tool, ToolError):
        return Unrunnable(call, ToolOutcome(CallState.FAILED, error=tool))
    call = replace(call, name=tool.name)
    arguments = read_arguments(call.arguments)
    if isinstance(arguments, str):
        return invalid(call, arguments)
    arguments = without_nulls(tool, arguments)
    message = validate(tool, arguments)
    return invalid(call, message) if message else Runnable(call, tool, arguments)


def _found(name: str, source: ToolSource) -> ToolEntry | ToolError:
    """The tool of that name, or the only one of the sender's tools that its server calls so."""
    tool = source.find(name)
    if isinstance(tool, ToolEntry) or tool.code is not ErrorCode.TOOL_NOT_FOUND:
        return tool
    match named(name, source.tools()):
        case []:
            return tool
        case [only]:
            return only
        case several:
            text = f"several servers have a tool {name[:100]!r}: call {choice_of(several)}"
            return ToolError(ErrorCode.TOOL_NOT_FOUND, text)


def _through_gateway(call: ToolCall, source: ToolSource) -> Runnable | Unrunnable:
    catalog = source.tools()
    if not catalog and isinstance(why := source.find(call.name), ToolError):
        return Unrunnable(call, ToolOutcome(CallState.FAILED, error=why))
    arguments = read_arguments(call.arguments)
    if isinstance(arguments, str):
        return invalid(call, arguments)
    if message := validate(gateway.INPUT, arguments):
        return invalid(call, f"{message}. {gateway.SHAPE}")
    resolved = gateway.resolve(arguments, catalog)
    if isinstance(resolved, ToolOutcome):
        return Unrunnable(call, resolved, None if resolved.error else gateway.INPUT)
    call = replace(call, tool=resolved.tool.name)
    arguments = without_nulls(resolved.tool, resolved.arguments)
    if message := validate(resolved.tool, arguments):
        about = message.removeprefix("arguments: ")
        return invalid(call, f"params: {about}. The operation is {signature(resolved.tool)}")
    return Runnable(call, resolved.tool, arguments)


def has_no_tool(outcome: ToolOutcome) -> bool:
    """Whether a call has this outcome because no tool has its name."""
    return outcome.error is not None and outcome.error.code is ErrorCode.TOOL_NOT_FOUND


def invalid(call: ToolCall, message: str) -> Unrunnable:
    """The call with an error as its outcome that says what is wrong with it."""
    return Unrunnable(call, ToolOutcome.failure(CallState.FAILED, ErrorCode.INVALID_ARGUMENTS, message))


@dataclass(frozen=True, slots=True)
class CallLimits:
    """The limits of a turn. `reply_bytes` counts text, reasoning and arguments as UTF-8.

    `own_per_turn` is the limit of calls of the engine's own tools.
    """

    per_reply: int = 64
    per_turn: int = 256
    reply_bytes: int = 4_000_000
    own_per_turn: int = 32

    def refusal(self, number: int, before: int) -> ToolOutcome | None:
        """The outcome of call `number` of a reply, after `before` calls of the turn; None when it may run."""
        if number >= self.per_reply:
            reason = f"one reply may call {self.per_reply} tools at most: call the others in your next reply"
        elif before + number >= self.per_turn:
            reason = f"one answer may call {self.per_turn} tools at most: answer with what you have"
        else:
            return None
        return _overloaded(reason)

    def refusal_of_own(self, number: int) -> ToolOutcome | None:
        """The outcome of the call `number`, counted from 1, of the engine's own tools; None when it may run."""
        if number <= self.own_per_turn:
            return None
        return _overloaded(
            f"one answer may call tools such as tool_search and read_result {self.own_per_turn} times at most"
            " (MAX_OWN_CALLS_PER_TURN): go on with what you have"
        )


def _overloaded(reason: str) -> ToolOutcome:
    return ToolOutcome.failure(CallState.FAILED, ErrorCode.OVERLOADED, f"it was not run: {reason}")


DEFAULT_LIMITS = CallLimits()


def calls_of_turn(messages: Sequence[Message], counts: Callable[[str], bool] = lambda name: True) -> int:
    """How many calls the replies since the last message of the user have, of tools with a name that `counts`."""
    count = 0
    for message in reversed(messages):
        match message:
            case UserMessage():
                break
            case AssistantMessage(tool_calls=calls):
                count += sum(counts(call.name) for call in calls)
            case _:
                pass
    return count


# --- Calls that the model repeats ---

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
