"""Which part of a conversation fits into a model's context. Pure, and linear in the size of the conversation.

Turns and rounds are kept whole or not at all, so that a call is never parted from its result, and what is kept begins
with a user's message.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise, takewhile

from dialog_engine.context.tokens import tokens_of_message, tokens_of_request
from dialog_engine.model import AssistantMessage, ChatRequest, Message, SystemMessage, UserMessage

NOTE = (
    "The beginning of this conversation is left out here, because it is too long: older messages, and results of older"
    " tool calls. Do not guess what they said. If you need something from them, say so, or call the tool again if that"
    " does no harm."
)
"""Added to the system message when something is left out."""


def newest_turns(messages: Sequence[Message], *, max_messages: int, max_tokens: float) -> tuple[Message, ...]:
    """The newest whole turns that fit both bounds.

    A turn begins with a user's message; the last one is always kept, whatever it costs: without it there is nothing
    to answer.
    """
    turns = _parts(messages, UserMessage)
    kept = _newest(turns[:-1], max_tokens - _cost(turns[-1:]), max_messages - sum(map(len, turns[-1:])))
    return tuple(message for turn in (*kept, *turns[-1:]) for message in turn)


def fit(request: ChatRequest, max_tokens: float) -> ChatRequest:
    """The request with as much of its conversation as fits into `max_tokens`, with its system message and its tools.

    The last message of the user and the last round of calls are always kept, then come earlier rounds of this turn,
    then earlier turns. `left_out` counts what is missing, and the system message then says so.
    """
    head = [*takewhile(lambda message: isinstance(message, SystemMessage), request.messages)]
    said = request.messages[len(head) :]
    *turns, last = _parts(said, UserMessage) or [()]
    question, *rounds = [last[:1], *_parts(last[1:], AssistantMessage)]
    least = (*head, SystemMessage(NOTE), *question, *_flat(rounds[-1:]))
    room = max_tokens - tokens_of_request(replace(request, messages=least))
    kept = _newest(rounds[:-1], room)
    if len(kept) == len(rounds[:-1]):
        question = (*_flat(_newest(turns, room - _cost(kept))), *question)
    messages = (*question, *_flat(kept), *_flat(rounds[-1:]))
    left_out = request.left_out + count_of_said(said) - count_of_said(messages)
    if left_out:
        head = [SystemMessage("\n\n".join([*(message.content for message in head), NOTE]))]
    return replace(request, messages=(*head, *messages), left_out=left_out)


def count_of_said(messages: Iterable[Message]) -> int:
    """How many of these are messages of the user or the model: those that people see."""
    return sum(isinstance(message, UserMessage | AssistantMessage) for message in messages)


def _parts(messages: Sequence[Message], beginning: type[Message]) -> list[Sequence[Message]]:
    """The messages from each of the kind `beginning` up to the next. What comes before the first is dropped."""
    starts = [place for place, message in enumerate(messages) if isinstance(message, beginning)]
    return [messages[start:end] for start, end in pairwise([*starts, len(messages)])]


def _newest(
    parts: Sequence[Sequence[Message]], max_tokens: float, max_messages: float = float("inf")
) -> Sequence[Sequence[Message]]:
    """The last of these parts, as many as fit."""
    for count, part in enumerate(reversed(parts)):
        max_tokens -= _cost([part])
        max_messages -= len(part)
        if max_tokens < 0 or max_messages < 0:
            return parts[len(parts) - count :]
    return parts


def _cost(parts: Iterable[Sequence[Message]]) -> int:
    return sum(map(tokens_of_message, _flat(parts)))


def _flat(parts: Iterable[Sequence[Message]]) -> list[Message]:
    return [message for part in parts for message in part]
