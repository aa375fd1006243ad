"""Short-term memory: how much of a session a model is shown. Pure."""

from collections.abc import Sequence

from dialog_engine.model import Message, UserMessage
from dialog_engine.tokens import tokens_of_message


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
        cost = sum(map(tokens_of_message, turn))
        if kept and (len(kept) + len(turn) > max_messages or tokens + cost > max_tokens):
            break
        kept += turn
        tokens += cost
        turn = []
    return tuple(reversed(kept))
