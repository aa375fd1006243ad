"""Long descriptions of tools, for providers that bound them. Pure.

MCP servers write as much as they like, and so does the gateway, whose description lists all operations. OpenAI takes
1,024 characters of many models ("Invalid 'tools[0].function.description': string too long"); instructions may have
any length.
"""

from dataclasses import replace

import msgspec

from dialog_engine.model import ChatRequest, SystemMessage
from plugins_contract.catalog import ToolEntry

MAX_DESCRIPTION = 1024
"""Characters that every provider takes."""
_REST = " … (go on reading about this tool in your instructions)"


def any_is_long(request: ChatRequest) -> bool:
    """Whether a tool has a description that some providers do not take."""
    return any(map(_is_long, request.tools))


def with_long_ones_apart(request: ChatRequest) -> ChatRequest:
    """The same request, with each long description in the instructions and its beginning with the tool."""
    told = [f"About the tool {tool.name}:\n{tool.description}" for tool in request.tools if _is_long(tool)]
    if not told:
        return request
    match request.messages:
        case (SystemMessage(content), *others):
            told.insert(0, content)
        case others:
            pass
    instructions = SystemMessage("\n\n".join(told))
    return replace(request, messages=(instructions, *others), tools=tuple(map(_beginning, request.tools)))


def _is_long(tool: ToolEntry) -> bool:
    return len(tool.description) > MAX_DESCRIPTION


def _beginning(tool: ToolEntry) -> ToolEntry:
    if not _is_long(tool):
        return tool
    return msgspec.structs.replace(tool, description=tool.description[: MAX_DESCRIPTION - len(_REST)] + _REST)
