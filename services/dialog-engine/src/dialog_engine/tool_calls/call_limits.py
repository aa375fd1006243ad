"""How much one reply of a model, and all replies of a turn, may cause: calls that are run, and bytes that are kept."""

from collections.abc import Sequence
from dataclasses import dataclass

from dialog_engine.model import AssistantMessage, Message, UserMessage
from plugins_contract.errors import ErrorCode
from plugins_contract.outcomes import CallState, ToolOutcome


@dataclass(frozen=True, slots=True)
class CallLimits:
    """The limits of a turn. `reply_bytes` counts text, reasoning and arguments as UTF-8."""

    per_reply: int = 64
    per_turn: int = 256
    reply_bytes: int = 4_000_000

    def refusal(self, number: int, before: int) -> ToolOutcome | None:
        """The outcome of call `number` of a reply, after `before` calls of the turn; None when it may run."""
        if number >= self.per_reply:
            reason = f"one reply may call {self.per_reply} tools at most: call the others in your next reply"
        elif before + number >= self.per_turn:
            reason = f"one answer may call {self.per_turn} tools at most: answer with what you have"
        else:
            return None
        return ToolOutcome.failure(CallState.FAILED, ErrorCode.OVERLOADED, f"it was not run: {reason}")


DEFAULT_LIMITS = CallLimits()


def calls_of_turn(messages: Sequence[Message]) -> int:
    """How many calls the replies since the last message of the user have."""
    count = 0
    for message in reversed(messages):
        match message:
            case UserMessage():
                break
            case AssistantMessage(tool_calls=calls):
                count += len(calls)
            case _:
                pass
    return count
