"""When a turn has to come to its end. Pure."""

from collections.abc import Sequence

from dialog_engine.model import FinishReason, Message
from dialog_engine.tool_calls.repeats import repeats

LAST_NOTE = (
    "(No more tool calls can be made for this answer. Answer the user now with what you have, and say what is missing.)"
)
"""What the model reads behind the last result before its last answer."""


def last_answer(messages: Sequence[Message], depth: int, max_rounds: int) -> FinishReason | None:
    """Why the model's next reply must be its answer, None when it may still call tools. `messages` are normalised."""
    if depth >= max_rounds:
        return FinishReason.MAX_ROUNDS
    return FinishReason.REPEATED_CALLS if repeats(messages).hopeless else None
