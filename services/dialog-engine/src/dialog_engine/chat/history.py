"""Short-term memory: how much of a session a model is shown. Pure."""

from collections.abc import Sequence

from dialog_engine.model import AssistantMessage, Message, SystemMessage, ToolMessage, UserMessage

_PER_MESSAGE = 8
"""Tokens for roles and separators, as providers count them."""
_PER_MEDIA = 1_500
"""Tokens for an image or a sound: what the large providers count for a big image, whatever its bytes."""


def estimate_tokens(message: Message) -> int:
    """About how many tokens a message costs: a quarter of its UTF-8 bytes, which errs on the side of too many."""
    match message:
        case AssistantMessage(content, ()):
            text = len(content.encode())
        case AssistantMessage(content, tool_calls, reasoning):
            # Reasoning goes back to the providers that ask for it, with tool calls only.
            text = len(content.encode()) + len(reasoning.encode())
            text += sum(len(c.name) + len(c.arguments.encode()) + 16 for c in tool_calls)
        case ToolMessage(content=content, media=media):
            return _PER_MESSAGE + len(content.encode()) // 4 + _PER_MEDIA * len(media)
        case SystemMessage(content) | UserMessage(content):
            text = len(content.encode())
    return _PER_MESSAGE + text // 4


def window(messages: Sequence[Message], *, max_messages: int, max_tokens: int) -> tuple[Message, ...]:
    """The newest whole turns that fit both bounds.

    A turn begins with a user's message; the last one is always kept, whatever it costs: without it there is nothing
    to answer.
    """
    kept: list[Message] = []
    turn: list[Message] = []
    tokens = 0
    for message in reversed(messages):
        turn.append(message)
        if not isinstance(message, UserMessage):
            continue
        cost = sum(map(estimate_tokens, turn))
        if kept and (len(kept) + len(turn) > max_messages or tokens + cost > max_tokens):
            break
        kept += turn
        tokens += cost
        turn = []
    return tuple(reversed(kept))
