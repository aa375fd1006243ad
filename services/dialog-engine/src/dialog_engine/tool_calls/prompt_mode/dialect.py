"""What a dialect of tagged calls consists of: how calls and results are written, and the grammar that parses calls."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from dialog_engine.model import ToolCall, ToolMessage
from dialog_engine.tool_calls.prompt_mode.source import Reading, Source
from plugins_contract.catalog import ToolEntry


@dataclass(frozen=True, slots=True)
class ParsedCall:
    """A call as the model wrote it.

    `problem` says why it cannot be run. `closed` is false if the reply ended before the call did.
    """

    name: str
    arguments: str
    problem: str = ""
    closed: bool = True


@dataclass(frozen=True, slots=True)
class Head:
    """The beginning of a block of calls, as much as is needed to recognise it.

    `complete_call` is set if nothing of the call follows. If `whole` is false something is missing, and the block
    counts only if the name is that of a tool. `begun` is what the body reads again, before what follows. `problem` is
    why the call cannot be run, whatever follows.
    """

    name: str
    complete_call: ParsedCall | None = None
    whole: bool = True
    begun: str = ""
    problem: str = ""


class Grammar(Protocol):
    """Parses the blocks of calls of one dialect."""

    @property
    def openers(self) -> tuple[str, ...]:
        """The tags that a block begins with."""
        ...

    def head(self, source: Source, opener: str) -> Reading[Head | None]:
        """Read what follows `opener`, until it is certain that this is a block. Returns None if it is not.

        Raises:
            CutError: the text ended before that.
        """
        ...

    def body(self, source: Source, head: Head) -> Reading[list[ParsedCall]]:
        """Read the rest of the block. It never fails: what cannot be parsed becomes the problem of its call."""
        ...


@dataclass(frozen=True, slots=True)
class Dialect:
    """One way to write tool calls and their results as text."""

    name: str
    describe: Callable[[Sequence[ToolEntry], bool], str]
    """The tools and how to call them, for the system message. The flag says that a reply ends with its first block."""
    no_tools: str
    """What the system message says instead when no tools may be called, although some were called before."""
    calls: Callable[[Sequence[ToolCall]], str]
    """The calls of one message, as the model should have written them."""
    results: Callable[[Sequence[ToolMessage]], str]
    """Their results, for the user's next message."""
    grammar: Callable[[Sequence[ToolEntry]], Grammar]
    """The grammar of its blocks when these tools are offered."""
    stop: str
    """The stop sequence that ends a reply with its first block."""


def escape_closers(json_text: str) -> str:
    """The same JSON without a closing tag in it."""
    return json_text.replace("</", "<\\/")


def escape_tags(text: str, *tags: str) -> str:
    """`text` from outside with the closing tags of `tags` escaped, so that it cannot end the block that contains it."""
    return re.sub(rf"<(/\s*(?:{'|'.join(tags)})\b)", r"&lt;\1", text)


def describe_tools(tools: Sequence[ToolEntry]) -> str:
    """The tools with their schemas.

    The tag of a schema has a name that is used nowhere in calls, because small models copy what they find here.
    """
    return "\n".join(["<tools>", *map(_describe_tool, tools), "</tools>"])


def _describe_tool(tool: ToolEntry) -> str:
    description = escape_tags(tool.description.strip(), "description", "tool", "tools")
    schema = escape_closers(msgspec.json.encode(tool.input_schema).decode())
    return (
        f"<tool>\n<name>{tool.name}</name>\n<description>{description}</description>\n"
        f"<parameters_schema>{schema}</parameters_schema>\n</tool>"
    )
