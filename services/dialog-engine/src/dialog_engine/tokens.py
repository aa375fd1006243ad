"""Estimates of what texts, tools and messages cost a model, in tokens. Pure.

The estimate is a quarter of the UTF-8 bytes, which is rather too much than too little.
"""

import msgspec

from dialog_engine.model import AssistantMessage, Message, SystemMessage, ToolMessage, UserMessage
from plugins_contract.catalog import ToolEntry

_BYTES_PER_TOKEN = 4
_PER_MESSAGE = 8
"""Tokens for the role and the separators of a message, as providers count them."""
_PER_TOOL = 8
"""Tokens for the frame that providers put around the definition of a tool."""
_PER_MEDIA = 1_500
"""Tokens for an image or a sound: what the large providers count for a big image, whatever its size in bytes."""


def tokens_of_text(text: str) -> int:
    """The cost of a text."""
    return len(text.encode()) // _BYTES_PER_TOKEN


def tokens_of_tool(tool: ToolEntry) -> int:
    """The cost of offering a tool with its schema, in every request."""
    definition = msgspec.json.encode([tool.name, tool.description, tool.input_schema])
    return _PER_TOOL + len(definition) // _BYTES_PER_TOKEN


def tokens_of_message(message: Message) -> int:
    """The cost of a message, with its tool calls or its images and sounds."""
    media = 0
    match message:
        case AssistantMessage(content, ()):
            size = len(content.encode())
        case AssistantMessage(content, tool_calls, reasoning):
            # Reasoning is sent back, together with tool calls only, to the providers that ask for it.
            size = len(content.encode()) + len(reasoning.encode())
            size += sum(len(call.name) + len(call.arguments.encode()) + 16 for call in tool_calls)
        case ToolMessage(content=content):
            size, media = len(content.encode()), len(message.media)
        case SystemMessage(content) | UserMessage(content):
            size = len(content.encode())
    return _PER_MESSAGE + size // _BYTES_PER_TOKEN + _PER_MEDIA * media
