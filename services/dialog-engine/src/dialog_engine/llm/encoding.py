"""The engine's request as the JSON that OpenAI-compatible providers take."""

import hashlib
import re
from collections.abc import Callable, Sequence
from typing import Any

from dialog_engine.llm.arguments import is_complete
from dialog_engine.model import AssistantMessage, Message, SystemMessage, ToolCall, ToolMessage, UserMessage
from plugins_contract.catalogue import ToolEntry

Json = dict[str, Any]


def encode_messages(
    messages: Sequence[Message], *, call_id: Callable[[str], str] = str, reasoning_field: str | None = None
) -> list[Json]:
    """The history. `call_id` maps each tool call id to what the provider takes.

    With `reasoning_field` the model's reasoning goes back under that name, with messages that have tool calls only:
    providers that think between calls ask for it there and refuse it elsewhere.
    """
    return [_message(message, call_id, reasoning_field) for message in messages]


def encode_tools(tools: Sequence[ToolEntry]) -> list[Json]:
    """The tools as functions."""
    return [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description,
                # Some providers refuse a schema of an object that does not name its properties, even if there are none.
                "parameters": {"type": "object", "properties": {}} | tool.input_schema,
            },
        }
        for tool in tools
    ]


def nine_characters(call_id: str) -> str:
    """`call_id` for Mistral, whose ids are exactly nine letters and digits. The same id gives the same result."""
    return call_id if re.fullmatch(r"[A-Za-z0-9]{9}", call_id) else hashlib.sha256(call_id.encode()).hexdigest()[:9]


def _message(message: Message, call_id: Callable[[str], str], reasoning_field: str | None) -> Json:
    match message:
        case SystemMessage(content):
            return {"role": "system", "content": content}
        case UserMessage(content):
            return {"role": "user", "content": content}
        case ToolMessage(tool_call_id, name, content):
            # Gemini's endpoint asks for the name; the others ignore it.
            return {"role": "tool", "tool_call_id": call_id(tool_call_id), "name": name, "content": content}
        case AssistantMessage(content, ()):
            return {"role": "assistant", "content": content}
        case AssistantMessage(content, calls, reasoning):
            encoded: Json = {
                "role": "assistant",
                "content": content or None,
                "tool_calls": [_call(call, call_id) for call in calls],
            }
            return encoded | {reasoning_field: reasoning} if reasoning and reasoning_field else encoded


def _call(call: ToolCall, call_id: Callable[[str], str]) -> Json:
    # Providers parse the arguments again: one broken text in the history would make every later request fail.
    arguments = call.arguments if is_complete(call.arguments) else "{}"
    function = {"name": call.name, "arguments": arguments}
    return {**(call.extra or {}), "id": call_id(call.tool_call_id), "type": "function", "function": function}
