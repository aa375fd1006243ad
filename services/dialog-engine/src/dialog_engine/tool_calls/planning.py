"""Decides, before anything is sent, what is done with the calls of a reply: how many run, and with what."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from dialog_engine.model import AssistantMessage, Message, ToolCall, UserMessage
from dialog_engine.tool_calls.arguments import read_arguments, validate
from dialog_engine.tool_calls.exposure import gateway
from dialog_engine.tool_calls.exposure.descriptions import signature
from dialog_engine.tool_calls.ports import ToolSource
from dialog_engine.tool_calls.values import Runnable, Unrunnable
from plugins_contract.catalog import ToolEntry, choice_of, named
from plugins_contract.errors import ErrorCode
from plugins_contract.outcomes import CallState, ToolError, ToolOutcome


def plan(call: ToolCall, source: ToolSource) -> Runnable | Unrunnable:
    """What to do with `call`.

    The returned call has the name that its tool has in the catalog, also where the model wrote the name that the tool
    has at its server. If it goes through the gateway, it also names the tool that it resolves to.
    """
    if call.name == gateway.NAME:
        return _through_gateway(call, source)
    tool = _found(call.name, source)
    if isinstance(tool, ToolError):
        return Unrunnable(call, ToolOutcome(CallState.FAILED, error=tool))
    call = replace(call, name=tool.name)
    arguments = read_arguments(call.arguments)
    if isinstance(arguments, str):
        return invalid(call, arguments)
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
    if message := validate(resolved.tool, resolved.arguments):
        about = message.removeprefix("arguments: ")
        return invalid(call, f"params: {about}. The operation is {signature(resolved.tool)}")
    return Runnable(call, resolved.tool, resolved.arguments)


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
