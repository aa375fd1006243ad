"""What makes a dialect."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from dialog_engine.model import ToolCall, ToolMessage
from dialog_engine.tool_calls.parsers.reply import Grammar
from plugins_contract.catalog import ToolEntry


@dataclass(frozen=True, slots=True)
class Dialect:
    """One way to write tool calls and their results as text."""

    name: str
    describe: Callable[[Sequence[ToolEntry], bool], str]
    """The tools and how to call them, for the system message. The flag: a reply ends with its first block."""
    no_tools: str
    """The same for a reply in which none may be called, after others were."""
    calls: Callable[[Sequence[ToolCall]], str]
    """The calls of one message, as the model is to have written them."""
    results: Callable[[Sequence[ToolMessage]], str]
    """Their results, for the user's next message."""
    grammar: Callable[[Sequence[ToolEntry]], Grammar]
    """How its blocks are read when these tools are offered."""
    stop: str
    """The stop sequence that ends a reply with its first block."""


def in_tags(json_text: str) -> str:
    """The same JSON without a closing tag in it."""
    return json_text.replace("</", "<\\/")


def defused(text: str, *tags: str) -> str:
    """`text` from outside, such that it cannot close the `tags` it stands in and pass for what comes after them."""
    return re.sub(rf"<(/\s*(?:{'|'.join(tags)})\b)", r"&lt;\1", text)


def listed(tools: Sequence[ToolEntry]) -> str:
    """The tools, with their schemas.

    The tag is not called `arguments`, nor anything else that calls are made of: small models copy what they find there.
    """
    return "\n".join(["<tools>", *map(_listed, tools), "</tools>"])


def _listed(tool: ToolEntry) -> str:
    description = defused(tool.description.strip(), "description", "tool", "tools")
    schema = in_tags(msgspec.json.encode(tool.input_schema).decode())
    return (
        f"<tool>\n<name>{tool.name}</name>\n<description>{description}</description>\n"
        f"<parameters_schema>{schema}</parameters_schema>\n</tool>"
    )
