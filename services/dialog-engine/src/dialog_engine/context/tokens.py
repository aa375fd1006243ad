"""What texts, tools and messages cost a model in tokens, by estimate. Pure.

All of it is linear in the size of the text.

What tools cost is a quarter of the bytes of their JSON, which is rather too much than too little: providers write
schemas in a shorter form.

In messages a token is four letters or spaces of ASCII, 1.5 of its other characters, or 2.5 bytes of any other
character. Compared with the tokenizers o200k and cl100k of OpenAI, and those of Claude 2 and DeepSeek, this is 1.02 to
1.31 times the tokens of English text, Python, JSON and tables of numbers, 0.86 to 1.99 of German, Chinese and Japanese,
and 1.57 to 3.68 of Russian. Encoded data is underestimated: 0.87 for hexadecimal digits, 0.46 for Base64.
"""

import string
from collections.abc import Iterable

import msgspec

from dialog_engine.model import AssistantMessage, ChatRequest, Message, SystemMessage, ToolMessage, Usage, UserMessage
from plugins_contract.catalog import ToolEntry

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
        case ToolMessage(content=content, media=media):
            return _PER_MESSAGE + _tokens_of(content) + _PER_MEDIA * len(media)
        case AssistantMessage(content) | SystemMessage(content) | UserMessage(content):
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
    return Usage(asked, max(reported.output_tokens, read), estimated)
