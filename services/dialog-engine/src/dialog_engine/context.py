"""What a request costs a model, and what of a conversation fits into it. Pure.

All of it is linear in the size of the texts, tools and messages.

Costs are in tokens, by estimate. What tools cost is a quarter of the bytes of their JSON, which is rather too much than
too little: providers write schemas in a shorter form.

In messages a token is four letters or spaces of ASCII, 1.5 of its other characters, or 2.5 bytes of any other
character. Compared with the tokenizers o200k and cl100k of OpenAI, and those of Claude 2 and DeepSeek, this is 1.02 to
1.31 times the tokens of English text, Python, JSON and tables of numbers, 0.86 to 1.99 of German, Chinese and Japanese,
and 1.57 to 3.68 of Russian. Encoded data is underestimated: 0.87 for hexadecimal digits, 0.46 for Base64.
"""

import string
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise, takewhile

import msgspec

from dialog_engine.model import AssistantMessage, ChatRequest, Message, SystemMessage, ToolMessage, Usage, UserMessage
from plugins_contract.catalog import ToolEntry
from plugins_contract.outcomes import MediaBlock

_BYTES_PER_TOKEN = 4
_LETTERS = (string.ascii_letters + string.whitespace).encode()
_NOT_ASCII = bytes(range(128, 256))
_PER_MESSAGE = 8
"""Tokens for the role and the separators of a message, as providers count them."""
_PER_CALL = 8
"""Tokens for the id and the frame of a call in a message."""
_PER_TOOL = 8
"""Tokens for the frame that providers put around the definition of a tool."""
_PER_MEDIA = 1_500
"""Tokens for an image or a sound: what the large providers count for a big image, whatever its size in bytes."""


def tokens_of_text(text: str) -> int:
    """The cost of a text that describes tools."""
    return len(text.encode()) // _BYTES_PER_TOKEN


def tokens_of_tool(tool: ToolEntry) -> int:
    """The cost of offering a tool with its schema, in every request."""
    definition = msgspec.json.encode([tool.name, tool.description, tool.input_schema])
    return _PER_TOOL + len(definition) // _BYTES_PER_TOKEN


def _tokens_of(*texts: str) -> int:
    """The cost of texts in messages."""
    data = "".join(texts).encode()
    others = data.translate(None, _LETTERS)
    ascii_others = len(others.translate(None, _NOT_ASCII))
    # A quarter for each letter, two thirds for other ASCII, two fifths for each byte of anything else.
    return (15 * (len(data) - len(others)) + 40 * ascii_others + 24 * (len(others) - ascii_others)) // 60


def tokens_of_message(message: Message) -> int:
    """The cost of a message, with its tool calls or its images and sounds."""
    match message:
        case AssistantMessage(content, tool_calls, reasoning) if tool_calls:
            # Reasoning is sent back, together with tool calls only, to the providers that ask for it.
            calls = [text for call in tool_calls for text in (call.name, call.arguments)]
            return _PER_MESSAGE + _tokens_of(content, reasoning, *calls) + _PER_CALL * len(tool_calls)
        case ToolMessage(content=content, media=media) | UserMessage(content, media):
            return _PER_MESSAGE + _tokens_of(content) + _PER_MEDIA * len(media)
        case AssistantMessage(content) | SystemMessage(content):
            return _PER_MESSAGE + _tokens_of(content)


def characters_of(messages: Iterable[Message]) -> int:
    """How much there is to read in these messages, with the arguments of their calls."""
    return sum(
        len(message.content)
        + (sum(len(call.arguments) for call in message.tool_calls) if isinstance(message, AssistantMessage) else 0)
        for message in messages
    )


def tokens_of_request(request: ChatRequest) -> int:
    """What the request costs: its messages and its tools."""
    return sum(map(tokens_of_message, request.messages)) + sum(map(tokens_of_tool, request.tools))


def tokens_of_reply(request: ChatRequest) -> Usage:
    """The cost of the reply to `request` so far, by its meter: what the provider has not reported is estimated."""
    reported = request.meter.reported
    asked = reported.input_tokens or int(min(tokens_of_request(request), request.meter.room))
    estimated = reported.estimated or not reported.input_tokens
    read = request.meter.read // _BYTES_PER_TOKEN if estimated else 0
    answered = max(reported.output_tokens, read)
    return replace(reported, input_tokens=asked, output_tokens=answered, estimated=estimated)


# --- What fits ---
# Turns and rounds are kept whole or not at all, so that a call is never parted from its result, and what is kept begins
# with a user's message.

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


MAX_BLOCKS = 8
"""Images and sounds in one request, at most: each costs tokens again in every round."""
MAX_BYTES = 6_000_000
"""Bytes of all of them together, which are 8 MB in base64: large providers accept requests of 20 to 50 MB, gateways
often less."""


IMAGE_LEFT_OUT = "(An image of the user is left out here.)"


def within_sight(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The same conversation with only as many of its newest images and sounds as fit into a request.

    The text of a result still names those that are left out, and that of the user says so. The chat service applies
    this to the history before it estimates tokens, and each round applies it again, because the results of a turn may
    bring further images.
    """
    blocks, room = MAX_BLOCKS, MAX_BYTES
    seen: list[Message] = []
    for message in reversed(messages):
        if not isinstance(message, ToolMessage | UserMessage) or not message.media:
            seen.append(message)
            continue
        kept: list[MediaBlock] = []
        for block in reversed(message.media):
            if blocks and block.size <= room:
                kept.append(block)
                blocks, room = blocks - 1, room - block.size
            else:
                blocks = 0  # older ones are left out too: a model that sees an old image but not a newer one is misled
        seen.append(message if len(kept) == len(message.media) else _with_only(message, kept[::-1]))
    return tuple(reversed(seen))


def _with_only(message: ToolMessage | UserMessage, media: Sequence[MediaBlock]) -> Message:
    if isinstance(message, ToolMessage):
        return replace(message, media=tuple(media))
    notes = [IMAGE_LEFT_OUT] * (len(message.media) - len(media))
    return UserMessage("\n\n".join([message.content, *notes]), tuple(media))
